"""An append of which only the journal says what became of it: its records are read there, or appended again.

What was lost before: a run that came from the queue kept the empty page that it was taken with, and read that one after
its first append. A lost CLOCK record then made the executor's deadline timer spin without a checkpoint.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from penstock.durable import move_on_after, open_nursery, patched, receive, sleep, step, workflow
from penstock.durable.backend import LeasedRun, Stored
from penstock.kernel.record import JournalKind, Record
from penstock.loop.taskless import need_task
from tests.durable.memory import Database, MemoryBackend, kinds, message
from tests.durable.test_executor import executing

HANG_S = 20
"""Real seconds after which a loop that never waits is ended: only a test that fails takes so long."""


@contextmanager
def ending_loops() -> Generator[None]:
    """Ends a loop without a checkpoint, which no time-out of Trio does."""

    def fail(*_: Any) -> None:
        raise AssertionError("the executor spins: no checkpoint for 20 s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@step
async def add(number: int) -> int:
    return number + 1


@workflow
async def mixed() -> list[Any]:
    """Steps, sleeps, a deadline, a message, branches and a mark."""
    seen: list[Any] = [await add(0)]
    await sleep("3 s")
    if patched("more"):
        seen.append(await add(1))
    with move_on_after("2 s"):
        await receive("never", str)
    async with open_nursery() as nursery:
        nursery.start_soon(sleep, "1 s")
        nursery.start_soon(add, 7)
    await sleep("1 min")
    seen.append(await receive("m", str))
    return seen


class Doubtful(MemoryBackend):
    """Answers one append, the ``number``-th, with "read the journal"; ``written``: it has taken effect."""

    def __init__(self, database: Database, number: int, *, written: bool) -> None:
        super().__init__(database)
        self.left, self.written, self.doubted = number, written, list[JournalKind]()

    async def append(self, held: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
        self.left -= 1
        if self.left != 0:
            return await super().append(held, records, after, mail)
        self.doubted = [record.kind for record in records]
        if self.written:
            await super().append(held, records, after, mail)
        return None


@pytest.mark.parametrize("written", [True, False], ids=["written", "lost"])
async def test_a_doubtful_append_loses_no_record(autojump_clock, monkeypatch: pytest.MonkeyPatch, written: bool):
    doubted: list[list[JournalKind]] = []
    with ending_loops():
        for number in range(1, 9):
            database = Database()
            backend = Doubtful(database, number, written=written)
            monkeypatch.setattr("tests.durable.test_executor.MemoryBackend", lambda _, kept=backend: kept)
            async with executing(database, mixed):
                row = database.start(mixed)
                database.notify("r", message("m", '"x"'))
                with trio.fail_after(600):
                    await database.wait_state("r", "ended")
            doubted.append(backend.doubted)
            assert row.ending is not None
            assert row.ending.result == '[1,2,"x"]'
            assert [kind for kind in kinds(row) if kind.startswith("DONE")] == [
                "DONE /0 add", "DONE /2 add", "DONE /5.1/0 add",
            ], number  # fmt: skip
            assert [record.mark for record in row.records if record.mark] == ["more"], number
    assert [JournalKind.CLOCK] in doubted
    assert [JournalKind.DONE] in doubted


async def test_records_lost_at_each_append_are_appended_again(autojump_clock, monkeypatch: pytest.MonkeyPatch):
    """Every second append of a run is lost, whatever it holds."""
    count: Counter[str] = Counter()

    class Lossy(MemoryBackend):
        async def append(
            self, held: LeasedRun, records: Sequence[Record], after: int, mail: int
        ) -> list[Stored] | None:
            count[held.key] += 1
            return None if count[held.key] % 2 else await super().append(held, records, after, mail)

    monkeypatch.setattr("tests.durable.test_executor.MemoryBackend", Lossy)
    database = Database()
    with ending_loops():
        async with executing(database, mixed):
            rows = [database.start(mixed, id=f"r{number}") for number in range(10)]
            for row in rows:
                database.notify(row.id, message("m", '"x"'))
            for row in rows:
                with trio.fail_after(600):
                    await database.wait_state(row.id, "ended")
    assert [row.ending.result for row in rows if row.ending is not None] == ['[1,2,"x"]'] * 10


async def test_a_journal_clock_that_was_set_back_is_asked_seldom(autojump_clock):
    @workflow
    async def sleeps() -> str:
        await sleep("1.5 s")
        return "awake"

    class Clock(Database):
        back_s = 0.0

        def now(self) -> float:  # type: ignore[override]
            return super().now() - self.back_s

    database = Clock()
    with ending_loops():
        async with executing(database, sleeps):
            row = database.start(sleeps)
            await trio.sleep(0.5)
            database.back_s = 0.9
            with trio.fail_after(60):
                await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == '"awake"'
    assert kinds(row) == ["CLOCK", "CLOCK"], "too early by 0.9 s, and in time"


async def test_a_park_that_is_given_up_loses_no_record(autojump_clock):
    """A drain waits 2 s for each run that it parks; the run's own task goes on."""
    began: list[int] = []

    @step
    async def note() -> int:
        began.append(1)
        return 1

    @workflow
    async def noted() -> int:
        return await receive("m", int) + await note()

    database = Database()
    with ending_loops():
        async with executing(database, noted) as (executor, backend):
            row = database.start(noted)
            await trio.sleep(0.1)
            [run] = executor._runs.values()  # what `_activate_alone` and `drain` use
            append = backend.append

            async def slow(leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
                await need_task()
                await trio.sleep(5)
                return await append(leased, records, after, mail)

            backend.append = slow  # type: ignore[method-assign]
            park = backend.park

            async def overtaken(*args: Any) -> bool:
                backend.park = park  # type: ignore[method-assign]
                database.notify("r", message("m", "1"))
                return await park(*args)

            backend.park = overtaken  # type: ignore[method-assign]
            await executor._unload(run)
            with trio.fail_after(100):
                await database.wait_state("r", "ended")
    assert began == [1]
    assert row.ending is not None
    assert row.ending.result == "2"
