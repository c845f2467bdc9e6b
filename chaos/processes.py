"""Engines and workers as processes that can be killed, stopped and started again on the same port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.deployment import variable_of
from benchmarks.processes import read_process

REPOSITORY = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S = 180.0
"""Later is a hang: it takes a second on a quiet machine."""
POLL_S = 0.05
END_TIMEOUT_S = 30.0


class Process:
    """A child with a log file. ``wanted``: whether it ought to run, for whoever starts again what ended."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.wanted = False
        self.starts = 0
        self.log = log
        self._command = command
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("WE_", "DB_", "PG", "PYTHONPATH"))
        }
        self._environment |= {"PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether it lives, maybe stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the last one, once it has ended."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """Of the one that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Its memory; 0 when it does not run."""
        facts = read_process(self._process.pid) if self._process is not None and self.runs else None
        return 0 if facts is None else facts.resident_bytes

    def spawn(self) -> None:
        """Start it, and again after its end. Returns at once."""
        assert not self.runs
        self.wanted = True
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command], cwd=REPOSITORY, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, also of a stopped one."""
        self.wanted = False
        if self._process is not None and self.runs:
            self._process.kill()
            self._process.wait()

    async def stop(self) -> int:
        """SIGTERM; its exit code. One that does not end is killed, and its code is -9."""
        self.wanted = False
        assert self._process is not None
        self.signal(signal.SIGTERM)
        with trio.move_on_after(END_TIMEOUT_S):
            while self._process.poll() is None:
                await trio.sleep(POLL_S)
        self.kill()
        return self._process.wait()


class EngineProcess(Process):
    """``penstock serve`` on a port of its own. Its wall clock is off by the seconds that stand in ``clock_file``."""

    def __init__(
        self,
        name: str,
        dsn: str,
        port: int,
        log: Path,
        settings: Mapping[str, object],
        clock_file: Path | None,
        *,
        grpc_port: int = 0,
    ) -> None:
        module = "penstock" if clock_file is None else "chaos.engine_with_clock"
        command = ["-m", module, "serve", "--config", os.devnull, "--bind", "127.0.0.1"]
        command += ["--rest-port", str(port), "--grpc-port", str(grpc_port), "--metrics-port", "0"]
        environment = {variable_of(setting): str(value) for setting, value in settings.items()}
        environment |= {"WE_POSTGRES_DSN": dsn}
        if clock_file is not None:
            environment["CHAOS_CLOCK_FILE"] = str(clock_file)
        super().__init__(name, command, environment, log)
        self.port = port

    async def is_ready(self) -> bool:
        """Whether ``/readyz`` says so within a few seconds."""
        with suppress(OSError, trio.BrokenResourceError), trio.move_on_after(5):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                await stream.send_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return (await stream.receive_some(64)).startswith(b"HTTP/1.1 200")
        return False

    async def wait_ready(self) -> None:
        """Wait for it; one that ends meanwhile is somebody else's to start again."""
        with trio.fail_after(READY_TIMEOUT_S):
            while not await self.is_ready():
                await trio.sleep(POLL_S)

    def lines(self) -> list[dict[str, Any]]:
        """Its log: all lines that are JSON, of all its lives."""
        found: list[dict[str, Any]] = []
        for line in self.log.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line, type=dict[str, Any]))
        return found


class WorkerProcess(Process):
    """`chaos.worker_process`."""

    def __init__(self, name: str, url: str, directory: Path, seed: str) -> None:
        command = ["-m", "chaos.worker_process", url, str(directory), name, seed]
        super().__init__(name, command, {}, directory / f"{name}.out")
