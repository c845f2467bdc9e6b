"""`run_workflow` on what a new user writes first: a function without end, an `assert`, a log line."""

from __future__ import annotations

import gc
import logging
import re
from typing import Any

import pytest

from penstock.durable import (
    child,
    continue_as_new,
    first,
    isolation,
    open_nursery,
    receive,
    send,
    sleep,
    start,
    step,
    workflow,
)
from penstock.kernel.drive import RunLimits
from penstock.kernel.errors import Endless
from penstock.testing import StuckWorkflow, run_workflow
from penstock.testing.durable import LIMITS, MAX_RECORDS


@step
async def read() -> dict[str, list[int]]:
    return {"found": [1, 2, 3]}


@workflow
async def asserts() -> None:
    found = await read()
    assert found == {"found": [1, 2, 4]}


@workflow
async def asserts_nothing_wrong() -> int:
    found = await read()
    assert found == {"found": [1, 2, 3]}, "as it was"
    return len(found)


@workflow
async def logs() -> None:
    logging.getLogger("shop").warning("before")
    await read()
    logging.getLogger("shop").warning("after")


@workflow
async def every_day() -> None:
    while True:
        await sleep("1 day")


@workflow
async def every_decades() -> None:
    while True:
        await sleep("10000 days")
        await read()


@workflow
async def goes_on(days: int = 0) -> None:
    await sleep("1 day")
    continue_as_new(days + 1)


@workflow
async def goes_on_at_once(times: int = 0) -> None:
    continue_as_new(times + 1)


@step(retries=1_000_000_000)
def never_works() -> None:
    raise OSError("no")


@workflow
async def tries_for_ever() -> None:
    await never_works()


@workflow
async def reads_for_ever() -> None:
    while True:
        await read()


@workflow
async def sends_for_ever() -> None:
    while True:
        await send("other", "go")


@workflow
async def starts_for_ever() -> None:
    while True:
        await start(asserts)


@workflow
async def has_children_for_ever() -> None:
    while True:
        await child(asserts_nothing_wrong)


@workflow
async def reads_or_waits_for_ever() -> None:
    while True:
        await first(read=read(), never=receive("never", int))


@workflow
async def spawns_for_ever() -> None:
    async with open_nursery() as nursery:

        async def read_and_spawn() -> None:
            await read()
            nursery.start_soon(read_and_spawn)
            nursery.start_soon(read_and_spawn)

        nursery.start_soon(read_and_spawn)


@workflow
async def is_its_own_child(depth: int = 0) -> None:
    await child(is_its_own_child, depth + 1)


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


OF_RECORDS = [goes_on_at_once, reads_for_ever, sends_for_ever, starts_for_ever, has_children_for_ever,
    reads_or_waits_for_ever, spawns_for_ever]  # fmt: skip


@pytest.mark.parametrize("endless", OF_RECORDS, ids=lambda each: each.name)
def test_what_does_the_same_again_and_again_is_stopped_after_so_many_records(endless: Any) -> None:
    assert endless in OF_RECORDS
    with pytest.raises(
        StuckWorkflow,
        match=r"^300 records, or attempts at steps, and no end: .*one that needs more gives",
    ):
        run_workflow(endless, max_records=300)


def test_records_that_are_taken_for_no_end_are_seconds_of_work() -> None:
    assert MAX_RECORDS == 20_000
    with pytest.raises(ValueError, match="max_records is 0: give an integer of 1 or more"):
        run_workflow(reads_for_ever, max_records=0)


def test_an_error_names_some_of_the_branches_that_wait() -> None:
    with pytest.raises(StuckWorkflow) as caught:
        run_workflow(spawns_for_ever, max_records=50)
    assert str(caught.value).count("new_user.py:") == 10
    assert re.search(r"new_user\.py:\d+, \d+ more$", str(caught.value))


def test_a_step_that_is_tried_for_ever_is_stopped_with_a_hint() -> None:
    with pytest.raises(StuckWorkflow, match=r"^300 records, or attempts at steps, and no end"):
        run_workflow(tries_for_ever, max_records=300)


def test_a_workflow_that_is_its_own_child_is_stopped_with_a_hint() -> None:
    with pytest.raises(StuckWorkflow, match=r"^30 children, each called by the one before, and no end: is_its"):
        run_workflow(is_its_own_child)


def test_a_loop_without_an_await_is_stopped_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow
    async def computes() -> None:
        while True:
            pass

    monkeypatch.setattr(isolation, "END_AFTER_S", 0.3)
    with pytest.raises(Endless, match=r"new_user.py:\d+ ran for more than 0.3 s without an await.*without an end\?"):
        run_workflow(computes)


def test_a_branch_whose_start_fills_the_stack_is_told_of_nothing_else(recwarn: pytest.WarningsRecorder) -> None:
    @workflow
    async def deeper() -> None:
        await read()
        await deeper()

    with pytest.raises(RecursionError):
        run_workflow(deeper).result()
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


def test_thousands_that_are_cancelled_before_they_began_are_withdrawn_at_once() -> None:
    @workflow
    async def spawns() -> None:
        async with open_nursery() as nursery:
            for _ in range(3_000):
                nursery.start_soon(read)
            await sleep(0)
            nursery.cancel_scope.cancel()

    run = run_workflow(spawns)
    assert (run.error, run.calls, run.journal) == (None, [], [])


def test_a_loop_that_never_waits_is_stopped_with_a_hint():
    @workflow
    async def spins() -> None:
        while True:
            await sleep(0)

    with pytest.raises(Endless, match=r"more than 2,000 times.*a workflow function without an end"):
        run_workflow(spins, limits=RunLimits(max_resumes=2_000))
    assert LIMITS.max_resumes < RunLimits().max_resumes


def test_a_result_without_a_text_of_its_own_is_the_same_at_replay() -> None:
    @workflow
    async def fails() -> None:
        raise ValueError(object())

    assert str(run_workflow(fails).error).startswith("<object object at 0x")
