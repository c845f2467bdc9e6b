"""What users of other graph engines reported of forks, joins and groups, tried here (LOG.md)."""

from __future__ import annotations

import pytest
import trio

from penstock.testing.definitions import Json, definition, end, service
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import MigrationRequest
from penstock.wire.model import Job
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver, variables_of
from tests.engine.test_repair import edit
from tests.shapes import choose, gateway, joining, parallel, task

__all__ = ["driver", "make_driver"]

RETRIED: Json = {"retryCount": 2, "retryBackoff": {"initial": "PT10S"}}
LOOP = definition(
    gateway("fork", "b", "c"),
    task("b", "join"),
    task("c", "join"),
    joining("join", "again"),
    choose("again", {"more": "fork", "not more": "end"}),
    end(),
    definition_id="loop",
)
EACH: Json = {"items": "${lines}", "as": "line", "index": "i", "collect": "${result.n}", "into": "all"}
GROUP = definition(task("each", "after", forEach=EACH, **RETRIED), task("after"), end(), definition_id="group")


def both(*after: Json) -> Json:
    """A fork of `b` and `c`, and these tasks behind its join, or `d`."""
    return definition(
        gateway("fork", "b", "c"),
        task("b", "join", **RETRIED),
        task("c", "join", **RETRIED),
        joining("join", "d"),
        *(after or [task("d")]),
        end(),
        definition_id="both",
    )


async def items(driver: Driver) -> dict[int, Job]:
    return {variables_of(job)["i"]: job for job in await driver.poll("each", n=100)}


async def test_camunda_19464_a_branch_that_comes_twice_to_its_join_ends(driver: Driver) -> None:
    """Both arms of a decision lead into the join, and so does the other branch."""
    instance = await driver.run(
        parallel(
            task("b", "which"),
            choose("which", {"x == 1": "join", "x != 1": "b"}),
            task("c", "join"),
            heads=["b", "c"],
        )
    )
    await driver.complete(await driver.one("b"), {"x": 2})
    await driver.complete(await driver.one("b"), {"x": 1})
    assert await driver.status(instance) == "ACTIVE"
    await driver.complete(await driver.one("c"))
    assert await driver.status(instance) == "COMPLETED"


async def test_zenbpm_641_each_pass_through_fork_and_join_waits_for_its_own_branches(driver: Driver) -> None:
    instance = await driver.run(LOOP)
    for more in (True, True, False):
        await driver.complete(await driver.one("b"), {"more": more})
        assert await driver.poll("b") == []
        assert await driver.status(instance) == "ACTIVE"
        await driver.complete(await driver.one("c"))
    assert await driver.status(instance) == "COMPLETED"
    assert_invariants(driver.dsn)


async def test_camunda_22140_a_failure_behind_a_join_is_retried_there(driver: Driver) -> None:
    instance = await driver.run(LOOP)
    for name in ("b", "c"):
        await driver.complete(await driver.one(name))
    assert await driver.status(instance) == "FAILED", "more is not defined"
    await edit(driver, instance, {"more": False})
    await driver.retry(instance)
    assert await driver.status(instance) == "COMPLETED"
    assert_invariants(driver.dsn)


async def test_camunda_22199_a_branch_that_has_arrived_counts_after_a_migration(driver: Driver) -> None:
    instance = await driver.run(both())
    await driver.complete(await driver.one("b"))
    await driver.upload(both(task("d", "e"), task("e")))
    await driver.engine.migrations.migrate(instance, MigrationRequest())
    await driver.complete(await driver.one("c"))
    for name in ("d", "e"):
        await driver.complete(await driver.one(name))
    assert await driver.status(instance) == "COMPLETED"


async def test_conductor_1957_a_join_of_thirty_branches_that_end_at_once(driver: Driver) -> None:
    instance = await driver.run(parallel(*(service(f"s{n}", "join", job_type="work") for n in range(30))))
    jobs = await driver.poll("work", n=100)
    assert len(jobs) == 30
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(driver.complete, job)
    assert await driver.status(instance) == "COMPLETED"


@pytest.mark.parametrize("first", ["b", "c"])
async def test_conductor_3630_a_join_goes_on_when_its_failed_branches_were_retried(driver: Driver, first: str) -> None:
    instance = await driver.run(both())
    await driver.fail(await driver.one(first), retryable=False)
    assert await driver.status(instance) == "FAILED"
    await driver.retry(instance)
    for name in ("b", "c", "d"):
        await driver.complete(await driver.one(name))
    assert await driver.status(instance) == "COMPLETED"


async def test_conductor_1851_branches_that_fail_at_once_are_all_tried_again(driver: Driver) -> None:
    instance = await driver.run(both())
    driver.clock.stop()
    jobs = [await driver.one("b"), await driver.one("c")]
    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(driver.fail, job)
    assert await driver.poll("b", "c") == []
    assert await driver.due(11) == 2
    again = await driver.poll("b", "c")
    assert sorted((job.job_type, job.attempt) for job in again) == [("b", 2), ("c", 2)]
    assert await driver.status(instance) == "ACTIVE"


async def test_celery_2324_and_1401_what_follows_a_group_waits_for_members_between_attempts(driver: Driver) -> None:
    await driver.upload(GROUP)
    instance = (await driver.start("group", {"lines": [1, 2, 3]})).id
    driver.clock.stop()
    jobs = await items(driver)
    await driver.fail(jobs[1])
    for n in (0, 2):
        await driver.complete(jobs[n], {"n": n})
    assert await driver.open_steps(instance) == ["each"]
    assert await driver.poll("after") == []
    await driver.due(11)
    await driver.complete((await items(driver))[1], {"n": 1})
    assert await driver.open_steps(instance) == ["after"]
    assert (await driver.variables(instance))["all"] == [0, 1, 2]


async def test_django_celery_results_397_a_member_that_is_reported_twice_counts_once(driver: Driver) -> None:
    await driver.upload(GROUP)
    instance = (await driver.start("group", {"lines": [1, 2]})).id
    jobs = await items(driver)
    for _ in range(2):
        await driver.complete(jobs[0], {"n": 0})
    assert await driver.open_steps(instance) == ["each"]
    await driver.complete(jobs[1], {"n": 1})
    await driver.complete(jobs[1], {"n": 1})
    assert await driver.open_steps(instance) == ["after"]
    assert (await driver.variables(instance))["all"] == [0, 1]


async def test_kestra_15945_a_retry_of_a_loop_leaves_the_items_that_had_completed(driver: Driver) -> None:
    await driver.upload(GROUP)
    instance = (await driver.start("group", {"lines": [1, 2, 3]})).id
    jobs = await items(driver)
    await driver.complete(jobs[0], {"n": 0})
    await driver.fail(jobs[1], retryable=False)
    assert await driver.status(instance) == "FAILED"
    await driver.retry(instance)
    again = await items(driver)
    assert 0 not in again
    for n, job in again.items():
        await driver.complete(job, {"n": n})
    assert await driver.open_steps(instance) == ["after"]
    assert (await driver.variables(instance))["all"] == [0, 1, 2]
