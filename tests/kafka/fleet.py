"""Engines in Kafka mode and Python workers on one database and one broker, and the account of both sides at the end."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import trio

from penstock.client import Client
from penstock.testing.definitions import linear
from penstock.testing.invariants import find_broken
from penstock.wire.model import StartRequest
from penstock.worker import JobContext, Worker
from penstock.worker.kafka import KafkaWork
from tests.runtime.conftest import StartEngine
from tests.runtime.engine_process import EngineProcess

COMPLETED = 1


class Fleet:
    """Workflows of ``steps`` jobs of one type, which is the test's own: its topic and its group are."""

    def __init__(self, dsn: str, bootstrap: str, start_engine: StartEngine, *, steps: int = 3) -> None:
        self.dsn = dsn
        self.bootstrap = bootstrap
        self.steps = steps
        self.job_type = f"work-{uuid.uuid4().hex[:8]}"
        self.topic = f"workflow.jobs.{self.job_type}"
        self.started: set[str] = set()
        self.handled: Counter[tuple[str, str]] = Counter()
        """The workers' own journal: how often each step of each instance was worked on."""
        self.order: dict[str, list[str]] = defaultdict(list)
        self.by_worker: Counter[str] = Counter()
        self._start_engine = start_engine

    # -- engines

    async def engine(self, **settings: object) -> EngineProcess:
        """One more engine, ready."""
        return await trio.to_thread.run_sync(lambda: self.begin_engine(**settings).wait_ready())

    def begin_engine(self, **settings: object) -> EngineProcess:
        """One more engine, which may not come to be ready."""
        return self._start_engine(**(self._settings() | settings))

    def _settings(self) -> dict[str, object]:
        return {
            "dispatch_mode": "kafka_outbox",
            "kafka_seed_brokers": self.bootstrap,
            "kafka_create_topics": "true",
            "kafka_connect_timeout_seconds": 3,
            "lease_min_seconds": 1,
        }

    async def upload(self, engine: EngineProcess, **changes: Any) -> None:
        definition = linear(self.steps, job_type=self.job_type) | changes
        async with self.client(engine) as client:
            await client.upload_definition(definition)

    @asynccontextmanager
    async def client(self, engine: EngineProcess) -> AsyncGenerator[Client]:
        async with Client(f"http://127.0.0.1:{engine.port}") as client:
            yield client

    async def start(self, engine: EngineProcess, count: int, definition_id: str = "linear") -> set[str]:
        """Start instances; their ids."""
        async with self.client(engine) as client:
            results = await client.start_instances([StartRequest(definition_id=definition_id) for _ in range(count)])
        ids = {result.unwrap().id for result in results}
        self.started |= ids
        return ids

    # -- workers

    @asynccontextmanager
    async def worker(
        self, engine: EngineProcess, *, options: dict[str, Any] | None = None, bootstrap: str | None = None, **more: Any
    ) -> AsyncGenerator[Worker]:
        """A worker that reports to this engine."""
        async with self.client(engine) as client:
            connect = KafkaWork.connect(client, [bootstrap or self.bootstrap], options=options)
            settings: dict[str, Any] = {"concurrency": 50, **more}
            worker = Worker(connect, **settings)

            @worker.handler(self.job_type)
            async def handle(context: JobContext) -> dict[str, str]:
                self.handled[context.instance_id, context.step_id] += 1
                self.order[context.instance_id].append(context.step_id)
                self.by_worker[worker.worker_id] += 1
                return {context.step_id: worker.worker_id}

            async with worker:
                yield worker

    # -- waiting, and the account

    async def wait(self, condition: Callable[[], object], timeout_s: float = 40.0) -> None:
        with trio.fail_after(timeout_s):
            while not condition():
                await trio.sleep(0.05)

    async def wait_ended(self, timeout_s: float = 40.0) -> None:
        """Until no instance is open."""
        await self.wait(lambda: self.query("SELECT count(*) FROM instance WHERE status = 0") == [(0,)], timeout_s)

    def query(self, text: str) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(text.encode()).fetchall()

    def check(self) -> None:
        """Every instance completed, every step once by the engine's account, at least once by the workers'."""
        assert {status for (status,) in self.query("SELECT status FROM instance")} == {COMPLETED}
        ids = {f"{id:x}" for (id,) in self.query("SELECT id FROM instance")}
        assert ids >= self.started
        counts = self.query("SELECT instance_id, step, count(*) FROM history WHERE kind = 1 GROUP BY 1, 2")
        assert {count for _, _, count in counts} == {1}
        assert len(counts) == len(ids) * self.steps
        expected = {(id, f"task-{n}") for id in ids for n in range(1, self.steps + 1)}
        assert self.handled.keys() == expected
        assert self.query("SELECT count(*) FROM dispatch_outbox") == [(0,)]
        assert find_broken(self.dsn) == []

    @property
    def repeats(self) -> int:
        """How many jobs were worked on more than once."""
        return sum(count > 1 for count in self.handled.values())
