"""What a body must not do is told at its line, and blocks its run; in tests clocks and chance, too."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from penstock.durable import sleep, step, workflow
from penstock.kernel.errors import ForeignAwait
from penstock.testing import NotDeterministic, run_workflow
from tests.durable import forbidden_bodies
from tests.durable.forbidden_bodies import ALLOWED, EVERYWHERE, IN_TESTS, body, catches, in_disorder, in_order
from tests.durable.memory import Database
from tests.durable.test_executor import executing

FILE = Path(forbidden_bodies.__file__)


def place_of(function: Callable[[], None]) -> str:
    first = function.__code__.co_firstlineno
    lines = FILE.read_text().splitlines()
    [line] = [n for n in range(first, first + 4) if n <= len(lines) and lines[n - 1].endswith("# here")]
    return f"{FILE.name}:{line} uses "


@pytest.fixture(params=[*EVERYWHERE, *IN_TESTS], ids=lambda each: each[0].__name__)
def forbidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    function, used = request.param
    monkeypatch.setattr(forbidden_bodies, "doing", function)
    return f"^{re.escape(place_of(function) + used)}"


def test_a_test_is_told_at_the_line(forbidden: str):
    with pytest.raises(ForeignAwait, match=forbidden):
        run_workflow(body)
    with pytest.raises(ForeignAwait, match=forbidden):
        run_workflow(catches)


@pytest.mark.parametrize("allowed", ALLOWED, ids=lambda each: each.__name__)
@pytest.mark.filterwarnings("ignore:a body warns")
def test_what_python_does_for_a_body_is_allowed(allowed: Callable[[], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forbidden_bodies, "doing", allowed)
    assert run_workflow(body).result() == "done"


@pytest.mark.parametrize(("function", "used"), EVERYWHERE, ids=lambda each: getattr(each, "__name__", None))
async def test_an_executor_blocks_the_run_and_goes_on_mended(
    function: Callable[[], None], used: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
):
    monkeypatch.setattr(forbidden_bodies, "doing", function)
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "blocked")
    assert row.blocked is not None
    assert re.match(re.escape(place_of(function) + used), row.blocked)
    monkeypatch.setattr(forbidden_bodies, "doing", int)
    row.state = "ready"
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == '"done"'


async def test_a_body_that_catches_it_is_blocked_all_the_same(monkeypatch: pytest.MonkeyPatch, autojump_clock: object):
    monkeypatch.setattr(forbidden_bodies, "doing", forbidden_bodies.opens)
    database = Database()
    async with executing(database, catches):
        row = database.start(catches)
        await database.wait_state("r", "blocked")
    assert row.ending is None


async def test_a_foreign_await_blocks_the_run(autojump_clock: object):
    @workflow
    async def waits() -> None:
        await trio.sleep(1)

    database = Database()
    async with executing(database, waits):
        row = database.start(waits)
        await database.wait_state("r", "blocked")
    assert row.blocked is not None
    assert re.match(r"test_forbidden\.py:\d+ uses trio\.sleep in a workflow function\. Use penstock", row.blocked)


def test_steps_and_other_threads_may(monkeypatch: pytest.MonkeyPatch):
    @step
    def reads() -> int:
        socket.socket().close()
        return len(FILE.read_bytes())

    @workflow
    async def reading() -> int:
        await sleep(1)
        return await reads()

    assert run_workflow(reading).result() == FILE.stat().st_size


def test_another_order_of_a_set_is_found_by_its_shadow():
    assert run_workflow(in_order, shadow=True).result() == 8
    with pytest.raises(
        NotDeterministic, match=r"greet at /0 was called with other arguments.*forbidden_bodies\.py:\d+"
    ):
        run_workflow(in_disorder, shadow=True)
    assert run_workflow(in_disorder).result() == 8  # in this process nothing differs


def test_a_shadow_needs_a_workflow_that_can_be_imported():
    @workflow
    async def local() -> None: ...

    with pytest.raises(ValueError, match=r"a module that can be imported, not in .*<locals>\.local"):
        run_workflow(local, shadow=True)
