"""An engine process on a database of its own, a probe beside it, and what an attack cost. Linux only (/proc)."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from benchmarks.processes import read_process
from penstock.testing.postgres import run_directory, shared_server

REPOSITORY = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 300.0
QUIET_S = 1.0
"""The engine is done with an attack once it has used next to nothing for so long."""

Attack = Callable[["Target"], str]
"""Does its worst; returns what became of it."""


class Measured(NamedTuple):
    cpu_s: float
    worst_probe_ms: float
    worst_probe_own_ms: float
    """Without waiting for a core."""
    unanswered: int
    longest_turn_ms: float
    longest_turn_cpu_ms: float
    peak_mb: float
    outcome: str


class Target:
    """The engine under attack."""

    def __init__(self, source: Path, dsn: str, settings: Mapping[str, str]) -> None:
        self.rest_port, self.grpc_port, self.metrics_port = _free_port(), _free_port(), _free_port()
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("WE_", "DB_", "PG"))
        }
        self._environment |= {"PYTHONPATH": str(source / "src"), "WE_POSTGRES_DSN": dsn, **settings}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the target lives
        self._process: subprocess.Popen[bytes] | None = None
        self._spent_s, self._peak_bytes = 0.0, 0
        self._note = tempfile.NamedTemporaryFile()  # noqa: SIM115 - as long as the target lives
        self._turns_s = (0.0, 0.0)
        self._environment["EXPOSURE_NOTE_FILE"] = self.note = self._note.name

    # -- its life

    def start(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("engine.py")), "serve", "--config", os.devnull]
        command += ["--bind", "127.0.0.1"]
        command += [
            "--rest-port",
            str(self.rest_port),
            "--grpc-port",
            str(self.grpc_port),
            "--metrics-port",
            str(self.metrics_port),
        ]
        self._process = subprocess.Popen(
            command, env=self._environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(OSError):
                if self.call("GET", "/readyz")[0] == 200:
                    self._process.send_signal(signal.SIGUSR2)  # its turns are counted from now on
                    return
            time.sleep(0.05)
        self._log.seek(0)
        raise RuntimeError(f"the engine does not come up: {self._log.read().decode()[-2_000:]}")

    def kill(self) -> None:
        """kill -9; what it used is remembered."""
        assert self._process is not None
        self._spent_s, self._peak_bytes, self._turns_s = self.cpu_s, self.peak_bytes, self.turns_s
        self._process.kill()
        self._process.wait()
        self._process = None

    def wait_quiet(self) -> None:
        """Until the engine has done what it was asked for."""
        before, since = self.cpu_s, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            time.sleep(0.1)
            if self.cpu_s - before > 0.1:
                before, since = self.cpu_s, time.monotonic()

    @property
    def cpu_s(self) -> float:
        facts = None if self._process is None else read_process(self._process.pid)
        return self._spent_s + (0.0 if facts is None else facts.cpu_s)

    @property
    def peak_bytes(self) -> int:
        if self._process is None:
            return self._peak_bytes
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        return max(self._peak_bytes, peak)

    @property
    def turns_s(self) -> tuple[float, float]:
        """The longest turn of its loop, and the most of the processor that one took."""
        longest_s, cpu_s = map(float, Path(self.note).read_text().split()[1:] or (0, 0))
        return max(self._turns_s[0], longest_s), max(self._turns_s[1], cpu_s)

    # -- what a client may do

    def call(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """One REST call; bytes go as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.rest_port, timeout=CALL_TIMEOUT_S)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def upload(self, definition: object) -> tuple[int, Any]:
        return self.call("POST", "/v1/definitions", definition)

    def start_instance(self, definition: str, variables: object) -> tuple[int, Any]:
        return self.call("POST", "/v1/instances", {"definitionId": definition, "variables": variables})

    def rpc(self, method: str, message: bytes) -> str:
        """One gRPC call of `workflow.v1`; the name of its status."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            try:
                channel.unary_unary(f"/workflow.v1.WorkflowEngine/{method}")(message, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"


def measure(attack: Attack, source: Path, **settings: str) -> Measured:
    """One attack on a new engine with a new database."""
    with shared_server(run_directory(durable=False), durable=False) as server, server.database() as dsn:
        target = Target(source, dsn, settings)
        target.start()
        probe = subprocess.Popen(
            [sys.executable, "-m", "chaos.exposure.probe", str(target.rest_port), target.note],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            before_s = target.cpu_s
            outcome = attack(target)
            target.wait_quiet()
            cpu_s, peak, turns_s = target.cpu_s - before_s, target.peak_bytes, target.turns_s
            said, _ = probe.communicate(timeout=2 * CALL_TIMEOUT_S)
        finally:
            probe.kill()
            probe.wait()
            target.kill()
    worst_s, worst_own_s, unanswered = said.split()
    probes_ms = float(worst_s) * 1_000, float(worst_own_s) * 1_000
    return Measured(cpu_s, *probes_ms, int(unanswered), turns_s[0] * 1_000, turns_s[1] * 1_000, peak / 1e6, outcome)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
