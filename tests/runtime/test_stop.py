"""How the process ends."""

from __future__ import annotations

import signal
import socket
import threading
from typing import Any

import psycopg
import pytest

from penstock.testing.definitions import linear
from tests.runtime.conftest import StartEngine
from tests.runtime.waiting import wait_until


def in_background(function: Any, *args: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    return thread, results


@pytest.mark.slow(reason="starts engine processes")
def test_sigterm_answers_parked_polls_and_exits_0(start_engine: StartEngine) -> None:
    engine = start_engine().wait_ready()
    poll = {"workerId": "w", "jobTypes": ["work"], "waitSeconds": 30}
    parked = [in_background(engine.call, "POST", "/v1/jobs/poll", poll) for _ in range(5)]
    wait_until(lambda: engine.metric("penstock_parked_polls") == 5)
    assert engine.stop() == 0
    for thread, results in parked:
        thread.join(120)
        assert results == [(200, {"jobs": []})]
    assert engine.said("stopped") is not None


@pytest.mark.slow(reason="starts engine processes")
def test_sigterm_answers_requests_in_flight(start_engine: StartEngine, database_dsn: str) -> None:
    engine = start_engine().wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    assert engine.call("POST", "/v1/instances", {"definitionId": "linear"})[0] == 201
    _, answer = engine.call("POST", "/v1/jobs/poll", {"workerId": "w", "jobTypes": ["work"]})
    job = answer["jobs"][0]
    with psycopg.connect(database_dsn) as blocker:
        blocker.execute("SELECT 1 FROM token FOR UPDATE")  # the completion has to wait for this
        thread, results = in_background(engine.call, "POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w"})
        _wait_for_a_lock(database_dsn)
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_said("stopping")
        assert thread.is_alive()
    thread.join(120)
    assert results == [(204, None)]
    assert engine.process.wait(120) == 0
    with psycopg.connect(database_dsn) as connection:
        assert connection.execute("SELECT status FROM instance").fetchall() == [(1,)]


@pytest.mark.slow(reason="starts engine processes")
def test_past_the_grace_requests_are_cut_and_their_statements_cancelled(
    start_engine: StartEngine, database_dsn: str
) -> None:
    engine = start_engine(shutdown_grace_seconds=1).wait_ready()
    engine.call("POST", "/v1/definitions", linear(1))
    engine.call("POST", "/v1/instances", {"definitionId": "linear"})
    _, answer = engine.call("POST", "/v1/jobs/poll", {"workerId": "w", "jobTypes": ["work"]})
    path = f"/v1/jobs/{answer['jobs'][0]['id']}/complete"
    with psycopg.connect(database_dsn) as blocker:
        blocker.execute("SELECT 1 FROM token FOR UPDATE")  # the completion waits for this, for up to 10 s
        thread, _ = in_background(_call_or_none, engine.call, "POST", path, {"workerId": "w"})
        _wait_for_a_lock(database_dsn)
        assert engine.stop(20) == 0
        wait_until(lambda: _waiting_for_locks(database_dsn) == 0)
    thread.join(120)
    assert engine.said("open requests were cut off at the stop") is not None


@pytest.mark.slow(reason="starts engine processes")
def test_a_second_signal_ends_at_once(start_engine: StartEngine, database_dsn: str) -> None:
    engine = start_engine().wait_ready()
    with psycopg.connect(database_dsn) as blocker:
        blocker.execute("LOCK TABLE instance")
        thread, _ = in_background(_call_or_none, engine.call, "GET", "/v1/instances/1f")
        _wait_for_a_lock(database_dsn)
        engine.process.send_signal(signal.SIGTERM)
        engine.wait_said("stopping")
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(20) == 1  # the grace is 25 s
    thread.join(120)


@pytest.mark.slow(reason="starts engine processes")
def test_a_taken_port_is_named_and_nothing_is_left(start_engine: StartEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        engine = start_engine("--rest-port", str(port))
        assert engine.process.wait(120) == 1
        assert any(str(port) in str(line.get("error")) for line in engine.lines)


@pytest.mark.slow(reason="starts engine processes")
def test_a_database_that_never_answers_is_a_clear_error(start_engine: StartEngine) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and kept, so that nobody else listens there
        port = silent.getsockname()[1]
        engine = start_engine(dsn=f"host=127.0.0.1 port={port} user=x dbname=x", outage_wait_seconds=0.5)
        assert engine.process.wait(120) == 1
    assert any("database" in str(line.get("error")) for line in engine.lines)


def _wait_for_a_lock(dsn: str) -> None:
    """Until a statement waits for a lock: it does so for 0.1 s at a time, which a new connection for each look misses
    on a busy machine."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        wait_until(lambda: _lock_waits(connection) > 0)


def _waiting_for_locks(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return _lock_waits(connection)


def _lock_waits(connection: psycopg.Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _call_or_none(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except OSError:
        return None


@pytest.mark.slow(reason="starts engine processes")
def test_a_job_is_not_lost_to_a_vanished_client(start_engine: StartEngine) -> None:
    engine = start_engine().wait_ready()
    engine.call("POST", "/v1/definitions", linear(1))
    body = b'{"workerId": "gone", "jobTypes": ["work"], "waitSeconds": 30}'
    client = socket.create_connection(("127.0.0.1", engine.port))
    client.sendall(
        b"POST /v1/jobs/poll HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    wait_until(lambda: engine.metric("penstock_parked_polls") == 1)
    client.close()
    assert engine.call("POST", "/v1/instances", {"definitionId": "linear"})[0] == 201
    poll = {"workerId": "here", "jobTypes": ["work"], "waitSeconds": 5}
    _, answer = engine.call("POST", "/v1/jobs/poll", poll)
    assert [job["workerId"] for job in answer["jobs"]] == ["here"]
