"""Rules of the executor: groups of records, steps that don't stop, bodies that don't wait."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from penstock.durable import isolation, move_on_after, open_nursery, receive, sleep, step, workflow
from penstock.durable.backend import LeasedRun, Stored
from penstock.kernel.record import JournalKind, Record
from tests.durable.memory import Database, MemoryBackend, kinds, message
from tests.durable.test_executor import PARKS_AFTER_S, executing


async def test_a_step_cancelled_within_its_record_group_never_begins(autojump_clock):
    began: list[str] = []

    @step
    async def one() -> None:
        began.append("one")

    @step
    async def two() -> None:
        began.append("two")

    @workflow
    async def body() -> None:
        await one()
        await two()

    database = Database()
    async with executing(database, body) as (_, backend):
        append = backend.append

        async def cancelled_after(
            leased: LeasedRun, records: Sequence[Record], after: int, mail: int
        ) -> list[Stored] | None:
            await append(leased, records, after, mail)
            backend.append = append  # type: ignore[method-assign]  # once
            database.notify("r", Record(0, JournalKind.CANCEL))
            return None

        backend.append = cancelled_after  # type: ignore[method-assign]  # a race
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert began == ["one"]
    assert kinds(row) == ["DONE /0 one", "CANCEL", "STOPPED /1 two"]
    assert row.ending is not None
    assert row.ending.cancelled


async def test_a_step_that_does_not_stop_is_waited_for(autojump_clock, caplog: pytest.LogCaptureFixture):
    @step
    async def deaf() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
        return "done all the same"

    @workflow
    async def body() -> str:
        with move_on_after("10 s"):
            return await deaf()
        return "moved on"

    database = Database()
    with caplog.at_level(logging.ERROR):
        async with executing(database, body):
            row = database.start(body)
            await trio.sleep(41)
            assert row.state == "held"
            [reported] = [record.getMessage() for record in caplog.records]
            assert (
                reported
                == "stuck step: 'deaf' at /1 of run r was cancelled 30 s ago and still runs; the run waits for its end"
            )
            await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == '"done all the same"'


async def test_a_body_that_never_waits_blocks_only_itself(autojump_clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(isolation, "WARN_AFTER_S", 0.1)
    monkeypatch.setattr(isolation, "END_AFTER_S", 0.3)
    monkeypatch.setattr(isolation, "POLL_INTERVAL_S", 0.02)

    @workflow
    async def spins() -> None:
        while True:
            pass

    @step
    async def quick() -> int:
        return 1

    @workflow
    async def fine() -> int:
        return await quick()

    database = Database()
    async with executing(database, spins, fine):
        database.start(spins, id="spins")
        database.start(fine, id="fine")
        await database.wait_state("fine", "ended")
        row = await database.wait_state("spins", "blocked")
    assert row.blocked is not None
    assert "without an await" in row.blocked
    assert row.blocked.startswith("test_executor_rules.py:")


async def test_runs_that_have_ended_leave_nothing_in_memory(autojump_clock):
    @step
    async def never() -> None:
        await trio.sleep_forever()

    @workflow
    async def body() -> None:
        with move_on_after("1 h"):
            await never()

    database = Database()
    async with executing(database, body) as (executor, _):
        for number in range(50):
            database.start(body, id=str(number))
        await trio.sleep(3_700)
        assert len(executor) == 0
    assert all(row.state == "ended" for row in database.runs.values())


@pytest.mark.parametrize("parks", [False, True])
async def test_mail_is_seen_that_came_while_the_run_was_taken(
    autojump_clock, monkeypatch: pytest.MonkeyPatch, parks: bool
):
    @workflow
    async def body() -> int:
        if parks:
            with move_on_after("1 h"):
                await sleep("2 h")
        return await receive("n", int)

    database = Database()
    take = MemoryBackend.take

    async def reported_meanwhile(self: MemoryBackend, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        found = await take(self, max_runs, max_wait_s)
        for leased in found:
            if leased.fresh is not parks:
                database.notify(leased.key, message("n", "7"))
                await trio.testing.wait_all_tasks_blocked()  # it is heard before the run is held
        return found

    monkeypatch.setattr(MemoryBackend, "take", reported_meanwhile)
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
        assert trio.current_time() % 3_600 < PARKS_AFTER_S / 2, "at once, not when it was to be parked"
    assert row.ending is not None
    assert row.ending.result == "7"


async def test_large_results_are_appended_a_message_at_a_time(autojump_clock):
    @step
    async def large(n: int) -> str:
        return "ä" * 100_000

    @workflow
    async def many() -> int:
        async with open_nursery() as nursery:
            for n in range(12):
                nursery.start_soon(large, n)
        return 12

    database = Database()
    async with executing(database, many) as (_, backend):
        row = database.start(many)
        await database.wait_state("r", "ended")
    assert sum(backend.appends) == len(row.records) == 12
    assert max(backend.appends) == 5, "of 200 kB each"
