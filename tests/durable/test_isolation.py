"""What a body may not touch while it runs: the scopes, nurseries and tasks of the Trio that is installed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

import anyio
import anyio.to_thread
import pytest
import trio
import trio.lowlevel

from penstock.durable import isolation, open_nursery, run_info, sleep, step, workflow
from penstock.durable.isolation import LoopWatch, body_runs, mute_replayed_logs
from penstock.kernel.errors import Endless, ForeignAwait
from penstock.testing import run_workflow
from tests.durable.memory import Database
from tests.durable.test_executor import executing

nursery_of_the_test: trio.Nursery


async def opens_a_scope() -> None:
    with trio.move_on_after(5):  # noqa: ASYNC100 - opened, and that is refused
        pass


async def opens_a_nursery() -> None:
    async with trio.open_nursery():
        pass


async def spawns() -> None:
    nursery_of_the_test.start_soon(trio.sleep, 0)


async def sleeps() -> None:
    await trio.sleep(1)


async def reads_the_clock() -> None:
    trio.current_time()


async def waits_for_a_thread() -> None:
    await trio.to_thread.run_sync(time.time)


async def opens_anyios_scope() -> None:
    with anyio.move_on_after(5):  # noqa: ASYNC100 - opened, and that is refused
        pass


async def opens_anyios_task_group() -> None:
    async with anyio.create_task_group():
        pass


async def waits_for_anyios_thread() -> None:
    await anyio.to_thread.run_sync(time.time)


REFUSED = [
    (opens_a_scope, "penstock.durable.move_on_after"),
    (opens_a_nursery, "penstock.durable.open_nursery"),
    (spawns, "penstock.durable.open_nursery"),
    (sleeps, "penstock.durable.sleep"),
    (reads_the_clock, "penstock.durable.now"),
    (waits_for_a_thread, "a step"),
    (opens_anyios_scope, "penstock.durable.move_on_after"),
    (opens_anyios_task_group, "penstock.durable.open_nursery"),
    (waits_for_anyios_thread, "a step"),
]


@pytest.mark.parametrize(("forbidden", "ours"), REFUSED, ids=lambda value: getattr(value, "__name__", None))
async def test_attaching_to_the_loop_is_refused_at_its_line(forbidden: Callable[[], Awaitable[None]], ours: str):
    global nursery_of_the_test

    @workflow
    async def body() -> None:
        await forbidden()

    async with trio.open_nursery() as nursery_of_the_test:
        with pytest.raises(ForeignAwait) as refusal:
            run_workflow(body).result()
    assert str(refusal.value).startswith("test_isolation.py:")
    assert ours in str(refusal.value)
    await trio.lowlevel.checkpoint()  # this task is its own again


def test_a_step_has_its_loop():
    @step
    async def uses_trio() -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
        return "slept"

    @workflow
    async def body() -> str:
        return await uses_trio()

    assert run_workflow(body, backend="trio").result() == "slept"


async def test_afterwards_all_is_as_it_was():
    task = trio.lowlevel.current_task()
    with pytest.raises(ForeignAwait), body_runs():
        trio.lowlevel.current_task().parent_nursery  # noqa: B018 - the look is what is refused
    assert trio.lowlevel.current_task() is task


def test_a_body_that_never_waits_is_warned_of_and_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(isolation, "WARN_AFTER_S", 0.05)
    monkeypatch.setattr(isolation, "END_AFTER_S", 0.3)
    monkeypatch.setattr(isolation, "POLL_INTERVAL_S", 0.02)

    @workflow
    async def endless() -> None:
        while True:
            try:
                while True:
                    pass
            except BaseException:  # a body that does not want to end: it is told again
                if time.monotonic() > ends_at:
                    raise

    ends_at = time.monotonic() + 0.5
    with LoopWatch(), pytest.raises(Endless, match=r"test_isolation.py:\d+ ran for more than 0.3 s without an await"):
        run_workflow(endless)
    assert any("without an await" in record.message for record in caplog.records)
    for _ in range(1_000):  # nothing comes late
        time.monotonic()


def test_what_is_replayed_is_not_logged_again(caplog: pytest.LogCaptureFixture):
    mute_replayed_logs()
    mute_replayed_logs()
    caplog.set_level(logging.INFO)
    log = logging.getLogger("a body")
    with body_runs(muted=True):
        log.info("said before")
        other = threading.Thread(target=log.info, args=("of another thread",))
        other.start()
        other.join()
    with body_runs():
        log.info("new")
    assert [record.message for record in caplog.records] == ["of another thread", "new"]


def test_bodies_in_two_threads_know_their_own_runs():
    arrived = {"one": SimpleQueue[None](), "two": SimpleQueue[None]()}

    def meet() -> None:
        """Wait for the other thread, not by a condition: no body may wait for one."""
        me = threading.current_thread().name
        arrived["two" if me == "one" else "one"].put(None)
        arrived[me].get()

    @workflow
    async def body() -> list[str]:
        seen: list[str] = []
        for _ in range(20):
            meet()
            seen.append(run_info().id)
            meet()
            await sleep("1 s")
        return seen

    results: dict[str, list[str]] = {}

    def drive(seed: str) -> None:
        results[seed] = run_workflow(body, seed=seed).value or []

    # each is replayed by run_workflow, too, so the two meet as often as the other
    threads = [threading.Thread(target=drive, args=(seed,), name=seed, daemon=True) for seed in arrived]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == {"one": ["one"] * 20, "two": ["two"] * 20}


async def test_threads_of_steps_wait_for_no_other_threads(autojump_clock):
    @step
    def plain() -> str:
        return "done"

    @workflow
    async def body() -> str:
        return await plain()

    limiter = trio.to_thread.current_default_thread_limiter()
    others = [object() for _ in range(int(limiter.total_tokens))]
    for each in others:
        limiter.acquire_on_behalf_of_nowait(each)
    try:
        database = Database()
        async with executing(database, body):
            row = database.start(body)
            await database.wait_state("r", "ended")
    finally:
        for each in others:
            limiter.release_on_behalf_of(each)
    assert row.ending is not None
    assert row.ending.result == '"done"'


async def test_arguments_are_those_of_the_call(autojump_clock):
    """What the body changes afterwards, in the same breath, the step does not see, nor the other way round."""
    items = [1]

    @step
    async def take(given: list[int]) -> list[int]:
        given.append(99)
        return given

    async def change() -> None:
        items.append(2)

    @workflow
    async def body() -> list[list[int]]:
        taken: list[list[int]] = []

        async def ask() -> None:
            taken.append(await take(items))

        async with open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(change)
        return [*taken, items]

    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert row.ending is not None
    assert row.ending.result == "[[1,99],[1,2]]"
