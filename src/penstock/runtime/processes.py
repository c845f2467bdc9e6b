"""`--processes N`: one parent that binds the ports and supervises N engine processes.

The parent owns the listening sockets, the embedded PostgreSQL if there is one, and the metrics page; children inherit
the sockets and are engines like any other. A child that dies is started again, with back-off. Settings (secrets too)
go to a child through its standard input, never through arguments or the environment; its metrics come back through its
standard output. When the parent dies, the children see the end of their input and stop in order.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from typing import Any

import msgspec
import trio
from prometheus_client import CollectorRegistry

from penstock.http import inherit
from penstock.log.log import configure_logging, get_logger
from penstock.settings import SETTINGS, LogFormat, LogLevel, Secret, Settings
from penstock.telemetry.metrics import Aggregate, Metrics, export

BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 10.0
STEADY_S = 30.0
"""A child that lived this long starts again without a back-off."""
REPORT_INTERVAL_S = 1.0
READY_TIMEOUT_S = 120.0
"""For a child that was restarted; then the next one."""
FRAME_MAX_BYTES = 16 << 20
STOP_MARGIN_S = 15.0
"""Beyond the grace: flushing, closing. A child that takes longer is killed."""

log = get_logger(__name__)
_HEAD = struct.Struct(">I")


class ChildConfig(msgspec.Struct):
    """What a child reads from its standard input, one line of JSON."""

    settings: dict[str, Any]
    sockets: dict[str, list[int]]


class LogConfig(msgspec.Struct, frozen=True):
    """What it reads there later, a line of JSON each."""

    level: LogLevel
    form: LogFormat


def encode_config(settings: Settings, dsn: str, sockets: dict[str, list[socket.socket]]) -> bytes:
    """Return the line for a child. ``dsn`` names the database also when it is the embedded one."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        value = getattr(settings, field.name)
        values[field.name] = value.reveal() if isinstance(value, Secret) else value
    values["postgres_dsn"] = dsn
    values["bind"] = settings.bind_address
    fds = {purpose: [sock.fileno() for sock in group] for purpose, group in sockets.items()}
    return msgspec.json.encode(ChildConfig(values, fds)) + b"\n"


def decode_config(line: bytes) -> tuple[Settings, dict[str, list[socket.socket]]]:
    """Return the settings and the inherited sockets of a child."""
    config = msgspec.json.decode(line, type=ChildConfig)
    secrets = {name: config.settings.pop(name, None) for name, info in SETTINGS.items() if info.secret}
    settings = msgspec.convert(config.settings, Settings)
    settings = msgspec.structs.replace(
        settings, **{name: None if value is None else Secret(value) for name, value in secrets.items()}
    )
    return settings, {purpose: [inherit(fd) for fd in fds] for purpose, fds in config.sockets.items()}


class Parent:
    """Starts, watches and stops the children."""

    def __init__(self, settings: Settings, dsn: str, sockets: dict[str, list[socket.socket]]) -> None:
        self._settings = settings
        self._sockets = sockets
        self._config = encode_config(settings, dsn, sockets)
        self._aggregate = Aggregate()
        self.registry = CollectorRegistry()
        self.registry.register(self._aggregate)
        self._children: dict[int, trio.Process] = {}
        self._stopping = False
        self._log = LogConfig(settings.log_level, settings.log_format)
        self._log_changed = trio.Event()
        self._restarting: dict[int, trio.Event] = {}
        """By index of a child that is to end: set when the next one is ready."""
        self.ready = [trio.Event() for _ in range(settings.processes)]

    async def run_child(self, index: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep one engine process running until `stop`."""
        task_status.started()
        backoff_s = BACKOFF_FIRST_S
        while True:
            started = trio.current_time()
            code = await self._run_once(index)
            if self._stopping:
                return
            if index in self._restarting:  # only now: the last report of the one that ended came before
                self.ready[index] = self._restarting.pop(index)
                backoff_s = BACKOFF_FIRST_S
                continue
            if trio.current_time() - started > STEADY_S:
                backoff_s = BACKOFF_FIRST_S
            log.error("an engine process died", index=index, exit_code=code, restart_in_s=backoff_s)
            await trio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _run_once(self, index: int) -> int:
        fds = [sock.fileno() for group in self._sockets.values() for sock in group]
        frozen = getattr(sys, "frozen", False)
        command = [sys.executable, *([] if frozen else ["-m", "penstock"]), "engine-process"]
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds, start_new_session=True
        )
        self._children[index] = process
        name = f"engine-{index}"
        log.info("engine process started", index=index, pid=process.pid)
        try:
            async with trio.open_nursery() as nursery:
                assert process.stdin is not None
                assert process.stdout is not None
                nursery.start_soon(self._feed, process.stdin)
                nursery.start_soon(self._read_reports, process.stdout, name, index)
                if self._stopping:
                    process.terminate()
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            self._aggregate.retire(name)
            del self._children[index]
        return code

    async def _feed(self, stdin: trio.abc.SendStream) -> None:
        """Send the configuration, then how the log is set anew, and keep the input open: its end tells the child that
        the parent is gone."""
        sent_log = LogConfig(self._settings.log_level, self._settings.log_format)
        try:
            await stdin.send_all(self._config)
            while True:
                changed = self._log_changed
                if sent_log != self._log:
                    sent_log = self._log
                    await stdin.send_all(msgspec.json.encode(sent_log) + b"\n")
                await changed.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it died while starting; its exit code tells

    def set_log(self, settings: Settings) -> None:
        """From now on the children log as these settings say, those that are started later too."""
        self._log = LogConfig(settings.log_level, settings.log_format)
        changed, self._log_changed = self._log_changed, trio.Event()
        changed.set()

    async def _read_reports(self, stdout: trio.abc.ReceiveStream, name: str, index: int) -> None:
        buffer = bytearray()
        while data := await stdout.receive_some(65536):
            buffer += data
            while len(buffer) >= _HEAD.size:
                (size,) = _HEAD.unpack_from(buffer)
                if size > FRAME_MAX_BYTES:
                    log.error("an engine process wrote an unreadable report", index=index)
                    return
                if len(buffer) < _HEAD.size + size:
                    break
                self._aggregate.update(name, bytes(buffer[_HEAD.size : _HEAD.size + size]))
                del buffer[: _HEAD.size + size]
                self.ready[index].set()

    async def restart_each(self) -> bool:
        """Stop and start one child after the other, each when the one before is ready: the others take all calls
        meanwhile, as the ports stay open. False when one does not come back; the others are left as they are then."""
        for index in range(len(self.ready)):
            await self.ready[index].wait()
            ready = trio.Event()
            process = self._children.get(index)
            if process is None:  # it died, and is started anew just now
                self.ready[index] = ready
            else:
                self._restarting[index] = ready
                process.terminate()
                with trio.move_on_after(self._settings.shutdown_grace_seconds + STOP_MARGIN_S):
                    await process.wait()
                if process.returncode is None:
                    log.error("an engine process did not stop and is killed", pid=process.pid)
                    process.kill()
            with trio.move_on_after(READY_TIMEOUT_S) as waiting:
                await ready.wait()
            if waiting.cancelled_caught:
                log.error("an engine process did not come back; the others are not restarted", index=index)
                return False
        log.info("engine processes restarted", processes=len(self.ready))
        return True

    async def stop(self) -> bool:
        """Close the ports here, tell the children, wait; True when all ended well within the grace."""
        self._stopping = True
        # else clients hang in the backlog of a socket that nobody accepts from any more
        for group in self._sockets.values():
            for sock in group:
                sock.close()
        for process in list(self._children.values()):
            process.terminate()
        with trio.move_on_after(self._settings.shutdown_grace_seconds + STOP_MARGIN_S):
            for process in list(self._children.values()):
                await process.wait()
        late = [process for process in self._children.values() if process.returncode is None]
        for process in late:
            log.error("an engine process did not stop and is killed", pid=process.pid)
            process.kill()
        return not late


class ChildReporter:
    """A child's side: its metrics to the parent, and an eye on the parent."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._stdout = trio.lowlevel.FdStream(1)

    async def step(self) -> None:
        """Report once an interval."""
        await self.report()
        await trio.sleep(REPORT_INTERVAL_S)

    async def report(self) -> None:
        """Report now. A parent that is gone is not our business here: `wait_parent_gone` sees it."""
        body = export(self._metrics.registry)
        try:
            await self._stdout.send_all(_HEAD.pack(len(body)) + body)
        except trio.BrokenResourceError:
            await trio.sleep(REPORT_INTERVAL_S)


async def wait_parent_gone(stdin: trio.abc.ReceiveStream, buffer: bytes) -> None:
    """Returns when the parent has closed our standard input, which is at its death at the latest. Until then it says
    how the log is set anew. ``buffer`` is what came with the configuration."""
    while True:
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            log_config = msgspec.json.decode(line, type=LogConfig)
            configure_logging(log_config.level, log_config.form)
            log.warning("the log level was changed", log_level=log_config.level, log_format=log_config.form)
        data = await stdin.receive_some(4096)
        if not data:
            return
        buffer += data


async def read_config(stdin: trio.abc.ReceiveStream) -> tuple[bytes, bytes]:
    """Return the first line of standard input, and what came after it."""
    buffer = bytearray()
    while b"\n" not in buffer:
        data = await stdin.receive_some(65536)
        if not data:
            raise EOFError("the parent closed the input before the configuration was complete")
        buffer += data
    line, _, more = bytes(buffer).partition(b"\n")
    return line, more
