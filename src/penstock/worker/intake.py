"""Where transports leave jobs: how many more of which types the worker takes, and what the engine says about held ones.

A session has one intake. It counts and wakes; it knows neither handlers nor wires, and never waits for a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio

from penstock.client.errors import ClientError
from penstock.wire.model import Job, JobRef
from penstock.worker.held import StopReason


class IntakeEvents(NamedTuple):
    """What the session does about what arrives at its intake. None of them waits."""

    accept: Callable[[Job, Subscription], None]
    lost: Callable[[JobRef, StopReason], None]
    renew: Callable[[], None]
    reachable: Callable[[bool], None]
    lag: Callable[[str, int, float], None]


class Subscription:
    """The job types that are asked for together, and how many of their jobs may be held.

    Types without a limit of their own share one subscription; each type with one has its own.
    """

    def __init__(self, intake: JobIntake, job_types: Sequence[str], limit: int) -> None:
        self.job_types = job_types
        self._intake = intake
        self._limit = limit
        self._active = 0

    @property
    def free_slots(self) -> int:
        """Return how many more jobs the worker takes now; 0 while it drains."""
        return max(0, min(self._intake.free_slots, self._limit - self._active))

    @property
    def closed(self) -> bool:
        """Return whether no job is wanted any more."""
        return self._intake.draining

    async def wait_free_slots(self) -> int:
        """Wait until there is room; how much. For ever while the worker drains."""
        while (free_slots := self.free_slots) <= 0:
            await self._intake.wait_changed()
        return free_slots

    def accept(self, jobs: Sequence[Job]) -> None:
        """Hand jobs to the worker. Those beyond the room wait there, with their leases kept."""
        for job in jobs:
            self._intake.accept(job, self)

    def acquire(self) -> None:
        """Count a job of this subscription as worked on from now on."""
        self._active += 1

    def release(self) -> None:
        """Count it as not worked on any more."""
        self._active -= 1


class JobIntake:
    """What a session offers its transport.

    Args:
        concurrency: how many jobs the worker takes at once.
        is_open: False while the worker takes no jobs for another reason (too many results wait).
        calls: what the session does with what arrives.
    """

    def __init__(self, concurrency: int, is_open: Callable[[], bool], calls: IntakeEvents) -> None:
        self._concurrency = concurrency
        self._is_open = is_open
        self._calls = calls
        self._changed: anyio.Event | None = None  # while somebody waits for it
        self._draining = anyio.Event()
        self.active = 0
        """Jobs that are being worked on or wait for their turn."""
        self.subscriptions: Sequence[Subscription] = ()
        self.refusal: ClientError | None = None
        """Why the engine gives this worker no jobs at all, once it said so."""

    @property
    def free_slots(self) -> int:
        """Return how many more jobs of any type the worker takes now."""
        if self.draining or not self._is_open():
            return 0
        return self._concurrency - self.active

    async def wait_changed(self) -> None:
        """Wait until the room of some subscription may have changed."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def notify(self) -> None:
        """Wake those who wait for a change."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    # -- jobs

    def accept(self, job: Job, subscription: Subscription) -> None:
        """Take a job on. See ``Subscription.accept``."""
        self.active += 1
        subscription.acquire()
        self._calls.accept(job, subscription)

    def done(self, subscription: Subscription) -> None:
        """Count a job that was accepted as not worked on any more."""
        self.active -= 1
        subscription.release()
        self.notify()

    def lost(self, ref: JobRef, reason: StopReason) -> None:
        """Cancel the handler of a job that is not this worker's any more. Ignore unknown jobs."""
        self._calls.lost(ref, reason)

    def renew(self) -> None:
        """Ask for all leases soon: after a break in the connection, to learn which jobs were given to others."""
        self._calls.renew()

    # -- the engine

    def set_reachable(self, reachable: bool) -> None:
        """Record whether the engine gives jobs now, for metrics."""
        self._calls.reachable(reachable)

    def observe_lag(self, job_type: str, records: int, seconds: float) -> None:
        """Record how far this worker is behind a topic, for metrics."""
        self._calls.lag(job_type, records, seconds)

    def refuse(self, error: ClientError) -> None:
        """Drain, because the engine gives this worker no jobs at all. ``Worker.run`` raises the error."""
        self.refusal = error
        self.drain()

    # -- the end

    @property
    def draining(self) -> bool:
        """Return whether the worker takes on no more jobs."""
        return self._draining.is_set()

    async def wait_draining(self) -> None:
        """Wait until the worker takes on no more jobs."""
        await self._draining.wait()

    def drain(self) -> None:
        """Take on no more jobs."""
        self._draining.set()
        self.notify()
