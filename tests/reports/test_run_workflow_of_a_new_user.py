"""`run_workflow` on what a new user writes first: a function without end, an `assert`, a log line."""

from __future__ import annotations

import logging

import pytest

from penstock.durable import continue_as_new, sleep, step, workflow
from penstock.kernel.drive import RunLimits
from penstock.kernel.errors import Endless
from penstock.testing import StuckWorkflow, run_workflow
from penstock.testing.durable import LIMITS


@step
async def look() -> dict[str, list[int]]:
    return {"found": [1, 2, 3]}


@workflow
async def asserts() -> None:
    found = await look()
    assert found == {"found": [1, 2, 4]}


@workflow
async def asserts_nothing_wrong() -> int:
    found = await look()
    assert found == {"found": [1, 2, 3]}, "as it was"
    return len(found)


@workflow
async def logs() -> None:
    logging.getLogger("shop").warning("before")
    await look()
    logging.getLogger("shop").warning("after")


@workflow
async def every_day() -> None:
    while True:
        await sleep("1 day")


@workflow
async def every_decades() -> None:
    while True:
        await sleep("10000 days")
        await look()


@workflow
async def goes_on(days: int = 0) -> None:
    await sleep("1 day")
    continue_as_new(days + 1)


def test_an_assert_that_fails_is_explained() -> None:
    with pytest.raises(AssertionError, match=r"'found': \[1, 2, 3\].*"):
        run_workflow(asserts).result()
    assert run_workflow(asserts_nothing_wrong).result() == 1


def test_a_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    run_workflow(logs)
    assert [record.message for record in caplog.records if record.name == "shop"] == ["before", "after"]


@pytest.mark.parametrize("endless", [every_day, every_decades, goes_on], ids=lambda each: each.name)
def test_a_function_without_end_is_stopped_with_a_hint(endless: object) -> None:
    assert endless in (every_day, every_decades, goes_on)
    with pytest.raises(StuckWorkflow, match=r"without an end\? `cancel_after=`.*waiting: .*new_user.py:\d+"):
        run_workflow(endless)  # type: ignore[arg-type]  # one of three with other parameters  # pyright: ignore[reportCallIssue, reportArgumentType] - one of several workflows


def test_a_loop_that_never_waits_is_stopped_with_a_hint():
    @workflow
    async def spins() -> None:
        while True:
            await sleep(0)

    with pytest.raises(Endless, match=r"more than 2,000 times.*a workflow function without an end"):
        run_workflow(spins, limits=RunLimits(max_resumes=2_000))
    assert LIMITS.max_resumes < RunLimits().max_resumes
