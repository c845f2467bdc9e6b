"""Signals: the first asks for an orderly stop, the second ends everything at once."""

from __future__ import annotations

import signal

import trio

from penstock.log.log import get_logger

log = get_logger(__name__)


class Stopping:
    """What the signals asked for. ``serving`` is set by who has started: before that the first signal ends at once.

    ``forced``: the stop was not in order, which the exit code tells.
    """

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.serving = False
        self.forced = False

    async def watch_signals(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Take SIGTERM and SIGINT until cancelled; ``scope`` is cancelled to end at once."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                if self.asked.is_set() or not self.serving:
                    self.forced = self.asked.is_set()
                    log.warning("ending at once", signal=name)
                    scope.cancel()
                    return
                log.info("stopping", signal=name)
                self.asked.set()
