"""Leases: what heartbeats extend and keep, what a step's timeout bounds, what expiry does and when it is enough."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from penstock.engine.advance.commands import DeadLetterCommand
from penstock.engine.requests import ids
from penstock.errors import LeaseLost
from penstock.store.rows import jobs as job_store
from penstock.store.rows.jobs import JobKey
from penstock.testing.definitions import Json, definition, end
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import joining, parallel, task

ONE = definition(task("a", retryCount=1), end())
EXACT = 0.001
"""Timestamps are microseconds."""


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    """On a clock that only the test moves."""
    driver = make_driver()
    driver.clock.stop()
    return driver


async def left(driver: Driver) -> float:
    """Seconds until the end of the only lease."""
    return float(
        driver.rows("SELECT extract(epoch FROM lease_until - penstock_now()) FROM token WHERE state = 1")[0][0]
    )


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 30), (-5, 30), (1, 5), (5, 5), (300, 300), (3600, 3600), (10**9, 3600)]
)
async def test_the_lease_that_was_asked_for_is_given(driver: Driver, asked: int, given: int) -> None:
    await driver.run(ONE)
    job = await driver.one("a", lease=asked)
    assert (job.lock_expires_at - job.locked_at).total_seconds() == pytest.approx(given, abs=EXACT)  # pyright: ignore[reportOperatorIssue] - they are there
    assert await left(driver) == pytest.approx(given, abs=EXACT)
    await driver.heartbeat(job, lease_seconds=asked)
    assert await left(driver) == pytest.approx(given, abs=EXACT)


async def test_a_lease_is_not_over_before_its_time(driver: Driver) -> None:
    await driver.run(ONE)
    job = await driver.one("a", lease=60)
    assert await driver.expire(58) == 0
    await driver.heartbeat(job, lease_seconds=60)
    assert await driver.expire(58) == 0
    assert await driver.expire(3) == 1


async def test_expiry_spends_no_retry(driver: Driver) -> None:
    await driver.run(ONE)
    for attempt in range(1, 10):
        job = await driver.one("a")
        assert (job.attempt, job.retries_remaining) == (attempt, 1)
        await driver.expire(31)
    await driver.complete(await driver.one("a"))


async def test_a_job_whose_lease_expires_too_often_is_dead_lettered(driver: Driver) -> None:
    instance = await driver.run(ONE)
    jobs: list[Job] = []
    for _ in range(10):
        jobs.append(await driver.one("a", worker="lazy"))
        await driver.expire(31)
    view = await driver.view(instance)
    assert (view.status, view.failure_reason) == ("FAILED", "lease expired 10 times")
    (item,) = await driver.history(instance)
    assert (item.status, item.failure_reason) == ("FAILED", "lease expired 10 times")
    assert [(each.attempt, each.status) for each in item.attempts or ()] == [
        *((n, "LEASE_EXPIRED") for n in range(1, 10)),
        (10, "FAILED"),
    ]
    (dead,) = (await driver.engine.jobs.failed(0, 10)).items
    assert (dead.id, dead.job_type, dead.instance_id, dead.step_id) == (jobs[-1].id, "a", instance, "a")
    assert (dead.reason, dead.worker_id) == ("lease expired 10 times", "lazy")
    await driver.retry(instance)
    assert (await driver.engine.jobs.failed(0, 10)).items == []
    assert (await driver.one("a")).attempt == 1


async def test_only_a_new_execution_counts_expiries_anew(driver: Driver) -> None:
    """A failure in between does not make a job immortal."""
    await driver.run(definition(task("a", retryCount=100), end()))
    for n in range(9):
        await driver.one("a")
        await driver.expire(31)
        await driver.fail(await driver.one("a", worker=f"w{n}"))
    assert driver.rows("SELECT expiries, failures FROM token") == [(9, 9)]
    await driver.one("a")
    await driver.expire(31)
    assert driver.rows("SELECT count(*) FROM token") == [(0,)]


async def almost_dead(driver: Driver) -> tuple[Job, job_store.Expired]:
    """A job whose last lease has ended, as the lease service sees it, before it acts on that."""
    await driver.run(ONE)
    job = await driver.one("a")
    driver.clock.advance(31)
    leased = driver.rows("SELECT id, seq, attempt FROM token WHERE state = 1")
    before = driver.snapshot()
    async with driver.engine.database.connection() as connection:
        (ended,) = await job_store.expire(connection, leased, 1)
    assert ended.dead
    assert driver.snapshot() == before
    return job, ended


@pytest.mark.parametrize("rescue", ["heartbeat", "complete", "fail"])
async def test_a_late_result_is_faster_than_the_dead_letter(driver: Driver, rescue: str) -> None:
    job, ended = await almost_dead(driver)
    await getattr(driver, rescue)(job)
    before = driver.snapshot()
    await driver.engine.full_path.submit(
        DeadLetterCommand(JobKey(ended.instance, ended.token, ended.seq), ended.attempt, 1)
    )
    assert driver.snapshot() == before


async def test_the_next_look_does_an_undone_dead_letter(driver: Driver) -> None:
    await almost_dead(driver)
    assert await driver.expire(limit=1) == 1
    assert driver.rows("SELECT status, failure FROM instance") == [(2, "lease expired 1 times")]


async def test_expiry_is_one_statement_and_skips_locked_rows(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(ONE)
    for _ in range(5):
        await driver.start("test")
    jobs = await driver.poll("a", n=5)
    driver.clock.advance(31)
    other = make_driver()
    async with other.engine.database.connection() as connection, connection.transaction():
        await connection.fetch(b"SELECT 1 FROM token WHERE seq = $1 FOR UPDATE", (int(jobs[0].id.split("-")[2], 16),))
        with trio.fail_after(20):
            assert await driver.expire() == 4
    assert await driver.expire() == 1
    assert [job.id for job in await driver.poll("a", n=5)] == [job.id for job in (*jobs[1:], jobs[0])]


# -- a step's timeout


LIMITED = definition(task("a", timeout="PT1M"), end())


async def test_heartbeats_extend_a_lease_only_up_to_the_steps_timeout(driver: Driver) -> None:
    await driver.run(LIMITED)
    driver.clock.advance(3600)  # waiting in the queue does not count
    job = await driver.one("a", lease=20)
    assert await left(driver) == pytest.approx(20, abs=EXACT)
    driver.clock.advance(15)
    await driver.heartbeat(job, lease_seconds=20)
    assert await left(driver) == pytest.approx(20, abs=EXACT)
    driver.clock.advance(15)
    answer = await driver.heartbeat(job, lease_seconds=3600)
    assert (answer.lock_expires_at - job.locked_at).total_seconds() == pytest.approx(60, abs=EXACT)  # pyright: ignore[reportOperatorIssue] - they are there
    driver.clock.advance(31)
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.heartbeat(job)
    assert driver.snapshot() == before
    assert await driver.expire() == 1
    again = await driver.one("a", lease=20)
    assert (again.attempt, again.id) == (2, job.id)
    assert await left(driver) == pytest.approx(20, abs=EXACT)


@pytest.mark.parametrize(("timeout", "lease", "asked", "length"), [("PT1M", 20, 3600, 60), ("PT2H", 600, 10, 600)])
async def test_the_engine_watches_the_end_that_a_heartbeat_set(
    driver: Driver, timeout: str, lease: int, asked: int, length: int
) -> None:
    """A job with a time limit came back as late as its worker's last wish for more was long."""
    await driver.run(definition(task("a", timeout=timeout), end()))
    before = trio.current_time()
    job = await driver.one("a", lease=lease)
    await driver.heartbeat(job, lease_seconds=asked)
    after = trio.current_time()
    key = ids.read_job(job.id)
    watched = driver.engine.polls.leases.find(key.token, key.seq)
    assert watched is not None
    assert before + length - EXACT <= watched.ends_at <= after + length + EXACT


async def test_no_lease_is_longer_than_the_steps_timeout(driver: Driver) -> None:
    await driver.run(LIMITED)
    await driver.one("a", lease=3600)
    assert await left(driver) == pytest.approx(60, abs=EXACT)


async def test_a_direct_dispatch_is_bound_by_the_timeout_too(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    driver.clock.stop()
    await driver.upload(LIMITED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: driver.one("a", lease=3600))
        await parked(driver)
        await driver.start("test")
    assert await left(driver) == pytest.approx(60, abs=EXACT)


async def parked(driver: Driver) -> None:
    while not len(driver.engine.polls.waiters):
        await trio.testing.wait_all_tasks_blocked()


# -- checkpoints and progress


async def test_a_checkpoint_is_handed_to_the_next_attempt(driver: Driver) -> None:
    await driver.run(ONE)
    first = await driver.one("a")
    assert first.checkpoint is None
    await driver.heartbeat(first, checkpoint=b'{"row": 7}')
    await driver.heartbeat(first)  # without one, the last is kept
    await driver.fail(first)
    second = await driver.one("a")
    assert second.checkpoint is not None
    assert msgspec.json.decode(second.checkpoint) == {"row": 7}
    await driver.heartbeat(second, checkpoint=b"null")
    await driver.expire(31)
    third = await driver.one("a")
    assert third.checkpoint is not None
    assert msgspec.json.decode(third.checkpoint) is None


async def test_a_checkpoint_reaches_an_attempt_that_is_handed_off(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.run(ONE)
    job = await driver.one("a")
    await driver.heartbeat(job, checkpoint=b'{"row": 7}')
    got: list[Job] = []

    async def wait_for_it() -> None:
        got.append(await driver.one("a", worker="parked"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_it)
        await parked(driver)
        await driver.fail(job)
    assert (got[0].attempt, got[0].worker_id) == (2, "parked")
    assert got[0].checkpoint is not None
    assert msgspec.json.decode(got[0].checkpoint) == {"row": 7}


async def test_a_checkpoint_is_written_only_under_the_fence(driver: Driver) -> None:
    await driver.run(ONE)
    stale = await driver.one("a", worker="stale")
    await driver.expire(31)
    fresh = await driver.one("a", worker="fresh")
    await driver.heartbeat(fresh, checkpoint=b"1")
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.heartbeat(stale, checkpoint=b"2", progress=b"2")
    assert driver.snapshot() == before


async def test_a_checkpoint_is_of_one_step_execution(driver: Driver) -> None:
    await driver.run(definition(task("a", "b"), task("b"), end()))
    job = await driver.one("a")
    await driver.heartbeat(job, checkpoint=b"1", progress=b"1")
    await driver.complete(job)
    job = await driver.one("b")
    assert job.checkpoint is None
    assert (await driver.view(job.instance_id)).progress == {}
    await driver.heartbeat(job, progress=b'{"done": 0.5}')
    assert driver.rows("SELECT checkpoint, progress FROM job_note") == [(None, {"done": 0.5})]


async def test_progress_is_shown_by_open_step(driver: Driver) -> None:
    instance = await driver.run(parallel(task("a", "join"), task("b", "join")))
    a, b = await driver.one("a"), await driver.one("b")
    await driver.heartbeat(a, progress=b'{"percent": 50}')
    await driver.heartbeat(b, progress=b"[1]")
    progress = (await driver.view(instance)).progress
    assert progress is not None
    assert {step: msgspec.json.decode(value) for step, value in progress.items()} == {"a": {"percent": 50}, "b": [1]}
    await driver.complete(a)
    assert set((await driver.view(instance)).progress or ()) == {"b"}


@pytest.mark.parametrize("ending", ["join", "end", "narrow end", "cancel", "fail"])
async def test_notes_go_with_their_token(driver: Driver, ending: str) -> None:
    bodies: dict[str, Json] = {
        "join": definition(
            {"id": "fork", "name": "f", "type": "PARALLEL_GATEWAY", "joinStep": "join",
             "parallelNextSteps": ["a", "b"]},
            task("a", "join"), task("b", "join"), joining(), end(),
        )
    }  # fmt: skip
    bodies["end"] = parallel(task("a", "end"), task("b", "join"))
    await driver.run(bodies.get(ending, definition(task("a"), end())))
    job = await driver.one("a")
    await driver.heartbeat(job, checkpoint=b"1")
    if ending == "cancel":
        await driver.cancel(job.instance_id)
    elif ending == "fail":
        await driver.fail(job)
    else:
        await driver.complete(job)
    assert driver.rows("SELECT * FROM job_note") == []


async def test_who_extends_a_lease_last_watches_its_end(make_driver: MakeDriver) -> None:
    """A lease granted by one engine and extended through another is in the other one's book, for its end."""
    one, two = make_driver(), make_driver()
    one.clock.stop()
    await one.run(ONE)
    job = await one.one("a")
    before = trio.current_time()
    await two.heartbeat(job, lease_seconds=60)
    after = trio.current_time()
    lease = two.engine.polls.leases.find(*(int(part, 16) for part in job.id.split("-")[1:]))
    assert lease is not None
    assert before + 60 - EXACT <= lease.ends_at <= after + 60 + EXACT
