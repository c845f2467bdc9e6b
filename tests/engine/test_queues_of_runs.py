"""Queues of durable workflows: limits count the runs that somebody holds, not those that wait."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.rules.state import InstanceStatus
from penstock.durable.check import save_run
from penstock.durable.local import LocalBackend, LocalRuns
from penstock.durable.workflow import workflow
from penstock.engine.queues.journal_items import RunEnd, RunLease
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import Conflict
from penstock.testing.definitions import linear
from penstock.testing.invariants import assert_invariants
from penstock.wire.model import StartRequest
from penstock.wire.queue import QueuePolicy, Rate
from tests.engine import runs
from tests.engine.driver import Driver
from tests.waiting import wait_until

DAY_S = 86_400.0


def running(driver: Driver) -> int:
    ((count,),) = driver.rows("SELECT running FROM slot WHERE flow_key = ''")
    return count


async def limited(driver: Driver, concurrency: int | None = 1, **policy: Any) -> None:
    await driver.engine.code.register(runs.ORDER)
    await driver.engine.queues.join("orders", runs.ORDER.job_type)
    await driver.engine.queues.put("orders", QueuePolicy([], concurrency=concurrency, **policy))


async def open_runs(driver: Driver) -> int | None:
    return (await driver.engine.queues.get("orders")).open_runs


async def start(driver: Driver, **fields: Any) -> str:
    request = StartRequest(runs.ORDER.definition_id, variables=b"{}", **fields)
    return (await driver.engine.instances.start(request)).id


async def taken(driver: Driver) -> list[str]:
    return [run.instance_id for run in await runs.take(driver, wait_s=0, n=10)]


async def is_free(driver: Driver, held: RunLease) -> bool:
    return driver.rows("SELECT FROM token WHERE id = %s AND state = 1", held.instance) == []


async def let_go(driver: Driver, held: RunLease, how: str) -> None:
    match how:
        case "park":
            assert await park(driver, held)
        case "block":
            await driver.engine.journal.block(held, "no code for it")
        case "expire":
            assert await driver.expire(31.0) == 1
        case "give back":
            await driver.engine.journal.release(held)
            await wait_until(lambda: is_free(driver, held))
        case "return":
            tag = held.holder.partition(".")[2].partition("/")[0]
            assert await driver.engine.leases.return_held([tag]) == 1
        case "finish":
            assert await runs.finish(driver, held)
        case _:
            await driver.engine.instances.cancel(f"{held.instance:x}", None, force=True)


async def park(driver: Driver, held: RunLease, due_at: float | None = None) -> bool:
    return await driver.engine.journal.park(held, mail=0, due_at=due_at, branches=None)


async def test_a_run_that_waits_for_days_holds_no_place(driver: Driver) -> None:
    driver.clock.stop()
    await limited(driver)
    first = (await runs.begin(driver)).run_lease
    await runs.start(driver)
    assert await runs.take(driver, wait_s=0) == []
    now = driver.clock.now().timestamp()
    assert await park(driver, first, now + 3 * DAY_S)
    assert running(driver) == 0
    (second,) = await runs.take(driver, wait_s=0)
    assert await driver.due(4 * DAY_S) == 1  # the first may go on, when there is a place
    assert await runs.take(driver, wait_s=0) == []
    assert await runs.finish(driver, second.run_lease)
    (again,) = await runs.take(driver, wait_s=0)
    assert again.run_lease.instance == first.instance
    assert await runs.finish(driver, again.run_lease)
    assert running(driver) == 0


@pytest.mark.parametrize("how", ["park", "block", "expire", "give back", "return", "finish", "cancel"])
async def test_whatever_lets_go_of_a_run_frees_its_place(driver: Driver, how: str) -> None:
    await limited(driver, runs=1)
    held = (await runs.begin(driver)).run_lease
    await start(driver)
    assert (running(driver), await open_runs(driver)) == (1, 1)
    await let_go(driver, held, how)
    assert running(driver) == 0
    has_ended = how in ("finish", "cancel")
    assert await open_runs(driver) == (0 if has_ended else 1)
    assert bool(await taken(driver)) == (has_ended or how in ("expire", "give back", "return"))
    if how == "park":
        await driver.engine.instances.cancel(f"{held.instance:x}", None, force=True)
        assert len(await taken(driver)) == 1


async def test_open_runs_are_limited_however_long_they_wait(driver: Driver) -> None:
    driver.clock.stop()
    await limited(driver, concurrency=None, runs=2)
    first, second = [(await runs.begin(driver)).run_lease for _ in range(2)]
    others = [await start(driver, priority=0, flow_key=key) for key in ("a", "b", "c")]
    now = driver.clock.now().timestamp()
    assert await park(driver, first, now + 3 * DAY_S)
    assert await park(driver, second)
    assert await taken(driver) == []
    assert await driver.due(4 * DAY_S) == 1
    driver.engine.polls.claims.fairness_order.open([runs.ORDER.job_type])
    (again,) = await runs.take(driver, wait_s=0)
    assert again.run_lease.instance == first.instance
    await driver.engine.runs.send(f"{second.instance:x}", "go", b"1")
    assert await taken(driver) == [f"{second.instance:x}"]  # it came to the queue after three of a higher priority
    assert await open_runs(driver) == 2
    assert await runs.finish(driver, again.run_lease)
    assert await taken(driver) == others[:1]
    assert await open_runs(driver) == 2


async def test_a_run_is_counted_once_active_under_the_limit(driver: Driver) -> None:
    await limited(driver, concurrency=None)
    early = (await runs.begin(driver)).run_lease
    await limited(driver, concurrency=None, runs=1)
    assert await open_runs(driver) == 0
    later = (await runs.begin(driver)).run_lease
    await let_go(driver, early, "give back")
    assert await taken(driver) == []
    assert await runs.finish(driver, later)
    assert await taken(driver) == [f"{early.instance:x}"]
    await driver.engine.queues.delete("orders")
    await driver.engine.instances.cancel(f"{early.instance:x}", None, force=True)
    await driver.engine.queues.put("orders", QueuePolicy([runs.ORDER.job_type], runs=1))
    assert await open_runs(driver) == 0


async def test_an_open_run_stays_first_at_any_priority(driver: Driver) -> None:
    await limited(driver, concurrency=None, runs=1)
    held = (await runs.begin(driver)).run_lease
    other = await start(driver)
    await let_go(driver, held, "give back")
    await driver.engine.repair.set_priority(f"{held.instance:x}", 9)
    await driver.engine.repair.set_priority(other, 0)
    assert driver.rows("SELECT priority FROM ready_flow ORDER BY 1") == [(-1,), (0,)]
    assert await taken(driver) == [f"{held.instance:x}"]
    await driver.engine.instances.cancel(other, None, force=True)
    with pytest.raises(Conflict, match="CANCELLED"):
        await driver.engine.repair.set_priority(other, 1)


async def test_a_run_that_a_queue_counted_is_that_queues_alone(driver: Driver) -> None:
    await limited(driver, runs=1)
    first = (await runs.begin(driver)).run_lease
    assert await park(driver, first)
    await driver.engine.queues.join("others", runs.ORDER.job_type)
    await driver.engine.queues.put("others", QueuePolicy([], concurrency=2, runs=1))
    second = (await runs.begin(driver)).run_lease
    waiting = await start(driver, priority=0)
    await driver.engine.runs.send(f"{first.instance:x}", "go", b"1")
    assert await taken(driver) == [f"{first.instance:x}"]  # counted before, it needs no room of the other queue
    assert await counted(driver) == {"orders": (0, 1), "others": (2, 1)}
    await driver.engine.instances.cancel(f"{first.instance:x}", None, force=True)
    assert await counted(driver) == {"orders": (0, 0), "others": (1, 1)}  # of each what it counted
    assert await taken(driver) == []
    assert await runs.finish(driver, second)
    assert await taken(driver) == [waiting]


async def counted(driver: Driver) -> dict[str, tuple[int, int]]:
    """Places that are taken and runs that are open, by queue."""
    rows = driver.rows("SELECT q.name, s.running, s.open_runs FROM slot s JOIN queue q ON q.id = s.queue")
    return {name: (places, open_runs) for name, places, open_runs in rows}


async def test_a_parked_run_comes_back_with_the_new_priority(driver: Driver) -> None:
    await limited(driver, concurrency=None)
    plain = (await runs.begin(driver)).run_lease
    await limited(driver, concurrency=None, runs=2)
    counted = (await runs.begin(driver)).run_lease
    for held in (plain, counted):
        assert await park(driver, held)
        await driver.engine.repair.set_priority(f"{held.instance:x}", 1)
        await driver.engine.runs.send(f"{held.instance:x}", "go", b"1")
    assert driver.rows("SELECT priority FROM ready_flow ORDER BY 1") == [(-9,), (1,)]
    assert_invariants(driver.dsn)


async def test_open_runs_that_wait_for_a_place_are_listed(driver: Driver) -> None:
    await limited(driver, concurrency=None, runs=5)
    held = [(await begun_and_given_back(driver, priority)).instance for priority in (0, 5, 9)]
    late = await start(driver, priority=0)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = await driver.engine.open_work.jobs("WAITING", runs.ORDER.job_type, cursor, 1)
        seen += [job.instance_id for job in page.items]
        cursor = page.next
    assert (seen, cursor) == ([*(f"{instance:x}" for instance in held), late], None)


async def begun_and_given_back(driver: Driver, priority: int) -> RunLease:
    instance = await start(driver, priority=priority)
    taken = {run.instance_id: run.run_lease for run in await runs.take(driver, wait_s=0, n=10)}
    for held in taken.values():
        await let_go(driver, held, "give back")
    return taken[instance]


async def test_time_begins_with_the_first_turn_in_a_queue(driver: Driver) -> None:
    """Whoever holds the run then, or after its end, begins with the same time. What a free one waits counts."""
    driver.clock.stop()
    await limited(driver)
    free = CodeWorkflow("free")
    await driver.engine.code.start(free)
    holder = (await runs.begin(driver)).run_lease
    waiting = await start(driver)
    driver.clock.advance(7_200)
    assert await runs.finish(driver, holder)
    begun_at = driver.clock.now().timestamp()
    (first,) = await runs.take(driver, wait_s=0)
    assert (first.instance_id, first.started_at) == (waiting, begun_at)
    for how in ("give back", "park"):
        driver.clock.advance(60)
        await let_go(driver, first.run_lease, how)
        if how == "park":
            await driver.engine.runs.send(waiting, "go", b"1")
        (first,) = await runs.take(driver, wait_s=0)
        assert first.started_at == begun_at
    local = LocalRuns(driver.engine, "")
    assert (await save_run(local, waiting)).started_at == begun_at
    assert await driver.engine.journal.finish(first.run_lease, RunEnd(InstanceStatus.FAILED, failure="no"), mail=1)
    assert (await save_run(local, waiting)).started_at == begun_at
    await driver.engine.instances.retry_run(waiting, "end")
    (first,) = await runs.take(driver, wait_s=0)
    assert (first.run_lease.attempt, first.started_at) == (4, begun_at)
    (late,) = await driver.engine.code.take(runs.HOLDER, [free], 1, wait_s=0)
    assert late.started_at == begun_at - 7_200


async def test_a_first_turn_tells_how_long_it_waited(driver: Driver) -> None:
    driver.clock.stop()
    await limited(driver)
    await start(driver)
    driver.clock.advance(30)
    await runs.take(driver, wait_s=0)
    assert driver.engine.metrics.registry.get_sample_value("workflow_engine_job_poll_latency_seconds_sum") == 30


async def test_jobs_of_graphs_are_no_runs(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.engine.queues.put("crm", QueuePolicy(["work"], runs=1))
    for _ in range(2):
        await driver.start("linear")
    assert len(await driver.poll("work")) == 2
    assert (await driver.engine.queues.get("crm")).open_runs == 0


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


async def waits_for(driver: Driver, instance: str) -> str | None:
    return await driver.engine.runs.waits_for(instance)


async def test_a_run_tells_which_limit_keeps_it_back(driver: Driver) -> None:
    driver.clock.stop()
    await limited(driver, concurrency=3, concurrency_per_key=1)
    first, mate, other = [await start(driver, flow_key=key) for key in ("a", "a", "b")]
    assert await waits_for(driver, mate) == "an App with order@1: none is connected"
    assert await taken(driver) == [first, other]
    assert await waits_for(driver, first) is None
    assert await waits_for(driver, mate) == "its turn: in its queue 'orders' 1 job of 'a' runs, of 1 at most"
    await driver.engine.queues.put("orders", QueuePolicy([], concurrency=2))
    assert await waits_for(driver, mate) == "its turn: in its queue 'orders' 2 jobs run, of 2 at most"
    await driver.engine.queues.put("orders", QueuePolicy([], runs=1))
    assert await taken(driver) == [mate], "those that were active before are not counted"
    later = await start(driver)
    assert await waits_for(driver, later) == "its turn: in its queue 'orders' 1 run is open, of 1 at most"
    await driver.engine.queues.put("orders", QueuePolicy([], paused=True))
    assert await waits_for(driver, later) == "its turn: its queue 'orders' is paused"


async def test_a_run_tells_which_rate_keeps_it_back(driver: Driver) -> None:
    driver.clock.stop()
    await limited(driver, concurrency=None, rate=Rate(1, "PT10S"))
    assert len([await start(driver, flow_key="a"), *await taken(driver)]) == 2
    mate = await start(driver, flow_key="a")
    assert await waits_for(driver, mate) == "its turn: its queue 'orders' lets the next begin in 10.0 s"
    await driver.engine.queues.put("orders", QueuePolicy([], rate_per_key=Rate(1, "PT30S")))
    assert await taken(driver) == [mate]
    last = await start(driver, flow_key="a")
    assert await waits_for(driver, last) == "its turn: its queue 'orders' lets the next of 'a' begin in 30.0 s"


async def test_a_policy_that_was_there_keeps_its_limits(driver: Driver) -> None:
    """When a workflow joins: limits may be set before the program has ever run."""
    await driver.engine.queues.put("orders", QueuePolicy([], concurrency=1, runs=7))
    await driver.engine.code.register(runs.ORDER)
    await driver.engine.queues.join("orders", runs.ORDER.job_type)
    policy = (await driver.engine.queues.get("orders")).policy
    assert (policy.concurrency, policy.runs, policy.job_types) == (1, 7, [runs.ORDER.job_type])
