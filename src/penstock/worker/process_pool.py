"""The processes of one worker: each runs one handler at a time, and none is left behind.

A process is started when a call finds none idle. It is ended when its call is cancelled – while it starts, too – when
it breaks, and with the pool; ended means killed, waited for and closed. (anyio's pool, which this replaces, lets go of
a process whose call is cancelled while it starts, and bounds the start by a clock, which tests may turn.) What runs in
them is `process.py`. Must not know of jobs.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from penstock.worker.process import LENGTH_BYTES, framed

# The path comes first: it says where this package is. Ctrl-C goes to all processes of a terminal: see `process.call`.
_PROGRAM = """
import pickle, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
sys.path, main_path = pickle.load(sys.stdin.buffer)
from penstock.worker.process import serve
serve(main_path)
"""
_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead)


class ProcessPool:
    """At most ``most`` processes at once. To be closed in the event loop that used it."""

    def __init__(self, most: int) -> None:
        self._places = anyio.CapacityLimiter(most)
        self._idle: list[_Child] = []

    async def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call an importable function in a process, once one is free. Cancelled, the process is killed.

        Raises:
            BrokenWorkerProcess: the process died.
            Exception: whatever the function raises, or the pickling of what goes to and fro.
        """
        request = framed((function, arguments))
        async with self._places:
            child = await self._free()
            try:
                answer = await child.call(request)
            except BaseException:
                await child.end()
                raise
            self._idle.append(child)
        succeeded, value = pickle.loads(answer)  # noqa: S301 - of our own child
        if succeeded:
            return value
        raise value

    async def aclose(self) -> None:
        """End all processes. No call may be under way."""
        while self._idle:
            await self._idle.pop().end()

    async def _free(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            await child.end()
        return await _Child.start()


class _Child:
    """One process. Whoever has it ends it."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)
        self._first = pickle.dumps((sys.path, getattr(sys.modules["__main__"], "__file__", None)))

    @classmethod
    async def start(cls) -> _Child:
        command = [sys.executable, "-c", _PROGRAM]
        with anyio.CancelScope(shield=True):  # a process that exists has an owner
            return cls(await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None))
        raise AssertionError("nobody cancels this scope")

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def call(self, request: bytes) -> bytes:
        """Send a request and wait for the answer to it. Raises BrokenWorkerProcess."""
        first, self._first = self._first, b""
        try:
            await self._requests.send(first + request)
            length = await self._answers.receive_exactly(LENGTH_BYTES)
            return await self._answers.receive_exactly(int.from_bytes(length, "big"))
        except _BROKEN as error:
            raise anyio.BrokenWorkerProcess from error

    async def end(self) -> None:
        """Kill it and wait for its end."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.aclose()
