"""`penstock.client.sql` on the connections of each driver: in their transactions, and with autocommit."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from penstock.client.sql import AsyncRequests, Requests
from penstock.testing.definitions import definition, end, service

ORDERS = definition(service("a", "end"), end(), definition_id="orders")
SOON = datetime(2031, 5, 5, tzinfo=UTC)
ASKED = {
    "definitionId": "orders", "definitionVersion": 1, "instanceKey": "k%s:k", "businessKey": "b", "priority": 2,
    "flowKey": "f", "keepInstanceKey": True, "startAt": "2031-05-05T00:00:00.000000Z",
}  # fmt: skip
START: dict[str, Any] = {
    "instance_key": "k%s:k", "business_key": "b", "version": 1, "start_at": SOON, "priority": 2, "flow_key": "f",
    "keep_instance_key": True,
}  # fmt: skip
ALL = [
    ("start", {**ASKED}, {"a": "ü%s:x"}),
    ("signal", {"stepId": "s", "signalId": "i"}, {"b": 1}),
    ("publish", {"name": "n", "correlationKey": "c", "ttl": "PT1H", "messageId": "m", "deliver": "ONE"}, None),
    ("cancel", {"reason": "no", "compensate": True}, None),
    ("send", {"name": "go", "messageId": "m"}, [1]),
]


@pytest.fixture
def eyes(database_dsn: str) -> Generator[psycopg.Connection[Any]]:
    """Sees what is asked for."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO setting (name, value) VALUES ('schema_version_needed', '22')")
        connection.execute(
            "INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('orders', 1, 'o', '{}', now())"
        )
        yield connection


def ask(requests: Requests) -> str:
    """Everything that there is to ask for."""
    instance = requests.start("orders", {"a": "ü%s:x"}, **START)
    requests.signal(instance, "s", {"b": 1}, signal_id="i")
    requests.publish("n", "c", ttl="PT1H", message_id="m", deliver="ONE")
    requests.cancel(instance, "no", compensate=True)
    assert requests.send(instance, "go", [1], message_id="m") > 0
    return instance


async def ask_async(requests: AsyncRequests) -> str:
    instance = await requests.start("orders", {"a": "ü%s:x"}, **START)
    await requests.signal(instance, "s", {"b": 1}, signal_id="i")
    await requests.publish("n", "c", ttl="PT1H", message_id="m", deliver="ONE")
    await requests.cancel(instance, "no", compensate=True)
    assert await requests.send(instance, "go", [1], message_id="m") > 0
    return instance


def asked(eyes: psycopg.Connection[Any]) -> list[tuple[str, Any, Any]]:
    return eyes.execute("SELECT operation, request, body FROM sql_request ORDER BY id").fetchall()


def ids(eyes: psycopg.Connection[Any]) -> set[str]:
    return {row[0] for row in eyes.execute("SELECT DISTINCT to_hex(instance_id) FROM sql_request").fetchall()} - {None}


def url(dsn: str, driver: str) -> str:
    parts = conninfo_to_dict(dsn)
    where = f"host={quote(str(parts['host']))}&port={parts.get('port', 5432)}"
    return f"postgresql+{driver}://{parts['user']}@/{parts['dbname']}?{where}"


@pytest.mark.parametrize("rows", ["tuple", "dict"])
@pytest.mark.parametrize("autocommit", [True, False])
def test_psycopg(database_dsn: str, eyes: psycopg.Connection[Any], rows: str, autocommit: bool) -> None:
    factory: Any = {"row_factory": dict_row} if rows == "dict" else {}
    with psycopg.connect(database_dsn, autocommit=autocommit, **factory) as connection:
        instance = ask(Requests(connection, schema="public"))
        assert bool(asked(eyes)) is autocommit
    assert asked(eyes) == ALL
    assert ids(eyes) == {instance}
    with psycopg.connect(database_dsn) as connection:
        with pytest.raises(psycopg.Error) as refused:
            Requests(connection, schema="public").start("orders", instance_key="k%s:k")
        assert refused.value.sqlstate == "PK006"
    with psycopg.connect(database_dsn) as connection, pytest.raises(psycopg.errors.InvalidSchemaName):
        Requests(connection, schema='no %s "such').start("orders")


def test_psycopg_in_two_phases(database_dsn: str, eyes: psycopg.Connection[Any]) -> None:
    with psycopg.connect(database_dsn) as connection:
        for number, end in ((1, connection.tpc_rollback), (2, connection.tpc_commit)):
            connection.tpc_begin(f"{number} {connection.info.dbname}")
            connection.execute("SET LOCAL penstock.notify = off")
            instance = ask(Requests(connection, schema="public"))
            connection.tpc_prepare()
            assert asked(eyes) == []
            end()
    assert asked(eyes) == ALL
    assert ids(eyes) == {instance}


def test_psycopg_awaited(database_dsn: str, eyes: psycopg.Connection[Any]) -> None:
    async def test() -> str:
        async with await psycopg.AsyncConnection.connect(database_dsn) as connection:
            return await ask_async(AsyncRequests(connection, schema="public"))

    assert {asyncio.run(test())} == ids(eyes)
    assert asked(eyes) == ALL


def test_asyncpg(database_dsn: str, eyes: psycopg.Connection[Any]) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    parts = conninfo_to_dict(database_dsn)

    async def test() -> str:
        pool = await asyncpg.create_pool(
            host=str(parts["host"]), port=int(parts.get("port") or 5432), user=parts["user"], database=parts["dbname"],
            min_size=1, max_size=1,
        )  # fmt: skip
        async with pool, pool.acquire() as connection:
            requests = AsyncRequests(connection, schema="public")
            with pytest.raises(ZeroDivisionError):
                async with connection.transaction():
                    await ask_async(requests)
                    raise ZeroDivisionError
            await connection.set_type_codec("jsonb", encoder=repr, decoder=repr, schema="pg_catalog")
            instance = await ask_async(requests)
            with pytest.raises(asyncpg.PostgresError) as refused:
                await requests.start("nothing")
            assert refused.value.sqlstate == "PK004"
            return instance

    assert {asyncio.run(test())} == ids(eyes)
    assert asked(eyes) == ALL


def test_sqlalchemy(database_dsn: str, eyes: psycopg.Connection[Any]) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    engine = sqlalchemy.create_engine(url(database_dsn, "psycopg"))
    with orm.Session(engine) as session:
        ask(Requests(session, schema="public"))
        session.rollback()
        instance = ask(Requests(session, schema="public"))
        assert asked(eyes) == []
        session.commit()
    assert asked(eyes) == ALL
    assert ids(eyes) == {instance}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        Requests(connection, schema="public").start("orders")
        with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
            Requests(connection, schema="public").start("orders", instance_key="k%s:k")
        assert refused.value.orig.sqlstate == "PK006"
    assert len(asked(eyes)) == 6
    engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_sqlalchemy_awaited(database_dsn: str, eyes: psycopg.Connection[Any], driver: str) -> None:
    asynchronous = pytest.importorskip("sqlalchemy.ext.asyncio")

    async def test() -> str:
        engine = asynchronous.create_async_engine(url(database_dsn, driver))
        async with asynchronous.AsyncSession(engine) as session, session.begin():
            instance = await ask_async(AsyncRequests(session, schema="public"))
            assert asked(eyes) == []
        await engine.dispose()
        return instance

    assert {asyncio.run(test())} == ids(eyes)
    assert asked(eyes) == ALL


def test_what_is_awaited_and_what_is_not_are_distinguished(database_dsn: str) -> None:
    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(database_dsn) as connection:
            with pytest.raises(TypeError, match="AsyncConnection is an async connection: use AsyncRequests"):
                Requests(connection)

    asyncio.run(test())
    with psycopg.connect(database_dsn) as connection:
        with pytest.raises(TypeError, match="Connection is not an async connection: use Requests"):
            AsyncRequests(connection)
        with pytest.raises(ValueError, match="start_at: has no time zone"):
            Requests(connection).start("orders", start_at=SOON.replace(tzinfo=None))
