"""The top conftest: tiers, what can't run here is left out loudly, any failure is reported, also by pytest-xdist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import structlog

from tests.house.sources import TOP

TESTS = """
import pytest

@pytest.mark.jdk
def test_java(): pass

@pytest.mark.go
def test_go(): pass

@pytest.mark.chaos
def test_chaos(): pass

def test_plain(): pass
"""
TIERS = """
import pytest

def test_quick(): pass

@pytest.mark.TIMING
def test_quick_alone(): pass

@pytest.mark.slow(reason="builds the wheel")
def test_slow(): pass

@pytest.mark.slow(reason="waits for a lease")
@pytest.mark.TIMING
def test_slow_alone(): pass

def test_quick_last(): pass
""".replace("TIMING", "timing")  # no test of this file is one
RUNS = [(tier, timing) for tier in ("quick", "slow") for timing in ("without", "only")]


@pytest.fixture
def project(tmp_path):
    shutil.copy(TOP / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  jdk\n  kafka\n  go\n  chaos\n  slow\n  timing\n")
    tools = tmp_path / "bin"
    tools.mkdir()

    def run(*arguments: str, tools_there: tuple[str, ...] = ()) -> str:
        for tool in tools_there:
            os.symlink("/bin/true", tools / tool)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {
            "PATH": str(tools),
            "PYTHONPATH": str(TOP / "src"),  # the conftest loads penstock.testing
            # To load all plugins that are installed takes most of the time of these runs.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p xdist.plugin",
        }
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment).stdout

    return run


@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
@pytest.mark.slow(reason="runs pytest in a process")
def test_what_is_left_out_is_said_with_the_reason(project, arguments):
    out = project(*arguments)
    assert "LEFT OUT" in out
    assert "1 tests were NOT run - jdk: no java and no javac on this machine" in out
    assert "1 tests were NOT run - go: no go on this machine" in out
    assert "1 tests were NOT run - chaos: takes minutes; -m chaos runs it" in out
    assert "1 passed" in out


@pytest.mark.slow(reason="runs pytest in a process")
def test_nothing_is_said_when_everything_ran(project):
    out = project("-m", "chaos or not chaos", tools_there=("java", "javac", "go"))
    assert "LEFT OUT" not in out
    assert "4 passed" in out


@pytest.mark.slow(reason="runs pytest in a process")
def test_a_failure_message_with_half_a_character_is_reported(project, tmp_path):
    (tmp_path / "test_it.py").write_text(r"""
def test_half():
    print("printed \ud800")
    assert "\udcff" == "a"

def test_plain(): pass
""")
    out = project("-n", "2")
    assert "1 failed, 1 passed" in out
    assert r"+ \udcff" in out


@pytest.mark.slow(reason="runs pytest in a process")
def test_what_a_helper_asserts_tells_its_values(project, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("def check(held):\n    assert len(held) == 0\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "test_it.py").write_text("from tests import helper\ndef test_it(): helper.check(['a lease'])\n")
    assert "len(['a lease'])" in project()


@pytest.mark.slow(reason="runs pytest in a process")
def test_each_test_is_in_one_tier(project, tmp_path):
    (tmp_path / "test_it.py").write_text(TIERS)
    ran = {run: ran_in(project("-vv", f"--tier={run[0]}", f"--timing={run[1]}")) for run in RUNS}
    assert ran == {
        ("quick", "without"): ["test_quick", "test_quick_last"],
        ("quick", "only"): ["test_quick_alone"],
        ("slow", "without"): ["test_slow"],
        ("slow", "only"): ["test_slow_alone"],
    }
    both = ran_in(project("-vv", "--tier=all"))
    assert both == ["test_quick", "test_slow", "test_quick_last", "test_quick_alone", "test_slow_alone"]
    assert ran_in(project("-vv")) == both


@pytest.mark.slow(reason="runs pytest in a process")
def test_the_slow_tier_reads_only_files_that_may_have_such_tests(project, tmp_path):
    (tmp_path / "test_it.py").write_text(TIERS)
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "test_quick.py").write_text("raise AssertionError('read')\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test_by_fixture.py").write_text("def test_each(kind): pass\n")
    (tmp_path / "folder" / "conftest.py").write_text(
        "import pytest\nslow = pytest.param('b', marks=pytest.mark.slow(reason='a process'))\n"
        "@pytest.fixture(params=['a', slow])\ndef kind(request): pass\n"
    )
    assert ran_in(project("-vv", "--tier=slow", "--timing=without")) == ["test_each", "test_slow"]
    assert "AssertionError: read" in project("--tier=slow", "quick/test_quick.py")


@pytest.mark.slow(reason="runs pytest in a process")
@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
def test_the_quick_tier_says_what_it_left_out(project, tmp_path, arguments):
    (tmp_path / "test_it.py").write_text(TIERS)
    out = project("--tier=quick", "--timing=without", *arguments)
    assert "2 slow tests of . were NOT run - builds the wheel (1), waits for a lease (1)\n" in out
    assert "python3 bootstrap.py test --slow" in out
    assert "LEFT OUT" not in project("--tier=quick", "--timing=only", *arguments)
    assert "LEFT OUT" not in project("--tier=slow", *arguments)


def ran_in(out: str) -> list[str]:
    return re.findall(r"::(\w+)(?:\[\w+\])? PASSED", out)


def test_a_logged_exception_is_pythons_own_text(capsys):
    """Rich's, with locals and sources, took 0.3 s of each test that logs one."""
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        structlog.get_logger().exception("it failed")
    reported = capsys.readouterr().out
    assert "Traceback (most recent call last):\n" in reported
    assert "ZeroDivisionError: by nothing" in reported
    assert "╭" not in reported
