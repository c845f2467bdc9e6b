"""What SQL functions ask for in transactions that stay open for long, or that somebody else commits once prepared."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import Any, Final

import psycopg
import pytest
import trio
from psycopg.pq import TransactionStatus

from penstock.engine.queues import low_water_marks
from penstock.runtime.retention import Retention
from penstock.testing.definitions import definition, end, service
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_sql_requests import ORDERS, OTHERS, call, carry_out, failed, shop
from tests.waiting import WAIT_TIMEOUT_S

__all__ = ["shop"]

OPEN_S: Final = float(os.environ.get("PENSTOCK_OPEN_SECONDS", "0"))
"""How long the long transaction is open, at least; the suite lets it go after `ROUNDS`."""
ROUNDS: Final = 30
AHEAD_IDS: Final = 200_000
"""What the sequence of the queue goes on by while the transaction is open: well over the low-water marks' margin."""
NOTHING_LEFT: Final = [(0,)]
QUICK: Final = definition(service("a", "end", job_type="quick"), end(), definition_id="quick")


@pytest.fixture
def two_phase(shop: psycopg.Connection[Any]) -> Generator[psycopg.Connection[Any]]:
    """Prepares, commits and rolls back; what a test leaves prepared would keep its database."""
    yield shop
    if shop.info.transaction_status != TransactionStatus.IDLE:  # a test failed within one
        shop.execute("ROLLBACK")
    mine = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for (gid,) in shop.execute(mine).fetchall():
        shop.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def phase(shop: psycopg.Connection[Any], words: str, gid: str) -> None:
    """`PREPARE TRANSACTION`, `COMMIT PREPARED` or `ROLLBACK PREPARED`. The databases of all tests that run have the
    names of prepared transactions together."""
    shop.execute(f"{words} '{gid} {shop.info.dbname}'".encode())


def prepare(shop: psycopg.Connection[Any], gid: str, definition: str = "orders", **named: object) -> str:
    """Start an instance in a transaction and prepare that; its id."""
    shop.execute("BEGIN")
    shop.execute("SET LOCAL penstock.notify = off")
    instance = call(shop, "start", definition, {"gid": gid}, **named)
    shop.execute("INSERT INTO orders VALUES (hashtext(%s), %s)", [gid, instance])
    phase(shop, "PREPARE TRANSACTION", gid)
    return str(instance)


async def test_a_prepared_start_is_carried_out_after_commit_prepared(
    driver: Driver, two_phase: psycopg.Connection[Any]
) -> None:
    await driver.upload(ORDERS)
    kept, gone = prepare(two_phase, "kept"), prepare(two_phase, "gone")
    assert await carry_out(driver) == 0, "the engine neither sees nor waits for what is prepared"
    later = call(two_phase, "start", "orders")
    assert await carry_out(driver) == 1, "a later transaction does not wait for them"
    assert await driver.status(later) == "ACTIVE"
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]
    async with driver.engine.database.connection() as connection:
        await driver.engine.sql_requests.chores(connection)
    await Retention(driver.engine).run_once()
    phase(two_phase, "ROLLBACK PREPARED", "gone")
    assert await carry_out(driver) == 0
    phase(two_phase, "COMMIT PREPARED", "kept")
    assert await carry_out(driver) == 1
    assert await carry_out(driver) == 0
    assert await driver.variables(kept) == {"gid": "kept"}
    assert [(await driver.view(each)).current_step_ids for each in (kept, later)] == [["pay"], ["pay"]]
    assert driver.rows("SELECT to_hex(id) FROM instance ORDER BY id") == [(kept,), (later,)]
    assert driver.rows("SELECT instance FROM orders") == [(kept,)]
    assert gone not in (kept, later)
    assert driver.rows("SELECT count(*) FROM sql_request") == NOTHING_LEFT


async def test_the_requests_of_a_prepared_transaction_keep_their_order(
    driver: Driver, two_phase: psycopg.Connection[Any]
) -> None:
    await driver.upload(ORDERS)
    waiting = (await driver.start("orders")).id
    two_phase.execute("BEGIN")
    two_phase.execute("SET LOCAL penstock.notify = off")
    instance = call(two_phase, "start", "orders")
    call(two_phase, "signal", instance, "approval", {"by": "ada"})
    call(two_phase, "signal", waiting, "approval", {"by": "ada"})
    call(two_phase, "publish", "paid", "o-1")
    call(two_phase, "cancel", instance, "it was a mistake")
    phase(two_phase, "PREPARE TRANSACTION", "all")
    other = call(two_phase, "signal", waiting, "approval", {"by": "bob"}, signal_id="other")
    assert other > 0
    assert await carry_out(driver) == 1, "what is about the same instance does not wait either"
    phase(two_phase, "COMMIT PREPARED", "all")
    assert await carry_out(driver) == 5
    assert await failed(driver) == []
    assert await driver.status(instance) == "CANCELLED"
    assert driver.rows("SELECT output ->> 'by' FROM buffered_signal ORDER BY id") == [("bob",), ("ada",)]
    assert driver.rows("SELECT key FROM message") == [("o-1",)]


async def test_a_prepared_start_keeps_its_key(driver: Driver, two_phase: psycopg.Connection[Any]) -> None:
    """A second writer of the key waits for it, as for other rows. A start over REST does not, and is the first."""
    await driver.upload(ORDERS)
    await driver.upload(OTHERS)
    kept, gone = prepare(two_phase, "kept", instance_key="k"), prepare(two_phase, "gone", "others", instance_key="k")
    two_phase.execute("SET lock_timeout = '100ms'")
    for name in ("orders", "others"):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            call(two_phase, "start", name, instance_key="k")
    taken = (await driver.start("orders", instance_key="k")).id
    phase(two_phase, "COMMIT PREPARED", "kept")
    phase(two_phase, "ROLLBACK PREPARED", "gone")
    free = call(two_phase, "start", "others", instance_key="k")
    assert await carry_out(driver) == 2
    (refused,) = await failed(driver)
    assert (refused.instance_id, refused.error, refused.reason) == (
        kept, "conflict", f"instance '{taken}' has its key",
    )  # fmt: skip
    assert await driver.status(free) == "ACTIVE"
    assert driver.rows("SELECT count(*) FROM instance WHERE to_hex(id) = ANY(%s)", [kept, gone]) == [(0,)]


async def test_an_engine_finds_what_commit_prepared_does_not_announce(
    make_driver: MakeDriver, two_phase: psycopg.Connection[Any]
) -> None:
    driver = make_driver(sql_requests_poll_seconds=0.05)
    await driver.upload(ORDERS)
    instance = prepare(two_phase, "kept")
    phase(two_phase, "COMMIT PREPARED", "kept")
    with trio.fail_after(WAIT_TIMEOUT_S):
        while driver.rows("SELECT count(*) FROM instance") == NOTHING_LEFT:
            await driver.engine.sql_requests.step()
    assert await driver.status(instance) == "ACTIVE"


async def test_a_transaction_that_has_notified_can_not_be_prepared(
    driver: Driver, two_phase: psycopg.Connection[Any]
) -> None:
    await driver.upload(ORDERS)
    two_phase.execute("BEGIN")
    call(two_phase, "start", "orders")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
        phase(two_phase, "PREPARE TRANSACTION", "refused")
    two_phase.execute("ROLLBACK")
    assert driver.rows("SELECT count(*) FROM sql_request") == NOTHING_LEFT
    assert await carry_out(driver) == 0


@pytest.mark.slow(reason="a transaction is open for seconds while others start, work and complete")
async def test_what_a_long_transaction_asks_for_is_not_lost(
    make_driver: MakeDriver, shop: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others start, are polled and complete meanwhile; looks into the queue begin behind all that was there when it
    began, and never at its start. With ``PENSTOCK_OPEN_SECONDS=60`` it is open for so long, and says what it saw."""
    monkeypatch.setattr(low_water_marks, "SCAN_INTERVAL_S", 86_400.0)
    driver = make_driver(services=True, sql_requests_poll_seconds=1)
    for each in (ORDERS, OTHERS, QUICK):
        await driver.upload(each)
    waiting = (await driver.start("orders")).id
    job = await driver.one("pay")
    run = await runs.begin(driver)
    took_s: list[float] = []

    with psycopg.connect(driver.dsn) as program:
        late = [call(program, "start", "quick", {"late": number}) for number in range(3)]
        call(program, "start", "orders", {"n": 1}, instance_key="late")
        call(program, "signal", waiting, "approval", {"by": "late"})
        call(program, "send", run.instance_id, "go", {"by": "late"})
        call(program, "publish", "paid", "late")
        began, rounds = time.monotonic(), 0
        driver.rows(f"SELECT setval('step_seq', nextval('step_seq') + {AHEAD_IDS})")
        with trio.fail_after(OPEN_S + WAIT_TIMEOUT_S):
            while rounds < ROUNDS or time.monotonic() < began + OPEN_S:
                rounds += 1
                instances = {call(shop, "start", "quick", {"n": rounds}), (await driver.start("quick")).id}
                before = time.perf_counter()
                assert await carry_out(driver) == 1
                took_s.append(time.perf_counter() - before)
                while instances:
                    done = await driver.one("quick")
                    instances.remove(done.instance_id)
                    await driver.complete(done)
                await driver.heartbeat(job)
                await runs.append(driver, run.run_lease, runs.done(f"/{rounds - 1}"), after=rounds - 1)
        assert driver.rows("SELECT count(*) FROM sql_request") == NOTHING_LEFT
        assert driver.waiting_for_locks() == 0
        open_s = time.monotonic() - began
        program.commit()

    with trio.fail_after(WAIT_TIMEOUT_S):
        assert await carry_out(driver) == 7
        polled = [await driver.one("quick") for _ in late]
    assert {each.instance_id for each in polled} == set(late)
    for each in polled:
        await driver.complete(each)
    await driver.complete(job)
    assert await failed(driver) == []
    assert await driver.status(waiting) == "COMPLETED"
    assert driver.rows("SELECT count(*) FROM instance WHERE status = 0 AND id <> %s", run.run_lease.instance) == [(1,)]
    assert driver.rows("SELECT count(*) FROM instance WHERE instance_key = 'late' AND status = 0") == [(1,)]
    assert driver.rows("SELECT count(*) FROM journal WHERE name = 'go'") == [(1,)]
    assert driver.rows("SELECT key FROM message") == [("late",)]
    first, last = (sum(part) / len(part) for part in (took_s[:10], took_s[-10:]))
    print(f"open for {open_s:.1f} s: {2 * rounds} other starts; a round {1e3 * first:.1f} ms, then {1e3 * last:.1f} ms")
