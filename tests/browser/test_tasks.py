"""What people come to the console for takes the clicks that were promised; `tests.browser.tasks` times it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests import postgres
from tests.browser.tasks import TASKS, Sizes, Task, busy_engine, done
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

SIZES = Sizes(instances=1_000, alike=60, tests=150)
"""More test instances than are cancelled without their number; more failed ones than a page has."""
CLICKS = {4: 2, 9: 2}
"""Of tasks that take fewer than promised."""


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    with busy_engine(postgres_server, SIZES) as process:
        yield process


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.walk.__name__)
def test_a_task_takes_the_clicks_promised(page: Any, engine: EngineProcess, task: Task) -> None:
    took = done(task, page, engine, SIZES)
    print(took)
    assert took.clicks == CLICKS.get(TASKS.index(task) + 1, task.clicks)
