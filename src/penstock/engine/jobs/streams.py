"""Job streams: a poll that stays. Credit by job type instead of a count, jobs taken as they come, held until answered.

One `Waiter` per job type stands in `Waiters` as long as it has room, so that direct dispatch, the probe and batched
claims serve streams and polls alike. A grant looks into the queue at once unless it is known to be empty. Whatever
is taken is remembered until its result is settled; what is left when the stream closes goes back to the queue.
Must not know how jobs travel: `rpc.work_stream` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.access.identity import check_app, check_job_types
from penstock.core.rules.fencing import CallKind, FenceDecision, FenceRequest, decide_fence
from penstock.core.rules.state import TokenState
from penstock.engine.definitions.definitions import CODE_PREFIX, app_of, refuse_executors
from penstock.engine.jobs.jobs import JOB_TYPES_MAX, Jobs
from penstock.engine.queues.claims import ClaimItem
from penstock.engine.queues.lookups import Lookup
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, AnswerMemory, current_reservation
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest, DispatchModeConflict, PenstockError, TooManyRequests
from penstock.settings import Settings
from penstock.store.rows import jobs as store
from penstock.wire.model import Job, LostJob
from penstock.wire.noun import text_bytes

CREDIT_MAX_JOBS: Final = 100_000
"""Of one job type on one stream; what is granted beyond it is not counted."""
BUFFER_MAX_BYTES: Final = 4 * 1024 * 1024
"""Variables of jobs that wait for a slow reader; at this, and at ``poll_max_jobs`` of them, no job is leased to it."""


class NamesHolders(Protocol):
    """Gives each stream of an executor a name of its own."""

    def stream_holder(self, worker: str) -> str: ...


class Parts(Protocol):
    """What a stream needs of the engine, which is made of parts that stand above streams."""

    @property
    def settings(self) -> Settings: ...
    @property
    def answer_memory(self) -> AnswerMemory: ...
    @property
    def polls(self) -> Polls: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def code(self) -> NamesHolders: ...


class JobStream:
    """One worker's stream. ``on_change`` is called when `take_nowait` may have something; it must not raise or wait."""

    def __init__(
        self,
        engine: Parts,
        worker_id: str,
        lease_seconds: int,
        on_change: Callable[[], None],
        *,
        executor: bool = False,
    ) -> None:
        """``executor``: it takes runs of durable workflows, and nothing else, under a name that is this stream's own.

        Raises BadRequest for a ``worker_id`` that can't be one. ``lease_seconds`` 0 or less is the default."""
        if not worker_id:
            raise BadRequest("worker_id: is required")
        self.worker = check_text(worker_id, "worker_id", NAME_MAX_CHARS)
        self.executor = executor
        if executor:
            self.worker = engine.code.stream_holder(worker_id)
        self.lease_s = engine.jobs.lease_s(lease_seconds)
        self.on_change = on_change
        self._engine = engine
        self._polls = engine.polls
        self._buffer_jobs = engine.settings.poll_max_jobs
        self._credits: dict[str, _TypeCredit] = {}
        self._filled: dict[_TypeCredit, None] = {}
        self._unsent_jobs = 0
        self._unsent_bytes = 0
        self._held: dict[str, int] = {}  # the attempt by job id: with the worker
        self._reported: set[tuple[str, int]] = set()  # with their attempts: a result came and is being dealt with
        self._open = True
        self._reservation = current_reservation()

    # -- credit

    def grant(self, job_type: str, count: int) -> None:
        """Change the credit; a negative count takes back what is neither reserved nor on its way.

        Raises BadRequest, and DispatchModeConflict while jobs are dispatched through Kafka.
        """
        if self._engine.settings.through_kafka and not self.executor:
            raise DispatchModeConflict(
                "this engine dispatches jobs through Kafka (dispatch_mode kafka_outbox): streams get no jobs"
            )
        type_credit = self._credits.get(job_type)
        if type_credit is None:
            if not job_type:
                raise BadRequest("credits: job_type is required")
            if len(self._credits) >= JOB_TYPES_MAX:
                raise BadRequest(f"credits: more than {JOB_TYPES_MAX} job types")
            check_text(job_type, "credits", NAME_MAX_CHARS)
            self._check_type(job_type)
            type_credit = _TypeCredit(self, job_type)
            if not self._polls.waiters.fits(type_credit):
                raise TooManyRequests("too many job types are waited for; see poll_parked_max_bytes")
            self._credits[job_type] = type_credit
        least = type_credit.reserved + len(type_credit.jobs)
        type_credit.max_jobs = max(min(type_credit.max_jobs + count, CREDIT_MAX_JOBS), least)
        self._seek(type_credit)

    def _check_type(self, job_type: str) -> None:
        if not self.executor:
            refuse_executors(self.worker, (job_type,))
            check_job_types((job_type,))
        elif not job_type.startswith(CODE_PREFIX):
            raise BadRequest(f"credits: executors take '{CODE_PREFIX}…' only, not '{job_type}'")
        else:
            check_app(app_of(job_type.removeprefix(CODE_PREFIX)))

    def credit(self, job_type: str) -> int:
        """Return how many jobs of the type may still come."""
        type_credit = self._credits.get(job_type)
        return 0 if type_credit is None else type_credit.max_jobs

    @property
    def is_full(self) -> bool:
        """More would be leased than the reader takes."""
        return (
            self._unsent_jobs >= self._buffer_jobs
            or self._unsent_bytes >= BUFFER_MAX_BYTES
            or self._engine.answer_memory.free_bytes <= 0
        )

    @property
    def free_buffer_slots(self) -> int:
        """Jobs that may be leased beyond those that wait to be taken, and those that are about to come."""
        if self.is_full:
            return 0
        return (
            self._buffer_jobs - self._unsent_jobs - sum(type_credit.reserved for type_credit in self._credits.values())
        )

    def _seek(self, type_credit: _TypeCredit) -> None:
        """Let jobs be born into free slots, and look for some that are there."""
        if not self._open or self._polls.draining or self.is_full or type_credit.free_credit <= 0:
            return
        if (
            not type_credit.pending
        ):  # also while other types have reserved the rest of the buffer: the probe finds it later
            type_credit.pending = True
            self._polls.park(type_credit)
        if type_credit.free_slots <= 0 or type_credit.asking or self._polls.queue.known_empty(type_credit.types):
            return
        type_credit.asking = True
        type_credit.got_jobs = False
        type_credit.version = self._version(type_credit)
        try:
            self._polls.claims.submit_nowait(_CreditClaim(type_credit))
        except TooManyRequests:  # the probe comes by
            type_credit.asking = False

    def _version(self, type_credit: _TypeCredit) -> int:
        return self._polls.queue.version(type_credit.types[0])

    # -- for the slots

    def on_filled(self, type_credit: _TypeCredit, jobs: Sequence[Job]) -> None:
        """Jobs came."""
        type_credit.got_jobs = True
        self._unsent_jobs += len(jobs)
        self._unsent_bytes += sum(text_bytes(job.variables) for job in jobs)
        self._filled[type_credit] = None
        self.on_change()

    def on_claimed(self, type_credit: _TypeCredit, failed: bool) -> None:
        """A look into the queue is over: look again while it seems to have more. Else the probe does, in time."""
        type_credit.asking = False
        if not failed and (type_credit.got_jobs or type_credit.version != self._version(type_credit)):
            self._seek(type_credit)

    # -- jobs

    def take_nowait(self, max_jobs: int, max_bytes: int) -> list[Job]:
        """Jobs that came, at most ``max_jobs``, and of so many bytes of variables (at least one job).

        They are held from now on.
        """
        taken: list[Job] = []
        size_bytes = 0
        was_full = self.is_full
        while self._filled:
            type_credit = next(iter(self._filled))
            count = 0
            for job in type_credit.jobs:
                job_bytes = text_bytes(job.variables)
                if taken and (len(taken) >= max_jobs or size_bytes + job_bytes > max_bytes):
                    break
                count += 1
                taken.append(job)
                size_bytes += job_bytes
                self._held[job.id] = job.attempt or 0
            type_credit.take(count)
            if type_credit.pending and count:  # behind the others who wait for this type
                type_credit.pending = False
                self._polls.waiters.unpark(type_credit)
            self._unsent_jobs -= count
            if type_credit.jobs:
                break  # there is no more room
            del self._filled[type_credit]
        if taken:
            self._unsent_bytes -= size_bytes
            for type_credit in (
                list(self._credits.values()) if was_full else {self._credits[job.job_type]: None for job in taken}
            ):
                self._seek(type_credit)
        return taken

    def on_sent(self) -> None:
        """What was taken has left: only what waits is held of the memory for answers."""
        self._reservation.keep(COPIES * self._unsent_bytes)

    @property
    def has_unsettled(self) -> bool:
        """Return whether jobs were taken and have no settled result."""
        return bool(self._held or self._reported)

    def holds(self, job_id: str, attempt: int) -> bool:
        """Return whether the worker has this attempt at the job, also while a result of it is being dealt with."""
        return self._held.get(job_id) == attempt or (job_id, attempt) in self._reported

    def on_reported(self, job_id: str, attempt: int) -> int | None:
        """Return a result for the job came, of this attempt (0: whichever the worker holds). The attempt that it
        settles.

        None when the worker does not hold that one: the result can change nothing about what is given back.
        """
        held = self._held.get(job_id)
        if held is None or attempt not in (0, held):
            return None
        del self._held[job_id]
        self._reported.add((job_id, held))
        return held

    def on_settled(self, job_id: str, attempt: int, *, final: bool) -> None:
        """The result was dealt with; not ``final``: the worker still has the job."""
        self._reported.discard((job_id, attempt))
        if not final:
            self._held.setdefault(job_id, attempt)

    async def wait_notified(self, within_s: float) -> bool:
        """Wait until some engine says that it cancelled jobs of this worker; False when there is no such news."""
        return bool(await self._polls.losses.wait(self.worker, within_s))

    async def find_lost(self) -> list[LostJob]:
        """Jobs of which the worker lost the lease; they are not held any more. Asks the database only about those
        whose lease this engine does not know. Raises Unavailable and TooManyRequests; then nothing is forgotten."""
        suspects: list[tuple[str, int, Lookup]] = []
        for job_id, attempt in self._held.items():
            key = ids.read_job(job_id)
            lease = self._polls.leases.find(key.token, key.seq)
            if lease is None or lease.attempt != attempt:
                suspects.append((job_id, attempt, Lookup(key, self.worker)))
        for _, _, item in suspects:
            self._engine.jobs.lookups.submit_nowait(item, within_s=0)
        found = [(job_id, attempt, (await item.wait_answer()).execution) for job_id, attempt, item in suspects]
        lost: list[LostJob] = []
        for job_id, attempt, execution in found:
            decision = decide_fence(FenceRequest(CallKind.HEARTBEAT, self.worker, attempt, explicit=True), execution)
            if decision is FenceDecision.APPLY and execution.state is TokenState.LOCKED:
                continue  # extended through another engine
            if self._held.get(job_id) == attempt:
                del self._held[job_id]
                outcome = FenceDecision.CANCELLED if decision is FenceDecision.CANCELLED else FenceDecision.LEASE_LOST
                lost.append(LostJob(job_id=job_id, attempt=attempt, outcome=outcome.value))
        return lost

    # -- the end

    def stop(self) -> None:
        """Take no more jobs; those that were not taken yet go back to the queue. Idempotent."""
        if not self._open:
            return
        self._open = False
        for type_credit in self._credits.values():
            type_credit.closed = True
            if type_credit.pending:
                type_credit.pending = False
                self._polls.waiters.unpark(type_credit)
            self._polls.releases.release_jobs(type_credit.jobs)
            type_credit.max_jobs = 0
            type_credit.take(len(type_credit.jobs))
        self._filled.clear()
        self._unsent_jobs = self._unsent_bytes = 0

    def close(self) -> None:
        """Give everything that has no settled result back to the queue, in the background. Idempotent."""
        self.stop()
        for job_id, attempt in (*self._held.items(), *self._reported):
            key = ids.read_job(job_id)
            self._polls.releases.release_nowait(key, store.Lease(key.token, key.seq, attempt, self.worker))
        self._held.clear()
        self._reported.clear()


class _TypeCredit(Waiter):
    """The credit of one job type: ``max_jobs`` counts free, reserved and filled slots."""

    __slots__ = ("counted", "got_jobs", "pending", "stream", "version")

    def __init__(self, stream: JobStream, job_type: str) -> None:
        super().__init__(stream.worker, (job_type,), 0, stream.lease_s)
        self.stream = stream
        self.pending = False
        self.got_jobs = False
        self.version = 0
        self.counted = 0

    @property
    def free_credit(self) -> int:
        """Free slots, whether or not the stream's buffer has room for them."""
        return super().free_slots

    @property
    def free_slots(self) -> int:
        return min(self.free_credit, self.stream.free_buffer_slots)

    def on_settled(self) -> None:
        new = self.jobs[self.counted :]
        if new:
            self.counted += len(new)
            self.stream.on_filled(self, new)

    def wake(self) -> None:
        self.stream.on_change()

    def take(self, count: int) -> None:
        """The first ``count`` jobs were taken: their slots are used up."""
        del self.jobs[:count]
        self.counted -= count
        self.max_jobs = max(self.max_jobs - count, 0)


class _CreditClaim(ClaimItem):
    """A look into the queue that nobody waits for."""

    __slots__ = ()

    def answer(self, answer: None) -> None:
        super().answer(answer)
        self._notify(failed=False)

    def refuse(self, error: PenstockError) -> None:
        super().refuse(error)
        self._notify(failed=True)

    def _notify(self, *, failed: bool) -> None:
        type_credit = self.waiter
        assert isinstance(type_credit, _TypeCredit)
        type_credit.stream.on_claimed(type_credit, failed)
