"""Several engines on one database: numbers, who lives, wake-ups from one to the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock import __version__
from penstock.durable.own_engine import open_engine
from penstock.errors import Conflict
from penstock.runtime import membership
from penstock.runtime.membership import Membership
from penstock.store.db.database import Database
from penstock.testing.definitions import definition, end, fork, linear, service, step
from penstock.wire.model import Job, StartRequest
from penstock.wire.queue import QueuePolicy
from tests.engine import runs
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.waiting import wait_until


async def see_each_other(*engines: LocalEngine) -> None:
    async def seen() -> bool:
        return all(len(engine.membership.others) == len(engines) - 1 for engine in engines)

    await wait_until(seen)


def listeners(dsn: str) -> list[int]:
    """The backends that hold an engine's session lock."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1885697139 AND objsubid = 2"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchall()
    return [pid for (pid,) in rows]


async def test_numbers_are_unique_and_given_back(database_dsn: str) -> None:
    async with trio.open_nursery() as nursery:
        databases = [Database(database_dsn, max_connections=2) for _ in range(20)]
        members = [Membership(database, "polling") for database in databases]
        for member in members:
            nursery.start_soon(member.join)
    assert len({member.number for member in members}) == 20
    for member, database in zip(members, databases, strict=True):
        await member.leave()
        await database.close(1)
    with psycopg.connect(database_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM engine").fetchone() == (0,)


async def test_each_engine_tells_of_itself_when_it_renews(start_local: StartLocal) -> None:
    one, other = await start_local(services=False), await start_local(services=False)
    assert [engine.report for engine in (await one.engine.overview.engines()).items] == [None, None]
    other.membership._renew_at = 0.0
    await other.membership.refresh()
    reports = {engine.number: engine.report for engine in (await one.engine.overview.engines()).items}
    assert reports[one.membership.number] is None
    reported = reports[other.membership.number]
    assert reported is not None
    assert (reported.version, reported.parked_polls, reported.leased_jobs) == (__version__, 0, 0)
    assert reported.database_connections >= 1


async def test_an_engine_of_another_living_dispatch_mode_is_refused(database_dsn: str, start_local: StartLocal) -> None:
    first = await start_local()
    database = Database(database_dsn, max_connections=2)
    other = Membership(database, "kafka_outbox")
    with pytest.raises(Conflict, match="an engine in dispatch mode 'polling'"):
        await other.join()
    assert first.rows("SELECT dispatch_mode FROM engine") == [("polling",)]
    await first.membership.leave()
    await first.crash()
    await other.join()
    await other.leave()
    await database.close(1)


async def test_of_two_modes_at_once_not_both_come_up(database_dsn: str) -> None:
    database = Database(database_dsn, max_connections=4)
    refused = 0

    async def join(member: Membership) -> None:
        nonlocal refused
        try:
            await member.join()
        except Conflict:
            refused += 1

    for _ in range(10):
        members = [Membership(database, mode) for mode in ("polling", "kafka_outbox")]
        refused = 0
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(join, member)
        assert refused >= 1
        for member in members:
            await member.leave()
    await database.close(1)


async def start_for_parked(a: LocalEngine, b: LocalEngine) -> str:
    """Start an instance at one engine, whose job a worker at the other waits for and completes."""
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            await b.complete(await b.one("work", wait=30))

        nursery.start_soon(work)

        async def parked() -> bool:
            return len(b.engine.polls.waiters) == 1

        await wait_until(parked)
        return (await a.start("linear")).id


async def test_a_job_queued_here_reaches_a_worker_parked_elsewhere(start_local: StartLocal) -> None:
    """By the wake-up alone: the probe that comes by itself would come too late."""
    a, b = await start_local(), await start_local(ready_probe_interval_seconds=60)
    await see_each_other(a, b)
    await a.upload(linear(1))
    for _ in range(15):
        await start_for_parked(a, b)


async def test_a_timer_armed_here_is_fired_elsewhere_in_time(
    start_local: StartLocal,
) -> None:
    b = await start_local()
    a = await start_local()
    await see_each_other(a, b)
    a.engine.timers.hint = lambda seconds: None  # type: ignore[method-assign]
    a.engine.timers.fire_once = trio.sleep_forever  # type: ignore[method-assign]  # a never looks again
    a.engine.timers._next_at = trio.current_time() + 3600

    async def b_has_polled() -> bool:
        return b.engine.timers._next_at > trio.current_time() + 2  # nothing is due for long

    await wait_until(b_has_polled)
    b.engine.timers._next_at = trio.current_time() + 3600  # but for what it is told
    reported_s: list[float] = []
    hint = b.engine.timers.hint

    def note(seconds: float) -> None:
        reported_s.append(seconds)
        hint(seconds)

    b.engine.timers.hint = note  # type: ignore[method-assign]
    wait = step("wait", "WAIT", duration="PT0.3S", nextStep="end")
    instance = await a.run(definition(wait, end()))

    async def fired() -> bool:
        return await a.status(instance) == "COMPLETED"

    await wait_until(fired)
    assert reported_s == [0.3]


@pytest.mark.parametrize("what", ["a delay", "a job", "two delays"])
async def test_a_program_that_only_asks_tells_others_what_it_has_done_before_it_ends(
    start_local: StartLocal, database_dsn: str, what: str
) -> None:
    """As `penstock runs …` does. It looks at no timer itself, and took its own first look, which never came, for early
    enough; and what it did before it had seen the others was told to nobody."""
    b = await start_local(ready_probe_interval_seconds=60)
    await b.upload(linear(1))

    async def b_has_polled() -> bool:
        return b.engine.timers._next_at > trio.current_time() + 2

    await wait_until(b_has_polled)
    b.engine.timers._next_at = trio.current_time() + 3_600  # but for what it is told
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(b.one, "work", wait=60))
        async with open_engine(database_dsn, serves=False, migrate=False) as (engine, _, _):
            for delay in {"a job": [None], "a delay": ["PT0.5S"], "two delays": ["PT1H", "PT0.5S"]}[what]:
                await engine.instances.start(StartRequest("linear", delay=delay))


@pytest.mark.slow(reason="waits for an engine that is dead")
async def test_a_dead_engine_is_noticed_and_its_leases_examined(start_local: StartLocal) -> None:
    a = await start_local(lease_scan_interval_seconds=3600, lease_min_seconds=0.2)
    b = await start_local(lease_scan_interval_seconds=3600)
    await see_each_other(a, b)
    await a.run(linear(1))
    job = await a.one("work", lease=1)
    assert job.attempt == 1
    await a.crash()
    again = await b.one("work", worker="w2", wait=15)
    assert (again.id, again.attempt) == (job.id, 2)
    assert b.membership.others == {}


@pytest.mark.slow(reason="waits for an engine that is dead")
async def test_the_listening_connection_comes_back(start_local: StartLocal, database_dsn: str) -> None:
    a, b = await start_local(), await start_local()
    await see_each_other(a, b)
    before = listeners(database_dsn)
    assert len(before) == 2
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        for pid in before:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

    async def back() -> bool:
        now = listeners(database_dsn)
        return len(now) == 2 and not set(now) & set(before)

    await wait_until(back)
    await see_each_other(a, b)
    hinted: list[str] = []
    b.engine.polls.hint = hinted.extend  # type: ignore[method-assign]  # pyright: ignore[reportAttributeAccessIssue] - heard here

    async def received() -> bool:
        a.engine.events.queued("work")
        return "work" in hinted

    await wait_until(received)


async def test_the_listener_leaves_a_server_that_refuses_writes(start_local: StartLocal, database_dsn: str) -> None:
    """As a primary that was replaced and lives on: hints and the session lock are on the new one."""
    engine = await start_local()
    await see_each_other(engine)

    async def listens() -> bool:
        return len(listeners(database_dsn)) == 1

    await wait_until(listens)
    before = listeners(database_dsn)
    async with engine.engine.database.connection() as connection:
        await connection.fetch("SET default_transaction_read_only = on")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await connection.fetch("CREATE TABLE t ()")

    async def left() -> bool:
        now = listeners(database_dsn)
        return len(now) == 1 and now != before

    await wait_until(left)


async def test_a_lost_sessions_lock_is_taken_later(
    start_local: StartLocal, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RELOCK_INTERVAL_S", 0.05)
    a = await start_local(services=False)
    with psycopg.connect(database_dsn, autocommit=True) as lost:
        lost.execute("SELECT pg_advisory_lock(1885697139, %s)", (a.membership.number,))
        b = await start_local()
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                while True:
                    await a.membership.listen()

            nursery.start_soon(listen)

            async def two_hold() -> bool:
                return len(listeners(database_dsn)) == 2

            await wait_until(two_hold)  # the lost session's and b's
            lost.close()

            async def a_holds() -> bool:
                return len(listeners(database_dsn)) == 2 and len(b.membership.others) == 1

            await wait_until(a_holds)
            nursery.cancel_scope.cancel()


async def test_a_number_that_was_given_away_is_replaced(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RENEW_INTERVAL_S", 0.0)
    a = await start_local(services=False)
    old = a.membership.number
    a.rows("UPDATE engine SET holder = gen_random_uuid() RETURNING 1")
    await a.membership.refresh()
    assert a.membership.number != old
    assert a.engine.ids.number == a.membership.number
    assert a.rows("SELECT count(*) FROM engine") == [(2,)]


@pytest.mark.parametrize("kind", ["narrow", "wide", "branches", "keyed", "later branches"])
async def test_starts_with_a_number_that_two_engines_have_go_on(start_local: StartLocal, kind: str) -> None:
    """What the leased rows are there to prevent: the key refuses the clash, new ids are taken."""
    a, b = await start_local(services=False), await start_local(services=False)
    b.engine.ids.number = a.engine.ids.number
    for ids in (a.engine.ids, b.engine.ids):
        ids._clock_ms = lambda: 1_800_000_000_000
    forked: dict[str, Any] = dict(fork(1, 1))
    first = {
        "narrow": service("first", "end"),
        "wide": step("first", "USER_TASK", nextStep="end"),
        "branches": forked["steps"][0],
        "keyed": step("first", "USER_TASK", nextStep="end"),
        "later branches": service("first", forked["steps"][0]["id"], job_type="first"),
    }[kind]
    others = forked["steps"] if kind == "later branches" else forked["steps"][1:] if kind == "branches" else [end()]
    await a.upload(definition(first, *others, definition_id="clashing"))
    started: list[str] = []

    async def start(engine: LocalEngine) -> None:
        keys: dict[str, Any] = (
            {"idempotency_key": f"k{len(tried)}", "instance_key": f"i{len(tried)}"} if kind == "keyed" else {}
        )
        tried.append(kind)
        started.append((await engine.start("clashing", **(keys if kind == "keyed" else {}))).id)
        if kind == "later branches":
            await engine.complete(await engine.one("first"))

    tried: list[str] = []
    async with trio.open_nursery() as nursery:
        for engine in (a, b) * 20:
            nursery.start_soon(start, engine)
    assert len(set(started)) == 40
    assert a.rows("SELECT count(*) FROM instance") == [(40,)]
    branches = [(80,)] if "branches" in kind else [(0,)]
    assert a.rows("SELECT count(*) FROM token WHERE id <> instance_id") == branches


def test_a_wake_up_names_its_types_or_all_of_them() -> None:
    member = Membership(msgspec.UNSET, "polling")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - it needs none here
    assert member._payloads({"b", "a"}, None)[0].endswith(" q a\nb")
    (both,) = member._payloads({"x" * 7000}, None)
    assert both.endswith(" a")
    assert member._payloads(set(), 1.5)[0].endswith(" t 1.500")


async def test_a_cancel_is_told_to_workers_of_other_engines(start_local: StartLocal) -> None:
    a, b = await start_local(), await start_local()
    await see_each_other(a, b)
    instances = [await a.run(linear(1)) for _ in range(300)]  # more than one wake-up carries
    jobs = await b.poll("work", worker="w" * 100, n=300)
    assert len(jobs) == 300
    async with trio.open_nursery() as nursery:
        for instance in instances:
            nursery.start_soon(a.cancel, instance)
    found: set[str] = set()
    with trio.fail_after(60):
        while len(found) < 300:
            found |= {lost.job_id for lost in await b.engine.jobs.wait_lost("w" * 100, 30)}
    assert found == {job.id for job in jobs}
    assert len(b.engine.polls.leases) == 0  # nor does it watch their leases any more


async def test_a_key_with_room_is_told_to_other_engines(start_local: StartLocal) -> None:
    a, b = await start_local(), await start_local(flow_keys_per_claim=5)
    await see_each_other(a, b)
    await b.upload(linear(1))
    await b.engine.queues.put("q", QueuePolicy(["work"], concurrency_per_key=1))
    await a.engine.queues.run_once()
    for key in [f"k{number:02d}" for number in range(20)] * 2:
        await b.start("linear", flow_key=key)
    turns, jobs = b.engine.polls.claims.fairness_order, list[Job]()
    while len(jobs) < 20:
        turns.open(["work"])
        jobs += await b.poll("work", n=5)
    turns.take_hints("work", 100)
    received: list[str] = []

    async def has_heard() -> bool:
        received.extend(turns.take_hints("work", 100))
        return bool(received)

    job = jobs[0]
    await a.complete(job)
    await wait_until(has_heard)
    assert [(key,) for key in received] == a.rows(
        "SELECT flow_key FROM instance WHERE id = %s", int(job.instance_id, 16)
    )


@pytest.mark.parametrize(
    "payload", ["x h [[1]]", "x h {", "x l [[1]]", "x l {", "x t soon", "x t 1e999 2", "x t nan", "x", ""]
)
async def test_a_wake_up_that_makes_no_sense_ends_nobody(start_local: StartLocal, payload: str) -> None:
    a, b = await start_local(), await start_local(ready_probe_interval_seconds=60)
    await see_each_other(a, b)
    await a.upload(linear(1))
    with psycopg.connect(a.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_notify('penstock', %s)", (payload,))
    instance = await start_for_parked(a, b)  # the next wake-up is heard
    assert await a.status(instance) == "COMPLETED"


async def test_a_living_engine_without_listener_keeps_its_runs(
    database_dsn: str, start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two machines, where nobody sees the other's process: what is seen is the lock."""
    monkeypatch.setattr(membership, "this_process", lambda: None)
    a, b = await start_local(), await start_local()
    await see_each_other(a, b)
    run = await runs.begin(a, a.engine.code.holder("shop", 1))
    dead: list[str] = []
    b.engine.events.engines_dead.listen(dead.extend)
    for _ in range(3):
        pid = listener_of(a)
        with psycopg.connect(database_dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))

        async def is_back(pid: int | None = pid) -> bool:
            return listener_of(a) not in (None, pid)

        await wait_until(is_back)
        await see_each_other(a, b)
    await runs.append(a, run.run_lease, runs.done("/0"))
    assert dead == []
    tag = a.engine.code.tag
    await a.crash()

    async def is_taken() -> bool:
        return b.rows("SELECT state FROM token") == [(0,)]

    await wait_until(is_taken)
    assert dead == [tag]
    [again] = await runs.take(b, b.engine.code.holder("shop", 1))
    assert again.run_lease.attempt == 2
    await runs.finish(b, again.run_lease)


def listener_of(engine: LocalEngine) -> int | None:
    """The backend that holds the engine's session lock."""
    rows = engine.rows(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1885697139 AND objsubid = 2 AND objid = %s"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        engine.membership.number,
    )
    return rows[0][0] if rows else None


async def test_a_runs_holder_hears_of_mail_through_another_engine(start_local: StartLocal) -> None:
    a, b = await start_local(), await start_local()
    await see_each_other(a, b)
    holder = a.engine.code.holder("shop", 1)
    a.engine.journal.open_mailbox(holder)
    run = await runs.begin(a, holder)
    await b.engine.runs.send(run.instance_id, "go", b"1")
    with trio.fail_after(15):
        [mail] = await a.engine.journal.wait_mailbox(holder)
    assert (mail.instance, mail.mail) == (run.run_lease.instance, 1)
    await runs.finish(a, run.run_lease, mail=1)
