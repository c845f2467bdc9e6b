"""The relay: takes jobs from the outbox, publishes them, and forgets those that the broker has.

**In what order.** For each batch: (1) one transaction marks the tokens DISPATCHED with the attempt of their row, a new
deadline and no holder, and folds the variables; (2) the records are published; (3) the rows of those that were acked
are deleted, in the transaction of the next (1). Marking comes first because a worker may complete the job before the
broker's answer is here: fencing then finds it dispatched, and the first completion wins. Deleting comes last because
only an ack says that the message is in the log.

**What can go wrong in between.** A crash after (1) leaves rows whose tokens are DISPATCHED with the very attempt of the
row: they are taken again and published under the same dedup id and attempt. A crash after (2), or an answer that did
not come, does the same to messages that are in the log already: workers drop the second by its dedup id, and if one
does not, its completion is a repeat of an attempt that is closed, or the first one, and the instance advances once.
A job that was completed, failed or cancelled meanwhile, taken back by its last holder, or dispatched anew at its
deadline has moved past its row; the row is void and goes unpublished. What was published and then overtaken is a
message for a job that is done: fencing answers its completion and changes nothing.

**Two relays at once.** `leadership.py` elects one and lets it trust its lock for a bounded time, looked at before each
(1) and each (2). A leader that is stopped right after the look may still publish a batch later, beside its successor.
That does no harm: rows, ids and attempts are the same for both, marking again is no change, only acked rows are
deleted, and what it sends late is a duplicate as above. Only the order in the topic may differ, as after any crash.

**What has trouble waits aside.** A topic that refuses (missing, not authorized) or does not answer is taken out of the
main loop and tried again by a loop of its own with back-off, a few rows at a time; a record that is refused by itself
(too large) is left out of the looks until its time comes. Their rows stay, and their deadline is renewed whenever they
are tried. Order is kept within a job type and instance as far as acks come in order.

Every published row leaves a dead one at the head of its type, and a transaction that somebody holds open keeps them
there. So a look begins `LOW_WATER_MARGIN_IDS` before the last row that was taken, as transactions do not commit in
order of ids; the whole outbox is looked at every `SCAN_INTERVAL_S`, or as seldom as its cost asks for.

Memory is bounded by the batch (`outbox_batch_size` rows, `BATCH_BYTES_TARGET` of variables by the sizes seen so far)
and by `troubles.py`. Wake-ups are hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import trio

from penstock.core.advance.compensation import compensating
from penstock.core.graph.definition import Step
from penstock.core.rules.topic import topic_of, topic_problem
from penstock.engine.advance.quarantine import Portion
from penstock.engine.engine import Engine
from penstock.engine.queues.attempts import AttemptRecorder
from penstock.engine.queues.variables import merged
from penstock.engine.requests import ids
from penstock.errors import PenstockError
from penstock.kafka.admission import Admission
from penstock.kafka.event import record_of
from penstock.kafka.leadership import Leadership
from penstock.kafka.record import KafkaRecord, Producer, PublishOutcome, Result
from penstock.kafka.troubles import Troubles
from penstock.log.log import RateLimitedLog, get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import DatabaseError
from penstock.store.rows import compensation
from penstock.store.rows import outbox as store
from penstock.store.rows.attempts import Given
from penstock.store.rows.jobs import JobKey
from penstock.store.rows.outbox import Outgoing, PublishedRow

SCAN_INTERVAL_S: Final = 1.0
"""Time between two looks at everything: covers hints that were lost, rows that waited aside, and late commits."""
SCAN_SHARE: Final = 20
"""Such a look may take a twentieth of the time."""
LOW_WATER_MARGIN_IDS: Final = 50_000
"""Ids that transactions under way may have drawn: batches of some engines, with all that draws from the sequence."""
LOCKED_RETRY_S: Final = 0.05
"""A row whose token another transaction holds is looked at again after this."""
RETRY_MAX_ROWS: Final = 20
"""Rows of each job type that are tried while it has trouble."""
BATCH_BYTES_TARGET: Final = 16 * 2**20
LOG_INTERVAL_S: Final = 30.0

NOTHING: Final = store.OutboxScan([], {}, {})

log = get_logger(__name__)
_limited = RateLimitedLog(log, interval_seconds=LOG_INTERVAL_S)


class Relay:
    """One engine's relay; works while this engine leads. The services are ``step`` and ``retry_step``."""

    def __init__(self, engine: Engine, producer: Producer, leadership: Leadership) -> None:
        self._engine = engine
        self._database = engine.database
        self._settings = engine.settings
        self._metrics = engine.metrics
        self._producer = producer
        self._leadership = leadership
        self._may_have_rows: dict[int, None] = {}  # job types that may have rows, in turn
        self._names: dict[int, str] = {}
        self._low_water_marks: dict[int, int] = {}  # by job type; those without one are looked at from the start
        self._recorder = AttemptRecorder(engine.settings)
        self._troubles = Troubles()
        self._admission = Admission(engine)
        self._portion: Portion[int] = Portion(engine.quarantine, "relay", engine.settings.outbox_batch_size)
        self._published: list[PublishedRow] = []  # acked, not deleted yet
        self._scan = 0.0
        self._row_bytes = 1.0  # of the last batch, on average
        self._wake = trio.Event()
        self._retry_wake = trio.Event()
        self._stopping = False
        self._idle = trio.Event()

    # -- hints

    def wake(self, job_types: Iterable[str] = ()) -> None:
        """Rows of these job types were committed; without any: of some."""
        known = self._engine.definitions.job_type_ids
        found = [known.get(name) for name in job_types]
        self._may_have_rows.update((id, None) for id in found if id is not None)
        if not found or None in found:
            self._scan = 0.0
        self._wake.set()

    def wake_for(self, job_type: str) -> None:
        """`wake` for one type: called for every job that is committed."""
        self.wake((job_type,))

    # -- services

    async def step(self) -> None:
        """One round of the main loop."""
        await self._leadership.wait_leading()
        if self._stopping:
            async with self._database.connection(ahead=True) as connection:
                await self._delete_published(connection)
            self._idle.set()
            await trio.sleep_forever()
        elif not await self.run_once() and not self._next_types(1):
            with trio.move_on_at(min(self._scan, self._admission.next_at())):
                await self._wake.wait()
            self._wake = trio.Event()

    async def retry_step(self) -> None:
        """One round of the loop for job types that have trouble."""
        await self._leadership.wait_leading()
        with trio.move_on_at(self._troubles.next_try_at()):
            await self._retry_wake.wait()
        self._retry_wake = trio.Event()
        if not self._stopping:
            await self.retry_once()

    async def finish(self, within_s: float) -> None:
        """Take nothing more; wait for the batch under way, so that its rows are not published again."""
        self._stopping = True
        self._wake.set()
        with trio.move_on_after(within_s):
            if self._leadership.leads():
                await self._idle.wait()

    # -- one batch

    async def run_once(self) -> int:
        """Publish the next batch of all job types without trouble; how many rows were looked at."""
        if not self._leadership.leads():
            return 0
        async with self._database.connection(ahead=True) as connection:
            self._put_back(await self._admission.run_once(connection))
            started = trio.current_time()
            if started < self._scan:
                scan, records = await self._take_next(connection)
            else:
                self._scan = float("inf")
                try:
                    self._low_water_marks.clear()
                    self._put_back(await store.types_with_rows(connection))
                    scan, records = await self._take_next(connection)
                finally:
                    now = trio.current_time()  # a hint that came meanwhile asks for another look at once
                    self._scan = min(self._scan, now + max(SCAN_INTERVAL_S, SCAN_SHARE * (now - started)))
        if scan.held and not records:
            await trio.sleep(LOCKED_RETRY_S)
        self._published += await self._publish(scan.outgoing, records)
        return sum(scan.scanned.values())

    async def _take_next(self, connection: TrioConnection) -> tuple[store.OutboxScan, list[KafkaRecord | Result]]:
        """Take from the job types whose turn it is; those that may have more keep their place in the line."""
        limit = self._limit()
        types = self._next_types(limit)
        if not types or limit == 1:  # in trouble: by itself, so that it is known what is refused
            await self._delete_published(connection)
        if not types:
            return NOTHING, []
        for job_type in types:  # a hint that comes while we look puts its type back
            del self._may_have_rows[job_type]
        per_type = max(1, limit // len(types))
        try:
            scan, records = await self._take(
                connection, {id: self._low_water_marks.get(id, 0) for id in types}, per_type, self._published
            )
        except DatabaseError as error:
            self._put_back(types)
            await self._take_less(connection, types[0], self._low_water_marks.get(types[0], 0), error)
            return NOTHING, []
        except BaseException:
            self._put_back(types)
            raise
        self._portion.grow()
        self._published.clear()
        self._put_back(id for id, count in scan.scanned.items() if count >= per_type or id in scan.held)
        for row in scan.outgoing:
            self._low_water_marks[row.job_type] = row.id - LOW_WATER_MARGIN_IDS
        for job_type in scan.held:
            self._low_water_marks.pop(job_type, None)
        return scan, records

    async def _take_less(self, connection: TrioConnection, job_type: int, floor: int, error: DatabaseError) -> None:
        """The database refused what was taken: it is halved, and a row that is refused alone waits aside."""
        if not self._portion.shrink(error):
            row = await store.first_outgoing(connection, job_type, floor, self._quarantined_rows())
            if row is not None:
                self._portion.quarantine_row(row, f"outbox row {row:x}", error)

    async def retry_once(self) -> int:
        """Try a few rows of the job types that have trouble and whose time has come; how many were acked."""
        due = self._troubles.take_due(trio.current_time()) if self._leadership.leads() else []
        if not due:
            return 0
        await self._create_topics(due)
        due, per_type = due[: self._portion.rows], min(RETRY_MAX_ROWS, self._portion.rows)
        async with self._database.connection(ahead=True) as connection:
            try:
                scan, records = await self._take(connection, dict.fromkeys(due, 0), per_type, ())
            except DatabaseError as error:
                await self._take_less(connection, due[0], 0, error)
                return 0
            self._portion.grow()
        for job_type in due:
            if job_type not in scan.scanned:
                self._recovered(job_type)
        published = await self._publish(scan.outgoing, records)
        if published:
            async with self._database.connection(ahead=True) as connection:
                await store.delete_published(connection, published, audit=self._settings.audit_log_enabled)
        return len(published)

    def _limit(self) -> int:
        return max(1, min(self._portion.rows, int(BATCH_BYTES_TARGET / self._row_bytes)))

    def _quarantined_rows(self) -> list[int]:
        return self._troubles.quarantined_rows(trio.current_time()) + self._portion.waiting()

    async def _take(
        self,
        connection: TrioConnection,
        low_water_marks: Mapping[int, int],
        per_type: int,
        published: Sequence[PublishedRow],
    ) -> tuple[store.OutboxScan, list[KafkaRecord | Result]]:
        with self._metrics.db_transaction_seconds["dispatch"].time():
            scan = await store.take(
                connection,
                low_water_marks,
                per_type,
                self._quarantined_rows(),
                self._settings.dispatch_timeout_seconds,
                published,
                audit=self._settings.audit_log_enabled,
            )
        if scan.outgoing:
            self._row_bytes = sum(len(row.variables or "") for row in scan.outgoing) / len(scan.outgoing)
        notes: list[Given | None] = []
        traces: dict[int, str] = {}
        if self._engine.traces is not None and scan.outgoing:
            traces = await self._engine.traces.of(connection, [row.instance for row in scan.outgoing])
        records = [await self._record(connection, row, traces.get(row.instance), notes) for row in scan.outgoing]
        await self._recorder.keep(connection, notes)
        return scan, records

    async def _record(
        self, connection: TrioConnection, row: Outgoing, trace: str | None, notes: list[Given | None]
    ) -> KafkaRecord | Result:
        """The message of a row, with what is to be kept of it in ``notes``; or why there can be none: that is no reason
        for the others to wait."""
        try:
            loaded = await self._engine.definitions.by_key(connection, row.definition)
            step = loaded.definition.steps[row.step]
        except (PenstockError, LookupError) as error:
            return Result(PublishOutcome.RECORD_REFUSED, "INVALID_DEFINITION", f"its definition can't be read: {error}")
        self._names[row.job_type] = job_type = step.job_type or ""
        problem = topic_problem(job_type)  # one of a definition that was uploaded in polling mode
        if problem is not None:
            return Result(PublishOutcome.TOPIC_REFUSED, "INVALID_TOPIC_EXCEPTION", f"'{job_type}' {problem}")
        if row.variables is None:
            return Result(PublishOutcome.RECORD_REFUSED, "KEY_MISSING", "its variables can't be read: a key is missing")
        variables = row.variables.encode()
        if step.compensates is not None:
            undone = (await compensation.of_handlers(connection, [row.token])).get(row.token)
            if undone is None:
                return Result(
                    PublishOutcome.RECORD_REFUSED, "KEY_MISSING", "what it undoes can't be read: a key is missing"
                )
            variables = merged(variables, compensating(loaded.definition, undone))
        key = JobKey(row.instance, row.token, row.seq)
        notes.append(self._recorder.note(loaded.definition, row.step, key, row.attempt, variables))
        return record_of(row, loaded, variables, None if trace is None else self._handed(row, step, trace))

    def _handed(self, row: Outgoing, step: Step, trace: str) -> str:
        """The traceparent of a record that goes on with the trace of its instance."""
        assert self._engine.traces is not None
        job_id = ids.show_job(row.instance, row.token, row.seq)
        type_, since = step.job_type or "", row.entered_at
        return self._engine.traces.handed("publish", trace, row.instance, job_id, type_, step.id, row.attempt, since)

    async def _publish(self, rows: Sequence[Outgoing], records: Sequence[KafkaRecord | Result]) -> list[PublishedRow]:
        """Publish; the rows that were acked. Others are taken again, at once or when their time comes."""
        if not rows or not self._leadership.leads():
            return []
        started = trio.current_time()
        results = await self._results(records)
        took_s = trio.current_time() - started
        self._metrics.relay_batch_seconds.observe(took_s)
        return self._settle(rows, results, took_s)

    def _settle(self, rows: Sequence[Outgoing], results: Sequence[Result], took_s: float) -> list[PublishedRow]:
        """What each answer means; the rows that were acked."""
        now = trio.current_time()
        acked: list[PublishedRow] = []
        well: set[int] = set()
        worst: dict[int, Result] = {}
        for row, result in zip(rows, results, strict=True):
            acknowledged = result.outcome is PublishOutcome.ACKED
            self._metrics.relay_published["success" if acknowledged else result.outcome.value].inc()
            if acknowledged:
                acked.append(PublishedRow(row.job_type, row.id, row.step))
                self._troubles.forget_row(row.id)
                self._metrics.dispatch_seconds.observe(row.age_s + took_s)
                well.add(row.job_type)
            elif result.outcome is PublishOutcome.RECORD_REFUSED and self._troubles.quarantine_row(row.id, now):
                self._warn_refused(row, result)
                well.add(row.job_type)
            else:
                worst[row.job_type] = result
        for job_type, result in worst.items():
            self._troubles.back_off(job_type, result.outcome, now)
            self._retry_wake.set()
            self._warn_trouble(job_type, result)
        for job_type in well - worst.keys():
            self._recovered(job_type)
        return acked

    async def _results(self, records: Sequence[KafkaRecord | Result]) -> list[Result]:
        sent = [record for record in records if isinstance(record, KafkaRecord)]
        try:
            answers = iter(await self._producer.publish(sent) if sent else [])
        except Exception as error:
            # the client library's or ours; the engine goes on without it, and what it sent is sent again
            log.exception("publishing failed")
            answers = iter([Result(PublishOutcome.UNKNOWN, type(error).__name__, "publishing failed")] * len(sent))
        return [record if isinstance(record, Result) else next(answers) for record in records]

    async def _delete_published(self, connection: TrioConnection) -> None:
        async def delete(rows: Sequence[PublishedRow]) -> Sequence[None]:
            await store.delete_published(connection, rows, audit=self._settings.audit_log_enabled)
            return ()

        def leave(row: PublishedRow, error: DatabaseError) -> None:  # published again when its time comes: a duplicate
            self._portion.quarantine_row(row.id, f"published outbox row {row.id:x}", error)

        if self._published:
            await self._engine.quarantine.each(self._published, delete, leave)
            self._published.clear()

    def _next_types(self, limit: int) -> list[int]:
        return list(islice((job_type for job_type in self._may_have_rows if not self._troubles.has(job_type)), limit))

    def _put_back(self, job_types: Iterable[int]) -> None:
        self._may_have_rows.update(dict.fromkeys(job_types))

    # -- trouble

    def _warn_refused(self, row: Outgoing, result: Result) -> None:
        topic = topic_of(self._names.get(row.job_type, ""))
        job = ids.show_job(row.instance, row.token, row.seq)
        _limited.warning(
            f"record {topic}",
            "a job can't be published",
            job=job,
            topic=topic,
            code=result.code,
            reason=result.reason,
        )

    def _warn_trouble(self, job_type: int, result: Result) -> None:
        topic = topic_of(self._names.get(job_type, ""))
        _limited.warning(
            f"topic {topic}",
            "jobs can't be published",
            topic=topic,
            outcome=result.outcome.value,
            code=result.code,
            reason=result.reason,
        )

    def _recovered(self, job_type: int) -> None:
        if self._troubles.forget_type(job_type):
            self._low_water_marks.pop(job_type, None)
            self._put_back((job_type,))
            self._wake.set()

    async def _create_topics(self, job_types: Iterable[int]) -> None:
        """Definitions that were uploaded since the start may have new job types."""
        if not self._settings.kafka_create_topics:
            return
        refused = [job_type for job_type in job_types if self._troubles.refused(job_type)]
        names = [self._names[job_type] for job_type in refused if job_type in self._names]
        topics = [topic_of(name) for name in names if topic_problem(name) is None]
        if topics:
            with suppress(PenstockError):  # the broker is away: publishing will say so
                await self._producer.create_topics(topics)
