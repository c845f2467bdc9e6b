"""Runs that wait: parked until their time or their mail comes, told things at any moment, cancelled, blocked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.core.rules.state import InstanceStatus
from penstock.engine.queues.journal_items import ClaimedRun, RunEnd, RunLease
from penstock.engine.runs.mailbox import OpenBranch
from penstock.errors import (
    BadRequest,
    Conflict,
    IdempotencyConflict,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    TooManyRequests,
)
from penstock.settings import Secret
from penstock.store.rows.run_claims import BEGINNING_MAX_BYTES, BEGINNING_MAX_ROWS
from penstock.testing.definitions import linear
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import HOLDER, append, begin, done, finish, read, take

MESSAGE, CANCEL = 6, 7


async def send(driver: Driver, run: ClaimedRun | str, name: str = "go", payload: bytes = b"1", **fields: Any) -> None:
    await driver.engine.runs.send(run if isinstance(run, str) else run.instance_id, name, payload, **fields)


async def park(driver: Driver, held: RunLease, *, mail: int = 0, due_at: float | None = None) -> bool:
    return await driver.engine.journal.park(held, mail=mail, due_at=due_at)


def state(driver: Driver) -> list[tuple[Any, ...]]:
    return driver.rows(
        "SELECT t.state, t.mail, (SELECT count(*) FROM ready r WHERE r.token_id = t.id), (SELECT count(*) FROM parked),"
        " (SELECT count(*) FROM timer) FROM token t"
    )


async def test_a_parked_run_is_a_row_that_messages_wake(driver: Driver) -> None:
    run = await begin(driver)
    assert await park(driver, run.run_lease, due_at=driver.clock.now().timestamp() + 60)
    assert state(driver) == [(2, 0, 0, 1, 1)]
    assert await driver.status(run.instance_id) == "WAITING"
    assert await take(driver, wait_s=0) == []
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/0"))
    await send(driver, run, "payment", b'{"by": "ann"}')
    assert state(driver) == [(0, 1, 1, 0, 0)]
    [again] = await take(driver)
    assert (again.run_lease.attempt, again.mail) == (2, 1)
    page = await read(driver, again.run_lease)
    assert [(r.kind, r.name, r.payload) for r in page.records] == [(MESSAGE, "payment", '{"by": "ann"}')]
    assert page.mail == 1
    await finish(driver, again.run_lease, mail=1)


async def test_a_parked_run_wakes_at_its_time_and_not_before(make_driver: MakeDriver) -> None:
    driver = make_driver()
    run = await begin(driver)
    assert await park(driver, run.run_lease, due_at=driver.clock.now().timestamp() + 3600)
    assert await driver.due() == 0
    assert await driver.due(3500) == 0
    assert await driver.due(101) == 1
    assert state(driver) == [(0, 0, 1, 0, 0)]
    [again] = await take(driver)
    assert await park(driver, again.run_lease, due_at=driver.clock.now().timestamp() - 5), "it is due already"
    assert await driver.due() == 1
    [again] = await take(driver)
    for mail, never in enumerate((None, float("inf"), 1e18)):
        assert await park(driver, again.run_lease, mail=mail, due_at=never)
        assert state(driver) == [(2, mail, 0, 1, 0)]
        await send(driver, run)
        [again] = await take(driver)
    assert await finish(driver, again.run_lease, mail=3)


async def test_who_has_not_seen_all_mail_neither_parks_nor_ends(driver: Driver) -> None:
    run = await begin(driver)
    await send(driver, run)
    assert await park(driver, run.run_lease) is False
    assert await finish(driver, run.run_lease) is False
    assert state(driver) == [(1, 1, 0, 0, 0)]
    answer = await append(driver, run.run_lease, done("/0"))
    assert (answer.mail, answer.reread) == (1, False)
    page = await read(driver, run.run_lease)
    assert ([r.kind for r in page.records], page.mail) == ([MESSAGE, 1], 1)
    assert [r.pos for r in page.records] == sorted(r.pos for r in page.records)
    assert page.records[1].pos == answer.placed[0].pos
    assert (await driver.engine.journal.extend(run.run_lease)).mail == 1
    assert await park(driver, run.run_lease, mail=1)


async def test_the_holder_hears_of_mail_through_every_engine(make_driver: MakeDriver) -> None:
    here, there = make_driver(0), make_driver(1)
    run = await begin(here)
    journal = here.engine.journal
    journal.open_mailbox(HOLDER)
    there.engine.events.mailed.listen(journal.receive)  # as NOTIFY does it
    for number, driver in enumerate((here, there), 1):
        await send(driver, run)
        with trio.fail_after(10):
            [mail] = await journal.wait_mailbox(HOLDER)
        assert (mail.instance, mail.mail) == (run.run_lease.instance, number)
    await send(here, run)
    await send(here, run)
    with trio.fail_after(10):
        assert [mail.mail for mail in await journal.wait_mailbox(HOLDER)] == [4]
    with trio.move_on_after(0) as scope:
        await journal.wait_mailbox(HOLDER)
    assert scope.cancelled_caught


async def test_a_deduplicated_message_comes_once_while_the_run_is_kept(driver: Driver) -> None:
    run = await begin(driver)
    for _ in range(2):
        await send(driver, run, "payment", b'{"a": 1, "b": 2}', dedup="mail-4711")
    await send(driver, run, "payment", b'{"b": 2, "a": 1}', dedup="mail-4711")
    with pytest.raises(IdempotencyConflict):
        await send(driver, run, "payment", b"2", dedup="mail-4711")
    await send(driver, run, "payment", b"2")
    assert (await read(driver, run.run_lease)).mail == 2
    assert await finish(driver, run.run_lease, mail=2)
    await send(driver, run, "payment", b'{"a": 1, "b": 2}', dedup="mail-4711")
    with pytest.raises(Conflict, match="ended: it is COMPLETED"):
        await send(driver, run, "payment", b"3")
    assert driver.rows("SELECT count(*) FROM journal") == [(2,)]


async def test_who_can_be_told_nothing_says_why(make_driver: MakeDriver) -> None:
    driver = make_driver(messages_unread_max_items=3, payload_max_bytes=1024)
    graph = await driver.run(linear(1))
    with pytest.raises(NotFound):
        await send(driver, "1f")
    with pytest.raises(NotFound):
        await send(driver, "no id")
    for operation in (send(driver, graph), driver.engine.runs.journal(graph)):
        with pytest.raises(Conflict, match="is not a durable run"):
            await operation
    run = await begin(driver)
    for payload, error in ((b"{", BadRequest), (b'"' + b"x" * 1024 + b'"', PayloadTooLarge)):
        with pytest.raises(error, match="payload"):
            await send(driver, run, payload=payload)
    wrong: list[dict[str, Any]] = [{"name": ""}, {"name": "x" * 257}, {"dedup": "x" * 257}]
    for fields in wrong:
        with pytest.raises(BadRequest):
            await send(driver, run, **fields)
    for _ in range(3):
        await send(driver, run)
    with pytest.raises(TooManyRequests, match="3 unread"):
        await send(driver, run)
    await driver.cancel(run.instance_id)  # no message
    await append(driver, run.run_lease, done("/0"), mail=4)
    await send(driver, run)


async def test_a_cancel_is_reported_once_and_the_body_cleans_up(driver: Driver) -> None:
    run = await begin(driver)
    assert (await driver.cancel(run.instance_id, "customer")).status == "ACTIVE"
    await driver.cancel(run.instance_id, "again")
    page = await read(driver, run.run_lease)
    assert [(r.kind, r.path, r.payload) for r in page.records] == [(CANCEL, "", '{"reason":"customer","by":null}')]
    assert driver.rows("SELECT detail FROM audit WHERE kind = 'CANCEL_REQUESTED'") == [("customer",)]
    assert await driver.engine.journal.finish(
        run.run_lease, RunEnd(InstanceStatus.CANCELLED, failure="customer"), mail=1
    )
    assert await driver.status(run.instance_id) == "CANCELLED"
    with pytest.raises(Conflict):
        await driver.cancel(run.instance_id)


@pytest.mark.parametrize("before", ["held", "parked", "queued", "blocked"])
async def test_force_ends_a_run_in_whatever_state_it_is(driver: Driver, before: str) -> None:
    run = await begin(driver)
    match before:
        case "parked":
            await park(driver, run.run_lease, due_at=driver.clock.now().timestamp() + 60)
        case "queued":
            await driver.engine.journal.release(run.run_lease)
        case "blocked":
            await driver.engine.journal.block(
                run.run_lease, "at /3 the journal has 'charge', the code asks for 'fraud'"
            )
        case _:
            pass
    view = await driver.engine.instances.cancel(run.instance_id, "now", force=True)
    assert (view.status, view.failure_reason) == ("CANCELLED", "now")
    if before == "held":
        assert [lost.job_id for lost in await driver.engine.jobs.wait_lost(HOLDER, 5)]
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/0"))
    assert driver.rows("SELECT count(*) FROM timer") == driver.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_signals_to_runs_are_messages(driver: Driver) -> None:
    run = await begin(driver)
    await driver.signal(run.instance_id, "payment", {"by": "ann"}, signal_id="s1")
    await driver.signal(run.instance_id, "payment", {"by": "ann"}, signal_id="s1")
    assert [(r.name, r.payload) for r in (await read(driver, run.run_lease)).records] == [("payment", '{"by":"ann"}')]
    assert await finish(driver, run.run_lease, mail=1)


async def test_a_blocked_run_returns_after_growing_pauses(driver: Driver) -> None:
    run = await begin(driver)
    journal, held, pauses = driver.engine.journal, run.run_lease, []
    for _ in range(8):
        pauses.append(await journal.block(held, "the code asks for 'fraud'"))
        assert state(driver) == [(4, 0, 0, 1, 1)]
        assert await take(driver, wait_s=0) == []
        assert await driver.due(pauses[-1] - 1) == 0
        assert await driver.due(2) == 1
        [again] = await take(driver)
        held = again.run_lease
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert driver.rows("SELECT count(*), min(reason) FROM history WHERE kind = 10") == [
        (1, "the code asks for 'fraud'")
    ]
    await append(driver, held, done("/0"))
    assert await journal.block(held, "another") == 5
    tree = await driver.engine.runs.tree(run.instance_id)
    assert tree.waits_for == "other code: another"
    await driver.due(6)
    [again] = await take(driver)
    await finish(driver, again.run_lease)


async def race(*operations: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for operation in operations:
            nursery.start_soon(operation)


async def test_nothing_is_slept_through_when_parking_races_with_mail(make_driver: MakeDriver) -> None:
    """From two engines at once: whatever comes first, who is parked has no unseen mail, nor who has ended."""
    here, there = make_driver(0), make_driver(1)
    slept: list[bool] = []
    refused: list[str] = []
    for number in range(40):
        run = await begin(here)

        async def try_park(run: ClaimedRun = run, number: int = number) -> None:
            due_at = 0.0 if number % 4 == 2 else None
            slept.append(
                await (finish(here, run.run_lease) if number % 4 == 1 else park(here, run.run_lease, due_at=due_at))
            )

        async def try_send(run: ClaimedRun = run) -> None:
            try:
                await send(there, run)
            except Conflict:
                refused.append(run.instance_id)

        async def fire() -> None:
            await there.engine.timers.fire_once()

        await race(try_park, try_send, fire)
        if number % 4 == 1 and slept[-1]:
            assert refused.pop() == run.instance_id
            continue
        await here.engine.timers.fire_once()
        [(now, mail, written)] = here.rows(
            f"SELECT state, mail, (SELECT count(*) FROM journal j WHERE j.instance_id = t.id) FROM token t"
            f" WHERE id = {run.run_lease.instance}"
        )
        assert mail == written == 1
        assert now == (0 if slept[-1] else 1), "woken by the mail, or never asleep"
        if slept[-1]:
            [again] = await take(here)
        else:
            again = run
        assert await finish(here, again.run_lease, mail=1)
    assert refused == []


async def test_wake_ups_of_deleted_runs_go_and_hide_none(driver: Driver) -> None:
    run = await begin(driver)
    assert await park(driver, run.run_lease, due_at=driver.clock.now().timestamp() + 60)
    for token, seq in ((1, 1), (run.run_lease.instance, run.run_lease.seq + 1)):  # also of another execution of it
        driver.rows(
            "INSERT INTO timer (token_id, seq, fire_at, instance_id, index) SELECT %s, %s, penstock_now(), 1, -16"
            " RETURNING 1",
            token,
            seq,
        )
    await driver.due(61)
    assert state(driver) == [(0, 0, 1, 0, 0)]


async def test_a_run_whose_row_somebody_holds_keeps_nobody_waiting(driver: Driver) -> None:
    slow, other, parked = await begin(driver), await begin(driver), await begin(driver)
    assert await park(driver, parked.run_lease, due_at=driver.clock.now().timestamp())
    over: list[str] = []

    async def append_slowly() -> None:
        await append(driver, slow.run_lease, done("/0"))
        over.append("slow")

    with psycopg.connect(driver.dsn) as holder:
        holder.execute(
            "SELECT FROM token WHERE id = ANY(%s) FOR UPDATE", ([slow.run_lease.instance, parked.run_lease.instance],)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_slowly)
            nursery.start_soon(send, driver, slow)
            with trio.fail_after(15):
                await append(driver, other.run_lease, done("/0"))
                await send(driver, other)
                assert await finish(driver, other.run_lease, mail=1)
                assert await driver.engine.journal.wake(parked.run_lease.instance, parked.run_lease.seq) is False
            assert over == [], "its row is held"
            holder.rollback()
    assert over == ["slow"]
    assert (await read(driver, slow.run_lease)).mail == 1
    assert await driver.due() == 1


async def test_the_tree_shows_what_ended_and_what_is_open(driver: Driver) -> None:
    run = await begin(driver)
    await append(driver, run.run_lease, done("/0"), done("/1.[sku-9]/0"))
    open_ones = [
        OpenBranch("/1", "nursery", where="order.py:41"),
        OpenBranch("/1.[sku-9]/1", "step", name="pack", since=1_900_000_000.0),
        OpenBranch("/1.1/0", "receive", name="payment", due_at=1_900_000_060.0),
    ]
    branches = msgspec.json.encode(open_ones)
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=None, view=b'{"stage":1}', branches=branches)
    tree = await driver.engine.runs.tree(run.instance_id)
    assert (tree.status, tree.workflow, tree.version, tree.waits_for) == ("WAITING", "order", 1, "message 'payment'")
    assert msgspec.json.decode(msgspec.json.encode(tree.view)) == {"stage": 1}
    first, nursery = tree.branches
    assert (first.path, first.status, first.name) == ("/0", "done", "charge")
    assert (nursery.path, nursery.status, nursery.where) == ("/1", "open", "order.py:41")
    assert nursery.children is not None
    packing, paying = nursery.children
    assert [(child.path, child.status) for child in packing.children or ()] == [
        ("/1.[sku-9]/0", "done"), ("/1.[sku-9]/1", "running"),
    ]  # fmt: skip
    [payment] = paying.children or []
    assert (payment.path, payment.status, payment.name) == ("/1.1/0", "waiting", "payment")
    assert payment.due_at is not None


async def test_a_journal_tells_what_was_replayed(driver: Driver) -> None:
    async def replayed() -> list[bool | None]:
        slices = [await driver.engine.runs.journal(run.instance_id, None, limit) for limit in (2, 10)]
        assert [item.replayed for item in slices[0].items] == [item.replayed for item in slices[1].items][:2]
        return [item.replayed for item in slices[1].items]

    run = await begin(driver)
    await send(driver, run)
    await append(driver, run.run_lease, done("/0"), done("/1"), mail=1)
    assert await replayed() == [False] * 3, "the first who has it replays nothing"
    assert await park(driver, run.run_lease, mail=1, due_at=None)
    assert await replayed() == [None] * 3, "nobody has it"
    await send(driver, run)
    [again] = await take(driver)
    assert await replayed() == [True, True, True, False], "the message woke it"
    await append(driver, again.run_lease, done("/2"), mail=2)
    assert await park(driver, again.run_lease, mail=2, due_at=driver.clock.now().timestamp())
    await driver.due()
    [third] = await take(driver)
    assert await replayed() == [True] * 5, "its time woke it"
    await finish(driver, third.run_lease, mail=2)
    assert await replayed() == [True] * 5


async def test_a_parked_run_says_so_in_a_sentence(driver: Driver) -> None:
    async def why() -> tuple[str, str, list[str]]:
        state = await driver.engine.diagnosis.state(run.instance_id)
        return state.why.code, state.why.text, [timer.kind for timer in state.timers]

    run = await begin(driver)
    assert (await why())[0] == "runs"
    assert await park(driver, run.run_lease)
    assert await why() == ("waits-for-message", "run was parked by its worker until a message comes", [])
    await send(driver, run)
    [again] = await take(driver)
    assert await park(driver, again.run_lease, mail=1, due_at=driver.clock.now().timestamp() + 60)
    text = "run was parked by its worker until its time or a message comes"
    assert await why() == ("waits-for-time", text, ["wake"])


async def test_a_journal_is_paged_for_clients(driver: Driver) -> None:
    run = await begin(driver)
    await append(driver, run.run_lease, *(done(f"/{n}") for n in range(5)), done("/5", "~zip:AAAA"))
    await send(driver, run, "go", b"[1]")
    found, cursor = [], None
    while True:
        page = await driver.engine.runs.journal(run.instance_id, cursor, 2)
        found += page.items
        cursor = page.next
        if cursor is None:
            break
    assert [(item.kind, item.path) for item in found] == [*(("done", f"/{n}") for n in range(6)), ("message", "")]
    assert (bytes(found[5].payload or b""), found[5].codec) == (b'"AAAA"', "zip")
    assert bytes(found[6].payload or b"") == b"[1]"
    with pytest.raises(BadRequest, match="cursor"):
        await driver.engine.runs.journal(run.instance_id, "-")


async def test_a_run_comes_with_the_beginning_of_its_journal(driver: Driver) -> None:
    few, many, large, none = [await begin(driver) for _ in range(4)]
    await append(driver, few.run_lease, done("/0"), done("/1", '"two"'))
    await append(driver, many.run_lease, *[done(f"/{n}") for n in range(BEGINNING_MAX_ROWS + 1)])
    await append(driver, large.run_lease, done("/0", f'"{"x" * BEGINNING_MAX_BYTES}"'))
    for run in (few, many, large, none):
        await park(driver, run.run_lease, due_at=driver.clock.now().timestamp() - 1)
    await send(driver, few)
    assert await driver.due() == 3
    taken = {run.run_lease.instance: run for run in await take(driver, n=10)}
    pages = [taken[run.run_lease.instance].page for run in (few, many, large, none)]
    for run, page in zip((few, many, large, none), pages, strict=True):
        whole = await read(driver, run.run_lease)
        assert page is not None
        assert page.records == whole.records[: len(page.records)]
        assert page.more == (len(page.records) < len(whole.records))
        assert page.mail == whole.mail == taken[run.run_lease.instance].mail
    assert [len(page.records) for page in pages if page is not None] == [3, BEGINNING_MAX_ROWS, 0, 0]


async def test_a_missing_key_leaves_out_its_run_only(make_driver: MakeDriver) -> None:
    keys = [f"{id}={id * 43}=" for id in "AB"]
    runs: list[ClaimedRun] = []
    for ring in (keys[0], f"{keys[1]},{keys[0]}"):
        driver = make_driver(encryption_keys=Secret(ring))
        runs.append(await begin(driver))
        await append(driver, runs[-1].run_lease, done("/0"))
        await park(driver, runs[-1].run_lease, due_at=driver.clock.now().timestamp() - 1)
    driver = make_driver(encryption_keys=Secret(keys[1]))
    assert await driver.due() == 2
    pages = {run.run_lease.instance: run.page for run in await take(driver, n=10)}
    assert pages[runs[0].run_lease.instance] is None
    readable = pages[runs[1].run_lease.instance]
    assert readable is not None
    assert [record.payload for record in readable.records] == ['"ok"']
