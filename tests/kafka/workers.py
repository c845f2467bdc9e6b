"""A worker on a real broker with an engine of a few lines: what it reports, and what its group has committed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from penstock.client.errors import Unavailable
from penstock.client.operation import CompleteJobs, FailJobs, HeartbeatJobs, ReleaseJobs
from penstock.kafka.record import KafkaRecord
from penstock.wire.model import JobOutcome
from penstock.worker import Worker
from penstock.worker.kafka import KafkaWork
from tests.kafka.topics import Topics, in_thread


class SmallEngine:
    """Takes every report, unless told otherwise. Serves several workers, also in threads."""

    def __init__(self) -> None:
        self.transport = self
        self.completed: list[str] = []
        self.failed: list[str] = []
        self.released: list[str] = []
        self.beats: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.away = False
        self._lock = threading.Lock()

    async def call(self, operation: Any, timeout_s: float | None = None) -> list[JobOutcome]:
        await anyio.lowlevel.checkpoint()
        if self.away:
            raise Unavailable("the engine is away")
        with self._lock:
            match operation:
                case CompleteJobs():
                    return self._each(self.completed, operation.results)
                case FailJobs():
                    return self._each(self.failed, operation.results)
                case ReleaseJobs():
                    return self._each(self.released, operation.jobs)
                case HeartbeatJobs():
                    self.beats.update(job.job_id for job in operation.jobs)
                    return self._each([], operation.jobs)
                case _:
                    raise AssertionError(operation)

    def _each(self, taken: list[str], items: Sequence[Any]) -> list[JobOutcome]:
        outcomes = [
            JobOutcome(job_id=item.job_id, outcome="lease-lost" if item.job_id in self.lost else "ok") for item in items
        ]
        taken += [outcome.job_id for outcome in outcomes if outcome.outcome == "ok"]
        return outcomes


def worker_of(engine: SmallEngine, bootstrap: str, **settings: Any) -> Worker:
    return Worker(KafkaWork.connect(engine, [bootstrap]), **settings)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in


async def send(bootstrap: str, *records: KafkaRecord) -> None:
    """Write records as they are."""

    async def publish() -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for each in records:
                await producer.send(each.topic, each.value, each.key, headers=list(each.headers))

    await in_thread(publish)


async def committed(bootstrap: str, job_type: str) -> dict[int, int]:
    """By partition: what the group of a job type has committed."""

    async def ask() -> dict[int, int]:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(f"workflow.workers.{job_type}")
        except GroupCoordinatorNotAvailableError:  # the broker's very first group is being set up
            return {}
        else:
            return {each.partition: value.offset for each, value in offsets.items() if value.offset >= 0}
        finally:
            await admin.close()

    return await in_thread(ask)


async def members(bootstrap: str, job_type: str) -> int:
    """How many members the group of a job type has by the broker's account."""

    async def ask() -> int:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            [answer] = await admin.describe_consumer_groups([f"workflow.workers.{job_type}"])
        finally:
            await admin.close()
        [group] = answer.groups  # pyright: ignore[reportAttributeAccessIssue] - untyped there
        return len(group[5])

    return await in_thread(ask)


@asynccontextmanager
async def running(worker: Worker):
    async with worker:
        yield worker


async def make_topic(bootstrap: str, job_type: str, partitions: int = 1) -> None:
    await Topics(bootstrap).make_all({f"workflow.jobs.{job_type}": partitions})
