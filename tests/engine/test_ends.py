"""Waiting for the end of an instance: one look for all who wait, and no end that is missed."""

from __future__ import annotations

import pytest
import trio

from penstock.engine.queues import ends
from penstock.errors import NotFound, TooManyRequests
from penstock.testing.definitions import linear
from penstock.wire.model import Instance
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.waiting import wait_until


async def waiting(driver: Driver, *instances: str, answers: list[Instance], nursery: trio.Nursery) -> None:
    """Somebody waits for each of them, and is parked."""

    async def wait(instance: str) -> None:
        answers.append(await driver.engine.instances.get(instance, 60))

    for instance in instances:
        nursery.start_soon(wait, instance)

    async def parked() -> bool:
        return driver.engine.instances.ends.calls == len(instances)

    await wait_until(parked)


async def test_an_end_answers_all_who_wait_for_it(make_driver: MakeDriver, nursery: trio.Nursery) -> None:
    driver, other = make_driver(), make_driver()
    await driver.upload(linear(1))
    first, second = (await driver.start("linear")).id, (await driver.start("linear")).id
    answers: list[Instance] = []
    await waiting(driver, first, first, second, answers=answers, nursery=nursery)
    assert await driver.engine.instances.ends.scan_once() == 0
    (job,) = await other.poll("work", n=1)  # another engine sees its end
    await other.complete(job)
    assert job.instance_id == first
    assert await driver.engine.instances.ends.scan_once() == 1

    async def answered() -> bool:
        return len(answers) == 2

    await wait_until(answered)
    assert {(view.id, view.status) for view in answers} == {(first, "COMPLETED")}
    driver.engine.instances.ends.drain()

    async def all_answered() -> bool:
        return len(answers) == 3

    await wait_until(all_answered)
    assert answers[2].status == "ACTIVE"
    assert driver.engine.instances.ends.calls == 0
    assert (await driver.engine.instances.get(second, 60)).status == "ACTIVE", "who comes while it stops is not parked"


async def test_who_has_ended_or_is_unknown_is_not_waited_for(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    await driver.complete(await driver.one("work"))
    assert (await driver.engine.instances.get(view.id, 60)).status == "COMPLETED"
    with pytest.raises(NotFound):
        await driver.engine.instances.get("1f", 60)


async def test_the_time_is_over_some_time(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    assert (await driver.engine.instances.get(view.id, 0.01)).status == "ACTIVE"
    assert driver.engine.instances.ends.calls == 0


async def test_no_more_calls_wait_than_may(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "WAITING_MAX", 0)
    await driver.upload(linear(1))
    view = await driver.start("linear")
    with pytest.raises(TooManyRequests):
        await driver.engine.instances.get(view.id, 60)
    assert (await driver.engine.instances.get(view.id)).status == "ACTIVE"


async def test_a_wait_that_is_cancelled_leaves_nothing(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    answers: list[Instance] = []
    async with trio.open_nursery() as nursery:
        await waiting(driver, view.id, answers=answers, nursery=nursery)
        nursery.cancel_scope.cancel()
    assert (driver.engine.instances.ends.calls, answers) == (0, [])
