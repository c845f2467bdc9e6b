"""39.7: a new run does not wait for thousands that are taken over from an executor that was killed."""

from __future__ import annotations

import msgspec
import pytest

from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import ORDER, append, begin, done, finish, start, take

__all__ = ["driver", "make_driver"]

TAG = "0123abcd"
DEAD = f"e0.{TAG}/shop-1"
COPIES = 1_500


async def held_runs(driver: Driver) -> int:
    """A run that an executor holds, and copies of its rows; how many."""
    run = await begin(driver, DEAD)
    for table, ids in (
        ("instance", "'id', r.id + k"),
        ("token", "'id', r.id + k, 'instance_id', r.id + k, 'seq', nextval('step_seq')"),
    ):
        driver.rows(
            f"INSERT INTO {table} SELECT (jsonb_populate_record(r, jsonb_build_object({ids}))).*"
            f" FROM {table} r, generate_series(1, {COPIES}) k WHERE r.id = %s RETURNING id",
            run.run_lease.instance,
        )
    return COPIES + 1


@pytest.mark.parametrize("dies", ["engine", "lease"])
async def test_new_runs_go_before_those_of_a_dead_executor(driver: Driver, dies: str) -> None:
    """Also runs that begin later than what was taken over came to the queue, and while it is given out."""
    count = await held_runs(driver)
    if dies == "engine":
        sweeper = LeaseSweeper(driver.engine)
        sweeper.on_dead([TAG])
        assert await sweeper.return_held() == count
    else:
        assert len(driver.rows("UPDATE token SET lease_until = now() - interval '1 s' RETURNING id")) == count
        leased = driver.rows("SELECT id, seq, attempt FROM token WHERE state = 1")
        assert len(await driver.engine.leases.expire(leased)) == count
    new = [await start(driver) for _ in range(3)]
    assert [run.instance_id for run in await take(driver, n=3)] == new
    older = await take(driver, n=10)
    assert [run.run_lease.attempt for run in older] == [2] * 10
    newer = await start(driver)
    [run, *others] = await take(driver, n=10)
    assert run.instance_id == newer, "the floor of the queue does not hide it"
    assert [other.run_lease.attempt for other in others] == [2] * 9
    taken = {each.instance_id for each in (*older, *others)}
    while some := await take(driver, n=500, wait_s=0):
        assert taken.isdisjoint({each.instance_id for each in some})
        taken |= {each.instance_id for each in some}
    assert len(taken) == count, "each comes to its turn"


@pytest.mark.parametrize(
    "policy", [QueuePolicy([]), QueuePolicy([], concurrency=9), QueuePolicy([], concurrency=9, fair=False)]
)
async def test_new_runs_go_first_in_a_queue_too(driver: Driver, policy: QueuePolicy) -> None:
    """There those without a flow key have an empty one; those with one keep to their line."""
    await driver.engine.code.register(ORDER)
    await driver.engine.queues.put("crawl", msgspec.structs.replace(policy, job_types=[ORDER.job_type]))
    held = [(await begin(driver, DEAD)).instance_id for _ in range(4)]
    sweeper = LeaseSweeper(driver.engine)
    sweeper.on_dead([TAG])
    assert await sweeper.return_held() == len(held)
    new = [await start(driver) for _ in range(3)]
    assert [run.instance_id for run in await take(driver, n=3)] == new
    assert {run.instance_id for run in await take(driver, n=9)} == {*held}


async def test_a_run_that_was_taken_over_goes_on_as_others_do(driver: Driver) -> None:
    run = await begin(driver, DEAD)
    sweeper = LeaseSweeper(driver.engine)
    sweeper.on_dead([TAG])
    assert await sweeper.return_held() == 1
    [again] = await take(driver)
    await append(driver, again.run_lease, done("/0"))
    assert again.instance_id == run.instance_id
    await finish(driver, again.run_lease)
    assert driver.rows("SELECT FROM token UNION ALL SELECT FROM ready") == []
