"""Generates src/penstock/rpc/_generated from proto/: ``python tools/generate_protos.py [--check]``.

Writes the classes and service bases of betterproto2, and the file descriptors that reflection serves. Needs the
dev dependencies grpcio-tools (protoc) and betterproto2-compiler (its plugin); what it writes needs neither, nor
grpcio or google.protobuf. With ``--check`` it writes nothing and exits 1 when the checked-in files are stale, 2 when
a tool is missing.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "src" / "penstock" / "rpc" / "_generated"
_OPTIONS = "server_generation=async,client_generation=none"
_DESCRIPTORS_HEAD = '''"""A google.protobuf.FileDescriptorSet of all proto files, in base 85. Generated: do not edit."""

from __future__ import annotations

'''
_TOOLS = {"grpc_tools": "grpcio-tools", "betterproto2_compiler": "betterproto2-compiler"}


def missing_tools() -> list[str]:
    """The packages that have to be installed first."""
    return [package for module, package in _TOOLS.items() if importlib.util.find_spec(module) is None]


def generate(target: Path) -> None:
    """Write everything into an empty directory."""
    files = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    # The plugin stands beside the interpreter, whether or not its directory is on the path.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    descriptors = target / "descriptors.binpb"
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}",
            f"--python_betterproto2_out={target}", f"--python_betterproto2_opt={_OPTIONS}",
            f"--descriptor_set_out={descriptors}", "--include_imports", *files,
        ],
        check=True, env={**os.environ, "PATH": path}, stderr=subprocess.PIPE,
    )  # fmt: skip
    # A module, not a data file: it is there in a zip and in a frozen binary as well.
    text = base64.b85encode(descriptors.read_bytes()).decode()
    lines = "\n".join(f'    b"{text[at : at + 100]}"' for at in range(0, len(text), 100))
    (target / "descriptors.py").write_text(_DESCRIPTORS_HEAD + f"FILE_DESCRIPTOR_SET = (\n{lines}\n)\n")
    descriptors.unlink()


def differences(fresh: Path) -> list[str]:
    """The files that differ from the checked-in ones, by name."""

    def contents(top: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(top)): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }

    old, new = contents(TARGET), contents(fresh)
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def main() -> int:
    if missing := missing_tools():
        print("missing:", ", ".join(missing), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        generate(fresh)
        stale = differences(fresh)
        if "--check" in sys.argv:
            for path in stale:
                print("stale:", path)
            return 1 if stale else 0
        for path in stale:
            source, target = fresh / path, TARGET / path
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
            else:
                target.unlink()
            print("written:" if source.exists() else "removed:", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
