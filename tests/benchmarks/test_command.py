"""The command line, with a real engine where it matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import deployment, result
from benchmarks.pair import Pairs
from benchmarks.scenarios import SCENARIOS
from tests.benchmarks.contract_front import contract_front

TOP = Path(__file__).parents[2]
BOUND_S = 350  # below the time-out of a test; 44 on a quiet machine


def benchmarks(*words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TOP), str(TOP / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks", *words],
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def test_the_scenarios_are_listed_with_what_they_have_to_reach():
    listed = benchmarks("list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in SCENARIOS)
    assert "jobs ≥ 3,000/s" in listed.stdout


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["no-such"], "there is no scenario no-such"),
        (["--dsn", "host=x", "latency"], "need --url"),
        (["--set", "x", "latency"], "needs NAME=VALUE"),
        (["--set", "no_such=1", "latency"], "no setting 'no_such'"),
        (["no-such", "--against", "http://127.0.0.1:1"], "there is no scenario no-such"),
        (["--against=https://127.0.0.1:1"], "needs http://HOST:PORT"),
        (["compare", "nowhere.json", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_options_are_reported_with_exit_code_2(words, reported):
    refused = benchmarks(*words)
    assert (refused.returncode, reported in refused.stderr) == (2, True), refused.stderr


@pytest.mark.slow(reason="a whole run of the benchmarks")
def test_a_quick_run_measures_its_own_engine_and_keeps_results(tmp_path):
    chosen = ["start-batch", "single-3", "latency", "idle-fleet"]
    done = benchmarks(
        "run", *chosen, "--quick", "--output", str(tmp_path), "--name", "r", "--set", "log_level=warning", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = result.read(tmp_path / "r.json")
    assert msgspec.json.decode(done.stdout, type=result.Result) == measured
    assert [scenario.name for scenario in measured.scenarios] == chosen
    assert [problem for scenario in measured.scenarios for problem in scenario.problems] == []
    assert measured.postgres_settings["fsync"] == measured.postgres_settings["synchronous_commit"] == "on"
    assert measured.engine_settings == {"log_level": "warning"}
    assert measured.calibration is not None
    single = measured.scenario("single-3")
    assert single is not None
    assert single.figures["errors"] == 0
    assert single.figures["calls_per_item"] == pytest.approx(2, abs=0.2)
    cost = (
        "engine_cpu_s_per_1000",
        "postgres_cpu_s_per_1000",
        "wal_bytes_per_item",
        "write_commits_per_item",
        "mean_batch",
    )
    assert all(single.figures[name] > 0 for name in cost)
    calibration = ("loop_cpu_ms", "echo_cpu_us", "engine_cpu_echoes", "commits_per_s_1", "commits_per_s_32")
    assert all(single.figures[name] > 0 for name in calibration)
    idle = measured.scenario("idle-fleet")
    assert idle is not None
    assert idle.figures["statements_per_s"] > 0
    for file in ("r.md", "r.svg"):
        assert "single-3" in (tmp_path / file).read_text()
    same = benchmarks("compare", str(tmp_path / "r.json"), str(tmp_path / "r.json"))
    assert (same.returncode, "1.00" in same.stdout) == (0, True), same.stdout
    differences = json.loads(benchmarks("compare", str(tmp_path / "r.json"), str(tmp_path / "r.json"), "--json").stdout)
    assert {(each["ratio"], each["verdict"]) for each in differences} == {(1.0, "")}
    assert json.loads(benchmarks("show", str(tmp_path / "r.json"), "--json").stdout)["commit"] == measured.commit
    assert [each["name"] for each in json.loads(benchmarks("list", "--json").stdout)] == list(SCENARIOS)


@pytest.mark.slow(reason="a whole run of the benchmarks")
def test_an_engine_that_runs_already_is_measured_from_outside(tmp_path):
    directories = deployment.work_directory(Path("/var/tmp"))
    with directories as directory, deployment.engine(directory, {}) as running:
        url = f"http://127.0.0.1:{running.port}"
        words = [
            "two-engines",
            "backlog",
            "start-batch",
            "--quick",
            "--url",
            url,
            "--output",
            str(tmp_path),
            "--name",
            "r",
        ]
        done = benchmarks(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two-engines is left out" in done.stderr
    assert "backlog is left out: needs --dsn" in done.stderr
    measured = result.read(tmp_path / "r.json")
    (start,) = measured.scenarios
    assert start.figures["instances_per_s"] > 0
    assert start.figures.keys().isdisjoint({"engine_cpu_s_per_1000", "wal_bytes_per_item"})  # can't be seen from there


@pytest.mark.slow(reason="a whole run of the benchmarks")
@pytest.mark.parametrize("seen", [True, False], ids=["whole", "its port alone"])
def test_another_engine_is_measured_in_turn_with_ours(tmp_path, seen):
    file = tmp_path / "pairs.json"
    with (
        deployment.work_directory(Path("/var/tmp")) as directory,
        deployment.engine(directory, {}) as theirs,
        contract_front(theirs) as (url, polled),
    ):
        words = ["clients-3", "--against", url, "--items", "600", "--blocks-max", "1", "--state", str(file)]
        if seen:
            assert theirs.dsn is not None
            words += ["--against-dsn", theirs.dsn, "--against-pid", str(theirs.engine_pid)]
        else:
            words.append("--json")
        done = benchmarks(*words)
    assert done.returncode == 1, done.stdout + done.stderr  # one block tells nothing
    pairs = msgspec.json.decode(file.read_bytes(), type=Pairs)
    if seen:
        assert "too noisy to tell: fewer than 8 blocks after 1" in done.stdout
        assert "engine and PostgreSQL" in done.stdout
        assert "jobs a second" in done.stdout
    else:
        assert msgspec.json.decode(done.stdout, type=Pairs) == pairs
    (block,) = pairs.blocks
    assert [len(block.old), len(block.new)] == [2, 2]
    # A completion for each job, and at most a poll: that finds as many as are there, which is the machine's to say.
    assert all(1.05 < window["calls_per_item"] < 2.2 for window in (*block.old, *block.new))
    assert polled == {10}
    assert ("wal_bytes_per_item" in block.old[0]) is seen


@pytest.mark.slow(reason="a whole run of the benchmarks")
def test_an_engine_failing_to_start_is_reported_with_its_log(tmp_path):
    done = benchmarks("latency", "--quick", "--output", str(tmp_path), "--set", "batch_max_items=many")
    assert done.returncode == 1
    assert "exit code 2" in done.stderr
    assert "WE_BATCH_MAX_ITEMS" in done.stderr
