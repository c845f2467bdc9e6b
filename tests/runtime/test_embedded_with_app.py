"""`penstock serve` beside a program with an `App` on one embedded PostgreSQL: the same runs, in either order."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.durable.programs import Program, ended, own_directory, until
from tests.runtime.conftest import StartEngine

WAITS = """
from penstock.durable import App, receive, workflow

@workflow
async def order(n: int) -> str:
    return await receive("approved", str)

print(App(order).run(order, 1, id="o-1"))
"""


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


@pytest.mark.slow(reason="a PostgreSQL of its own and two programs")
@pytest.mark.parametrize("engine_first", [True, False])
def test_an_engine_shows_and_reaches_a_programs_runs(
    start_engine: StartEngine, directory: Path, engine_first: bool
) -> None:
    program = Program(directory, WAITS)
    if engine_first:
        engine = start_engine(dsn=None, data_dir=directory / "data").wait_ready()
        running = program.start()
    else:
        running = program.start()
        until(lambda: program.rows("SELECT 1 FROM token") != [], running)
        engine = start_engine(dsn=None, data_dir=directory / "data").wait_ready()

    def found() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = engine.call("GET", "/v1/instances?businessKey=o-1")[1]["items"]
        return items

    until(lambda: found() != [], running)
    path = f"/v1/instances/{found()[0]['id']}/messages"
    assert engine.call("POST", path, {"name": "approved", "payload": "over REST"})[0] < 300
    code, said, errors = ended(running)
    assert (code, said) == (0, "over REST\n"), errors
    assert found()[0]["status"] == "COMPLETED"
    assert engine.stop() == 0
