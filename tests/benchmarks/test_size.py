"""Sizing is arithmetic on what was measured; what was not measured is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from benchmarks import result
from benchmarks.command import app
from benchmarks.result import Result, UnreadableResult
from benchmarks.size import Load, sizing
from tests.benchmarks.test_result import a_result, scenario_result

JOB: Final = {"engine_cpu_s_per_1000": 0.2, "postgres_cpu_s_per_1000": 0.1, "wal_bytes_per_item": 800.0}
START: Final = {"engine_cpu_s_per_1000": 0.1, "postgres_cpu_s_per_1000": 0.05, "wal_bytes_per_item": 500.0}
LOAD: Final = Load(100, 3, 1_000, 200, peak=2, kept_days=10)


def measured(*, starts: bool = True) -> Result:
    scenarios = [scenario_result("single-3", **JOB)]
    return a_result(*scenarios, *([scenario_result("start-single", **START)] if starts else []))


def test_a_load_needs_what_its_jobs_and_starts_cost() -> None:
    found = sizing(measured(), "single-3", LOAD)
    assert (found.jobs_per_s_average, found.jobs_per_s_peak) == (300, 600)
    assert found.engine_cores == pytest.approx((600 * 0.2 + 200 * 0.1) / 1_000 / 0.6)
    assert found.postgres_cores == pytest.approx((600 * 0.1 + 200 * 0.05) / 1_000 / 0.6)
    assert (found.engine_processes, found.connections, found.left_out) == (1, 10, [])
    assert found.wal_bytes_per_day == 86_400 * (300 * 1_000 + 100 * 1_500)
    assert found.disk_bytes_per_day == 86_400 * 100 * (294 + 2_000 + 3 * 363)
    assert found.disk_bytes_kept == 10 * found.disk_bytes_per_day
    tenfold = sizing(measured(), "single-3", LOAD._replace(instances_per_s=1_000, variables_bytes=16_000))
    assert (tenfold.engine_processes, tenfold.connections) == (3, 30)
    assert tenfold.disk_bytes_per_day == 86_400 * 1_000 * (294 + 16_000 + 3 * 363)


def test_what_was_not_measured_is_said() -> None:
    assert sizing(measured(starts=False), "single-3", LOAD).left_out == [
        "what starts cost: start-single was not measured"
    ]
    with pytest.raises(UnreadableResult, match="no scenario stream"):
        sizing(measured(), "stream", LOAD)
    with pytest.raises(UnreadableResult, match="wal_bytes_per_item"):
        sizing(
            a_result(scenario_result("single-3", engine_cpu_s_per_1000=1, postgres_cpu_s_per_1000=1)), "single-3", LOAD
        )


def test_the_command_prints_it_for_people_and_programs(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    result.write(measured(), file)
    words = ["size", str(file), "--instances-per-second", "100"]
    reported = CliRunner().invoke(app, words)
    assert reported.exit_code == 0, reported.output
    assert "engine                      0.3 cores: --processes 1" in reported.stdout
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["jobs_per_s_average"] == 300
    assert CliRunner().invoke(app, [*words, "--scenario", "stream"]).exit_code == 2
