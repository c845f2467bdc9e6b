"""Reports of doubled work: a step with a record is not executed again, and starts with one id are one run.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself. LOG.md, "Code-first engines", has the reports.
"""

from __future__ import annotations

import trio

from penstock.durable import App, TooSlow, first, step, workflow
from penstock.testing import Takes, explore, run_workflow
from tests.reports.steps import act, done, flaky


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
