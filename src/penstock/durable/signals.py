"""SIGINT and SIGTERM of a program whose main thread runs steps: they stop the app in its own thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

import trio
import trio.lowlevel


class Signals:
    """What came so far: the first signal cancels a scope of the app, the second one ends the process."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._stop: tuple[trio.lowlevel.TrioToken, trio.CancelScope] | None = None

    @contextmanager
    def received(self) -> Generator[None]:
        """Receive them in the block, in the main thread; elsewhere nothing is received."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def cancel(self, scope: trio.CancelScope) -> Generator[None]:
        """Cancel the scope of the app's loop in the block, also for a signal that came before."""
        self._stop = (trio.lowlevel.current_trio_token(), scope)
        if self.came:
            scope.cancel()
        try:
            yield
        finally:
            self._stop = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            sys.stderr.write("penstock: ending at once\n")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.came.append(number)
        if self._stop is not None:
            token, scope = self._stop
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)
