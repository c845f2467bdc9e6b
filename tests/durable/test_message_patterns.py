"""The patterns of docs/durable-messages.md: each stands there as it is here."""

from __future__ import annotations

import pytest

from penstock.durable import (
    Semaphore,
    continue_as_new,
    first,
    move_on_after,
    receive,
    run_info,
    send,
    set_view,
    sleep,
    step,
    update,
    workflow,
)
from penstock.durable.verbs import CONTINUE_AFTER_RECORDS
from penstock.kernel.record import JournalKind
from penstock.testing import Ask, Message, run_workflow
from penstock.testing.durable import Sent


@step
async def write(line: str) -> str:
    return line


@workflow
async def asks_a_run(other: str) -> str:
    await send(other, "question", {"from": run_info().id, "text": "how many?"})
    with move_on_after("1 hour"):
        return await receive("answer", str)
    return "no answer"


def test_request_and_reply_between_runs():
    run = run_workflow(asks_a_run, "stock-1", messages=[Message("answer", "seven", after=5)], seed="me")
    assert run.result() == "seven"
    assert run.sent == [Sent("stock-1", "question", {"from": "me", "text": "how many?"})]
    assert run_workflow(asks_a_run, "stock-1").result() == "no answer"


@workflow
async def one_at_a_time() -> list[str]:
    lines: list[str] = []
    mutex = Semaphore(1)

    @update
    async def add(line: str) -> int:
        async with mutex:
            lines.append(f"begin {line}")
            await write(line)
            await sleep(10)
            lines.append(f"end {line}")
            return len(lines)

    await receive("close", bool)
    return lines


def test_a_mutex_lets_handlers_in_one_after_the_other():
    calls = [Ask("add", ["a"], id="a"), Ask("add", ["b"], id="b"), Message("close", True, after=1)]
    run = run_workflow(one_at_a_time, messages=calls)
    assert run.result() == ["begin a", "end a", "begin b", "end b"]
    assert run.answers == {"a": 2, "b": 4}


@workflow
async def counts(total: int = 0) -> int:
    while True:
        if run_info().is_continue_as_new_suggested:
            continue_as_new(total)
        won = await first(add=receive("add", int), close=receive("close", int))
        if won.name == "close":
            return total
        total += won.value
        set_view(total)


@pytest.mark.slow(reason="a journal of 10,000 records, twice")
def test_a_signal_loop_continues_as_new_when_its_journal_is_long():
    count = CONTINUE_AFTER_RECORDS + 10
    messages = [Message("add", 1, after=number) for number in range(count)]
    run = run_workflow(counts, messages=[*messages, Message("close", 0, after=count)], max_records=2 * count)
    assert run.result() == count
    assert len(run.former) >= CONTINUE_AFTER_RECORDS
    assert [record.kind for record in run.journal[:1]] == [JournalKind.BEGUN]


def test_calls_that_are_refused_do_not_count_as_records():
    @workflow
    async def refuses() -> int:
        @update
        def never() -> None: ...

        @never.validator
        def check() -> None:
            raise ValueError("never")

        await sleep(10)
        return run_info().records

    calls = [Ask("never", id=str(number), after=number) for number in range(5)]
    assert run_workflow(refuses, messages=calls).result() == 1
