"""Keeps the leases of held jobs alive: a heartbeat at a third of the lease, and news of lost ones to their handlers.

Heartbeats that are nearly due go out together. Goes on while a result waits to be delivered: the job must not be
handed to another worker then. A heartbeat that fails is tried again at the next look; there are two more within the
same lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import msgspec

from penstock.client.errors import ClientError, JobCancelled, LeaseLost, NotFound
from penstock.wire.model import JobRef
from penstock.worker.held import LOGGER, LeasedJob, StopReason
from penstock.worker.transport import WorkTransport, outcome_of_each

MAX_HEARTBEATS_PER_CALL = 500
HEARTBEATS_PER_LEASE = 3
# How often due heartbeats are looked for: the finer, the more calls; the coarser, the earlier each goes out.
POLLS_PER_LEASE = 12

_STOP_REASONS = {
    "cancelled": StopReason.CANCELLED,
    "lease-lost": StopReason.LEASE_LOST,
    "already-completed": StopReason.LEASE_LOST,
    "not-found": StopReason.LEASE_LOST,
}


class LeaseKeeper:
    """The leases of all jobs that a worker holds.

    Args:
        transport: sends the heartbeats.
        lease_s: length of a lease in seconds.
        on_lost: called once for a job that is no longer this worker's; it is not held any more then.
    """

    def __init__(
        self, transport: WorkTransport, lease_s: float, on_lost: Callable[[LeasedJob, StopReason], None]
    ) -> None:
        self._transport = transport
        self._lease_s = lease_s
        self._on_lost = on_lost
        self._held: dict[tuple[str, int | None], LeasedJob] = {}
        self._some = anyio.Event()
        self._hurry = anyio.Event()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def jobs(self) -> Sequence[LeasedJob]:
        """All jobs that are held now."""
        return list(self._held.values())

    def add(self, held: LeasedJob) -> None:
        """Keep the lease of a job from now on."""
        self._held[held.key] = held
        self._some.set()

    def remove(self, held: LeasedJob) -> None:
        """The job is settled: no more heartbeats. Harmless for one that is not held."""
        self._held.pop(held.key, None)

    async def run(self) -> None:
        """Send heartbeats until cancelled. Asleep while nothing is held."""
        poll_s = self._lease_s / POLLS_PER_LEASE
        while True:
            if not self._held:
                self._some = anyio.Event()
                await self._some.wait()
            with anyio.move_on_after(poll_s):
                await self._hurry.wait()
            self._hurry = anyio.Event()
            await self.run_once(anyio.current_time())

    def renew_nowait(self) -> None:
        """Send a heartbeat for every job at once, to learn soon which of them were given to others."""
        now = anyio.current_time()
        for held in self._held.values():
            held.lease_ends_at = min(held.lease_ends_at, now)
        self._hurry.set()

    def lose(self, ref: JobRef, reason: StopReason) -> None:
        """The engine said by itself that a job is not this worker's any more. Unknown ones: nothing."""
        held = self._held.get((ref.job_id, ref.attempt))
        if held is not None:
            self._lost(held, reason)

    async def run_once(self, now: float) -> int:
        """Send the heartbeats that are due before the next look; how many those were."""
        left_s = self._lease_s * (1 - 1 / HEARTBEATS_PER_LEASE) + self._lease_s / POLLS_PER_LEASE
        due = [held for held in self._held.values() if held.lease_ends_at <= now + left_s]
        for first in range(0, len(due), MAX_HEARTBEATS_PER_CALL):
            await self._beat(due[first : first + MAX_HEARTBEATS_PER_CALL])
        return len(due)

    async def _beat(self, due: Sequence[LeasedJob]) -> None:
        sent_at = anyio.current_time()
        try:
            outcomes = await self._transport.extend([held.ref for held in due])
        except ClientError as error:
            LOGGER.debug("%d heartbeats failed: %s", len(due), error)
            return
        for held, answer in zip(due, outcome_of_each([held.job.id for held in due], outcomes), strict=True):
            outcome = "" if answer is None else answer.outcome
            if outcome == "ok":
                held.lease_ends_at = sent_at + self._lease_s
            elif outcome in _STOP_REASONS:
                self._lost(held, _STOP_REASONS[outcome])

    async def report(
        self, held: LeasedJob, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET
    ) -> None:
        """Store a checkpoint, show progress. A job that turns out to be lost is let go of.

        Raises:
            ClientError: it did not succeed, for whatever reason.
        """
        sent_at = anyio.current_time()
        try:
            await self._transport.report(held.ref, checkpoint=checkpoint, progress=progress)
        except JobCancelled:
            self._lost(held, StopReason.CANCELLED)
            raise
        except (LeaseLost, NotFound):
            self._lost(held, StopReason.LEASE_LOST)
            raise
        held.lease_ends_at = sent_at + self._lease_s

    def _lost(self, held: LeasedJob, reason: StopReason) -> None:
        # Settled while the heartbeat was on its way: that it came too late is no news.
        if self._held.pop(held.key, None) is not None:
            self._on_lost(held, reason)
