"""`explore`: a body that dies, or is cancelled, at each of its records; and journals kept as files."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from examples import durable_order
from examples.durable_order import Line, Order, Payment, Shipped, order
from penstock.durable import CancelScope, receive, sleep, step, step_info, update, workflow
from penstock.testing import Ask, Message, WorkflowRun, assert_replays, explore, run_workflow, save_journal
from penstock.testing.durable import Fakes

SMALL = Order("A-1", [Line("pen", 2, Decimal(3)), Line("book", 1, Decimal(25))])
PAID = (Message("payment", Payment("visa"), after="2 days"),)


def test_the_example_holds_wherever_it_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    worlds = 0

    def steps() -> Fakes:
        nonlocal worlds
        worlds += 1
        monkeypatch.setattr(durable_order, "world", durable_order.World(tmp_path / f"{worlds}.sqlite3"))
        return {}

    def nothing_is_left(run: WorkflowRun[Shipped]) -> None:
        did = {call.step for call in run.calls}
        assert run.error is None or "release" in did or "reserve" not in did

    explored = explore(order, SMALL, steps=steps, messages=PAID, check=nothing_is_left)
    assert (explored.crashes, explored.cancels) == (2 * explored.records, explored.records)
    assert worlds == 1 + 3 * explored.records
    assert explored.records == len(run_workflow(order, SMALL, messages=PAID).journal)


class Counter:
    """Outside; forgets nothing."""

    def __init__(self) -> None:
        self.charged: list[str] = []


counter = Counter()


@step
def charge() -> int:
    counter.charged.append(step_info().key)
    return len(counter.charged)


@step
def charge_once() -> int:
    if step_info().key not in counter.charged:
        counter.charged.append(step_info().key)
    return counter.charged.index(step_info().key) + 1


def fresh() -> Fakes:
    counter.charged.clear()
    return {}


def test_a_step_that_counts_twice_is_found():
    @workflow
    async def body() -> int:
        return await charge()

    with pytest.raises(AssertionError, match=r"crashed before record 1 of 1 \(DONE /0 charge\): it ended with 2"):
        explore(body, steps=fresh)

    @workflow(name="body")
    async def keyed() -> int:
        return await charge_once()

    assert explore(keyed, steps=fresh).crashes == 2


@step.transaction
def take(tx: psycopg.Connection) -> int:
    raise AssertionError("no database")


def test_a_transaction_is_never_done_and_not_written():
    @workflow
    async def body() -> list[int]:
        return [await take(), await take()]

    def steps() -> Fakes:
        left = [7, 8, 9]
        return {take: lambda: left.pop(0)}

    assert explore(body, steps=steps).crashes == 4


def test_a_body_that_never_ends_its_clean_up_is_found():
    @workflow
    async def body() -> None:
        try:
            await charge_once()
            await sleep("1 h")
        except BaseException:
            with CancelScope(shield=True):
                await receive("never", str)
            raise

    with pytest.raises(AssertionError, match=r"cancelled after record 1 of 2 .*waiting: the body at test_explore.py"):
        explore(body, steps=fresh)


def test_what_a_check_says_names_the_record():
    @workflow
    async def body() -> int:
        await charge_once()
        await sleep("1 h")
        return await charge_once()

    def both_or_none(run: WorkflowRun[int]) -> None:
        assert len(run.calls) != 1, "charged by half"

    with pytest.raises(AssertionError, match=r"cancelled after record 1 of 3 \(DONE /0 charge_once\): charged by half"):
        explore(body, steps=fresh, check=both_or_none)


@workflow
async def updated(limit: int) -> int:
    @update
    async def add(value: int) -> int:
        nonlocal limit
        limit += value
        await sleep("1h")
        return await charge_once() + limit

    @add.validator
    def positive(value: int) -> None:
        if value < 0:
            raise ValueError(f"{value} is less than 0")

    await receive("end", bool)
    return limit


CALLS = (
    Ask("add", [1], after=1, id="a"),
    Ask("add", [-1], after=2, id="refused"),
    Ask("add", [2], after=3, id="b"),
    Message("end", True, after=4),  # before the handlers have ended
    Ask("add", [9], after=5, id="late"),
)


def test_a_run_that_is_updated_gives_the_same_answers_wherever_it_dies():
    saw: list[dict[str, object]] = []
    explored = explore(updated, 1, steps=fresh, messages=CALLS, check=lambda run: saw.append(run.answers))
    fresh()
    undisturbed = run_workflow(updated, 1, messages=CALLS)
    asked, refused = 2, 2  # a call that is refused, and its refusal, are no records in the end
    assert explored.records == len(undisturbed.journal) + refused
    assert explored.crashes == 2 * explored.records
    first = saw[0]
    assert (first["a"], first["b"], first["late"]) == (1 + 4, 2 + 4, None)
    crashed = [answers for number, answers in enumerate(saw[1:]) if number % 3 != asked]
    assert all(str(answers) == str(first) for answers in crashed)


def test_an_answer_that_a_crash_changes_is_found():
    @workflow
    async def body() -> int:
        @update
        async def count() -> int:
            return await charge()

        await receive("end", bool)
        return 1

    with pytest.raises(AssertionError, match=r"crashed before record 3 of 5 \(DONE .* charge\): it ended with 1, its"):
        explore(body, steps=fresh, messages=[Ask("count", after=1), Message("end", True, after=5)])


def test_a_message_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"messages is .*: give a list, as \[Message"):
        explore(updated, 1, messages=["end"])  # type: ignore[list-item]  # what is wrong


def test_kept_journals_have_to_fit(tmp_path: Path):
    @workflow(name="body")
    async def first() -> int:
        return await charge()

    @workflow(name="body")
    async def second() -> int:
        await charge_once()
        return await charge()

    save_journal(run_workflow(first), tmp_path / "one.json")
    save_journal(run_workflow(first), tmp_path / "two.json")
    assert assert_replays(first, tmp_path) == 2
    assert assert_replays(first, tmp_path / "one.json") == 1
    with pytest.raises(AssertionError, match=r"(?s)one.json: at /0 .* 'charge'.*if patched\(\"charge_once\"\)"):
        assert_replays(second, tmp_path)

    @workflow
    async def other() -> None:
        await sleep(1)

    with pytest.raises(AssertionError, match="no journal of other@1 is kept"):
        assert_replays(other, tmp_path)
