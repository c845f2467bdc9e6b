"""Builds the client in ``go/`` with stubs generated from proto/. Needs go and grpcio-tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_PROTO = Path(__file__).resolve().parents[2] / "proto"
_STUBS = {"workflow/v1/engine.proto": "workflow", "penstock/v1/worker.proto": "penstock"}
_PLUGINS = ["google.golang.org/protobuf/cmd/protoc-gen-go", "google.golang.org/grpc/cmd/protoc-gen-go-grpc"]


def build(where: Path) -> Path:
    """Build in a directory that is not there yet; the program's path."""
    shutil.copytree(Path(__file__).parent / "go", where)

    def run(*command: str) -> None:
        subprocess.run(command, cwd=where, check=True, env={**os.environ, "GOFLAGS": "-mod=mod"})

    run("go", "build", "-o", "bin/", *_PLUGINS)
    packages = ",".join(f"M{file}=penstock.test/client/pb/{name}" for file, name in _STUBS.items())
    run(
        sys.executable, "-m", "grpc_tools.protoc", f"-I{_PROTO}",
        "--plugin=protoc-gen-go=bin/protoc-gen-go", "--plugin=protoc-gen-go-grpc=bin/protoc-gen-go-grpc",
        "--go_out=.", "--go-grpc_out=.",
        f"--go_opt={packages},module=penstock.test/client", f"--go-grpc_opt={packages},module=penstock.test/client",
        *_STUBS,
    )  # fmt: skip
    run("go", "build", "-o", "client", ".")
    return where / "client"
