"""`python -m chaos.exposure.h2spec [--binary h2spec] [grpc|rest]`: what h2spec finds at an engine's gRPC port, or at
REST on hypercorn (`WE_HTTP_SERVER=hypercorn`).

h2spec is not ours: `go install github.com/summerwind/h2spec/cmd/h2spec@latest` makes it. Exits with 1 for failures that
are not explained here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from chaos.exposure import rig
from penstock.testing.postgres import run_directory, shared_server

TIMEOUT_S: Final = 3
RUN_TIMEOUT_S: Final = 300
SETTINGS: Final = {"grpc": {}, "rest": {"WE_HTTP_SERVER": "hypercorn"}}
PATHS: Final = {"grpc": "/grpc.health.v1.Health/Check", "rest": "/healthz"}
_MANY: Final = "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded"
EXPLAINED: Final = {
    "Sends a WINDOW_UPDATE frame on half-closed (remote) stream": "h2spec wants DATA, and a GET gets none from gRPC",
    "Sends a PRIORITY frame on half-closed (remote) stream": "the same",
    _MANY: "each is answered before the next comes, so there are never so many",
    "Sends invalid connection preface": "over cleartext hypercorn answers it as HTTP/1.1, with 400, and closes",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.exposure.h2spec", description=__doc__)
    parser.add_argument("port", nargs="?", choices=list(PATHS), default="grpc")
    parser.add_argument("--binary", default=shutil.which("h2spec") or os.path.expanduser("~/go/bin/h2spec"))
    options = parser.parse_args()
    if not Path(options.binary).is_file():
        parser.error(f"there is no {options.binary}: go install github.com/summerwind/h2spec/cmd/h2spec@latest")
    cases = _run(options.port, options.binary)
    failed = {case.get("classname", "") for case in cases if len(case) and case.find("skipped") is None}
    skipped = sum(case.find("skipped") is not None for case in cases)
    for name in sorted(failed):
        print(f"failed: {name}: {EXPLAINED.get(name, 'NOT EXPLAINED')}")
    print(f"{len(cases)} cases, {len(cases) - skipped - len(failed)} passed, {skipped} skipped, {len(failed)} failed")
    return 1 if failed - EXPLAINED.keys() or not cases else 0


def _run(port: str, binary: str) -> list[ET.Element]:
    with (
        shared_server(run_directory(durable=False), durable=False) as server,
        server.database() as dsn,
        tempfile.TemporaryDirectory() as folder,
    ):
        target = rig.Target(rig.REPOSITORY, dsn, SETTINGS[port])
        target.start()
        report = Path(folder, "report.xml")
        try:
            number = target.grpc_port if port == "grpc" else target.rest_port
            command = [binary, "-h", "127.0.0.1", "-p", str(number), "-P", PATHS[port]]
            command += ["--timeout", str(TIMEOUT_S), "-j", str(report)]
            subprocess.run(command, stdout=subprocess.DEVNULL, timeout=RUN_TIMEOUT_S, check=False)
            if target.call("GET", "/healthz")[0] != 200:
                raise RuntimeError("the engine does not answer any more")
            return list(ET.fromstring(report.read_text()).iter("testcase"))
        finally:
            target.kill()


if __name__ == "__main__":
    sys.exit(main())
