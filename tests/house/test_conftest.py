"""The top conftest: what can't run here is left out loudly, and any failure is reported, also by pytest-xdist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

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


@pytest.fixture
def project(tmp_path):
    shutil.copy(TOP / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  jdk\n  kafka\n  go\n  chaos\n")
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
@pytest.mark.slow
def test_what_is_left_out_is_said_with_the_reason(project, arguments):
    out = project(*arguments)
    assert "LEFT OUT" in out
    assert "1 tests were NOT run - jdk: no java and no javac on this machine" in out
    assert "1 tests were NOT run - go: no go on this machine" in out
    assert "1 tests were NOT run - chaos: takes minutes; -m chaos runs it" in out
    assert "1 passed" in out


@pytest.mark.slow
def test_nothing_is_said_when_everything_ran(project):
    out = project("-m", "chaos or not chaos", tools_there=("java", "javac", "go"))
    assert "LEFT OUT" not in out
    assert "4 passed" in out


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_a_helper_asserts_tells_its_values(project, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("def check(held):\n    assert len(held) == 0\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "test_it.py").write_text("from tests import helper\ndef test_it(): helper.check(['a lease'])\n")
    assert "len(['a lease'])" in project()
