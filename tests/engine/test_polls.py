"""Long polls, direct dispatch, and what a cancelled poll gives back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
import pytest
import trio
import trio.testing

from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.errors import Unavailable
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import variables as store
from penstock.testing.definitions import definition, end, linear, service
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.waiting import wait_until


async def parked(driver: Driver, count: int) -> None:
    async def there() -> bool:
        return len(driver.engine.polls.waiters) == count

    await wait_until(there)


async def test_a_poll_without_jobs_is_an_empty_list(driver: Driver) -> None:
    assert await driver.poll("nobody-knows-this") == []
    assert await driver.poll("nobody-knows-this", wait=0.05) == []


async def test_a_parked_poll_gets_a_new_job_without_the_queue(driver: Driver) -> None:
    await driver.upload(linear(2))
    jobs = []
    async with trio.open_nursery() as nursery:

        async def poll() -> None:
            jobs.append(await driver.one("work", worker="parked"))

        nursery.start_soon(poll)
        await parked(driver, 1)
        await driver.start("linear", {"a": 1})
    assert driver.rows("SELECT state, claimed_by, attempt FROM token") == [(1, "parked", 1)]
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]
    assert variables_of(jobs[0]) == {"a": 1}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await parked(driver, 1)
        await driver.complete(jobs[0], {"b": 2})
    assert variables_of(jobs[1]) == {"a": 1, "b": 2}
    assert jobs[1].step_id == "task-2"


async def test_max_jobs_is_never_exceeded_with_several_types(driver: Driver) -> None:
    await driver.upload(definition(service("a", "end", job_type="a"), end(), definition_id="da"))
    await driver.upload(definition(service("b", "end", job_type="b"), end(), definition_id="db"))
    for _ in range(5):
        await driver.start("da")
        await driver.start("db")
    assert len(await driver.poll("a", "b", n=3)) == 3
    assert len(await driver.poll("a", "b", n=100)) == 7
    assert await driver.poll("a", "b") == []


async def test_a_cancelled_poll_gives_its_jobs_back_at_once(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.upload(linear(1))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.poll, "work")
            await parked_or_not(driver)
            scope.cancel()
    await driver.start("linear")
    assert len(await driver.poll("work", worker="w2", wait=20)) == 1


async def test_a_refused_poll_releases_its_jobs_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One type's jobs were claimed, then the database went away for longer than a call waits."""
    await driver.run(linear(1))
    claims = driver.engine.polls.claims
    submit = claims.submit

    async def refused(*args: Any, **options: Any) -> None:
        await submit(*args, **options)
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(claims, "submit", refused)
        with pytest.raises(Unavailable):
            await driver.poll("work")
    with trio.fail_after(10):
        await driver.engine.polls.releases.wait_flushed()
    assert len(await driver.poll("work", worker="w2")) == 1


async def parked_or_not(driver: Driver) -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_a_poll_cancelled_after_direct_dispatch_releases_its_job(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.upload(linear(1))
    waiters = driver.engine.polls.waiters
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def poll() -> None:
            with scope:
                await driver.poll("work", worker="gone", wait=30)

        nursery.start_soon(poll)
        await parked(driver, 1)
        deliver = waiters.deliver

        def cancel_first(*args: Any) -> bool:
            scope.cancel()
            return deliver(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiters, "deliver", cancel_first)
            await driver.start("linear")
    job = await driver.one("work", worker="w2")
    assert (job.attempt, job.worker_id) == (2, "w2")


async def test_claimed_jobs_with_an_unreadable_definition_return_at_once(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage between the claim and the read: they were late by a whole lease."""
    await make_driver().run(linear(1))
    driver = make_driver(services=True)
    by_key = driver.engine.definitions.by_key
    failures = [psycopg.OperationalError("away")]

    async def away(connection: TrioConnection, key: int) -> LoadedDefinition:
        if failures:
            raise failures.pop()
        return await by_key(connection, key)

    monkeypatch.setattr(driver.engine.definitions, "by_key", away)
    job = await driver.one("work", wait=20, lease=3_600)
    assert (job.attempt, failures) == (2, [])


async def test_draining_answers_parked_polls_and_later_ones_at_once(driver: Driver) -> None:
    answers: list[object] = []
    async with trio.open_nursery() as nursery:

        async def poll() -> None:
            answers.append(await driver.poll("work", wait=60))

        nursery.start_soon(poll)
        await parked(driver, 1)
        driver.engine.drain()
    with trio.fail_after(20):
        answers.append(await driver.poll("work", wait=60))
    assert answers == [[], []]


async def test_the_probe_finds_jobs_that_another_engine_queued(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2, services=True)
    await one.upload(linear(1))
    async with trio.open_nursery() as inner:

        async def poll() -> None:
            assert (await two.one("work")).attempt == 1

        inner.start_soon(poll)
        await parked(two, 1)
        await one.start("linear")
    assert one.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_two_engines_never_hand_out_one_job_twice(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(1))
    for _ in range(60):
        await one.start("linear")
    taken: list[str] = []

    async def take(driver: Driver, worker: str) -> None:
        while jobs := await driver.poll("work", worker=worker, n=3):
            taken.extend(job.id for job in jobs)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(take, (one, two)[number % 2], f"w{number}")
    assert len(taken) == len(set(taken)) == 60


async def test_a_claim_skips_locked_jobs_for_the_next_oldest(driver: Driver) -> None:
    await driver.upload(linear(1))
    started = [(await driver.start("linear")).id for _ in range(4)]
    with psycopg.connect(driver.dsn) as other:
        other.execute(
            "SELECT id FROM token WHERE instance_id = ANY(%s) FOR NO KEY UPDATE", [[int(id, 16) for id in started[:2]]]
        )
        with trio.fail_after(10):
            jobs = await driver.poll("work", n=1) + await driver.poll("work", n=10)
    assert [job.instance_id for job in jobs] == started[2:]
    assert [job.instance_id for job in await driver.poll("work")] == started[:2]


async def test_stale_queue_rows_go_and_hold_nothing_up(driver: Driver) -> None:
    await driver.upload(linear(1))
    started = (await driver.start("linear")).id
    driver.rows(
        "INSERT INTO ready (job_type, seq, token_id) SELECT r.job_type, -n, r.token_id FROM ready r,"
        " generate_series(1, 5) AS n RETURNING 1"
    )
    jobs = await driver.poll("work", n=10)
    assert [job.instance_id for job in jobs] == [started]
    assert await driver.poll("work") == []  # as the claim before fell short, this one clears
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_a_poll_looks_again_when_counted_jobs_are_gone(
    make_driver: MakeDriver,
) -> None:
    one, two = make_driver(1), make_driver(2)
    for job_type in ("a", "b"):
        await one.upload(definition(service(job_type, "end", job_type=job_type), end(), definition_id=job_type))
        for _ in range(3):
            await one.start(job_type)
    assert len(await one.poll("a", n=1)) == 1  # counts three, and takes one
    assert one.engine.polls.queue.waiting(["a"]) == {"a": 2}
    assert len(await two.poll("a", n=10)) == 2
    assert [job.job_type for job in await one.poll("a", "b", n=2)] == ["b", "b"]


async def test_polls_for_many_types_park_within_the_room(make_driver: MakeDriver) -> None:
    driver = make_driver(poll_parked_max_bytes=1_048_576)
    waiters = driver.engine.polls.waiters
    answered = 0

    async def poll(number: int) -> None:
        nonlocal answered
        await driver.poll(*[f"type-{number}-{index}" for index in range(500)], wait=30)
        answered += 1

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(poll, number)

        async def settled() -> bool:
            return answered + len(waiters) == 10

        await wait_until(settled)
        assert len(waiters) == 1  # of some 550 kB
        assert waiters.size_bytes <= 1_048_576
        nursery.cancel_scope.cancel()
    assert (len(waiters), waiters.size_bytes) == (0, 0)


async def test_all_polls_together_are_parked_for_so_many_types_only(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.queues.waiters.PENDING_TYPES_MAX_COUNT", 3)
    driver = make_driver()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(driver.poll, "a", "b", wait=30))
        await parked(driver, 1)
        assert await driver.poll("c", "d", wait=30) == []  # answered at once
        nursery.start_soon(partial(driver.poll, "a", "c", wait=30))
        await parked(driver, 2)
        nursery.cancel_scope.cancel()


async def test_variables_of_many_jobs_are_read_in_pieces(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.queues.job_sizes.READ_MAX_BYTES", 100_000)
    driver = make_driver(variables_cache_max_bytes=0)
    await driver.upload(linear(1))
    sizes = [60_000, 30_000, 250_000, 30_000, 40_000]  # the third is larger than a piece
    for size in sizes:
        await driver.start("linear", {"text": "x" * size})
    read: list[int] = []
    within = store.read_within

    async def noted(connection: TrioConnection, instances: Sequence[int], max_bytes: int) -> Any:
        found, more = await within(connection, instances, max_bytes)
        read.append(sum(map(len, found.values())))
        return found, more

    monkeypatch.setattr(store, "read_within", noted)
    jobs = await driver.poll("work", n=5)
    assert sorted(len(variables_of(job)["text"]) for job in jobs) == sorted(sizes)
    assert len(read) == 3
    assert all(size <= 100_000 or 250_000 < size < 251_000 for size in read)


async def test_polls_for_very_many_types_need_several_looks(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.queues.claims.CLAIM_TYPES_MAX_COUNT", 3)
    driver = make_driver()
    await driver.upload(linear(1))
    for _ in range(5):
        await driver.start("linear")
    got: list[str] = []

    async def poll(number: int) -> None:
        (job,) = await driver.poll(f"a{number}", f"b{number}", "work", n=1)
        got.append(job.id)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(poll, number)
    assert len(set(got)) == 5
