"""A job says of which definition, version and business key its instance is, whichever way it comes to its worker."""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from penstock.testing.definitions import definition, end, linear, service, step
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_polls import parked

CONDITIONAL = definition(
    step("a", "SERVICE_TASK", jobType="a", conditionalNextSteps={"x > 0": "b", "true": "end"}),
    service("b", "end", job_type="b"),
    end(),
    definition_id="conditional",
)


def origin(job: Job) -> tuple[str, int, str | None]:
    return job.definition_id, job.definition_version, job.business_key


async def dispatched(driver: Driver, job_type: str, made_by: Awaitable[object]) -> Job:
    """The job that something makes while a poll is parked for it."""
    jobs: list[Job] = []

    async def poll() -> None:
        jobs.append(await driver.one(job_type, worker="parked"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await parked(driver, 1)
        await made_by
    return jobs[0]


async def test_a_claimed_job_names_its_instances_origin(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.upload(linear(2))
    await driver.start("linear", business_key="order-7")
    await driver.start("linear", definition_version=1)
    jobs = await driver.poll("work")
    assert [origin(job) for job in jobs] == [("linear", 2, "order-7"), ("linear", 1, None)]


async def test_a_directly_dispatched_job_names_its_origin(driver: Driver) -> None:
    await driver.upload(linear(3))
    first = await dispatched(driver, "work", driver.start("linear", business_key="order-7"))
    second = await dispatched(driver, "work", driver.complete(first))
    assert (origin(first), origin(second)) == (("linear", 1, "order-7"),) * 2
    third = await dispatched(driver, "work", driver.complete(second))
    assert origin(third) == ("linear", 1, "order-7")


async def test_a_job_after_another_engines_names_its_origin(make_driver: MakeDriver) -> None:
    """Who completes did not lease the job out: it looks up what it is."""
    one, other = make_driver(), make_driver()
    await one.upload(linear(2))
    await one.start("linear", business_key="order-7")
    first = await one.one("work")
    assert origin(await dispatched(other, "work", other.complete(first))) == ("linear", 1, "order-7")


async def test_jobs_of_the_full_path_name_their_origin(driver: Driver) -> None:
    await driver.upload(CONDITIONAL)
    made = driver.start("conditional", {"x": 1}, business_key="order-7", instance_key="7")
    first = await dispatched(driver, "a", made)
    second = await dispatched(driver, "b", driver.complete(first, {"x": 2}))
    assert (origin(first), origin(second)) == (("conditional", 1, "order-7"),) * 2


async def test_a_chained_instances_jobs_have_no_business_key(driver: Driver) -> None:
    await driver.upload(linear(1, definition_id="second"))
    await driver.upload(
        definition(service("x", "end", job_type="x"), end(), definition_id="first")
        | {"autoStartNextWorkflow": True, "nextWorkflowId": "second"}
    )
    await driver.start("first", business_key="order-7")
    job = await driver.one("x")
    assert origin(await dispatched(driver, "work", driver.complete(job))) == ("second", 1, None)
