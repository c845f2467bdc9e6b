"""Jobs through Kafka: for an engine that dispatches with ``WE_DISPATCH_MODE=kafka_outbox``.

::

    worker = Worker(KafkaWork.connect("http://127.0.0.1:8080", ["127.0.0.1:9092"]))

Needs aiokafka, which is asyncio's: it runs in a thread of its own, so the worker may run under Trio. Results,
heartbeats and checkpoints go to the engine as with every transport.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, cast

import anyio
import msgspec

from penstock.client.client import Client
from penstock.client.errors import ClientError, Forbidden, Unauthenticated
from penstock.client.token import Token
from penstock.log.throttle import throttle
from penstock.wire.model import Job, JobOutcome, JobRef
from penstock.worker.held import LOGGER
from penstock.worker.intake import JobIntake
from penstock.worker.kafka_consumer import LAST_COMMIT_TIMEOUT_S, STOP_TIMEOUT_S, Consumer, JobConsumer
from penstock.worker.kafka_ledger import Lag
from penstock.worker.kafka_loop import AsyncioThread
from penstock.worker.transport import EngineReports, PullTransport, WorkerIdentity

TAKE_WAIT_S: Final = 20.0
LAG_EVERY_S: Final = 5.0
STOP_CONSUMERS_TIMEOUT_S: Final = LAST_COMMIT_TIMEOUT_S + STOP_TIMEOUT_S + 2.0
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_INTERVAL_MS: Final = 1_000
"""How soon a member learns that its group rebalances; the rest of the group waits for it."""
REBALANCE_TIMEOUT_MS: Final = 30_000
# A handler may take hours, and nothing is read meanwhile. That this process lives is shown by heartbeats to the group,
# that the job is worked on by heartbeats to the engine.
MAX_POLL_INTERVAL_MS: Final = 2**31 - 1


class KafkaStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What came through Kafka since the worker started."""

    waiting: int
    """Jobs that are read and not begun."""
    uncommitted: int
    """Records that are read and not committed."""
    duplicates: int
    """Records of jobs that had come before."""
    poison: int
    """Records that no job could be made of; skipped, and told in the log."""


class KafkaWork(EngineReports, PullTransport):
    """Jobs from the topics ``workflow.jobs.<jobType>``, as a member of the groups ``workflow.workers.<jobType>``.

    A worker's ``concurrency`` is how much is worked on at once; jobs of one instance and type run one after the other.
    An offset is committed when the engine has answered for the job and for all before it in the partition: a worker
    that dies leaves its jobs to others. A record may come more than once; within ten minutes it is recognized.

    Args:
        engine: for results and heartbeats: the engine's URL, or a ``Client`` (not closed by the worker).
        brokers: ``host:port`` of some Kafka brokers.
        token, ssl_context: for that engine's URL, as ``Client`` takes them; of the brokers ``options`` tells.
        identity: whom results and heartbeats are from; through ``connect`` the worker gives its own.
        options: more of ``aiokafka.AIOKafkaConsumer``'s, such as ``security_protocol`` and ``ssl_context``.

    Raises:
        ImportError: aiokafka is not installed.
    """

    def __init__(
        self,
        engine: str | Client,
        brokers: Collection[str],
        identity: WorkerIdentity,
        *,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if importlib.util.find_spec("aiokafka") is None:
            raise ImportError(
                "a worker that takes its jobs from Kafka needs aiokafka: pip install 'penstock-workflow[kafka]'"
            )
        if not isinstance(engine, str) and (token is not None or ssl_context is not None):
            raise ValueError("token and ssl_context go with an engine's URL: give them to the client")
        client = Client(engine, token=token, ssl_context=ssl_context) if isinstance(engine, str) else engine
        super().__init__(client.transport, identity)
        self._own_client = client if isinstance(engine, str) else None
        self._options: dict[str, Any] = {
            "bootstrap_servers": list(brokers),
            "client_id": identity.worker_id,
            **(options or {}),
        }
        self._thread = AsyncioThread()
        self._types_out: dict[tuple[str, int | None], str] = {}
        # Of the other thread, but for reading counters:
        self._consumers: dict[str, JobConsumer] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._some = asyncio.Event()
        self._turn = 0

    @classmethod
    def connect(
        cls,
        engine: str | Client,
        brokers: Collection[str],
        *,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[[WorkerIdentity], KafkaWork]:
        """For ``Worker(KafkaWork.connect(url, ["127.0.0.1:9092"]))``; arguments as above."""
        return lambda identity: cls(engine, brokers, identity, token=token, ssl_context=ssl_context, options=options)

    async def __aenter__(self) -> KafkaWork:
        """Return the worker enters it before ``run`` and leaves it after the last report."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_client is not None:
            await self._own_client.aclose()

    def kafka_statistics(self) -> KafkaStatistics:
        """Figures of this moment."""
        consumers = list(self._consumers.values())
        return KafkaStatistics(
            waiting=sum(each.ledger.waiting for each in consumers),
            uncommitted=sum(each.ledger.uncommitted for each in consumers),
            duplicates=sum(each.ledger.duplicates for each in consumers),
            poison=sum(each.poison for each in consumers),
        )

    # -- see WorkTransport

    async def run(self, intake: JobIntake) -> None:
        """See ``WorkTransport``. Leaves the groups at the end, when the last results are answered."""
        throttle("aiokafka")
        if await self._is_refused(intake):
            return
        job_types = [job_type for subscription in intake.subscriptions for job_type in subscription.job_types]
        async with self._thread.opened():
            await self._thread.call(self._start, job_types)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._thread.call, self._watch)
                    tasks.start_soon(self._observe_lags, intake)
                    await super().run(intake)
                    await anyio.sleep_forever()
            finally:
                with anyio.move_on_after(STOP_CONSUMERS_TIMEOUT_S, shield=True):
                    await self._thread.call(self._stop)

    async def _observe_lags(self, intake: JobIntake) -> None:
        while True:
            for job_type, lag in (await self._thread.call(self._lags)).items():
                intake.observe_lag(job_type, lag.records, lag.seconds)
            await anyio.sleep(LAG_EVERY_S)

    async def _is_refused(self, intake: JobIntake) -> bool:
        """Return whether the engine takes no reports of this worker: it would do its jobs for nothing."""
        try:
            await self.extend([])
        except (Unauthenticated, Forbidden) as error:
            LOGGER.error("the engine accepts no reports from this worker: %s", error)
            intake.refuse(error)
            return True
        except ClientError as error:
            LOGGER.debug("it is not known yet whether the engine accepts reports: %s", error)
        return False

    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        """See ``PullTransport``."""
        jobs = await self._thread.call(self._take, job_types, max_jobs)
        for job in jobs:
            self._types_out[job.id, job.attempt] = job.job_type
        return jobs

    async def release(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        """See ``WorkTransport``: the engine dispatches them anew. Only a holder may ask for that: be it first."""
        outcomes = {outcome.job_id: outcome for outcome in await self.extend(jobs)}
        held = [job for job in jobs if job.job_id in outcomes and outcomes[job.job_id].outcome == "ok"]
        if held:
            outcomes |= {outcome.job_id: outcome for outcome in await super().release(held)}
        for job in jobs:
            if job.job_id in outcomes and outcomes[job.job_id].outcome != "unavailable":
                self.forget(job)  # else its record comes again, to whoever gets the partition
        return list(outcomes.values())

    def forget(self, job: JobRef) -> None:
        """See ``WorkTransport``: the record's offset may be committed."""
        job_type = self._types_out.pop((job.job_id, job.attempt), None)
        if job_type is not None:
            self._thread.call_nowait(self._consumers[job_type].settle, job)

    # -- in the other thread

    async def _start(self, job_types: Sequence[str]) -> None:
        self._some = asyncio.Event()
        self._consumers = {job_type: JobConsumer(job_type, self._make, self._ring) for job_type in job_types}
        self._running = {asyncio.create_task(consumer.run()) for consumer in self._consumers.values()}

    async def _lags(self) -> dict[str, Lag]:
        return {job_type: consumer.lag() for job_type, consumer in self._consumers.items()}

    async def _watch(self) -> None:
        """Consumers go on through outages; what ends one is a mistake, such as an option that does not exist."""
        ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()

    async def _stop(self) -> None:
        for consumer in self._consumers.values():
            consumer.stop()
        for task in self._running:
            task.cancel()
        await asyncio.wait(self._running)

    async def _take(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        """Jobs of these types, from each in turn; an empty list after a while without any."""
        try:
            async with asyncio.timeout(TAKE_WAIT_S):
                while not (taken := self._take_nowait(job_types, max_jobs)):
                    await self._some.wait()
                return taken
        except TimeoutError:
            return []

    def _take_nowait(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        self._turn += 1
        first = self._turn % len(job_types)
        taken: list[Job] = []
        for job_type in (*job_types[first:], *job_types[:first]):
            taken += self._consumers[job_type].take(max_jobs - len(taken))
        return taken

    def _ring(self) -> None:
        self._some.set()
        self._some = asyncio.Event()

    def _make(self, group: str) -> Consumer:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        settings: dict[str, Any] = {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            # aiokafka 0.14 has no cooperative protocol: all members stop for a moment at a rebalance. Its sticky one
            # keeps its state in the class, which the consumers of all job types would share, and never learns the
            # generation. One and no more: it joins once for each strategy, and every join begins the group's rebalance
            # anew (three workers that came together changed hands 14 times in 20 s). Java's and librdkafka's clients
            # offer range as well.
            "partition_assignment_strategy": (RangePartitionAssignor,),
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "max_poll_interval_ms": MAX_POLL_INTERVAL_MS,
        }
        return cast(Consumer, AIOKafkaConsumer(**(settings | self._options)))
