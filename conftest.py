"""For all tests: leaves out what this machine can't run, and says so loudly at the end; reports cross processes.

A test that needs a tool carries its marker (`jdk`, `maven`, `kafka`, `go`, `node`, `browser`) and is left out where the
tool is missing; so are those that need `root`, another user who gets to our packages (`open_venv`), many open files
(`open_files`), or the contract's libraries for other languages (`libraries`, docs/other-languages.md).
`chaos` tests run only when asked for (`-m chaos`). Left out is not skipped: nothing hides among the dots.

--tier says which tests run (CONTRIBUTING.md has the table), --timing whether those that are about time that passes are
among them: bootstrap.py runs these after the others, alone.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import pytest

# What helpers assert tells its values, too, as in the test modules themselves.
pytest.register_assert_rewrite("tests", "chaos", "benchmarks", "sdks")

# Installed, the plugin comes by its entry point, which has the same name.
pytest_plugins = ["penstock.testing.plugin"]

TOOLS = {
    "jdk": ("java", "javac"),
    "kafka": ("java", "mvn"),
    "maven": ("mvn",),
    "go": ("go",),
    "node": ("node", "npm"),
    "browser": ("chromium",),
}
OPEN_FILES_MIN = 4_000
LEFT_OUT = pytest.StashKey[Counter[str]]()
TIERS = ("quick", "slow", "all")
LONG = {
    "tests/sdk/test_conformance.py": 748,
    "tests/engine/test_cancellation.py": 483,
    "tests/house/test_compiled.py": 256,
    "tests/cli/test_binary.py": 210,
    "tests/sdk/test_against_engine.py": 208,
    "tests/benchmarks/test_command.py": 148,
    "tests/kafka/test_end_to_end.py": 146,
}
"""The files that take longest in the slow tier, with their seconds in one worker of a quiet machine of two cores."""
MAVEN_OPTS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of a Java that lives for seconds: to build the Java SDK takes 6 s of CPU, and 17 s with the second compiler."""
SLOW = "slow: "
"""Begins what is noted of a slow test that was left out: its folder and its reason follow."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock's own tests")
    group.addoption("--tier", choices=TIERS, default="all", help="the tests that are not slow, those that are, or both")
    group.addoption("--timing", choices=("with", "without", "only"), default="with", help="those marked `timing`")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    os.environ.setdefault("MAVEN_OPTS", MAVEN_OPTS)


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """--timing=only and --tier=slow read no file without such a test: most of the time would be to import them. A file
    that the command names is read: left out, it would be told as not found."""
    here = config.invocation_params.dir
    if collection_path.suffix != ".py" or collection_path in {here / arg.split("::")[0] for arg in config.args}:
        return None
    text = collection_path.read_bytes()
    if config.getoption("--timing") == "only" and b"mark.timing" not in text:
        return True
    if config.getoption("--tier") == "slow" and not names_slow_tests(collection_path, text):
        return True
    return None


def names_slow_tests(path: Path, text: bytes) -> bool:
    """Whether a file may have slow tests: by its own marker, by the helpers of tests/shares.py, or by a parameter of a
    fixture in the conftest.py beside it."""
    if b"mark.slow" in text or b"tests.shares" in text:
        return True
    fixtures = path.with_name("conftest.py")
    return fixtures != path and fixtures.exists() and b"mark.slow" in fixtures.read_bytes()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nothing that is made of the test files becomes garbage: none of it is looked at for that, now or later.

    What pytest makes of each test file is kept, also where PYTHONDONTWRITEBYTECODE is set, as in .ci/run: it is half of
    the CPU of a collection, which each worker of each run does for itself. Tests and what they start write nothing.
    """
    gc.disable()
    writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = writes_nothing
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [*in_tier(config, items)]
    if config.getoption("--tier") != "quick":
        items[:] = long_first(items, getattr(config, "workerinput", {}).get("workercount", 1))
    reasons = {
        marker: f"no {' and no '.join(missing)} on this machine"
        for marker, tools in TOOLS.items()
        if (missing := [tool for tool in tools if shutil.which(tool) is None])
    }
    if importlib.util.find_spec("playwright") is None:
        reasons["browser"] = "no playwright in this environment: pip install -e '.[dev]'"
    if importlib.util.find_spec("mkdocs") is None:
        reasons["site"] = "no mkdocs-material in this environment: make site"
    if "PENSTOCK_LIBRARIES" not in os.environ:
        reasons["libraries"] = "PENSTOCK_LIBRARIES names no folder with the contract's libraries"
    if os.geteuid() != 0:
        reasons["root"] = "this is not root"
    elif not open_to_nobody():
        reasons["open_venv"] = "other users do not get to this Python's packages"
    if (hard := resource.getrlimit(resource.RLIMIT_NOFILE)[1]) < OPEN_FILES_MIN:
        reasons["open_files"] = f"this machine allows {hard} open files"
    if "chaos" not in (config.option.markexpr or ""):
        reasons["chaos"] = "takes minutes; -m chaos runs it"
    left_out = {item: marker for item in items for marker in reasons if item.get_closest_marker(marker)}
    if left_out:
        config.stash[LEFT_OUT].update(f"{marker}: {reasons[marker]}" for marker in left_out.values())
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def in_tier(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Those of the tier that was asked for; those marked `timing` last. Notes what was left out as slow."""
    tier, timing = config.getoption("--tier"), config.getoption("--timing")
    beside: list[pytest.Item] = []
    alone: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        slow = item.get_closest_marker("slow")
        chosen = alone if item.get_closest_marker("timing") else beside
        if tier == ("quick" if slow else "slow") or timing == ("without" if chosen is alone else "only"):
            if slow is not None and tier == "quick" and timing != "only":
                folder = "/".join(item.nodeid.split("::")[0].split("/")[:-1][:2]) or "."
                config.stash[LEFT_OUT].update([f"{SLOW}{folder}: {slow.kwargs['reason']}"])
            chosen = others
        chosen.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
    return beside + alone


def long_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The same tests, so that none of the long files begins last, when the other workers have nothing left to do.

    --dist=worksteal gives each worker a stretch of the list, of the same number of tests, and later what others have
    at the end of theirs. So the long files are dealt out to the beginnings of the stretches, by their seconds.
    """
    long: dict[str, list[pytest.Item]] = {file: [] for file in LONG}
    others: list[pytest.Item] = []
    for item in items:
        long.get(item.nodeid.split("::")[0], others).append(item)
    stretches: list[list[pytest.Item]] = [[] for _ in range(workers)]
    seconds = [0] * workers
    for file, tests in long.items():
        if tests:
            least = seconds.index(min(seconds))
            stretches[least] += tests
            seconds[least] += LONG[file]
    rest = iter(others)
    left = len(items)
    for number, stretch in enumerate(stretches):
        size = left // (workers - number)
        stretch += islice(rest, max(0, size - len(stretch)))
        left -= size
    return [*chain.from_iterable(stretches), *rest]


@pytest.fixture
def leave_out(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Ends a test that finds only while it runs that this machine can't do it; told at the end like the others."""

    def end(reason: str) -> None:
        request.config.stash[LEFT_OUT].update([reason])
        pytest.skip(reason)

    return end


def open_to_nobody() -> bool:
    """Whether other users may read what is installed here: not below /root, say."""
    look = ["/usr/bin/test", "-r", pytest.__file__]
    return subprocess.run(look, user="nobody", extra_groups=[], check=False).returncode == 0  # noqa: S603 – our own words


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)  # pytest-xdist: in its workers
    if output is not None:
        output["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # Every worker collects everything, so any one of them tells it all.
    node.config.stash[LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    # A lone surrogate in the report of a failing test would end the whole run: pytest-xdist sends strict UTF-8.
    return sendable((yield))


def sendable(data: Any) -> Any:
    """The same, with every text encodable."""
    match data:
        case str():
            return data.encode(errors="backslashreplace").decode()
        case dict():
            items = cast("dict[Any, Any]", data).items()
            return {sendable(key): sendable(value) for key, value in items}
        case list() | tuple():
            listed = cast("list[Any] | tuple[Any, ...]", data)
            return type(listed)(sendable(item) for item in listed)
        case _:
            return data


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[LEFT_OUT]
    slow: dict[str, Counter[str]] = {}
    if not left_out:
        return
    terminalreporter.section("LEFT OUT", sep="!", yellow=True, bold=True)
    for reason, count in sorted(left_out.items()):
        if reason.startswith(SLOW):
            folder, _, why = reason.removeprefix(SLOW).partition(": ")
            slow.setdefault(folder, Counter())[why] += count
        else:
            terminalreporter.line(f"{count} tests were NOT run - {reason}", yellow=True)
    for folder, counts in slow.items():
        whys = ", ".join(f"{why} ({count})" for why, count in counts.most_common())
        terminalreporter.line(f"{counts.total()} slow tests of {folder} were NOT run - {whys}", yellow=True)
    if slow:
        terminalreporter.line("python3 bootstrap.py test --slow runs the slow ones", yellow=True)
