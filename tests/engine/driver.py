"""Short words for what tests do with an engine, and a look at the rows behind it."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import psycopg

from penstock.core.graph.definition import Definition
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.engine import Engine
from penstock.engine.requests import ids
from penstock.errors import Conflict
from penstock.store.rows.retention import Selected
from penstock.testing.clock import DatabaseClock
from penstock.wire.model import (
    Completion,
    Failure,
    Heartbeat,
    Instance,
    Job,
    Lease,
    PollRequest,
    PublishedMessage,
    PublishRequest,
    Signal,
    StartRequest,
    StepExecution,
    UserTaskCompletion,
)


class Driver:
    """One engine as a test uses it."""

    def __init__(self, engine: Engine, dsn: str) -> None:
        self.engine = engine
        self.dsn = dsn
        self._clock: DatabaseClock | None = None
        self._eyes: psycopg.Connection[tuple[Any, ...]] | None = None

    def close(self) -> None:
        if self._eyes is not None:
            self._eyes.close()

    def beside(self, engine: Engine) -> Driver:
        """Of another engine on this database; it sees with the same eyes, and is not to be closed."""
        self.rows("SELECT 1")
        other = Driver(engine, self.dsn)
        other._eyes = self._eyes
        return other

    @property
    def clock(self) -> DatabaseClock:
        """The database's clock, settable from the first use on. It goes on by itself until it is stopped."""
        self._clock = self._clock or DatabaseClock(self.dsn)
        return self._clock

    async def upload(self, definition: dict[str, Any]) -> Definition:
        parsed = parse_definition(msgspec.json.encode(definition))
        await self.engine.definitions.upload(parsed)
        return parsed

    async def run(self, definition: dict[str, Any], variables: dict[str, Any] | None = None) -> str:
        """Upload and start; the instance's id."""
        parsed = await self.upload(definition)
        return (await self.start(parsed.id, variables)).id

    async def start(self, definition: str, variables: dict[str, Any] | None = None, **fields: Any) -> Instance:
        request = StartRequest(definition_id=definition, variables=msgspec.json.encode(variables or {}), **fields)
        return await self.engine.instances.start(request)

    async def poll(self, *types: str, worker: str = "w1", n: int = 10, wait: float = 0, lease: int = 30) -> list[Job]:
        request = PollRequest(
            worker_id=worker, job_types=list(types), max_jobs=n, wait_seconds=wait, lease_seconds=lease
        )
        return await self.engine.jobs.poll(request)

    async def one(self, *types: str, worker: str = "w1", wait: float = 20, lease: int = 30) -> Job:
        jobs = await self.poll(*types, worker=worker, n=1, wait=wait, lease=lease)
        assert len(jobs) == 1, f"no job of {types}"
        return jobs[0]

    async def complete(self, job: Job, variables: dict[str, Any] | None = None, **changes: Any) -> None:
        await self.engine.jobs.complete(completion(job, variables, **changes))

    async def fail(self, job: Job, error: str = "boom", *, retryable: bool = True, **changes: Any) -> None:
        fields: dict[str, Any] = {**_held(job), "retryable": retryable, "error_message": error, **changes}
        await self.engine.jobs.fail(Failure(**fields))

    async def heartbeat(self, job: Job, **changes: Any) -> Lease:
        return await self.engine.jobs.heartbeat(Heartbeat(**{**_held(job), **changes}))

    async def heartbeat_quietly(self, job: Job) -> None:
        """A heartbeat that may come too late."""
        with contextlib.suppress(Conflict):
            await self.heartbeat(job)

    async def finish_task(self, instance: str, step: str, variables: dict[str, Any] | None = None) -> None:
        await self.engine.tasks.complete_user_task(
            UserTaskCompletion(instance_id=instance, step_id=step, variables=msgspec.json.encode(variables or {}))
        )

    async def signal(self, instance: str, step: str, variables: dict[str, Any] | None = None, **fields: Any) -> None:
        await self.engine.tasks.signal(
            Signal(instance_id=instance, step_id=step, variables=msgspec.json.encode(variables or {}), **fields)
        )

    async def signal_by_key(
        self, definition: str, key: str, step: str, variables: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        signal = Signal(instance_id="", step_id=step, variables=msgspec.json.encode(variables or {}), **fields)
        await self.engine.tasks.signal_by_key(definition, key, signal)

    async def publish(
        self, name: str, key: str, variables: dict[str, Any] | None = None, **fields: Any
    ) -> PublishedMessage:
        body = msgspec.json.encode(variables or {})
        return await self.engine.messages.publish(
            PublishRequest(name=name, correlation_key=key, variables=body, **fields)
        )

    async def due(self, seconds: float = 0) -> int:
        """Let so much time pass in the database, then fire what is due; how many timers fired at once. Those that take
        long, or whose definition is not in memory, have fired, too, when it returns."""
        if seconds:
            self.clock.advance(seconds)
        fired = await self.engine.timers.fire_once()
        await self.engine.full_path.wait_flushed()
        await self.engine.full_path.long.wait_flushed()
        return fired

    async def expire(self, seconds: float = 0, *, limit: int | None = None) -> int:
        """Let so much time pass, then do with every lease that ended what the lease service does; how many ended."""
        if seconds:
            self.clock.advance(seconds)
        leases = self.engine.leases
        leases.expiry_limit = self.engine.settings.lease_expiry_limit if limit is None else limit
        leased = self.rows("SELECT id, seq, attempt FROM token WHERE state = 1")
        return len(await leases.expire(leased)) if leased else 0

    async def history(self, instance: str) -> list[StepExecution]:
        return await self.engine.instances.history(instance)

    async def cancel(self, instance: str, reason: str | None = None, *, compensate: bool = False) -> Instance:
        return await self.engine.instances.cancel(instance, reason, compensate=compensate)

    async def retry(self, instance: str) -> Instance:
        return await self.engine.instances.retry(instance)

    async def status(self, instance: str) -> str:
        return (await self.view(instance)).status

    async def open_steps(self, instance: str) -> list[str]:
        return (await self.view(instance)).current_step_ids

    async def view(self, instance: str) -> Instance:
        return await self.engine.instances.get(instance)

    async def variables(self, instance: str) -> dict[str, Any]:
        return variables_of(await self.view(instance))

    async def path(self, instance: str) -> list[tuple[str, str]]:
        """(step id, status) of the history."""
        return [(item.step_id, item.status) for item in await self.engine.instances.history(instance)]

    def rows(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """What the database itself says."""
        if self._eyes is None or self._eyes.closed:
            self._eyes = psycopg.connect(self.dsn, autocommit=True)
        return self._eyes.execute(sql.encode(), params).fetchall()

    def waiting_for_locks(self) -> int:
        """How many sessions on this database wait for a lock; other tests' databases are on the same server."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(self.rows(waiting)[0][0])

    def snapshot(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table that an operation may change."""
        tables = (
            "instance", "token", "ready", "ready_flow", "slot", "timer", "history", "abnormal_end", "instance_key",
            "job_note", "buffered_signal", "signal_id", "dispatch_outbox", "parked", "idempotency", "audit", "message",
            "message_id", "subscription", "compensation", "undoing",
        )  # fmt: skip
        return {table: self.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}


def completion(job: Job, variables: dict[str, Any] | None = None, **changes: Any) -> Completion:
    output = None if variables is None else msgspec.json.encode(variables)
    fields: dict[str, Any] = {**_held(job), "variables": output, **changes}
    return Completion(**fields)


def _held(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "worker_id": job.worker_id}


def variables_of(about: Instance | Job) -> dict[str, Any]:
    return msgspec.json.decode(about.variables, type=dict[str, Any])  # pyright: ignore[reportArgumentType, reportCallIssue] - a stand-in


def selected(driver: Driver, instance: str) -> Selected:
    """An ended instance, as retention selects it."""
    return Selected(*driver.rows("SELECT id, xmin::text::bigint FROM instance WHERE id = %s", number(instance))[0])


def number(instance: str) -> int:
    """The id of an instance as the database has it."""
    return ids.read_instance(instance)
