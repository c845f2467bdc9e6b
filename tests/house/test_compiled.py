"""The hot path as C (tools/compiled.py): the same tests over parts of its modules, in a process of their own."""

from __future__ import annotations

import ast
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock import __version__
from penstock.build import is_compiled, shown_version
from tests.house.sources import TOP, tree
from tools.compiled import INHERITED, MODULES, compile_into

Test = TypeVar("Test", bound=Callable[..., Any])
BYTES = (
    "penstock/loop/poller.py",
    "penstock/http/parser.py",
    "penstock/http/request.py",
    "penstock/http/response.py",
)
"""What reads clients' bytes."""
JOB_PATH = (
    "penstock/engine/requests/answers.py",
    "penstock/engine/jobs/inline_jobs.py",
    "penstock/engine/group_commit/batcher.py",
    "penstock/engine/queues/claims.py",
    "penstock/engine/queues/fast_path.py",
    "penstock/engine/group_commit/item.py",
    "penstock/engine/group_commit/queue.py",
    "penstock/engine/queues/waiters.py",
    "penstock/telemetry/metrics/numbers.py",
    "penstock/rest/inline_handler.py",
    "penstock/store/db/statement_watchdog.py",
    "penstock/store/db/pool.py",
    "penstock/loop/waking.py",
)
"""A job's way through the group-commit queues, and the classes that modules which stay Python inherit from. All of
`MODULES` take a compiler minutes."""
TESTS_OF_BYTES = ("tests/http/test_parser.py", "tests/http/test_exchange.py")
TESTS_OF_QUEUES = (
    "tests/engine/test_linear.py",
    "tests/engine/test_lost_commit.py",
    "tests/rest/test_polls.py",
    "tests/runtime/test_hot_paths.py",
)
WORDS_OF_C = {
    *("_alignof", "_asm", "_attribute", "_auto_type", "_complex", "_const", "_extension", "_func", "_imag", "_inline"),
    *("_label", "_real", "_restrict", "_signed", "_thread", "_typeof", "_volatile"),
    *("_Alignas", "_Alignof", "_Atomic", "_Bool", "_Complex", "_Generic", "_Imaginary", "_Noreturn", "_Thread_local"),
}
"""gcc's, without the first underscore or as they are."""
PROVE = """
import sys
from importlib import import_module
from penstock.build import shown_version
modules = [import_module(name) for name in sys.argv[1:]]
print(shown_version(), all(module.__file__.endswith(".so") for module in modules))
"""


def needs_compiler(test: Test) -> Test:
    """What the first of them waits for takes minutes beside others."""
    marks = (
        pytest.mark.slow(reason="compiles modules to C"),
        pytest.mark.timeout(600),
        pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    )
    for mark in marks:
        test = mark(test)
    return test


def test_modules_to_compile_exist_and_a_checkout_is_pure() -> None:
    assert [module for module in MODULES if not (TOP / "src" / module).is_file()] == []
    assert {*BYTES, *JOB_PATH, *INHERITED} <= set(MODULES)
    assert not list((TOP / "src").rglob("*.so"))
    assert not is_compiled()
    assert shown_version() == __version__


def test_no_compiled_class_names_a_later_one_in_fields() -> None:
    """Compiled, the annotations of a Struct are looked up when it is made: a class that is not there yet is a crash."""
    found: list[str] = []
    for module in MODULES:
        classes = [each for each in tree(TOP / "src" / module).body if isinstance(each, ast.ClassDef)]
        for number, made in enumerate(classes):
            later = {each.name for each in classes[number:]}
            names = {
                word.id
                for field in made.body
                if isinstance(field, ast.AnnAssign)
                for word in ast.walk(field.annotation)
                if isinstance(word, ast.Name)
            }
            found += [f"{module}: {made.name} names {name}" for name in sorted(names & later)]
    assert found == []


def test_no_compiled_name_is_a_word_of_c() -> None:
    """mypyc puts an underscore before the names of attributes and of variables that closures share: `_inline` became
    `__inline`, which gcc takes for its own."""
    found = {
        f"{module}: {each}"
        for module in MODULES
        for node in ast.walk(tree(TOP / "src" / module))
        for each in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "arg", ""))
        if each in WORDS_OF_C
    }
    assert sorted(found) == []


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the modules compiled, which takes a minute: by the first process of a run that asks."""
    own = tmp_path_factory.getbasetemp()
    there = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    with there.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there.exists():
            made = there.with_suffix(".new")
            source = TOP / "src" / "penstock"
            shutil.copytree(source, made / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(TOP / "schema.sql", made / "penstock")
            compile_into(made, (*BYTES, *JOB_PATH), optimize=0)
            made.rename(there)
    return there


@needs_compiler
def test_compiled_modules_are_taken_before_their_sources(compiled: Path) -> None:
    names = [module.removesuffix(".py").replace("/", ".") for module in (*BYTES, *JOB_PATH)]
    proved = subprocess.run(
        [sys.executable, "-c", PROVE, *names],
        env={"PYTHONPATH": str(compiled)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert proved.stdout.split("\n")[0] == f"{__version__} (compiled) True"


@needs_compiler
@pytest.mark.parametrize("tests", [TESTS_OF_BYTES, TESTS_OF_QUEUES], ids=["bytes", "queues"])
def test_compiled_modules_pass_the_tests_of_their_sources(compiled: Path, tests: tuple[str, ...]) -> None:
    alone = ["-q", "-n0", "-p", "no:cacheprovider", "-o", f"pythonpath={compiled} ."]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *alone, *tests], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3_000:]
    assert " passed" in run.stdout
