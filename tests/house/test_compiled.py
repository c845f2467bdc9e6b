"""The hot path as C (tools/compiled.py): the same tests over some of its modules, in a process of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import __version__
from penstock.build import is_compiled, shown_version
from tests.house.sources import TOP
from tools.compiled import MODULES, compile_into

SOME = (
    "penstock/poller.py",
    "penstock/http/parser.py",
    "penstock/http/request.py",
    "penstock/http/response.py",
)
"""What reads clients' bytes: seconds of a compiler, where all of them are minutes."""
PROVE = """
import sys
from penstock import poller
from penstock.build import shown_version
from penstock.http import parser, response
print(shown_version(), *(module.__file__.endswith(".so") for module in (poller, parser, response)))
"""


def test_modules_to_compile_exist_and_a_checkout_is_pure() -> None:
    assert [module for module in MODULES if not (TOP / "src" / module).is_file()] == []
    assert set(SOME) <= set(MODULES)
    assert not list((TOP / "src").rglob("*.so"))
    assert not is_compiled()
    assert shown_version() == __version__


@pytest.mark.slow
@pytest.mark.timeout(600)  # a C compiler beside others
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_compiled_modules_pass_the_tests_of_their_sources(tmp_path: Path) -> None:
    shutil.copytree(TOP / "src" / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    compile_into(tmp_path, SOME, optimize=0)
    proved = subprocess.run(
        [sys.executable, "-c", PROVE], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert proved.stdout.split("\n")[0] == f"{__version__} (compiled) True True True"
    tests = ["tests/http/test_parser.py", "tests/http/test_exchange.py"]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            "-o",
            f"pythonpath={tmp_path} .",
            *tests,
        ],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3_000:]
    assert " passed" in run.stdout
