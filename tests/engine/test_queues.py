"""Queues: policies that limit the jobs of some types, whole and by flow key. Counters are checked after each test."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from penstock.errors import BadRequest, Conflict, NotFound
from penstock.store.rows import queues as queue_store
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import Job, JobRef, Park
from penstock.wire.queue import QueuePolicy, Rate
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import call


async def limit(driver: Driver, *types: str, name: str = "crm", **policy: Any) -> None:
    await driver.engine.queues.put(name, QueuePolicy([*types] or ["work"], **policy))


async def start(driver: Driver, *keys: str | None, **fields: Any) -> None:
    for key in keys:
        await driver.start("linear", {"key": key}, flow_key=key, **fields)


def running(driver: Driver) -> dict[str, int]:
    rows = driver.rows("SELECT flow_key, running FROM slot WHERE running <> 0")
    return {key: count for key, count in rows}  # noqa: C416 - a type for what a row is


def key_of(driver: Driver, job: Job) -> str | None:
    ((key,),) = driver.rows("SELECT flow_key FROM instance WHERE id = %s", int(job.instance_id, 16))
    return key


def overruns(driver: Driver) -> float | None:
    return driver.engine.metrics.registry.get_sample_value("penstock_flow_overruns_total")


async def test_a_queue_never_has_more_attempts_than_its_limit(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=2)
    await start(driver, None, None, None)
    jobs = await driver.poll("work")
    assert len(jobs) == 2
    assert await driver.poll("work") == []
    assert running(driver) == {"": 2}
    await driver.complete(jobs[0])
    assert len(await driver.poll("work")) == 1
    assert running(driver) == {"": 2}
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_a_flow_key_never_has_more_attempts_than_its_limit(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency_per_key=1)
    await start(driver, "a", "a", "a", "b", None, None)
    jobs = await driver.poll("work")
    assert sorted(str(key_of(driver, job)) for job in jobs) == ["None", "None", "a", "b"]
    assert running(driver) == {"a": 1, "b": 1}
    (first,) = [job for job in jobs if key_of(driver, job) == "a"]
    await driver.complete(first)
    (second,) = await driver.poll("work")
    assert key_of(driver, second) == "a"


async def test_the_answer_of_a_start_has_its_turn(driver: Driver) -> None:
    await driver.upload(linear(1))
    for key in (None, "k"):
        begun = await driver.start("linear", flow_key="gold", priority=2, instance_key=key)
        assert (begun.priority, begun.flow_key) == (2, "gold")
    begun = await driver.start("linear")
    assert (begun.priority, begun.flow_key) == (None, None)


async def test_keys_take_turns(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver)
    await start(driver, *["a"] * 6, "b", "b", "c")
    order = [key_of(driver, await driver.one("work", wait=0)) for _ in range(9)]
    assert order == ["a", "b", "c", "a", "b", "a", "a", "a", "a"]


async def test_keys_take_turns_beside_a_better_priority(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=1)
    await start(driver, *["a", "b", "c"] * 4)
    order: list[str | None] = []
    for place in range(18):
        if place % 3 == 0:
            await start(driver, "d", priority=0)
        job = await driver.one("work", wait=0)
        order.append(key_of(driver, job))
        await driver.complete(job)
    assert order[::3] == ["d"] * 6
    assert [key for key in order if key != "d"] == ["a", "b", "c"] * 4


async def test_weights_give_keys_so_many_in_a_turn(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=8, weights={"gold": 3})
    await start(driver, *["plain"] * 9, *["gold"] * 9)
    taken: list[list[str]] = []
    for number in (8, 4):
        jobs = await driver.poll("work", n=number)
        taken.append(sorted(key_of(driver, job) or "" for job in jobs))
        for job in jobs:
            await driver.complete(job)
    assert taken == [["gold"] * 6 + ["plain"] * 2, ["gold"] * 3 + ["plain"]]


async def test_an_unfair_queue_is_first_in_first_out(driver: Driver) -> None:
    await driver.upload(linear(2))
    await limit(driver, fair=False)
    await start(driver, "b", "a", "a", "c")
    jobs = [await driver.one("work", wait=0) for _ in range(4)]
    assert [key_of(driver, job) for job in jobs] == ["b", "a", "a", "c"]
    await driver.complete(jobs[0])
    assert driver.rows("SELECT flow_key FROM ready_flow") == [("",)]


@pytest.mark.parametrize(
    "end_attempt", ["complete", "fail for good", "retry", "back off", "release", "expire", "cancel", "park"]
)
async def test_whatever_ends_an_attempt_frees_its_slot(driver: Driver, end_attempt: str) -> None:
    step = service("a", "end", retryCount=3)
    if end_attempt == "back off":
        step["retryBackoff"] = {"initial": "PT1H"}
    await driver.upload(definition(step, end(), definition_id="linear"))
    await limit(driver, concurrency=5, concurrency_per_key=5)
    await start(driver, "a")
    job = await driver.one("work", wait=0)
    assert running(driver) == {"": 1, "a": 1}
    who: dict[str, Any] = {"job_id": job.id, "attempt": job.attempt, "worker_id": job.worker_id}
    match end_attempt:
        case "complete":
            await driver.complete(job)
        case "fail for good":
            await driver.fail(job, retryable=False)
        case "retry" | "back off":
            await driver.fail(job)
        case "release":
            await driver.engine.jobs.release_many([JobRef(**who)])
        case "expire":
            assert await driver.expire(31.0) == 1
        case "cancel":
            await driver.cancel(job.instance_id)
        case _:
            await driver.engine.jobs.park(Park(**who, signal="paid"))
    assert running(driver) == {}
    assert driver.rows("SELECT held FROM token WHERE held IS NOT NULL") == []
    waits = end_attempt in ("retry", "release", "expire")
    assert driver.rows("SELECT flow_key FROM ready_flow") == [("a",)] * waits
    assert driver.rows("SELECT * FROM ready") == []


async def test_a_late_heartbeat_takes_its_slot_back(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=1, concurrency_per_key=1)
    await start(driver, "a", "b")
    late = await driver.one("work", wait=0)
    assert await driver.expire(31.0) == 1
    other = await driver.one("work", wait=0)
    assert other.instance_id != late.instance_id
    await driver.heartbeat(late)
    assert running(driver) == {"": 2, "a": 1, "b": 1}
    assert overruns(driver) == 1
    assert await driver.poll("work") == []
    await driver.complete(late)
    assert running(driver) == {"": 1, "b": 1}
    await driver.complete(other)
    assert running(driver) == {}


async def test_a_limit_counts_what_is_claimed_from_then_on(driver: Driver) -> None:
    await driver.upload(linear(1))
    await start(driver, None, None, None, None)
    first = await driver.one("work", wait=0)
    await limit(driver, concurrency=1)
    second = await driver.one("work", wait=0)
    assert await driver.poll("work") == []
    assert running(driver) == {"": 1}
    await driver.complete(first)
    assert await driver.poll("work") == []
    await limit(driver, concurrency_per_key=1)  # what it took is given back, whatever the policy is by then
    await driver.complete(second)
    assert running(driver) == {}
    assert len(await driver.poll("work")) == 2


async def test_a_lowered_limit_stops_claims_until_enough_have_ended(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=3)
    await start(driver, *[None] * 5)
    jobs = await driver.poll("work")
    await limit(driver, concurrency=1)
    for job in jobs[:2]:
        await driver.complete(job)
        assert await driver.poll("work") == []
    await driver.complete(jobs[2])
    assert len(await driver.poll("work")) == 1


async def test_a_paused_queue_lets_nothing_begin(driver: Driver) -> None:
    await driver.upload(linear(2))
    await limit(driver)
    await start(driver, None, "a")
    (job,) = await driver.poll("work", n=1)
    assert (await driver.engine.queues.pause("crm", paused=True)).policy.paused
    assert await driver.poll("work") == []
    await driver.complete(job)
    assert await driver.poll("work") == []
    await driver.engine.queues.pause("crm", paused=False)
    assert len(await driver.poll("work")) == 2


async def test_a_pause_outlives_another_policy(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver)
    await start(driver, None)
    await driver.engine.queues.pause("crm", paused=True)
    put = await driver.engine.queues.put("crm", QueuePolicy(["work"], concurrency=2))
    assert put.policy == QueuePolicy(["work"], paused=True, concurrency=2)
    assert await driver.poll("work") == []
    await limit(driver, paused=False)
    assert (await driver.engine.queues.get("crm")).policy == QueuePolicy(["work"])
    assert len(await driver.poll("work")) == 1
    await limit(driver, paused=True)
    assert (await driver.engine.queues.get("crm")).policy.paused


async def test_a_deleted_queue_frees_its_jobs_at_once(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=1)
    await start(driver, None, None, "a")
    (job,) = await driver.poll("work")
    await driver.engine.queues.delete("crm")
    assert len(await driver.poll("work")) == 2
    await driver.complete(job)
    assert running(driver) == {}


async def test_jobs_that_waited_before_come_under_the_policy(driver: Driver) -> None:
    await driver.upload(linear(1))
    await start(driver, None, None, None)
    assert driver.rows("SELECT count(*) FROM ready") == [(3,)]
    await limit(driver, concurrency=1)
    (job,) = await driver.poll("work")
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]
    assert driver.rows("SELECT count(*) FROM ready_flow") == [(2,)]
    await driver.complete(job)
    assert len(await driver.poll("work")) == 1


async def test_an_engine_that_has_not_heard_claims_by_the_queue(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    await one.upload(linear(1))
    await other.upload(linear(1))
    await start(other, None, None)
    await limit(one, concurrency=1)
    await start(other, None)  # queued as if there were no queue
    assert len(await other.poll("work")) == 1
    assert await other.poll("work") == []
    assert await one.poll("work") == []


async def test_lower_priorities_come_first(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver)
    await start(driver, None, "a", priority=9)
    await start(driver, "b", "b", priority=2)
    await start(driver, "c")
    order = [key_of(driver, await driver.one("work", wait=0)) for _ in range(5)]
    assert order == ["b", "b", "c", "a", None]  # of each priority from its first key on


async def test_a_priority_gives_way_to_none_but_full_keys(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency_per_key=1)
    await start(driver, "last", priority=9)
    await start(driver, *["first"] * 3, priority=0)
    assert [key_of(driver, job) for job in await driver.poll("work", n=1)] == ["first"]
    await start(driver, "late", priority=0)
    assert [key_of(driver, job) for job in await driver.poll("work", n=1)] == ["late"]
    assert [key_of(driver, job) for job in await driver.poll("work", n=5)] == ["last"]


async def test_a_key_over_several_priorities_keeps_to_its_limit(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency_per_key=2)
    for priority in (1, 5, 9):
        await start(driver, "a", "a", priority=priority)
    assert len(await driver.poll("work")) == 2
    assert running(driver) == {"a": 2}


async def test_a_freed_slot_wakes_a_parked_poll(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True, ready_probe_interval_seconds=60.0)
    await driver.upload(linear(1))
    await limit(driver, concurrency=1)
    await start(driver, "a", "b")
    first = await driver.one("work", wait=0)
    async with trio.open_nursery() as nursery:
        found: list[Job] = []

        async def wait() -> None:
            found.append(await driver.one("work", wait=30))

        nursery.start_soon(wait)
        with trio.fail_after(30):
            while not len(driver.engine.polls.waiters):
                await trio.lowlevel.checkpoint()
        await driver.complete(first)
    assert found


async def test_a_job_is_not_handed_out_before_it_is_counted(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.upload(linear(2))
    await limit(driver, concurrency=1)
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            for _ in range(2):
                job = await driver.one("work", wait=30)
                assert running(driver) == {"": 1}
                await driver.complete(job)

        nursery.start_soon(work)
        nursery.start_soon(work)
        await start(driver, None, "a")
    assert running(driver) == {}


async def test_a_policy_says_what_is_wrong_with_it(driver: Driver) -> None:
    for field, policy in {
        "jobTypes": QueuePolicy([f"t{n}" for n in range(1001)]),
        "named twice": QueuePolicy(["a", "a"]),
        "concurrency:": QueuePolicy(["a"], concurrency=0),
        "concurrencyPerKey": QueuePolicy(["a"], concurrency_per_key=1_000_001),
        "rate.limit": QueuePolicy(["a"], rate=Rate(0)),
        "rate.period": QueuePolicy(["a"], rate=Rate(1, "P1M")),
        "ratePerKey.burst": QueuePolicy(["a"], rate_per_key=Rate(1, "PT1S", 0)),
        "fair": QueuePolicy(["a"], fair=False, concurrency_per_key=1),
        "weights": QueuePolicy(["a"], weights={"gold": 101}),
    }.items():
        with pytest.raises(BadRequest, match=field):
            await driver.engine.queues.put("q", policy)
    with pytest.raises(NotFound):
        await driver.engine.queues.get("q")
    assert driver.rows("SELECT * FROM job_type") == driver.rows("SELECT * FROM slot") == []


async def test_a_job_type_is_in_one_queue(driver: Driver) -> None:
    await limit(driver, "a", "b", name="one")
    with pytest.raises(Conflict, match="'b' is in queue 'one'"):
        await limit(driver, "b", "c", name="two")
    await limit(driver, "a", name="one")
    await limit(driver, "b", "c", name="two")
    listed = await driver.engine.queues.list(None, 10)
    assert [(queue.name, queue.policy.job_types) for queue in listed.items] == [("one", ["a"]), ("two", ["b", "c"])]


async def test_a_queue_shows_how_it_stands(driver: Driver) -> None:
    await driver.upload(linear(1))
    await limit(driver, concurrency=3, concurrency_per_key=2, weights={"a": 3})
    await start(driver, "a", "a", "a", "b", "b", None)
    await driver.poll("work", n=3)
    queue = await driver.engine.queues.get("crm")
    assert (queue.running, queue.waiting) == (3, 3)
    assert queue.oldest_s is not None
    assert queue.policy == QueuePolicy(["work"], concurrency=3, concurrency_per_key=2, weights={"a": 3})
    assert queue.keys is not None
    assert {key.flow_key: (key.running, key.waiting) for key in queue.keys}.keys() == {"a", "b"}


async def test_a_look_at_a_queue_counts_so_many_at_most(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_store, "COUNTED_MAX_ITEMS", 3)
    await driver.upload(linear(1))
    await limit(driver, concurrency_per_key=1)
    keys = ["a", "b", "c", "d", "e"]
    await start(driver, *keys, *keys)
    assert len(await driver.poll("work")) == 5
    queue = await driver.engine.queues.get("crm")
    assert (queue.running, queue.waiting) == (3, 3)
    assert queue.keys is not None
    assert sum(key.running or 0 for key in queue.keys) >= 3


async def test_a_key_tells_running_only_where_counted(driver: Driver) -> None:
    """Those of the time when it was limited are counted to their end."""
    await driver.upload(linear(1))
    await limit(driver, concurrency_per_key=1)
    await start(driver, "a", "a", "b", "b")
    (job, _) = await driver.poll("work")
    assert await keys_of(driver) == {"a": 1, "b": 1}
    await limit(driver, concurrency=9)
    assert await keys_of(driver) == {"a": 1, "b": 1}
    await driver.complete(job)
    key = await driver.engine.instances.get(job.instance_id)
    assert await keys_of(driver) == {"a": 1, "b": 1} | {str(key.flow_key): None}


async def keys_of(driver: Driver) -> dict[str, int | None]:
    queue = await driver.engine.queues.get("crm")
    return {key.flow_key: key.running for key in queue.keys or ()}


async def test_what_an_instance_calls_has_its_key_and_priority(driver: Driver) -> None:
    await driver.upload(linear(1, definition_id="child", job_type="work"))
    await driver.upload(definition(call("call", "child"), end(), definition_id="linear"))
    await start(driver, "a", priority=2)
    assert driver.rows("SELECT priority, flow_key FROM instance") == [(2, "a"), (2, "a")]
    job = await driver.one("work", wait=0)  # the type is not marked by the start: a look finds it
    await driver.complete(job)
    assert await driver.due() == 1
    assert driver.rows("SELECT count(*) FROM token") == [(0,)]


async def test_keys_have_equal_shares_over_two_engines(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(linear(1))
    await engines[1].upload(linear(1))
    await limit(engines[0])
    await engines[1].engine.queues.run_once()
    await start(engines[0], *["a"] * 60, *["b"] * 60, *["c"] * 60)
    taken = Counter(
        [key_of(engines[0], job) for turn in range(24) for job in await engines[turn % 2].poll("work", n=5)]
    )
    assert sum(taken.values()) == 120
    assert all(abs(number - 40) <= 4 for number in taken.values()), taken


async def test_a_worse_priority_waits_for_keys_with_more_jobs(driver: Driver) -> None:
    """A key with more jobs than its turns in one claim comes again before the next priority."""
    await driver.upload(linear(1))
    await limit(driver)
    await start(driver, "a", "a", "a", "a", "a", "b")
    await start(driver, "c", priority=7)
    order: list[str | None] = []
    while jobs := await driver.poll("work", n=4):
        order += [key_of(driver, job) for job in jobs]
    assert order[-1] == "c"
    assert sorted(map(str, order)) == ["a", "a", "a", "a", "a", "b", "c"]


async def test_jobs_that_wait_are_listed_by_key_in_pages(driver: Driver) -> None:
    """Those without a key first, of each priority; also where some wait that no queue was told of yet."""
    await driver.upload(linear(1))
    await start(driver, None, None)
    assert driver.rows("SELECT count(*) FROM ready") == [(2,)]
    await start(driver, "b", "a-1", "a", "b")
    await start(driver, "c", None, priority=2)
    gone = """INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
      SELECT job_type, 2, 'c', n, 1 FROM generate_series(1, 3) n, (SELECT DISTINCT job_type FROM token) t RETURNING 1"""
    assert len(driver.rows(gone)) == 3, "rows that are no token's place any more end no list"
    listed: list[tuple[int, str | None]] = []
    ids: set[str] = set()
    cursor = None
    while True:
        page = await driver.engine.open_work.jobs("WAITING", "work", cursor, 1)
        listed += [(5 if job.priority is None else job.priority, job.flow_key) for job in page.items]
        ids |= {job.id for job in page.items}
        cursor = page.next
        if cursor is None:
            break
    assert listed == [(2, None), (2, "c"), (5, None), (5, None), (5, "a"), (5, "a-1"), (5, "b"), (5, "b")]
    assert len(ids) == len(listed)
    for wrong in ("5", "5-x", "5-7-a\0", "a", "5--1"):
        with pytest.raises(BadRequest, match="cursor"):
            await driver.engine.open_work.jobs("WAITING", "work", wrong, 1)
