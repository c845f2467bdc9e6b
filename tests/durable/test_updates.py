"""`@update`: calls into a run that are checked, recorded and answered; in memory, where each run is replayed, too."""

from __future__ import annotations

import pytest

from penstock.durable import (
    Cancelled,
    NotInWorkflow,
    UpdateFailed,
    UpdateRefused,
    continue_as_new,
    move_on_after,
    receive,
    sleep,
    step,
    update,
    workflow,
)
from penstock.kernel.record import JournalKind
from penstock.testing import Ask, Message, run_workflow


@step
async def book(value: int) -> int:
    return value * 10


@workflow
async def account(limit: int = 10) -> int:
    @update
    async def set_limit(value: int) -> int:
        nonlocal limit
        limit, before = value, limit
        return before

    @set_limit.validator
    def check(value: int) -> None:
        if value < limit:
            raise ValueError(f"{value} is less than {limit}")

    @update
    async def slow(value: int) -> int:
        await sleep("1h")
        return await book(value)

    @update
    def broken() -> None:
        raise LookupError("no such thing")

    await receive("end", bool)
    return limit


def kinds(run) -> list[JournalKind]:
    return [record.kind for record in run.journal]


def test_a_call_runs_its_handler_and_gets_what_it_returned():
    run = run_workflow(account, 10, messages=[Ask("set_limit", [15], after=1), Message("end", True, after=5)])
    assert run.result() == 15
    assert run.answers == {"set_limit": 10}
    assert kinds(run) == [JournalKind.ASKED, JournalKind.ACCEPTED, JournalKind.ANSWERED, JournalKind.MESSAGE]


def test_arguments_go_by_name_too():
    run = run_workflow(account, messages=[Ask("set_limit", {"value": 11}, after=1), Message("end", True, after=5)])
    assert run.answers == {"set_limit": 10}


def test_a_validator_refuses_and_leaves_no_record():
    run = run_workflow(account, messages=[Ask("set_limit", [5], after=1, id="low"), Message("end", True, after=5)])
    assert run.result() == 10
    refused = run.answers["low"]
    assert isinstance(refused, UpdateRefused)
    assert (refused.name, refused.reason) == ("set_limit", "5 is less than 10")
    assert kinds(run) == [JournalKind.MESSAGE]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["many"], "arguments: value: Expected `int`, got `str`. It takes set_limit(value: 'int')"),
        ([], "arguments: missing a required argument: 'value'. It takes set_limit(value: 'int')"),
        ([1, 2], "arguments: 2 are given. It takes set_limit(value: 'int')"),
        ({"x": 1}, "arguments: x: it has no such parameter. It takes set_limit(value: 'int')"),
        ("text", "arguments: Expected `object | array`, got `str`. It takes set_limit(value: 'int')"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, reason):
    run = run_workflow(account, messages=[Ask("set_limit", arguments, after=1), Message("end", True, after=5)])
    assert run.answers["set_limit"].reason == reason
    assert kinds(run) == [JournalKind.MESSAGE]


def test_a_handlers_error_goes_to_the_caller_and_the_run_goes_on():
    run = run_workflow(account, messages=[Ask("broken", after=1), Message("end", True, after=5)])
    assert run.result() == 10
    failed = run.answers["broken"]
    assert isinstance(failed, UpdateFailed)
    assert failed.type_name == "LookupError"
    assert "no such thing" in failed.message


def test_the_run_ends_when_calls_that_have_begun_have_ended():
    run = run_workflow(account, messages=[Ask("slow", [2], after=1), Message("end", True, after=5)])
    assert run.result() == 10
    assert run.answers == {"slow": 20}
    assert run.took.total_seconds() == 3601


def test_a_call_that_comes_after_the_function_has_returned_is_not_begun():
    calls = [Ask("slow", [2], after=1), Message("end", True, after=5), Ask("set_limit", [20], after=6)]
    run = run_workflow(account, messages=calls)
    assert run.result() == 10
    assert run.answers == {"slow": 20, "set_limit": None}


def test_calls_are_cancelled_with_the_run():
    run = run_workflow(account, messages=[Ask("slow", [2], after=1)], cancel_after=5)
    assert isinstance(run.error, Cancelled)
    assert run.answers["slow"].type_name == "Cancelled"


def test_calls_are_cancelled_where_the_function_fails():
    @workflow
    async def fails() -> None:
        @update
        async def slow() -> None:
            await sleep("1h")

        await sleep(5)
        raise LookupError("over")

    run = run_workflow(fails, messages=[Ask("slow", after=1)])
    assert isinstance(run.error, LookupError)
    assert run.took.total_seconds() == 5
    assert run.answers["slow"].type_name == "Cancelled"


def test_a_call_before_its_handler_is_kept_for_it():
    @workflow
    async def late() -> int:
        seen = 0
        await sleep(10)

        @update
        def add(value: int) -> int:
            nonlocal seen
            seen += value
            return seen

        with move_on_after(10):
            await receive("never", int)
        return seen

    run = run_workflow(late, messages=[Ask("add", [1], after=1, id="a"), Ask("add", [2], after=2, id="b")])
    assert run.result() == 3
    assert run.answers == {"a": 1, "b": 3}


def test_what_came_after_the_check_is_checked_again():
    """Both calls are checked at one moment; when the first has run, the second does not fit any more."""
    calls = [Ask("take", [7], id="a"), Ask("take", [7], id="b")]

    @workflow
    async def stock() -> int:
        left = 10
        await sleep(1)

        @update
        def take(count: int) -> int:
            nonlocal left
            left -= count
            return left

        @take.validator
        def enough(count: int) -> None:
            if count > left:
                raise ValueError(f"{left} are left")

        await sleep(1)
        return left

    run = run_workflow(stock, messages=calls)
    assert run.result() == 3
    assert run.answers["a"] == 3
    assert run.answers["b"].reason == "3 are left"


def test_a_run_that_continues_keeps_calls_that_have_not_begun():
    @workflow
    async def rounds(number: int = 0) -> int:
        if number == 1:

            @update
            def late() -> int:
                return number

        @update
        async def early() -> int:
            await sleep(10)
            return number

        await sleep(5)
        if number == 0:
            continue_as_new(1)
        return number

    run = run_workflow(rounds, messages=[Ask("late", after=1), Ask("early", after=2)])
    assert run.result() == 1
    assert run.answers == {"late": 1, "early": 0}
    assert [record.kind for record in run.journal[:2]] == [JournalKind.BEGUN, JournalKind.ASKED]


def test_handlers_use_nurseries_and_steps_of_their_own():
    @workflow
    async def body() -> list[int]:
        seen: list[int] = []

        @update
        async def add(value: int) -> int:
            seen.append(await book(value))
            return len(seen)

        await sleep(10)
        return seen

    run = run_workflow(body, messages=[Ask("add", [1], after=1, id="a"), Ask("add", [2], after=1, id="b")])
    assert run.result() == [10, 20]
    assert run.answers == {"a": 1, "b": 2}
    assert [record.path for record in run.journal if record.kind is JournalKind.DONE] == [
        "~updates.[add 1]/0",
        "~updates.[add 2]/0",
    ]


def test_a_second_handler_of_a_name_is_refused():
    @workflow
    async def twice() -> None:
        for _ in range(2):

            @update
            def same() -> None: ...

    with pytest.raises(ValueError, match="the run has an update 'same' already"):
        run_workflow(twice).result()


def test_an_update_is_made_in_a_workflow_function():
    with pytest.raises(NotInWorkflow, match="belongs into the body"):

        @update
        def outside() -> None: ...


def test_a_validator_is_no_async_def():
    @workflow
    async def wrong() -> None:
        @update
        def one() -> None: ...

        @one.validator
        async def check() -> None: ...

    with pytest.raises(TypeError, match="the validator of update 'one'"):
        run_workflow(wrong).result()
