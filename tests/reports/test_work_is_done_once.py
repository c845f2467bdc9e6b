"""Reports of doubled work: a step with a record is not executed again, and starts with one id are one run.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself. LOG.md, "Code-first engines", has the reports.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import psycopg
import pytest
import trio

from penstock.client import Client
from penstock.durable import App, TooSlow, first, step, workflow
from penstock.testing import Takes, explore, run_workflow
from penstock.testing.invariants import assert_invariants
from penstock.wire.queue import QueuePolicy
from tests.durable.programs import Program, until
from tests.postgres import REPOSITORY
from tests.reports.handover import QUEUE, free, queued
from tests.reports.steps import act, done, flaky

RUNS, QUEUED = 12, 3
LOSSES = 4
BOUND_S = 100.0
SETS_UP = "SELECT count(*) FROM journal WHERE kind = 1 AND name = 'act'"
END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


def ask(dsn: str, sql: str) -> list[tuple[int, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


@pytest.fixture
async def client(database_dsn: str) -> AsyncGenerator[App]:
    async with App(at=database_dsn, rest_port=0) as app:
        assert app.rest_url is not None
        async with Client(app.rest_url) as http:
            await http.put_queue(QUEUE, QueuePolicy([], runs=1))
        yield app


def test_steps_of_a_race_are_executed_once():
    """Inngest 4897."""

    @workflow
    async def races() -> list[str]:
        won = await first(a=act("a"), b=act("b"))
        return [won.name, await act("after")]

    done.clear()
    assert run_workflow(races, steps={}).result()[1] == "after"
    assert done["after"] == 1
    assert max(done.values()) == 1
    explore(races)


def test_completed_steps_are_not_done_again_beside_retries():
    """Prefect 15750, DBOS Transact Python 260."""

    @workflow
    async def flow() -> list[str]:
        return [await act("one"), await flaky("two"), await act("three")]

    done.clear()
    run = run_workflow(flow)
    assert run.result() == ["one", "two", "three"]
    assert done == {"one": 1, "three": 1}
    assert [call.attempt for call in run.calls if call.step == "flaky"] == [1, 2, 3]
    explore(flow)


def test_a_late_attempt_does_not_run_beside_its_retry():
    """Hatchet 1022."""
    running: list[int] = []

    @step(timeout="5 s", retries=1)
    async def slow() -> str:
        return "slow"

    @workflow
    async def flow() -> str:
        try:
            return await slow()
        except TooSlow as error:
            return type(error).__name__

    def ends() -> str:
        running.append(1)
        return "ended"

    run = run_workflow(flow, steps={slow: Takes("6 s", ends)})
    assert run.result() == "TooSlow"
    assert running == []
    assert [call.attempt for call in run.calls] == [1, 2]


@workflow
async def order(number: int) -> int:
    await act(f"order {number}")
    return number


async def test_two_starts_of_one_id_are_one_run(database_dsn: str):
    """Prefect 8880."""
    done.clear()
    found: list[str] = []
    async with App(order, at=database_dsn) as app:

        async def start() -> None:
            run = await app.start(order, 8, id="order-8")
            await run.result()
            found.append(run.instance_id)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(start)
    assert len(set(found)) == 1
    assert done["order 8"] == 1


async def test_an_empty_id_is_refused(database_dsn: str):
    """DBOS Transact Python 759."""
    async with App(order, at=database_dsn) as app:
        with pytest.raises(ValueError, match="id is empty"):
            await app.start(order, 9, id="")
        assert await app.find(order) == []


@pytest.mark.slow(reason="kills a program, and ends sessions of two others")
async def test_runs_of_a_dead_program_go_on_in_two_others(client: App, database_dsn: str, tmp_path: Path):
    """DBOS Transact Python 716, 742 and 805: two others take them over at once while their sessions end. No run stays
    behind, no step is executed again, and a queue for one run at a time goes on.
    """
    done.clear()
    program = Program(tmp_path, f"from tests.reports.handover import main\nmain({database_dsn!r})\n")
    program.environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}:{REPOSITORY}"
    runs = [await client.start(free, number) for number in range(RUNS)]
    runs += [await client.start(queued, number) for number in range(RUNS, RUNS + QUEUED)]
    dying = program.start()
    try:
        await trio.to_thread.run_sync(until, lambda: ask(database_dsn, SETS_UP) == [(2 * (RUNS + 1),)], dying)
    finally:
        dying.kill()
        dying.communicate()
    for run in runs:
        await run.send("go", 1)
    with trio.fail_after(BOUND_S):
        async with App(free, queued, at=database_dsn), App(free, queued, at=database_dsn):
            for run in runs[:LOSSES]:
                ask(database_dsn, END_SESSIONS)
                await run.result()
            found = [await run.result() for run in runs]
    assert found == [f"ingested {number}" for number in range(RUNS + QUEUED)]
    again = {f"{what} {number}" for what in ("observed", "set up") for number in range(RUNS + 1)} & set(done)
    assert again == set(), "what had a record is not executed again"
    assert set(done.values()) == {1}
    assert_invariants(database_dsn)
