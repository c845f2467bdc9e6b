"""Jobs on their way to the polls they were leased to: committed, so each is delivered or goes back to the queue.

Whoever made or claimed such jobs calls `deliver_all` once, after the commit. Must not decide who gets what: that stands
in the rows already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import trio
from msgspec import Raw, structs

from penstock.core.advance.compensation import compensating
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.queues.attempts import AttemptRecorder
from penstock.engine.queues.job_sizes import JobSizes
from penstock.engine.queues.lease_book import GrantedLease, LeaseBook
from penstock.engine.queues.releases import Releases
from penstock.engine.queues.traces import Traces
from penstock.engine.queues.variables import VariablesCache, merged
from penstock.engine.queues.waiters import Waiter, Waiters
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, AnswerMemory
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import compensation, for_each
from penstock.store.rows import jobs as store
from penstock.store.rows.attempts import Given
from penstock.store.rows.variables import INLINE_VARIABLES_MAX_BYTES
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import Job
from penstock.wire.noun import raw

_raw: Callable[[bytes], Any] = Raw
COPIED_AT_ONCE_BYTES = 262_144
"""Variables that are made into bytes without a turn of the loop between."""


class Delivery:
    """A job that was committed under a waiter's lease and is to be delivered. No Struct: they are read 50 times."""

    __slots__ = (
        "attempt", "business_key", "claimed_at", "entered_at", "entry", "failures", "instance", "lease_until", "loaded",
        "seq", "step", "token", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        *,
        waiter: Waiter,
        loaded: LoadedDefinition,
        instance: int,
        token: int,
        seq: int,
        entry: int,
        step: int,
        attempt: int,
        failures: int,
        entered_at: datetime,
        claimed_at: datetime,
        lease_until: datetime,
        business_key: str | None,
    ) -> None:
        self.waiter = waiter
        self.loaded = loaded
        self.instance = instance
        self.token = token
        self.seq = seq
        self.entry = entry
        self.step = step
        self.attempt = attempt
        self.failures = failures
        self.entered_at = entered_at
        self.claimed_at = claimed_at
        self.lease_until = lease_until
        self.business_key = business_key

    @property
    def sees_more(self) -> bool:
        """Return whether it has variables beside those of its instance."""
        return self.loaded.own_variables and (self.is_item or self.is_handler)

    @property
    def is_item(self) -> bool:
        """Return whether it is for an item of a forEach, which has variables of its own."""
        return self.loaded.definition.steps[self.step].for_each is not None

    @property
    def is_handler(self) -> bool:
        """Return whether it undoes what another step did, of which it is told."""
        return self.loaded.definition.steps[self.step].compensates is not None

    def job(self, variables: bytes, checkpoint: str | None) -> Job:
        """As workers see it."""
        loaded = self.loaded
        step = loaded.definition.steps[self.step]
        id = ids.show_given_job(self.instance, self.token, self.seq)
        failures = self.failures
        return Job(
            id=id,
            job_type=step.job_type or "",
            instance_id=ids.show_instance(self.instance),
            step_id=step.id,
            step_execution_id=id,
            retries_remaining=max(0, step.retry_count - failures) if failures else step.retry_count,
            variables=_raw(variables),
            lock_expires_at=self.lease_until,
            status="LOCKED",
            worker_id=self.waiter.worker,
            locked_at=self.claimed_at,
            created_at=self.entered_at,
            attempt=self.attempt,
            idempotency_key=id if self.entry == self.seq else ids.show_job(self.instance, self.token, self.entry),
            checkpoint=None if checkpoint is None else raw(checkpoint),
            definition_id=loaded.definition.id,
            definition_version=loaded.version,
            business_key=self.business_key,
        )


class Deliveries:
    """What is committed under the lease of a parked poll, and its way there."""

    def __init__(
        self,
        metrics: Metrics,
        settings: Settings,
        cache: VariablesCache,
        memory: AnswerMemory,
        waiters: Waiters,
        leases: LeaseBook,
        sizes: JobSizes,
        releases: Releases,
        traces: Traces | None = None,
    ) -> None:
        self._traces = traces
        self._recorder = AttemptRecorder(settings)
        self._pickups = metrics.job_pickup_seconds.distribution
        self._first_locks = metrics.first_lock_seconds.distribution
        self._cache = cache
        self._memory = memory
        self._waiters = waiters
        self._leases = leases
        self._sizes = sizes
        self._releases = releases

    def deliver(
        self, delivery: Delivery, variables: bytes, checkpoint: str | None, trace: str | None, now: float
    ) -> None:
        """Give a committed job to the waiter it was leased to, or back to the queue if the caller went away. ``now`` is
        trio time."""
        job = delivery.job(variables, checkpoint)
        if trace is not None:
            job = self._traced(job, delivery, trace)
        size_bytes, loaded = len(variables), delivery.loaded
        self._sizes.note(job.job_type, size_bytes)
        if loaded.definition.single_token:
            self._cache.put(delivery.token, delivery.seq, variables)
        left_s = (delivery.lease_until - delivery.claimed_at).total_seconds()
        self._leases.grant(
            GrantedLease(
                delivery.instance,
                delivery.token,
                delivery.seq,
                delivery.attempt,
                delivery.step,
                loaded,
                delivery.waiter.worker,
                now + left_s,
                delivery.business_key,
            )
        )
        if not self._waiters.deliver(delivery.waiter, job, size_bytes):
            self._releases.release_jobs([job])

    def _observe_waits(self, given: Sequence[Delivery]) -> None:
        waits_s = [(each.claimed_at - each.entered_at).total_seconds() for each in given]
        self._pickups.observe_all(waits_s)
        if any(each.attempt != 1 for each in given):
            waits_s = [wait_s for wait_s, each in zip(waits_s, given, strict=True) if each.attempt == 1]
        self._first_locks.observe_all(waits_s)

    def _traced(self, job: Job, delivery: Delivery, trace: str) -> Job:
        """Going on with the trace of its instance."""
        assert self._traces is not None
        since = delivery.entered_at if delivery.attempt == 1 else delivery.claimed_at
        handed = self._traces.handed(
            "deliver", trace, delivery.instance, job.id, job.job_type, job.step_id, delivery.attempt, since
        )
        return structs.replace(job, traceparent=handed)

    async def deliver_all(
        self,
        connection: TrioConnection,
        deliveries: Sequence[Delivery],
        known: dict[int, bytes],
    ) -> None:
        """Deliver committed jobs; variables not in ``known`` (by token) are read, and what former attempts left."""
        missing = sorted({delivery.instance for delivery in deliveries if delivery.token not in known})
        retried = [delivery.token for delivery in deliveries if delivery.attempt > 1]
        try:
            checkpoints = await store.checkpoints(connection, retried) if retried else {}
            read, left_out = await self._sizes.read(connection, missing) if missing else ({}, {})
            seeing_more = [each for each in deliveries if each.loaded.own_variables and each.sees_more]
            own = await self._own_variables(connection, seeing_more) if seeing_more else {}
            traces = await self._traces_of(connection, deliveries)
        except BaseException:  # committed, but nobody can be given them: back to the queue
            for delivery in deliveries:
                self._return(delivery)
            raise
        copied_bytes, now = 0, trio.current_time()
        notes: list[Given | None] = []
        given: list[Delivery] = []
        for delivery in deliveries:
            if copied_bytes > COPIED_AT_ONCE_BYTES:
                copied_bytes = 0
                await trio.lowlevel.cancel_shielded_checkpoint()
            variables = known.get(delivery.token)
            if variables is None and (text := read.get(delivery.instance)) is not None:
                variables = text.encode()
                copied_bytes += len(variables)
            if seeing_more and variables is not None and delivery.sees_more:
                if delivery.token not in own:  # it is no such token any more, or can't be read
                    self._return_later(delivery)
                    continue
                variables = merged(variables, own[delivery.token])
                copied_bytes += len(variables)
            size_bytes = left_out.get(delivery.instance, 0) if variables is None else len(variables)
            if variables is None and not left_out:
                self._return_later(delivery)
            elif variables is None or (
                size_bytes > INLINE_VARIABLES_MAX_BYTES and not self._memory.fits(COPIES * size_bytes)
            ):  # no room for them: back to the queue, and the next claim knows better
                self._sizes.note(delivery.loaded.definition.steps[delivery.step].job_type or "", size_bytes)
                self._return(delivery)
            else:
                checkpoint = checkpoints.get((delivery.token, delivery.seq))
                self.deliver(delivery, variables, checkpoint, traces.get(delivery.instance), now)
                given.append(delivery)
                if self._recorder.asks_types or delivery.loaded.definition.record_attempts:
                    notes.append(self._note(delivery, variables))
        self._observe_waits(given)
        if notes:
            await self._recorder.keep(connection, notes)

    async def _traces_of(self, connection: TrioConnection, deliveries: Sequence[Delivery]) -> dict[int, str]:
        if self._traces is None:
            return {}
        return await self._traces.of(connection, [delivery.instance for delivery in deliveries])

    def _note(self, delivery: Delivery, variables: bytes) -> Given | None:
        job = store.JobKey(delivery.instance, delivery.token, delivery.seq)
        return self._recorder.note(delivery.loaded.definition, delivery.step, job, delivery.attempt, variables)

    @staticmethod
    async def _own_variables(connection: TrioConnection, deliveries: Sequence[Delivery]) -> dict[int, bytes]:
        """What the jobs of some tokens see beside the variables of their instances. Left out: what can't be read."""
        items = [delivery.token for delivery in deliveries if delivery.is_item]
        own = await for_each.of_tokens(connection, items) if items else {}
        handlers = {delivery.token: delivery.loaded.definition for delivery in deliveries if delivery.is_handler}
        if handlers:
            undone = await compensation.of_handlers(connection, [*handlers])
            own |= {token: compensating(handlers[token], done) for token, done in undone.items()}
        return own

    def _return(self, delivery: Delivery) -> None:
        """The job goes back to the queue, and its slot with it."""
        self._waiters.give_up(delivery.waiter)
        self._releases.release_nowait(*_lease_of(delivery))

    def _return_later(self, delivery: Delivery) -> None:
        """The job can't be read here. Others may have the key, so it goes back, though not at once."""
        self._waiters.give_up(delivery.waiter)
        left_s = (delivery.lease_until - delivery.claimed_at).total_seconds()
        self._releases.release_unreadable(*_lease_of(delivery), left_s)


def _lease_of(delivery: Delivery) -> tuple[store.JobKey, store.Lease]:
    lease = store.Lease(delivery.token, delivery.seq, delivery.attempt, delivery.waiter.worker)
    return store.JobKey(delivery.instance, delivery.token, delivery.seq), lease
