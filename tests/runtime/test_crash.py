"""``kill -9`` of engines under load: nothing is lost and no step is done twice, by the database's own account."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from penstock.testing.definitions import linear
from tests.runtime.conftest import StartEngine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.load import Load
from tests.runtime.waiting import wait_until

STEPS = 3
NEVER_DEAD = {"lease_expiry_limit": 32_767}
"""Leases of a second may end again and again on a busy machine; no instance may fail by that."""


def check(dsn: str, load: Load) -> None:
    """Every accepted instance ended, each step once, and every acknowledged completion is in the history."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT id, status FROM instance").fetchall()
        assert {f"{id:x}" for id, _ in rows} >= load.started
        assert {status for _, status in rows} == {1}
        doubled = connection.execute(
            "SELECT instance_id, step, count(*) FROM history WHERE kind = 1 GROUP BY 1, 2 HAVING count(*) <> 1"
        ).fetchall()
        assert doubled == []
        missing = connection.execute(
            "SELECT instance_id FROM history WHERE kind = 1 GROUP BY 1 HAVING count(*) <> %s OR count(end_step) <> 1",
            (STEPS,),
        ).fetchall()
        assert missing == []
        done = connection.execute("SELECT instance_id, token_id, seq FROM history WHERE kind = 1").fetchall()
        assert {f"{i:x}-{t:x}-{s:x}" for i, t, s in done} >= load.completed
        for table in ("token", "ready", "timer"):
            assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (0,)


def all_ended(dsn: str, target: int) -> bool:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FILTER (WHERE status = 1), count(*) FROM instance").fetchone()
    assert row is not None
    return row[0] >= target and row[0] == row[1]


@pytest.mark.slow(reason="kills engine processes under load")
def test_an_engine_killed_under_load_loses_nothing(start_engine: StartEngine, database_dsn: str) -> None:
    fast = {"lease_min_seconds": 1, "lease_scan_interval_seconds": 0.5, **NEVER_DEAD}
    engine = start_engine(**fast).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(STEPS))[0] == 201
    alive: list[EngineProcess] = [engine]
    with Load(lambda: [each.port for each in alive], workers=8, target=400, lease_s=1) as load:
        for kill in range(3):
            wait_until(lambda kill=kill: len(load.completed) > 150 * (kill + 1), timeout_s=120)
            alive.clear()
            engine.kill()
            engine = start_engine(**fast).wait_ready()
            alive.append(engine)
        wait_until(lambda: all_ended(database_dsn, 400), timeout_s=120)
    assert engine.stop() == 0
    check(database_dsn, load)


def test_an_engine_goes_on_when_the_other_is_killed(start_engine: StartEngine, database_dsn: str) -> None:
    fast = {"lease_min_seconds": 1, **NEVER_DEAD}
    engines = [start_engine(**fast).wait_ready(), start_engine(**fast).wait_ready()]
    assert engines[0].call("POST", "/v1/definitions", linear(STEPS))[0] == 201
    alive = list(engines)
    with Load(lambda: [each.port for each in alive], workers=8, target=300, lease_s=1) as load:
        wait_until(lambda: len(load.completed) > 300, timeout_s=120)
        alive.remove(engines[0])
        engines[0].kill()
        wait_until(lambda: all_ended(database_dsn, 300), timeout_s=120)
    engines[1].wait_said("engines are gone", timeout_s=120)
    assert engines[1].stop() == 0
    check(database_dsn, load)


@pytest.mark.slow(reason="kills engine processes under load")
def test_a_killed_process_on_a_shared_port_is_replaced(start_engine: StartEngine, database_dsn: str) -> None:
    engine = start_engine("--processes", "2", lease_min_seconds=1, lease_scan_interval_seconds=0.5, **NEVER_DEAD)
    engine.wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(STEPS))[0] == 201
    with Load(lambda: [engine.port], workers=8, target=300, lease_s=1) as load:
        wait_until(lambda: len(load.completed) > 200, timeout_s=120)
        before = engine.metric("workflow_instances_started_total")
        child = next(line["pid"] for line in engine.lines if line.get("message") == "engine process started")
        os.kill(child, signal.SIGKILL)
        engine.wait_said("an engine process died")
        wait_until(lambda: all_ended(database_dsn, 300), timeout_s=120)
    assert engine.metric("workflow_instances_started_total") >= before
    assert engine.stop() == 0
    check(database_dsn, load)
