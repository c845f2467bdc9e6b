"""What an audit of the running product found; each was wrong once."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import LeaseLost
from penstock.testing.definitions import definition, end, linear, service, step, timer
from penstock.wire.edits import TokenMove
from penstock.wire.model import JobRef
from tests.engine.driver import Driver
from tests.shapes import gateway, joining, task, user


async def test_a_heartbeat_never_shortens_a_lease(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    job = await driver.one("work", lease=600)
    assert (await driver.heartbeat(job)).lock_expires_at >= job.lock_expires_at  # pyright: ignore[reportOperatorIssue] - they are there


async def test_an_expired_attempt_is_shown_once_and_not_as_running(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    await driver.one("work")
    await driver.expire(31)
    item = (await driver.engine.instances.history(view.id))[0]
    assert [(attempt.attempt, attempt.status) for attempt in item.attempts or []] == [(1, "LEASE_EXPIRED")]
    kinds = [record.kind for record in (await driver.engine.instances.audit(view.id)).items]
    assert kinds == ["STARTED", "JOB_DISPATCHED", "LEASE_EXPIRED"]
    assert [record.kind for record in (await driver.engine.instances.audit(view.id, 1, 1)).items] == ["JOB_DISPATCHED"]


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


@pytest.mark.parametrize("before", ["FAILED", "LEASE_EXPIRED", "RELEASED"])
@pytest.mark.parametrize("after", ["skipped", "interrupted", "late", "late failure", "late retry", "back again"])
async def test_an_attempt_is_reported_once_whatever_closes_its_step_later(
    driver: Driver, before: str, after: str
) -> None:
    """The step was closed from elsewhere while its job waited for the next attempt; or by a result after the lease."""
    instance = await driver.run(
        definition(
            gateway("fork", "x", "u"),
            task("x", "join", retryCount=5, boundaryEvents=[timer("join", "PT5H", interrupting=True)]),
            user("u", "end"),
            joining("join", "end"),
            end(),
        )
    )
    job = await driver.one("x", lease=10)
    if before == "FAILED":
        await driver.fail(job)
    elif before == "LEASE_EXPIRED":
        assert await driver.expire(11) == 1
    else:
        await driver.engine.jobs.release_many([JobRef(job_id=job.id, worker_id="w1", attempt=1)])
    reported = [(1, before)]
    if after == "skipped":
        await driver.finish_task(instance, "u")
    elif after == "interrupted":
        assert await driver.due(5 * 3600) == 1
    elif before == "LEASE_EXPIRED" and after == "late":
        await driver.complete(job)
        reported = [(1, "COMPLETED")]
    elif before == "LEASE_EXPIRED" and after == "back again":
        await driver.heartbeat(job)
        reported = [(1, "RUNNING")]
    elif before == "LEASE_EXPIRED":
        await driver.fail(job, "late", retryable=after == "late retry")
        reported = [(1, "FAILED")]
    (item,) = [item for item in await driver.history(instance) if item.step_id == "x"]
    assert [(attempt.attempt, attempt.status) for attempt in item.attempts or []] == reported
    assert driver.rows("SELECT attempt, status FROM penstock_attempts WHERE step = 'x' ORDER BY 1") == reported
    records = (await driver.engine.instances.audit(instance)).items
    assert [record.detail for record in records if record.kind == "JOB_DISPATCHED"] == ["attempt 1"]
    ends = {"skipped": "STEP_SKIPPED", "interrupted": "STEP_INTERRUPTED"}
    if after in ends:
        assert [record.actor for record in records if record.kind == ends[after]] == [None]


@pytest.mark.parametrize("wait_for", [{"duration": "${x}"}, {"until": "${x}"}])
@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, -1, "", 1e30, 10**40])
async def test_a_wait_for_no_time_says_what_it_got(driver: Driver, wait_for: dict[str, str], value: object) -> None:
    body = definition(step("w", "WAIT", nextStep="end", **wait_for), end())
    view = await driver.view(await driver.run(body, {"x": value}))
    assert view.status == "FAILED"
    assert "None" not in (view.failure_reason or "None")
    assert "int" not in (view.failure_reason or "")
    expected = msgspec.json.encode(value).decode()
    if "duration" in wait_for and isinstance(value, int | float) and not isinstance(value, bool):
        expected = "is negative" if value < 0 else "is longer than 36500 days"
    assert expected.replace('""', "''") in (view.failure_reason or "")


async def test_the_instances_end_is_the_audit_trails_last_record(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    await driver.complete(await driver.one("work"))
    kinds = [record.kind for record in (await driver.engine.instances.audit(view.id)).items]
    assert kinds == ["STARTED", "JOB_DISPATCHED", "STEP_COMPLETED", "STEP_COMPLETED", "INSTANCE_COMPLETED"]


@pytest.mark.parametrize("act", ["RETRIED", "MOVED"])
async def test_an_act_stands_before_the_dispatch_that_follows(driver: Driver, act: str) -> None:
    """A worker that waits has the job at once, in the same moment."""
    instance = await driver.run(definition(service("a", "b"), service("b", "end"), end()))
    driver.clock.stop()
    job = await driver.one("work")
    driver.clock.advance(1)
    if act == "RETRIED":
        await driver.fail(job, retryable=False)
        driver.clock.advance(1)
        await driver.retry(instance)
    else:
        await driver.engine.repair.move(instance, TokenMove(step_id="a", to_step_id="b"))
    again = await driver.one("work")
    records = (await driver.engine.instances.audit(instance)).items
    acted, *followed = [record for record in records if record.at == records[-1].at]
    assert acted.kind == act
    assert [(record.kind, record.step_execution_id) for record in followed][-1] == ("JOB_DISPATCHED", again.id)
