"""`patched`: runs that are under way keep to the old way, those that come later take the new one, through any crash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.durable import Workflow, patched, receive, sleep, step, workflow
from penstock.durable.backend import LeasedRun
from penstock.kernel.record import JournalKind, Record
from penstock.testing import Message, run_workflow
from tests.durable.memory import Database, Row, kinds, message
from tests.durable.test_executor import executing


@step
async def charge() -> str:
    return "charged"


@step
async def fraud() -> str:
    return "clean"


@step
async def ship() -> str:
    return "shipped"


@workflow(name="order")
async def old() -> list[str]:
    done = [await charge()]
    await receive("go", str)
    return [*done, await ship()]


@workflow(name="order")
async def new() -> list[str]:
    done = [await charge()]
    if patched("fraud check"):
        done.append(await fraud())
    await receive("go", str)
    return [*done, await ship()]


NEW_WAY, OLD_WAY = '["charged","clean","shipped"]', '["charged","shipped"]'


async def serve(database: Database, body: Workflow[..., Any], *states: str) -> None:
    """An executor with this code, until the run is in one of these states."""
    async with executing(database, body):
        await database.wait_state("r", *states)


def marks(row: Row) -> list[str]:
    return [f"{record.kind.name} {record.mark}" for record in row.records if record.mark]


async def test_a_new_run_takes_the_new_way(autojump_clock):
    database = Database()
    row = database.start(new)
    await serve(database, new, "parked")
    database.notify("r", message("go", '"now"'))
    await serve(database, new, "ended")
    assert row.ending is not None
    assert row.ending.result == NEW_WAY
    assert marks(row) == ["DONE fraud check"]
    assert kinds(row) == ["DONE /0 charge", "DONE /1 fraud", "MESSAGE  go", "DONE /3 ship"]


async def test_a_run_past_the_place_keeps_to_the_old_way(autojump_clock):
    database = Database()
    row = database.start(old)
    await serve(database, old, "parked")
    database.notify("r", message("go", '"now"'))
    await serve(database, new, "ended")
    assert row.ending is not None
    assert row.ending.result == OLD_WAY
    assert marks(row) == []


async def test_what_was_said_holds_though_nothing_followed(autojump_clock):
    @workflow(name="order")
    async def waits() -> str:
        if patched("greeting"):
            return "hello " + await receive("name", str)
        return await receive("name", str)

    database = Database()
    row = database.start(waits)
    await serve(database, waits, "parked")
    assert marks(row) == ["CLOCK greeting"], "a record of its own, as the run parks"
    database.notify("r", message("name", '"ann"'))
    await serve(database, waits, "ended")
    assert row.ending is not None
    assert row.ending.result == '"hello ann"'


async def test_several_patches_of_one_activation_are_all_kept(autojump_clock):
    @workflow(name="order")
    async def body() -> list[bool]:
        said = [patched("a"), patched("b"), patched("a"), patched("c")]
        await charge()
        await receive("go", str)
        return [*said, patched("c"), patched("d")]

    database = Database()
    row = database.start(body)
    await serve(database, body, "parked")
    assert marks(row) == ["DONE a", "CLOCK b", "CLOCK c"]
    database.notify("r", message("go", '"now"'))
    await serve(database, body, "ended")
    assert row.ending is not None
    assert row.ending.result == "[true,true,true,true,true,true]"


async def test_marks_of_a_long_journal_are_known_from_its_beginning(autojump_clock):
    @workflow(name="order")
    async def many(also: bool = True) -> list[bool]:
        said = [patched("early")]
        for _ in range(5):
            await charge()
        said.append(patched("late"))
        await receive("go", str)
        return said

    @workflow(name="order")
    async def first_many(also: bool = True) -> list[bool]:
        for _ in range(5):
            await charge()
        said = [patched("late")]
        await receive("go", str)
        return said

    database = Database()
    row = database.start(first_many)
    await serve(database, first_many, "parked")
    assert [record.mark for record in row.records if record.mark] == ["late"]
    database.notify("r", message("go", '"now"'))
    await serve(database, many, "ended")  # what a run brings with it are its first two records
    assert row.ending is not None
    assert row.ending.result == "[false,true]"


async def test_a_lost_append_changes_no_answer(autojump_clock, monkeypatch: pytest.MonkeyPatch):
    database = Database()
    async with executing(database, new) as (_, backend):
        append = backend.append

        async def overtaken(leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> None:
            await append(leased, records, after, mail)

        monkeypatch.setattr(backend, "append", overtaken)  # answers nothing: its records have to be read
        row = database.start(new)
        await database.wait_state("r", "parked")
        database.notify("r", message("go", '"now"'))
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == NEW_WAY
    assert marks(row) == ["DONE fraud check"]


def test_in_a_test_runs_are_new():
    run = run_workflow(new, messages=[Message("go", "now", after="1 min")])
    assert run.result() == ["charged", "clean", "shipped"]
    assert [(record.kind, record.mark) for record in run.journal] == [
        (JournalKind.DONE, None),
        (JournalKind.DONE, "fraud check"),
        (JournalKind.MESSAGE, None),
        (JournalKind.DONE, None),
    ]


def test_a_patch_has_a_name():
    @workflow
    async def body() -> bool:
        await sleep(1)
        return patched("")

    with pytest.raises(ValueError, match="the name of a patch is '': give text of 1 to 256 characters"):
        run_workflow(body).result()
