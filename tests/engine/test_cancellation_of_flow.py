"""What is done to queues, schedules and batches, and starts that share a key, cancelled at every point: done or not.

As in `tests/engine/test_cancellation.py`, of operations that are no instance's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
import trio

from penstock.engine.instances.batches import BatchStart
from penstock.errors import Throttled
from penstock.store.rows import batches as batch_store
from penstock.testing.cancellation import CancelledAttempt, Holdings, cancel_everywhere
from penstock.testing.definitions import definition, end, linear
from penstock.wire.model import StartRequest
from penstock.wire.queue import QueuePolicy
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Dedupe, Throttle
from tests.engine.driver import Driver
from tests.shares import mostly_slow
from tests.waiting import wait_until

Operation = Callable[[], Awaitable[Any]]
Prepare = Callable[[Driver, str], Awaitable[Operation]]

POOL = Holdings(0, 16, 16)
"""Connections that are kept, and threads that evaluate."""
READS = {
    "queue": """SELECT q.policy->>'concurrency', q.policy->>'paused', array_agg(j.name)::text = '{NULL}'
      FROM queue q LEFT JOIN job_type j ON j.queue = q.id WHERE q.name = %s GROUP BY q.id""",
    "schedule": "SELECT spec->>'every', paused, note, backfill IS NULL FROM schedule WHERE name = %s",
    "batch": """SELECT b.total, b.begun, b.cancelled, b.reason, b.ended_at IS NULL,
      (SELECT count(*) FROM batch_item i WHERE i.batch = b.id),
      (SELECT count(*) FROM instance n WHERE n.started_by = 'batch:' || b.id),
      (SELECT count(*) FROM instance n WHERE n.started_by = 'batch:' || b.id AND n.status = 3)
      FROM batch b WHERE b.key = %s""",
    "instance": "SELECT status, (SELECT count(*) FROM start_window) FROM instance WHERE business_key = %s",
    "audit": """SELECT kind, count(*) FROM audit
      WHERE kind ~ '^(QUEUE|SCHEDULE)_' AND split_part(detail, ':', 1) = %s GROUP BY 1 ORDER BY 1""",
}


def read_rows(driver: Driver, key: str) -> dict[str, list[Any]]:
    return {what: driver.rows(sql, key) for what, sql in READS.items()}


def of_queue(operation: Callable[[Driver, str], Awaitable[Any]]) -> Prepare:
    async def prepare(driver: Driver, key: str) -> Operation:
        await driver.engine.queues.put(key, QueuePolicy([f"work {key}"], concurrency=1))
        return lambda: operation(driver, key)

    return prepare


def of_schedule(operation: Callable[[Driver, str], Awaitable[Any]]) -> Prepare:
    async def prepare(driver: Driver, key: str) -> Operation:
        await driver.engine.schedules.put(key, ScheduleSpec("linear", every="P1D", anchor="2020-01-01T00:00:00Z"))
        return lambda: operation(driver, key)

    return prepare


def of_batch(*, begun: bool, cancelled: bool, on_complete: str | None = None) -> Prepare:
    """A look at a batch of one, or its cancel."""

    async def prepare(driver: Driver, key: str) -> Operation:
        batches, item = driver.engine.batches, StartRequest(definition_id="end" if on_complete else "linear")
        driver.rows("UPDATE batch SET look_at = NULL, ended_at = penstock_now() WHERE ended_at IS NULL RETURNING 1")
        made = await batches.create(BatchStart([item], on_complete, None, key))
        if begun:
            await work(driver)
        if not cancelled and on_complete is None:
            return lambda: batches.cancel(made.id, "enough")
        if cancelled:
            await batches.cancel(made.id, "enough")
        return lambda: work(driver)

    return prepare


async def work(driver: Driver) -> None:
    """What the loop does with the batch until nothing is left to do."""
    lease_s = driver.engine.settings.start_batch_lease_seconds
    while driver.rows("UPDATE batch SET look_at = penstock_now() WHERE look_at IS NOT NULL RETURNING 1"):
        async with driver.engine.database.connection() as connection:
            found = await batch_store.claim(connection, lease_s)
        if found is not None:
            await driver.engine.batches.work_on(found)
        if driver.rows(OPEN):
            return


async def make_batch(driver: Driver, key: str) -> Operation:
    asked = BatchStart([StartRequest(definition_id="linear")] * 3, None, None, key)
    return lambda: driver.engine.batches.create(asked)


async def deduplicated(driver: Driver, key: str) -> Operation:
    rule = Dedupe(key, "PT1H")
    await driver.start("linear", business_key=key, dedupe=rule)
    return lambda: driver.start("linear", business_key=key, dedupe=rule)


async def too_much(driver: Driver, key: str) -> Operation:
    rule = Throttle(key, 1, "PT1H")
    await driver.start("linear", business_key=key, throttle=rule)

    async def start() -> None:
        with pytest.raises(Throttled):
            await driver.start("linear", business_key=key, throttle=rule)

    return start


def putting(driver: Driver, key: str) -> Awaitable[Any]:
    return driver.engine.queues.put(key, QueuePolicy([f"other {key}"], concurrency=2))


OPEN = """SELECT FROM batch WHERE begun = total AND cancelled IS NULL AND EXISTS (
  SELECT FROM batch_item i JOIN instance n ON n.id = i.instance_id WHERE i.batch = batch.id AND n.status = 0)"""
PAST = "2026-01-01T00:00:00Z"
OPERATIONS: dict[str, Prepare] = {
    "a queue that is changed": of_queue(putting),
    "a queue that is paused": of_queue(lambda driver, key: driver.engine.queues.pause(key, paused=True)),
    "a queue that is deleted": of_queue(lambda driver, key: driver.engine.queues.delete(key)),
    "a queue that a workflow joins": of_queue(lambda driver, key: driver.engine.queues.join(key, f"code:{key}")),
    "a schedule that is changed": of_schedule(
        lambda driver, key: driver.engine.schedules.put(key, ScheduleSpec("linear", every="P2D"))
    ),
    "a schedule that is paused": of_schedule(lambda driver, key: driver.engine.schedules.pause(key, "why")),
    "a schedule that goes on": of_schedule(lambda driver, key: driver.engine.schedules.resume(key)),
    "a backfill": of_schedule(lambda driver, key: driver.engine.schedules.backfill(key, PAST, PAST, None)),
    "a schedule that is deleted": of_schedule(lambda driver, key: driver.engine.schedules.delete(key)),
    "a batch that is made": make_batch,
    "a batch that is cancelled": of_batch(begun=True, cancelled=False),
    "instances of a cancelled batch": of_batch(begun=True, cancelled=True),
    "the end of a batch": of_batch(begun=False, cancelled=False, on_complete="end"),
    "a start that there was": deduplicated,
    "a start that is too much": too_much,
}
LOOPS = {"instances of a cancelled batch", "the end of a batch"}


@pytest.mark.parametrize(
    "name", mostly_slow(OPERATIONS, quick=[*OPERATIONS][::3], reason="cancels an operation at every point")
)
async def test_it_is_done_or_not_wherever_it_is_cancelled(driver: Driver, name: str) -> None:
    await driver.upload(linear(1))
    await driver.upload(definition(end(), definition_id="end"))
    prepare, numbers = OPERATIONS[name], count()
    operation = await prepare(driver, "undisturbed")
    await operation()
    await idle(driver)
    after = read_rows(driver, "undisturbed")
    key, before = "", after

    async def next_one() -> Operation:
        nonlocal key, before
        driver.rows("DELETE FROM start_window RETURNING 1")
        key = f"point-{next(numbers)}"
        operation = await prepare(driver, key)
        before = read_rows(driver, key)
        return operation

    async def check(attempt: CancelledAttempt[Any]) -> None:
        await idle(driver)
        if attempt.cancelled and name in LOOPS:
            await work(driver)  # whoever takes it over does again what was not written
        found = read_rows(driver, key)
        assert found == after or (attempt.cancelled and name not in LOOPS and found == before)

    points = await cancel_everywhere(next_one, check, own_task_only=not name.startswith("a start"), may_grow=POOL)
    assert points.cancelled > 1


async def idle(driver: Driver) -> None:
    """Nothing is under way any more: what was cancelled has been given up, or is done."""

    async def is_idle() -> bool:
        statistics = driver.engine.database.pool.statistics()
        commit_queues = any(not batcher.statistics().idle for batcher in driver.engine.batchers())
        return not commit_queues and statistics.busy == 0 and statistics.waiting == 0

    await wait_until(is_idle)
    await trio.lowlevel.checkpoint()
