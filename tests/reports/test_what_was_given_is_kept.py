"""Reports of lost data: a value, a message or a result that was given is kept, or refused where it is given.

`run_workflow` replays each run from its journal and `explore` breaks it off at each record, so that a replay which
differs fails the test by itself. LOG.md, "Code-first engines", has the reports.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.errors import Conflict
from penstock.durable import App, StepFailed, continue_as_new, first, receive, sleep, step, workflow
from penstock.durable.errors import Unencodable
from penstock.testing import Message, explore, run_workflow
from tests.reports.steps import act


def test_a_value_without_json_is_refused_not_kept_wrong():
    """DBOS Transact Python 111, Hatchet 2573."""

    @step
    async def gives(kind: str) -> Any:
        return object() if kind == "object" else "a\0b"

    @workflow
    async def takes(kind: str) -> str:
        await gives(kind)
        return "kept"

    for kind in ("object", "nul"):
        error = run_workflow(takes, kind).error
        assert isinstance(error, StepFailed)
        assert error.type_name == Unencodable.__name__


def test_a_message_that_meets_a_continuation_is_kept():
    """go-workflows 493, Inngest 1433."""

    @workflow
    async def account(total: int = 0, count: int = 0) -> int:
        total += await receive("payment", int)
        if count < 9:
            continue_as_new(total, count + 1)
        return total

    messages = [Message("payment", 2**number) for number in range(10)]
    assert run_workflow(account, messages=messages).result() == 2**10 - 1


def test_an_early_message_is_there_for_a_later_wait():
    """Inngest 1433, Restate TypeScript 123."""

    @workflow
    async def waits() -> str:
        await act("send the id")
        won = await first(answer=receive("answer", str), late=sleep("1 min"))
        return won.name

    explore(waits, messages=[Message("answer", "yes")])
    assert run_workflow(waits, messages=[Message("answer", "yes")]).result() == "answer"


@workflow
async def order(number: int) -> int:
    await act(f"order {number}")
    return number


async def test_a_finished_run_stays_finished_and_readable(database_dsn: str):
    """go-workflows 137, Prefect 12977."""
    async with App(order, at=database_dsn) as app:
        run = await app.start(order, 7, id="order-7")
        assert await run.result() == 7
        for _ in range(2):
            with pytest.raises(Conflict):
                await run.send("late", 1)
    async with App(order, at=database_dsn) as app:
        run = await app.get("order-7", order)
        assert await run.status() == "COMPLETED"
        assert await run.result() == 7
