"""What the benchmarks measure with: CPU and memory from /proc, the metrics page, the database's counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scrape
from benchmarks.bench import Bench, Options, Unsuitable
from benchmarks.calibration import calibrate, commits_in_a_row_ms
from benchmarks.database import Database, DatabaseCounters
from benchmarks.deployment import Deployment, DeploymentFailed, existing, variable_of, work_directory
from benchmarks.load.counts import Count
from benchmarks.meter import Snapshot, per_item
from benchmarks.processes import all_processes, disk_of, is_postgres, tree, tree_cpu_s, tree_resident_bytes
from benchmarks.scenarios import queues
from benchmarks.workflows import decisions, fork_join, linear, loop, output_of, variables_of, waiting
from penstock.core.parsing.parsing import parse_definition
from penstock.telemetry.metrics import Metrics

# A child that works for 0.3 CPU seconds and ends, in a parent that waits for it and then for its input to end.
PARENT = """
import subprocess, sys
work = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-c", work])
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent():
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        yield process
        process.communicate()


def test_the_cpu_of_a_tree_includes_its_ended_children(parent):
    assert 0.25 < tree_cpu_s(all_processes(), parent.pid) < 2


def test_a_process_tree_is_measured_whole_and_without_a_part(parent):
    processes = all_processes()
    assert parent.pid in tree(processes, os.getpid())
    assert parent.pid not in tree(processes, os.getpid(), without=parent.pid)
    assert tree(processes, parent.pid, without=parent.pid) == []


def test_the_memory_of_a_process_is_plausible(parent):
    assert 2**20 < tree_resident_bytes(all_processes(), parent.pid) < 2**30


def test_no_process_is_no_tree():
    assert tree({}, 1) == []


def test_the_kind_of_file_system_is_found():
    assert disk_of(Path("/proc/self")) == "proc"


def test_an_engine_is_not_given_a_directory_in_memory():
    memory = Path("/dev/shm")
    if disk_of(memory) != "tmpfs":
        pytest.fail("this test needs /dev/shm to be a tmpfs")
    with pytest.raises(DeploymentFailed, match="no disk"), work_directory(memory):
        pass


# -- metrics page


def test_batch_sizes_and_cpu_come_from_the_metrics_page():
    from prometheus_client import generate_latest

    metrics = Metrics("1")
    for size in (10, 30):
        metrics.batch_items["fast_path"].observe(size)
    page = generate_latest(metrics.registry).decode()
    assert scrape.batches(page)["fast_path"] == (40.0, 2.0)
    used = scrape.cpu_s(page)
    assert used is not None
    assert used > 0


# -- figures of a window


def snapshot(**changes) -> Snapshot:
    counts = [0] * len(Count)
    counts[Count.COMPLETED] = changes.pop("completed", 0)
    counts[Count.CALLS] = changes.pop("calls", 0)
    given: dict[str, Any] = {
        "engine_cpu_s": 0.0,
        "postgres_cpu_s": None,
        "generator_cpu_s": 0.0,
        "harness_cpu_s": 0.0,
        "database": None,
    }
    return Snapshot(**{"at": 0.0, "counts": counts, "commit_queues": {}, **given, **changes})  # pyright: ignore[reportArgumentType] - figures as they come


def counters(**changes: int) -> DatabaseCounters:
    return DatabaseCounters(**{**dict.fromkeys(DatabaseCounters._fields, 0), **changes})


def test_the_figures_of_a_window_are_per_job():
    before = snapshot(
        completed=1_000,
        calls=2_000,
        at=10.0,
        engine_cpu_s=5.0,
        commit_queues={"fast_path": (900.0, 90.0)},
        database=counters(),
    )
    after = snapshot(
        completed=3_000,
        calls=6_000,
        at=14.0,
        engine_cpu_s=5.4,
        generator_cpu_s=0.1,
        commit_queues={"fast_path": (2_900.0, 190.0)},
        database=counters(wal_bytes=1_600_000, write_commits=200, buffers=80_000, wal_flushes=100),
    )
    assert per_item(before, after, Count.COMPLETED, "fast_path") == pytest.approx(
        {
            "jobs_per_s": 500.0,
            "engine_cpu_s_per_1000": 0.2,
            "generator_cpu_s_per_1000": 0.05,
            "wal_bytes_per_item": 800.0,
            "write_commits_per_item": 0.1,
            "buffers_per_item": 40.0,
            "wal_flushes_per_item": 0.05,
            "mean_batch": 20.0,
            "calls_per_item": 2.0,
        }
    )


def test_short_windows_leave_out_what_postgresql_reports_once_a_second():
    before, after = snapshot(database=counters()), snapshot(completed=10, at=0.5, database=counters(buffers=7))
    assert "buffers_per_item" not in per_item(before, after, Count.COMPLETED, "fast_path")


def test_a_window_without_jobs_has_no_figures():
    assert per_item(snapshot(), snapshot(at=1.0), Count.COMPLETED, "fast_path") == {}


# -- database


def test_the_counters_of_the_database_grow_by_what_is_written(durable_database_dsn):
    with closing(Database(durable_database_dsn)) as database:
        before = database.counters()
        database.execute("CREATE TABLE filled AS SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n")
        after = database.counters()
        assert 100_000 < after.wal_bytes - before.wal_bytes < 1_000_000
        assert after.write_commits - before.write_commits == 1
        assert database.settings()["fsync"] == "on"


def test_the_servers_main_process_is_found(durable_database_dsn):
    with closing(Database(durable_database_dsn)) as database:
        pid = database.server_pid()
        assert pid is not None
        assert is_postgres(pid)
        assert len(tree(all_processes(), pid)) > 3


def test_calibration_commits_durably_and_leaves_nothing(durable_database_dsn):
    calibration = calibrate(durable_database_dsn, 0.2)
    assert [rate.connections for rate in calibration.rates] == [1, 8, 32]
    assert all(rate.commits_per_s > 0 for rate in calibration.rates)
    assert 0 < calibration.commit_p50_ms <= calibration.commit_p99_ms
    for pause_s in (0.0, 0.01):
        p50, p99 = commits_in_a_row_ms(durable_database_dsn, 0.2, 4, pause_s)
        assert 0 < p50 <= p99
    with closing(Database(durable_database_dsn)) as database:
        assert database.fetch("SELECT 1 FROM pg_class WHERE relname LIKE 'penstock_bench%'") == []


# -- deployments


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "127.0.0.1:8080"])
def test_an_existing_engine_is_named_by_its_url(url):
    deployment = existing(url, None, "http://127.0.0.1:9091", 7)
    assert (deployment.host, deployment.port, deployment.metrics) == ("127.0.0.1", 8080, ("127.0.0.1", 9091))


def test_tls_is_refused():
    with pytest.raises(DeploymentFailed, match="http://HOST:PORT"):
        existing("https://example:8443", None, None, None)


def test_a_setting_goes_by_its_variable():
    assert variable_of("batch_max_items") == "WE_BATCH_MAX_ITEMS"
    with pytest.raises(DeploymentFailed, match="no_such"):
        variable_of("no_such")


def test_a_scenario_that_needs_the_database_says_so():
    bench = Bench(Deployment("h", 1, None, None, None, own=False), None, Options(), lambda share, text: None)
    with pytest.raises(Unsuitable, match="--dsn"):
        bench.need_database()


NO_PAGE_IMAGES = (
    "SELECT count(*) FROM pg_file_settings WHERE (name, setting) = ('full_page_writes', 'off') AND sourcefile ~ 'auto'"
)


@pytest.mark.parametrize("own", [True, False])
def test_only_a_server_of_ours_goes_without_page_images(durable_database_dsn, monkeypatch, own):
    with closing(Database(durable_database_dsn)) as database:
        without: list[Any] = []

        def work(*_: object, **__: object) -> dict[str, float]:
            without.extend(database.fetch(NO_PAGE_IMAGES))
            return {"jobs_per_s": 1.0}

        monkeypatch.setattr(queues, "work", work)
        deployment = Deployment("h", 1, None, durable_database_dsn, None, own=own)
        bench = Bench(deployment, database, Options(), lambda share, text: None)
        queues.compare(bench, flow_keys=0, limits={"concurrency": 1})
        assert (without, database.fetch(NO_PAGE_IMAGES)) == ([(int(own),)] * 4, [(0,)])


# -- workflows


@pytest.mark.parametrize(
    "workflow",
    [linear("x", 1), linear("x", 10), fork_join("x", 3), decisions("x"), loop("x", 50), waiting("x", "PT2S")],
    ids=lambda workflow: workflow.id,
)
def test_the_workflows_are_valid(workflow):
    definition = parse_definition(json.dumps(workflow.definition).encode())
    assert {step.job_type for step in definition.steps if step.job_type} == set(workflow.job_types)


@pytest.mark.parametrize("size", [100, 200, 16_384, 262_144])
def test_start_variables_have_the_size_asked_for(size):
    assert size <= len(variables_of(size)) <= size + 60


def test_outputs_have_the_size_asked_for():
    assert len(output_of("result1", 45)) == 45
