"""Short words for what tests do with an engine, and a look at the rows behind it."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from penstock.core.parsing import parse_definition
from penstock.engine.engine import Engine
from penstock.engine.vocabulary import (
    Completion,
    Failure,
    Heartbeat,
    HeartbeatAnswer,
    InstanceView,
    Job,
    PollRequest,
    Signal,
    StartRequest,
    UserTaskCompletion,
)


class Driver:
    """One engine as a test uses it."""

    def __init__(self, engine: Engine, dsn: str) -> None:
        self.engine = engine
        self.dsn = dsn

    async def upload(self, definition: dict[str, Any]) -> None:
        await self.engine.definitions.upload(parse_definition(msgspec.json.encode(definition)))

    async def start(self, definition: str, variables: dict[str, Any] | None = None, **fields: Any) -> InstanceView:
        request = StartRequest(definition_id=definition, variables=msgspec.json.encode(variables or {}), **fields)
        return await self.engine.instances.start(request)

    async def poll(self, *types: str, worker: str = "w1", n: int = 10, wait: float = 0, lease: int = 30) -> list[Job]:
        request = PollRequest(
            worker_id=worker, job_types=list(types), max_jobs=n, wait_seconds=wait, lease_seconds=lease
        )
        return await self.engine.jobs.poll(request)

    async def one(self, *types: str, worker: str = "w1", wait: float = 5, lease: int = 30) -> Job:
        jobs = await self.poll(*types, worker=worker, n=1, wait=wait, lease=lease)
        assert len(jobs) == 1, f"no job of {types}"
        return jobs[0]

    async def complete(self, job: Job, variables: dict[str, Any] | None = None, **changes: Any) -> None:
        await self.engine.jobs.complete(completion(job, variables, **changes))

    async def fail(self, job: Job, error: str = "boom", *, retryable: bool = True, **changes: Any) -> None:
        fields = {"job_id": job.id, "worker_id": job.worker_id, "retryable": retryable, "error_message": error}
        await self.engine.jobs.fail(Failure(**{**fields, **changes}))

    async def heartbeat(self, job: Job, **changes: Any) -> HeartbeatAnswer:
        return await self.engine.jobs.heartbeat(Heartbeat(**{"job_id": job.id, "worker_id": job.worker_id, **changes}))

    async def finish_task(self, instance: str, step: str, variables: dict[str, Any] | None = None) -> None:
        await self.engine.tasks.complete_user_task(
            UserTaskCompletion(instance_id=instance, step_id=step, variables=msgspec.json.encode(variables or {}))
        )

    async def signal(self, instance: str, step: str, variables: dict[str, Any] | None = None, **fields: Any) -> None:
        await self.engine.tasks.signal(
            Signal(instance_id=instance, step_id=step, variables=msgspec.json.encode(variables or {}), **fields)
        )

    async def view(self, instance: str) -> InstanceView:
        return await self.engine.instances.get(instance)

    async def variables(self, instance: str) -> dict[str, Any]:
        return variables_of(await self.view(instance))

    async def path(self, instance: str) -> list[tuple[str, str]]:
        """(step id, status) of the history."""
        return [(item.step_id, item.status) for item in await self.engine.instances.history(instance)]

    def rows(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """What the database itself says."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(sql.encode(), params).fetchall()

    def snapshot(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table that an operation may change."""
        tables = (
            "instance", "token", "ready", "timer", "history", "abnormal_end", "instance_key", "job_note",
            "buffered_signal", "dispatch_outbox",
        )  # fmt: skip
        return {table: self.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}  # noqa: S608


def completion(job: Job, variables: dict[str, Any] | None = None, **changes: Any) -> Completion:
    output = None if variables is None else msgspec.json.encode(variables)
    return Completion(**{"job_id": job.id, "worker_id": job.worker_id, "variables": output, **changes})


def variables_of(about: InstanceView | Job) -> dict[str, Any]:
    return msgspec.json.decode(about.variables, type=dict[str, Any])
