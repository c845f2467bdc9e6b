"""What users of other graph and queue engines reported of times, schedules, calls and messages, tried here (LOG.md)."""

from __future__ import annotations

from typing import Any

import trio

from penstock.testing.definitions import Json, definition, end, timer
from penstock.testing.invariants import assert_invariants
from penstock.wire.schedule import ScheduleSpec
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_calls import settle
from tests.shapes import call, task, wait

__all__ = ["driver", "make_driver"]

PAUSING: Json = {"retryCount": 5, "retryBackoff": {"initial": "PT10S"}}
REPORT = definition(task("work", "more", **PAUSING), task("more"), end(), definition_id="report")


async def scheduled(driver: Driver, **fields: Any) -> None:
    driver.clock.stop()
    await driver.upload(REPORT)
    await driver.engine.schedules.put("s", ScheduleSpec(definition_id="report", every="PT1S", **fields))
    await later(driver, 0)


async def later(driver: Driver, seconds: float) -> None:
    """Let so much time pass, and do all that is due."""
    driver.clock.advance(seconds)
    with trio.fail_after(60):
        while await driver.engine.schedules.fire_once():
            pass
    await settle(driver)


async def test_hatchet_4900_a_replaced_run_that_pauses_between_attempts_never_goes_on(driver: Driver) -> None:
    await scheduled(driver, overlap="CANCEL_OTHER")
    await later(driver, 1)
    old = await driver.one("work")
    await driver.fail(old)
    await later(driver, 1)
    assert await driver.status(old.instance_id) == "CANCELLED"
    new = await driver.one("work")
    assert new.instance_id != old.instance_id
    await driver.complete(new)
    await driver.complete(await driver.one("more"))
    assert await driver.status(new.instance_id) == "COMPLETED"
    assert driver.rows("SELECT FROM timer WHERE index = -1") == []
    assert_invariants(driver.dsn)


async def test_bullmq_168_a_delayed_start_begins_with_whatever_engine_is_there(make_driver: MakeDriver) -> None:
    first = make_driver()
    first.clock.stop()
    await first.upload(REPORT)
    started = await first.start("report", delay="PT10S")
    assert await first.poll("work") == []
    second = make_driver()
    first.clock.advance(11)
    await settle(second)
    assert (await second.one("work")).instance_id == started.id


async def test_bullmq_210_a_schedule_goes_on_after_a_run_that_failed(driver: Driver) -> None:
    await scheduled(driver)
    for _ in range(3):
        await later(driver, 1)
        job = await driver.one("work")
        await driver.fail(job, retryable=False)
        assert await driver.status(job.instance_id) == "FAILED"
    await later(driver, 1)
    await driver.one("work")


async def test_kestra_3000_times_that_were_missed_do_not_pile_up(driver: Driver) -> None:
    """An hour in which every engine stood still: not 3,600 runs."""
    await scheduled(driver)
    await later(driver, 1)
    job = await driver.one("work")
    await later(driver, 3_600)
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)], "one is under way"
    await driver.complete(job)
    await driver.complete(await driver.one("more"))
    await later(driver, 1)
    [(count,)] = driver.rows("SELECT count(*) FROM instance")
    assert count == 2


async def test_kestra_9649_a_parent_ends_when_its_child_fails_by_a_time_limit(driver: Driver) -> None:
    child = definition(task("work", timeout="PT1M"), end(), definition_id="child")
    await driver.upload(child)
    parent = await driver.run(definition(call("calls", "child"), end(), definition_id="parent"))
    await settle(driver)
    driver.engine.leases.expiry_limit = 1
    job = await driver.one("work", lease=600)
    await driver.expire(61, limit=1)
    await settle(driver)
    assert await driver.status(job.instance_id) == "FAILED"
    assert await driver.status(parent) == "FAILED"


async def test_camunda_9233_interrupting_a_call_and_what_it_called_at_once(driver: Driver) -> None:
    """All three levels have an interrupting timer that is due in the same moment."""
    driver.clock.stop()
    limit = [timer("late", "PT1M", interrupting=True)]
    await driver.upload(definition(task("work", boundaryEvents=limit), task("late"), end(), definition_id="c"))
    for name, called in (("b", "c"), ("a", "b")):
        await driver.upload(
            definition(call("calls", called, boundaryEvents=limit), task("late"), end(), definition_id=name)
        )
    top = (await driver.start("a")).id
    await settle(driver)
    assert driver.rows("SELECT count(*) FROM instance") == [(3,)]
    driver.clock.advance(61)
    await settle(driver)
    assert await driver.open_steps(top) == ["late"]
    while jobs := await driver.poll("late"):
        for job in jobs:
            await driver.complete(job)
        await settle(driver)
    assert await driver.status(top) == "COMPLETED"
    assert driver.rows("SELECT FROM token") == []
    assert_invariants(driver.dsn)


async def test_camunda_7995_a_message_is_taken_once_however_often_it_is_delivered(driver: Driver) -> None:
    """The sender repeats it, the timer that delivers it fires anew, and two waits are there for one message."""
    waiting = definition(
        wait("w", "after", message={"name": "paid", "correlationKey": "${order}"}), task("after"), end(),
        definition_id="order",
    )  # fmt: skip
    await driver.upload(waiting)
    instances = [(await driver.start("order", {"order": "7"})).id for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for _ in range(5):

            async def publish() -> None:
                await driver.publish("paid", "7", message_id="m1")

            nursery.start_soon(publish)
    await settle(driver)
    assert [job.instance_id for job in await driver.poll("after")] == instances[:1]
    assert await driver.open_steps(instances[1]) == ["w"]
