"""The questions that docs/queues.md answers: each policy of the page does what is said of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

from penstock.testing.definitions import linear
from penstock.wire.model import Job
from penstock.wire.queue import QueuePolicy
from tests.engine import runs
from tests.engine.driver import Driver

PAGE: Final = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")


def answer(question: str) -> QueuePolicy:
    """The policy below a question."""
    text = PAGE[PAGE.index(f"**{question}") :]
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return msgspec.json.decode(found[1], type=QueuePolicy)


async def asked(driver: Driver, question: str, *keys: str | None) -> QueuePolicy:
    driver.clock.stop()
    policy = answer(question)
    await driver.upload(linear(1, job_type=policy.job_types[0]))
    await driver.engine.queues.put("q", policy)
    for key in keys:
        await driver.start("linear", {"key": key}, flow_key=key)
    return policy


async def begin(driver: Driver, policy: QueuePolicy, after: float = 0.0) -> list[Job]:
    driver.clock.advance(after)
    driver.engine.polls.claims.fairness_order.open(policy.job_types)
    return await driver.poll(policy.job_types[0], n=100, lease=3600)


def keys_of(jobs: list[Job]) -> list[str]:
    return sorted(json.loads(bytes(job.variables))["key"] for job in jobs)  # pyright: ignore[reportArgumentType] - text


async def test_five_at_once_for_each_tenant(driver: Driver) -> None:
    policy = await asked(driver, "At most five jobs at once for each tenant", *["a"] * 8, *["b"] * 2)
    assert keys_of(await begin(driver, policy)) == [*["a"] * 5, "b", "b"]
    assert await begin(driver, policy) == []


async def test_ten_requests_a_second(driver: Driver) -> None:
    policy = await asked(driver, "Ten requests a second to an API", *["a", "b"] * 20)
    began = [len(await begin(driver, policy, 0.1)) for _ in range(20)]
    assert began == [10, *[1] * 19]


MINUTE_S: Final = 60.0


def most_in_a_minute(times: list[float]) -> int:
    """In any, its last moment left out: the fullest one begins with an attempt."""
    return max(sum(begin <= at < begin + MINUTE_S for at in times) for begin in times)


async def begun_in_three_minutes(driver: Driver, job_type: str) -> list[float]:
    """When attempts begin, looked at every second and a moment, after an hour in which nobody asked."""
    began: list[float] = []
    driver.clock.advance(3_600)
    for second in range(180):
        driver.engine.polls.claims.fairness_order.open([job_type])
        began += [float(second)] * len(await driver.poll(job_type, n=100, lease=3600))
        driver.clock.advance(1.00002)  # a window gets a token back some millionths later
    return began


@pytest.mark.parametrize(
    ("given", "most", "begun"),
    [
        ({}, 5, [0, 0, 0, 20, 40, 60]),  # as the page has it
        ({"burst": 1}, 5, [0, 12, 24, 36, 48, 60]),
        ({"burst": 5}, 5, [0, 0, 0, 0, 0, 60]),
        ({"window": False}, 9, [0, 0, 0, 0, 0, 12]),  # what the page warns of
        ({"window": False, "burst": 1}, 5, [0, 12, 24, 36, 48, 60]),
        ({"window": False, "limit": 3, "burst": 3}, 5, [0, 0, 0, 20, 40, 60]),
    ],
)
async def test_never_more_than_five_in_any_minute(
    driver: Driver, given: dict[str, int | None], most: int, begun: list[float]
) -> None:
    policy = await asked(driver, "Never more than five in any minute", *[None] * 30)
    assert policy.rate is not None
    rate = msgspec.structs.replace(policy.rate, **given)
    await driver.engine.queues.put("q", msgspec.structs.replace(policy, rate=rate))
    times = await begun_in_three_minutes(driver, policy.job_types[0])
    assert (most_in_a_minute(times), times[:6]) == (most, begun)
    at_once = rate.burst or ((rate.limit + 1) // 2 if rate.window else rate.limit)
    each_minute = rate.limit + 1 - at_once if rate.window else rate.limit
    assert most == at_once + each_minute - 1
    assert most == rate.limit or not rate.window
    pace_s = MINUTE_S / each_minute
    for first, begin in enumerate(times):
        for count, end in enumerate(times[first:], 1):
            assert count <= at_once + (end - begin) // pace_s
    assert len([at for at in times if at >= 120]) == each_minute, "and no fewer, while enough wait"


async def test_one_at_a_time_for_each_customer_in_order(driver: Driver) -> None:
    policy = await asked(driver, "One at a time for each customer", "a", "b", "a", "a")
    order: list[str] = []
    for _ in range(3):
        jobs = await begin(driver, policy)
        assert keys_of(jobs) == ["a", "b"][: len(jobs)]
        order += [job.instance_id for job in jobs if keys_of([job]) == ["a"]]
        for job in jobs:
            await driver.complete(job)
    started = driver.rows("SELECT id FROM instance WHERE flow_key = 'a' ORDER BY id")
    assert order == [f"{id:x}" for (id,) in started]


async def test_a_burst_is_spread(driver: Driver) -> None:
    policy = await asked(driver, "Spread a burst", *[None] * 5)
    assert [len(await begin(driver, policy, 0.25)) for _ in range(9)] == [1, 0, 0, 0, 1, 0, 0, 0, 1]


async def test_a_flood_of_one_key_delays_no_other(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.engine.queues.put("q", QueuePolicy(["work"]))
    for key in [*["flood"] * 50, "other"]:
        await driver.start("linear", {"key": key}, flow_key=key)
    assert keys_of(await driver.poll("work", n=2)) == ["flood", "other"]


async def test_a_paused_queue_goes_on_when_resumed(driver: Driver) -> None:
    await driver.upload(linear(1, job_type="crm.read"))
    found = re.search(r"PUT /v1/queues/(\w+)\n(\{.*?\}\})\n```", PAGE, re.DOTALL)
    assert found is not None
    await driver.engine.queues.put(found[1], msgspec.json.decode(found[2], type=QueuePolicy))
    await driver.start("linear")
    await driver.engine.queues.pause(found[1], paused=True)
    assert await driver.poll("crm.read") == []
    await driver.engine.queues.pause(found[1], paused=False)
    assert len(await driver.poll("crm.read")) == 1


async def test_so_many_crawls_are_open(driver: Driver) -> None:
    policy = answer("No more than a hundred crawls open")
    await driver.engine.code.register(runs.ORDER)
    await driver.engine.queues.put("q", policy)
    await driver.engine.queues.join("q", runs.ORDER.job_type)
    await runs.begin(driver)
    queue = await driver.engine.queues.get("q")
    assert (queue.policy.runs, queue.open_runs, queue.running) == (100, 1, 1)
