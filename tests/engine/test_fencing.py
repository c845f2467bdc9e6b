"""Who may act on a job, through the database: the rules of docs/guarantees.md in their order."""

from __future__ import annotations

import pytest

from penstock.engine.vocabulary import Completion, Failure, HeartbeatAnswer, Release
from penstock.errors import BadRequest, JobCancelled, LeaseLost, NotFound
from penstock.testing.definitions import fork, linear
from tests.engine.driver import Driver, completion


async def expire(driver: Driver, limit: int = 10) -> int:
    """End all leases now, as the lease service would."""
    from penstock.store import jobs as store

    driver.rows("UPDATE token SET lease_until = now() - interval '1 s' WHERE state = 1 RETURNING 1")
    leases = driver.rows("SELECT id, seq, attempt FROM token WHERE state = 1")
    async with driver.engine.database.connection() as connection:
        rows = await store.expire(connection, [(t, s, a) for t, s, a in leases], limit)
    for row in rows:
        driver.engine.polls.leases.drop(row.token, row.seq)
        driver.engine.polls.queued("work")
    return len(rows)


async def test_a_worker_that_never_held_the_job_changes_nothing(driver: Driver) -> None:
    await driver.upload(linear(2))
    await driver.start("linear")
    job = await driver.one("work", worker="w1")
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.complete(job, {"x": 1}, worker_id="w2")
    with pytest.raises(LeaseLost):
        await driver.heartbeat(job, worker_id="w2")
    await driver.fail(job, worker_id="w2")  # without attempt: answered with success, ignored
    with pytest.raises(LeaseLost):
        await driver.fail(job, worker_id="w2", attempt=1)
    assert driver.snapshot() == before


async def test_a_repeated_completion_succeeds_and_changes_nothing(driver: Driver) -> None:
    await driver.upload(linear(2))
    instance = await driver.start("linear")
    job = await driver.one("work")
    await driver.complete(job, {"x": 1})
    before = driver.snapshot()
    await driver.complete(job, {"x": 2})
    await driver.complete(job, {"x": 3}, worker_id="somebody else")
    await driver.complete(job, {"x": 4}, attempt=1)
    await driver.fail(job)
    with pytest.raises(LeaseLost):
        await driver.complete(job, attempt=2)
    with pytest.raises(LeaseLost):
        await driver.heartbeat(job)
    assert driver.snapshot() == before
    assert await driver.variables(instance.id) == {"x": 1}


async def test_a_fail_after_the_completion_does_not_fail_the_completed_instance(driver: Driver) -> None:
    await driver.upload(linear(1))
    instance = await driver.start("linear")
    job = await driver.one("work")
    await driver.complete(job)
    await driver.fail(job, retryable=False)
    assert (await driver.view(instance.id)).status == "COMPLETED"


async def test_the_last_holder_may_still_complete_after_its_lease_ended(driver: Driver) -> None:
    await driver.upload(linear(2))
    instance = await driver.start("linear")
    job = await driver.one("work", worker="late")
    assert await expire(driver) == 1
    await driver.complete(job, {"x": 1})
    assert driver.rows("SELECT count(*) FROM ready") == [(1,)]  # the next step's only
    assert (await driver.view(instance.id)).current_step_ids == ["task-2"]


async def test_after_expiry_and_a_new_claim_the_old_holder_has_lost(driver: Driver) -> None:
    await driver.upload(linear(2))
    await driver.start("linear")
    job = await driver.one("work", worker="w1")
    await expire(driver)
    again = await driver.one("work", worker="w2")
    assert (again.id, again.attempt) == (job.id, 2)
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.complete(job)
    with pytest.raises(LeaseLost):
        await driver.complete(job, attempt=1)
    assert driver.snapshot() == before
    await driver.complete(again)


async def test_the_attempt_fences_exactly_also_for_the_same_worker(driver: Driver) -> None:
    await driver.upload(linear(2))
    await driver.start("linear")
    job = await driver.one("work", worker="w1")
    await expire(driver)
    again = await driver.one("work", worker="w1")
    with pytest.raises(LeaseLost):
        await driver.complete(job, attempt=1)
    await driver.complete(again, attempt=2)


async def test_a_late_heartbeat_takes_the_job_out_of_the_queue_again(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    job = await driver.one("work", worker="w1")
    await expire(driver)
    answer = await driver.heartbeat(job, lease_seconds=60)
    assert answer.lock_expires_at > job.lock_expires_at
    assert await driver.poll("work", worker="w2") == []
    await driver.complete(job)


async def test_a_heartbeat_extends_and_keeps_a_checkpoint_for_the_next_attempt(driver: Driver) -> None:
    await driver.upload(linear(1))
    instance = await driver.start("linear")
    job = await driver.one("work", worker="w1", lease=5)
    answer = await driver.heartbeat(job, lease_seconds=100, checkpoint=b'{"row":7}', progress=b'{"done":0.5}')
    assert (answer.lock_expires_at - job.lock_expires_at).total_seconds() > 80
    view = await driver.view(instance.id)
    assert view.progress is not None
    assert bytes(view.progress["task-1"]).replace(b" ", b"") == b'{"done":0.5}'
    await expire(driver)
    again = await driver.one("work", worker="w2")
    assert again.checkpoint is not None
    assert bytes(again.checkpoint).replace(b" ", b"") == b'{"row":7}'


async def test_a_job_of_a_cancelled_instance_is_told_so(driver: Driver) -> None:
    await driver.upload(linear(1))
    instance = await driver.start("linear")
    job = await driver.one("work")
    await driver.engine.instances.cancel(instance.id, "no longer wanted")
    before = driver.snapshot()
    await driver.complete(job)  # without attempt: success, nothing changes
    await driver.fail(job)
    with pytest.raises(JobCancelled):
        await driver.complete(job, attempt=1)
    with pytest.raises(JobCancelled):
        await driver.heartbeat(job)
    outcomes = await driver.engine.jobs.complete_many([completion(job, explicit=True)])
    assert [outcome.outcome for outcome in outcomes] == ["cancelled"]
    assert driver.snapshot() == before


async def test_a_repeated_fail_of_the_same_attempt_counts_once(driver: Driver) -> None:
    await driver.upload(linear(1, retry_count=3))
    await driver.start("linear")
    job = await driver.one("work")
    await driver.fail(job)
    before = driver.snapshot()
    await driver.fail(job)
    await driver.fail(job, attempt=1)
    assert driver.snapshot() == before
    again = await driver.one("work", worker="w2")
    assert (again.retries_remaining, again.attempt) == (2, 2)


async def test_a_completion_after_a_fail_is_refused(driver: Driver) -> None:
    await driver.upload(linear(1, retry_count=3))
    await driver.start("linear")
    job = await driver.one("work")
    await driver.fail(job)
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.complete(job)
    assert driver.snapshot() == before


async def test_unknown_jobs_are_not_found(driver: Driver) -> None:
    for id in ("", "x", "1-2", "1-2-3", "1-2-3-4", "-1-2-3", "ZZ-1-1", "1-1-" + "f" * 60):
        with pytest.raises(NotFound):
            await driver.engine.jobs.complete(Completion(job_id=id, worker_id="w"))
        with pytest.raises(NotFound):
            await driver.engine.jobs.fail(Failure(job_id=id, worker_id="w", retryable=True))


async def test_a_worker_without_a_name_is_refused(driver: Driver) -> None:
    with pytest.raises(BadRequest, match="workerId"):
        await driver.engine.jobs.complete(Completion(job_id="1-2-3", worker_id=""))


async def test_one_bad_item_of_a_batch_never_fails_its_neighbours(driver: Driver) -> None:
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    jobs = await driver.poll("work")
    assert len(jobs) == 3
    await driver.complete(jobs[0])
    answers = await driver.engine.jobs.complete_many(
        [
            completion(jobs[0], explicit=True),
            completion(jobs[1], explicit=True, attempt=9),
            Completion(job_id="nonsense", worker_id="w1", explicit=True),
            completion(jobs[2], explicit=True, worker_id=""),
            completion(jobs[2], {"x": 1}, explicit=True),
            completion(jobs[1], {"x": 1}, explicit=True, attempt=1),
        ]
    )
    assert [answer.outcome for answer in answers] == [
        "already-completed", "lease-lost", "not-found", "invalid", "ok", "ok",
    ]  # fmt: skip
    assert driver.rows("SELECT count(*) FROM instance WHERE status = 1") == [(3,)]


async def test_a_released_job_is_there_at_once_and_no_retry_is_spent(driver: Driver) -> None:
    await driver.upload(linear(1, retry_count=1))
    await driver.start("linear")
    job = await driver.one("work", worker="w1")
    release = Release(job_id=job.id, worker_id="w1", attempt=1, explicit=True)
    assert [each.outcome for each in await driver.engine.jobs.release_many([release])] == ["ok"]
    assert [each.outcome for each in await driver.engine.jobs.release_many([release])] == ["lease-lost"]
    again = await driver.one("work", worker="w2")
    assert (again.retries_remaining, again.attempt) == (1, 2)


async def test_a_wide_completion_is_fenced_like_a_narrow_one(driver: Driver) -> None:
    await driver.upload(fork(1, 1))
    instance = await driver.start("fork")
    jobs = await driver.poll("work", worker="w1")
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.complete(jobs[0], worker_id="w2")
    assert driver.snapshot() == before
    await driver.complete(jobs[0])
    before = driver.snapshot()
    await driver.complete(jobs[0])
    with pytest.raises(LeaseLost):
        await driver.complete(jobs[0], attempt=2)
    assert driver.snapshot() == before
    await driver.complete(jobs[1])
    assert (await driver.view(instance.id)).status == "COMPLETED"


async def test_heartbeats_of_a_batch_answer_each(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    job = await driver.one("work")
    from penstock.engine.vocabulary import Heartbeat

    good, bad = await driver.engine.jobs.heartbeat_many(
        [Heartbeat(job_id=job.id, worker_id="w1", explicit=True), Heartbeat(job_id=job.id, worker_id="w2", explicit=True)]
    )
    assert isinstance(good, HeartbeatAnswer)
    assert not isinstance(bad, HeartbeatAnswer)
    assert bad.outcome == "lease-lost"
