"""The answer to a COMMIT of each statement on runs is lost, breaks off, or the statement comes late: nothing is done
twice, nothing that was done is taken for undone, and nobody delivers what another order stands in the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest
import trio

from penstock.core.rules.state import InstanceStatus
from penstock.engine.queues.journal_items import ClaimedRun, NewRecord, RunEnd
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import LeaseLost, Unavailable
from penstock.store.db import backends
from penstock.store.db.database import AWAY
from penstock.wire.update import UpdateCall
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, continue_as_new, done, finish, read, take
from tests.engine.test_ended_in_commit import at_every_message
from tests.shares import mostly_slow
from tests.store.proxy import Proxy

MARK = "mark-of-this-test"
Operation = Callable[[Driver, ClaimedRun], Awaitable[None]]


@pytest.fixture
async def cut_driver(proxy: Proxy, make_driver: MakeDriver, database_dsn: str) -> Driver:
    driver = make_driver(dsn=proxy.dsn)
    driver.dsn = database_dsn  # blocking looks must not go through the proxy, which runs in this thread
    return driver


async def an_append(driver: Driver, run: ClaimedRun) -> None:
    answer = await append(driver, run.run_lease, done(f"/{MARK}"), done("/1"))
    assert answer.reread is not bool(answer.placed), "in doubt: only what is read may be delivered"
    assert [record.path for record in (await read(driver, run.run_lease)).records] == [f"/{MARK}", "/1"]
    await append(driver, run.run_lease, done("/2"), after=(await read(driver, run.run_lease)).records[-1].pos)
    assert await finish(driver, run.run_lease)


async def a_message(driver: Driver, run: ClaimedRun) -> None:
    await driver.engine.runs.send(run.instance_id, MARK, b"1")
    page = await read(driver, run.run_lease)
    assert ([record.name for record in page.records], page.mail) == ([MARK], 1)
    assert await finish(driver, run.run_lease, mail=1)


async def a_call(driver: Driver, run: ClaimedRun) -> None:
    call = UpdateCall(MARK, msgspec.Raw(b"[1]"), "c")
    assert (await driver.engine.updates.ask(run.instance_id, call)).status == "PENDING"
    page = await read(driver, run.run_lease)
    assert ([record.name for record in page.records], page.mail) == ([MARK], 1)
    assert await finish(driver, run.run_lease, mail=1)
    assert (await driver.engine.updates.get(run.instance_id, "c")).status == "UNANSWERED"


async def an_answer(driver: Driver, run: ClaimedRun) -> None:
    await driver.engine.updates.ask(run.instance_id, UpdateCall("set", msgspec.Raw(b"[1]"), "c"))
    [asked] = (await read(driver, run.run_lease)).records
    new = [NewRecord(kind, "c", "set", f'{{"value":"{MARK}"}}', rules=3) for kind in (16, 17)]
    await append(driver, run.run_lease, *new, after=asked.pos, mail=1)
    assert [record.kind for record in (await read(driver, run.run_lease)).records] == [15, 16, 17]
    assert (await driver.engine.updates.get(run.instance_id, "c")).status == "DONE"
    assert await finish(driver, run.run_lease, mail=1)


async def a_refusal(driver: Driver, run: ClaimedRun) -> None:
    """Not being a record, it is never found; done twice it is the same."""
    await driver.engine.updates.ask(run.instance_id, UpdateCall("set", msgspec.Raw(b"[1]"), "c"))
    [asked] = (await read(driver, run.run_lease)).records
    refusal = NewRecord(18, "c", str(asked.pos), f'{{"refused":"{MARK}"}}', rules=3)
    await append(driver, run.run_lease, refusal, after=asked.pos, mail=1)
    assert (await read(driver, run.run_lease)).records == []
    assert (await driver.engine.updates.get(run.instance_id, "c")).reason == MARK
    assert await finish(driver, run.run_lease, mail=1)


async def a_message_that_wakes(driver: Driver, run: ClaimedRun) -> None:
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=None)
    await driver.engine.runs.send(run.instance_id, MARK, b"1")
    [again] = await take(driver)
    assert (again.run_lease.instance, again.run_lease.attempt, again.mail) == (run.run_lease.instance, 2, 1)
    assert await finish(driver, again.run_lease, mail=1)


async def a_parking(driver: Driver, run: ClaimedRun) -> None:
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=None, view=f'"{MARK}"'.encode())
    await driver.engine.runs.send(run.instance_id, "go", b"1")
    [again] = await take(driver)
    assert (again.run_lease.instance, again.run_lease.attempt) == (run.run_lease.instance, 2)
    assert await finish(driver, again.run_lease, mail=1)


async def a_block(driver: Driver, run: ClaimedRun) -> None:
    await driver.engine.journal.block(run.run_lease, MARK)
    assert driver.rows(f"SELECT state, failures FROM token WHERE id = {run.run_lease.instance}") == [(4, 1)]
    await driver.engine.instances.cancel(run.instance_id, None, force=True)


async def an_end(driver: Driver, run: ClaimedRun) -> None:
    assert await finish(driver, run.run_lease, MARK)
    assert driver.rows(f"SELECT status FROM instance WHERE id = {run.run_lease.instance}") == [(1,)]
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/0"))


async def a_continuation(driver: Driver, run: ClaimedRun) -> None:
    await driver.engine.runs.send(run.instance_id, "go", b"1")
    [kept] = (await read(driver, run.run_lease)).records
    begun = f'{{"arguments":{{}},"continuation":1,"view":"{MARK}"}}'
    assert await continue_as_new(driver, run.run_lease, begun, mail=1, kept=[kept.pos])
    page = await read(driver, run.run_lease)
    assert [(record.kind, record.name, record.payload) for record in page.records] == [(10, "1", begun), (6, "go", "1")]
    assert await finish(driver, run.run_lease, mail=1)


async def a_child(driver: Driver, run: ClaimedRun, arguments: str = MARK, result: object = None) -> None:
    """Its start; then its end, and what the caller is told of it."""
    children, audit, given = driver.engine.children, CodeWorkflow("audit"), f'{{"x":"{arguments}"}}'.encode()
    id = ""
    while not id:  # as an executor does
        with suppress(Unavailable):
            id = await children.start(run.run_lease, "/0", audit, given, f"c-{run.instance_id}")
    [child] = await driver.engine.code.take("e0.0123abcd/audit-1", [audit], 1, wait_s=5)
    assert child.instance_id == id
    assert await finish(driver, child.run_lease, result)
    with trio.fail_after(30):
        while not (page := await read(driver, run.run_lease)).records:
            with suppress(*AWAY):
                await driver.engine.timers.fire_once()
    assert ([(record.kind, record.path) for record in page.records], page.mail) == ([(8, "/0")], 1)
    assert await finish(driver, run.run_lease, mail=1)


async def an_end_of_a_child(driver: Driver, run: ClaimedRun) -> None:
    await a_child(driver, run, "", MARK)


CHILDREN = (a_child, an_end_of_a_child)
CALLS = (a_call, an_answer, a_refusal)
OPERATIONS = [*CHILDREN, *CALLS, a_continuation, an_append, a_message, a_message_that_wakes, a_parking, a_block, an_end]


@pytest.mark.parametrize("fatal", [True, False], ids=["terminated", "reset"])
@pytest.mark.parametrize(
    "operation",
    mostly_slow(OPERATIONS, quick=[an_append, an_end], reason="ends a session at each message"),
    ids=lambda operation: operation.__name__,
)
async def test_an_answer_breaks_off_at_each_of_its_messages(
    cut_driver: Driver, proxy: Proxy, operation: Operation, fatal: bool
) -> None:
    async def one(number: int) -> None:
        await operation(cut_driver, await begin(cut_driver))

    times = await at_every_message(proxy, fatal, one)
    assert times > 1
    ended = cut_driver.rows("SELECT count(*), count(DISTINCT id) FROM instance WHERE status <> 0")
    both = 2 * times if operation in CHILDREN else times
    assert ended == [(both, both)]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_what_the_server_never_got_is_done_once(cut_driver: Driver, proxy: Proxy, operation: Operation) -> None:
    run = await begin(cut_driver)
    cut = proxy.cut_at(MARK.encode(), committed=False)
    with trio.fail_after(60):
        await operation(cut_driver, run)
        await cut.done.wait()


async def test_an_append_that_comes_late_comes_to_nothing(cut_driver: Driver, proxy: Proxy) -> None:
    """The server gets the statement after its repetition was committed, in a session that lived on: it is ended before
    anything is looked for. (Without that the records stand twice.)"""
    run = await begin(cut_driver)
    cut = proxy.cut_late(MARK.encode())
    with trio.fail_after(60):
        await an_append_only(cut_driver, run)
        assert cut.late is not None
        cut.late.set()
        await cut.done.wait()
    assert [record.path for record in (await read(cut_driver, run.run_lease)).records] == [f"/{MARK}"]
    await finish(cut_driver, run.run_lease)


async def an_append_only(driver: Driver, run: ClaimedRun) -> None:
    assert (await append(driver, run.run_lease, done(f"/{MARK}"))).reread


async def test_a_doubt_lasts_while_its_session_does(
    proxy: Proxy, make_driver: MakeDriver, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(dsn=proxy.dsn, outage_wait_seconds=0.2)
    driver.dsn = database_dsn
    run = await begin(driver)
    ends = backends.end_backend

    async def never(*_: object) -> bool:
        return True

    monkeypatch.setattr(backends, "end_backend", never)
    proxy.cut_at(MARK.encode(), committed=True)
    with pytest.raises(Unavailable):
        await an_append_only(driver, run)
    monkeypatch.setattr(backends, "end_backend", ends)
    await an_append_only(driver, run)
    assert [record.path for record in (await read(driver, run.run_lease)).records] == [f"/{MARK}"]
    end = RunEnd(InstanceStatus.FAILED, failure="tried enough")
    assert await driver.engine.journal.finish(run.run_lease, end, mail=0)
