"""Jobs whose workers wait for a time or a signal: they come back with their checkpoint, and no retry is spent."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.core.rules.state import WAIT_TIMER
from penstock.errors import BadRequest, Conflict, JobCancelled, LeaseLost
from penstock.testing.definitions import Json, definition, end, service, step, timer
from penstock.wire.model import Job, Park
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

PAYING: Json = definition(
    service("pay", "end", job_type="pay", retryCount=1, boundaryEvents=[timer("late", "PT1H", interrupting=True)]),
    step("late", "END"),
    end(),
    definition_id="paying",
)


async def park(driver: Driver, job: Job, **wanted: Any) -> None:
    await driver.engine.jobs.park(Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", **wanted))


async def begun(driver: Driver) -> tuple[str, Job]:
    await driver.upload(PAYING)
    instance = (await driver.start("paying")).id
    return instance, await driver.one("pay")


async def attempts(driver: Driver, instance: str) -> list[tuple[int, str | None]]:
    item = next(item for item in await driver.history(instance) if item.step_id == "pay")
    return [(attempt.attempt, attempt.status) for attempt in item.attempts]


async def test_a_job_comes_back_at_its_time_with_its_checkpoint(driver: Driver) -> None:
    instance, job = await begun(driver)
    await driver.heartbeat(job, checkpoint=b'{"page":3}')
    await park(driver, job, until=driver.clock.now() + timedelta(minutes=10))
    assert await driver.status(instance) == "WAITING"
    assert await driver.poll("pay") == []
    assert await driver.due(600)
    again = await driver.one("pay")
    assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, 1)
    assert bytes(again.checkpoint) == b'{"page": 3}'
    assert await driver.status(instance) == "ACTIVE"
    await driver.complete(again)
    assert await driver.status(instance) == "COMPLETED"
    assert await attempts(driver, instance) == [(1, "PARKED"), (2, "COMPLETED")]


@pytest.mark.parametrize("address", ["paid", "pay"])
async def test_a_signal_by_name_or_step_wakes_a_job(driver: Driver, address: str) -> None:
    instance, job = await begun(driver)
    await park(driver, job, signal="paid", until=driver.clock.now() + timedelta(minutes=10))
    await driver.signal(instance, address, {"receipt": "R"})
    again = await driver.one("pay")
    assert (again.attempt, await driver.variables(instance)) == (2, {"receipt": "R"})
    assert driver.rows("SELECT index FROM timer") == [(0,)]
    with pytest.raises(Conflict if address == "paid" else BadRequest):
        await driver.signal(instance, address)
    await park(driver, again, signal="paid", until=driver.clock.now() + timedelta(minutes=10))  # the same once more
    assert await driver.due(600)
    await driver.complete(await driver.one("pay"))
    assert await attempts(driver, instance) == [(1, "PARKED"), (2, "PARKED"), (3, "COMPLETED")]


async def test_a_signal_that_comes_before_the_park_is_kept(driver: Driver) -> None:
    instance, job = await begun(driver)
    await driver.signal(instance, "pay", {"receipt": "R"}, buffer=True)
    await park(driver, job, signal="paid")
    assert (await driver.one("pay")).attempt == 2
    assert await driver.variables(instance) == {"receipt": "R"}
    assert driver.rows("SELECT count(*) FROM buffered_signal") == [(0,)]


async def test_a_park_is_fenced_and_twice_is_once(driver: Driver) -> None:
    instance, job = await begun(driver)
    with pytest.raises(BadRequest, match="attempt"):
        await driver.engine.jobs.park(Park(job_id=job.id, worker_id="w1", signal="paid"))
    with pytest.raises(BadRequest, match="until: is required, unless there is a signal"):
        await park(driver, job)
    for until in ("2031-05-04T12:00:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(BadRequest, match="until: "):
            await park(driver, job, until=datetime.fromisoformat(until))
    with pytest.raises(LeaseLost):
        await driver.engine.jobs.park(Park(job_id=job.id, attempt=1, worker_id="thief", signal="paid"))
    await park(driver, job, signal="paid")
    await park(driver, job, signal="paid")
    with pytest.raises(LeaseLost):
        await driver.complete(job)
    await driver.fail(job)  # ignored
    assert await driver.status(instance) == "WAITING"
    await driver.cancel(instance)
    with pytest.raises(JobCancelled):
        await park(driver, job, signal="paid")
    assert driver.rows("SELECT count(*) FROM parked") == driver.rows("SELECT count(*) FROM timer") == [(0,)]


async def test_a_boundary_timer_interrupts_a_parked_job(driver: Driver) -> None:
    instance, job = await begun(driver)
    await park(driver, job, signal="paid", until=driver.clock.now() + timedelta(days=1))
    assert await driver.due(3600)
    assert await driver.path(instance) == [("pay", "FAILED"), ("late", "COMPLETED")]
    assert driver.rows("SELECT count(*) FROM timer WHERE index = %s", WAIT_TIMER) == [(0,)]


async def test_a_park_waits_until_all_engines_know_it(make_driver: MakeDriver) -> None:
    driver = make_driver()
    _, job = await begun(driver)
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 14) RETURNING 1"
    )
    with pytest.raises(Conflict, match="upgrade all engines first"):
        await park(driver, job, signal="paid")
    await driver.complete(job)
