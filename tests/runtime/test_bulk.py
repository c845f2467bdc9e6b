"""A bulk operation over `kill -9` of the engine that works on it: each failure is retried once, and none is left."""

from __future__ import annotations

import os

import psycopg
import pytest

from penstock.testing.definitions import linear
from tests import postgres
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = pytest.mark.slow(reason="kills an engine at work")

COUNT = int(os.environ.get("BULK", "600"))
"""`BULK=2000 pytest tests/runtime/test_bulk.py` kills in the middle of 2,000."""
PER_SECOND = 300


def fail_all(engine: EngineProcess) -> None:
    assert engine.call("POST", "/v1/definitions", linear(1, job_type="work"))[0] == 201
    for _ in range(COUNT // 100):
        items = [{"definitionId": "linear"}] * 100
        assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
    left = COUNT
    while left:
        poll = {"workerId": "w", "jobTypes": ["work"], "maxJobs": 200, "waitSeconds": 5}
        jobs = engine.call("POST", "/v1/jobs/poll", poll)[1]["jobs"]
        items = [
            {"jobId": job["id"], "attempt": job["attempt"], "retryable": False, "errorMessage": "no"} for job in jobs
        ]
        assert engine.call("POST", "/v1/jobs/fail", {"workerId": "w", "results": items})[0] == 200
        left -= len(jobs)


def test_each_is_retried_once_when_engines_are_killed(postgres_server: postgres.PostgresServer) -> None:
    with postgres_server.database(postgres.apply_schema) as dsn:
        with EngineProcess(dsn) as first:
            fail_all(first.wait_ready())
            request = {"action": "retry", "filter": {"status": "FAILED"}, "perSecond": PER_SECOND}
            status, preview = first.call("POST", "/v1/instances/bulk", request | {"dryRun": True})
            assert (status, preview["count"], preview["exact"]) == (200, COUNT, True)
            status, made = first.call("POST", "/v1/instances/bulk", request)
            assert status == 202
            where = f"/v1/bulk/{made['id']}"
            wait_until(lambda: first.call("GET", where)[1]["done"] >= COUNT // 4 or None, timeout_s=120)
            first.kill()
        with EngineProcess(dsn) as second:
            second.wait_ready()
            before = second.call("GET", where)[1]
            assert before["state"] == "RUNNING"
            view = wait_until(
                lambda: found if (found := second.call("GET", where)[1])["state"] == "DONE" else None, timeout_s=120
            )
            assert view is not None
            assert (view["done"], view["skipped"], view["failed"], view["total"]) == (COUNT, 0, 0, COUNT)
            assert second.call("GET", "/v1/bulk")[1]["items"] == [
                {name: value for name, value in view.items() if name != "outcome"}
            ]
        with psycopg.connect(dsn) as connection:
            retried = connection.execute(
                "SELECT count(*), count(DISTINCT instance_id) FROM audit WHERE kind = 'RETRIED'"
            ).fetchone()
            open_now = connection.execute("SELECT count(*) FROM instance WHERE status = 0").fetchone()
        assert (retried, open_now) == ((COUNT, COUNT), (COUNT,))
