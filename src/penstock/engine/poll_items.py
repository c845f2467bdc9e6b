"""What goes through the batches of `polls`: looks into the queue, leases to give back, jobs to deliver. Plain data."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from penstock.engine import ids
from penstock.engine.definitions import LoadedDefinition
from penstock.engine.lanes.item import Item
from penstock.engine.vocabulary import raw
from penstock.engine.waiters import Waiter
from penstock.store import jobs as store
from penstock.wire.model import Job

CLAIM_TYPES_MAX_COUNT: Final = 2_000
"""Job types of one look at the queue; more polls than that take several."""


class ReleaseItem(Item[bool]):
    """A lease to give back."""

    __slots__ = ("job", "lease", "tries")

    def __init__(self, job: store.JobKey, lease: store.Lease) -> None:
        super().__init__()
        self.tries = 0
        self.job = job
        self.lease = lease


class ClaimItem(Item[None]):
    """A poll that looks into the queue; its jobs are delivered to the waiter."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: Waiter) -> None:
        super().__init__()
        self.waiter = waiter


class Delivery(NamedTuple):
    """A job that was committed under a waiter's lease and is to be delivered."""

    waiter: Waiter
    loaded: LoadedDefinition
    instance: int
    token: int
    seq: int
    entry: int
    step: int
    attempt: int
    failures: int
    entered_at: datetime
    claimed_at: datetime
    lease_until: datetime

    def job(self, variables: bytes, checkpoint: str | None) -> Job:
        """As workers see it."""
        step = self.loaded.definition.steps[self.step]
        id = ids.show_job(self.instance, self.token, self.seq)
        return Job(
            id=id,
            job_type=step.job_type or "",
            instance_id=ids.show_instance(self.instance),
            step_id=step.id,
            step_execution_id=id,
            retries_remaining=max(0, step.retry_count - self.failures),
            variables=raw(variables),
            lock_expires_at=self.lease_until,
            status="LOCKED",
            worker_id=self.waiter.worker,
            locked_at=self.claimed_at,
            created_at=self.entered_at,
            attempt=self.attempt,
            idempotency_key=id if self.entry == self.seq else ids.show_job(self.instance, self.token, self.entry),
            checkpoint=None if checkpoint is None else raw(checkpoint),
        )


class ClaimPlan:
    """What one claim asks for: slots, whose they are by (job type, ordinal), and how many of each type.
    ``room_bytes``: what there is for more of them."""

    __slots__ = ("holders", "reserved", "room_bytes", "slots")

    def __init__(self, room_bytes: int) -> None:
        self.slots: list[store.Slot] = []
        self.holders: dict[tuple[int, int], Waiter] = {}
        self.reserved: dict[str, int] = {}
        self.room_bytes = room_bytes


def groups_by_types(items: list[ClaimItem]) -> list[list[ClaimItem]]:
    """The polls of one batch in their order, so that one look at the queue is for no more job types than the loop can
    deal with at once."""
    if sum(len(item.waiter.types) for item in items) <= CLAIM_TYPES_MAX_COUNT:
        return [items]
    groups: list[list[ClaimItem]] = []
    room = 0
    for item in items:
        count = len(item.waiter.types)
        if count > room:
            groups.append([])
            room = max(CLAIM_TYPES_MAX_COUNT, count)
        groups[-1].append(item)
        room -= count
    return groups
