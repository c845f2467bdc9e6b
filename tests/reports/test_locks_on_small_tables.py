"""39.6: a lock that somebody holds on a small table stops what needs that table, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
import pytest
import trio

from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.shapes import call, choose, gateway, joining, task, wait

__all__ = ["make_driver"]

Need = Callable[[Driver, Job], Awaitable[object]]
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
NEEDING: Final = definition(
    task("needing", "which", retryCount=3, retryBackoff={"initial": "PT1H"}),
    choose("which", {"to == 'call'": "calls", "to == 'wait'": "waits", "to == 'end'": "end"}),
    call("calls", "graph"),
    wait("waits"),
    end(),
    definition_id="needing",
)


async def starts(driver: Driver, job: Job) -> None:
    await driver.start("graph")


async def uploads(driver: Driver, job: Job) -> None:
    await driver.upload(linear(1, definition_id="new", job_type="never-seen"))


def goes(to: str) -> Need:
    async def complete(driver: Driver, job: Job) -> None:
        await driver.complete(job, {"to": to})

    return complete


async def fails(driver: Driver, job: Job) -> None:
    await driver.fail(job, retryable=False)


async def fails_for_an_hour(driver: Driver, job: Job) -> None:
    await driver.fail(job)


async def notes(driver: Driver, job: Job) -> None:
    await driver.heartbeat(job, checkpoint=b'{"at": 1}')


NEEDS: Final[dict[str, Need | None]] = {
    "abnormal_end": fails,
    "buffered_signal": goes("wait"),
    "called": goes("call"),
    "definition": starts,
    "instance_key": goes("end"),
    "job_note": notes,
    "job_type": uploads,
    "ready_flow": None,
    "scheduled": None,
    "timer": fails_for_an_hour,
}


@pytest.mark.parametrize("table", NEEDS)
async def test_only_what_needs_a_locked_table_waits(make_driver: MakeDriver, database_dsn: str, table: str) -> None:
    """Instances of both paths go by while it is held, in one batch with what needs it; that goes on afterwards."""
    driver = make_driver(services=True, outage_wait_seconds=60)
    for each in (GRAPH, NEEDING, linear(2, definition_id="line", job_type="line")):
        await driver.upload(each)
    for name in ("graph", "line"):
        await driver.start(name)  # what an engine that has run for a while knows
        await driver.complete(await driver.one(name), {"x": 2})
    await driver.complete(await driver.one("line"))
    needing = await driver.start("needing", instance_key="its own")
    job = await driver.one("needing")
    before = [await driver.start(name) for name in ("graph", "line")]
    done: list[str] = []

    async def need() -> None:
        if (call := NEEDS[table]) is not None:
            await call(driver, job)
            done.append(table)

    with psycopg.connect(database_dsn) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(need)
            with trio.fail_after(30):
                ended = [instance.id for instance in before]
                for name in ("graph", "line"):
                    await run(driver, name)
                    if table != "definition":
                        ended.append((await driver.start(name)).id)
                        await run(driver, name)
            rows = driver.rows("SELECT status FROM instance WHERE to_hex(id) = ANY(%s)", ended)
            assert rows == [(1,)] * len(ended)
            assert done == []
            other.rollback()
    assert done == ([] if NEEDS[table] is None else [table])
    after = {"abnormal_end": "FAILED", "instance_key": "COMPLETED", "buffered_signal": "WAITING"}.get(table, "ACTIVE")
    assert await driver.status(needing.id) == after
    await driver.start("line")
    await run(driver, "line")
    assert driver.rows("SELECT token_id FROM job_note") == ([(int(needing.id, 16),)] if table == "job_note" else [])


async def run(driver: Driver, name: str) -> None:
    """All jobs of one instance of this definition; those of a fork at once."""
    await driver.complete(await driver.one(name), {"x": 1})
    if name == "line":
        await driver.complete(await driver.one(name))
        return
    jobs = [await driver.one(name), await driver.one(name)]
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(driver.complete, job)
