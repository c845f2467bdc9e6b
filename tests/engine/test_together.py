"""Several items of one instance in one transaction: as if one after the other, and fewer transactions."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.testing.definitions import Json, definition, end
from penstock.wire.model import Completion, Job, JobOutcome
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import assign, gateway, joining, task

WIDTH = 60


def wide(*, after: str = "end", **fields: object) -> Json:
    heads = [f"job-{n}" for n in range(WIDTH)]
    steps = [{**task(head, "join", **fields), "jobType": "work"} for head in heads]
    return definition(gateway("fork", *heads), *steps, joining("join", after), assign("sum", {"done": "${len(n5)}"}),
                      end(), definition_id="wide")  # fmt: skip


async def complete_all(driver: Driver, jobs: list[Job]) -> list[JobOutcome]:
    return await driver.engine.jobs.complete_many(
        [
            Completion(
                job_id=job.id, worker_id="w1", attempt=job.attempt,
                variables=msgspec.json.encode({f"n{number}": "x" * number}),
            )
            for number, job in enumerate(jobs)
        ]
    )  # fmt: skip


def transactions(driver: Driver) -> float:
    return sum(
        sample.value
        for metric in driver.engine.metrics.db_transaction_seconds["wide"].collect()
        for sample in metric.samples
        if sample.name.endswith("_count")
    )


async def test_many_branches_arrive_in_few_transactions(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(wide(after="sum"))
    instance = (await driver.start("wide")).id
    jobs = await driver.poll("work", n=WIDTH)
    before = transactions(driver)
    outcomes = await complete_all(driver, jobs)
    assert {outcome.outcome for outcome in outcomes} == {"ok"}
    assert 1 <= transactions(driver) - before <= 5
    assert await driver.status(instance) == "COMPLETED"
    values = await driver.variables(instance)
    assert len(values) == WIDTH + 1
    assert values["done"] == 5
    path = await driver.path(instance)
    assert len(path) == WIDTH + 4
    assert {how for _, how in path} == {"COMPLETED"}


async def test_a_result_that_comes_twice_in_one_batch_acts_once(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(wide(after="sum"))
    instance = (await driver.start("wide")).id
    jobs = await driver.poll("work", n=WIDTH)
    outcomes = await complete_all(driver, [jobs[0], jobs[1], jobs[0], *jobs[2:], jobs[1]])
    assert Counter(outcome.outcome for outcome in outcomes) == {"ok": WIDTH, "already-completed": 2}
    assert await driver.status(instance) == "COMPLETED"


async def test_what_comes_behind_the_end_is_told_so(make_driver: MakeDriver) -> None:
    """The branch in the middle ends the instance: those that come before it are done, those behind it cancelled."""
    driver = make_driver()
    about = wide(after="sum")
    steps: list[dict[str, object]] = about["steps"]  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - JSON of its own making
    steps[WIDTH // 2]["nextStep"] = "end"
    await driver.upload(about)
    instance = (await driver.start("wide")).id
    jobs = await driver.poll("work", n=WIDTH)
    outcomes = [outcome.outcome for outcome in await complete_all(driver, jobs)]
    done = outcomes.count("ok")
    assert Counter(outcomes) == Counter({"ok": done, "cancelled": WIDTH - done})
    [the_end] = [place for place, job in enumerate(jobs) if job.step_id == steps[WIDTH // 2]["id"]]
    assert outcomes[the_end] == "ok"
    path = await driver.path(instance)
    closed = Counter(how for step, how in path if step.startswith("job-"))
    assert closed == Counter({"COMPLETED": done, "SKIPPED": WIDTH - done})
