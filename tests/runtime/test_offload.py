"""Long work beside the event loop, and turns on it."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import pytest
import trio

from penstock.loop.offload import TURNS_APART, run_long, take_turn


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_crowd_works_one_at_a_time_with_turns_between() -> None:
    turns = Turns()
    worked_in: list[int] = []

    async def work() -> None:
        await take_turn()
        worked_in.append(turns.count)

    trio.lowlevel.add_instrument(turns)
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(work)
    finally:
        trio.lowlevel.remove_instrument(turns)
    assert len(worked_in) == 50
    assert all(later - earlier >= TURNS_APART for earlier, later in pairwise(worked_in))


async def test_a_cancelled_waiter_does_not_hold_up_the_line() -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(take_turn)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await take_turn()


class Values(list[int]):
    """May be referred to weakly."""


@pytest.mark.parametrize("line", ["", "requests"])
async def test_an_error_from_the_thread_is_no_garbage(line: str) -> None:
    """It would keep all that was computed, until a collection of everything."""
    made: list[weakref.ref[Values]] = []

    def compute() -> None:
        values = Values(range(1_000))
        made.append(weakref.ref(values))
        try:
            raise KeyError(values[0])
        except KeyError as error:
            raise ValueError("refused") from error

    gc.disable()
    try:
        with pytest.raises(ValueError, match="refused") as caught:
            await run_long(compute, line=line)
        assert "compute" in [entry.name for entry in caught.traceback]
        assert made[0]() is not None
        del caught
        assert made[0]() is None
    finally:
        gc.enable()
