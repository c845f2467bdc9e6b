"""Queues of workflows written as code: limits count the runs that somebody holds, not those that wait."""

from __future__ import annotations

import pytest

from penstock.durable.local import LocalBackend
from penstock.durable.workflow import workflow
from penstock.engine.journal_items import Held
from penstock.wire.queue import QueuePolicy
from tests.engine import runs
from tests.engine.driver import Driver

DAY_S = 86_400.0


def running(driver: Driver) -> int:
    ((count,),) = driver.rows("SELECT running FROM slot WHERE flow_key = ''")
    return count


async def limited(driver: Driver, concurrency: int = 1) -> None:
    await driver.engine.code.register(runs.ORDER)
    await driver.engine.queues.join("orders", runs.ORDER.job_type)
    await driver.engine.queues.put("orders", QueuePolicy([], concurrency=concurrency))


async def park(driver: Driver, held: Held, due_at: float | None = None) -> bool:
    return await driver.engine.journal.park(held, mail=0, due_at=due_at, branches=None)


async def test_a_run_that_waits_for_days_holds_no_place(driver: Driver) -> None:
    driver.clock.stop()
    await limited(driver)
    first = (await runs.begin(driver)).held
    await runs.start(driver)
    assert await runs.take(driver, wait_s=0) == []
    now = driver.clock.now().timestamp()
    assert await park(driver, first, now + 3 * DAY_S)
    assert running(driver) == 0
    (second,) = await runs.take(driver, wait_s=0)
    assert await driver.due(4 * DAY_S) == 1  # the first may go on, when there is a place
    assert await runs.take(driver, wait_s=0) == []
    assert await runs.finish(driver, second.held)
    (again,) = await runs.take(driver, wait_s=0)
    assert again.held.instance == first.instance
    assert await runs.finish(driver, again.held)
    assert running(driver) == 0


@pytest.mark.parametrize("how", ["block", "expire", "return", "cancel"])
async def test_whatever_lets_go_of_a_run_frees_its_place(driver: Driver, how: str) -> None:
    await limited(driver)
    held = (await runs.begin(driver)).held
    assert running(driver) == 1
    match how:
        case "block":
            await driver.engine.journal.block(held, "no code for it")
        case "expire":
            assert await driver.expire(31.0) == 1
        case "return":
            tag = held.holder.partition(".")[2].partition("/")[0]
            assert await driver.engine.leases.return_held([tag]) == 1
        case _:
            await driver.engine.instances.cancel(f"{held.instance:x}", None, force=True)
    assert running(driver) == 0


async def test_a_changed_list_of_types_leaves_joined_workflows(driver: Driver) -> None:
    await limited(driver)
    await driver.engine.queues.put("orders", QueuePolicy(["work"], concurrency=2))
    queue = await driver.engine.queues.get("orders")
    assert queue.policy.job_types == [runs.ORDER.job_type, "work"]
    await driver.engine.queues.join("others", runs.ORDER.job_type)
    assert (await driver.engine.queues.get("orders")).policy.job_types == ["work"]


async def test_a_decorated_workflow_joins_its_queue(driver: Driver) -> None:
    @workflow(queue="crawl")
    async def crawl(host: str) -> str:
        return host

    @workflow
    async def free() -> None:
        return None

    await LocalBackend(driver.engine, "shop", [crawl, free]).register()
    assert (await driver.engine.queues.get("crawl")).policy == QueuePolicy(["code:shop:crawl@1"])
    assert driver.rows("SELECT name FROM job_type WHERE keyed") == [("code:shop:crawl@1",)]
    with pytest.raises(ValueError, match="queue"):
        workflow(queue="")(crawl.function)
