"""A real engine process for a test: started, spoken to over real sockets, signalled, killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.runtime.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0


class EngineProcess:
    """``penstock serve`` on free ports. Ends with the block; `stop` and `kill` may be called before. ``module`` is run
    in place of the package (`newer_engine`)."""

    def __init__(self, dsn: str | None, *arguments: str, module: str = "penstock", **settings: object) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", prefix="engine-", suffix=".log", delete=False)  # noqa: SIM115
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WE_")}
        environment |= {f"WE_{key.upper()}": str(value) for key, value in settings.items()}
        environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}:{REPOSITORY}"
        if dsn is not None:
            environment |= {"WE_POSTGRES_DSN": dsn, "WE_BIND": "127.0.0.1"}
        command = [sys.executable, "-m", module, "serve"]
        command += ["--rest-port", "0", "--grpc-port", "0", "--metrics-port", "0", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log
        )
        self.dsn = dsn or ""
        self.port = 0
        self.grpc_port = 0
        self.metrics_port = 0

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()
        os.unlink(self._log.name)

    @property
    def reported(self) -> str:
        """All of its standard error so far."""
        return Path(self._log.name).read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log so far, without a line that is just being written."""
        lines = self.reported.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]

    def said(self, message: str, *fields: str) -> dict[str, Any] | None:
        """The last line with that message, and these fields."""
        said = (line for line in reversed(self.lines) if line.get("message") == message)
        return next((line for line in said if line.keys() >= set(fields)), None)

    def wait_said(self, message: str, *fields: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            line = self.said(message, *fields)
            assert line is not None or self.process.poll() is None, self.reported
            return line

        line = wait_until(found, timeout_s=timeout_s)
        assert line is not None
        return line

    def wait_ready(self) -> EngineProcess:
        line = self.wait_said("ready", "metrics")  # a child of several has no metrics page
        self.port = int(line["REST"].rpartition(":")[2])
        self.grpc_port = int(line["gRPC"].rpartition(":")[2])
        self.metrics_port = int(line["metrics"].rpartition(":")[2])
        return self

    def stop(self, timeout_s: float = 120.0) -> int:
        """SIGTERM and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not stop within {timeout_s} s:\n{self.reported}") from None

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(120)

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> tuple[int, Any]:
        """One request on a connection of its own: status and decoded body."""
        return call(self.port, method, path, body, timeout_s)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        samples = (line.rpartition(" ") for line in text.splitlines())
        return sum(float(value) for sample, _, value in samples if sample.partition("{")[0] == name)


def call(port: int, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()
