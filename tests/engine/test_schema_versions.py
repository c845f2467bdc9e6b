"""Upgrades: a database of each earlier version, with work in every state, becomes what schema.sql says; work goes on.

`tests/store/versions` has one file per version: schema.sql as it stood when the next version came, and what an
engine of then left in it (`tests.store.populate`). That of version 1 stands beside it, to be read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg
import pytest
import trio

from penstock.engine.requests.ids import show_instance, show_job
from penstock.errors import Conflict, PenstockError
from penstock.runtime.membership import Membership, Superseded
from penstock.store.db import schema
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import MIGRATIONS, SCHEMA_VERSION, SchemaMismatch, ensure_schema, schema_sql
from penstock.store.rows import engines as engine_store
from penstock.testing.definitions import definition, end, step
from penstock.testing.invariants import assert_invariants
from penstock.wire.model import Completion
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.postgres import PostgresServer
from tests.shares import mostly_slow
from tests.store.catalog import catalog, column_order
from tests.store.populate import VERSIONS, left_by, populate
from tests.waiting import wait_until

PAST_HOUR_S = 3600.0
BUILDS = "SELECT FROM pg_stat_progress_create_index WHERE command ~ 'CONCURRENTLY'"
ASKS_TO_BUILD = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND query ~ 'pg_try_advisory_lock'"
)
"""Of an engine that has read the version, while another one builds."""
INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
KEPT = [1, *sorted(int(path.name.removesuffix(".sql.gz")) for path in VERSIONS.iterdir())]
OLDER = [version for version in KEPT if version < SCHEMA_VERSION]


@pytest.fixture
def old_dsn(postgres_server: PostgresServer) -> Generator[str]:
    """A database that an engine of version 1 has left."""
    with left_by(postgres_server, 1) as dsn:
        yield dsn


async def upgrade(dsn: str) -> int:
    async with await TrioConnection.connect(dsn) as connection:
        return await ensure_schema(connection)


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def test_versions_have_no_gap_and_schema_sql_is_newest() -> None:
    assert list(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))
    assert f"INSERT INTO penstock_schema (version) VALUES ({SCHEMA_VERSION});" in schema_sql()


async def test_an_upgraded_database_equals_a_new_one(old_dsn: str, database_dsn: str) -> None:
    assert await upgrade(old_dsn) == 1
    upgraded, new = catalog(old_dsn), catalog(database_dsn)
    for kind, things in new.items():
        assert upgraded[kind] == things, kind
    assert rows(old_dsn, "SELECT version FROM penstock_schema ORDER BY 1") == [
        (version,) for version in range(1, SCHEMA_VERSION + 1)
    ]
    assert await upgrade(old_dsn) == SCHEMA_VERSION  # nothing to do


OF_ALL = "upgrades a database of each version"


@pytest.mark.parametrize("version", mostly_slow(OLDER, quick=[OLDER[0], OLDER[-1]], reason=OF_ALL))
async def test_a_database_of_any_version_becomes_a_new_one(
    postgres_server: PostgresServer, database_dsn: str, version: int
) -> None:
    with left_by(postgres_server, version) as dsn:
        assert rows(dsn, "SELECT max(version) FROM penstock_schema") == [(version,)]
        before = contents(dsn)
        assert all(before[table] for table in ("instance", "token", "ready", "timer", "history", "abnormal_end"))
        found: list[int] = []

        async def start() -> None:
            found.append(await upgrade(dsn))

        async with trio.open_nursery() as nursery:  # two engines at once: the second waits, and finds it done
            nursery.start_soon(start)
            nursery.start_soon(start)
        assert min(found) == version  # the other one may come between two versions
        upgraded = catalog(dsn)
        for kind, things in catalog(database_dsn).items():
            assert upgraded[kind] == things, kind
        after = contents(dsn)
        if version > 1:  # version 2 lays tables out anew: `test_nothing_of_the_old_tables_is_lost`
            assert {table: [row[: len(old[0])] for row in after[table]] for table, old in before.items() if old} == {
                table: old for table, old in before.items() if old
            }
        assert_invariants(dsn)


def contents(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables, but for the version; columns that a version adds come last."""
    tables = [name for (name,) in rows(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]
    return {name: rows(dsn, f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables if name != "penstock_schema"}


async def test_a_version_18_of_before_its_last_column_gets_it(
    postgres_server: PostgresServer, database_dsn: str
) -> None:
    """Migration 18 was changed when databases of it were there."""
    with left_by(postgres_server, 18) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("ALTER TABLE timer DROP COLUMN throttle")
        assert await upgrade(dsn) == 18
        upgraded = catalog(dsn)
        for kind, things in catalog(database_dsn).items():
            assert upgraded[kind] == things, kind


async def test_version_2_lays_the_columns_out_as_schema_sql(old_dsn: str, database_dsn: str) -> None:
    await upgrade(old_dsn)
    for table in ("token", "ready", "parked", "engine"):
        assert column_order(old_dsn, table)[: len(column_order(database_dsn, table))] == column_order(
            database_dsn, table
        )


async def test_nothing_of_the_old_tables_is_lost(old_dsn: str) -> None:
    old = (
        "SELECT id, instance_id, parent_id, timeout_s, failures, expiries, pending, arrived, side, unfolded, step,"
        " job_type, seq, entered_at, state, attempt, claimed_at, lease_until, claimed_by FROM token ORDER BY id"
    )
    queue = "SELECT job_type, seq, token_id FROM ready ORDER BY 1, 2"
    before = rows(old_dsn, old), rows(old_dsn, queue)
    await upgrade(old_dsn)
    assert (rows(old_dsn, old), rows(old_dsn, queue)) == before
    assert rows(old_dsn, "SELECT instance_id, token_id FROM parked ORDER BY 1, 2") == rows(
        old_dsn, "SELECT instance_id, id FROM token WHERE state = 2 ORDER BY 1, 2"
    )


@pytest.mark.parametrize(
    "version", mostly_slow([*OLDER, SCHEMA_VERSION], quick=[OLDER[0], OLDER[-1], SCHEMA_VERSION], reason=OF_ALL)
)
async def test_work_goes_on_after_an_upgrade(
    postgres_server: PostgresServer, make_driver: MakeDriver, database_dsn: str, version: int
) -> None:
    if version == SCHEMA_VERSION:  # nothing to upgrade: what will stand for this version, once there is a next one
        await populate(make_driver())
        await go_on(make_driver(), database_dsn)
        return
    with left_by(postgres_server, version) as dsn:
        await upgrade(dsn)
        await go_on(make_driver(dsn=dsn), dsn)


async def go_on(driver: Driver, dsn: str) -> None:
    """Everything that was left can be finished, at the time at which it was left: its timers are a day long."""
    ((left_at,),) = driver.rows("SELECT max(entered_at) FROM token")
    driver.clock.advance((left_at - driver.clock.now()).total_seconds())
    found = driver.rows("SELECT business_key, id FROM instance WHERE right(business_key, 4) <> '-run' ORDER BY id")
    instances = {name: show_instance(id) for name, id in found}
    assert await driver.status(instances["done"]) == "COMPLETED"
    assert await driver.status(instances["cancelled"]) == "CANCELLED"
    await finish_everything(driver, instances)
    ended = {name: await driver.status(instance) for name, instance in instances.items() if name != "cancelled"}
    assert ended == dict.fromkeys(ended, "COMPLETED")
    assert driver.rows(
        "SELECT count(*) FROM ready r JOIN job_type j ON j.id = r.job_type WHERE NOT starts_with(j.name, 'code:')"
    ) == [(0,)]
    assert_invariants(dsn)


async def finish_everything(driver: Driver, instances: dict[str, str]) -> None:
    """What a day's service would do."""
    await driver.retry(instances["failed"])
    await driver.expire(PAST_HOUR_S)  # the lease of the one who was at work
    await driver.due(PAST_HOUR_S)  # the back-off
    ((instance, token, seq),) = driver.rows("SELECT instance_id, id, seq FROM token WHERE state = 5")
    message = Completion(job_id=show_job(instance, token, seq), worker_id="consumer", variables=b"{}")
    await driver.engine.jobs.complete(message)
    types = [
        name for (name,) in driver.rows("SELECT name FROM job_type WHERE NOT starts_with(name, 'code:') ORDER BY id")
    ]
    if "parked" in instances:  # since version 15
        await driver.signal(instances["parked"], "paid")
    while jobs := await driver.poll(*types):
        for job in jobs:
            await driver.complete(job, {"upgraded": True})
    if "caller" in instances:  # since version 17: it hears of its child's end
        await driver.due(PAST_HOUR_S)
    await driver.finish_task(instances["task"], "task")
    await driver.signal(instances["waiting"], "wait")


async def test_the_rewrite_is_refused_while_an_engine_lives(old_dsn: str) -> None:
    before = catalog(old_dsn)
    rows(old_dsn, "UPDATE engine SET leased_until = penstock_now() + interval '25 s' RETURNING 1")  # just renewed
    with pytest.raises(SchemaMismatch, match=r"an engine \(gone\) lives: stop all engines first"):
        await upgrade(old_dsn)
    rows(old_dsn, "UPDATE engine SET leased_until = penstock_now() + interval '5 s' RETURNING 1")
    async with await TrioConnection.connect(old_dsn) as its_session:
        await its_session.fetch(b"SELECT pg_advisory_lock(1885697139, 7)")
        with pytest.raises(SchemaMismatch, match="stop all engines first"):
            await upgrade(old_dsn)
    assert catalog(old_dsn) == before
    assert await upgrade(old_dsn) == 1  # killed, and its session is gone


async def test_a_lock_of_others_is_retried_after_a_short_wait(old_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_MS", 10)
    monkeypatch.setattr(schema, "LOCK_PAUSE_S", 0.01)
    with psycopg.connect(old_dsn) as reader:
        reader.execute("SELECT FROM token")
        with pytest.raises(PenstockError, match="version 2 could not be applied"):
            await upgrade(old_dsn)
    assert await upgrade(old_dsn) == 1


async def appeared(dsn: str, query: str) -> None:
    async def there() -> bool:
        return rows(dsn, query) != []

    await wait_until(there)


async def test_indexes_are_built_while_transactions_of_others_go_on(postgres_server: PostgresServer) -> None:
    """A build waits for what has begun before it; writers, and another engine that starts, don't wait for it."""
    with left_by(postgres_server, 9) as dsn:
        found: list[int] = []

        async def start() -> None:
            found.append(await upgrade(dsn))

        with psycopg.connect(dsn) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM bulk_operation")
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(start)
                    nursery.start_soon(start)
                    await appeared(dsn, BUILDS)
                    await appeared(dsn, ASKS_TO_BUILD)
                    assert rows(dsn, "SELECT max(version) FROM penstock_schema") == [(12,)]
                    assert rows(dsn, "UPDATE instance SET business_key = business_key || 'x' RETURNING 1")
                    assert found == []
                    reader.rollback()
        assert sorted(found) == [9, 12]


async def test_a_build_that_was_broken_off_begins_anew(postgres_server: PostgresServer) -> None:
    with left_by(postgres_server, 9) as dsn:
        with psycopg.connect(dsn) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM bulk_operation")
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(upgrade, dsn)
                    await appeared(dsn, INVALID)
                    nursery.cancel_scope.cancel()
        assert rows(dsn, "SELECT max(version) FROM penstock_schema") == [(12,)]
        assert await upgrade(dsn) == 12
        assert rows(dsn, INVALID) == []


async def test_an_index_of_older_engines_goes_after_them(postgres_server: PostgresServer) -> None:
    is_there = "SELECT to_regclass('instance_business_key') IS NOT NULL"
    with left_by(postgres_server, 9) as dsn:
        rows(
            dsn,
            "INSERT INTO engine (number, holder, leased_until, description, dispatch_mode, schema_version)"
            " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'old', 'long_poll', 12) RETURNING 1",
        )
        await upgrade(dsn)
        assert rows(dsn, is_there) == [(True,)]
        rows(dsn, "UPDATE engine SET leased_until = penstock_now() RETURNING 1")
        with psycopg.connect(dsn) as reader:
            reader.execute("SELECT FROM instance")  # nobody waits for long for what nobody needs
            await upgrade(dsn)
            assert rows(dsn, is_there) == [(True,)]
        await upgrade(dsn)
        assert rows(dsn, is_there) == [(False,)]


async def test_a_newer_schema_is_refused_with_what_to_do(database_dsn: str) -> None:
    rows(database_dsn, f"INSERT INTO penstock_schema (version) VALUES ({SCHEMA_VERSION + 1}) RETURNING 1")
    with pytest.raises(SchemaMismatch, match=f"version {SCHEMA_VERSION + 1}.* up to {SCHEMA_VERSION}: use a newer one"):
        await upgrade(database_dsn)


async def test_what_older_engines_would_break_waits_until_they_are_gone(database_dsn: str) -> None:
    newer = SCHEMA_VERSION + 1
    database = Database(database_dsn, max_connections=2)
    old = Membership(database, "long_poll")
    await old.join()
    async with database.connection() as connection:
        with pytest.raises(Conflict, match=f"upgrade all engines first: .* knows schema version {SCHEMA_VERSION}"):
            await engine_store.require_version(connection, newer)
        await engine_store.require_version(connection, SCHEMA_VERSION)  # they all know that
        await old.refresh()  # and live on
        rows(database_dsn, "UPDATE engine SET leased_until = penstock_now() RETURNING 1")  # it was stopped for long
        await engine_store.require_version(connection, newer)
        await engine_store.require_version(connection, SCHEMA_VERSION)  # takes nothing back
    with pytest.raises(Conflict, match=f"needs engines that know schema version {newer}"):
        await Membership(database, "long_poll").join()
    old._renew_at = 0
    with pytest.raises(Superseded, match=f"schema version {newer}"):
        await old.refresh()
    await database.close(1)
    assert rows(database_dsn, "SELECT count(*) FROM engine WHERE leased_until > penstock_now()") == [(0,)]


async def test_timers_of_newer_engines_are_left_alone(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.run(definition(step("wait", "WAIT", nextStep="end", duration="PT1S"), end()))
    driver.rows(
        "INSERT INTO timer (token_id, seq, fire_at, instance_id, index)"
        " SELECT token_id, seq, penstock_now() - interval '1 day', instance_id, n"
        " FROM timer, generate_series(-60, -24) n RETURNING 1"
    )
    assert await driver.due() == 0
    assert driver.rows("SELECT count(*) FROM timer") == [(38,)]
    assert await driver.due(2) == 1  # its own, behind them
