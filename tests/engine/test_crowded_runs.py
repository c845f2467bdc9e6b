"""Runs of durable workflows, in a queue with more keys than a claim looks at: what is heard of those that let go."""

from __future__ import annotations

import json

import pytest

from penstock.engine.queues.journal_items import RunLease
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_queues_of_runs import let_go, limited, park, start, taken

KEYS = 60
SCANNED = 10


async def take_all(driver: Driver) -> dict[str, RunLease]:
    """All runs that may begin, by their keys."""
    held: dict[str, RunLease] = {}
    for _ in range(KEYS // SCANNED):
        for run in await runs.take(driver, wait_s=0, n=SCANNED):
            ((key,),) = driver.rows("SELECT flow_key FROM token WHERE id = %s", run.run_lease.instance)
            held[key] = run.run_lease
    assert len(held) == KEYS
    return held


def come_to_last(driver: Driver, held: dict[str, RunLease]) -> RunLease:
    """The run whose key the next walk comes to last."""
    return held[json.loads(driver.engine.polls.claims.fairness_order.cursor(runs.ORDER.job_type))["5"]]


def key_of(held: dict[str, RunLease], run: RunLease) -> str:
    return next(key for key, other in held.items() if other is run)


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(ready_probe_interval_seconds=60.0, flow_keys_per_claim=SCANNED)


@pytest.mark.parametrize("how", ["park", "block", "expire", "give back", "return", "finish", "cancel"])
async def test_a_run_that_lets_go_tells_its_key(driver: Driver, how: str) -> None:
    await limited(driver, concurrency=None, concurrency_per_key=1)
    for _ in range(2):
        for number in range(KEYS):
            await start(driver, flow_key=f"k{number:03d}")
    held = await take_all(driver)
    driver.engine.polls.claims.fairness_order.open([runs.ORDER.job_type])
    assert await taken(driver) == []  # ten keys were looked at, all full
    run = come_to_last(driver, held)
    if how in ("expire", "return"):  # of this one alone
        driver.rows("UPDATE token SET claimed_by = 'e0.fedcba98/gone' WHERE id = %s RETURNING 1", run.instance)
        driver.rows(
            "UPDATE token SET lease_until = lease_until + interval '1 h' WHERE id <> %s RETURNING 1", run.instance
        )
        run = run._replace(holder="e0.fedcba98/gone")
    await let_go(driver, run, how)
    (found,) = await taken(driver)
    assert driver.rows("SELECT flow_key FROM token WHERE id IN (%s, %s)", run.instance, int(found, 16))


@pytest.mark.parametrize("how", ["tell", "wake"])
async def test_a_run_that_goes_on_tells_its_key(driver: Driver, how: str) -> None:
    driver.clock.stop()
    await limited(driver, concurrency=None, concurrency_per_key=1)
    for number in range(KEYS):
        await start(driver, flow_key=f"k{number:03d}")
    held = await take_all(driver)
    run = come_to_last(driver, held)
    assert await park(driver, run, driver.clock.now().timestamp() + 60.0)
    for key in held.keys() - {key_of(held, run)}:
        await start(driver, flow_key=key)
    driver.engine.polls.claims.fairness_order.take_hints(runs.ORDER.job_type, KEYS)  # the starts'
    driver.engine.polls.claims.fairness_order.open([runs.ORDER.job_type])
    assert await taken(driver) == []
    if how == "tell":
        await driver.engine.runs.send(f"{run.instance:x}", "go", b"1")
    else:
        assert await driver.due(61.0) == 1
    assert await taken(driver) == [f"{run.instance:x}"]
