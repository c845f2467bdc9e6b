"""Partitions are made ahead of time; what is older than the retention goes, and nothing else does."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import AsyncGenerator

import msgspec
import psycopg
import pytest
import trio

from penstock.engine.requests.ids import EPOCH_MS, IdSource, show_instance
from penstock.errors import NotFound
from penstock.runtime.retention import Retention
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import retention as store
from penstock.testing.definitions import definition, end, linear
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import VariablesEdit
from tests.engine.driver import selected
from tests.runtime.conftest import StartEngine, StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.shapes import task, user, wait
from tests.waiting import wait_until

DAY_S = 86_400
WEEK = 7


@pytest.fixture
async def connection(database_dsn: str) -> AsyncGenerator[TrioConnection]:
    async with await TrioConnection.connect(database_dsn) as connection:
        yield connection


async def keeping(start_local: StartLocal, **settings: object) -> LocalEngine:
    """An engine without loops, its partitions made."""
    engine = await start_local(services=False, partition_days=WEEK, **settings)
    await Retention(engine.engine).run_once()
    await engine.upload(linear(1))
    return engine


async def finished(engine: LocalEngine) -> str:
    instance = (await engine.start("linear", {"a": 1})).id
    await engine.complete(await engine.one("work"), {"b": 2})
    assert await engine.status(instance) == "COMPLETED"
    return instance


def partitions(engine: LocalEngine, parent: str) -> list[tuple[str, int]]:
    """Those that exist, with their rows."""
    names = [name for (name,) in engine.rows("SELECT name FROM log_partition WHERE parent = %s ORDER BY since", parent)]
    attached = engine.rows(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass ORDER BY 1", parent
    )
    assert sorted([*names, f"{parent}_other"]) == [name for (name,) in attached]
    return [(name, engine.rows(f"SELECT count(*) FROM {name}")[0][0]) for name in names]


def test_database_and_engine_agree_on_a_times_first_id(database_dsn: str) -> None:
    at = dt.datetime(2026, 11, 21, 10, 30, 0, 123000, tzinfo=dt.UTC)
    mine = IdSource(0, lambda: EPOCH_MS + round((at.timestamp() * 1000) - EPOCH_MS)).next()
    with psycopg.connect(database_dsn) as connection:
        [(theirs,)] = connection.execute("SELECT first_instance_id(%s)", (at,)).fetchall()
    assert theirs == mine


async def test_now_and_two_following_ranges_are_made_once(start_local: StartLocal) -> None:
    engine = await keeping(start_local)
    made = partitions(engine, "history")
    assert len(made) == len(partitions(engine, "audit")) == 3
    await Retention(engine.engine).run_once()
    assert partitions(engine, "history") == made
    await finished(engine)
    assert [rows for _, rows in partitions(engine, "history")] == [1, 0, 0]
    assert engine.rows("SELECT count(*) FROM history_other") == [(0,)]


async def test_ranges_follow_each_other_whatever_length_or_time_changes(
    start_local: StartLocal, connection: TrioConnection
) -> None:
    engine = await keeping(start_local)
    await store.prepare(connection, 30)
    engine.clock.advance(200 * DAY_S)
    await store.prepare(connection, 30)
    ranges = engine.rows("SELECT since, until FROM log_partition WHERE parent = 'history' ORDER BY since")
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
    now = engine.clock.now()
    assert any(since <= now < until for since, until in ranges)
    assert ranges[-1][0] <= now + dt.timedelta(days=60) < ranges[-1][1]


async def test_engines_that_start_at_once_leave_no_range_out(database_dsn: str) -> None:
    made: list[str] = []

    async def prepare() -> None:
        async with await TrioConnection.connect(database_dsn) as own:
            prepared = await store.prepare(own, WEEK)
        assert prepared.refused == []
        made.extend(prepared.made)

    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(prepare)
        with psycopg.connect(database_dsn) as eyes:
            dropped = eyes.execute("SELECT name, drop_log_partition(name) FROM log_partition ORDER BY name").fetchall()
        assert [name for name, _ in dropped] == sorted(made)
        assert len(made) == 9
        made.clear()


async def test_no_range_is_made_before_one_that_had_to_wait(database_dsn: str, connection: TrioConnection) -> None:
    """It would never be made: what follows begins where the last one ends."""
    with psycopg.connect(database_dsn) as reader:
        reader.execute("LOCK TABLE history IN ROW EXCLUSIVE MODE")
        prepared = await store.prepare(connection, WEEK)
    assert [reason.split(" from ")[0] for reason in prepared.refused] == ["history"]
    assert [name.split("_")[0] for name in prepared.made] == ["audit"] * 3 + ["journal"] * 3
    assert [name.split("_")[0] for name in (await store.prepare(connection, WEEK)).made] == ["history"] * 3


async def test_rows_older_than_their_partition_stay_in_the_default_one(
    start_local: StartLocal, connection: TrioConnection
) -> None:
    engine = await start_local(services=False)
    await engine.upload(linear(1))
    instance = await finished(engine)
    prepared = await store.prepare(connection, WEEK)
    assert [reason.split(" from ")[0] for reason in prepared.refused] == ["audit", "history"]
    assert len(prepared.made) == 7
    assert engine.rows("SELECT count(*) FROM history_other") == [(1,)]
    assert len(await engine.history(instance)) == 2
    await finished(engine)


INSERTS = {
    "audit": "INSERT INTO audit (pos, at, kind) VALUES (1, now(), 'QUEUE_CHANGED')",
    "history": """INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind)
        VALUES (first_instance_id(now()) + 1, 1, 1, 1, now(), now(), 1, 0, 1)""",
    "journal": """INSERT INTO journal (instance_id, pos, at, kind, attempt, path)
        VALUES (first_instance_id(now()) + 1, 1, now(), 1, 1, '/0')""",
}
ATTACH_AND_WAIT = """
ALTER FUNCTION add_log_partition(text, timestamptz, timestamptz) RENAME TO add_at_once;
CREATE FUNCTION add_log_partition(parent text, since timestamptz, until timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM add_at_once(parent, since, until);
  IF parent = current_setting('test.parent') THEN
    PERFORM set_config('lock_timeout', '60s', true), pg_advisory_xact_lock(77);
  END IF;
  RETURN parent;
END $$"""
BESIDE = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("parent", INSERTS)
async def test_a_row_that_is_written_while_the_first_partition_is_made_comes_into_it(
    database_dsn: str, connection: TrioConnection, parent: str
) -> None:
    """It was refused: "new row for relation "audit_other" violates partition constraint", a 500 of PUT /v1/queues."""

    def write() -> None:
        with psycopg.connect(database_dsn, autocommit=True, application_name="writer") as writer:
            writer.execute(INSERTS[parent].encode())

    await connection.fetch(f"SET test.parent = '{parent}'".encode())
    with psycopg.connect(database_dsn, autocommit=True) as gate:
        gate.execute(ATTACH_AND_WAIT)

        async def waits(what: str) -> None:
            async def seen() -> bool:
                return bool(gate.execute(f"{BESIDE} AND wait_event_type = 'Lock' AND {what}".encode()).fetchall())

            await wait_until(seen)

        async with trio.open_nursery() as nursery:
            gate.execute("SELECT pg_advisory_lock(77)")
            nursery.start_soon(store.prepare, connection, WEEK)
            await waits("wait_event = 'advisory'")
            nursery.start_soon(trio.to_thread.run_sync, write)
            await waits("application_name = 'writer'")
            gate.execute("SELECT pg_advisory_unlock(77)")
        assert gate.execute(f"SELECT count(*) FROM {parent}_other".encode()).fetchall() == [(0,)]
        assert gate.execute(f"SELECT count(*) FROM {parent}".encode()).fetchall() == [(1,)]


async def test_without_a_retention_nothing_is_removed(start_local: StartLocal) -> None:
    engine = await keeping(start_local)
    instance = await finished(engine)
    engine.clock.advance(10_000 * DAY_S)
    assert await Retention(engine.engine).run_once() is False
    assert await engine.status(instance) == "COMPLETED"
    assert (await engine.variables(instance)) == {"a": 1, "b": 2}


async def test_an_ended_instance_goes_with_its_history_after_the_retention(
    start_local: StartLocal,
) -> None:
    engine = await keeping(start_local, retention_days=10, audit_retention_days=10)
    instance = await finished(engine)
    [first, *_] = [name for name, rows in partitions(engine, "history") if rows]
    retention = Retention(engine.engine)
    engine.clock.advance(9.9 * DAY_S)
    await retention.run_once()
    assert await engine.status(instance) == "COMPLETED"
    engine.clock.advance((WEEK + 0.2) * DAY_S)  # now the whole range is older than the retention
    await retention.run_once()
    with pytest.raises(NotFound):
        await engine.status(instance)
    assert first not in dict(partitions(engine, "history"))
    assert engine.rows("SELECT count(*) FROM history") == [(0,)]
    assert engine.rows("SELECT count(*) FROM audit WHERE kind = 'DEFINITION_UPLOADED'") == [(0,)]
    assert_invariants(engine.dsn)
    await finished(engine)


async def test_an_open_instance_keeps_its_history_and_variables(start_local: StartLocal) -> None:
    engine = await keeping(start_local, retention_days=10)
    await engine.upload(linear(2, definition_id="two", job_type="long"))
    ended = await finished(engine)
    instance = (await engine.start("two", {"a": 1})).id
    await engine.complete(await engine.one("long"), {"b": 2})
    engine.clock.advance(40 * DAY_S)
    retention = Retention(engine.engine)
    await retention.run_once()
    with pytest.raises(NotFound):
        await engine.status(ended)
    assert await engine.variables(instance) == {"a": 1, "b": 2}
    held = engine.engine.polls.activity.overdue
    assert held is not None
    assert (held.instances, show_instance(held.oldest)) == (1, instance)
    reported = {one.kind: one for one in (await engine.engine.overview.read("15m")).attention}
    assert reported["retention"].text == "1 instance keeps old history"
    job = await engine.one("long")
    await engine.complete(job, {"c": 3})
    assert await engine.variables(instance) == {"a": 1, "b": 2, "c": 3}
    await retention.run_once()
    assert await engine.status(instance) == "COMPLETED", "it ended just now"
    engine.clock.advance(11 * DAY_S)
    await retention.run_once()
    assert engine.rows("SELECT count(*) FROM instance") == engine.rows("SELECT count(*) FROM history") == [(0,)]
    assert engine.engine.polls.activity.overdue is None


async def test_a_failed_instance_goes_with_what_a_retry_needs(
    start_local: StartLocal,
) -> None:
    engine = await keeping(start_local, retention_days=10)
    failed = [(await engine.start("linear")).id for _ in range(2)]
    for job in await engine.poll("work"):
        await engine.fail(job, retryable=False)
    engine.clock.advance(40 * DAY_S)
    assert (await engine.retry(failed[0])).status == "ACTIVE"
    await Retention(engine.engine).run_once()
    assert await engine.status(failed[0]) == "ACTIVE"
    assert engine.rows("SELECT count(*) FROM abnormal_end") == [(0,)]
    with pytest.raises(NotFound):
        await engine.retry(failed[1])


async def test_a_failed_instances_kept_signals_go_with_it(start_local: StartLocal) -> None:
    engine = await keeping(start_local, retention_days=10)
    await engine.upload(definition(task("work", "w"), wait("w"), end(), definition_id="waits"))
    for _ in range(2):
        instance = (await engine.start("waits")).id
        await engine.signal(instance, "w", {"a": 1}, buffer=True)
    await engine.fail((await engine.poll("work", n=1))[0], retryable=False)
    assert engine.rows("SELECT count(*) FROM buffered_signal") == [(2,)]
    engine.clock.advance(40 * DAY_S)
    await Retention(engine.engine).run_once()
    assert engine.rows("SELECT instance_id FROM buffered_signal") == engine.rows("SELECT id FROM instance")


async def test_edits_of_variables_go_with_their_instances(start_local: StartLocal) -> None:
    engine = await keeping(start_local, retention_days=10)
    await engine.upload(definition(user("ask"), end(), definition_id="asks"))
    for done in (True, False):
        instance = (await engine.start("asks")).id
        await engine.engine.repair.edit_variables(instance, VariablesEdit(set=msgspec.Raw(b'{"a":1}')))
        if done:
            await engine.finish_task(instance, "ask")
    assert engine.rows("SELECT count(*) FROM variables_edit") == [(2,)]
    engine.clock.advance(40 * DAY_S)
    await Retention(engine.engine).run_once()
    assert engine.rows("SELECT instance_id FROM variables_edit") == engine.rows("SELECT id FROM instance")
    assert engine.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_journals_go_also_where_another_run_keeps_the_partition(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "JOURNALS_MAX", 2)
    engine = await keeping(start_local, retention_days=10)
    removed = [await finished(engine) for _ in range(5)]
    kept = (await engine.start("linear", {"a": 1})).id
    for instance in (kept, *removed):
        for pos in (1, 2):
            engine.rows(
                "INSERT INTO journal (instance_id, pos, at, kind, attempt, path)"
                f" VALUES ({int(instance, 16)}, {pos}, now(), 1, 1, '/0') RETURNING pos"
            )
    engine.clock.advance((2 * WEEK + 11) * DAY_S)
    retention = Retention(engine.engine)
    rounds = 0
    while await retention.run_once():
        rounds += 1
        assert rounds < 10
    assert engine.rows("SELECT DISTINCT instance_id, count(*) OVER () FROM journal") == [(int(kept, 16), 2)]


async def test_journals_go_with_their_instances_also_those_in_no_partition(start_local: StartLocal) -> None:
    engine = await keeping(start_local, retention_days=10)
    record = (
        "INSERT INTO journal (instance_id, pos, at, kind, attempt, path)"
        " SELECT id, nextval('step_seq'), penstock_now(), 1, 1, '/0' FROM instance RETURNING tableoid::regclass::text"
    )
    await finished(engine)
    [(inside,)] = engine.rows(record)
    assert inside in dict(partitions(engine, "journal"))
    engine.rows("UPDATE instance SET id = 1 RETURNING 1")  # of a time before all partitions
    assert engine.rows(record) == [("journal_other",)]
    engine.rows(
        "UPDATE log_partition SET since = '2025-01-01' WHERE since = (SELECT min(since) FROM log_partition) RETURNING 1"
    )
    engine.clock.advance(40 * DAY_S)
    await Retention(engine.engine).run_once()
    assert engine.rows("SELECT count(*) FROM instance") == engine.rows("SELECT count(*) FROM journal") == [(0,)]
    assert inside not in dict(partitions(engine, "journal"))
    assert_invariants(engine.dsn)


async def test_more_instances_than_one_transaction_takes_go_in_several(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await keeping(start_local, retention_days=10)
    monkeypatch.setattr(store, "REMOVE_MAX_ROWS", 2)
    for _ in range(5):
        await finished(engine)
    engine.clock.advance(40 * DAY_S)
    await Retention(engine.engine).run_once()
    assert engine.rows("SELECT count(*) FROM instance") == [(0,)]


async def test_a_round_is_put_off_by_others_and_locks(
    start_local: StartLocal, connection: TrioConnection, database_dsn: str
) -> None:
    engine = await keeping(start_local, retention_days=10)
    instance = selected(engine, await finished(engine))
    engine.clock.advance(40 * DAY_S)
    [partition, *_] = await store.over(connection, "history", 10)
    with psycopg.connect(database_dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(1885697139, -2)")
        assert await store.remove_instances(connection, [instance]) is None
        assert await store.drop(connection, partition) is False
    with psycopg.connect(database_dsn) as reader:
        reader.execute("SELECT count(*) FROM history")
        assert await store.drop(connection, partition) is False
    assert await store.drop(connection, partition) is False, "an instance needs it"
    assert await store.remove_instances(connection, [instance]) == [instance.id]
    assert await store.drop(connection, partition) is True
    assert await store.drop(connection, partition) is False, "it is gone"


@pytest.mark.slow(reason="starts an engine process")
def test_a_live_engine_prepares_its_partitions_before_it_serves(start_engine: StartEngine, database_dsn: str) -> None:
    start_engine().wait_ready()
    with psycopg.connect(database_dsn) as connection:
        rows = connection.execute(
            "SELECT parent, count(*) FROM log_partition GROUP BY parent ORDER BY parent"
        ).fetchall()
    assert rows == [("audit", 3), ("history", 3), ("journal", 3)]
