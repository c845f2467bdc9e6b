"""The pytest plugin as users meet it: in runs of their own, with other plugins, and unused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.sources import SRC, TOP

PLUGIN = "penstock.testing.plugin"
LOOP_SCOPE = ["-o", "asyncio_default_fixture_loop_scope=function"]  # else pytest-asyncio warns

THEIRS = """
import datetime as dt
from penstock.testing.definitions import definition, end, linear, service, step

NAP = definition(
    step("nap", "WAIT", duration="P30D", nextStep="task"), service("task", "end"), end(), definition_id="nap"
)


async def sleep_a_month(penstock):
    await penstock.deploy(NAP)
    penstock.stub("work", returns={"done": True})
    run = await penstock.start("nap")
    await penstock.advance(days=30)
    assert run.status == "COMPLETED" and run.variables == {"done": True}
"""
ANYIO = """
import pytest, sniffio
from theirs import sleep_a_month

pytestmark = pytest.mark.anyio

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

async def test_a_month(penstock, penstock_clock, anyio_backend):
    before = penstock_clock.now()
    await sleep_a_month(penstock)
    assert (penstock_clock.now() - before).days == 30
"""
TRIO = """
import pytest, trio
from theirs import sleep_a_month

@pytest.mark.trio
async def test_a_month_under_pytest_trio(penstock):
    await sleep_a_month(penstock)
    trio.lowlevel.current_task()
"""
ASYNCIO = """
import asyncio, pytest
from theirs import sleep_a_month

@pytest.mark.asyncio
async def test_a_month_under_pytest_asyncio(penstock):
    await sleep_a_month(penstock)
    asyncio.get_running_loop()
"""
PLAIN = """
import asyncio
from penstock.testing import TestEngine
from theirs import sleep_a_month

def test_a_month_in_a_plain_function(penstock_sync):
    penstock_sync.await_(lambda: sleep_a_month(penstock_sync.engine))

def test_a_month_by_hand(penstock_dsn):
    with TestEngine(penstock_dsn) as penstock:
        asyncio.run(sleep_a_month(penstock))
"""
FAILING = """
import pytest
from penstock.testing.definitions import linear

def test_it_fails(penstock_sync):
    penstock_sync.deploy(linear(1))
    run = penstock_sync.start("linear")
    assert run.status == "COMPLETED"

def test_a_mock_is_none_of_ours():
    from unittest.mock import MagicMock, Mock

    with pytest.raises(AssertionError, match="^assert <MagicMock"):
        assert MagicMock() == Mock()
    raise LookupError("mocks are fine")

def test_its_path_is_another(penstock_sync):
    penstock_sync.deploy(linear(1))
    assert penstock_sync.start("linear").path == ["task-1", "end"]

def test_it_fails_with_a_story(penstock_sync):
    penstock_sync.deploy(linear(1))
    penstock_sync.start("linear").assert_completed()

@pytest.mark.penstock(clock=1)
def test_wrong_marker(penstock):
    pass
"""


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # with CI set, pytest shows what failed twice: at its place and, uncut, in the summary
    plain = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            PLUGIN,
            "--strict-markers",
            *LOOP_SCOPE,
            *arguments,
        ],
        cwd=directory,
        env={**plain, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow(reason="runs pytest in processes")
def test_it_works_under_every_asynchronous_plugin_and_xdist(tmp_path: Path) -> None:
    files = {"test_anyio": ANYIO, "test_asyncio": ASYNCIO, "test_trio": TRIO, "test_plain": PLAIN}
    for name, text in {"theirs": THEIRS, **files}.items():
        (tmp_path / f"{name}.py").write_text(text)
    result = run_pytest(tmp_path, "-n", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 passed" in result.stdout


@pytest.mark.slow(reason="runs pytest in processes")
def test_failures_say_where_the_run_stands(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    result = run_pytest(tmp_path, "-p", "no:xdist")
    assert "AssertionError: assert 'ACTIVE' == 'COMPLETED'" in result.stdout
    assert "the run of linear did not complete" in result.stdout
    assert "mocks are fine" in result.stdout
    assert result.stdout.count("a job of type 'work' waits for a worker, and there is no stub for it") == 3
    assert "takes now, settings, events_max, real_time_max_s, backend, not clock" in result.stdout
    assert "_expect" not in result.stdout  # ends at the line of the test


def test_unused_it_imports_nothing_but_pytest() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules)\n"
        f"import {PLUGIN}\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('_')))"
    )
    environment = {"PYTHONPATH": str(SRC), "PATH": os.environ["PATH"]}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['penstock', 'penstock.distribution', 'penstock.testing', 'penstock.testing.plugin']"


def test_a_conftest_may_name_the_plugin_by_its_module() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    assert re.search(rf'^pytest_plugins = \["{re.escape(PLUGIN)}"\]$', (TOP / "conftest.py").read_text(), re.MULTILINE)


def test_all_that_is_exported_can_be_imported() -> None:
    import penstock.testing

    for name in penstock.testing.__all__:
        assert getattr(penstock.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = penstock.testing.Nothing
