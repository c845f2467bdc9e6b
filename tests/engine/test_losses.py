"""Workers hear of jobs that are cancelled under their lease."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from penstock.access.identity import Identity, set_identity
from penstock.engine.queues.losses import ANSWER_MAX_ITEMS, KEPT_MAX_ITEMS, KEPT_S, Loss, Losses
from penstock.errors import BadRequest, Forbidden
from penstock.testing.definitions import definition, end, linear, service, timer
from penstock.wire.model import Job, LostJob
from tests.engine.driver import Driver
from tests.shapes import parallel, task


def cancelled(*jobs: Job) -> list[LostJob]:
    return [LostJob(job_id=job.id, attempt=job.attempt, outcome="cancelled") for job in jobs]  # pyright: ignore[reportArgumentType] - a stand-in


async def held(driver: Driver, *types: str, worker: str = "w1") -> list[Job]:
    return [await driver.one(name, worker=worker) for name in types]


async def parked(driver: Driver) -> None:
    with trio.fail_after(10):
        while not len(driver.engine.polls.losses):
            await trio.lowlevel.checkpoint()


async def test_a_parked_watch_is_answered_when_its_job_is_cancelled(driver: Driver) -> None:
    instance = await driver.run(linear(1))
    (job,) = await held(driver, "work")
    found: list[LostJob] = []
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            found.extend(await driver.engine.jobs.wait_lost("w1", 30))

        nursery.start_soon(watch)
        await parked(driver)
        began_at = trio.current_time()
        await driver.cancel(instance)
    assert found == cancelled(job)
    assert trio.current_time() - began_at < 20
    assert await driver.engine.jobs.wait_lost("w1", 0) == []


async def test_holders_hear_what_ends_failures_and_timers_closed(driver: Driver) -> None:
    """Neither the job whose result closed the others, nor one that nobody holds, nor other workers'."""
    await driver.run(parallel(task("first", "end"), task("second", "join"), task("third", "join")))
    first, second = await held(driver, "first", "second")
    await driver.complete(first)  # leads to END: the others are closed
    assert await driver.engine.jobs.wait_lost("w1", 0) == cancelled(second)
    await driver.run(parallel(task("fourth", "join"), task("fifth", "join")))
    (fourth,) = await held(driver, "fourth")
    (fifth,) = await held(driver, "fifth", worker="w2")
    await driver.fail(fourth, retryable=False)
    assert await driver.engine.jobs.wait_lost("w1", 0) == []
    assert await driver.engine.jobs.wait_lost("w2", 0) == cancelled(fifth)
    late = timer("end", "PT1H", interrupting=True)
    await driver.run(definition(task("slow", boundaryEvents=[late]), end()))
    (slow,) = await held(driver, "slow")
    assert await driver.due(7200) == 1
    assert await driver.engine.jobs.wait_lost("w1", 0) == cancelled(slow)
    assert await driver.engine.jobs.wait_lost("w1", 0) == []


async def test_a_draining_engine_holds_no_watch(driver: Driver) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(driver.engine.jobs.wait_lost, "w1", 60))
        await parked(driver)
        with trio.fail_after(20):
            driver.engine.drain()
            while len(driver.engine.polls.losses):
                await trio.lowlevel.checkpoint()
    with trio.fail_after(20):
        assert await driver.engine.jobs.wait_lost("w1", 60) == []


async def test_a_watch_needs_a_worker(driver: Driver) -> None:
    with pytest.raises(BadRequest, match="workerId"):
        await driver.engine.jobs.wait_lost("", 0)


# -- the book alone


def loss(worker: str = "w", seq: int = 0) -> Loss:
    return Loss(worker, 1, 1, seq, 1)


async def test_what_another_engine_says_is_not_told_to_others_again(autojump_clock: trio.testing.MockClock) -> None:
    reported: list[Loss] = []
    losses = Losses(2, reported.append)
    losses.receive(loss(seq=1))
    losses.notify(loss(seq=2))
    losses.receive(loss(seq=2))
    assert reported == [loss(seq=2)]
    assert await losses.wait("w", 0) == [loss(seq=1), loss(seq=2)]


async def test_news_are_bounded_in_time_and_number(autojump_clock: trio.testing.MockClock) -> None:
    losses = Losses(max_pending=2)
    losses.receive(loss("old"))
    await trio.sleep(KEPT_S + 1)
    losses.receive(loss("new"))
    assert (await losses.wait("old", 0), await losses.wait("new", 0)) == ([], [loss("new")])
    for seq in range(KEPT_MAX_ITEMS + 5):
        losses.receive(loss(seq=seq))
    found: list[Loss] = []
    while part := await losses.wait("w", 0):
        assert len(part) <= ANSWER_MAX_ITEMS
        found += part
    assert found == [loss(seq=seq) for seq in range(5, KEPT_MAX_ITEMS + 5)]


@pytest.mark.parametrize("end", ["time", "cancel"])
async def test_a_watch_that_ends_leaves_nothing_behind(autojump_clock: trio.testing.MockClock, end: str) -> None:
    losses = Losses(max_pending=2)
    started = trio.current_time()
    with trio.move_on_after(3 if end == "cancel" else 100) as scope:
        assert await losses.wait("w", 9) == []
    assert scope.cancelled_caught == (end == "cancel")
    assert trio.current_time() - started == pytest.approx(3 if end == "cancel" else 9)
    assert (len(losses), losses._pending) == (0, {})


async def test_more_watches_than_may_park_are_answered_at_once(autojump_clock: trio.testing.MockClock) -> None:
    losses = Losses(max_pending=2)
    answered_at: list[float] = []
    start = trio.current_time()

    async def watch(worker: str) -> None:
        await losses.wait(worker, 9)
        answered_at.append(trio.current_time() - start)

    async with trio.open_nursery() as nursery:
        for worker in ("a", "b"):
            nursery.start_soon(watch, worker)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(watch, "c")
    assert answered_at == pytest.approx([0, 9, 9])


async def test_an_old_loss_told_again_is_news(autojump_clock: trio.testing.MockClock) -> None:
    losses = Losses(10)
    loss = Loss("w1", 1, 1, 1, 1)
    losses.receive(loss)
    await trio.sleep(KEPT_S + 1)
    losses.receive(loss)
    assert await losses.wait("w1", 0) == [loss]


async def test_a_limited_worker_hears_no_news_of_other_types(driver: Driver) -> None:
    """It is told once: the one that it was for would have waited for its next heartbeat."""
    await driver.run(definition(service("a", "end", job_type="pack"), end()))
    pack, ship, both, all_types = (
        Identity(f"token:{name}", frozenset(), types)
        for name, types in (
            ("pack", frozenset({"pack"})),
            ("ship", frozenset({"ship"})),
            ("both", frozenset({"pack", "ship"})),
            ("all", None),
        )
    )
    set_identity(pack)
    job = await driver.one("pack", worker="packer")
    set_identity(None)
    await driver.cancel(job.instance_id, "enough")
    set_identity(ship)
    with pytest.raises(Forbidden, match="workerId: this worker polls for job types that token:ship may not work on"):
        await driver.engine.jobs.wait_lost("packer", 0)
    set_identity(both)
    assert [lost.job_id for lost in await driver.engine.jobs.wait_lost("packer", 0)] == [job.id]
    set_identity(all_types)
    await driver.poll("other", worker="any")
    set_identity(both)
    with pytest.raises(Forbidden):
        await driver.engine.jobs.wait_lost("any", 0)
    set_identity(all_types)
    assert await driver.engine.jobs.wait_lost("any", 0) == []
