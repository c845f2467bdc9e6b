"""`penstock bench` where there is no checkout: a load generator, on an engine that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.client import SyncClient
from tests.house.sources import SRC
from tests.sdk.running_engine import RunningEngine

CODE = "import sys; from penstock.cli.load import main; main(sys.argv[1:], 'penstock bench')"


def load(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(SRC), "PATH": os.environ["PATH"], "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.slow(reason="puts load on an engine for a second, twice")
def test_it_puts_load_on_an_engine_and_tells_what_callers_saw(engine: RunningEngine) -> None:
    run = load("--url", engine.url, "--seconds", "1", "--callers", "4", "--steps", "2", "--json")
    assert (run.returncode, run.stderr) == (0, "")
    reported = json.loads(run.stdout)
    with SyncClient(engine.url) as client:
        ended = list(client.iterate_instances(definition_id="penstock-bench"))
    assert {each.status for each in ended} == {"COMPLETED"}
    assert reported["kind"] == "load generator"
    assert reported["instances"] == len(ended) >= 4
    assert reported["jobsPerSecond"] == pytest.approx(2 * reported["instances"] / reported["seconds"])
    assert list(reported["endToEndMs"]) == ["p50", "p95", "p99"]
    shown = load("--url", engine.url, "--seconds", "0.1", "--callers", "1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("This is a load generator, not the harness: that one is in a checkout")


@pytest.mark.slow(reason="a call tries for ten seconds")
def test_an_engine_that_is_not_there_is_reported_in_a_line() -> None:
    run = load("--url", "http://127.0.0.1:9", "--seconds", "0.1")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("penstock: ")
    assert run.stderr.count("\n") == 1


def test_commands_of_the_harness_are_refused_with_where_it_is() -> None:
    run = load("list")
    assert (run.returncode, run.stdout) == (2, "")
    assert "there is no `list` here. This is a load generator, not the harness" in run.stderr
