"""What an audit of the running product found; each was wrong once."""

from __future__ import annotations

import pytest

from penstock.errors import LeaseLost
from penstock.testing.definitions import definition, end, linear, service
from tests.engine.driver import Driver


async def test_a_heartbeat_never_shortens_a_lease(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    job = await driver.one("work", lease=600)
    assert (await driver.heartbeat(job)).lock_expires_at >= job.lock_expires_at


async def test_an_expired_attempt_is_shown_once_and_not_as_running(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    await driver.one("work")
    await driver.expire(31)
    item = (await driver.engine.instances.history(view.id))[0]
    assert [(attempt.attempt, attempt.status) for attempt in item.attempts or []] == [(1, "LEASE_EXPIRED")]
    kinds = [record.kind for record in await driver.engine.instances.audit(view.id)]
    assert kinds == ["STARTED", "JOB_DISPATCHED", "LEASE_EXPIRED"]
    assert [record.kind for record in await driver.engine.instances.audit(view.id, 1, 1)] == ["JOB_DISPATCHED"]


async def test_after_a_retry_the_failed_execution_is_lost(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    job = await driver.one("work")
    await driver.fail(job)
    await driver.engine.instances.retry(view.id)
    before = driver.snapshot()
    for attempt in (None, 1):
        with pytest.raises(LeaseLost):
            await driver.complete(job, attempt=attempt)
    assert driver.snapshot() == before


async def test_a_poll_of_several_types_starves_none(driver: Driver) -> None:
    for name in ("a", "b"):
        await driver.upload(definition(service("s", "end", job_type=name), end(), definition_id=name))
        for _ in range(10):
            await driver.start(name)
    seen = {(await driver.one("a", "b")).job_type for _ in range(4)}
    assert seen == {"a", "b"}
