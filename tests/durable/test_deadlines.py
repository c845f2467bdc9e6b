"""The deadline of a whole run: a scope around its body, given with its start."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.durable import (
    BadDuration,
    TooSlow,
    move_on_after,
    receive,
    run_info,
    sleep,
    step,
    workflow,
)
from penstock.durable.activation import Activation
from penstock.durable.workflow import DEADLINE
from penstock.kernel.errors import Undecodable
from penstock.testing import run_workflow
from penstock.testing.durable import STARTED_AT
from tests.durable.memory import BASE, Database, kinds
from tests.durable.test_executor import executing


@step
async def undo() -> None: ...


@workflow
async def waits(what: str) -> str:
    try:
        return await receive(what, str)
    except BaseException:
        with move_on_after("1 h", shield=True):
            await undo()
        raise


def test_a_run_over_its_deadline_cleans_up_and_fails():
    run = run_workflow(waits, "news", deadline="3 days")
    assert isinstance(run.error, TooSlow)
    assert str(run.error) == "the deadline of the run is over"
    assert run.took == timedelta(days=3)
    assert [call.step for call in run.calls] == ["undo"]


def test_a_run_that_ends_in_time_notices_nothing():
    @workflow
    async def quick() -> bool:
        await sleep("1 h")
        return run_info().deadline == STARTED_AT + timedelta(hours=2)

    assert run_workflow(quick, deadline="2 h").result()
    assert not run_workflow(quick).result()


def test_a_deadline_that_is_over_at_once_begins_nothing():
    @workflow
    async def body() -> None:
        await undo()

    run = run_workflow(body, deadline=0)
    assert isinstance(run.error, TooSlow)
    assert run.calls == []
    assert run.journal == []


def test_a_cancel_before_the_deadline_is_a_cancel():
    @workflow
    async def body() -> None:
        try:
            await sleep("2 h")
        except BaseException:
            with move_on_after("1 day", shield=True):
                await sleep("5 h")
            raise

    run = run_workflow(body, deadline="3 h", cancel_after="1 h")
    assert type(run.error).__name__ == "Cancelled"
    assert run.took == timedelta(hours=6)


def test_a_deadline_that_is_none_is_refused():
    with pytest.raises(BadDuration, match="soon"):
        waits.encode_arguments(("x",), {}, deadline="soon")
    wrong = waits.encode_arguments(("x",), {}).replace("{", f'{{"{DEADLINE}":"soon",', 1)
    with pytest.raises(Undecodable, match=r"waits does not take the arguments of its start: \$deadline_s: 'soon'"):
        started_with(wrong)


def started_with(arguments: str) -> None:
    nobody: Any = None  # it does not come to that
    Activation(waits, "r", arguments, BASE, nobody).start()


async def test_a_parked_run_wakes_for_its_deadline(autojump_clock):
    database = Database()
    async with executing(database, waits):
        row = database.start(waits, "news", deadline="2 days")
        await database.wait_state("r", "parked")
        assert row.due == BASE + 2 * 86_400
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert (row.ending.cancelled, row.ending.failure) == (False, "TooSlow: the deadline of the run is over")
    assert kinds(row) == ["CLOCK", "DONE /2 undo"]
