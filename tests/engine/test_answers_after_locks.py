"""Who has an answer meets no lock of the transaction that gave it: a claim passes locked jobs by."""

from __future__ import annotations

import pytest
import trio.testing

from penstock.errors import Conflict
from penstock.store.db.connection import TrioConnection
from penstock.testing.definitions import linear
from tests.engine.driver import Driver

HESITATES_S = 0.3


@pytest.fixture(autouse=True)
def slow_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that changes nothing keeps its locks until everybody else has done what he can."""
    rollback = TrioConnection.rollback

    async def slowly(connection: TrioConnection) -> None:
        await trio.testing.wait_all_tasks_blocked(HESITATES_S)
        await rollback(connection)

    monkeypatch.setattr(TrioConnection, "rollback", slowly)


async def test_a_poll_gets_the_job_of_a_completion_before_it(driver: Driver) -> None:
    await driver.run(linear(2))
    first = await driver.one("work")
    await driver.complete(first)
    await driver.fail(first)  # closed by the completion: nothing changes
    assert [job.step_id for job in await driver.poll("work")] == ["task-2"]


async def test_a_poll_after_a_refused_retry_gets_the_job(driver: Driver) -> None:
    instance = await driver.run(linear(1))
    with pytest.raises(Conflict):
        await driver.retry(instance)
    assert len(await driver.poll("work")) == 1
