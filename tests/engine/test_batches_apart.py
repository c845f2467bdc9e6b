"""What stands aside or moves to another queue is that queue's alone: its old batch never applies it again."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from penstock.engine.advance.command import Command
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.instances.tasks import SignalCommand
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.testing.definitions import definition, end, service
from penstock.wire.model import Signal
from tests.engine.driver import Driver, number
from tests.engine.test_held_rows import held_instance
from tests.shapes import wait
from tests.waiting import wait_until

EARLY = definition(service("first", "w"), wait("w", "end"), end(), definition_id="early")


def signal_to(instance: str) -> SignalCommand:
    request = Signal(instance_id=instance, step_id="w", variables=b"{}", buffer=True)
    return SignalCommand(number(instance), request, audit=False, vault=None)


class GatedQueues:
    """The full path's transactions in slow motion: each waits to be let on before it begins."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[list[int]] = []
        self.gates: dict[int, trio.Event] = {}
        self._driver = driver
        original = driver.engine.full_path._transact

        async def transaction(connection: Any, items: list[Command], *more: Any) -> None:
            if len(items) == 1:
                self.begun.append([item.instance for item in items])
                await self.gates[items[0].instance].wait()
            await original(connection, items, *more)

        monkeypatch.setattr(driver.engine.full_path, "_transact", transaction)

    async def has_begun(self, instance: int) -> None:
        async def begun() -> bool:
            return [instance] in self.begun

        await wait_until(begun)

    async def is_done(self, instance: int) -> None:
        """The queue's own batch is over, or at the instance again."""

        async def done() -> bool:
            return self._driver.engine.full_path.statistics().batch_age_s is None or self.begun.count([instance]) > 1

        await wait_until(done)


async def test_what_stands_aside_is_not_applied_by_its_batch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await driver.upload(EARLY)
    slow, other = [(await driver.start("early")).id for _ in range(2)]
    commit_queues = GatedQueues(driver, monkeypatch)
    commit_queues.gates = {number(slow): trio.Event(), number(other): trio.Event()}
    items = [signal_to(slow), signal_to(other)]
    with held_instance(driver.dsn, slow):
        for item in items:  # in one batch
            driver.engine.full_path.submit_nowait(item)
        await commit_queues.has_begun(number(other))
    await commit_queues.has_begun(number(slow))  # beside the queue, while the batch is busy with the other one
    commit_queues.gates[number(other)].set()
    await commit_queues.is_done(number(slow))
    commit_queues.gates[number(slow)].set()
    for item in items:
        await item.wait_answer()
    await driver.engine.full_path.wait_flushed()
    assert commit_queues.begun.count([number(slow)]) == 1
    assert driver.rows("SELECT count(*) FROM buffered_signal WHERE instance_id = %s", number(slow)) == [(1,)]


async def test_two_queues_may_look_for_one_commit(driver: Driver) -> None:
    """Of a transaction whose COMMIT was not answered some items may stand aside, and ask in their own time."""
    await driver.upload(EARLY)
    items: list[Command] = [signal_to((await driver.start("early")).id) for _ in range(2)]
    wide = driver.engine.full_path
    async with driver.engine.database.connection() as first, driver.engine.database.connection() as second:
        xid = str((await first.fetch(SQL["transaction_id"]))[0][0])
        transaction = driver.engine.transactions.begin(datetime.now(UTC), xid, deque())
        await transaction.writes(first, items, [])
        wide._in_doubt.append(transaction)
        async with trio.open_nursery() as nursery:
            for connection, item in zip((first, second), items, strict=True):
                nursery.start_soon(wide._resolve, connection, [item])
    assert not wide._in_doubt


async def test_what_moved_is_not_applied_by_its_old_batch_too(driver: Driver) -> None:
    moved, other = Item[None](), Item[None]()
    applied: list[list[Item[None]]] = []

    class Moving(GroupCommitQueue[Item[None]]):
        async def apply(self, connection: TrioConnection, items: list[Item[None]], again: bool) -> None:
            applied.append(list(items))
            moved.move()
            moved.moved, moved.batch = False, [moved]  # the other queue has begun with it
            other.answer(None)
            if len(applied) > 1:
                moved.answer(None)

    engine = driver.engine
    commit_queue = Moving("test", engine.database, engine.settings, engine.metrics)
    moved.batch = other.batch = [moved, other]
    await commit_queue.apply_batch([moved, other])
    assert applied == [[moved, other]]
