"""What users of other graph and queue engines reported of attempts, queues and keys, tried here (LOG.md)."""

from __future__ import annotations

import pytest

from penstock.errors import Conflict
from penstock.testing.definitions import definition, end
from penstock.wire.model import JobRef
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver
from tests.shapes import task

__all__ = ["driver", "make_driver"]

WORK = definition(
    task("work", retryCount=2, retryBackoff={"initial": "PT10S"}, timeout="PT1M"), end(), definition_id="work"
)
HELD = "SELECT id, seq, attempt FROM token WHERE state = 1"


async def test_river_1302_a_rescue_with_an_older_look_changes_nothing(driver: Driver) -> None:
    """The lease is over when it looks; the worker completes before it acts, or another worker has the job by then."""
    instance = await driver.run(WORK)
    job = await driver.one("work")
    driver.clock.advance(31)
    seen = driver.rows(HELD)
    await driver.complete(job)
    assert await driver.engine.leases.expire(seen) == []
    assert await driver.status(instance) == "COMPLETED"
    await driver.start("work")
    await driver.one("work")
    driver.clock.advance(31)
    seen = driver.rows(HELD)
    assert len(await driver.engine.leases.expire(seen)) == 1
    again = await driver.one("work", worker="w2")
    assert await driver.engine.leases.expire(seen) == []
    assert driver.rows("SELECT claimed_by, attempt FROM token") == [("w2", again.attempt)]


async def test_river_682_a_job_whose_worker_lives_is_nobody_elses(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.run(definition(task("work"), end()))
    job = await driver.one("work")
    for _ in range(20):
        driver.clock.advance(25)
        await driver.heartbeat(job)
        assert await driver.engine.leases.expire(driver.rows(HELD)) == []
    assert await driver.poll("work") == []
    await driver.complete(job, attempt=1)


async def test_oban_137_a_job_that_kills_its_workers_ends_at_the_limit(make_driver: MakeDriver) -> None:
    driver = make_driver(lease_expiry_limit=3)
    instance = await driver.run(WORK)
    for attempt in (1, 2, 3):
        assert (await driver.one("work", worker=f"w{attempt}")).attempt == attempt
        await driver.expire(31)
    assert await driver.poll("work") == []
    assert await driver.status(instance) == "FAILED"


async def test_oban_476_giving_a_job_back_counts_as_no_failure(driver: Driver) -> None:
    await driver.run(WORK)
    driver.clock.stop()
    for _ in range(5):
        job = await driver.one("work")
        ref = JobRef(job_id=job.id, worker_id="w1", attempt=job.attempt)
        [outcome] = await driver.engine.jobs.release_many([ref])
        assert outcome.outcome == "ok"
    job = await driver.one("work")
    assert job.retries_remaining == 2
    await driver.fail(job)
    assert driver.rows("SELECT extract(epoch FROM fire_at - penstock_now())::int FROM timer WHERE index = -1") == [
        (10,)
    ]


async def test_conductor_3864_each_attempt_has_the_time_limit(driver: Driver) -> None:
    """Not by its lease alone: heartbeats do not extend it."""
    instance = await driver.run(WORK)
    for attempt in (1, 2, 3):
        job = await driver.one("work", lease=600)
        assert job.attempt == attempt
        driver.clock.advance(50)
        await driver.heartbeat_quietly(job)
        await driver.expire(11)
        with pytest.raises(Conflict):
            await driver.heartbeat(job)
        await driver.due(11)
    assert driver.rows("SELECT attempt FROM history WHERE kind = 11 ORDER BY pos") == [(1,), (2,), (3,)]
    assert await driver.status(instance) == "ACTIVE"


async def test_jobrunr_15_the_job_of_a_worker_that_stopped_comes_back(make_driver: MakeDriver) -> None:
    """Also when the engine that gave it out has stopped, too."""
    first, second = make_driver(), make_driver()
    await first.run(WORK)
    await first.one("work", worker="gone")
    second.clock.advance(31)
    assert len(await second.engine.leases.expire(second.rows(HELD))) == 1
    job = await second.one("work", worker="w2")
    await second.complete(job)
    assert second.rows("SELECT status FROM instance") == [(1,)]


async def test_graphile_worker_313_jobs_whose_leases_ended_go_behind_those_that_wait(driver: Driver) -> None:
    await driver.upload(WORK)
    hung = [(await driver.start("work")).id for _ in range(3)]
    assert len(await driver.poll("work", worker="hangs")) == 3
    waiting = (await driver.start("work")).id
    assert await driver.expire(31) == 3
    assert (await driver.one("work", worker="w2")).instance_id == waiting
    assert sorted(job.instance_id for job in await driver.poll("work", worker="w2")) == sorted(hung)


@pytest.mark.parametrize("last", ["fails", "dies"])
async def test_graphile_worker_254_and_airflow_13542_a_place_is_free_after_the_last_attempt(
    make_driver: MakeDriver, last: str
) -> None:
    driver = make_driver(lease_expiry_limit=1)
    await driver.upload(WORK)
    await driver.engine.queues.put("one", QueuePolicy(["work"], concurrency=1))
    first = (await driver.start("work")).id
    second = (await driver.start("work")).id
    job = await driver.one("work")
    assert job.instance_id == first
    assert await driver.poll("work", worker="w2") == []
    if last == "fails":
        await driver.fail(job, retryable=False)
    else:
        await driver.expire(31)
    assert await driver.status(first) == "FAILED"
    assert (await driver.one("work", worker="w2")).instance_id == second


async def test_pg_boss_535_a_retry_and_a_new_job_of_one_key_take_turns(driver: Driver) -> None:
    await driver.upload(WORK)
    await driver.engine.queues.put("keyed", QueuePolicy(["work"], concurrency_per_key=1))
    driver.clock.stop()
    await driver.start("work", flow_key="k")
    await driver.fail(await driver.one("work"))
    await driver.start("work", flow_key="k")
    await driver.start("work", flow_key="other")
    await driver.due(11)
    jobs = await driver.poll("work", n=10)
    assert len(jobs) == 2, "one of each key"
    for job in jobs:
        await driver.complete(job)
    await driver.complete(await driver.one("work"))
    assert driver.rows("SELECT status FROM instance") == [(1,)] * 3


async def test_oban_446_the_key_of_an_instance_that_failed_is_free(driver: Driver) -> None:
    await driver.upload(WORK)
    first = await driver.start("work", instance_key="refresh")
    assert (await driver.start("work", instance_key="refresh")).id == first.id
    await driver.fail(await driver.one("work"), retryable=False)
    later = await driver.start("work", instance_key="refresh")
    assert later.id != first.id
    await driver.complete(await driver.one("work"))
    assert await driver.status(later.id) == "COMPLETED"


async def test_hatchet_805_a_cancelled_job_in_the_queue_is_handed_to_nobody(driver: Driver) -> None:
    await driver.upload(WORK)
    instances = [(await driver.start("work")).id for _ in range(3)]
    await driver.cancel(instances[1])
    assert [job.instance_id for job in await driver.poll("work")] == [instances[0], instances[2]]
