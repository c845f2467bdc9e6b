"""Lists are read from a standby while it keeps up; reads by id and everything else are not."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import trio

from chaos.server import Server
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.runtime.doctor import CheckLevel, DoctorFinding, examine
from penstock.settings import Secret, Settings
from penstock.store.db import replica as module
from penstock.store.db.database import Database
from penstock.store.db.replica import Replica
from penstock.testing.definitions import linear
from penstock.testing.postgres import apply_schema
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.model import Instance
from tests.chaos.test_short_attack import directory
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.waiting import wait_until

__all__ = ["directory", "make_driver"]

SHOWN = InstanceFilter()


async def subject(name: str, settings: Settings) -> list[DoctorFinding]:
    """What the doctor finds about it."""
    return [each for each in await trio.to_thread.run_sync(examine, settings) if each.subject == name]


async def listed(driver: Driver) -> list[Instance]:
    """What the list of instances says, whole."""
    return [*(await driver.engine.instances.list(SHOWN, 0, 20)).items]


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_lists_are_read_from_a_standby_that_keeps_up(
    directory: Path, make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIT_S", 0.0)
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    primary, standby = Server(directory / "primary"), Server(directory / "standby")
    try:
        await primary.make()
        dsn = primary.dsn("postgres")
        apply_schema(dsn)
        await standby.follow(primary, "standby")
        copy = standby.dsn("postgres")
        replica = Replica(Database(copy, max_connections=2), None, max_lag_s=60)
        driver = make_driver(dsn=dsn, replica=replica)
        await driver.upload(linear(1))
        first = await driver.start("linear", {"a": 1})

        async def is_there() -> bool:
            return [each.id for each in await listed(driver)] == [first.id]

        await wait_until(is_there)
        with psycopg.connect(copy, autocommit=True) as eyes:
            eyes.execute("SELECT pg_wal_replay_pause()")
            second = await driver.start("linear")
            assert [each.id for each in await listed(driver)] == [first.id], "it was read there"
            assert (await driver.engine.instances.count(SHOWN)).count == 1
            assert (await driver.engine.instances.get(second.id)).id == second.id
            both = BulkFilter(definition_id="linear")
            made = await driver.engine.bulk.create(BulkRequest(action="cancel", filter=both))
            await driver.engine.bulk.step()
            assert (await driver.engine.bulk.get(made.id)).done == 2, "of what is done to many none is left out"
            slow = Replica(Database(copy, max_connections=2), None, max_lag_s=0)

            async def is_behind() -> bool:
                return not await slow.is_fit()

            await wait_until(is_behind)
            await slow.database.close(0)
            eyes.execute("SELECT pg_wal_replay_resume()")

        settings = Settings(postgres_dsn=Secret(dsn), replica_dsn=Secret(copy))
        assert await subject("replica", settings) == [
            DoctorFinding(CheckLevel.OK, "replica", "a standby that keeps up")
        ]
        up_to_date = Replica(Database(copy, max_connections=2), None, max_lag_s=0)
        await wait_until(up_to_date.is_fit)
        with psycopg.connect(copy, autocommit=True) as eyes:  # all that was sent is applied; nothing more is sent
            eyes.execute("ALTER SYSTEM SET primary_conninfo = ''")
            eyes.execute("SELECT pg_reload_conf()")

            async def is_cut_off() -> bool:
                return not eyes.execute("SELECT FROM pg_stat_wal_receiver").fetchall()

            await wait_until(is_cut_off)
        assert not await up_to_date.is_fit()
        await up_to_date.database.close(0)
        await standby.kill()
        assert [each.verdict for each in await subject("replica", settings)] == [CheckLevel.ADVICE]
        with trio.fail_after(60):
            assert {each.id for each in await listed(driver)} == {first.id, second.id}
        assert not await replica.is_fit()
        no_standby = Replica(Database(dsn, max_connections=2), None, max_lag_s=60)
        assert not await no_standby.is_fit()
        for each in (replica, no_standby):
            await each.database.close(0)
    finally:
        with trio.CancelScope(shield=True):
            for server in (standby, primary):
                await server.remove()
