"""An engine as a process of its own, on the test's database; may be stopped, killed and started again.

Its address stays the same across starts, as behind a service name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.client import SyncClient
from penstock.http import reserved_ports
from penstock.testing.postgres import PostgresServer, apply_schema

REPOSITORY = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 120


class RunningEngine:
    def __init__(self, dsn: str, log: Path, **settings: str) -> None:
        self._ports = ExitStack()
        self._rest, self._grpc, self._metrics = self._ports.enter_context(reserved_ports(3))
        self._log = log
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("WE_", "DB_"))}
        self._environment = plain | {"WE_POSTGRES_DSN": dsn, "PYTHONPATH": str(REPOSITORY / "src")} | settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._rest}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://127.0.0.1:{self._grpc}"

    def start(self) -> None:
        """Start and wait until it is ready."""
        assert self._process is None
        command = [sys.executable, "-m", "penstock", "serve", "--config", os.devnull, "--bind", "127.0.0.1"]
        command += ["--rest-port", str(self._rest), "--grpc-port", str(self._grpc)]
        command += ["--metrics-port", str(self._metrics)]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=self._environment)
        with SyncClient(self.url) as client:
            client.wait_until_ready(timeout_s=READY_TIMEOUT_S)

    def kill(self) -> None:
        """As a crash: nothing is flushed, nobody is told."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order, as at a deployment."""
        assert self._end(signal.SIGTERM) == 0, self._log.read_text()

    def close(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)
        self._ports.close()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        return process.wait(STOP_TIMEOUT_S)


@contextmanager
def running_engine(server: PostgresServer, directory: Path) -> Generator[RunningEngine]:
    """One on a new database, until the end of the block; its log is in the directory."""
    with server.database(apply_schema) as dsn:
        running = RunningEngine(dsn, directory / "log")
        try:
            running.start()
            yield running
        finally:
            running.close()
