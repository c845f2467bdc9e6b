"""Which tests a run leaves out, and why, is said where each stands."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.house.sources import TOP, all_python, name, tree

MIN_WORDS = 2
PROMISED = {
    "an engine process is killed": ("tests/runtime/test_crash.py", "test_an_engine_goes_on_when_the_other_is_killed"),
    "a page in Chromium": ("tests/browser/test_first_page.py", "test_a_step_tells_what_it_wrote_and_hides_cards"),
    "both wires": ("tests/sdk/test_both_wires.py", "test_a_failure_is_retried_until_success_or_the_last_retry"),
    "a workflow is killed": ("tests/durable/test_asyncio.py", "test_a_killed_program_of_asyncio_goes_on"),
}
"""What CONTRIBUTING.md says of the quick tier, and the test that shows it."""
NOTHING_QUICK = {"examples"}
"""Folders of which the quick tier has nothing."""


def marks(module: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, reason) of each ``mark.slow``; "" where none is given in words."""
    given = {id(node.func): node for node in ast.walk(module) if isinstance(node, ast.Call)}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr == "slow" and ast.unparse(node.value).endswith("mark"):
            call = given.get(id(node))
            words = call.keywords if call is not None else []
            reasons = [word.value for word in words if word.arg == "reason"]
            reason = reasons[0] if reasons else None
            yield node.lineno, str(reason.value) if isinstance(reason, ast.Constant) else ""


@pytest.mark.parametrize(
    ("source", "reasons"),
    [
        ("@pytest.mark.slow\ndef test_a(): ...", [""]),
        ("@pytest.mark.slow()\ndef test_a(): ...", [""]),
        ("pytestmark = [pytest.mark.go, pytest.mark.slow('compiles')]", [""]),
        ("pytest.param(1, marks=pytest.mark.slow(reason='compiles a program'))", ["compiles a program"]),
    ],
)
def test_a_slow_test_without_a_reason_would_be_found(source, reasons):
    assert [reason for _, reason in marks(ast.parse(source))] == reasons


def test_every_slow_test_gives_its_reason():
    tests = [path for path in all_python() if path.is_relative_to(TOP / "tests") and path.name != "shares.py"]
    marked = [path for path in tests if "mark.slow" in path.read_text()]  # to parse all of them takes seconds
    found = [(f"{name(path)}:{line}", reason) for path in marked for line, reason in marks(tree(path))]
    assert found
    assert [where for where, reason in found if len(reason.split()) < MIN_WORDS] == []


def test_only_files_that_name_slow_tests_have_some():
    """What --tier=slow reads (`names_slow_tests` in conftest.py) goes by that: a test file's own text, or its folder's
    conftest.py. A helper with the marker in another place would hide the tests that use it."""
    helpers = [path for path in (TOP / "tests").rglob("*.py") if not path.name.startswith("test_")]
    marking = {name(path) for path in helpers if "mark.slow" in path.read_text()}
    assert marking == {"tests/shares.py", "tests/rest/conftest.py"}
    inside = [path for path in (TOP / "tests" / "rest").rglob("test_*.py") if path.parent.name != "rest"]
    assert inside == []  # they would use a fixture of a folder above theirs


def quick_tests(path: Path) -> set[str]:
    """The tests of a file that are not slow."""
    module = tree(path)
    of_all = [
        node for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if any([*marks(node)] for node in of_all):
        return set()
    return {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any(ast.unparse(each).startswith("pytest.mark.slow") for each in node.decorator_list)
    }


@pytest.mark.parametrize(("file", "test"), PROMISED.values(), ids=PROMISED.keys())
def test_the_quick_tier_has_what_is_promised(file, test):
    assert test in quick_tests(TOP / file)


def test_the_quick_tier_has_something_of_each_folder():
    folders: dict[str, set[str]] = {}
    for path in (TOP / "tests").rglob("test_*.py"):
        tests = folders.setdefault(str(path.relative_to(TOP).parts[1]), set())
        if not tests:
            tests |= quick_tests(path)
    assert {folder for folder, tests in folders.items() if not tests} == NOTHING_QUICK


def test_the_quick_tier_has_something_of_each_report():
    found = {name(path): quick_tests(path) for path in (TOP / "tests" / "reports").glob("test_*.py")}
    assert found
    assert [file for file, tests in found.items() if not tests] == []


@pytest.fixture
def top_conftest(pytestconfig: pytest.Config) -> Any:
    """The conftest.py of this run. It can't be imported a second time."""
    return pytestconfig.pluginmanager.get_plugin(str(TOP / "conftest.py"))


def of_files(*counts: tuple[str, int]) -> list[Any]:
    """Stand-ins for collected tests: so many of each file."""
    return [SimpleNamespace(nodeid=f"{file}::test_{number}") for file, count in counts for number in range(count)]


def test_long_files_begin_the_stretches_of_the_workers(top_conftest):
    """pytest-xdist gives each of three workers a third of these twelve tests."""
    first, second, third, fourth, *_ = top_conftest.LONG
    tests = of_files(("a", 3), (fourth, 1), (third, 1), ("b", 3), (first, 2), (second, 1), ("c", 1))
    laid_out = [test.nodeid.split("::")[0] for test in top_conftest.long_first(tests, 3)]
    assert laid_out == [first, first, "a", "a", second, "a", "b", "b", third, fourth, "b", "c"]


@pytest.mark.parametrize("workers", [1, 2, 6, 40])
def test_laying_out_tests_keeps_each_of_them_once(top_conftest, workers):
    tests = of_files(("a", 5), *((file, 4) for file in top_conftest.LONG), ("b", 3))
    assert sorted(map(id, top_conftest.long_first(tests, workers))) == sorted(map(id, tests))
    assert top_conftest.long_first([], workers) == []


def test_the_long_files_are_there(top_conftest):
    assert [file for file in top_conftest.LONG if not (TOP / file).is_file()] == []
    assert [*top_conftest.LONG.values()] == sorted(top_conftest.LONG.values(), reverse=True)


def test_what_was_made_of_the_test_files_is_never_looked_at_for_garbage():
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
