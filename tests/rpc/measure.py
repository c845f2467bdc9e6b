"""What the transport costs: ``python -m tests.rpc.measure`` (needs go; a minute). No test.

CPU of the server process per call is the figure to compare; the load generator shares its cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rpc import go_client

ROOT = Path(__file__).resolve().parents[2]


def transport(client: Path, *load: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.rpc.server_process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        done = subprocess.run(
            [str(client), load[0], f"127.0.0.1:{port}", *load[1:]], stdout=subprocess.PIPE, check=True
        )
        server.send_signal(signal.SIGTERM)
        used = json.loads(server.stdout.read().splitlines()[-1])
    seen = json.loads(done.stdout)
    count = seen.get("jobs", used["calls"])
    print(" ".join(load), "|", f"{seen['perSecond']:.0f}/s, server CPU {used['cpu_s'] / count * 1e6:.0f} µs each", seen)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        program = go_client.build(Path(directory) / "client")
        transport(program, "load", "-c", "1", "-conns", "1", "-d", "4s")
        transport(program, "load", "-c", "32", "-conns", "4", "-d", "4s")
        transport(program, "stream", "-c", "4", "-batch", "32", "-d", "4s")
