"""A queue that gathers: who comes back after a batch goes together again, and who comes alone does not wait."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from penstock.engine.group_commit import batcher as module
from penstock.engine.group_commit.batcher import Batcher
from penstock.engine.group_commit.item import Item

COMMIT_S = 0.001


class Applied(Batcher[Item[None]]):
    """A queue over nothing: each batch takes so long. ``batches``: when each began and how many were in it."""

    def __init__(self, *, gathers: bool = True, takes_s: float = COMMIT_S) -> None:
        self.batches: list[tuple[float, int]] = []
        self.takes_s = takes_s
        super().__init__("test", max_items=500, max_queue_items=1_000, gathers=gathers)

    async def apply_batch(self, items: list[Item[None]]) -> None:
        self.batches.append((trio.current_time(), len(items)))
        await trio.sleep(self.takes_s)
        for item in items:
            item.answer(None)

    async def come(self, count: int, apart_s: float = 0.0) -> None:
        """So many callers, one after the other or at once; until all are answered."""
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.submit, Item[None]())
                if apart_s:
                    await trio.sleep(apart_s)

    async def wait_s(self) -> float:
        """How long a caller who comes now waits for its batch to begin."""
        came_at = trio.current_time()
        await self.come(1)
        return self.batches[-1][0] - came_at


@pytest.fixture
async def applied(nursery: trio.Nursery) -> Applied:
    made = Applied()
    await nursery.start(made.run)
    return made


async def test_who_comes_back_one_by_one_goes_together(
    autojump_clock: trio.testing.MockClock, applied: Applied, nursery: trio.Nursery
) -> None:
    await applied.come(10)
    await applied.come(10, COMMIT_S / 20)
    assert [count for _, count in applied.batches] == [10, 9, 1], "nine are enough, and the last comes behind them"
    plain = Applied(gathers=False)
    await nursery.start(plain.run)
    await plain.come(10)
    await plain.come(10, COMMIT_S / 20)
    assert [count for _, count in plain.batches] == [10, 1, 9]


async def test_a_lone_call_never_waits(autojump_clock: trio.testing.MockClock, applied: Applied) -> None:
    for count in (1, 2, 1):
        await applied.come(count)
        assert await applied.wait_s() == 0


async def test_a_wait_is_as_long_as_the_last_batch(autojump_clock: trio.testing.MockClock, applied: Applied) -> None:
    await applied.come(8)
    assert await applied.wait_s() == pytest.approx(COMMIT_S)
    assert await applied.wait_s() == 0, "nobody came: the next one does not wait"


async def test_a_wait_ends_however_long_commits_take(autojump_clock: trio.testing.MockClock, applied: Applied) -> None:
    applied.takes_s = 5.0
    await applied.come(8)
    assert await applied.wait_s() == pytest.approx(module.GATHER_MAX_S)


async def test_after_a_pause_nothing_is_waited_for(autojump_clock: trio.testing.MockClock, applied: Applied) -> None:
    await applied.come(8)
    await trio.sleep(module.GATHER_WITHIN_S * 1.01)
    assert await applied.wait_s() == 0


async def test_a_batch_that_is_large_enough_does_not_wait(
    autojump_clock: trio.testing.MockClock, applied: Applied
) -> None:
    await applied.come(100)
    came_at = trio.current_time()
    await applied.come(module.GATHER_ENOUGH_ITEMS)
    assert applied.batches[1:] == [(came_at, module.GATHER_ENOUGH_ITEMS)]


async def test_what_is_gathered_is_applied_when_the_flusher_ends(autojump_clock: trio.testing.MockClock) -> None:
    made, item = Applied(), Item[None]()
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        await made.come(8)
        made.submit_nowait(item)
        await trio.testing.wait_all_tasks_blocked()
        assert not item.settled, "it waits for others"
        nursery.cancel_scope.cancel()
    assert item.settled
