"""39.6: while somebody holds one small table, each operation goes on that does not need it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg
import pytest
import trio

from penstock.engine.queues.journal_items import ClaimedRun
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import Job
from tests.engine import runs
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.shapes import choose, gateway, joining

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


class Work:
    """What was begun before the table was locked, for one operation each."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.jobs: dict[str, Job] = {}
        self.runs: dict[str, ClaimedRun] = {}

    async def begin(self) -> None:
        for each in (LINE, GRAPH, TRIED):
            await self.driver.upload(each)
        await self.warm_up()
        for name, kind in JOBS.items():
            await self.driver.start(kind)
            self.jobs[name] = await self.driver.one(kind)
        self.jobs["complete the last step"] = await self._second_of_line()
        await self.driver.heartbeat(self.jobs["complete the last step"], checkpoint=b"1")
        for name in ("append to a run", "extend a run", "end a run"):
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
}


async def polls(work: Work) -> None:
    await work.driver.start("line")
    await work.driver.one("line")


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
    "end a run": lambda work: runs.finish(work.driver, work.runs["end a run"].run_lease),
}
STARTS: Final = {"start", "start and poll", "start and take a run"}
NEEDED: Final[dict[str, set[str]]] = {
    "definition": STARTS,
    "active_version": STARTS,  # which version they use
    "job_note": {"heartbeat with a checkpoint", "heartbeat with progress"},
    "attempt_note": {"heartbeat with progress"},
}
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
    with psycopg.connect(database_dsn) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        for name, operation in OPERATIONS.items():
            if name in needing:
                continue
            with trio.move_on_after(4) as scope:
                await operation(work)
            if scope.cancelled_caught:
                waited.append(name)
        other.rollback()
    assert waited == [], waited
    await work.warm_up()  # what was left to later is done with it: the fixture looks at the rows
    assert len(driver.rows("SELECT FROM job_note")) == 2 - len(needing - STARTS)
