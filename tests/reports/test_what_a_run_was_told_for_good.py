"""What a run was told for good (`patched`, which message a receive took) outlives its process and a retry.

The journal holds it as marks of records. A mark that stands behind the record that follows from it, or goes with
another record, is no mark: a replay goes another way than the run did.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
import trio

from penstock.core.rules.state import InstanceStatus
from penstock.durable import (
    App,
    RunFailed,
    child,
    continue_as_new,
    move_on_after,
    open_nursery,
    patched,
    receive,
    step,
    workflow,
)
from penstock.durable.activation import Activation, Still
from penstock.durable.backend import LeasedRun, Stored
from penstock.durable.child import ChildCall
from penstock.durable.loaded_run import LoadedRun, _CommitPermit
from penstock.durable.local import LocalBackend
from penstock.engine.queues.journal_items import NewRecord, RunEnd
from penstock.kernel.record import JournalKind, Record
from penstock.loop.taskless import need_task
from penstock.testing import Message, run_workflow
from tests.durable.memory import Database, message
from tests.durable.test_executor import executing
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, done, read, take
from tests.engine.runs import continue_as_new as go_on_anew

__all__ = ["driver", "make_driver"]

BOUND_S = 60.0


@step.transaction
def note(tx: psycopg.Connection) -> str:
    tx.execute("CREATE TABLE IF NOT EXISTS noted (n int)")
    tx.execute("INSERT INTO noted VALUES (1)")
    return "noted"


def journal(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT kind, path, mark FROM journal WHERE kind < 12 ORDER BY pos").fetchall()


async def test_a_patch_stands_before_the_transaction_that_follows_from_it(database_dsn: str) -> None:
    """The transaction writes its record itself. One behind which the mark comes later is another way after a kill."""

    @workflow
    async def body() -> str:
        return await note() if patched("by transaction") else "the old way"

    async with App(body, at=database_dsn, migrate=True) as app:
        assert await (await app.start(body)).result(BOUND_S) == "noted"
    assert journal(database_dsn) == [(JournalKind.CLOCK, "", "by transaction"), (JournalKind.DONE, "/0", None)]


async def test_a_message_taken_past_another_is_marked_before_a_transaction(database_dsn: str) -> None:
    @workflow
    async def body() -> int:
        taken = await receive("m", int)
        await note()
        return taken

    async with App(at=database_dsn, name="shop", migrate=True) as client:
        run = await client.start(body)
        for payload in ("no number", 7):
            await run.send("m", payload)
        async with App(body, at=database_dsn, name="shop"):
            assert await run.result(BOUND_S) == 7
    *messages, mark, outcome = journal(database_dsn)
    assert [kind for kind, _, _ in messages] == [JournalKind.MESSAGE] * 2
    assert (mark[0], str(mark[2])[:6]) == (JournalKind.CLOCK, "~took ")
    assert outcome == (JournalKind.DONE, "/1", None)


async def test_a_patch_stands_before_the_child_that_follows_from_it(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends the child writes the record, and it may come while the run's executor is gone."""
    before: list[list[tuple[Any, ...]]] = []
    start_child = LocalBackend.start_child

    async def starts(self: LocalBackend, held: LeasedRun, path: str, call: ChildCall, id: str) -> None:
        before.append(journal(database_dsn))
        await start_child(self, held, path, call, id)

    @workflow
    async def below() -> str:
        return "below"

    @workflow
    async def body() -> str:
        return await child(below) if patched("by child") else "the old way"

    monkeypatch.setattr(LocalBackend, "start_child", starts)
    async with App(body, below, at=database_dsn, migrate=True) as app:
        assert await (await app.start(body)).result(BOUND_S) == "below"
    assert before == [[(JournalKind.CLOCK, "", "by child")]]


async def test_an_append_that_is_on_its_way_comes_before_the_first_transaction(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that came before it was not read, as what stands behind it had been: the run waited for ever."""
    asked, has_ended, both = trio.Event(), trio.Event(), trio.Event()
    begin_turn, end_turn, append_now, write = (
        _CommitPermit.begin,
        _CommitPermit.end,
        LocalBackend.append,
        LoadedRun.write,
    )
    written: list[str] = []
    called = threading.Event()  # steps have a loop of their own

    async def begins(self: _CommitPermit) -> None:
        asked.set()
        await begin_turn(self)

    def ends(self: _CommitPermit, *, committed: bool) -> None:
        end_turn(self, committed=committed)
        has_ended.set()

    async def appends(
        self: LocalBackend, held: LeasedRun, records: Sequence[Record], after: int, mail: int
    ) -> list[Stored] | None:
        await need_task()
        called.set()
        await both.wait()
        if len(written) == 2:
            written.append("the first append has gone")
        elif not has_ended.is_set():
            await asked.wait()
            with trio.move_on_after(0.5):  # the transaction may commit now, unless it waits
                await has_ended.wait()
        return await append_now(self, held, records, after, mail)

    def writes(self: LoadedRun, run: Activation, record: Record) -> None:
        write(self, run, record)
        written.append(record.path)
        if len(written) == 2:
            both.set()

    @step
    async def beside() -> None:
        pass

    @step
    def later() -> None:
        assert called.wait(BOUND_S)

    @workflow
    async def body() -> str:
        async with open_nursery() as nursery:
            nursery.start_soon(then_note)
            nursery.start_soon(later)
        return "all"

    async def then_note() -> None:
        await beside()
        await note()

    monkeypatch.setattr(_CommitPermit, "begin", begins)
    monkeypatch.setattr(_CommitPermit, "end", ends)
    monkeypatch.setattr(LocalBackend, "append", appends)
    monkeypatch.setattr(LoadedRun, "write", writes)
    async with App(body, at=database_dsn, migrate=True) as app:
        assert await (await app.start(body)).result(BOUND_S) == "all"


def failed(path: str, mark: str | None = None) -> NewRecord:
    return NewRecord(JournalKind.FAILED, path, "charge", '{"type": "Declined"}', mark=mark)


async def test_a_retry_keeps_the_marks_of_before(driver: Driver) -> None:
    """They come with the append of the failure, on as many records as it has; those of after go with the rest."""
    run = await begin(driver)
    await append(driver, run.run_lease, done("/0"))
    await append(driver, run.run_lease, failed("/1", "first"), NewRecord(JournalKind.CLOCK, mark="second"))
    await append(driver, run.run_lease, NewRecord(JournalKind.CLOCK, mark="behind it"))
    end = RunEnd(InstanceStatus.FAILED, failure="Declined")
    assert await driver.engine.journal.finish(run.run_lease, end, mail=0)
    await driver.engine.instances.retry_run(run.instance_id, None, None)
    assert driver.rows("SELECT kind, path, payload, mark FROM journal ORDER BY pos") == [
        (JournalKind.DONE, "/0", '"ok"', None), (JournalKind.CLOCK, "", None, "first"), (JournalKind.CLOCK, "", None,
        "second"),
    ]  # fmt: skip
    [again] = await take(driver)
    await append(driver, again.run_lease, failed("/1"))
    assert await driver.engine.journal.finish(again.run_lease, end, mail=0)
    await driver.engine.instances.retry_run(run.instance_id, "start", None)
    assert driver.rows("SELECT count(*) FROM journal") == [(0,)], "from its start nothing was said before"


async def test_a_run_that_is_retried_goes_the_way_it_went(database_dsn: str) -> None:
    """`patched` said yes, the step failed, a message came: a retry forgot the yes, and took the old way."""
    outcome: list[str] = []

    @step(retries=0)
    async def charge() -> str:
        if not outcome:
            raise ValueError("declined")
        return outcome[0]

    @workflow
    async def body() -> str:
        if patched("charge"):
            return await charge()
        return "the old way"

    async with App(body, at=database_dsn, migrate=True) as app:
        run = await app.start(body)
        await run.send("late", 1)
        with pytest.raises(RunFailed):
            await run.result(BOUND_S)
        outcome.append("charged")
        await run.retry()
        assert await run.result(BOUND_S) == "charged"


def own_failure(is_repaired: bool, type_: Any) -> Any:
    @workflow(name="order")
    async def body() -> Any:
        taken = await receive("m", type_)
        if not is_repaired:
            raise ValueError("a bug of the function")
        return taken

    return body


async def test_a_function_that_fails_by_itself_has_said_what_it_took(autojump_clock: Any) -> None:
    """No record follows the message that it took past another one. A retry from the end, with a wider type too, takes
    the same."""
    database = Database()
    row = database.start(own_failure(False, int))
    for payload in ('"a"', "7"):
        database.notify("r", message("m", payload))
    async with executing(database, own_failure(False, int)):
        await database.wait_state("r", "ended")
    assert row.records[-1].mark is not None
    found = Activation(own_failure(True, Any), "r", "{}", 0.0, Still())
    found.replay(row.records)
    assert found.result is not None
    assert found.result.value == 7


def test_a_corrected_message_keeps_its_place_when_the_run_continues() -> None:
    @workflow
    async def body(again: bool) -> list[Any]:
        if not again:
            await receive("begin", bool)
            continue_as_new(True)
        return [await receive("m", int), await receive("m", int), await receive("m", int)]

    def record(pos: int, kind: JournalKind, name: str, payload: str, path: str = "") -> Record:
        return Record(100.0 + pos, kind, path, name, payload, pos=pos)

    found = Activation(body, "r", '{"again":false}', 100.0, Still())
    found.replay([
        record(1, JournalKind.MESSAGE, "m", '"one"'), record(2, JournalKind.MESSAGE, "m", "2"),
        record(3, JournalKind.MESSAGE, "other", "0"), record(4, JournalKind.DROPPED, "m", '"two"', "1"),
        record(5, JournalKind.DROPPED, "m", "1", "4"), record(6, JournalKind.MESSAGE, "m", "3"),
        record(7, JournalKind.MESSAGE, "begin", "true"),
    ])  # fmt: skip
    assert found.continuation() is not None
    assert found.unread() == [5, 2, 3, 6]


async def test_messages_that_are_kept_stand_in_the_order_that_is_asked_for(driver: Driver) -> None:
    run = await begin(driver)
    for payload in (b"1", b"2", b"3"):
        await driver.engine.runs.send(run.instance_id, "m", payload)
    first, second, third = (record.pos for record in (await read(driver, run.run_lease)).records)
    assert await go_on_anew(driver, run.run_lease, '{"arguments":{}}', mail=3, kept=[third, first, second])
    assert [record.payload for record in (await read(driver, run.run_lease)).records[1:]] == ["3", "1", "2"]


def test_a_mere_drop_is_no_passing_of_time() -> None:
    """At the moment of a deadline it ended the wait, so a second drop met a message that another receive had taken."""

    @workflow
    async def body() -> int:
        with move_on_after(10):
            await receive("m", int)
        return await receive("m", int)

    found = Activation(body, "r", "{}", 100.0, Still())
    found.replay([
        Record(101.0, JournalKind.MESSAGE, name="m", payload='"a"', pos=1),
        Record(102.0, JournalKind.MESSAGE, name="m", payload='"b"', pos=2),
        Record(111.0, JournalKind.DROPPED, "1", "m", pos=3),
    ])  # fmt: skip
    assert found.kernel.now == 102.0
    assert [each.pos for each in found.rejected()] == ["2"]
    found.discard()
    corrected = Activation(body, "r", "{}", 100.0, Still())
    corrected.replay([
        Record(101.0, JournalKind.MESSAGE, name="m", payload='"a"', pos=1), Record(111.0, JournalKind.DROPPED, "1",
        "m", "7", pos=2),
    ])  # fmt: skip
    assert corrected.result is not None
    assert corrected.result.value == 7, "a message comes after the deadline, as every other one"


def test_a_corrected_message_keeps_its_place_in_tests_of_users() -> None:
    @workflow
    async def body(n: int) -> list[int]:
        if n == 0:
            await receive("begin", bool)
            continue_as_new(1)
        return [await receive("m", int), await receive("m", int)]

    sent = [Message("m", 1), Message("m", 2), Message("begin", True)]
    assert run_workflow(body, 0, messages=sent).result() == [1, 2]
