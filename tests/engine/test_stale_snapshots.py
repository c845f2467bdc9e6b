"""Statements that come to a row's lock after others have moved it there and back since their snapshot was taken.

A statement's snapshot is older than the locks that it gets: it may hold a token whose row in the queue it can't see.
Here each is held up between the two by an advisory lock, for which its first CTE waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType

import psycopg
import pytest
import trio

from penstock.engine.requests import ids
from penstock.settings import DispatchMode
from penstock.store.db.statements import SQL
from penstock.store.rows import jobs as store
from penstock.store.rows import outbox
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.waiting import wait_until

WAITING = b"""SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 43 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
LOCK = b"SELECT set_config('lock_timeout', '0', true), pg_advisory_xact_lock_shared(43)"
PAUSE = b"(SELECT 1 FROM (" + LOCK + b") AS pause) IS NOT NULL"


_ITEM = b"AS i(token, seq, attempt, worker, op, next_step, next_type, direct_to, lease_s, output)"
ITEMS = {
    "complete_moves": _ITEM,
    "complete_ends": _ITEM,
    "complete_lone_move": b"true AS lone",
    "complete_lone_end": b"true AS lone",
}
"""Where the statements that complete have what is sent."""


class HeldUp:
    """Statement ``name`` takes its snapshot, then waits at ``where`` for what others do meanwhile."""

    def __init__(self, driver: Driver, name: str, where: bytes, module: ModuleType = store) -> None:
        assert SQL[name].count(where) == 1
        self._dsn = driver.dsn
        self._module = module
        joined = b" AND " if b" WHERE " in where else b" WHERE "
        self._patched = {**SQL, name: SQL[name].replace(where, where + joined + PAUSE)}

    async def run(self, late: Callable[[], Awaitable[object]], others: Callable[[], Awaitable[object]]) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as holder, pytest.MonkeyPatch.context() as patch:
            holder.execute("SELECT pg_advisory_lock(43)")

            async def waits() -> bool:
                return bool(holder.execute(WAITING).fetchall())

            async with trio.open_nursery() as nursery:
                patch.setattr(self._module, "SQL", self._patched)
                nursery.start_soon(late)
                await wait_until(waits)
                patch.undo()
                await others()
                holder.execute("SELECT pg_advisory_unlock(43)")


async def test_a_claim_leaves_jobs_that_came_back_since_it_began(driver: Driver) -> None:
    """Their row in the queue is a new one, which it could not delete: the next return would find it and fail."""
    await driver.run(linear(1))
    [(job_type,)] = driver.rows("SELECT job_type FROM ready")
    claimed: list[store.ClaimedJob] = []

    async def late() -> None:
        async with driver.engine.database.connection() as connection:
            claimed.extend(await store.claim(connection, [store.ClaimSlot(job_type, 1, "late", 30)]))

    async def claimed_and_returned() -> None:
        driver.engine.polls.releases.release_jobs([await driver.one("work", worker="quick")])

        async def is_back() -> bool:
            return driver.rows("SELECT state FROM token") == [(0,)]

        await wait_until(is_back)

    where = b"WHERE NOT coalesce((SELECT j.keyed FROM job_type j WHERE j.id = w.job_type), false)"
    await HeldUp(driver, "claim", where).run(late, claimed_and_returned)
    assert claimed == []
    job = await driver.one("work", worker="next")
    assert driver.rows("SELECT * FROM ready") == []
    assert await driver.expire(31) == 1
    assert (await driver.one("work")).id == job.id


async def test_a_queue_row_that_a_heartbeat_missed_is_dropped(
    make_driver: MakeDriver,
) -> None:
    """X and Y expired. B's heartbeat for both has its snapshot and waits for X; Y is heart-beaten through C and expires
    again: what B then takes out of the queue is the row from before. When ids were used again, the next expiry failed
    on the other row, in every engine, again after each start.
    """
    driver, other = make_driver(), make_driver()
    await driver.upload(linear(1))
    for _ in "XY":
        await driver.start("linear")
    x, y = sorted(await driver.poll("work", n=2), key=lambda job: job.instance_id)
    await driver.expire(31)
    extensions = [
        store.Extension((key := ids.read_job(job.id)).token, key.seq, None, "w1", 30, None, None) for job in (x, y)
    ]
    late: list[store.Extended] = []

    async def both_of_b() -> None:
        async with driver.engine.database.connection() as connection:
            await connection.fetch("SET lock_timeout = '30s'")
            late.extend(await store.extend(connection, extensions))

    async def waits() -> bool:
        return driver.waiting_for_locks() == 1

    with psycopg.connect(driver.dsn) as holder:
        holder.execute("SELECT FROM token WHERE id = %s FOR UPDATE", (number(x.instance_id),))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both_of_b)
            await wait_until(waits)
            await other.heartbeat(y)
            assert await driver.expire(31) == 1
            holder.rollback()
    # A server with the fix of 2025 asks again whether a row that was found by its ctid is that one still, and refuses
    # Y; an older one extends it. To the engine it is the same: it looks at what was refused and comes again.
    assert [row.token for row in late][:1] == [number(x.instance_id)]
    if len(late) == 1:
        driver.rows(
            "UPDATE token SET state = 1, queued = NULL, lease_until = penstock_now() + interval '30 s'"
            " WHERE id = %s RETURNING id",
            number(y.instance_id),
        )
    assert driver.rows("SELECT token_id FROM ready") == [(number(y.instance_id),)]  # nobody's
    assert_invariants(driver.dsn)

    assert await driver.expire(31) == 2
    assert len(driver.rows("SELECT FROM ready")) == 3
    jobs = await driver.poll("work", n=3, worker="next")
    assert [job.id for job in jobs] == [x.id, y.id]
    assert len(driver.rows("SELECT FROM ready")) == 1  # that claim fell short, so the next one clears
    assert await driver.poll("work") == []
    assert driver.rows("SELECT FROM ready") == []
    for job in jobs:
        await driver.complete(job)


@pytest.mark.parametrize(("statement", "tasks"), [("complete_moves", 2), ("complete_lone_end", 1)])
async def test_a_late_result_removes_what_the_expiry_queued(driver: Driver, statement: str, tasks: int) -> None:
    await driver.run(linear(tasks))
    job = await driver.one("work")

    async def late() -> None:
        await driver.complete(job)

    async def expired() -> None:
        assert await driver.expire(31) == 1

    await HeldUp(driver, statement, ITEMS[statement]).run(late, expired)
    assert driver.rows("SELECT seq FROM ready") == driver.rows("SELECT seq FROM token")  # of the next job, or none
    assert driver.rows("SELECT kind FROM history WHERE kind < 10") == [(1,)]


@pytest.mark.parametrize(("statement", "ends", "n"), [("complete_lone_move", False, 1), ("complete_ends", True, 2)])
async def test_what_the_expiry_queued_goes_whatever_the_statement(
    driver: Driver, statement: str, ends: bool, n: int
) -> None:
    await driver.upload(linear(2))
    for _ in range(n):
        await driver.start("linear")
    keys = sorted(ids.read_job(job.id) for job in await driver.poll("work", n=n))
    [(job_type,)] = driver.rows("SELECT id FROM job_type WHERE name = 'work'")
    following = (None, None, None) if ends else (job_type, "w2", 30.0)
    moved: list[store.AppliedCompletion] = []

    async def late() -> None:
        items = [store.FastItem(key.token, key.seq, 1, "w1", ends, 1, *following, None) for key in keys]
        async with driver.engine.database.connection() as connection:
            moved.extend(await store.complete_fast(connection, items))

    async def expired() -> None:
        assert await driver.expire(31) == n

    await HeldUp(driver, statement, ITEMS[statement]).run(late, expired)
    if ends:  # as the server is, they are applied, or looked at and sent again
        assert len(moved) in (0, n)
        assert len(driver.rows("SELECT FROM ready")) == n - len(moved)
    else:
        assert len(moved) == 1
        assert driver.rows("SELECT FROM ready") == []
        assert driver.rows("SELECT state, claimed_by, attempt FROM token") == [(1, "w2", 1)]
    assert_invariants(driver.dsn)


async def test_late_results_leave_the_queue_whatever_their_batch_has(driver: Driver) -> None:
    await driver.upload(linear(2))
    for ends in ([False], [True], [False, True]):  # a statement each
        for _ in ends:
            await driver.start("linear")
        keys = sorted(ids.read_job(job.id) for job in await driver.poll("work"))
        assert await driver.expire(31) == len(ends)
        [(job_type,)] = driver.rows("SELECT id FROM job_type WHERE name = 'work'")
        items = [
            store.FastItem(key.token, key.seq, None, "w1", end, 1 + end, job_type, None, None, None)
            for key, end in zip(keys, ends, strict=True)
        ]
        async with driver.engine.database.connection() as connection:
            moved = await store.complete_fast(connection, items)
        assert sorted(row.new_seq is None for row in moved) == ends
        assert driver.rows("SELECT seq FROM ready") == driver.rows("SELECT seq FROM token")
        for job in await driver.poll("work"):
            await driver.complete(job)


async def switched(make_driver: MakeDriver) -> tuple[Driver, Driver, int]:
    """An engine that dispatches through Kafka and left a row, one that does not, and the job type."""
    old = make_driver(dispatch_mode=DispatchMode.KAFKA_OUTBOX, kafka_seed_brokers=("localhost:1",))
    await old.run(linear(1))
    [(job_type,)] = old.rows("SELECT job_type FROM dispatch_outbox")
    return old, make_driver(), job_type


async def move(driver: Driver) -> None:
    async with driver.engine.database.connection() as connection:
        assert await outbox.migrate_dispatch(connection, 10, (), to_outbox=False) == 1


async def take(driver: Driver, job_type: int) -> outbox.OutboxScan:
    async with driver.engine.database.connection() as connection:
        return await outbox.take(connection, {job_type: 0}, 10, (), 1_800, (), audit=False)


async def test_a_row_taken_while_it_moves_becomes_a_queued_job(
    make_driver: MakeDriver,
) -> None:
    old, driver, job_type = await switched(make_driver)

    async def late() -> None:
        await move(driver)

    async def taken() -> None:
        scan = await take(old, job_type)
        assert [row.attempt for row in scan.outgoing] == [1]

    await HeldUp(
        driver, "outbox_to_queue", b"FROM dispatch_outbox o WHERE o.token_id <> ALL ($2::bigint[])", outbox
    ).run(late, taken)
    assert driver.rows("SELECT state FROM token") == [(0,)]
    await driver.complete(await driver.one("work"))


async def test_a_row_moved_while_it_is_taken_is_not_dispatched(
    make_driver: MakeDriver,
) -> None:
    """It was published without a row to repeat it from: refused by the broker, nobody had it until its deadline."""
    old, driver, job_type = await switched(make_driver)

    async def late() -> None:
        scan = await take(old, job_type)
        assert (scan.outgoing, scan.held) == ([], {job_type: 1})  # looked at again, and then it is not there

    async def moved() -> None:
        await move(driver)

    await HeldUp(old, "take_outbox", b"ORDER BY o.id LIMIT $2::int) o", outbox).run(late, moved)
    assert driver.rows("SELECT state FROM token") == [(0,)]
    await driver.complete(await driver.one("work"))
