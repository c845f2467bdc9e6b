"""A COMMIT that waits for a synchronous standby, and is told not to any more: a failover would undo it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import psycopg
import pytest
import trio

from penstock.store.connection import TrioConnection
from penstock.store.embedded import embedded
from penstock.store.outcome import InDoubt
from penstock.testing.definitions import fork, linear
from penstock.testing.postgres import apply_schema
from tests.engine.conftest import MakeDriver
from tests.waiting import wait_until

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
async def admin() -> AsyncGenerator[psycopg.Connection[tuple[object, ...]]]:
    """A server of the test's own that will wait for a standby which is not there."""
    with tempfile.TemporaryDirectory() as directory:  # not pytest's: the server's account may not enter that one
        directory_path = Path(directory)
        directory_path.chmod(0o755)
        async with embedded(directory_path / "data", settings={"fsync": "off"}) as dsn:
            apply_schema(dsn)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("SET synchronous_commit = local")
                yield connection


def wait_for_standby(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
    admin.execute("SELECT pg_reload_conf()")


async def waiting(admin: psycopg.Connection[tuple[object, ...]]) -> int:
    """The session that waits for the standby, once there is one."""
    found: list[int] = []

    async def one_waits() -> bool:
        found.extend(int(str(pid)) for (pid,) in admin.execute(WAITING).fetchall())
        return bool(found)

    await wait_until(one_waits)
    return found[0]


@pytest.mark.slow
async def test_a_commit_nobody_waits_for_is_in_doubt(
    admin: psycopg.Connection[tuple[object, ...]], nursery: trio.Nursery
) -> None:
    admin.execute("CREATE TABLE t (x int)")
    wait_for_standby(admin, "nobody")
    doubts: list[InDoubt] = []

    async def insert() -> None:
        with pytest.raises(InDoubt, match="standby") as raised:
            await connection.fetch("INSERT INTO t VALUES (1)")
        doubts.append(raised.value)

    async with await TrioConnection.connect(admin.info.dsn) as connection, trio.open_nursery() as inserting:
        inserting.start_soon(insert)
        admin.execute("SELECT pg_cancel_backend(%s)", (await waiting(admin),))
    assert doubts
    assert admin.execute("SELECT count(*) FROM t").fetchall() == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
async def test_answers_wait_for_the_standby_and_nothing_happens_twice(
    admin: psycopg.Connection[tuple[object, ...]], make_driver: MakeDriver, way: str, narrow: bool
) -> None:
    """Visible here is not enough: the server may be replaced by the standby, which has never heard of it."""
    driver = make_driver(dsn=admin.info.dsn)
    body = linear(1) if narrow else fork(1, 1)
    await driver.upload(body)
    wait_for_standby(admin, "nobody")
    answered: list[str] = []

    async def start() -> None:
        answered.append((await driver.start(str(body["id"]))).id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        admin.execute(f"SELECT {way}(%s)".encode(), (await waiting(admin),))

        async def visible() -> bool:
            return driver.rows("SELECT count(*) FROM instance") == [(1,)]

        await wait_until(visible)
        await waiting(admin)  # now the look at what became of it waits in its turn
        assert not answered
        wait_for_standby(admin, "")
    assert len(answered) == 1
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]
