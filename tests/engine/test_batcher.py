"""What a batch leaves behind, and how it ends when its group-commit queue is cancelled."""

from __future__ import annotations

import gc
from typing import Any

import trio
import trio.testing

from penstock.engine.group_commit.batcher import Batcher
from penstock.engine.group_commit.item import Item


class Letter(Item[int]):
    """One that is counted when it goes. No weak reference: compiled classes take none (mypyc 2.4 frees it twice)."""

    def __init__(self, gone: list[int]) -> None:
        super().__init__()
        self.gone = gone

    def __del__(self) -> None:
        self.gone.append(1)


async def test_batches_leave_no_garbage_for_the_collector() -> None:
    sizes: list[int] = []

    class Letters(Batcher[Letter]):
        async def apply_batch(self, items: list[Letter]) -> None:
            sizes.append(len(items))
            await trio.lowlevel.checkpoint()
            for item in items:
                item.answer(1)

    batcher = Letters("letters", max_items=10, max_queue_items=10)
    gone: list[int] = []
    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(batcher.run)
            for _ in range(3):
                for _ in range(3):
                    batcher.submit_nowait(Letter(gone))
                await batcher.wait_flushed()
            nursery.cancel_scope.cancel()
        assert sizes == [3, 3, 3]
        assert len(gone) == 9
    finally:
        gc.enable()


async def test_a_cancelled_queue_finishes_its_batch_and_begins_no_other() -> None:
    seen: list[Any] = []
    go_on = trio.Event()

    class Letters(Batcher[Letter]):
        async def apply_batch(self, items: list[Letter]) -> None:
            await go_on.wait()
            seen.append([item.deadline for item in items])
            for item in items:
                item.answer(len(seen))

    batcher = Letters("letters", max_items=1, max_queue_items=10)
    async with trio.open_nursery() as nursery:
        await nursery.start(batcher.run)
        first = Letter([])
        batcher.submit_nowait(first, now=1.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        go_on.set()
    assert first.given_answer() == 1
    assert seen == [[1.0]]
    async with trio.open_nursery() as nursery:  # and it waits for others no longer
        nursery.cancel_scope.cancel()
        await batcher.run()
