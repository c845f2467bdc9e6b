"""Children with names: who may end, who brings all down; loops that outlast an outage."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import psycopg
import pytest
import trio
import trio.testing

from penstock.errors import Unavailable
from penstock.runtime.supervise import RETRY_MAX_S, ChildExited, Supervisor, forever
from penstock.telemetry.metrics import Metrics


async def sleeping(*, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    await trio.sleep_forever()


def task_up(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value("penstock_task_up", {"task": name})


async def test_a_child_that_raises_brings_the_nursery_down() -> None:
    async def failing(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise ValueError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug")):
        async with trio.open_nursery() as nursery:
            supervisor = Supervisor(nursery, Metrics("test"))
            await supervisor.start("good", sleeping)
            await supervisor.start("bad", failing)
            await trio.sleep_forever()


async def test_a_child_that_returns_unasked_brings_the_nursery_down() -> None:
    async def returning(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()

    with pytest.RaisesGroup(pytest.RaisesExc(ChildExited, match="short")):
        async with trio.open_nursery() as nursery:
            await Supervisor(nursery, Metrics("test")).start("short", returning)
            await trio.sleep_forever()


async def test_a_child_may_return_once_it_is_expected_to() -> None:
    go = trio.Event()

    async def returning(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await go.wait()

    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(nursery, Metrics("test"))
        await supervisor.start("one", returning)
        supervisor.expect_end("one")
        go.set()
        await supervisor.wait_ended("one")


async def test_stop_cancels_the_named_children_only_and_waits_for_them() -> None:
    cleaned_up = False

    async def cleaning(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal cleaned_up
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            cleaned_up = True

    metrics = Metrics("test")
    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(nursery, metrics)
        await supervisor.start("a", cleaning)
        await supervisor.start("b", sleeping)
        assert supervisor.names() == ["a", "b"]
        await supervisor.stop("a", "never started")
        assert cleaned_up
        assert (task_up(metrics, "a"), task_up(metrics, "b")) == (0, 1)
        await supervisor.stop("b")


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("away"), psycopg.InterfaceError("closed"), Unavailable("x")]
)
async def test_a_loop_goes_on_when_the_database_is_back(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    outcomes = [error, error, None, error, None]
    asked_at: list[float] = []
    done = trio.Event()

    async def step() -> None:
        asked_at.append(trio.current_time())
        if not outcomes:
            done.set()
            await trio.sleep_forever()
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        await trio.sleep(10)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(forever, "loop", step))
        await done.wait()
        nursery.cancel_scope.cancel()
    waited = [round(later - earlier, 3) for earlier, later in pairwise(asked_at)]
    assert waited == [0.05, 0.1, 10, 0.05, 10]  # the back-off begins anew after a success


async def test_the_back_off_of_a_loop_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    asked_at: list[float] = []

    async def step() -> None:
        asked_at.append(trio.current_time())
        raise psycopg.OperationalError("away")

    with trio.move_on_after(60):
        await forever("loop", step)
    assert max(b - a for a, b in pairwise(asked_at)) == pytest.approx(RETRY_MAX_S)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.UniqueViolation("twice"),
        psycopg.DataError("bad"),
        psycopg.errors.ProgramLimitExceeded("large"),
        psycopg.InternalError("corrupt"),
    ],
)
async def test_a_loop_outlives_a_round_the_database_refuses(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    metrics = Metrics("test")
    asked_at: list[float] = []

    async def step() -> None:
        asked_at.append(trio.current_time())
        raise error

    with trio.move_on_after(200):
        await forever("loop", step, metrics)
    assert [b - a for a, b in pairwise(asked_at)][:7] == [1, 2, 4, 8, 16, 30, 30]
    assert metrics.registry.get_sample_value("penstock_service_errors_total", {"task": "loop"}) == len(asked_at)


@pytest.mark.parametrize("error", [ValueError("a bug"), psycopg.errors.UndefinedTable("no such table")])
async def test_a_loop_ends_with_a_bug(error: Exception) -> None:
    async def step() -> None:
        raise error

    with pytest.raises(type(error)):
        await forever("loop", step)
