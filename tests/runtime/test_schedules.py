"""A schedule over `kill -9` of engines: two of them fire each of its times once, and leave none out."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg
import pytest

from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests import postgres
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = pytest.mark.slow(reason="kills engines again and again")

SPEC = {"definitionId": "linear", "every": "PT1S", "overlap": "ALLOW", "catchUp": "ALL"}


def times(dsn: str) -> list[datetime]:
    with psycopg.connect(dsn) as connection:
        return [at for (at,) in connection.execute("SELECT at FROM scheduled ORDER BY at")]


def test_each_second_is_fired_once_when_engines_are_killed(postgres_server: postgres.PostgresServer) -> None:
    with postgres_server.database(postgres.apply_schema) as dsn:
        with EngineProcess(dsn) as first, EngineProcess(dsn) as second:
            first.wait_ready()
            second.wait_ready()
            assert first.call("POST", "/v1/definitions", linear(1))[0] == 201
            assert first.call("PUT", "/v1/schedules/ticks", SPEC)[0] == 200
            wait_until(lambda: len(times(dsn)) >= 2 or None, timeout_s=120)
            first.kill()
            seen = len(times(dsn))
            wait_until(lambda: len(times(dsn)) >= seen + 1 or None, timeout_s=120)
            second.kill()
        with EngineProcess(dsn) as third:
            third.wait_ready()
            seen = len(times(dsn))
            wait_until(lambda: len(times(dsn)) >= seen + 1 or None, timeout_s=120)
            assert third.call("POST", "/v1/schedules/ticks/pause")[0] == 200
            found = times(dsn)
            assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]
            status, shown = third.call("GET", "/v1/schedules/ticks")
            assert (status, shown["missed"], shown["nextTimes"] != []) == (200, 0, True)
        assert_invariants(dsn)
