"""The database goes away while the engine serves: for a moment, for long, for a crash of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from tests.runtime.background import Background
from tests.runtime.conftest import StartEngine
from tests.runtime.embedded_engine import backend
from tests.runtime.engine_process import EngineProcess
from tests.runtime.gate import Gate
from tests.runtime.waiting import wait_until
from tests.sessions import stopped_sessions


@pytest.fixture
def gate(database_dsn: str) -> Generator[Gate]:
    gate = Gate(database_dsn)
    yield gate
    gate.end()
    assert_invariants(database_dsn)


def jobs_of(engine: EngineProcess, count: int, **definition: Any) -> list[dict[str, Any]]:
    """So many jobs under lease, each of an instance of its own."""
    assert engine.call("POST", "/v1/definitions", linear(2, **definition))[0] == 201
    items = [{"definitionId": "linear"}] * count
    assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
    _, answer = engine.call("POST", "/v1/jobs/poll", {"workerId": "w", "jobTypes": ["work"], "maxJobs": count})
    assert len(answer["jobs"]) == count
    return answer["jobs"]


def is_ready(engine: EngineProcess) -> bool:
    return engine.call("GET", "/readyz")[0] == 200


def rows(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_a_short_outage_is_waited_out_and_answers_are_true(
    start_engine: StartEngine, gate: Gate, database_dsn: str
) -> None:
    engine = start_engine(dsn=gate.dsn, outage_wait_seconds=60).wait_ready()
    done, failed, beaten, late = jobs_of(engine, 4, retry_count=1)
    assert engine.call("POST", f"/v1/jobs/{late['id']}/complete", {"workerId": "w"})[0] == 204
    assert is_ready(engine)
    gate.close()
    wait_until(lambda: not is_ready(engine))
    calls = {
        "complete": Background(engine.call, "POST", f"/v1/jobs/{done['id']}/complete", {"workerId": "w"}),
        "again": Background(engine.call, "POST", f"/v1/jobs/{late['id']}/complete", {"workerId": "w"}),
        "fail": Background(engine.call, "POST", f"/v1/jobs/{failed['id']}/fail", {"workerId": "w", "retryable": True}),
        "heartbeat": Background(engine.call, "POST", f"/v1/jobs/{beaten['id']}/heartbeat", {"workerId": "w"}),
        "stranger": Background(
            engine.call, "POST", f"/v1/jobs/{beaten['id']}/complete", {"workerId": "v", "attempt": 7}
        ),
        "start": Background(engine.call, "POST", "/v1/instances", {"definitionId": "linear", "businessKey": "b"}),
    }
    assert engine.call("GET", "/healthz")[0] == 200
    status, problem = engine.call("GET", "/readyz")
    assert (status, problem["error"]) == (503, "unavailable")
    assert all(call.waits for call in calls.values())
    gate.open()
    answers = {name: call.answer()[0] for name, call in calls.items()}
    expected = {"complete": 204, "again": 204, "fail": 204, "heartbeat": 200, "stranger": 409, "start": 201}
    assert answers == expected
    wait_until(lambda: is_ready(engine))
    assert rows(database_dsn, "SELECT count(*) FROM history WHERE kind = 1") == [(2,)]
    assert rows(database_dsn, "SELECT count(*) FROM instance WHERE business_key = 'b'") == [(1,)]
    assert engine.stop() == 0


@pytest.mark.slow(reason="waits through outages of the database")
def test_503_comes_after_the_outage_wait_and_not_before(
    start_engine: StartEngine, gate: Gate, database_dsn: str
) -> None:
    """Once quickly, of some times: the machine may be busy with others."""
    engine = start_engine(dsn=gate.dsn, outage_wait_seconds=0.7).wait_ready()
    (job,) = jobs_of(engine, 1)
    gate.close()
    took_s: list[float] = []
    while len(took_s) < 5 and not any(took < 3 for took in took_s):
        call = Background(engine.call, "POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})
        status, problem = call.answer()
        assert (status, problem["error"]) == (503, "unavailable")
        took_s.append(call.took_s)
    assert 0.7 <= min(took_s) < 3, took_s
    assert rows(database_dsn, "SELECT count(*) FROM history") == [(0,)]
    gate.open()
    assert engine.call("POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})[0] == 204
    assert engine.stop() == 0


@pytest.mark.slow(reason="waits through outages of the database")
def test_a_poll_parked_through_an_outage_gets_the_next_job(start_engine: StartEngine, gate: Gate) -> None:
    engine = start_engine(dsn=gate.dsn).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    poll = {"workerId": "w", "jobTypes": ["work"], "waitSeconds": 30}
    parked = Background(engine.call, "POST", "/v1/jobs/poll", poll)
    wait_until(lambda: engine.metric("penstock_parked_polls") == 1)
    gate.close()
    wait_until(lambda: not is_ready(engine))
    assert parked.waits
    gate.open()
    assert engine.call("POST", "/v1/instances", {"definitionId": "linear"})[0] == 201
    status, answer = parked.answer()
    assert (status, len(answer["jobs"])) == (200, 1)
    assert engine.stop() == 0


@pytest.mark.slow(reason="waits through outages of the database")
def test_a_stop_during_an_outage_ends_within_the_grace(start_engine: StartEngine, gate: Gate) -> None:
    engine = start_engine(dsn=gate.dsn, shutdown_grace_seconds=1, outage_wait_seconds=1).wait_ready()
    (job,) = jobs_of(engine, 1)
    gate.close()
    wait_until(lambda: not is_ready(engine))
    call = Background(engine.call, "POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})
    wait_until(lambda: engine.said("the database is away") is not None)
    assert engine.stop(20) == 0
    assert not call.waits or call.answer() is not None


@pytest.mark.slow(reason="waits through outages of the database")
@pytest.mark.parametrize("second", [False, True], ids=["in-order", "at-once"])
def test_a_stop_does_not_wait_for_the_database(start_engine: StartEngine, gate: Gate, second: bool) -> None:
    """However long calls may wait for it. A second signal does not wait for the grace either."""
    grace_s = 600 if second else 1
    engine = start_engine(dsn=gate.dsn, shutdown_grace_seconds=grace_s, outage_wait_seconds=600).wait_ready()
    (job,) = jobs_of(engine, 1)
    gate.close()
    wait_until(lambda: not is_ready(engine))
    call = Background(engine.call, "POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})
    wait_until(lambda: engine.said("the database is away") is not None)
    if second:
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_said("stopping")
    assert engine.stop(50) == int(second)
    assert (engine.said("calls that wait for the database are abandoned") is None) is second
    call.answer()


@pytest.mark.slow(reason="waits through outages of the database")
def test_a_server_process_that_hangs_holds_up_no_call(start_engine: StartEngine, database_dsn: str) -> None:
    """SIGSTOP: the socket takes what is sent, and nothing comes back."""
    engine = start_engine(
        dsn=f"{database_dsn} application_name=hung", outage_wait_seconds=8, db_answer_timeout_seconds=8
    ).wait_ready()
    first, second = jobs_of(engine, 2)
    with stopped_sessions(database_dsn, "hung"):
        call = Background(engine.call, "POST", f"/v1/jobs/{first['id']}/complete", {"workerId": "w"})
        assert call.answer()[0] in (204, 503)  # its batch may have found a new session
        assert call.took_s < 30
    wait_until(lambda: is_ready(engine), 60)
    for job in (first, second):
        assert engine.call("POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})[0] == 204
    assert rows(database_dsn, "SELECT count(*) FROM history WHERE kind = 1") == [(2,)]
    assert engine.stop() == 0


@pytest.mark.slow(reason="waits through outages of the database")
def test_the_engine_survives_a_crash_of_its_postgresql(start_engine: StartEngine, data_dir: Path) -> None:
    """A backend that is killed makes the server end all sessions and recover: 0.2 s without a database."""
    engine = start_engine(dsn=None, data_dir=data_dir, outage_wait_seconds=60).wait_ready()
    jobs = jobs_of(engine, 20)
    for job in jobs[:10]:
        assert engine.call("POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})[0] == 204
    os.kill(backend(engine), signal.SIGKILL)
    calls = [Background(engine.call, "POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"}) for job in jobs[10:]]
    assert [call.answer()[0] for call in calls] == [204] * 10
    for job in jobs:
        _, history = engine.call("GET", f"/v1/instances/{job['instanceId']}/history")
        assert [item["status"] for item in history["items"]] == ["COMPLETED", "RUNNING"]
    assert engine.stop() == 0
