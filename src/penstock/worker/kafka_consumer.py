"""One job type's consumer: reads its topic as a member of ``workflow.workers.<jobType>``, commits what is settled.

Runs in an asyncio loop of its own (`kafka.py`), through outages by itself: a consumer that fails is dropped and made
anew. Every wait has a time-out here, because aiokafka's own commit() and stop() wait for a broker for ever. Decides
nothing about offsets: that is `kafka_ledger.py`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from penstock.client.backoff import RetryPauses
from penstock.loop.scope import LoopScope
from penstock.wire.model import Job, JobRef
from penstock.worker.held import LOGGER
from penstock.worker.kafka_event import Poison, dispatch_of
from penstock.worker.kafka_ledger import Lag, Ledger

TOPIC_PREFIX: Final = "workflow.jobs."
GROUP_PREFIX: Final = "workflow.workers."
FETCH_WAIT_MS: Final = 500
MAX_WAITING_JOBS: Final = 500
"""Read and not handed out: over it nothing more is read."""
MAX_UNCOMMITTED_RECORDS: Final = 20_000
"""Over it nothing more is read, until the job that holds up its partition is settled."""
START_TIMEOUT_S: Final = 20.0
COMMIT_PAUSE_S: Final = 0.2
COMMIT_TIMEOUT_S: Final = 5.0
LAST_COMMIT_TIMEOUT_S: Final = 2.0
REVOKE_GRACE_S: Final = 3.0
"""How long a rebalance waits for jobs that are out; all members of the group wait for the slowest."""
STOP_TIMEOUT_S: Final = 3.0
MAX_RETRY_PAUSE_S: Final = 5.0
PROBATION_S: Final = 10.0
"""A consumer that starts and fails within this time (it may not read its topic, say) counts as one that never worked:
pauses go on growing, and the reason is not told again."""
MAX_POISON_REASON_CHARS: Final = 300


class Consumer(Protocol):
    """What is used of ``AIOKafkaConsumer``, which has no types."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def getmany(self, *, timeout_ms: int, max_records: int) -> Mapping[Any, list[Any]]: ...

    async def commit(self, offsets: Mapping[Any, int]) -> None: ...

    def subscribe(self, topics: Collection[str], *, listener: object) -> None: ...

    def assignment(self) -> Collection[Any]: ...

    def highwater(self, partition: Any) -> int | None: ...


class JobConsumer:
    """The consumer of one job type. ``run`` it in a task; the other methods belong to the same loop.

    Args:
        job_type: the type of the jobs.
        make: makes an aiokafka consumer of a group.
        on_jobs: called when there may be jobs to take.
    """

    def __init__(self, job_type: str, make: Callable[[str], Consumer], on_jobs: Callable[[], None]) -> None:
        self.job_type = job_type
        self.topic = TOPIC_PREFIX + job_type
        self.group = GROUP_PREFIX + job_type
        self.ledger = Ledger()
        self.poison = 0
        self.commits = 0
        self._make = make
        self._on_jobs = on_jobs
        self._changed = asyncio.Event()
        self._rebalancing = False
        self._stopping = False
        self._consumer: Consumer | None = None

    # -- called by the worker

    def take(self, max_jobs: int) -> list[Job]:
        """Jobs that are there now; none while partitions change hands."""
        if self._rebalancing:
            return []
        taken = self.ledger.take(max_jobs)
        if taken:
            self._ring()
        return taken

    def settle(self, ref: JobRef) -> None:
        """See ``Ledger.settle``."""
        self.ledger.settle(ref, time.monotonic())
        self._ring()
        self._on_jobs()  # the next job of the same instance may go out

    def lag(self) -> Lag:
        """Return how far this worker is behind its partitions of the topic."""
        consumer, ends = self._consumer, dict[int, int | None]()
        if consumer is not None:
            ends = {each.partition: consumer.highwater(each) for each in consumer.assignment()}
        return self.ledger.lag(ends, time.time())

    # -- the life of the consumer

    async def run(self) -> None:
        """Read and commit until cancelled, through outages; then commit, leave the group, all within a few seconds."""
        backoff = RetryPauses(max_s=MAX_RETRY_PAUSE_S)
        failing = False
        while not self._stopping:
            works_from = math.inf
            scope = LoopScope()
            scope.enter()
            consumer = self._make(self.group)
            try:
                consumer.subscribe([self.topic], listener=_listener(self))
                await asyncio.wait_for(consumer.start(), START_TIMEOUT_S)
                LOGGER.info("takes %s jobs from Kafka", self.job_type)
                works_from = time.monotonic() + PROBATION_S
                self._consumer = consumer
                await self._work(consumer)
            except Exception as error:
                if time.monotonic() > works_from:
                    backoff.reset()
                    failing = False
                level = logging.DEBUG if failing else logging.WARNING
                LOGGER.log(level, "no %s jobs from Kafka: %s", self.job_type, self._cause(error))
                failing = True
            finally:
                await self._end(consumer, scope)
            if not self._stopping:
                await asyncio.sleep(backoff.next_pause_s())

    def stop(self) -> None:
        """Make no new consumer any more. Cancel the task of ``run`` besides."""
        self._stopping = True

    def _cause(self, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):  # of `_work`: reading or committing has failed
            error = cast("ExceptionGroup[Exception]", error).exceptions[0]
        if isinstance(error, TimeoutError):
            return f"no broker answers, or there is no topic {self.topic}"
        return str(error) or type(error).__name__

    async def _work(self, consumer: Consumer) -> None:
        """Read and commit; ends with the first error of either."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_for_ever(consumer))
            while True:
                free_slots = min(
                    MAX_WAITING_JOBS - self.ledger.waiting, MAX_UNCOMMITTED_RECORDS - self.ledger.uncommitted
                )
                if free_slots <= 0:
                    await self._wait_changed()
                    continue
                # Returns nothing of partitions that are being given up: it waits for the new assignment then.
                read = await consumer.getmany(timeout_ms=FETCH_WAIT_MS, max_records=free_slots)
                for records in read.values():
                    self._add(records)
                if read:
                    self._on_jobs()

    async def _end(self, consumer: Consumer, scope: LoopScope) -> None:
        """Commit what is settled, leave the group, forget what was not begun. Bounded, also when it is cancelled."""
        self._consumer = None
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(self._commit(consumer), LAST_COMMIT_TIMEOUT_S)
        stopping = asyncio.ensure_future(consumer.stop())
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(stopping, STOP_TIMEOUT_S)
        await scope.end()
        self.ledger.revoke(self.ledger.partitions)

    # -- reading

    def _add(self, records: list[Any]) -> None:
        now = time.monotonic()
        for record in records:
            try:
                dispatch = dispatch_of(self.job_type, record.value, record.headers)
            except Poison as error:
                dispatch = None
                self.poison += 1
                LOGGER.error(
                    "record skipped: %s partition %d offset %d: %s",
                    self.topic,
                    record.partition,
                    record.offset,
                    str(error)[:MAX_POISON_REASON_CHARS],
                )
            self.ledger.add(record.partition, record.offset, dispatch, now, record.timestamp / 1_000)
        self._ring()

    # -- committing

    async def _commit_for_ever(self, consumer: Consumer) -> None:
        while True:
            await self._commit(consumer)
            await asyncio.sleep(COMMIT_PAUSE_S)
            while not self.ledger.to_commit():
                await self._wait_changed()

    async def _commit(self, consumer: Consumer) -> None:
        """Commit what is settled. What can't be committed now is tried again; at worst its jobs come once more."""
        from aiokafka import TopicPartition
        from aiokafka.errors import IllegalStateError, KafkaError

        offsets = self.ledger.to_commit()
        if not offsets:
            return
        named = {TopicPartition(self.topic, partition): offset for partition, offset in offsets.items()}
        try:
            await asyncio.wait_for(consumer.commit(named), COMMIT_TIMEOUT_S)
        except (KafkaError, IllegalStateError, TimeoutError) as error:
            LOGGER.debug("%s offsets not committed: %s", self.job_type, str(error) or type(error).__name__)
        else:
            self.commits += 1
            self.ledger.committed(offsets)

    # -- rebalances

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        """Give partitions up: wait a while for what is out, commit, forget the rest.

        Jobs that take longer go on, and are reported: the engine takes the first result, and their heartbeats make
        this worker the holder. The new owner gets their records as well.
        """
        partitions = {each.partition for each in revoked}
        if not partitions:
            return
        self._rebalancing = True
        try:
            self.ledger.drop_waiting(partitions)
            with suppress(TimeoutError):
                async with asyncio.timeout(REVOKE_GRACE_S):
                    while self.ledger.has_out(partitions):
                        await self._wait_changed()
            if self._consumer is not None:
                await self._commit(self._consumer)
        finally:
            self.ledger.revoke(partitions)
            self._rebalancing = False
            self._ring()

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Told of partitions that are this worker's from now on."""
        LOGGER.debug("%s partitions: %s", self.job_type, sorted(each.partition for each in assigned))

    async def _wait_changed(self) -> None:
        await self._changed.wait()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _listener(consumer: JobConsumer) -> object:
    from aiokafka.abc import ConsumerRebalanceListener

    class Listener(cast(Any, ConsumerRebalanceListener)):  # type: ignore[misc]  # aiokafka has no types
        on_partitions_revoked = staticmethod(consumer.on_partitions_revoked)
        on_partitions_assigned = staticmethod(consumer.on_partitions_assigned)

    return Listener()
