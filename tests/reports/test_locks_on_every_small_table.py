"""39.6: while somebody holds one small table, each operation goes on that does not need it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
import trio

from penstock.engine.queues.journal_items import ClaimedRun
from penstock.engine.requests import ids
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import Job, JobRef, Park
from tests.engine import runs
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.shapes import choose, gateway, joining, user, wait

__all__ = ["make_driver"]

LINE: Final = linear(2, definition_id="line", job_type="line")
GRAPH: Final = definition(
    service("a", "which", job_type="graph"),
    choose("which", {"x == 1": "fork", "x != 1": "end"}),
    gateway("fork", "b", "c"),
    service("b", "join", job_type="graph"),
    service("c", "join", job_type="graph"),
    joining(),
    end(),
    definition_id="graph",
)
TRIED: Final = definition(service("t", "end", job_type="tried", retryCount=3), end(), definition_id="tried")

WAITS: Final = definition(wait("w", message={"name": "paid", "correlationKey": "${k}"}), end(), definition_id="waits")
SIGNALLED: Final = definition(wait("w", "s"), service("s", "end", job_type="s"), end(), definition_id="signalled")
ASKED: Final = definition(user("u", "s"), service("s", "end", job_type="s"), end(), definition_id="asked")


class Work:
    """What was begun before the table was locked, for one operation each."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.jobs: dict[str, Job] = {}
        self.runs: dict[str, ClaimedRun] = {}
        self.instances: dict[str, str] = {}

    async def begin(self) -> None:
        for each in (LINE, GRAPH, TRIED, WAITS, SIGNALLED, ASKED):
            await self.driver.upload(each)
        await self.warm_up()
        for name, kind in JOBS.items():
            await self.driver.start(kind)
            self.jobs[name] = await self.driver.one(kind)
        self.jobs["complete the last step"] = await self._second_of_line()
        await self.driver.heartbeat(self.jobs["complete the last step"], checkpoint=b"1")
        for name in ("waits", "signalled", "asked"):
            self.instances[name] = (await self.driver.start(name, {"k": name})).id
        self.instances["awaited"] = self.jobs["awaited"].instance_id
        await parks(self.driver, self.jobs["awaited"], signal="paid")
        for name in (
            "append to a run",
            "extend a run",
            "end a run",
            "send to a run",
            "park a run",
            "give a run back",
            "let a run expire",
        ):
            self.runs[name] = await runs.begin(self.driver)
        await self.driver.engine.journal.extend(self.runs["end a run"].run_lease, branches=b"[]")

    async def warm_up(self) -> None:
        """What an engine that has run for a while knows."""
        driver = self.driver
        await driver.start("graph")
        await driver.complete(await driver.one("graph"), {"x": 2})
        await driver.start("tried")
        await driver.fail(await driver.one("tried"))
        await driver.complete(await driver.one("tried"))
        await driver.start("line")
        await driver.complete(await driver.one("line"))
        await driver.complete(await driver.one("line"))
        taken = await runs.begin(driver)
        await runs.append(driver, taken.run_lease, runs.done("/0"))
        await runs.finish(driver, taken.run_lease)
        await driver.publish("paid", "nobody")
        waits = await driver.start("waits", {"k": "warm"})
        await driver.publish("paid", "warm")
        assert await driver.status(waits.id) == "COMPLETED"
        signalled = await driver.start("signalled")
        await driver.signal(signalled.id, "w")
        await driver.finish_task((await driver.start("asked")).id, "u")
        for _ in range(2):
            await driver.complete(await driver.one("s"))
        await driver.start("line")
        await parks(driver, await driver.one("line"), until=driver.clock.now() + timedelta(milliseconds=20))
        await released(driver, await driver.one("line", wait=60))
        await driver.complete(await driver.one("line"))
        await driver.complete(await driver.one("line"))

    async def _second_of_line(self) -> Job:
        await self.driver.start("line")
        await self.driver.complete(await self.driver.one("line"))
        return await self.driver.one("line")


JOBS: Final = {
    "complete a step": "line",
    "complete before a fork": "graph",
    "complete before an end": "graph",
    "fail": "tried",
    "heartbeat": "line",
    "heartbeat with a checkpoint": "line",
    "heartbeat with progress": "line",
    "release": "line",
    "park until a time": "line",
    "park for a signal": "line",
    "let expire": "line",
    "timed": "line",
    "awaited": "line",
}


async def polls(work: Work) -> None:
    await work.driver.start("line")
    await work.driver.one("line")


async def parks(driver: Driver, job: Job, **wanted: Any) -> None:
    await driver.engine.jobs.park(Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", **wanted))


async def released(driver: Driver, job: Job) -> None:
    ref = JobRef(job_id=job.id, worker_id=job.worker_id or "", attempt=job.attempt)
    (outcome,) = await driver.engine.jobs.release_many([ref])
    assert outcome.outcome == "ok", outcome


async def expires(driver: Driver, token: int, seq: int) -> None:
    """The lease service may do it first."""
    driver.rows("UPDATE token SET lease_until = now() - interval '1 s' WHERE id = %s RETURNING 1", token)
    await driver.engine.leases.expire([(token, seq, 1)])
    assert driver.rows("SELECT 1 FROM history WHERE token_id = %s AND kind = 11 /* ATTEMPT_EXPIRED */", token)


async def expires_of_a_job(work: Work) -> None:
    job = ids.read_job(work.jobs["let expire"].id)
    await expires(work.driver, job.token, job.seq)


async def expires_of_a_run(work: Work) -> None:
    held = work.runs["let a run expire"].run_lease
    await expires(work.driver, held.instance, held.seq)


async def takes(work: Work) -> None:
    await runs.start(work.driver)
    assert await runs.take(work.driver)


OPERATIONS: Final[dict[str, Callable[[Work], Awaitable[Any]]]] = {
    "heartbeat": lambda work: work.driver.heartbeat(work.jobs["heartbeat"]),
    "heartbeat with a checkpoint": lambda work: work.driver.heartbeat(
        work.jobs["heartbeat with a checkpoint"], checkpoint=b"1"
    ),
    "heartbeat with progress": lambda work: work.driver.heartbeat(work.jobs["heartbeat with progress"], progress=b"1"),
    "start": lambda work: work.driver.start("line"),
    "start and poll": polls,
    "complete a step": lambda work: work.driver.complete(work.jobs["complete a step"]),
    "complete the last step": lambda work: work.driver.complete(work.jobs["complete the last step"]),
    "complete before a fork": lambda work: work.driver.complete(work.jobs["complete before a fork"], {"x": 1}),
    "complete before an end": lambda work: work.driver.complete(work.jobs["complete before an end"], {"x": 2}),
    "fail": lambda work: work.driver.fail(work.jobs["fail"]),
    "append to a run": lambda work: runs.append(work.driver, work.runs["append to a run"].run_lease, runs.done("/0")),
    "extend a run": lambda work: work.driver.engine.journal.extend(work.runs["extend a run"].run_lease),
    "start and take a run": takes,
    "release": lambda work: released(work.driver, work.jobs["release"]),
    "park until a time": lambda work: parks(
        work.driver, work.jobs["park until a time"], until=work.driver.clock.now() + timedelta(hours=1)
    ),
    "park for a signal": lambda work: parks(work.driver, work.jobs["park for a signal"], signal="paid"),
    "let expire": expires_of_a_job,
    "let a run expire": expires_of_a_run,
    "publish a message nobody waits for": lambda work: work.driver.publish("paid", "nobody else"),
    "publish a message somebody waits for": lambda work: work.driver.publish("paid", "waits"),
    "signal a wait": lambda work: work.driver.signal(work.instances["signalled"], "w"),
    "complete a task": lambda work: work.driver.finish_task(work.instances["asked"], "u"),
    "wake a job by signal": lambda work: work.driver.signal(work.instances["awaited"], "paid"),
    "send to a run": lambda work: work.driver.engine.runs.send(
        ids.show_instance(work.runs["send to a run"].run_lease.instance), "m", b"1"
    ),
    "park a run": lambda work: work.driver.engine.journal.park(work.runs["park a run"].run_lease, mail=0, due_at=None),
    "give a run back": lambda work: work.driver.engine.journal.release(work.runs["give a run back"].run_lease),
    "end a run": lambda work: runs.finish(work.driver, work.runs["end a run"].run_lease),
}
STARTS: Final = {"start", "start and poll", "start and take a run"}
NOTES: Final = {"heartbeat with a checkpoint", "heartbeat with progress"}
PARKS: Final = {"park until a time", "park for a signal"}
PUBLISHES: Final = {"publish a message nobody waits for", "publish a message somebody waits for"}
NEEDED: Final[dict[str, set[str]]] = {
    "active_version": STARTS,  # which version they use
    "attempt_note": {"heartbeat with progress"},
    "audit": {"signal a wait", "wake a job by signal", "complete a task", "send to a run"},  # who did it
    "buffered_signal": {"signal a wait"},  # behind those that came before
    "definition": {*STARTS, "send to a run"},  # whether it is a durable run
    "idempotency": PUBLISHES,  # by which a commit is known whose answer was lost
    "job_note": {"heartbeat with a checkpoint", "heartbeat with progress", "park a run", "send to a run",
                 "start and take a run"},  # what a run says that it waits for
    "job_type": {"send to a run", "park a run"},
    "message": PUBLISHES,
    "open_task": {"complete a task"},
    "parked": {*PARKS, "park a run", "wake a job by signal", "signal a wait", "complete a task", "send to a run"},
    "ready_flow": {"send to a run"},
    "signal_id": {"send to a run"},  # whether it came before
    "slot": {"park a run"},
    "subscription": PUBLISHES,
    "timer": {"park until a time", "park a run", "wake a job by signal", "signal a wait", "send to a run", *PUBLISHES},
}  # fmt: skip
LOCKED_S: Final = 30
"""Half of what an operation waits for a lock."""
TABLES: Final = (
    "abnormal_end", "active_version", "attempt_note", "audit", "batch", "blocked_run", "buffered_signal", "called",
    "compensation", "definition", "idempotency", "instance_key", "instance_version", "item_output", "item_vars",
    "job_note", "job_type", "map_state", "message", "open_task", "parked", "queue", "ready_flow", "recorded_output",
    "schedule", "scheduled", "search_attribute", "setting", "signal_id", "slot", "start_window", "subscription",
    "timer", "trace_context", "undoing", "variables_edit",
)  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
async def test_what_does_not_need_a_locked_table_goes_on(
    make_driver: MakeDriver, database_dsn: str, table: str
) -> None:
    driver = make_driver(services=True, outage_wait_seconds=60)
    work = Work(driver)
    await work.begin()
    waited: list[str] = []
    needing = NEEDED.get(table, set[str]())

    async def go(name: str) -> None:
        with trio.move_on_after(LOCKED_S) as scope:
            try:
                await OPERATIONS[name](work)
            except psycopg.errors.LockNotAvailable:
                waited.append(name)
        if scope.cancelled_caught:
            waited.append(name)

    with psycopg.connect(database_dsn) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        async with trio.open_nursery() as nursery:
            for name in OPERATIONS.keys() - needing:
                nursery.start_soon(go, name)
        other.rollback()
    assert waited == [], waited
    while await runs.take(driver, wait_s=0):
        pass  # those that were given back
    await work.warm_up()  # what was left to later is done with it: the fixture looks at the rows
    assert len(driver.rows("SELECT FROM job_note")) == 2 - len(needing & NOTES)
