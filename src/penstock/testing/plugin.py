"""The pytest plugin: fixtures for tests of workflows. Registered through the entry point ``pytest11``.

Every pytest run in an environment with Penstock imports this module, whether it uses it or not: so it imports nothing
else of Penstock before a fixture is asked for, sets no option, and does nothing until a comparison fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.blocking import SyncTestEngine
    from penstock.testing.clock import FrozenClock
    from penstock.testing.postgres import PostgresServer
    from penstock.testing.rehearsal import TestEngine

MARKER = "penstock"
ARGUMENTS = ("now", "settings", "events_max", "real_time_max_s", "backend")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "penstock(now=, settings=, events_max=, real_time_max_s=, backend=): where the clock of the fixture `penstock`"
        " starts, settings of its engine, bounds of one call, and the event loop of `penstock_sync`",
    )


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Return a comparison with the status or path of a run failed: tell where the run stands, and how it got there."""
    for side in (left, right):
        if type(side).__module__ == "penstock.testing.run_view":  # no other attribute: a Mock has them all
            story: Callable[[], str] = getattr(side, "penstock_story")  # noqa: B009 - Status and StepPath have it
            return [f"{left!r} {op} {right!r}", *story().splitlines()]
    return None


@pytest.fixture(scope="session")
def penstock_postgres() -> Generator[PostgresServer]:
    """The PostgreSQL of this test run, started with the first test that needs it; shared by pytest-xdist's workers."""
    from penstock.testing import postgres

    with postgres.shared_server(postgres.run_directory(durable=False), durable=False) as server:
        yield server


@pytest.fixture
def penstock_dsn(penstock_postgres: PostgresServer) -> Generator[str]:
    """A database of the test's own with the engine's tables, e.g. for an engine process (``WE_POSTGRES_DSN``)."""
    from penstock.testing.postgres import apply_schema

    with penstock_postgres.database(apply_schema) as dsn:
        yield dsn


@pytest.fixture
def penstock(penstock_dsn: str, request: pytest.FixtureRequest) -> Generator[TestEngine]:
    """An engine with a virtual clock, for asynchronous tests under any event loop."""
    from penstock.testing.rehearsal import TestEngine

    marked = _marked(request)
    marked.pop("backend", None)
    with TestEngine(penstock_dsn, directory=request.path.parent, **marked) as engine:
        yield engine


@pytest.fixture
def penstock_sync(penstock: TestEngine, request: pytest.FixtureRequest) -> Generator[SyncTestEngine]:
    """The same for plain test functions."""
    from penstock.testing.blocking import SyncTestEngine

    with SyncTestEngine(penstock, backend=_marked(request).get("backend", "asyncio")) as engine:
        yield engine


@pytest.fixture
def penstock_clock(penstock: TestEngine) -> FrozenClock:
    """Return the virtual clock of the test's engine. To let time pass, ``await penstock.advance(…)``."""
    return penstock.clock


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the nearest marker says, over what those further out say."""
    marked: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        unknown = set(marker.kwargs).difference(ARGUMENTS)
        if marker.args or unknown:
            wrong = "positional arguments" if marker.args else ", ".join(sorted(unknown))
            raise pytest.UsageError(f"@pytest.mark.penstock takes {', '.join(ARGUMENTS)}, not {wrong}")
        marked |= marker.kwargs
    return marked
