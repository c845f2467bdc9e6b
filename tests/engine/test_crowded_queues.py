"""Queues with more keys than a claim looks at: what is heard of a key, and how little is asked when nothing happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from penstock.engine.queues import fairness_order
from penstock.store.db.connection import TrioConnection
from penstock.store.rows.flow import ClaimScan
from penstock.testing.definitions import definition, end, linear, service
from penstock.wire.model import Job, JobRef
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_queues import key_of, limit, start
from tests.waiting import wait_until


async def many_full_keys(driver: Driver) -> dict[str | None, Job]:
    """120 keys with a job under way and one that waits; a claim looks at ten."""
    await driver.upload(linear(1))
    await limit(driver, concurrency_per_key=1)
    keys = [f"k{number:03d}" for number in range(120)]
    await start(driver, *keys, *keys)
    held = {key_of(driver, job): job for _ in range(12) for job in await driver.poll("work", n=10)}
    assert len(held) == len(keys)
    driver.engine.polls.claims.fairness_order.open(["work"])
    assert await driver.poll("work") == []  # ten keys were looked at
    return held


async def test_a_key_with_room_is_found_behind_full_ones(make_driver: MakeDriver) -> None:
    driver = make_driver(ready_probe_interval_seconds=60.0, flow_keys_per_claim=10)
    held = await many_full_keys(driver)

    async def found() -> str | None:
        """The key of the next job, by the walk that comes to it last."""
        (job,) = await driver.poll("work")
        return key_of(driver, job)

    def last() -> Job:
        return held[json.loads(driver.engine.polls.claims.fairness_order.cursor("work"))["5"]]

    await driver.complete(job := last())
    assert await found() == key_of(driver, job)
    await driver.poll("work")
    await driver.start("linear", {}, flow_key="new")
    assert await found() == "new"
    await driver.poll("work")
    await driver.start("linear", {})
    assert await found() is None
    await driver.poll("work")
    job = last()
    await driver.engine.jobs.release_many([JobRef(job_id=job.id, worker_id="w1", attempt=job.attempt)])
    assert await found() == key_of(driver, job)
    await driver.poll("work")
    job = last()
    ended = driver.rows(
        "UPDATE token SET lease_until = penstock_now() WHERE id = %s RETURNING id, seq, attempt",
        int(job.id.split("-")[1], 16),
    )
    assert len(await driver.engine.leases.expire(ended)) == 1
    assert await found() == key_of(driver, job)


async def test_keys_that_found_no_poll_are_remembered(make_driver: MakeDriver) -> None:
    """Three keys get room, while the queue has none, and a new one comes; each poll takes one job, and walks over ten
    keys."""
    driver = make_driver(ready_probe_interval_seconds=60.0, flow_keys_per_claim=10)
    held = await many_full_keys(driver)
    cursor = int(json.loads(driver.engine.polls.claims.fairness_order.cursor("work"))["5"][1:])
    keys = [f"k{(cursor - number) % 120:03d}" for number in range(3)]  # to which a walk comes last
    for key in keys:
        await driver.complete(held[key])
    driver.rows("UPDATE queue SET policy = policy || '{\"paused\": true}' RETURNING 1")
    assert await driver.poll("work") == []  # of its keys nothing is seen
    driver.rows("UPDATE queue SET policy = policy - 'paused' RETURNING 1")
    await start(driver, "new")
    found = [key_of(driver, job) for _ in range(4) for job in await driver.poll("work", n=1)]
    assert {*found} == {*keys, "new"}


async def test_worse_priorities_are_walked_to_behind_full_keys(make_driver: MakeDriver) -> None:
    driver = make_driver(ready_probe_interval_seconds=60.0, flow_keys_per_claim=10)
    await many_full_keys(driver)
    await start(driver, "late", "later", priority=7)
    turns, found = driver.engine.polls.claims.fairness_order, list[Job]()
    turns.take_hints("work", 100)  # as after the engine was started anew
    for _ in range(4):
        turns.open(["work"])
        found += await driver.poll("work")
    assert {key_of(driver, job) for job in found} == {"late", "later"}


async def test_the_next_job_is_reported_by_its_own_key(driver: Driver) -> None:
    """The first one waited without, as its queue is not fair."""
    steps = service("a", "b", job_type="first"), service("b", "end", job_type="second"), end()
    await driver.upload(definition(*steps, definition_id="two"))
    await limit(driver, "first", name="one", fair=False)
    await limit(driver, "second", name="other")
    await driver.start("two", {}, flow_key="gold")
    job = await driver.one("first")
    reported: list[tuple[str, str]] = []
    driver.engine.events.key_opened.listen(lambda job_type, key: reported.append((job_type, key)))
    await driver.complete(job)
    assert ("second", "gold") in reported


async def test_a_crowded_type_of_the_queue_is_told_of_keys(driver: Driver) -> None:
    await limit(driver, "work", "other", concurrency_per_key=1)
    polls, reported = driver.engine.polls, list[tuple[str, str]]()
    driver.engine.events.key_opened.listen(lambda job_type, key: reported.append((job_type, key)))
    for name, more in (("work", False), ("other", False), ("other", True)):
        scan = ClaimScan("k", int(more), 0, 0, None, (), None)
        polls.claims.fairness_order.note(name, scan, 1, keys_max=1, took_s=0.0)
        polls.hint_key("work", f"{name} {more}")
    assert reported == [("work", "work False"), ("work", "other True")]


async def test_a_key_that_was_freed_unheard_is_walked_to(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True, ready_probe_interval_seconds=60.0, flow_keys_per_claim=10)
    held = await many_full_keys(driver)
    found: list[Job] = []
    with trio.fail_after(55):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                found.append(await driver.one("work", wait=50))

            nursery.start_soon(wait)
            await wait_until(lambda: has_parked(driver))
            freed = int(held["k115"].id.split("-")[1], 16)
            driver.rows("UPDATE token SET held = NULL WHERE id = %s RETURNING 1", freed)
            driver.rows("UPDATE slot SET running = 0 WHERE flow_key = 'k115' RETURNING 1")
    assert [key_of(driver, job) for job in found] == ["k115"]


async def has_parked(driver: Driver) -> bool:
    return len(driver.engine.polls.waiters) > 0


async def test_an_engine_with_idle_queues_asks_for_nothing_more(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look of the probe, and one at the queues: a statement each, whether nothing waits or all is full."""
    monkeypatch.setattr(fairness_order, "FRUITLESS_S", 3600.0)
    await driver.upload(linear(1))
    await limit(driver, concurrency=1, concurrency_per_key=1)
    asked: list[object] = []
    fetch = TrioConnection.fetch

    async def noted(connection: TrioConnection, sql: Any, params: Sequence[object] = ()) -> object:
        asked.append(sql)
        return await fetch(connection, sql, params)

    async def scanned() -> int:
        asked.clear()
        for _ in range(5):
            await driver.engine.polls.probe_once()
            await driver.engine.queues.run_once()
        return len(asked)

    async def parked(number: int) -> bool:
        return len(driver.engine.polls.waiters) == number

    async def wait() -> None:
        await driver.poll("work", wait=50)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_until(lambda: parked(1))
        monkeypatch.setattr(TrioConnection, "fetch", noted)
        assert await scanned() == 10
        await start(driver, "a", "a")
        await driver.engine.polls.probe_once()
        await wait_until(lambda: parked(0))  # it has the first one
        nursery.start_soon(wait)
        await wait_until(lambda: parked(1))
        await driver.engine.polls.probe_once()  # the queue is full
        assert await scanned() == 10
        nursery.cancel_scope.cancel()
