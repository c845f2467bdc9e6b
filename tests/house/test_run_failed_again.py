"""A whole run fails for a test that fails again, and for anything that is not a test that failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_failed_again.py"
# `first` fails in the first of its runs, like a test that a stall met; `always` in each.
TESTS = """
import pathlib

def test_first():
    seen = pathlib.Path("seen")
    before = seen.read_text() if seen.exists() else ""
    seen.write_text(before + "x")
    assert before

def test_second():
    seen = pathlib.Path("seen")
    before = seen.read_text() if seen.exists() else ""
    seen.write_text(before + "x")
    assert len(before) != 2

def test_always():
    assert False
"""


def again(folder: Path, failed: list[str] | None) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    if failed is not None:
        cache = folder / ".pytest_cache/v/cache"
        cache.mkdir(parents=True)
        (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    # Only with the plugin that has -n0: to load all that are installed takes most of the time of these runs.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    return subprocess.run(
        [sys.executable, TOOL], cwd=folder, capture_output=True, text=True, timeout=120, env=environment
    )


def test_a_test_that_passes_alone_lets_the_run_pass(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("x")
    done = again(tmp_path, ["test_it.py::test_first"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "**** test_it.py::test_first" in done.stdout
    assert (tmp_path / "seen").read_text() == "xxxx", "each round runs it"


@pytest.mark.parametrize(
    "failed",
    [
        pytest.param(["test_it.py::test_always"], id="again"),
        pytest.param(["test_it.py::test_second"], id="in-the-third-round"),
        pytest.param(["test_it.py"], id="a-file-not-collected"),
        pytest.param([f"test_it.py::test_{n}" for n in range(4)], id="too-many"),
        pytest.param(["test_it.py::test_gone"], id="a-test-that-is-not-there"),
        pytest.param([], id="no-failure-noted"),
        pytest.param(None, id="a-run-that-ended-early"),
    ],
)
def test_the_run_fails_for(tmp_path: Path, failed: list[str] | None) -> None:
    assert again(tmp_path, failed).returncode == 1
