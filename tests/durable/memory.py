"""Journals in memory, with the rules of the real ones: fences, mail, leases. For tests of the executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec
import trio

from penstock.durable.backend import (
    AppendPermit,
    Away,
    Beat,
    Ending,
    LeasedRun,
    RecordPage,
    RunLeaseLost,
    Shown,
    Stored,
)
from penstock.durable.child import ChildCall
from penstock.durable.duration import Duration
from penstock.durable.step import StepCall, StepInfo
from penstock.durable.workflow import Workflow
from penstock.kernel.operation import Outcome
from penstock.kernel.record import JournalKind, Record
from penstock.loop.taskless import need_task

BASE = 1_900_000_000.0
BEGINNING = 2
"""Records that come with a run."""


@dataclass
class Row:
    """A run as it stands in the database."""

    id: str
    workflow: str
    version: int
    arguments: str
    state: str = "ready"
    attempt: int = 0
    holder: int = -1
    lease_until: float = 0.0
    mail: int = 0
    expiries: int = 0
    due: float | None = None
    ending: Ending | None = None
    blocked: str | None = None
    shown: Shown = field(default_factory=Shown)
    records: list[Record] = field(default_factory=list)


class Database:
    """What several executors share."""

    def __init__(self, lease_s: float = 30.0) -> None:
        self.runs: dict[str, Row] = {}
        self.lease_s = lease_s
        self.pos = 0
        self.changed = trio.Event()
        self.backends: list[MemoryBackend] = []

    @staticmethod
    def now() -> float:
        return BASE + trio.current_time()

    def next_change_s(self) -> float:
        times = [row.due for row in self.runs.values() if row.state == "parked" and row.due is not None]
        times += [row.lease_until for row in self.runs.values() if row.state == "held"]
        return max(min(times, default=inf) - self.now(), 0.001)

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def start(self, workflow: Workflow[..., Any], *args: Any, id: str = "r", deadline: Duration | None = None) -> Row:
        arguments = workflow.encode_arguments(args, {}, deadline=deadline)
        row = self.runs[id] = Row(id, workflow.name, workflow.version, arguments)
        self.wake()
        return row

    def write(self, row: Row, record: Record) -> Stored:
        self.pos += 1
        row.records.append(msgspec.structs.replace(record, pos=self.pos, at=self.now()))
        return Stored(self.pos, self.now())

    def notify(self, id: str, record: Record) -> None:
        row = self.runs[id]
        self.write(row, record)
        row.mail += 1
        if row.state == "parked":
            row.state = "ready"
            self.wake()
        elif row.state == "held":
            self.backends[row.holder].mail.append(id)
            self.backends[row.holder].mailed.set()

    async def wait_state(self, id: str, *states: str) -> Row:
        while self.runs[id].state not in states:
            await self.changed.wait()
        return self.runs[id]


class MemoryBackend:
    """One executor's view."""

    def __init__(self, database: Database) -> None:
        self.db = database
        self.number = len(database.backends)
        database.backends.append(self)
        self.mail: list[str] = []
        self.mailed = trio.Event()
        self.away = 0  # so many calls fail
        self.is_cut_off = False  # it gets no runs
        self.appends: list[int] = []

    def _row(self, leased: LeasedRun) -> Row:
        row = self.db.runs[leased.key]
        if row.state != "held" or row.attempt != leased.attempt or row.holder != self.number:
            raise RunLeaseLost
        return row

    async def _reach(self) -> None:
        await need_task()
        await trio.lowlevel.checkpoint()
        if self.away > 0:
            self.away -= 1
            raise Away("gone for a while")

    async def take(self, max_runs: int, max_wait_s: float) -> list[LeasedRun]:
        with trio.move_on_after(max_wait_s):
            while True:
                found: list[LeasedRun] = []
                for row in self.db.runs.values():
                    if row.state == "held" and row.lease_until <= self.db.now():
                        row.state, row.expiries = "ready", row.expiries + 1
                    if row.state == "parked" and row.due is not None and row.due <= self.db.now():
                        row.state = "ready"
                    if row.state == "ready" and len(found) < max_runs and not self.is_cut_off:
                        row.state, row.attempt, row.holder = "held", row.attempt + 1, self.number
                        row.lease_until = self.db.now() + self.db.lease_s
                        fresh = row.attempt == 1 and row.mail == 0
                        name, version, arguments, lease_s = row.workflow, row.version, row.arguments, self.db.lease_s
                        page = RecordPage(row.records[:BEGINNING], row.mail, more=len(row.records) > BEGINNING)
                        leased = LeasedRun(
                            row.id, row.id, row.attempt, name, version, arguments, BASE, self.db.now(), lease_s, fresh,
                            row.expiries, page=page,
                        )  # fmt: skip
                        found.append(leased)
                if found:
                    self.db.wake()
                    return found
                with trio.move_on_after(self.db.next_change_s()):
                    await self.db.changed.wait()
        return []

    async def wait_mailbox(self) -> list[str]:
        await self.mailed.wait()
        self.mailed = trio.Event()
        found, self.mail = self.mail, []
        return found

    def was_watch(self, key: str) -> bool:
        return False

    async def read(self, leased: LeasedRun, after: int) -> RecordPage:
        await self._reach()
        row = self._row(leased)
        return RecordPage([record for record in row.records if record.pos > after], row.mail)

    async def start(self, workflow: str, version: int, arguments: str, id: str) -> str:
        raise AssertionError("no run of these tests starts another one")

    async def start_child(self, leased: LeasedRun, path: str, call: ChildCall, id: str) -> None:
        raise AssertionError("no run of these tests calls another one")

    async def cancel_child(self, leased: LeasedRun, path: str) -> bool:
        raise AssertionError("no run of these tests calls another one")

    async def transact(
        self,
        leased: LeasedRun,
        call: StepCall,
        info: StepInfo,
        after: int,
        permit: AppendPermit,
        limiter: trio.CapacityLimiter,
    ) -> Outcome:
        raise AssertionError("no step of these tests is a transaction")

    async def marks(self, leased: LeasedRun) -> list[str]:
        await self._reach()
        return [record.mark for record in self._row(leased).records if record.mark is not None]

    async def append(self, leased: LeasedRun, records: Sequence[Record], after: int, mail: int) -> list[Stored] | None:
        await self._reach()
        row = self._row(leased)
        stored = [self.db.write(row, record) for record in records]
        row.expiries = 0
        self.appends.append(len(records))
        return stored if row.mail == mail else None

    async def park(self, leased: LeasedRun, mail: int, due: float | None, shown: Shown) -> bool:
        await self._reach()
        row = self._row(leased)
        if row.mail != mail:
            return False
        row.state, row.due, row.shown = "parked", due, shown
        self.db.wake()
        return True

    async def finish(self, leased: LeasedRun, mail: int, ending: Ending) -> bool:
        await self._reach()
        row = self._row(leased)
        if row.mail != mail:
            return False
        row.state, row.ending = "ended", ending
        self.db.wake()
        return True

    async def continue_as_new(self, leased: LeasedRun, mail: int, begun: Record, kept: Sequence[int]) -> bool:
        await self._reach()
        row = self._row(leased)
        if row.mail != mail:
            return False
        if not (row.records and row.records[0].kind is JournalKind.BEGUN and row.records[0].name == begun.name):
            by_pos = {record.pos: record for record in row.records}
            messages = [by_pos[pos] for pos in kept]
            row.records.clear()
            for record in (begun, *messages):
                self.db.write(row, record)
        return True

    async def block(self, leased: LeasedRun, reason: str) -> float:
        row = self._row(leased)
        row.state, row.blocked = "blocked", reason
        self.db.wake()
        return 5.0

    async def release(self, leased: LeasedRun) -> None:
        self._row(leased).state = "ready"
        self.db.wake()

    async def waits_for(self, workflow: str) -> str | None:
        return None

    async def send(self, run_id: str, name: str, payload: str, dedup: str, *, sender: str, force: bool = False) -> None:
        await self._reach()
        self.db.notify(run_id, message(name, payload))

    async def extend(self, leased: LeasedRun, shown: Shown) -> Beat:
        await self._reach()
        row = self._row(leased)
        row.lease_until, row.shown = self.db.now() + self.db.lease_s, shown
        return Beat(self.db.lease_s, row.mail)


def kinds(row: Row) -> list[str]:
    return [f"{record.kind.name} {record.path} {record.name or ''}".strip() for record in row.records]


def message(name: str, payload: str) -> Record:
    return Record(0, JournalKind.MESSAGE, name=name, payload=payload)
