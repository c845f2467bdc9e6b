"""Several engines on one queue at once: no limit is exceeded, nothing leaks, nothing waits for ever."""

from __future__ import annotations

import random

import psycopg
import pytest
import trio
import trio.lowlevel

from penstock.errors import Conflict
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import JobRef
from penstock.wire.queue import QueuePolicy, Rate
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.waiting import wait_until

WHOLE, PER_KEY = 6, 2
ENGINES, WORKERS, JOBS = 3, 3, 30
MOST = """SELECT (SELECT count(*) FROM token WHERE state = 1), coalesce((SELECT max(n) FROM (
  SELECT count(*) AS n FROM token WHERE state = 1 AND flow_key <> '' GROUP BY flow_key) x), 0)"""


AGAIN = definition(
    service("a", "b", retryCount=1000), service("b", "end", retryCount=1000), end(), definition_id="linear"
)


async def work(driver: Driver, name: str, seed: int) -> None:
    """Take jobs and end their attempts in every way, until there are none."""
    rng = random.Random(seed)
    while driver.rows("SELECT EXISTS (SELECT FROM token)")[0][0]:
        for job in await driver.poll("work", worker=name, n=rng.choice((1, 2, 5)), wait=0.05):
            await trio.lowlevel.checkpoint()
            try:
                match rng.randrange(5):
                    case 0:
                        await driver.engine.jobs.release_many(
                            [JobRef(job_id=job.id, attempt=job.attempt, worker_id=name)]
                        )
                    case 1:
                        await driver.heartbeat(job)
                        await driver.fail(job)
                    case _:
                        await driver.complete(job)
            except Conflict:  # its lease was ended by another worker of the test
                pass


@pytest.mark.parametrize("whole", [None, WHOLE])
async def test_engines_together_keep_to_the_limits(make_driver: MakeDriver, whole: int | None) -> None:
    drivers = [make_driver(services=True) for _ in range(ENGINES)]
    for driver in drivers:
        await driver.upload(AGAIN)
    policy = QueuePolicy(["work"], concurrency=whole, concurrency_per_key=PER_KEY)
    await drivers[0].engine.queues.put("q", policy)
    for driver in drivers[1:]:
        await driver.engine.queues.run_once()
    for number in range(JOBS):
        await drivers[number % ENGINES].start("linear", flow_key=f"k{number % 5}" if number % 6 else None)
    most = [0, 0]
    with trio.fail_after(50), psycopg.connect(drivers[0].dsn, autocommit=True) as eyes:
        async with trio.open_nursery() as nursery:
            for at, driver in enumerate(drivers):
                for number in range(WORKERS):
                    nursery.start_soon(work, driver, f"w{at}-{number}", 100 * at + number)

            async def over() -> bool:
                row = eyes.execute(MOST).fetchone()
                assert row is not None
                most[:] = [max(a, b) for a, b in zip(most, row, strict=True)]
                return not drivers[0].rows("SELECT EXISTS (SELECT FROM token)")[0][0]

            await wait_until(over)
    assert most[1] <= PER_KEY
    assert whole is None or most[0] <= whole
    assert drivers[0].rows("SELECT count(*) FROM instance WHERE status = 1") == [(JOBS,)]
    assert drivers[0].rows("SELECT coalesce(sum(running), 0) FROM slot") == [(0,)]
    assert drivers[0].rows("SELECT count(*) FROM ready_flow") == [(0,)]


async def test_a_completion_that_meets_a_policy_change_frees_its_slot(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    await one.upload(linear(2))
    for _ in range(5):
        await one.start("linear", flow_key="a")
    async with trio.open_nursery() as nursery:

        async def change() -> None:
            for number in range(12):
                limit = (number % 3) + 1
                policy = QueuePolicy(["work"], concurrency=limit if number % 2 else None, concurrency_per_key=limit)
                await other.engine.queues.put("q", policy)
                if number % 4 == 3:
                    await other.engine.queues.delete("q")

        nursery.start_soon(change)
        with trio.fail_after(50):
            while one.rows("SELECT EXISTS (SELECT FROM token)")[0][0]:
                for job in await one.poll("work", wait=0.02):
                    await one.complete(job)
    assert one.rows("SELECT coalesce(sum(running), 0) FROM slot") == [(0,)]


WHOLE_RATE, KEY_RATE = Rate(7, "PT1H"), Rate(2, "PT1H")


async def test_engines_together_keep_to_the_rates(make_driver: MakeDriver) -> None:
    drivers = [make_driver() for _ in range(ENGINES)]
    one = drivers[0]
    one.clock.stop()
    for driver in drivers:
        await driver.upload(linear(1))
    await one.engine.queues.put("q", QueuePolicy(["work"], rate=WHOLE_RATE, rate_per_key=KEY_RATE))
    for driver in drivers[1:]:
        await driver.engine.queues.run_once()
    for number in range(JOBS):
        await one.start("linear", flow_key=f"k{number % 5}")

    async def poll(driver: Driver, name: str) -> None:
        for _ in range(3):
            driver.engine.polls.claims.fairness_order.open(["work"])
            await driver.poll("work", worker=name, n=2, wait=0.02)

    async def begun() -> list[int]:
        """Attempts of each key, after all engines asked at once."""
        async with trio.open_nursery() as nursery:
            for at, driver in enumerate(drivers):
                for number in range(WORKERS):
                    nursery.start_soon(poll, driver, f"w{at}-{number}")
        return [n for (n,) in one.rows("SELECT sum(attempt)::int FROM token GROUP BY flow_key")]

    with trio.fail_after(50):
        first = await begun()
        assert (sum(first), max(first)) == (WHOLE_RATE.limit, KEY_RATE.limit)
        one.clock.advance(1_801)  # seven in an hour: three more; two of each key in one: one more of each
        second = await begun()
        assert sum(second) == WHOLE_RATE.limit + 3
        assert max(second) <= KEY_RATE.limit + 1  # keys that had fewer than two may have them all
