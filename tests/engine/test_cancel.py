"""Cancel, and what a terminal instance means: nothing of it goes on."""

from __future__ import annotations

import pytest
import trio

from penstock.errors import BadRequest, Conflict, JobCancelled, NotFound
from penstock.testing.definitions import definition, end, linear, timer
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import choose, parallel, task, user, wait

EVERYWHERE = parallel(
    task("ready", "join"),
    task("held", "join"),
    task("resting", "join", retryCount=1, retryBackoff={"initial": "PT1H"}),
    user("asked", "join", boundaryEvents=[timer("join", "PT1H", interrupting=True)]),
    wait("asleep", "join", duration="PT1H"),
    wait("parked", "join"),
)


async def everywhere(driver: Driver) -> tuple[str, object]:
    instance = await driver.run(EVERYWHERE)
    held = await driver.one("held")
    await driver.fail(await driver.one("resting"))
    return instance, held


async def test_cancel_closes_steps_in_every_state(driver: Driver) -> None:
    instance, held = await everywhere(driver)
    view = await driver.cancel(instance, "enough")
    assert (view.status, view.failure_reason, view.current_step_ids) == ("CANCELLED", "enough", [])
    assert view.completed_at is not None
    for table in ("token", "ready", "timer"):
        assert driver.rows(f"SELECT * FROM {table}") == []
    skipped = {step for step, status in await driver.path(instance) if status == "SKIPPED"}
    assert skipped == {"ready", "held", "resting", "asked", "asleep", "parked"}
    with pytest.raises(JobCancelled):
        await driver.heartbeat(held)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a job


async def test_nothing_of_a_cancelled_instance_happens_any_more(driver: Driver) -> None:
    """The traps: its jobs are still handed out, its timers fire and even complete it."""
    instance, held = await everywhere(driver)
    await driver.cancel(instance)
    before = driver.snapshot()
    assert await driver.poll("ready", "held", "resting", n=100) == []
    assert await driver.due(7200) == 0
    assert await driver.expire() == 0
    await driver.complete(held)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a job
    for refused in (driver.finish_task, driver.signal):
        with pytest.raises(Conflict):
            await refused(instance, "asked" if refused == driver.finish_task else "parked")
    assert driver.snapshot() == before
    assert await driver.status(instance) == "CANCELLED"


async def test_a_cancel_is_refused_once_the_instance_has_ended(driver: Driver) -> None:
    await driver.upload(linear(1))
    completed, failed, cancelled = [(await driver.start("linear")).id for _ in range(3)]
    jobs = {job.instance_id: job for job in await driver.poll("work")}
    await driver.complete(jobs[completed])
    await driver.fail(jobs[failed])
    await driver.cancel(cancelled)
    before = driver.snapshot()
    for instance in (completed, failed, cancelled):
        with pytest.raises(Conflict):
            await driver.cancel(instance, "again")
    with pytest.raises(NotFound):
        await driver.cancel("abc")
    assert driver.snapshot() == before


@pytest.mark.parametrize(("given", "kept"), [(None, None), ("", None), ("ä" * 4096, "ä" * 4096)])
async def test_the_reason_is_the_instances_failure_reason(driver: Driver, given: str | None, kept: str | None) -> None:
    instance = await driver.run(linear(1))
    assert (await driver.cancel(instance, given)).failure_reason == kept


@pytest.mark.parametrize("reason", ["a\0b", "a\ud800b", "x" * 4097])
async def test_a_reason_that_can_not_be_kept_is_refused(driver: Driver, reason: str) -> None:
    instance = await driver.run(linear(1))
    before = driver.snapshot()
    with pytest.raises(BadRequest):
        await driver.cancel(instance, reason)
    assert driver.snapshot() == before


async def test_a_cancel_closes_running_tokens_beside_ended_ones(driver: Driver) -> None:
    body = definition(user("u", None, boundaryEvents=[timer("side")]), task("side"), end())
    instance = await driver.run(body)
    await driver.due(3601)
    await driver.finish_task(instance, "u")
    assert (await driver.cancel(instance)).status == "CANCELLED"


async def test_a_cancelled_instances_jobs_are_not_handed_over_at_birth(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    instance = await driver.run(linear(1))
    await driver.cancel(instance)
    with trio.move_on_after(0.3):
        assert await driver.poll("work", wait=5) == []


async def test_instances_of_a_broken_definition_end_without_circling(driver: Driver) -> None:
    """The trap: valid, fails at run time, and every completion answers 500 while the job comes again and again."""
    instance = await driver.run(definition(task("x", "d"), choose("d", {"n.a.b > 1": "end"}), end()), {"n": 1})
    job = await driver.one("x")
    await driver.complete(job)
    assert await driver.status(instance) == "FAILED"
    assert await driver.poll("x") == []
    await driver.complete(job)
