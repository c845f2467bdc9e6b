"""The example order on executors that die, lose answers or are overtaken at each record of its journal, in memory.

Every step takes its time and then acts on the world, once for each key. Whatever happens on the way, the order ends as
it does undisturbed, and when it is cancelled, undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from math import inf

import pytest
import trio
import trio.testing

from examples import durable_order
from examples.durable_order import Approval, Line, Order, Payment, order
from penstock.durable import RunInfo
from penstock.durable.backend import Away, LeasedRun, Stored
from penstock.durable.codec import encode
from penstock.durable.executor import Executor
from penstock.durable.step import StepCall, StepInfo, current_step
from penstock.durable.step_host import StepHost
from penstock.kernel.drive import Kernel
from penstock.kernel.operation import Outcome
from penstock.kernel.record import JournalKind, Record
from penstock.kernel.replay import replay
from penstock.loop.taskless import need_task
from tests.durable.memory import BASE, Database, MemoryBackend, Row

HOUR = 3_600.0
STEP_S = 7.0
ID = "order-1"
LARGE = Order(ID, [Line("desk", 1, Decimal(900)), Line("pen", 2, Decimal(3))])
GRANTED, PAID, STOLEN = Approval("ann", granted=True), Payment("visa"), Payment("stolen")


@dataclass
class Sent:
    after_s: float
    name: str
    value: object


STORIES = {
    "shipped": [Sent(HOUR, "approval", GRANTED), Sent(2 * HOUR, "payment", PAID)],
    "declined": [Sent(HOUR, "approval", GRANTED), Sent(2 * HOUR, "payment", STOLEN)],
    "refused": [Sent(HOUR, "approval", Approval("bob", granted=False))],
    "forgotten": [Sent(HOUR, "approval", GRANTED)],
}


class World(durable_order.World):
    """In memory; answers follow from the keys."""

    def __init__(self) -> None:
        super().__init__("")
        self.deeds: dict[str, str] = {}

    def do(self, key: str, what: str, order: str, detail: str = "") -> str:
        self.deeds[key] = what
        return f"{what}@{key}"

    def did(self, what: str) -> bool:
        return what in self.deeds.values()


class InlineSteps(StepHost):
    """Steps take virtual time, then act at once: what was stopped did not act."""

    def __init__(self, begun: list[tuple[float, str]]) -> None:
        super().__init__(1, 1)
        self.begun = begun

    async def attempt(self, call: StepCall, info: StepInfo) -> Outcome:
        self.begun.append((trio.current_time(), info.key.removeprefix(ID)))
        current_step.set(info)
        await trio.sleep(STEP_S)
        args, kwargs = call.step.parameters.arguments(call.arguments)
        try:
            return Outcome(call.step.function(*args, **kwargs))
        except Exception as error:
            return Outcome(error=error)


@dataclass
class Fault:
    """Happens once, when the executor appends and the journal has ``count`` records or more."""

    count: int
    kind: str
    path: str = ""  # of a cancel
    left: int = 1


class FaultyBackend(MemoryBackend):
    """One whose process may die in the middle of a call."""

    def __init__(self, database: Database, fault: Fault, die: Callable[[], None]) -> None:
        super().__init__(database)
        self.fault, self.die = fault, die

    async def take(self, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        return await super().take(max_runs, inf)  # days of looks every 30 s would be all that is done

    async def append(self, leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
        row = self.db.runs[leased.key]
        if not self.fault.left or len(row.records) + len(records) <= self.fault.count:
            return await super().append(leased, records, after, mail)
        self.fault.left -= 1
        match self.fault.kind:
            case "before":
                await self._end()
            case "after":
                await super().append(leased, records, after, mail)
                await self._end()
            case "delivered":
                stored = await super().append(leased, records, after, mail)
                trio.lowlevel.spawn_system_task(self._die_soon)
                return stored
            case "unknown":
                await super().append(leased, records, after, mail)
                raise Away("the answer was lost")
            case "refused":
                raise Away("no connection")
            case "overtaken":  # its lease went to another one, and it does not know yet
                row.state = "ready"
                self.db.wake()
                await need_task()
                await trio.sleep(STEP_S / 2)
            case "cancel":
                stored = await super().append(leased, records, after, mail)
                self.db.notify(leased.key, Record(0, JournalKind.CANCEL, self.fault.path))
                return stored if row.mail == mail else None
            case kind:
                raise AssertionError(kind)
        return await super().append(leased, records, after, mail)

    async def _end(self) -> None:
        await need_task()
        self.die()
        await trio.sleep_forever()

    async def _die_soon(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self.die()


@dataclass
class Reported:
    """What became of a run."""

    row: Row
    world: World
    begun: list[tuple[float, str]] = field(default_factory=list)
    lives: int = 0

    @property
    def end(self) -> tuple[str | None, str | None, bool]:
        assert self.row.ending is not None
        return self.row.ending.result, self.row.ending.failure, self.row.ending.cancelled

    @property
    def kinds(self) -> list[str]:
        return sorted(f"{record.kind.name} {record.path} {record.name}" for record in self.row.records)


async def print_story(monkeypatch: pytest.MonkeyPatch, story: str, fault: Fault, *, twice: bool = False) -> Reported:
    """Runs the order to its end, with as many executors as it takes; two at a time after a take-over."""
    world = World()
    monkeypatch.setattr(durable_order, "world", world)
    database = Database()
    reported = Reported(database.start(order, LARGE, id=ID), world)

    async def customer() -> None:
        for sent in STORIES[story]:
            await trio.sleep(sent.after_s - trio.current_time() + began)
            for _ in range(1 + twice):
                database.notify(
                    ID, Record(0, JournalKind.MESSAGE, name=sent.name, payload=encode(sent.value, "message"))
                )

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(customer)
        for _ in range(2):  # a process that dies is started again
            nursery.start_soon(_process, database, fault, reported)
        await database.wait_state(ID, "ended", "blocked")
        nursery.cancel_scope.cancel()
    assert reported.row.blocked is None
    check(reported, fault)
    return reported


async def _process(database: Database, fault: Fault, reported: Reported) -> None:
    while True:
        with trio.CancelScope() as scope:
            reported.lives += 1
            executor = Executor(FaultyBackend(database, fault, scope.cancel), {(order.name, 1): order})
            executor.steps = InlineSteps(reported.begun)
            await executor.run()
        if not scope.cancelled_caught:
            return


def check(reported: Reported, fault: Fault) -> None:
    """What holds however a run came to its end; of its business only when no part of its body was left out."""
    records, world = reported.row.records, reported.world
    assert [record.pos for record in records] == sorted(record.pos for record in records)
    stopped = {record.path: record.at - BASE for record in records if record.kind is JournalKind.STOPPED}
    assert [path for at, path in reported.begun if at > stopped.get(path, at)] == [], "a step begins after its stop"
    kernel = replayed(reported, len(records))
    assert kernel.result is not None, "replayed from its journal the run does not end"
    assert (kernel.result.error is None) == (reported.end[0] is not None)
    if fault.path:  # a nursery that somebody cancels is left without a word, and the body goes on
        return
    if reported.end[0] is None:
        assert world.did("release") == world.did("reserve")
        assert world.did("refund") or not world.did("charge")
    else:
        assert [what for what in ("charge", "ship", "refund", "release") if world.did(what)] == ["charge", "ship"]


def replayed(reported: Reported, count: int) -> Kernel:
    """The run after so many of its records."""
    kernel = Kernel(BASE, RunInfo(ID, order.name, 1, datetime.fromtimestamp(BASE, UTC)))
    replay(kernel, order.body(reported.row.arguments), reported.row.records[:count])
    return kernel


def open_scopes(reported: Reported, count: int) -> list[str]:
    """The paths of the scopes that are open after so many records."""
    kernel = replayed(reported, count)
    found, todo = [], [kernel.root]
    while todo:
        scope = todo.pop()
        found.append(scope.path)
        todo.extend(scope.scopes)
    ended = kernel.result is not None
    kernel.discard()
    return [] if ended else found


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


@pytest.mark.parametrize("kind", ["before", "after", "delivered", "unknown", "refused", "overtaken"])
@pytest.mark.parametrize("story", STORIES)
async def test_a_failure_at_any_record_changes_nothing(clock, monkeypatch, story, kind):
    undisturbed = await print_story(monkeypatch, story, Fault(0, "", left=0))
    for count in range(len(undisturbed.row.records)):
        fault = Fault(count, kind)
        reported = await print_story(monkeypatch, story, fault)
        if fault.left:  # the last records were others'
            continue
        assert reported.end == undisturbed.end, count
        assert reported.world.deeds == undisturbed.world.deeds, count
        again = {kind for kind in reported.kinds if kind.startswith("RETRY ")}  # of attempts that the fault has lost
        assert set(reported.kinds) - again == set(undisturbed.kinds), count


@pytest.mark.parametrize("story", STORIES)
async def test_each_scope_can_be_cancelled_at_any_record(clock, monkeypatch, story):
    undisturbed = await print_story(monkeypatch, story, Fault(0, "", left=0))
    cancels = 0
    for count in range(len(undisturbed.row.records)):
        for path in open_scopes(undisturbed, count + 1):
            reported = await print_story(monkeypatch, story, Fault(count, "cancel", path))
            cancels += any(record.kind is JournalKind.CANCEL for record in reported.row.records)
            if path == "" and reported.end[0] is None and undisturbed.end[0] is not None:
                assert reported.end[2], "a run that was cancelled ends as cancelled"
    assert cancels > len(undisturbed.row.records)


async def test_messages_that_come_twice_are_taken_once(clock, monkeypatch):
    undisturbed = await print_story(monkeypatch, "shipped", Fault(0, "", left=0))
    reported = await print_story(monkeypatch, "shipped", Fault(0, "", left=0), twice=True)
    assert reported.end == undisturbed.end
    assert reported.world.deeds == undisturbed.world.deeds
