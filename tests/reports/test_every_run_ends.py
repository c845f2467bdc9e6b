"""Reports of hangs: branches, waits and races end, and their run with them.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself. LOG.md, "Code-first engines", has the reports.
"""

from __future__ import annotations

from penstock.durable import each, first, open_nursery, receive, sleep, workflow
from penstock.testing import run_workflow
from tests.reports.steps import act


def test_a_wait_that_lost_a_race_ends_with_it():
    """Inngest JS 1617, Temporal Python 1351."""

    @workflow
    async def races() -> str:
        won = await first(quick=sleep("3 s"), slow=receive("approval", bool), long=sleep("4 h"))
        async with open_nursery() as nursery:
            nursery.start_soon(sleep, "5 h")
            await sleep("1 s")
            nursery.cancel_scope.cancel()
        return won.name

    run = run_workflow(races)
    assert run.result() == "quick"
    assert run.took.total_seconds() == 4


def test_a_thousand_branches_end():
    """Prefect 8770, Prefect 13874."""

    @workflow
    async def flow() -> int:
        found = await each(act, [f"item {number}" for number in range(1_000)], limit=100)
        return len(found)

    assert run_workflow(flow).result() == 1_000
