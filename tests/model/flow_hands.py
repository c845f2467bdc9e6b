"""What a game of flows moves by: the operations of two engines, at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from penstock.engine.instances.batches import BatchStart
from penstock.errors import Conflict, Throttled
from penstock.wire.model import JobRef, StartRequest
from penstock.wire.queue import QueuePolicy
from penstock.wire.schedule import ScheduleSpec
from tests.engine.driver import Driver

QUEUE = "crm"
BY_SQL = {"definitionId", "variables", "priority", "flowKey"}
SQL_SHARE = 0.3
"""Of the starts that ask for nothing else."""
WORKER = "w"


def enable_sql(driver: Driver) -> None:
    """As `penstock migrate --may-start` does: games start by SQL, too."""
    driver.rows(
        "INSERT INTO setting (name, value) VALUES ('schema_version_needed', '22')"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING 1"
    )


class Held(NamedTuple):
    """A job that was handed out, with as much of it as a driver asks for."""

    id: str
    attempt: int
    worker_id: str = WORKER


class Taken(NamedTuple):
    """Jobs that one claim took, of so many that were asked for: their instances."""

    job_type: str
    most: int
    instances: list[str]


class Hands:
    """What a game moves by: the operations of two engines, at random."""

    publishes = False
    """Whether jobs of types that never were in a queue go where nothing is seen of them."""

    def __init__(self, engines: Sequence[Driver], source: random.Random) -> None:
        self.engines = engines
        self.source = source
        self.held: dict[str, Held] = {}  # by instance

    @property
    def one(self) -> Driver:
        return self.source.choice(self.engines)

    async def start(self, body: dict[str, Any]) -> str | None:
        """The instance; None: it was throttled. Some start in a transaction of their own."""
        if body.keys() <= BY_SQL and self.source.random() < SQL_SHARE:
            return await self._start_by_sql(body)
        try:
            return (await self.one.engine.instances.start(request_of(body))).id
        except Throttled:
            return None

    async def _start_by_sql(self, body: dict[str, Any]) -> str:
        given = msgspec.json.encode(body["variables"]).decode(), body.get("priority"), body.get("flowKey")
        ((instance,),) = self.one.rows(
            "SELECT penstock_start(%s, %s, priority => %s, flow_key => %s)", body["definitionId"], *given
        )
        assert await self.one.engine.sql_requests.run_once() == 1
        assert self.one.rows("SELECT operation, error, reason FROM sql_request") == []
        return str(instance)

    async def polls(self, job_type: str, most: int, types: Sequence[str]) -> list[Taken]:
        """Take jobs of a type, and whatever is taken with them."""
        return [Taken(job_type, most, await self.poll(job_type, most))]

    async def poll(self, job_type: str, most: int) -> list[str]:
        """The instances whose jobs were taken."""
        jobs = await self.one.poll(job_type, worker=WORKER, n=most)
        self.held |= {job.instance_id: Held(job.id, job.attempt or 1) for job in jobs}
        return [job.instance_id for job in jobs]

    async def hold(self, instance: str) -> None:
        """A worker says that it has the job."""

    async def complete(self, instance: str) -> None:
        await self.one.complete(self.held[instance])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in

    async def fail(self, instance: str) -> None:
        await self.one.fail(self.held[instance])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in

    async def release(self, instance: str) -> None:
        held = self.held[instance]
        await self.one.engine.jobs.release_many([JobRef(job_id=held.id, worker_id=WORKER, attempt=held.attempt)])

    async def beat(self, instance: str) -> None:
        await self.one.heartbeat(self.held[instance])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in

    async def cancel(self, instance: str) -> None:
        await self.one.cancel(instance)

    async def prioritize(self, instance: str, priority: int) -> None:
        await self.one.engine.repair.set_priority(instance, priority)

    async def put_queue(self, body: dict[str, Any]) -> None:
        await self.one.engine.queues.put(QUEUE, msgspec.convert(body, type=QueuePolicy))

    async def delete_queue(self) -> None:
        await self.one.engine.queues.delete(QUEUE)

    async def pause_queue(self, *, paused: bool) -> None:
        await self.one.engine.queues.pause(QUEUE, paused=paused)

    async def create_batch(self, items: list[dict[str, Any]], on_complete: str, key: str) -> str:
        asked = BatchStart([request_of(item) for item in items], on_complete, None, key)
        return (await self.one.engine.batches.create(asked)).id

    async def cancel_batch(self, id: str) -> bool:
        try:
            await self.one.engine.batches.cancel(id, None)
        except Conflict:
            return False
        return True

    async def batch(self, id: str) -> dict[str, Any]:
        return dict(msgspec.to_builtins(await self.one.engine.batches.get(id)))

    async def results(self, id: str) -> list[tuple[str, str | None, str | None]]:
        """State, instance and error of each item."""
        found = await self.one.engine.batches.results(id, None, None, 200)
        return [(one.state, one.instance and one.instance.id, one.error) for one in found.items]

    async def put_schedule(self, id: str, body: dict[str, Any]) -> None:
        await self.one.engine.schedules.put(id, msgspec.convert(body, type=ScheduleSpec))

    async def hold_schedule(self, id: str, *, paused: bool) -> None:
        schedules = self.one.engine.schedules
        await (schedules.pause(id, None) if paused else schedules.resume(id))

    async def trigger(self, id: str) -> tuple[datetime, str]:
        run = await self.one.engine.schedules.trigger(id, None)
        assert run.at is not None
        return run.at, run.outcome

    async def runs(self, id: str) -> list[tuple[datetime, str, str | None]]:
        """The latest, with what became of each, and its instance."""
        found = await self.one.engine.schedules.get(id)
        return [(run.at, run.outcome, run.instance_id) for run in found.runs if run.at is not None]


def request_of(body: dict[str, Any]) -> StartRequest:
    variables = msgspec.json.encode(body["variables"])
    return msgspec.structs.replace(
        msgspec.convert({name: value for name, value in body.items() if name != "variables"}, type=StartRequest),
        variables=variables,
    )
