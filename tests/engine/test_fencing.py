"""Fencing through the database (engine.md, guarantees 2 and 5): stale, late, repeated and batched results.

Each test runs on both ways a completion can take: the fast path (one statement) and the full one (`advance`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from penstock.errors import BadRequest, JobCancelled, LeaseLost, PenstockError
from penstock.testing.definitions import Json, definition, end, timer
from penstock.wire.model import Completion, Failure, Heartbeat, Job, JobRef, Lease
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, completion
from tests.shapes import task, user

NARROW = definition(task("a", "b", retryCount=3), task("b"), end(), definition_id="flow")
WIDE = definition(
    task("a", "b", retryCount=3, boundaryEvents=[timer("late", interrupting=True)]), task("b"), task("late"), end(),
    definition_id="flow",
)  # fmt: skip


@pytest.fixture(params=["narrow", "wide"])
def body(request: pytest.FixtureRequest) -> Json:
    return {"narrow": NARROW, "wide": WIDE}[request.param]


async def lost(driver: Driver, action: Callable[..., Any], job: Job, **changes: Any) -> None:
    """The call is refused with `lease-lost` and not one row is different."""
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await action(job, **changes)
    assert driver.snapshot() == before


async def unchanged(driver: Driver, action: Callable[..., Any], job: Job, **changes: Any) -> None:
    """The call is answered with success and not one row is different."""
    before = driver.snapshot()
    await action(job, **changes)
    assert driver.snapshot() == before


async def taken_over(driver: Driver, body: Json) -> tuple[Job, Job]:
    """A job whose lease expired, and the same job claimed by another."""
    await driver.run(body)
    stale = await driver.one("a", worker="stale")
    await driver.expire(31)
    fresh = await driver.one("a", worker="fresh")
    assert (fresh.id, stale.attempt, fresh.attempt) == (stale.id, 1, 2)
    return stale, fresh


async def test_a_stale_worker_changes_nothing(driver: Driver, body: Json) -> None:
    stale, fresh = await taken_over(driver, body)
    for attempt in (None, 1, 2, 3):
        await lost(driver, driver.complete, stale, attempt=attempt)
        await lost(driver, driver.heartbeat, stale, attempt=attempt)
        if attempt is not None:
            await lost(driver, driver.fail, stale, attempt=attempt)
    await unchanged(driver, driver.fail, stale)
    await unchanged(driver, driver.fail, stale, retryable=False)
    await driver.complete(fresh)
    assert await driver.open_steps(fresh.instance_id) == ["b"]


async def test_a_stale_worker_changes_nothing_after_the_other_completed(driver: Driver, body: Json) -> None:
    stale, fresh = await taken_over(driver, body)
    await driver.complete(fresh, {"by": "fresh"})
    await unchanged(driver, driver.complete, stale, variables={"by": "stale"})
    await lost(driver, driver.complete, stale, attempt=1)
    await unchanged(driver, driver.fail, stale, retryable=False)
    await lost(driver, driver.fail, stale, attempt=1)
    await lost(driver, driver.heartbeat, stale)
    assert await driver.variables(stale.instance_id) == {"by": "fresh"}


async def test_a_late_result_counts_while_nobody_claimed_the_job(driver: Driver, body: Json) -> None:
    instance = await driver.run(body)
    job = await driver.one("a")
    await driver.expire(31)
    assert driver.rows("SELECT count(*) FROM ready") == [(1,)]
    await driver.complete(job, {"a": 1}, attempt=1)
    assert await driver.open_steps(instance) == ["b"]
    assert await driver.poll("a") == []
    assert [job.step_id for job in await driver.poll("a", "b")] == ["b"]
    (done, _) = await driver.history(instance)
    assert [(each.attempt, each.status) for each in done.attempts or ()] == [(1, "COMPLETED")]


async def test_a_late_result_of_a_former_holder_does_not_count(driver: Driver, body: Json) -> None:
    stale, _ = await taken_over(driver, body)
    await driver.expire(31)
    await lost(driver, driver.complete, stale)


async def test_a_late_failure_counts_while_nobody_claimed_the_job(driver: Driver, body: Json) -> None:
    await driver.run(body)
    job = await driver.one("a")
    await driver.expire(31)
    await driver.fail(job, "late")
    assert driver.rows("SELECT state, failures FROM token") == [(0, 1)]
    assert len(await driver.poll("a")) == 1


async def test_a_late_heartbeat_keeps_the_job_and_its_attempt(driver: Driver, body: Json) -> None:
    await driver.run(body)
    driver.clock.stop()
    job = await driver.one("a")
    await driver.expire(31)
    answer = await driver.heartbeat(job, lease_seconds=60)
    assert (answer.lock_expires_at - driver.clock.now()).total_seconds() == 60
    assert await driver.poll("a", worker="other") == []
    assert driver.rows("SELECT state, attempt, claimed_by FROM token") == [(1, 1, "w1")]
    await driver.complete(job, attempt=1)


async def test_repeated_completions_change_nothing_and_succeed(driver: Driver, body: Json) -> None:
    await driver.run(body)
    job = await driver.one("a")
    await driver.complete(job, {"a": 1})
    await unchanged(driver, driver.complete, job, variables={"a": 2})
    await unchanged(driver, driver.complete, job, worker_id="somebody")
    await unchanged(driver, driver.complete, job, attempt=1)
    await lost(driver, driver.complete, job, attempt=2)
    await unchanged(driver, driver.fail, job, retryable=False)
    await unchanged(driver, driver.fail, job, attempt=1)
    await lost(driver, driver.heartbeat, job)


@pytest.mark.parametrize("attempt", [None, 1])
async def test_many_completions_of_one_job_at_once_advance_it_once(
    make_driver: MakeDriver, body: Json, attempt: int | None
) -> None:
    engines = [make_driver(), make_driver()]
    instance = await engines[0].run(body)
    job = await engines[0].one("a")
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(lambda n=n: engines[n % 2].complete(job, {"n": n}, attempt=attempt))
    assert await engines[0].path(instance) == [("a", "COMPLETED"), ("b", "RUNNING")]
    assert engines[0].rows("SELECT count(*) FROM history") == [(1,)]


async def test_two_workers_at_once_one_wins(make_driver: MakeDriver, body: Json) -> None:
    engines = [make_driver(), make_driver()]
    stale, fresh = await taken_over(engines[0], body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: lost_quietly(engines[1], stale))
        nursery.start_soon(lambda: engines[0].complete(fresh, {"by": "fresh"}))
    assert await engines[0].variables(fresh.instance_id) == {"by": "fresh"}
    assert await engines[0].path(fresh.instance_id) == [("a", "COMPLETED"), ("b", "RUNNING")]


async def lost_quietly(driver: Driver, job: Job) -> None:
    with suppress(LeaseLost):  # before the fresh one was applied; after it, success
        await driver.complete(job, {"by": "stale"})


async def test_repeated_failures_use_one_retry(driver: Driver, body: Json) -> None:
    await driver.run(body)
    job = await driver.one("a")
    await driver.fail(job, "once")
    for attempt in (None, 1):
        await unchanged(driver, driver.fail, job, attempt=attempt)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(driver.fail, job)
    assert driver.rows("SELECT state, failures FROM token") == [(0, 1)]


async def test_many_failures_of_one_attempt_at_once_use_one_retry(make_driver: MakeDriver, body: Json) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].run(body)
    job = await engines[0].one("a")
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(engines[n % 2].fail, job)
    assert engines[0].rows("SELECT state, failures FROM token") == [(0, 1)]
    assert engines[0].rows("SELECT kind, attempt FROM history") == [(10, 1)]


async def test_a_failure_repeated_after_another_claimed_the_job_changes_nothing(driver: Driver, body: Json) -> None:
    await driver.run(body)
    job = await driver.one("a", worker="first")
    await driver.fail(job)
    await driver.one("a", worker="second")
    await unchanged(driver, driver.fail, job)
    await lost(driver, driver.fail, job, attempt=1)
    await lost(driver, driver.fail, job, attempt=2)


async def test_the_same_worker_is_fenced_by_the_attempt(driver: Driver, body: Json) -> None:
    await driver.run(body)
    first = await driver.one("a")
    await driver.fail(first)
    second = await driver.one("a")
    assert (first.id, first.worker_id, second.attempt) == (second.id, second.worker_id, 2)
    await lost(driver, driver.complete, first, attempt=1)
    await lost(driver, driver.fail, first, attempt=1)
    await lost(driver, driver.heartbeat, first, attempt=1)
    await driver.complete(second, attempt=2)
    await lost(driver, driver.complete, first, attempt=1)
    await unchanged(driver, driver.complete, second, attempt=2)


async def test_the_attempt_grows_with_each_claim_and_direct_dispatch(make_driver: MakeDriver, body: Json) -> None:
    driver = make_driver(services=True)
    instance = await driver.run(body)
    for attempt in (1, 2):
        job = await driver.one("a")
        assert job.attempt == attempt
        await driver.fail(job)
    job = await driver.one("a")
    got: list[Job] = []

    async def wait_for_it() -> None:
        got.extend(await driver.poll("a", worker="parked", wait=10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_it)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await driver.fail(job)
    assert [(each.attempt, each.worker_id, each.retries_remaining) for each in got] == [(4, "parked", 0)]
    assert len(await driver.history(instance)) == 1


async def test_a_released_job_spends_nothing_and_has_no_holder(driver: Driver, body: Json) -> None:
    instance = await driver.run(body)
    job = await driver.one("a")
    (outcome,) = await driver.engine.jobs.release_many([JobRef(job_id=job.id, worker_id="w1", attempt=1)])
    assert outcome.outcome == "ok"
    assert driver.rows("SELECT state, attempt, failures, expiries, claimed_by FROM token") == [(0, 1, 0, 0, None)]
    await lost(driver, driver.complete, job)
    again = await driver.one("a", worker="w2")
    assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, 3)
    await driver.complete(again)
    (done, *_) = await driver.history(instance)
    assert [(each.attempt, each.status) for each in done.attempts or ()] == [(1, "RELEASED"), (2, "COMPLETED")]


@pytest.mark.parametrize("changes", [{"worker_id": "other"}, {"attempt": 2}])
async def test_only_the_holder_gives_a_job_back(driver: Driver, body: Json, changes: dict[str, Any]) -> None:
    await driver.run(body)
    job = await driver.one("a")
    before = driver.snapshot()
    release = JobRef(**{"job_id": job.id, "worker_id": "w1", **changes})  # pyright: ignore[reportArgumentType] - a stand-in
    (outcome,) = await driver.engine.jobs.release_many([release])
    assert outcome.outcome == "lease-lost"
    assert driver.snapshot() == before


# -- jobs dispatched through Kafka


async def dispatched(driver: Driver, body: Json) -> str:
    """A job as the relay leaves it: dispatched, without a holder."""
    await driver.run(body)
    driver.rows("DELETE FROM ready RETURNING seq")
    ((instance, token, seq),) = driver.rows(
        "UPDATE token SET state = 5, attempt = 1, claimed_at = penstock_now(),"
        " lease_until = penstock_now() + interval '1800 s' RETURNING instance_id, id, seq"
    )
    return f"{instance:x}-{token:x}-{seq:x}"


def held(job_id: str, worker: str) -> Any:
    return type("DispatchedJob", (), {"id": job_id, "worker_id": worker})()


async def test_the_first_worker_to_complete_a_dispatched_job_wins(driver: Driver, body: Json) -> None:
    job = await dispatched(driver, body)
    await lost(driver, driver.complete, held(job, "a"), attempt=2)
    await driver.complete(held(job, "a"), {"by": "a"})
    await unchanged(driver, driver.complete, held(job, "b"), variables={"by": "b"})
    instance = job.split("-")[0]
    assert await driver.variables(instance) == {"by": "a"}
    assert (await driver.history(instance))[0].attempts[0].worker == "a"


async def test_who_heartbeats_a_dispatched_job_becomes_its_holder(driver: Driver, body: Json) -> None:
    job = await dispatched(driver, body)
    await driver.heartbeat(held(job, "a"), lease_seconds=60)
    await lost(driver, driver.complete, held(job, "b"))
    await driver.complete(held(job, "a"))


async def test_any_worker_may_fail_a_dispatched_job(driver: Driver, body: Json) -> None:
    job = await dispatched(driver, body)
    await driver.fail(held(job, "a"), "boom")
    assert driver.rows("SELECT state, failures FROM token") == [(0, 1)]


# -- batch calls


async def test_each_item_of_a_batch_has_its_own_outcome(driver: Driver, body: Json) -> None:
    await driver.upload(body)
    names = ["good", "repeated", "stale", "cancelled", "failed", "wrong attempt"]
    jobs: dict[str, Job] = {}
    for name in names:
        await driver.start("flow", {"name": name})
        jobs[name] = await driver.one("a")
    await driver.complete(jobs["repeated"])
    driver.rows("UPDATE token SET claimed_by = 'other' WHERE instance_id = %s RETURNING 1", number_of(jobs["stale"]))
    await driver.cancel(jobs["cancelled"].instance_id)
    await driver.fail(jobs["failed"], retryable=False)
    requests = [
        completion(jobs["good"], {"done": True}),
        completion(jobs["repeated"], {"done": True}),
        completion(jobs["stale"], {"done": True}),
        completion(jobs["cancelled"], {"done": True}),
        completion(jobs["failed"], {"done": True}),
        completion(jobs["wrong attempt"], {"done": True}, attempt=7),
        completion(jobs["good"], job_id="1-1-1"),
        completion(jobs["good"], job_id="nonsense"),
        completion(jobs["good"], worker_id=""),
        completion(jobs["good"], worker_id="x\0"),
    ]
    outcomes = await driver.engine.jobs.complete_many(requests)
    assert [each.job_id for each in outcomes] == [each.job_id for each in requests]
    assert [each.outcome for each in outcomes] == [
        "ok",
        "already-completed",
        "lease-lost",
        "cancelled",
        "cancelled",
        "lease-lost",
        "not-found",
        "not-found",
        "invalid",
        "invalid",
    ]
    assert await driver.open_steps(jobs["good"].instance_id) == ["b"]
    assert (await driver.variables(jobs["good"].instance_id))["done"] is True


async def test_a_job_twice_in_one_batch_is_completed_once(driver: Driver, body: Json) -> None:
    instance = await driver.run(body)
    job = await driver.one("a")
    outcomes = await driver.engine.jobs.complete_many([completion(job, {"n": n}) for n in range(3)])
    assert sorted(each.outcome for each in outcomes) == ["already-completed", "already-completed", "ok"]
    (applied,) = [n for n, each in enumerate(outcomes) if each.outcome == "ok"]
    assert await driver.variables(instance) == {"n": applied}


def number_of(job: Job) -> int:
    return int(job.instance_id, 16)


async def test_each_failure_of_a_batch_has_its_own_outcome(driver: Driver, body: Json) -> None:
    await driver.upload(body)
    jobs = []
    for _ in range(4):
        await driver.start("flow")
        jobs.append(await driver.one("a"))
    good, repeated, stale, cancelled = jobs
    await driver.fail(repeated)
    driver.rows("UPDATE token SET claimed_by = 'other' WHERE instance_id = %s RETURNING 1", number_of(stale))
    await driver.cancel(cancelled.instance_id)

    def failure(job: Job, **changes: Any) -> Failure:
        fields = {"job_id": job.id, "worker_id": "w1", "retryable": True}
        return Failure(**{**fields, **changes})  # pyright: ignore[reportArgumentType] - a stand-in

    outcomes = await driver.engine.jobs.fail_many(
        [
            failure(good),
            failure(repeated),
            failure(stale),
            failure(stale, attempt=1),
            failure(cancelled),
            failure(good, job_id="1-1-1"),
            failure(good, worker_id=""),
        ]
    )
    expected = ["ok", "already-completed", "ok", "lease-lost", "cancelled", "not-found", "invalid"]
    assert [each.outcome for each in outcomes] == expected


async def test_each_heartbeat_of_a_batch_has_its_own_outcome(driver: Driver, body: Json) -> None:
    await driver.upload(body)
    jobs = []
    for _ in range(3):
        await driver.start("flow")
        jobs.append(await driver.one("a"))
    _, done, cancelled = jobs
    await driver.complete(done)
    await driver.cancel(cancelled.instance_id)
    beats = [Heartbeat(job_id=job.id, worker_id="w1") for job in jobs]
    answers = await driver.engine.jobs.heartbeat_many([*beats, Heartbeat(job_id="1-1-1", worker_id="w1")])
    assert isinstance(answers[0], Lease)
    assert [getattr(each, "outcome", None) for each in answers] == [None, "lease-lost", "cancelled", "not-found"]


async def test_an_unstorable_value_refuses_only_its_item(driver: Driver, body: Json) -> None:
    """The adapters check variables; here something slips through, and the database says no."""
    await driver.upload(body)
    jobs = []
    for _ in range(5):
        await driver.start("flow")
        jobs.append(await driver.one("a"))
    requests = [completion(job, {"ok": True}) for job in jobs]
    requests[2] = Completion(job_id=jobs[2].id, worker_id="w1", variables=b'{"nul":"\\u0000"}')
    outcomes = await driver.engine.jobs.complete_many(requests)
    assert [each.outcome for each in outcomes] == ["ok", "ok", "invalid", "ok", "ok"]
    assert await driver.open_steps(jobs[2].instance_id) == ["a"]
    await driver.complete(jobs[2])


@pytest.mark.parametrize("attempt", [0, -1, 2**31, 2**70])
async def test_an_attempt_that_nobody_can_have_is_a_lost_lease(driver: Driver, body: Json, attempt: int) -> None:
    await driver.run(body)
    job = await driver.one("a")
    await lost(driver, driver.complete, job, attempt=attempt)
    await lost(driver, driver.fail, job, attempt=attempt)
    await lost(driver, driver.heartbeat, job, attempt=attempt)


async def test_workers_hear_of_a_cancel_at_the_next_heartbeat(driver: Driver, body: Json) -> None:
    instance = await driver.run(body)
    job = await driver.one("a")
    await driver.cancel(instance)
    before = driver.snapshot()
    with pytest.raises(JobCancelled):
        await driver.heartbeat(job)
    await driver.complete(job)
    await driver.fail(job)
    with pytest.raises(JobCancelled):
        await driver.complete(job, attempt=1)
    assert driver.snapshot() == before


async def test_an_interrupted_step_tells_its_worker(driver: Driver) -> None:
    await driver.run(WIDE)
    job = await driver.one("a")
    assert await driver.due(3601) == 1
    before = driver.snapshot()
    with pytest.raises(JobCancelled):
        await driver.heartbeat(job)
    with pytest.raises(JobCancelled):
        await driver.complete(job, attempt=1)
    await driver.complete(job, {"late": True})
    await driver.fail(job, retryable=False)
    assert driver.snapshot() == before
    assert await driver.open_steps(job.instance_id) == ["late"]


@pytest.mark.parametrize("worker", ["", "x" * 257, "a\0b", "\ud800"])
async def test_a_worker_id_that_is_none_is_refused(driver: Driver, body: Json, worker: str) -> None:
    await driver.run(body)
    job = await driver.one("a")
    before = driver.snapshot()
    for action in (driver.complete, driver.fail, driver.heartbeat):
        with pytest.raises(BadRequest):
            await action(job, worker_id=worker)
    assert driver.snapshot() == before


async def test_the_ways_through_the_queues_agree(driver: Driver) -> None:
    """The same calls on the narrow and the wide definition give the same answers and the same paths."""
    seen = []
    for body in (NARROW, WIDE):
        stale, fresh = await taken_over(driver, {**body, "id": f"flow-{len(seen)}"})
        answers = []
        for action, job in [(driver.complete, stale), (driver.heartbeat, fresh), (driver.complete, fresh)] * 2:
            try:
                await action(job)
            except PenstockError as error:
                answers.append(error.code)
            else:
                answers.append("ok")
        seen.append((answers, await driver.path(fresh.instance_id)))
    assert seen[0] == seen[1]


async def test_two_user_tasks_at_once_one_is_done(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    instance = await engines[0].run(definition(user("u", "u2"), user("u2"), end()))
    answers = []

    async def finish(driver: Driver) -> None:
        try:
            await driver.finish_task(instance, "u")
            answers.append("ok")
        except PenstockError as error:
            answers.append(error.code)

    async with trio.open_nursery() as nursery:
        for engine in engines * 5:
            nursery.start_soon(finish, engine)
    assert sorted(answers) == ["not-found"] * 9 + ["ok"]
    assert await engines[0].open_steps(instance) == ["u2"]
