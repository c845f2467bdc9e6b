"""Rates of queues, on a clock of the test's: how many attempts begin in any period, and how evenly."""

from __future__ import annotations

import math
from random import Random

import pytest
import trio

from penstock.engine.queues import fairness_order
from penstock.errors import BadRequest
from penstock.testing.definitions import linear
from penstock.wire.model import JobRef
from penstock.wire.queue import QueuePolicy, Rate, burst_of, each_period
from tests.engine.driver import Driver


async def limited(driver: Driver, policy: QueuePolicy, *keys: str | None) -> None:
    driver.clock.stop()
    await driver.upload(linear(1))
    await driver.engine.queues.put("api", policy)
    for key in keys:
        await driver.start("linear", flow_key=key)


async def begin(driver: Driver, *, after: float = 0.0) -> int:
    """How many jobs a poll gets when so much time has passed."""
    driver.clock.advance(after)
    driver.engine.polls.claims.fairness_order.open(["work"])
    return len(await driver.poll("work", n=100))


async def test_a_rate_lets_a_burst_begin_and_then_so_many(driver: Driver) -> None:
    await limited(driver, QueuePolicy(["work"], rate=Rate(10, "PT1S")), *[None] * 40)
    assert await begin(driver) == 10
    assert await begin(driver) == 0
    assert await begin(driver, after=0.25) == 2
    assert await begin(driver, after=0.25) == 3  # half a job was left over
    assert await begin(driver, after=60.0) == 10  # no more than a burst, however long nobody asked


@pytest.mark.parametrize(("burst", "at_once"), [(None, 3), (1, 1), (5, 5)])
async def test_a_window_never_sees_more_than_its_limit(driver: Driver, burst: int | None, at_once: int) -> None:
    await limited(driver, QueuePolicy(["work"], rate=Rate(5, "PT1M", burst, window=True)), *[None] * 40)
    began = [await begin(driver, after=0 if second == 0 else 5.0) for second in range(36)]
    assert began[0] == at_once
    assert max(sum(began[at : at + 12]) for at in range(25)) <= 5
    await driver.engine.queues.put("api", QueuePolicy(["work"], rate=Rate(5, "PT1M", burst, window=True)))
    rate = (await driver.engine.queues.get("api")).policy.rate
    assert rate == Rate(5, "PT1M", at_once, window=True)


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_no_period_sees_more_than_a_windows_limit_and_none_starves(
    driver: Driver, seed: int, per_key: bool
) -> None:
    """Whatever the limit, the period and the burst, and whenever somebody asks: also a moment before an attempt may
    begin, as long as that moment is one of the clock's."""
    random = Random(seed)
    limit = random.randint(1, 7)
    period_s = random.choice((1, 7, 60, 86_400))
    burst = random.randint(1, limit)
    rate = Rate(limit, f"PT{period_s}S", burst, window=True)
    policy = QueuePolicy(["work"], rate_per_key=rate) if per_key else QueuePolicy(["work"], rate=rate)
    await limited(driver, policy, *["a" if per_key else None] * 60)
    now, began = 0, list[int]()  # microseconds
    pace = period_s * 1_000_000 / each_period(rate)
    for _ in range(45):
        steps = (0, 1, int(pace * random.random()), int(pace), int(pace) + 1, int(pace * (1 - 0.9e-6)), int(pace) * 3)
        step = random.choice(steps)
        now += step
        began += [now] * await begin(driver, after=step / 1e6)
        seen = [sum(at <= other < at + period_s * 1_000_000 for other in began) for at in set(began)]
        assert max(seen, default=0) <= limit, (rate, began)
        longest = math.ceil(pace * (1 + 4e-6)) + 4
        if now - (began[-1] if began else 0) > longest and len(began) < 60:
            pytest.fail(f"nothing began for {now - began[-1]} µs of {longest}: {rate}")
    assert began


async def test_a_window_of_a_day_does_not_end_a_moment_early(driver: Driver) -> None:
    """A millionth of a day is 86 ms."""
    await limited(driver, QueuePolicy(["work"], rate=Rate(1, "P1D", window=True)), None, None)
    assert await begin(driver) == 1
    assert await begin(driver, after=86_399.95) == 0
    assert await begin(driver, after=0.3) == 1


def test_burst_and_pace_of_a_window_are_its_limit_together() -> None:
    for limit in range(1, 40):
        for burst in (None, *range(1, limit + 1)):
            rate = Rate(limit, "PT1S", burst, window=True)
            assert burst_of(rate) + each_period(rate) - 1 == limit
            assert min(burst_of(rate), each_period(rate)) >= 1


async def test_a_burst_beyond_a_window_is_refused(driver: Driver) -> None:
    with pytest.raises(BadRequest, match=r"rate\.burst: must be 1 to 5"):
        await driver.engine.queues.put("api", QueuePolicy([], rate=Rate(5, "PT1M", 6, window=True)))


async def test_a_burst_of_one_spaces_attempts_evenly(driver: Driver) -> None:
    await limited(driver, QueuePolicy(["work"], rate=Rate(60, "PT1M", 1)), *[None] * 5)
    began = [await begin(driver, after=0.5) for _ in range(8)]
    assert began == [1, 0, 1, 0, 1, 0, 1, 0]


async def test_each_key_has_its_own_rate(driver: Driver) -> None:
    await limited(driver, QueuePolicy(["work"], rate_per_key=Rate(2, "PT1M")), *["a"] * 5, *["b"] * 3, None, None)
    assert await begin(driver) == 6
    assert await begin(driver) == 0
    assert await begin(driver, after=30.0) == 2
    assert driver.rows("SELECT flow_key, count(*) FROM ready_flow GROUP BY 1 ORDER BY 1") == [("a", 2)]


async def test_a_retry_and_a_job_given_back_count_again(driver: Driver) -> None:
    await limited(driver, QueuePolicy(["work"], rate=Rate(2, "PT1M")), None)
    job = await driver.one("work", wait=0)
    await driver.engine.jobs.release_many([JobRef(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "")])
    assert await begin(driver) == 1
    assert await driver.expire(31.0) == 1
    assert await begin(driver) == 1  # half a minute brought one


async def test_a_rate_and_a_limit_hold_together(driver: Driver) -> None:
    policy = QueuePolicy(["work"], concurrency=3, rate=Rate(5, "PT1S"), concurrency_per_key=2, rate_per_key=Rate(1))
    await limited(driver, policy, *["a"] * 4, *["b"] * 4, "c", "d")
    assert await begin(driver) == 3
    assert driver.rows("SELECT running FROM slot WHERE flow_key = ''") == [(3,)]
    await driver.engine.queues.put("api", QueuePolicy(["work"], rate=Rate(5, "PT1S")))
    assert await begin(driver) == 2


async def test_what_a_rate_keeps_back_is_looked_for_in_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rate, which lets the next one begin in 20 s, and not by the pause of looks that find nothing."""
    monkeypatch.setattr(fairness_order, "FRUITLESS_S", 1_000.0)
    monkeypatch.setattr(fairness_order, "FRUITLESS_MAX_S", 1_000.0)
    await limited(driver, QueuePolicy(["work"], rate=Rate(1, "PT20S")), None, None)
    turns = driver.engine.polls.claims.fairness_order
    assert len(await driver.poll("work")) == 1
    assert await driver.poll("work") == []
    assert not turns.is_open("work")
    assert turns.next_open_at(["work"]) - trio.current_time() < 20.1
