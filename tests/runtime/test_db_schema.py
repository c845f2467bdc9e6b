"""In which schema the tables are: where they were, else where they are to be; two installations in one database."""

from __future__ import annotations

import psycopg
import pytest
import structlog.testing
import trio
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.durable.own_engine import open_engine
from penstock.engine.engine import Engine
from penstock.runtime import migrate
from penstock.settings import Secret, Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import with_defaults
from penstock.store.db.placement import in_schema, placed
from penstock.store.db.schema import SchemaMismatch
from penstock.store.rows import engines as engine_store


def schemas(dsn: str) -> list[str]:
    """Those that have Penstock's tables."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'penstock_schema' ORDER BY 1")
        return [name for (name,) in found]


def execute(dsn: str, text: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(text.encode())


async def test_an_engine_finds_the_schema_that_a_program_made(empty_database_dsn: str):
    async with open_engine(empty_database_dsn, serves=True, migrate=True) as (engine, _, _):
        await engine.ready()
    assert schemas(empty_database_dsn) == ["penstock"]
    assert await trio.to_thread.run_sync(migrate.run, Settings(postgres_dsn=Secret(empty_database_dsn))) is not None
    assert schemas(empty_database_dsn) == ["penstock"]


async def test_a_program_finds_the_schema_that_an_engine_made(empty_database_dsn: str):
    assert await trio.to_thread.run_sync(migrate.run, Settings(postgres_dsn=Secret(empty_database_dsn))) is not None
    async with open_engine(empty_database_dsn, serves=True, migrate=False) as (engine, _, _):
        await engine.ready()
    assert schemas(empty_database_dsn) == ["penstock"]


async def test_programs_use_an_installation_in_public(empty_database_dsn: str):
    in_public = Settings(postgres_dsn=Secret(empty_database_dsn), db_schema="public")
    assert await trio.to_thread.run_sync(migrate.run, in_public) is not None
    assert await placed(empty_database_dsn, None) == empty_database_dsn
    async with open_engine(empty_database_dsn, serves=True, migrate=True) as (engine, _, _):
        await engine.ready()
    assert schemas(empty_database_dsn) == ["public"]


async def test_an_installation_in_the_search_path_is_kept(empty_database_dsn: str):
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute("CREATE SCHEMA theirs")
        connection.execute(sql.SQL("ALTER DATABASE {} SET search_path = theirs").format(sql.Identifier(name)))
    named = Settings(postgres_dsn=Secret(empty_database_dsn), db_schema="theirs")
    assert await trio.to_thread.run_sync(migrate.run, named) is not None
    async with open_engine(empty_database_dsn, serves=True, migrate=True):
        assert schemas(empty_database_dsn) == ["theirs"]
    assert await placed(empty_database_dsn, None) == in_schema(empty_database_dsn, "theirs"), "with the same locks"


async def test_of_two_installations_the_search_path_decides(empty_database_dsn: str):
    for name in ("public", "penstock"):
        settings = Settings(postgres_dsn=Secret(empty_database_dsn), db_schema=name)
        assert await trio.to_thread.run_sync(migrate.run, settings) is not None
    with structlog.testing.capture_logs() as logs:
        assert await placed(empty_database_dsn, None) == empty_database_dsn
    assert [(log["used"], log["other"]) for log in logs] == [("public", "penstock")]


async def test_a_schema_may_have_any_name(empty_database_dsn: str):
    name = 'My "own" \\schema'
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    with psycopg.connect(with_defaults(in_schema(empty_database_dsn, name))) as connection:
        assert connection.execute("SELECT current_schema()").fetchone() == (name,)


HELD = b"""SELECT objid::int, classid::bigint FROM pg_locks JOIN pg_database d ON d.oid = database
WHERE locktype = 'advisory' AND datname = current_database() AND objid < 1024"""


async def holders(engine: Engine) -> dict[int, int]:
    """The engines whose session lock is held, of any installation: number and class of the lock."""
    async with engine.database.connection() as connection:
        return {int(str(number)): int(str(class_)) for number, class_ in await connection.fetch(HELD)}


async def test_two_installations_in_one_database_do_not_meet(empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WE_DB_SCHEMA", "one")
    async with open_engine(empty_database_dsn, serves=True, migrate=True) as (first, _, _):
        monkeypatch.setenv("WE_DB_SCHEMA", "two")
        async with open_engine(empty_database_dsn, serves=True, migrate=True) as (second, _, _):
            with trio.fail_after(30):
                while not {first.ids.number, second.ids.number} <= (held := await holders(first)).keys():
                    await trio.lowlevel.checkpoint()
            assert held[first.ids.number] != held[second.ids.number]
            assert await received(first, second) == "to itself"
    assert schemas(empty_database_dsn) == ["one", "two"]


async def received(*engines: Engine) -> str:
    """The first that the first engine's channel brings when each has sent something, itself last."""
    first = engines[0]
    listener = await TrioConnection.connect(first.database.dsn)
    try:
        await engine_store.listen_and_hold(listener, 2_000)
        for engine in reversed(engines):
            async with engine.database.connection() as connection:
                await engine_store.notify(connection, "to itself" if engine is first else "from another")
        with trio.fail_after(30):
            [payload] = [notice.payload async for notice in listener.notifies(stop_after=1)]
            return payload
    finally:
        listener.close_nowait()


async def test_an_impossible_schema_is_reported_with_what_to_do(
    empty_database_dsn: str, caplog: pytest.LogCaptureFixture
):
    execute(empty_database_dsn, "DROP ROLE IF EXISTS may_nothing; CREATE ROLE may_nothing LOGIN")
    dsn = make_conninfo(empty_database_dsn, user="may_nothing")
    assert await trio.to_thread.run_sync(migrate.run, Settings(postgres_dsn=Secret(dsn), db_schema="wf")) is None
    assert schemas(empty_database_dsn) == []
    execute(empty_database_dsn, "DROP ROLE may_nothing")


async def test_the_options_of_a_dsn_are_kept(empty_database_dsn: str):
    dsn = make_conninfo(empty_database_dsn, options="-c work_mem=7MB")
    with psycopg.connect(with_defaults(in_schema(dsn, "wf"))) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
        assert connection.execute("SHOW search_path").fetchone() == ("wf",)


async def test_a_program_changes_no_database_without_permission(empty_database_dsn: str):
    with pytest.RaisesGroup(
        pytest.RaisesExc(SchemaMismatch, match=r"has none of Penstock's tables: run `penstock migrate`.*migrate=True"),
        flatten_subgroups=True,
    ):
        async with open_engine(empty_database_dsn, serves=True, migrate=False):
            raise AssertionError("it started")
    assert schemas(empty_database_dsn) == []
    async with open_engine(empty_database_dsn, serves=True, migrate=True):
        pass
    async with open_engine(empty_database_dsn, serves=True, migrate=False) as (engine, _, _):
        await engine.ready()
