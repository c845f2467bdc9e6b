"""A rolling upgrade under load: engines of the next version migrate the database and join, one by one the old ones go.

The next version is this one with a migration more (`newer_engine`). Nothing is lost, no step is done twice, what older
engines would break waits for the last of them, and none of them gets in again.
"""

from __future__ import annotations

import psycopg
import pytest
import trio

from penstock.errors import Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import engines as engine_store
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.runtime.conftest import StartEngine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.load import Load
from tests.runtime.newer_engine import NEWER
from tests.runtime.test_crash import NEVER_DEAD, STEPS, all_ended, check
from tests.runtime.waiting import wait_until

TARGET = 300


def use_what_is_new(dsn: str) -> None:
    """As the first use of a feature does that older engines would break."""

    async def use() -> None:
        async with await TrioConnection.connect(dsn) as connection:
            await engine_store.require_version(connection, NEWER)

    trio.run(use)


def version_of(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT max(version) FROM penstock_schema").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow(reason="upgrades engines under load")
def test_engines_are_upgraded_one_by_one_under_load(start_engine: StartEngine, database_dsn: str) -> None:
    old = [start_engine(**NEVER_DEAD).wait_ready() for _ in range(2)]
    assert old[0].call("POST", "/v1/definitions", linear(STEPS))[0] == 201
    alive: list[EngineProcess] = list(old)

    def goes_on() -> None:
        done = len(load.completed)
        wait_until(lambda: len(load.completed) > done + 30 or all_ended(database_dsn, TARGET), timeout_s=120)

    with Load(lambda: [each.port for each in alive], workers=6, target=TARGET) as load:
        goes_on()
        new = [start_engine(module="tests.runtime.newer_engine", **NEVER_DEAD).wait_ready()]
        assert version_of(database_dsn) == NEWER
        alive.append(new[0])
        goes_on()  # the old ones, too, on a schema that they don't know
        refusal = f"upgrade all engines first: .* knows schema version {NEWER - 1}, not {NEWER}"
        with pytest.raises(Conflict, match=refusal):
            use_what_is_new(database_dsn)
        for engine in old:
            alive.remove(engine)
            assert engine.stop() == 0, engine.reported
            new.append(start_engine(module="tests.runtime.newer_engine", **NEVER_DEAD).wait_ready())
            alive.append(new[-1])
            goes_on()
        use_what_is_new(database_dsn)
        wait_until(lambda: all_ended(database_dsn, TARGET), timeout_s=120)
    check(database_dsn, load)
    assert_invariants(database_dsn)
    late = start_engine()
    assert late.process.wait(120) == 1
    assert f"the database has schema version {NEWER}, this penstock knows versions up to {NEWER - 1}" in late.reported
    for engine in new:
        assert engine.stop() == 0, engine.reported
    assert [line for engine in (*old, *new) for line in engine.lines if line["level"] in ("error", "critical")] == []
