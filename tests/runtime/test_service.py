"""The process as a whole: a crash inside ends it, its limits, what it imports."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from penstock.runtime.service import raise_file_limit
from tests.runtime.background import Background
from tests.runtime.conftest import StartEngine
from tests.runtime.embedded_engine import children, is_alive
from tests.runtime.engine_process import REPOSITORY
from tests.runtime.waiting import wait_until


@pytest.mark.slow(reason="starts and stops engine processes")
def test_a_service_that_crashes_brings_all_down(start_engine: StartEngine, database_dsn: str) -> None:
    engine = start_engine().wait_ready()
    poll = {"workerId": "w", "jobTypes": ["work"], "waitSeconds": 30}
    parked = Background(engine.call, "POST", "/v1/jobs/poll", poll)
    wait_until(lambda: engine.metric("penstock_parked_polls") == 1)
    with psycopg.connect(database_dsn) as connection:
        connection.execute("DROP TABLE engine")  # which no service expects
    assert engine.process.wait(120) == 1
    assert isinstance(parked.answer(), OSError)
    assert any("engine" in str(line.get("error")) for line in engine.lines if line["level"] == "error")


@pytest.mark.slow(reason="starts engine processes")
def test_a_schema_of_another_version_is_a_clear_error(start_engine: StartEngine, database_dsn: str) -> None:
    with psycopg.connect(database_dsn) as connection:
        connection.execute("UPDATE penstock_schema SET version = 7000")
    engine = start_engine()
    assert engine.process.wait(120) == 1
    assert any("schema version 7000" in str(line.get("error")) for line in engine.lines)


@pytest.mark.slow(reason="starts engine processes")
def test_it_may_open_as_many_files_as_the_system_allows(start_engine: StartEngine) -> None:
    engine = start_engine().wait_ready()
    limits = Path(f"/proc/{engine.process.pid}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert soft == hard


def test_a_low_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_start_imports_hypercorns_seam_for_metrics_only() -> None:
    code = "import sys, penstock.runtime.service; print('\\n'.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "penstock.runtime.node" in loaded.stdout.split()
    assert "penstock.http.hypercorn_seam" not in loaded.stdout.split()


@pytest.mark.slow(reason="starts engine processes")
def test_a_signal_before_it_serves_ends_it_at_once(start_engine: StartEngine) -> None:
    engine = start_engine(dsn="host=127.0.0.1 port=1 dbname=x", outage_wait_seconds=60)
    engine.wait_said("starting")
    assert engine.stop(10) == 0


@pytest.mark.slow(reason="starts and stops engine processes")
def test_sigterm_to_the_parent_of_several_stops_all_in_order(start_engine: StartEngine) -> None:
    engine = start_engine("--processes", "2").wait_ready()
    processes = children(engine.process.pid)
    assert len(processes) == 2
    poll = {"workerId": "w", "jobTypes": ["work"], "waitSeconds": 30}
    parked = [Background(engine.call, "POST", "/v1/jobs/poll", poll) for _ in range(4)]
    wait_until(lambda: engine.metric("penstock_parked_polls") == 4)
    assert engine.stop() == 0
    assert [call.answer() for call in parked] == [(200, {"jobs": []})] * 4
    assert not any(is_alive(pid) for pid in processes)


@pytest.mark.slow(reason="starts and stops engine processes")
def test_children_stop_when_their_parent_is_killed(start_engine: StartEngine) -> None:
    engine = start_engine("--processes", "2").wait_ready()
    processes = children(engine.process.pid)
    assert len(processes) == 2
    engine.process.send_signal(signal.SIGKILL)
    engine.process.wait(120)
    wait_until(lambda: not any(is_alive(pid) for pid in processes))
    assert sum(line.get("message") == "stopped" for line in engine.lines) == 2
