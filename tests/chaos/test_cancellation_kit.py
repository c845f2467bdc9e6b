"""`penstock.testing.cancellation` meets every point, and finds what is left behind."""

from __future__ import annotations

import socket

import pytest
import trio

from penstock.testing import cancellation
from penstock.testing.cancellation import (
    CancelledAttempt,
    Holdings,
    LeftBehind,
    Operation,
    cancel_at_step,
    cancel_everywhere,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "SETTLE_TIMEOUT_S", 0.2)


async def test_every_state_between_checkpoints_is_met() -> None:
    reached: list[int] = []
    met: set[int] = set()

    async def operation() -> str:
        for number in range(3):
            await trio.lowlevel.checkpoint()
            reached.append(number)
        return "done"

    async def prepare() -> Operation[str]:
        reached.clear()
        return operation

    async def check(attempt: CancelledAttempt[str]) -> None:
        met.add(len(reached))
        assert attempt.cancelled == (len(reached) < 3)
        assert attempt.results in ([], ["done"])

    points = await cancel_everywhere(prepare, check)
    assert met == {0, 1, 2, 3}
    assert points.points >= points.cancelled >= 3


async def test_a_cancel_just_after_the_result_loses_it() -> None:
    """The point before a step: the value was received, and nobody will hear of it."""
    send, receive = trio.open_memory_channel[int](1)
    taken: list[int] = []

    async def operation() -> int:
        value = await receive.receive()
        taken.append(value)
        await trio.lowlevel.checkpoint()
        return value

    async def prepare() -> Operation[int]:
        taken.clear()
        while receive.statistics().current_buffer_used:
            receive.receive_nowait()
        send.send_nowait(1)
        return operation

    kinds: set[tuple[int, bool]] = set()

    async def check(attempt: CancelledAttempt[int]) -> None:
        kinds.add((len(taken), attempt.cancelled))

    await cancel_everywhere(prepare, check)
    assert kinds >= {(1, True), (1, False)}


async def test_a_socket_that_is_left_open_is_found() -> None:
    left: list[socket.socket] = []

    async def careless() -> None:
        left.append(socket.socket())
        await trio.lowlevel.checkpoint()
        left.pop().close()

    async def prepare() -> Operation[None]:
        return careless

    try:
        with pytest.raises(LeftBehind) as caught:
            await cancel_everywhere(prepare)
        assert caught.value.__notes__ == ["cancelled at point 1"]
    finally:
        for each in left:
            each.close()


async def test_a_task_that_is_left_running_is_found(nursery: trio.Nursery) -> None:
    async def careless() -> None:
        nursery.start_soon(trio.sleep_forever)
        await trio.lowlevel.checkpoint()

    async def prepare() -> Operation[None]:
        return careless

    with pytest.raises(LeftBehind):
        await cancel_everywhere(prepare)


async def test_what_is_kept_on_purpose_grows_to_its_bound_only() -> None:
    pool: list[socket.socket] = []

    async def pooled() -> None:
        pool.append(socket.socket())
        await trio.lowlevel.checkpoint()

    async def prepare() -> Operation[None]:
        return pooled

    try:
        with pytest.raises(LeftBehind):
            await cancel_everywhere(prepare, may_grow=Holdings(0, 0, 1), stride=1)
        assert len(pool) == 2
    finally:
        for each in pool:
            each.close()


async def test_an_operation_without_an_end_is_given_up() -> None:
    async def endless() -> None:
        while True:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            if trio.current_effective_deadline() == -float("inf"):
                return

    async def prepare() -> Operation[None]:
        return endless

    with pytest.raises(AssertionError, match="no end within 20 points"):
        await cancel_everywhere(prepare, points_max=20)


async def test_only_the_callers_own_steps_count_when_asked_for(nursery: trio.Nursery) -> None:
    async def busy() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    nursery.start_soon(busy)

    async def operation() -> None:
        await trio.lowlevel.checkpoint()

    attempts = [await cancel_at_step(step, operation, own_task_only=True) for step in (1, 5)]
    assert [attempt.cancelled for attempt in attempts] == [True, False]
    nursery.cancel_scope.cancel()


async def test_an_error_names_the_point() -> None:
    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("broken")

    async def prepare() -> Operation[None]:
        return fails

    with pytest.raises(ValueError, match="broken") as caught:
        await cancel_everywhere(prepare)
    (note,) = caught.value.__notes__
    assert note.startswith("cancelled at point ")
