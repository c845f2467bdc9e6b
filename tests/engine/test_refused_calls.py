"""Refused calls of updates: a run remembers the newest ones only, however many there are."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from penstock.engine.queues.journal_items import ClaimedRun, NewRecord
from penstock.engine.runs.updates import FORGOTTEN
from penstock.errors import Conflict, LeaseLost, NotFound
from penstock.wire.update import UpdateCall
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, finish, read
from tests.store.proxy import Proxy

MARK = "mark-of-this-test"


async def ask(driver: Driver, run: ClaimedRun, id: str) -> str | None:
    return (await driver.engine.updates.ask(run.instance_id, UpdateCall("set", msgspec.Raw(b"[1]"), id))).status


async def answer(driver: Driver, run: ClaimedRun, id: str, mail: int, *, refused: bool = True) -> None:
    """Answer the call, which came last."""
    [asked] = [record for record in (await read(driver, run.run_lease)).records if record.path == id]
    kinds, value = ((18,), "refused") if refused else ((16, 17), "value")
    new = [NewRecord(kind, id, str(asked.pos), f'{{"{value}":"{MARK}"}}', rules=3) for kind in kinds]
    await append(driver, run.run_lease, *new, after=asked.pos, mail=mail)


async def refuse(driver: Driver, run: ClaimedRun, id: str, mail: int) -> None:
    assert await ask(driver, run, id) == "PENDING"
    await answer(driver, run, id, mail)
    found = await driver.engine.updates.get(run.instance_id, id)
    assert (found.status, found.reason) == ("REFUSED", MARK)


def remembered(driver: Driver, run: ClaimedRun) -> list[str]:
    """Return the ids of calls that are known. What tells the order of refusals is only of such calls."""
    rows = driver.rows(
        'SELECT id FROM signal_id WHERE instance_id = %s ORDER BY id COLLATE "C"', run.run_lease.instance
    )
    calls = [id.removeprefix("u:") for (id,) in rows if id.startswith("u:")]
    assert {id[23:] for (id,) in rows if id.startswith("~u:")} <= set(calls)
    return calls


async def test_a_caller_in_a_loop_leaves_the_newest_refusals_only(make_driver: MakeDriver) -> None:
    driver = make_driver(refused_calls_max_items=3)
    run, other = await begin(driver), await begin(driver)
    await refuse(driver, other, "of another run", 1)
    assert await ask(driver, run, "served") == "PENDING"
    await answer(driver, run, "served", 1, refused=False)
    assert await ask(driver, run, "open") == "PENDING"
    for n in range(20):
        await refuse(driver, run, f"c{n:02}", 3 + n)
    assert remembered(driver, run) == ["c17", "c18", "c19", "open", "served"]
    assert remembered(driver, other) == ["of another run"]
    assert driver.rows("SELECT count(*) FROM signal_id") == [(5 + 3 + 2,)]
    assert [record.path for record in (await read(driver, run.run_lease)).records] == ["served"] * 3 + ["open"]


async def test_with_a_lower_setting_a_run_has_no_more_than_before(make_driver: MakeDriver) -> None:
    before, driver = make_driver(refused_calls_max_items=3), make_driver(refused_calls_max_items=1)
    run = await begin(before)
    for n in range(4):
        await refuse(before, run, f"a{n}", 1 + n)
    assert remembered(before, run) == ["a1", "a2", "a3"]
    for n in range(3):
        await refuse(driver, run, f"b{n}", 5 + n)
    assert remembered(driver, run) == ["a1", "a2", "b2"], "the newest that the setting allows, and its oldest"


async def test_a_refused_call_with_the_same_id_is_checked_anew_once_it_is_forgotten(make_driver: MakeDriver) -> None:
    driver = make_driver(refused_calls_max_items=1)
    run = await begin(driver)
    await refuse(driver, run, "a", 1)
    assert await ask(driver, run, "a") == "REFUSED", "it is remembered"
    await refuse(driver, run, "b", 2)
    with pytest.raises(NotFound, match="has no call with the id 'a'"):
        await driver.engine.updates.get(run.instance_id, "a")

    assert await ask(driver, run, "a") == "PENDING"
    await answer(driver, run, "a", 3, refused=False)
    await refuse(driver, run, "c", 4)
    assert await ask(driver, run, "a") == "DONE", "a call that was served is never forgotten"
    assert remembered(driver, run) == ["a", "c"]

    assert await finish(driver, run.run_lease, mail=4)
    assert await ask(driver, run, "c") == "REFUSED"
    with pytest.raises(Conflict, match="the run has ended"):
        await ask(driver, run, "b")


async def test_refusals_of_one_append_are_forgotten_in_its_order(make_driver: MakeDriver) -> None:
    driver = make_driver(refused_calls_max_items=2)
    run = await begin(driver)
    for id in ("d", "c", "b", "a"):
        assert await ask(driver, run, id) == "PENDING"
    asked = (await read(driver, run.run_lease)).records
    new = [NewRecord(18, call.path, str(call.pos), f'{{"refused":"{MARK}"}}', rules=3) for call in asked]
    await append(driver, run.run_lease, *new, after=asked[-1].pos, mail=4)
    assert remembered(driver, run) == ["a", "b"]
    assert (await read(driver, run.run_lease)).records == []


async def test_who_waits_for_a_call_that_is_refused_and_forgotten_hears_so(make_driver: MakeDriver) -> None:
    driver = make_driver(refused_calls_max_items=1)
    run, received = await begin(driver), dict[str, str | None]()

    async def wait(id: str) -> None:
        call = UpdateCall("set", msgspec.Raw(b"[1]"), id, wait_seconds=20)
        answered = await driver.engine.updates.ask(run.instance_id, call)
        assert answered.status == "REFUSED"
        received[id] = answered.reason

    async with trio.open_nursery() as nursery:
        for id in ("a", "b"):
            nursery.start_soon(wait, id)
            await trio.testing.wait_all_tasks_blocked()
        while len(asked := (await read(driver, run.run_lease)).records) < 2:
            await trio.lowlevel.checkpoint()
        new = [NewRecord(18, call.path, str(call.pos), f'{{"refused":"{MARK}"}}', rules=3) for call in asked]
        await append(driver, run.run_lease, *new, after=asked[-1].pos, mail=2)
    kept, forgotten = asked[-1].path, asked[0].path
    assert received == {kept: MARK, forgotten: FORGOTTEN}


async def test_an_executor_that_lost_the_run_forgets_nothing(make_driver: MakeDriver) -> None:
    driver = make_driver(refused_calls_max_items=1)
    run = await begin(driver)
    await refuse(driver, run, "a", 1)
    assert await ask(driver, run, "b") == "PENDING"
    before = driver.rows("SELECT * FROM signal_id ORDER BY id")
    [asked] = (await read(driver, run.run_lease)).records
    lost = run.run_lease._replace(attempt=run.run_lease.attempt + 1)
    with pytest.raises(LeaseLost):
        await append(driver, lost, NewRecord(18, "b", str(asked.pos), "{}", rules=3), after=asked.pos, mail=2)
    assert driver.rows("SELECT * FROM signal_id ORDER BY id") == before


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "never got"])
async def test_a_refusal_in_doubt_is_remembered_once(
    make_driver: MakeDriver, proxy: Proxy, database_dsn: str, committed: bool
) -> None:
    driver = make_driver(dsn=proxy.dsn, refused_calls_max_items=2)
    driver.dsn = database_dsn  # blocking looks must not go through the proxy, which runs in this thread
    run = await begin(driver)
    assert await ask(driver, run, "a") == "PENDING"
    cut = proxy.cut_at(MARK.encode(), committed=committed)
    with trio.fail_after(60):
        await answer(driver, run, "a", 1)
        await cut.done.wait()
    await refuse(driver, run, "b", 2)
    assert remembered(driver, run) == ["a", "b"]
    assert driver.rows("SELECT count(*) FROM signal_id") == [(4,)]
    await refuse(driver, run, "c", 3)
    assert remembered(driver, run) == ["b", "c"]
    assert driver.rows("SELECT count(*) FROM signal_id") == [(4,)]
