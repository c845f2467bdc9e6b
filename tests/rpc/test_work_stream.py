"""``penstock.v1.Worker``: batches, and the Work stream on a real engine and database."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import psycopg
import pytest
import trio
from grpclib.const import Status

from penstock.engine.jobs import streams
from penstock.loop.offload import INLINE_MAX_BYTES
from penstock.rpc import work_stream
from penstock.testing.definitions import fork, linear
from penstock.wire import penstock_v1 as w
from penstock.wire.model import StartRequest
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rpc.served import WORKER, CallFailed, Served, Work, served
from tests.waiting import wait_until

__all__ = ["make_driver"]  # pytest finds the fixture here
OK = "ok"


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(services=True, lease_min_seconds=1)


@pytest.fixture
async def grpc(driver: Driver) -> AsyncGenerator[Served]:
    with trio.fail_after(60):
        async with served(driver.engine) as run:
            yield run


def completions(jobs: list[w.Job], **variables: object) -> list[w.Completion]:
    return [w.Completion(job.id, job.attempt, json.dumps(variables).encode()) for job in jobs]


async def wait_queue(driver: Driver, count: int) -> None:
    """So many jobs are in the queue."""

    async def found() -> bool:
        return driver.rows("SELECT count(*) FROM ready") == [(count,)]

    await wait_until(found)


# -- credit and jobs


async def test_a_new_job_is_pushed_with_every_field(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1, retry_count=2))
    work = await Work.open(grpc.client, "mine", lease=60, work=1)
    await wait_parked(grpc, 1)
    started = await driver.start("linear", {"big": 2**60 + 1})
    (job,) = await work.wait_jobs(1)
    assert (job.instance_id, job.job_type, job.step_id) == (started.id, "work", "task-1")
    assert (job.attempt, job.retries_remaining, job.checkpoint) == (1, 2, None)
    assert json.loads(job.variables) == {"big": 2**60 + 1}  # pyright: ignore[reportArgumentType] - a stand-in
    assert job.created_at is not None
    assert job.lock_expires_at is not None
    assert 59 <= (job.lock_expires_at - job.created_at).total_seconds() <= 61
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]  # it never was in the queue


async def wait_parked(grpc: Served, count: int) -> None:
    async def parked() -> bool:
        return len(grpc.engine.polls.waiters) == count

    await wait_until(parked)


async def test_waiting_jobs_come_at_once_within_the_credit(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    started = [(await driver.start("linear")).id for _ in range(7)]
    work = await Work.open(grpc.client, work=3)
    first = await work.wait_jobs(3)
    assert [job.instance_id for job in first] == started[:3]
    assert len(grpc.engine.polls.waiters) == 0  # without credit nobody waits
    assert driver.rows("SELECT count(*) FROM ready") == [(4,)]
    await work.grant("work", 2)
    await work.wait_jobs(2)
    await work.send(completions=completions(first))
    assert [done.outcome for done in await work.wait_outcomes(3)] == [OK] * 3
    assert work.jobs == []  # a completion is no credit
    assert driver.rows("SELECT count(*) FROM ready") == [(2,)]
    await work.grant("work", 100)
    await work.wait_jobs(2)


async def test_credit_is_by_job_type(driver: Driver, grpc: Served) -> None:
    for name in ("a", "b", "c"):
        await driver.upload(linear(1, definition_id=name, job_type=name))
        for _ in range(3):
            await driver.start(name)
    work = await Work.open(grpc.client, a=1, b=2)
    jobs = await work.wait_jobs(3)
    assert sorted(job.job_type for job in jobs) == ["a", "b", "b"]
    await wait_queue(driver, 6)


async def test_withdrawn_credit_is_answered_with_what_is_left(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    work = await Work.open(grpc.client, work=5)
    await work.grant("work", -2)
    await work.next()
    assert work.credits == [w.Credit("work", 3)]
    await work.grant("work", -100)
    await work.next()
    assert work.credits[1:] == [w.Credit("work", 0)]
    await driver.start("linear")
    await wait_queue(driver, 1)
    assert work.jobs == []


async def test_streams_and_polls_share_within_their_bounds(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    works = [await Work.open(grpc.client, f"w{number}", work=10) for number in range(3)]
    for _ in range(30):
        await driver.start("linear")
    found = [job.id for work in works for job in await work.wait_jobs(10)]
    assert len(set(found)) == 30
    await driver.start("linear")
    assert len(await driver.poll("work")) == 1


async def test_a_retry_comes_back_on_the_stream(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1, retry_count=1))
    await driver.start("linear")
    work = await Work.open(grpc.client, work=2)
    (job,) = await work.wait_jobs(1)
    await work.send(failures=[w.Failure(job.id, job.attempt, retryable=True, error_message="bo\0om")])
    assert (await work.wait_outcomes(1))[0].outcome == OK
    (again,) = await work.wait_jobs(1)
    assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, 0)


# -- results


async def test_results_of_a_message_are_answered_in_order(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1, retry_count=1))
    for _ in range(4):
        await driver.start("linear")
    work = await Work.open(grpc.client, work=4)
    a, b, c, d = await work.wait_jobs(4)
    await work.send(
        releases=[w.JobRef(d.id, d.attempt)],
        failures=[w.Failure(c.id, c.attempt, retryable=True)],
        completions=[
            w.Completion(a.id, a.attempt, b'{"x":1}'),
            w.Completion(b.id, 9, b"{}"),
            w.Completion(b.id, b.attempt, b"[1]"),
            w.Completion("nonsense", 1),
            w.Completion(a.id, a.attempt),
            w.Completion("", 1),
        ],
    )
    outcomes = await work.wait_outcomes(8)
    assert [(item.job_id, item.attempt) for item in outcomes] == [
        (a.id, 1), (b.id, 9), (b.id, 1), ("nonsense", 1), (a.id, 1), ("", 1), (c.id, 1), (d.id, 1),
    ]  # fmt: skip
    assert [item.outcome for item in outcomes] == [
        "ok", "lease-lost", "invalid", "not-found", "already-completed", "invalid", "ok", "ok",
    ]  # fmt: skip
    assert "variables" in (outcomes[2].reason or "")
    assert (await driver.variables(a.instance_id)) == {"x": 1}


async def test_outcomes_come_in_the_order_of_the_messages(driver: Driver, grpc: Served) -> None:
    await driver.upload(fork(1, 1, job_type="wide"))
    await driver.upload(linear(1))
    for _ in range(5):
        await driver.start("fork")
        await driver.start("linear")
    work = await Work.open(grpc.client, work=5, wide=10)
    jobs = await work.wait_jobs(15)
    for job in jobs:
        await work.send(completions=completions([job]))
    assert [done.job_id for done in await work.wait_outcomes(15)] == [job.id for job in jobs]


async def test_large_results_are_answered_beside_small_ones(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    work = await Work.open(grpc.client, work=3)
    small, large, last = await work.wait_jobs(3)
    await work.send(completions=completions([small, large], text="x" * 2 * INLINE_MAX_BYTES))
    await work.send(completions=completions([last]))
    outcomes = await work.wait_outcomes(3)
    assert [(item.job_id, item.outcome) for item in outcomes] == [(small.id, OK), (large.id, OK), (last.id, OK)]
    assert (await driver.variables(large.instance_id))["text"] == "x" * 2 * INLINE_MAX_BYTES


async def test_results_of_a_cancelled_stream_are_applied_once(driver: Driver, grpc: Served) -> None:
    """They wait for another one's lock when nobody waits for their outcome any more."""
    await driver.upload(linear(2))
    await driver.start("linear")
    work = await Work.open(grpc.client, work=1)
    (job,) = await work.wait_jobs(1)

    async def is_under_way() -> bool:
        return driver.waiting_for_locks() > 0

    with psycopg.connect(driver.dsn) as other:
        other.execute("SELECT FROM token FOR UPDATE")
        await work.send(completions=completions([job], done=1))
        await wait_until(is_under_way)
        await work.client.reset(work.stream_id)
        await wait_parked(grpc, 0)
    after = await driver.one("work")
    assert (after.instance_id, after.step_id, after.attempt) == (job.instance_id, "task-2", 1)
    assert await driver.variables(job.instance_id) == {"done": 1}


async def test_half_closing_answers_what_was_sent_and_ends_with_ok(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    work = await Work.open(grpc.client, work=3)
    jobs = await work.wait_jobs(3)
    await work.send(completions=completions(jobs[:2]), end=True)
    await work.wait_outcomes(2)
    assert (await work.ended())[0] is Status.OK
    await wait_queue(driver, 1)  # the third, unanswered
    assert (await driver.poll("work"))[0].id == jobs[2].id


async def test_heartbeats_are_answered_and_tell_of_lost_leases_and_cancellations(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(2):
        await driver.start("linear")
    work = await Work.open(grpc.client, work=2)
    kept, gone = await work.wait_jobs(2)
    await driver.cancel(gone.instance_id)
    await work.send(
        heartbeats=[
            w.Heartbeat(kept.id, kept.attempt, lease_seconds=100, checkpoint=b'{"at":7}'),
            w.Heartbeat(kept.id, 5),
            w.Heartbeat(gone.id, gone.attempt),
            w.Heartbeat(kept.id, kept.attempt, checkpoint=b"not json"),
        ]
    )
    while len(work.heartbeats) < 4:
        await work.next()
    assert [beat.outcome for beat in work.heartbeats] == [
        OK, "lease-lost", "cancelled", "invalid",
    ]  # fmt: skip
    assert kept.lock_expires_at is not None
    assert work.heartbeats[0].lock_expires_at is not None
    assert (work.heartbeats[0].lock_expires_at - kept.lock_expires_at).total_seconds() > 60


async def test_a_cancellation_is_pushed(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    work = await Work.open(grpc.client, work=1)
    (job,) = await work.wait_jobs(1)
    await driver.cancel(job.instance_id)
    while not work.cancellations:
        await work.next()
    assert [(item.job_id, item.attempt) for item in work.cancellations] == [(job.id, 1)]
    assert work.losses == []


async def test_a_lost_lease_is_pushed(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    work = await Work.open(grpc.client, lease=5, work=1)
    (job,) = await work.wait_jobs(1)
    await driver.expire(6)
    grpc.engine.polls.leases.take_due(trio.current_time() + 10, 10)  # as the lease service does
    while not work.losses:
        await work.next()
    assert [(item.job_id, item.attempt) for item in work.losses] == [(job.id, 1)]
    await work.send(completions=completions([job]))  # nobody took it meanwhile: the work is not lost
    assert (await work.wait_outcomes(1))[0].outcome == OK


# -- the end of a stream


async def test_a_broken_stream_gives_its_unanswered_jobs_back_at_once(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    async with grpc.connect() as client:
        work = await Work.open(client, "gone", work=5)
        jobs = await work.wait_jobs(3)
        await work.send(completions=completions(jobs[:1]))
        await work.wait_outcomes(1)
        await wait_parked(grpc, 1)
    await wait_queue(driver, 2)
    await wait_parked(grpc, 0)
    again = await driver.poll("work")
    assert [(job.id, job.attempt) for job in again] == [(job.id, 2) for job in jobs[1:]]
    assert [job.retries_remaining for job in again] == [0, 0]


async def test_a_cancelled_stream_gives_its_jobs_to_those_who_wait(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    one = await Work.open(grpc.client, "one", work=3)
    await one.wait_jobs(3)
    two = await Work.open(grpc.client, "two", work=3)
    await one.client.reset(one.stream_id)
    assert {job.attempt for job in await two.wait_jobs(3)} == {2}


async def test_hundreds_of_broken_streams_leave_no_lease_behind(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(5):
        await driver.start("linear")

    async def rounds(number: int) -> None:
        for turn in range(40):
            work = await Work.open(grpc.client, f"w{number}", work=1 + turn % 3)
            with trio.move_on_after(0.002 * (turn % 5)):
                await work.wait_jobs(1)
            await grpc.client.reset(work.stream_id)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(rounds, number)

    async def all_ended() -> bool:
        return grpc.server.statistics().calls_running == 0

    await wait_until(all_ended)  # before that, one that is about to end may still take a job
    await wait_queue(driver, 5)
    await wait_parked(grpc, 0)
    assert len(await driver.poll("work", n=10)) == 5


async def test_a_drain_takes_results_and_pushes_nothing(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    work = await Work.open(grpc.client, work=5)
    (job,) = await work.wait_jobs(1)
    async with trio.open_nursery() as nursery:
        grpc.engine.drain()
        nursery.start_soon(grpc.server.drain, 20.0)
        await wait_parked(grpc, 0)
        await driver.start("linear")
        await wait_queue(driver, 1)
        await work.send(completions=completions([job]))
        assert (await work.wait_outcomes(1))[0].outcome == OK
        assert (await work.ended())[0] is Status.UNAVAILABLE
    assert work.jobs == []


async def test_a_drain_does_not_wait_for_ever(driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_stream, "DRAIN_RESULTS_S", 0.2)
    await driver.upload(linear(1))
    await driver.start("linear")
    work = await Work.open(grpc.client, work=5)
    await work.wait_jobs(1)
    grpc.engine.drain()
    await grpc.server.drain(20.0)
    assert (await work.ended())[0] is Status.UNAVAILABLE
    await wait_queue(driver, 1)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (w.WorkRequest(), "worker_id"),
        (w.WorkRequest(worker_id="w\0"), "worker_id"),
        (w.WorkRequest(worker_id="w", credits=[w.Credit("", 1)]), "job_type"),
        (w.WorkRequest(worker_id="w", credits=[w.Credit("t" * 1000, 1)]), "credits"),
        (w.WorkRequest(worker_id="w", credits=[w.Credit(f"t{n}", 1) for n in range(1001)]), "job types"),
    ],
)
async def test_what_can_not_be_is_an_invalid_argument(grpc: Served, request_: w.WorkRequest, reason: str) -> None:
    work = Work(grpc.client, await grpc.client.open(WORKER + "Work"))
    await work.send(**{name: getattr(request_, name) for name in ("worker_id", "credits")})
    status, text = await work.ended()
    assert status is Status.INVALID_ARGUMENT
    assert reason in text


async def test_a_bad_message_ends_the_stream_after_earlier_answers(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    work = await Work.open(grpc.client, work=1)
    jobs = await work.wait_jobs(1)
    await work.send(completions=completions(jobs))
    await work.send(credits=[w.Credit("", 1)])
    assert (await work.wait_outcomes(1))[0].outcome == OK
    assert (await work.ended())[0] is Status.INVALID_ARGUMENT


# -- back-pressure


async def test_a_worker_that_does_not_read_holds_bounded_leases(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window is full after one message of 60 kB; what is leased beyond is bounded by the buffer."""
    monkeypatch.setattr(streams, "BUFFER_MAX_BYTES", 100_000)
    monkeypatch.setattr(work_stream, "MESSAGE_MAX_BYTES", 60_000)
    await driver.upload(linear(1))
    async with grpc.connect(reads=False) as client:
        work = await Work.open(client, work=1000)
        await wait_parked(grpc, 1)
        for _ in range(30):
            await driver.start("linear", {"x": "y" * 20_000})
        await wait_parked(grpc, 1)
        leased = driver.rows("SELECT count(*) FROM token WHERE state = 1")[0][0]
        assert 5 <= leased < 20
        assert len(work.jobs) == 0
    await wait_queue(driver, 30)


async def test_results_are_not_read_beyond_a_bound(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that sends and never reads fills its own window, not the engine's memory."""
    monkeypatch.setattr(work_stream, "RESULTS_MAX_COUNT", 100)
    async with grpc.connect(reads=False) as client:
        work = await Work.open(client)
        many = [w.Completion("1f-1-1" + "0" * 200, 1, b'{"x":"%s"}' % (b"y" * 1000)) for _ in range(100)]
        with trio.move_on_after(3) as patience:
            for _ in range(100):
                await work.send(completions=many)
        assert patience.cancelled_caught
    await driver.upload(linear(1))  # the engine serves others


# -- batch calls


async def test_batches_answer_each_item(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1, retry_count=1))
    items = [
        StartRequest("linear", variables=b'{"n":12345678901234567890}', business_key="b", idempotency_key="k"),
        StartRequest("linear", variables=b'{"n":12345678901234567890}', business_key="b", idempotency_key="k"),
        StartRequest("nowhere"),
        StartRequest("linear", variables=b"[]"),
        StartRequest(""),
        StartRequest("linear", definition_version=7),
        StartRequest("linear"),
        StartRequest("linear"),
    ]
    results = (
        await grpc.call(WORKER + "StartInstances", w.StartInstancesRequest(items), w.StartInstancesResponse)
    ).results
    assert [result.error for result in results] == [
        None, None, "not-found", "bad-request", "bad-request", "not-found", None, None,
    ]  # fmt: skip
    first, second = results[0].instance, results[1].instance
    assert first is not None
    assert first == second
    assert (first.definition_version, first.status, first.current_step_ids) == (1, "ACTIVE", ["task-1"])
    assert (first.business_key, json.loads(first.variables)) == ("b", {"n": 12345678901234567890})  # pyright: ignore[reportArgumentType] - a stand-in

    jobs = await driver.poll("work", worker="w")
    assert len(jobs) == 3
    beats = (
        await grpc.call(
            WORKER + "HeartbeatJobs",
            w.HeartbeatJobsRequest("w", [w.Heartbeat(jobs[0].id, 1, 60), w.Heartbeat(jobs[1].id, 2)]),
            w.HeartbeatJobsResponse,
        )
    ).results
    assert [beat.outcome for beat in beats] == [OK, "lease-lost"]
    done = (
        await grpc.call(
            WORKER + "CompleteJobs",
            w.CompleteJobsRequest("w", [w.Completion(jobs[0].id, 1), w.Completion("x")]),
            w.CompleteJobsResponse,
        )
    ).results
    assert [item.outcome for item in done] == [OK, "not-found"]
    failed = (
        await grpc.call(
            WORKER + "FailJobs",
            w.FailJobsRequest("w", [w.Failure(jobs[1].id, 1, retryable=True, retry_after_s=60.0)]),
            w.FailJobsResponse,
        )
    ).results
    assert [item.outcome for item in failed] == [OK]
    freed = (
        await grpc.call(
            WORKER + "ReleaseJobs",
            w.ReleaseJobsRequest("w", [w.JobRef(jobs[2].id, 1), w.JobRef(jobs[0].id, 1)]),
            w.ReleaseJobsResponse,
        )
    ).results
    assert [item.outcome for item in freed] == [OK, "lease-lost"]
    assert [job.id for job in await driver.poll("work")] == [jobs[2].id]  # the failed one waits for its minute


async def test_batches_need_a_worker(grpc: Served) -> None:
    for method, request in (
        ("CompleteJobs", w.CompleteJobsRequest()),
        ("FailJobs", w.FailJobsRequest()),
        ("ReleaseJobs", w.ReleaseJobsRequest()),
        ("HeartbeatJobs", w.HeartbeatJobsRequest()),
    ):
        with pytest.raises(CallFailed) as failed:
            await grpc.call(WORKER + method, request, w.CompleteJobsResponse)
        assert failed.value.status is Status.INVALID_ARGUMENT
