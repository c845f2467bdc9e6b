"""Parked polls: who waits for which job types, first come first served.

Pure bookkeeping, no I/O: a slot is *reserved* when a statement that may fill it is sent, then either delivered or
given up. `poll` in `polls.py` parks here; direct dispatch and the probe of the queue reserve here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from itertools import islice
from typing import Final

import trio

from penstock.engine.requests.answers import COPIES, AnswerMemory, MemoryReservation, current_reservation
from penstock.wire.model import Job

POLL_BYTES: Final = 1_000
"""Of a parked poll, without its types."""
WANTED_BYTES: Final = 250
"""Of each type that a poll names, beside the name."""
PENDING_TYPES_MAX_COUNT: Final = 10_000
"""Job types that all parked polls may name together."""
TYPE_BYTES: Final = 800
"""Of a type that somebody waits for."""


class Waiter:
    """One poll. ``types`` are names; a name without an id yet is looked up by the probe."""

    __slots__ = (
        "_task",
        "asking",
        "closed",
        "ending",
        "jobs",
        "lease_s",
        "max_jobs",
        "reservation",
        "reserved",
        "types",
        "worker",
    )

    def __init__(
        self,
        worker: str,
        types: tuple[str, ...],
        max_jobs: int,
        lease_s: float,
        reservation: MemoryReservation | None = None,
    ) -> None:
        """``reservation``: of its answer, if not that of the current task's request."""
        self.worker = worker
        self.types = types
        self.max_jobs = max_jobs
        self.lease_s = lease_s
        self.reservation = reservation or current_reservation()
        self.jobs: list[Job] = []
        self.reserved = 0
        self.closed = False  # takes no new reservation
        self.ending = False  # nor does it now: it gets what is on its way, and no more
        self.asking = False  # its own claim is queued or under way, and followed by another if jobs came meanwhile
        self._task: trio.lowlevel.Task | None = None

    @property
    def free_slots(self) -> int:
        """Slots that nothing fills or is about to fill."""
        return 0 if self.closed or self.ending else self.max_jobs - self.reserved - len(self.jobs)

    def wake(self) -> None:
        """Let `wait` look again."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def on_settled(self) -> None:
        """A reserved slot was filled or given up."""
        if not self.reserved:
            self.wake()

    async def wait(self) -> None:
        """Wait for a `wake`. Cancel-safe."""
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class Waiters:
    """All parked polls of this engine by job type."""

    def __init__(self, memory: AnswerMemory, max_bytes: int, limited: Container[str] = frozenset()) -> None:
        """``limited``: the types whose jobs have to be counted before they are handed out, as they are at the time."""
        self._limited = limited
        self._memory = memory
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pending: dict[str, OrderedDict[Waiter, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """About what all that is parked takes."""
        return self._bytes

    def fits(self, waiter: Waiter) -> bool:
        """Return whether there is room to park the poll: in bytes, and in job types, for the probe looks for all of
        them."""
        new = sum(name not in self._pending for name in waiter.types)
        if new and len(self._pending) + new > PENDING_TYPES_MAX_COUNT:
            return False
        return self._bytes + _size_bytes(waiter) + new * TYPE_BYTES <= self._max_bytes

    def park(self, waiter: Waiter) -> None:
        """Let the poll be found by `reserve`."""
        self._count += 1
        self._bytes += _size_bytes(waiter)
        for name in waiter.types:
            pending = self._pending.get(name)
            if pending is None:
                pending = self._pending[name] = OrderedDict()
                self._bytes += TYPE_BYTES
            pending[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """The poll is answered or its caller went away."""
        waiter.closed = True
        self.unpark(waiter)

    def unpark(self, waiter: Waiter) -> None:
        """Not found by `reserve` any more; what is reserved may still come."""
        self._count -= 1
        self._bytes -= _size_bytes(waiter)
        for name in waiter.types:
            pending = self._pending.get(name)
            if pending is not None:
                pending.pop(waiter, None)
                if not pending:
                    del self._pending[name]
                    self._bytes -= TYPE_BYTES

    def reserve(self, job_type: str) -> Waiter | None:
        """A slot in the poll that has waited longest for ``job_type``; none while there is no room for answers."""
        pending = self._pending.get(job_type)
        if pending is None or self._memory.free_bytes <= 0 or job_type in self._limited:
            return None
        for waiter in pending:
            if waiter.free_slots > 0:
                waiter.reserved += 1
                return waiter
        return None

    def give_up(self, waiter: Waiter) -> None:
        """The reserved slot was not filled after all."""
        waiter.reserved -= 1
        waiter.on_settled()

    def deliver(self, waiter: Waiter, job: Job, size_bytes: int) -> bool:
        """Fill a reserved slot with a job that has so many bytes of variables; False when the caller went away
        meanwhile: then the job is to be given back."""
        waiter.reserved -= 1
        if waiter.closed:
            return False
        waiter.jobs.append(job)
        waiter.reservation.add(COPIES * size_bytes)
        waiter.on_settled()
        return True

    def by_type(self, limit: int) -> list[tuple[str, set[str]]]:
        """(job type, workers that wait for it), of ``limit`` types at most."""
        return [(name, {waiter.worker for waiter in pending}) for name, pending in islice(self._pending.items(), limit)]

    def types(self) -> list[str]:
        """The job types somebody waits for."""
        return list(self._pending)

    def is_wanted(self, job_type: str) -> bool:
        """Return whether somebody waits for the type."""
        return job_type in self._pending

    def idle_for(self, job_type: str) -> list[Waiter]:
        """Return the polls that wait for a type, oldest first, without those who look into the queue themselves."""
        return [waiter for waiter in self._pending.get(job_type, ()) if not waiter.asking]

    def wake_all(self) -> None:
        """Let every parked poll look again (drain)."""
        for pending in list(self._pending.values()):
            for waiter in list(pending):
                waiter.wake()


def _size_bytes(waiter: Waiter) -> int:
    return POLL_BYTES + sum(map(len, waiter.types)) + WANTED_BYTES * len(waiter.types)
