"""News for workers: jobs that were taken from them because their instance ended or their step was interrupted.

A worker's watch parks here until there is news of its jobs; what is told while none is parked is kept for a while. A
hint only: what is lost here, the next heartbeat says. Told by the transactions of this engine and, through `NOTIFY`,
of the others, so that it does not matter through which engine a worker watches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from penstock.access.identity import Identity, actor, job_type_limit
from penstock.errors import Forbidden

KEPT_S: Final = 30.0
KEPT_MAX_ITEMS: Final = 10_000
ANSWER_MAX_ITEMS: Final = 1_000
POLLERS_MAX_COUNT: Final = 10_000


class Loss(NamedTuple):
    """A job under a worker's lease that closed without its doing."""

    worker: str
    instance: int
    token: int
    seq: int
    attempt: int


class Losses:
    """What workers are to be told, by worker. ``told`` hears of what this engine finds itself."""

    def __init__(self, max_pending: int, on_loss: Callable[[Loss], None] = lambda loss: None) -> None:
        self._on_loss = on_loss
        self._max_pending = max_pending
        self._kept: OrderedDict[Loss, float] = OrderedDict()
        self._by_worker: dict[str, dict[Loss, None]] = {}
        self._pending: dict[str, set[trio.Event]] = {}
        self._pollers: OrderedDict[str, frozenset[str] | None] = OrderedDict()
        self._count = 0
        self._draining = False

    def __len__(self) -> int:
        return self._count

    def notify(self, loss: Loss) -> None:
        """Something that a transaction of this engine did."""
        self.receive(loss)
        self._on_loss(loss)

    def receive(self, loss: Loss) -> None:
        """Something that any engine did."""
        now = trio.current_time()
        while self._kept and next(iter(self._kept.values())) < now - KEPT_S:
            self._forget(next(iter(self._kept)))
        if loss not in self._kept:
            self._kept[loss] = now
            self._by_worker.setdefault(loss.worker, {})[loss] = None
        if len(self._kept) > KEPT_MAX_ITEMS:
            self._forget(next(iter(self._kept)))
        for event in self._pending.get(loss.worker, ()):
            event.set()

    def remember_poller(self, worker: str, caller: Identity | None) -> None:
        """A caller polls by this worker's id: with authentication it may be limited to job types."""
        if caller is not None:
            self._pollers[worker] = caller.job_types
            self._pollers.move_to_end(worker)
            if len(self._pollers) > POLLERS_MAX_COUNT:
                self._pollers.popitem(last=False)

    def check_listener(self, worker: str) -> None:
        """Raises Forbidden when the caller is limited to job types, and who polls by this worker's id has others: the
        news, which is told once, is of those."""
        limit = job_type_limit()
        if limit is not None:
            others = self._pollers.get(worker, limit)
            if others is None or not limit >= others:
                raise Forbidden(f"workerId: this worker polls for job types that {actor()} may not work on")

    async def wait(self, worker: str, wait_s: float) -> list[Loss]:
        """News for a worker, waiting up to ``wait_s`` seconds while there is none. It is told once."""
        if worker not in self._by_worker and wait_s > 0 and not self._draining and self._count < self._max_pending:
            await self._park(worker, wait_s)
        found = list(self._by_worker.get(worker, ()))[:ANSWER_MAX_ITEMS]
        for loss in found:
            self._forget(loss)
        return found

    def drain(self) -> None:
        """Answer everybody, now and from now on at once."""
        self._draining = True
        for events in self._pending.values():
            for event in events:
                event.set()

    async def _park(self, worker: str, wait_s: float) -> None:
        event = trio.Event()
        self._pending.setdefault(worker, set()).add(event)
        self._count += 1
        try:
            with trio.move_on_after(wait_s):
                await event.wait()
        finally:
            self._count -= 1
            self._pending[worker].discard(event)
            if not self._pending[worker]:
                del self._pending[worker]

    def _forget(self, loss: Loss) -> None:
        del self._kept[loss]
        of_worker = self._by_worker[loss.worker]
        del of_worker[loss]
        if not of_worker:
            del self._by_worker[loss.worker]
