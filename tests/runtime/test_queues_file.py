"""The file of queues that is applied at a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadRequest, Conflict
from penstock.runtime.queues_file import apply_queues
from penstock.wire.queue import QueuePolicy, Rate
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver

__all__ = ["driver", "make_driver"]  # pytest finds the fixtures here


async def test_a_file_of_queues_is_applied(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(
        "crm:\n  jobTypes: [crm.read, crm.write]\n  concurrency: 5\n"
        "mail: {jobTypes: [mail], rate: {limit: 1, period: PT1S}, paused: true}\n"
    )
    await driver.engine.queues.put("other", QueuePolicy(["other"]))
    assert await apply_queues(driver.engine.queues, str(file)) == 2
    await driver.engine.queues.pause("crm", paused=True)  # by hand: it outlives a restart
    assert await apply_queues(driver.engine.queues, str(file)) == 2
    assert {queue.name: queue.policy for queue in (await driver.engine.queues.list(None, 10)).items} == {
        "crm": QueuePolicy(["crm.read", "crm.write"], paused=True, concurrency=5),
        "mail": QueuePolicy(["mail"], paused=True, rate=Rate(1, "PT1S", 1)),
        "other": QueuePolicy(["other"]),
    }


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("- crm", "must map"),
        ("crm: {jobTypes: [a], concurency: 5}", "crm: Object contains unknown field `concurency`"),
        ("crm: {jobTypes: [a], concurrency: 0}", "concurrency"),
        ("{", "can't be read"),
    ],
)
async def test_a_file_that_is_wrong_says_where(driver: Driver, tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises(BadRequest, match=what):
        await apply_queues(driver.engine.queues, str(file))
    with pytest.raises(BadRequest, match="can't be read"):
        await apply_queues(driver.engine.queues, str(tmp_path / "none.yaml"))


async def test_a_file_can_not_take_job_types_away(driver: Driver, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("new: {jobTypes: [taken]}")
    await driver.engine.queues.put("old", QueuePolicy(["taken"]))
    with pytest.raises(Conflict, match="'taken' is in queue 'old'"):
        await apply_queues(driver.engine.queues, str(file))
