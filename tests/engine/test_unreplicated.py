"""A COMMIT that waits for a synchronous standby, and is told not to any more: a failover would undo it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import psycopg
import pytest
import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.db.outcome import InDoubt
from penstock.store.embedded.embedded import embedded
from penstock.testing.definitions import Json, definition, end, fork, linear, service
from penstock.testing.postgres import apply_schema
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import wait
from tests.waiting import wait_until

OTHER_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'other'"
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


async def wait_for_standby(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    """In effect once it returns: this session has read the setting, and so has who makes a checkpoint."""
    admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
    admin.execute("SELECT pg_reload_conf()")

    async def read() -> bool:
        return admin.execute("SELECT current_setting('synchronous_standby_names')").fetchall() == [(name,)]

    await wait_until(read)
    admin.execute("CHECKPOINT")


async def waiting(admin: psycopg.Connection[tuple[object, ...]]) -> int:
    """The session that waits for the standby, once there is one."""
    found: list[int] = []

    async def one_waits() -> bool:
        found.extend(int(str(pid)) for (pid,) in admin.execute(WAITING).fetchall())
        return bool(found)

    await wait_until(one_waits)
    return found[0]


@pytest.mark.slow(reason="a PostgreSQL with a standby")
async def test_a_commit_nobody_waits_for_is_in_doubt(
    admin: psycopg.Connection[tuple[object, ...]], nursery: trio.Nursery
) -> None:
    admin.execute("CREATE TABLE t (x int)")
    await wait_for_standby(admin, "nobody")
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


@pytest.mark.slow(reason="a PostgreSQL with a standby")
@pytest.mark.parametrize("way", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "wide"])
async def test_answers_wait_for_the_standby_and_nothing_happens_twice(
    admin: psycopg.Connection[tuple[object, ...]], make_driver: MakeDriver, way: str, narrow: bool
) -> None:
    """Visible here is not enough: the server may be replaced by the standby, which has never heard of it."""
    driver = make_driver(dsn=admin.info.dsn)
    body = linear(1) if narrow else fork(1, 1)
    await driver.upload(body)
    await wait_for_standby(admin, "nobody")
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
        await wait_for_standby(admin, "")
    assert len(answered) == 1
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def completion_of(driver: Driver, first: Job) -> None:
    await driver.complete(first, attempt=1)


async def start_with_a_key(driver: Driver, first: Job) -> None:
    await driver.start("linear", idempotency_key="k")


async def start_of_an_instance_key(driver: Driver, first: Job) -> None:
    await driver.start("linear", instance_key="k")


async def signal_with_an_id(driver: Driver, first: Job) -> None:
    await driver.signal(first.instance_id, "w", signal_id="s")


async def message_with_an_id(driver: Driver, first: Job) -> None:
    await driver.publish("told", "k", message_id="m")


SIGNALLED = definition(service("first", "w"), wait("w", "end"), end(), definition_id="signalled")


@pytest.mark.slow(reason="a PostgreSQL with a standby")
@pytest.mark.parametrize(
    ("call", "body"),
    [
        pytest.param(completion_of, linear(1), id="fast-completion"),
        pytest.param(completion_of, fork(1, 1), id="full-completion"),
        pytest.param(start_with_a_key, linear(1), id="start-with-a-key"),
        pytest.param(start_of_an_instance_key, linear(1), id="start-of-an-instance-key"),
        pytest.param(signal_with_an_id, SIGNALLED, id="signal-with-an-id"),
        pytest.param(message_with_an_id, linear(1), id="message-with-an-id"),
    ],
)
async def test_a_repeated_call_waits_for_the_standby_too(
    admin: psycopg.Connection[tuple[object, ...]],
    make_driver: MakeDriver,
    call: Callable[[Driver, Job], Awaitable[None]],
    body: Json,
) -> None:
    """Through another engine, which has seen no doubt: what it finds done might be undone by a failover."""
    driver = make_driver(dsn=admin.info.dsn, outage_wait_seconds=60)
    other = make_driver(dsn=f"{admin.info.dsn} application_name=other", outage_wait_seconds=60)
    await driver.upload(linear(1))
    await driver.run(body)
    job = await driver.one("work")
    await wait_for_standby(admin, "nobody")
    answered: list[Driver] = []

    async def do(by: Driver) -> None:
        await call(by, job)
        answered.append(by)

    async def other_waits() -> bool:
        return bool(answered) or admin.execute(OTHER_WAITS).fetchall() == [(1,)]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(do, driver)
        admin.execute("SELECT pg_cancel_backend(%s)", (await waiting(admin),))
        nursery.start_soon(do, other)
        await wait_until(other_waits)
        assert not answered
        await wait_for_standby(admin, "")
    assert answered
