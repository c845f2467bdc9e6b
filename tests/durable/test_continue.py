"""`continue_as_new`: a run that goes on for ever, with a journal that does not grow; in memory, and on a database."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import psycopg
import pytest
import trio

from penstock.durable import (
    App,
    Cancelled,
    RunCancelled,
    continue_as_new,
    open_nursery,
    receive,
    run_info,
    set_view,
    sleep,
    step,
    step_info,
    uuid4,
    workflow,
)
from penstock.durable.backend import Away, LeasedRun, RecordPage
from penstock.durable.check import CheckedRun, check
from penstock.kernel.record import Record
from penstock.testing import Message, assert_replays, explore, run_workflow, save_journal
from tests.durable.memory import Database, MemoryBackend, kinds, message
from tests.durable.test_executor import Executor, executing
from tests.waiting import wait_until

BOUND_S, DAY_S = 60.0, 86_400.0
keys: list[str] = []


@step
async def add(total: int, n: int) -> int:
    keys.append(step_info().key)
    return total + n


@workflow
async def account(total: int = 0, months: int = 0) -> list[Any]:
    """Three rounds, with a payment each."""
    set_view({"months": months})
    async with open_nursery():
        total = await add(total, await receive("payment", int))
    await sleep("1 h")
    if months < 2:
        continue_as_new(total, months=months + 1)
    return [total, run_info().continuation, str(uuid4()), run_info().started_at.year]


PAYMENTS = [Message("payment", 1), Message("payment", 20), Message("payment", 300)]


def test_what_was_not_received_is_kept():
    keys.clear()
    run = run_workflow(account, messages=PAYMENTS, seed="r")
    assert run.result()[:2] == [321, 2]
    assert [record.kind.name for record in run.journal] == ["BEGUN", "MESSAGE", "DONE", "CLOCK"]
    assert len(run.former) == 3 + 2 + 5
    assert keys == ["r/2", "r~1/2", "r~2/2"], "no step has the key of one of another month"
    assert run.took.total_seconds() == 3 * 3_600
    other = run_workflow(account, 0, 2, messages=PAYMENTS[:1], seed="r")
    assert run.result()[2] != other.result()[2]


def test_it_is_explored_and_kept_as_others(tmp_path):
    def check(run: object) -> None:
        keys.append("checked")

    carried = 3 + 2  # first records of months, and messages that they began with: they came in one piece
    assert explore(account, messages=PAYMENTS, check=check).records == 3 + 2 + 5 + 4 - carried
    run = run_workflow(account, messages=PAYMENTS)
    save_journal(run, tmp_path / "month.json")
    assert assert_replays(account, tmp_path) == 1


def test_what_is_wrong_is_said():
    @workflow
    async def other_arguments(n: int) -> None:
        continue_as_new("many")

    with pytest.raises(TypeError, match="other_arguments does not take these arguments"):
        run_workflow(other_arguments, 1).result()

    @workflow
    async def in_a_branch() -> None:
        async def branch() -> None:
            continue_as_new()

        async with open_nursery() as nursery:
            nursery.start_soon(branch)

    with pytest.raises(ExceptionGroup) as raised:
        run_workflow(in_a_branch).result()
    assert "is for the workflow function itself" in str(raised.value.exceptions)

    @workflow
    async def unstoppable() -> None:
        try:
            await sleep("1 h")
        except Cancelled:
            continue_as_new()

    with pytest.raises(Cancelled):
        run_workflow(unstoppable, cancel_after=60).result()


class Losing(MemoryBackend):
    """Whose continuations are interrupted: the database is away before, or after; or the process dies."""

    def __init__(self, database: Database, how: Sequence[str]) -> None:
        super().__init__(database)
        self.how = list(how)
        self.scope = trio.CancelScope()

    async def continue_as_new(self, leased: LeasedRun, mail: int, begun: Record, kept: Sequence[int]) -> bool:
        how = self.how.pop(0) if self.how else ""
        if how == "told":
            self.db.notify(leased.key, message("payment", "4000"))
        if how == "away":
            raise Away("before")
        done = await super().continue_as_new(leased, mail, begun, kept)
        if how == "lost":
            raise Away("after")
        if how == "dies":
            self.scope.cancel()
            await trio.sleep_forever()
        return done


@pytest.mark.parametrize(
    ("how", "beginning"),
    [
        ((), 2),
        (("away", "lost", "lost"), 2),
        (("dies",), 2),
        (("told", "lost"), 2),
        (("away", "told", "dies"), 2),
        (("dies",), 0),  # its arguments are too large to come with the run
        (("", "dies"), 0),
    ],
)
async def test_each_month_is_one_whatever_happens_between(
    autojump_clock, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], beginning: int
):
    monkeypatch.setattr("tests.durable.memory.BEGINNING", beginning)
    keys.clear()
    database = Database()
    row = database.start(account)
    for n in (1, 20, 300):
        database.notify("r", message("payment", str(n)))
    backend = Losing(database, how)
    with trio.fail_after(DAY_S), backend.scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(Executor(backend, {("account", 1): account}).run)
            await database.wait_state("r", "ended")
            nursery.cancel_scope.cancel()
    if row.state != "ended":  # the lease ends
        backend.is_cut_off = True
        async with executing(database, account):
            with trio.fail_after(DAY_S):
                await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result is not None
    assert row.ending.result.startswith("[321,2,")
    assert row.ending.view == '{"months":2}'
    assert [key.partition("/")[0] for key in keys] == ["r", "r~1", "r~2"]
    late = ["MESSAGE  payment"] if "told" in how else []
    found = sorted(kind for kind in kinds(row) if not kind.startswith("RETRY "))
    assert found == sorted(["BEGUN  2", "MESSAGE  payment", *late, "DONE /2 add", "CLOCK"])


@workflow
async def ticks(n: int) -> int:
    total = await add(n, 1)
    if total % 10:
        continue_as_new(total)
    set_view({"total": total})
    if await receive("go on", bool):
        continue_as_new(total)
    return total


async def test_rows_of_former_runs_are_freed(database_dsn: str):
    async with App(ticks, at=database_dsn) as app:
        run = await app.start(ticks, 0, id="t-1")
        await run.send("go on", True)
        await run.send("go on", False)
        assert await run.result(BOUND_S) == 20
        found = [(record["kind"], record.get("name")) async for record in run.history()]
        assert found == [
            ("begun", "19"), ("message", "go on"), ("done", "add"), ("view", None)
        ]  # fmt: skip
        assert await run.view() == {"total": 20}
        assert await (await app.start(ticks, 0, id="t-1")).result(BOUND_S) == 20, "the same run"
        with psycopg.connect(database_dsn) as connection:
            assert connection.execute("SELECT count(*) FROM journal").fetchall() == [(4,)]
        other = await app.start(ticks, 0)
        await other.send("go on", True)
        await other.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await other.result(BOUND_S)


@workflow
async def long_word(word: str = "") -> str:
    if not word:
        await add(0, 1)
        continue_as_new("x" * 60_000)
    return await receive(word[:1], str)


async def test_large_arguments_outlast_a_restart(at: str):
    keys.clear()
    async with App(long_word, at=at) as app:
        run = await app.start(long_word, id="l-1")

        async def waits() -> bool:
            return await run.status() == "WAITING"

        await wait_until(waits)
    async with App(long_word, at=at) as app:
        run = await app.get("l-1", long_word)
        await run.send("x", "on")
        assert await run.result(BOUND_S) == "on"
    assert len(keys) == 1, "it does not begin anew"


class OneRun:
    """A run of which the first record does not come with it."""

    def __init__(self, run: CheckedRun, records: list[Record]) -> None:
        self.run, self.records = run, records

    async def code_versions(self, workflow: str) -> dict[int, int]:
        return {1: 1}

    async def read_open(self, definition: int) -> AsyncGenerator[list[CheckedRun]]:
        yield [self.run]

    async def read_marks(self, instance: int) -> list[str]:
        return []

    async def read_records(self, instance: int, after: int) -> RecordPage:
        return RecordPage([record for record in self.records if record.pos > after], 0)


async def test_large_arguments_are_checked_as_others():
    run = run_workflow(long_word, messages=[Message("x", "on")])
    page, waits = RecordPage([], 0, more=True), [("/0", "receive", "x")]
    one = CheckedRun("l-1", 1, run.saved.arguments, run.saved.started_at, page, waits)
    [report] = await check(OneRun(one, run.journal[:1]), [long_word])
    assert (report.runs, report.records, report.found) == (1, 1, [])
