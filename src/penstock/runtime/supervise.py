"""Children of one nursery, each with a name, a cancel scope and an end that others can wait for.

A child that raises brings the nursery down, and so does one that returns unasked: nothing in the engine may end
silently. The order of a stop is the caller's; see `service.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from penstock.errors import PenstockError
from penstock.log.log import RateLimitedLog, get_logger
from penstock.store.db.database import AWAY, BAD_DATA, first_line
from penstock.telemetry.metrics import Metrics

log = get_logger(__name__)
_failures = RateLimitedLog(log, interval_seconds=5)
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
REFUSED_FIRST_S, REFUSED_MAX_S = 1.0, 30.0


class ChildExited(Exception):
    """A child returned although nobody had asked it to."""


class _Child:
    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.may_end = False


class Supervisor:
    """Starts and stops named children."""

    def __init__(self, nursery: trio.Nursery, metrics: Metrics) -> None:
        self._nursery = nursery
        self._metrics = metrics
        self._children: dict[str, _Child] = {}

    async def start(self, name: str, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run ``function(*args, task_status=...)``; returns once it said that it has started."""
        child = self._children[name] = _Child()

        async def run(task_status: trio.TaskStatus[Any]) -> None:
            self._metrics.task_up[name].set(1)
            try:
                with child.scope:
                    await function(*args, task_status=task_status)
                if not child.may_end:
                    raise ChildExited(name)
            finally:
                self._metrics.task_up[name].set(0)
                child.done.set()

        await self._nursery.start(run, name=name)

    def expect_end(self, name: str) -> None:
        """The child may return from now on."""
        self._children[name].may_end = True

    async def wait_ended(self, name: str) -> None:
        """Wait for the end of a child."""
        await self._children[name].done.wait()

    async def stop(self, *names: str) -> None:
        """Cancel children and wait for them; names that never started are passed over."""
        running = [self._children[name] for name in names if name in self._children]
        for child in running:
            child.may_end = True
            child.scope.cancel()
        for child in running:
            await child.done.wait()

    def names(self) -> list[str]:
        """Return all children, in order of start."""
        return list(self._children)


async def forever(
    name: str,
    step: Callable[[], Awaitable[object]],
    metrics: Metrics | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call ``step`` again and again; it does its own waiting.

    A database that is away, and an operation that was refused for it or for a full queue, is tried again with back-off.
    So is a round that the database refused for what is in it: a service sets its bad rows aside
    (`engine.advance.quarantine`), and what it could not tell from the others must not end the process.
    """
    task_status.started()
    pause_s = RETRY_FIRST_S
    while True:
        try:
            await step()
            pause_s = RETRY_FIRST_S
        except BAD_DATA as error:
            if metrics is not None:
                metrics.service_errors[name].inc()
            _failures.error(
                name, "the database refuses a service", service=name, error=first_line(error), sqlstate=error.sqlstate
            )
            pause_s = max(pause_s, REFUSED_FIRST_S)
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, REFUSED_MAX_S)
        except (*AWAY, PenstockError) as error:
            _failures.warning(name, "a service waits for the database", service=name, error=first_line(error))
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)
