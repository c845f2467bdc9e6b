"""The example order under attack: executors killed -9, PostgreSQL killed, sessions ended, messages sent twice, runs
cancelled at any time. All end, and each is shipped and paid, or undone: `python -m chaos orders`.

The executors are processes of their own in library mode, as a user would have them. What was done in the world outlives
them in a file.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psycopg
import trio
from psycopg.conninfo import make_conninfo

from chaos.processes import Process
from chaos.server import ROLE, Server
from examples.durable_order import Approval, Line, Order, Payment, order
from penstock.client import ClientError, Conflict
from penstock.durable import App, RunInfo
from penstock.kernel.drive import Kernel
from penstock.kernel.record import OUTCOMES, JournalKind, Record
from penstock.kernel.replay import replay
from penstock.testing.invariants import find_broken

T = TypeVar("T")

RATE = 4.0
EXECUTORS = 3
GAP_S = (0.3, 1.5)
"""Between two faults."""
LIFE_S = 5.0
"""Within so long an order hears all that it is to hear."""
SETTLE_S = 120.0
"""Leases last 30 s."""
RETRY_S = 0.2
POLL_INTERVAL_S = 0.5
ENDS: Final = {"shipped": "COMPLETED", "declined": "FAILED", "refused": "FAILED"}
STATUSES: Final = ("ACTIVE", "COMPLETED", "FAILED", "CANCELLED")


@dataclass
class Placed:
    """An order, what it is to hear, and its run."""

    id: str
    story: str
    cancelled: bool
    instance_id: str = ""


class OrdersReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and found. ``broken`` is empty when every order ended as it should."""

    seed: str
    broken: list[str]
    counts: dict[str, int]
    ends: dict[str, int]
    records: int
    settled_s: float


@dataclass
class Rig:
    """A PostgreSQL, its executors, and a client."""

    directory: Path
    seed: str
    executors: int
    server: Server = field(init=False)
    processes: list[Process] = field(default_factory=list[Process])
    placed: list[Placed] = field(default_factory=list[Placed])
    counts: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])

    @property
    def dsn(self) -> str:
        return self.server.dsn("orders", ROLE)

    @property
    def tables(self) -> str:
        """To look into the tables, which an App has in a schema of its own."""
        return make_conninfo(self.dsn, options="-c search_path=penstock")

    @property
    def world(self) -> Path:
        return self.directory / "world.sqlite3"

    def command(self) -> list[str]:
        """Of an executor, without the interpreter."""
        return ["-m", "chaos.orders_process", self.dsn, str(self.world)]

    async def start(self) -> None:
        self.server = Server(self.directory / "postgres")
        await self.server.make()
        self.server.make_database("orders")
        for number in range(self.executors):
            process = Process(f"executor-{number}", self.command(), {}, self.directory / f"executor-{number}.log")
            process.spawn()
            self.processes.append(process)

    async def remove(self) -> None:
        for process in self.processes:
            process.kill()
        await self.server.remove()

    # -- the load

    async def place(self, client: App, seconds: float, rate: float) -> None:
        """Orders, one after the other; each is told what it is to hear."""
        rng = random.Random(f"{self.seed} orders")
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            while trio.current_time() < until:
                story = rng.choice(["shipped", "shipped", "declined", "refused"])
                placed = Placed(f"order-{len(self.placed)}", story, rng.random() < 0.3)
                self.placed.append(placed)
                nursery.start_soon(self._live, client, placed, random.Random(f"{self.seed} {placed.id}"))
                await trio.sleep(rng.expovariate(rate))

    async def _live(self, client: App, placed: Placed, rng: random.Random) -> None:
        lines = [Line(f"sku-{n}", 1, Decimal(rng.randint(200, 900))) for n in range(rng.randint(1, 3))]
        large = Order(placed.id, [Line("desk", 1, Decimal(600)), *lines])  # each needs an approval
        run = await self.ask(lambda: client.start(order, large, id=placed.id))
        placed.instance_id = run.instance_id
        says: list[Callable[[], Awaitable[None]]] = []
        approval = Approval("ann", granted=placed.story != "refused")
        payment = Payment("stolen" if placed.story == "declined" else "visa")
        says.append(lambda: run.send("approval", approval, dedup="approval"))
        says.append(lambda: run.send("payment", payment, dedup="payment"))
        says += [rng.choice(says) for _ in range(rng.randint(0, 2))]  # some come twice
        if placed.cancelled:
            says.append(lambda: run.cancel("changed my mind"))
        async with trio.open_nursery() as nursery:
            for say in says:
                nursery.start_soon(self.say, say, rng.uniform(0, LIFE_S))

    async def say(self, say: Callable[[], Awaitable[None]], after_s: float) -> None:
        """In a while, if it is not too late then."""
        await trio.sleep(after_s)
        try:
            await self.ask(say)
        except Conflict:
            self.counts["said too late"] += 1

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Until it is answered; all that is asked here may be asked twice."""
        while True:
            try:
                return await call()
            except ClientError as error:
                if error.code not in ("unavailable", "too-many-requests"):
                    raise
                self.counts["asked again"] += 1
            await trio.sleep(RETRY_S)

    # -- the faults

    async def inject(self, seconds: float) -> None:
        rng = random.Random(f"{self.seed} faults")
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            await trio.sleep(rng.uniform(*GAP_S))
            fault = rng.choice([self._kill, self._kill, self._kill, self._stop, self._sessions, self._restart])
            self.counts[fault.__name__.removeprefix("_")] += 1
            await fault(rng)

    async def _kill(self, rng: random.Random) -> None:
        """kill -9 of an executor."""
        process = rng.choice(self.processes)
        process.kill()
        await trio.sleep(rng.uniform(0, 0.5))
        process.spawn()

    async def _stop(self, rng: random.Random) -> None:
        """SIGTERM: it gives its runs back."""
        process = rng.choice(self.processes)
        if process.runs:
            process.signal(signal.SIGTERM)
            with trio.move_on_after(30):
                while process.runs:
                    await trio.sleep(0.05)
            if process.runs:
                self.broken.append(f"{process.name} did not end within 30 s of its SIGTERM")
                process.kill()
            elif process.exit_code not in (0, -signal.SIGTERM):  # the latter before it had begun
                self.broken.append(f"{process.name} ended with {process.exit_code} after a SIGTERM")
        process.spawn()

    async def _sessions(self, rng: random.Random) -> None:
        """All sessions of the database are ended, in the middle of whatever they do."""
        with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'orders'")

    async def _restart(self, rng: random.Random) -> None:
        """PostgreSQL dies and recovers."""
        await self.server.kill()
        await trio.sleep(rng.uniform(0, 0.5))
        await self.server.start()

    # -- the verdict

    async def settle(self) -> float:
        """Wait until all runs have ended; how long it took."""
        began, count = time.monotonic(), -1
        while time.monotonic() - began < SETTLE_S:
            for process in self.processes:
                if not process.runs:
                    self.broken.append(f"{process.name} ended by itself with {process.exit_code}")
                    process.spawn()
            with psycopg.connect(self.tables) as connection:
                [(count,)] = connection.execute("SELECT count(*) FROM instance WHERE status = 0").fetchall()
            if not count:
                return time.monotonic() - began
            await trio.sleep(POLL_INTERVAL_S)
        self.broken.append(f"{count} runs have not ended within {SETTLE_S} s")
        return SETTLE_S

    def judge(self) -> tuple[Counter[str], int]:
        """How the orders ended, and how many records they have."""
        ends: Counter[str] = Counter()
        with closing(sqlite3.connect(self.world)) as file:
            deeds: dict[str, list[str]] = defaultdict(list)
            for ordered, what in file.execute("SELECT ordered, what FROM deed ORDER BY rowid"):
                deeds[ordered].append(what)
        with psycopg.connect(self.tables) as connection:
            rows = connection.execute(
                "SELECT business_key, id, status, vars::text, extract(epoch FROM started_at)::float8 FROM instance"
            ).fetchall()
            found: dict[str, list[Any]] = {row[0]: list(row[1:]) for row in rows}
            records = 0
            for placed in self.placed:
                if placed.id not in found:
                    self.broken.append(f"{placed.id} was accepted and is not there")
                    continue
                number, status, arguments, started_at = found[placed.id]
                name = STATUSES[int(status)]
                ends[f"{placed.story}: {name}"] += 1
                journal = _journal(connection, number)
                records += len(journal)
                if _never_began(name, deeds[placed.id], journal):
                    continue
                problems = _problems(placed, name, deeds[placed.id], journal)
                problems += _replayed(placed, name, arguments, started_at, journal)
                self.broken += [f"{placed.id} ({placed.story}, {name}): {problem}" for problem in problems]
        self.broken += [str(each) for each in find_broken(self.tables)]
        for process in self.processes:
            log = process.log.read_text(errors="replace")
            self.broken += [f"{process.name}: {line}" for line in log.splitlines() if "can't go on" in line]
        return ends, records


def _journal(connection: psycopg.Connection, instance: int) -> list[Record]:
    rows = connection.execute(
        "SELECT extract(epoch FROM at)::float8, kind, path, name, payload, digest, attempt, pos FROM journal"
        " WHERE instance_id = %s ORDER BY pos",
        (instance,),
    ).fetchall()
    return [
        Record(at, JournalKind(kind), path, name, payload, None, attempt, pos)
        for at, kind, path, name, payload, _, attempt, pos in rows
    ]


def _never_began(status: str, deeds: list[str], journal: list[Record]) -> bool:
    """Whether it was cancelled before an executor had it: it ends at once, and there is no record of the cancel."""
    return status == "CANCELLED" and not deeds and all(record.kind is JournalKind.MESSAGE for record in journal)


def _problems(placed: Placed, status: str, deeds: list[str], journal: list[Record]) -> list[str]:
    """What is wrong with an order that ended so, having done that."""
    problems: list[str] = []
    did = Counter(deeds)
    if status == "COMPLETED":
        if (did["charge"], did["ship"], did["refund"], did["release"]) != (1, 1, 0, 0):
            problems.append(f"it is shipped, and its world has {dict(did)}")
    elif (did["charge"] and not did["refund"]) or (did["reserve"] and not did["release"]):
        problems.append(f"it is not undone: its world has {dict(did)}")
    if status != ENDS[placed.story] and not (placed.cancelled and status == "CANCELLED"):
        problems.append("it ended otherwise")
    first: dict[str, Record] = {}
    for record in journal:
        if record.kind in OUTCOMES:
            before = first.setdefault(record.path, record)
            if before.kind is JournalKind.STOPPED and record.kind is not JournalKind.STOPPED:
                problems.append(f"{record.path} was stopped, and then {record.kind.name}")
    if [record.at for record in journal] != sorted(record.at for record in journal):
        problems.append("its time goes back")
    return problems


def _replayed(placed: Placed, status: str, arguments: str, started_at: float, journal: list[Record]) -> list[str]:
    kernel = Kernel(started_at, RunInfo(placed.instance_id, "order", 1, datetime.fromtimestamp(started_at, UTC)))
    try:
        replay(kernel, order.body(arguments), journal)
    except Exception as error:
        return [f"its replay is blocked: {error}"]
    if kernel.result is None:
        kernel.discard()
        return ["replayed it has not ended"]
    return [] if (kernel.result.error is None) == (status == "COMPLETED") else [f"replayed it ends by {kernel.result}"]


async def attack(
    directory: Path, seed: str, seconds: float, rate: float = RATE, executors: int = EXECUTORS
) -> OrdersReport:
    """Orders and faults for so many seconds, then the verdict. PostgreSQL's account has to get to ``directory``."""
    rig = Rig(directory, seed, executors)
    try:
        await rig.start()
        async with App(at=rig.dsn, migrate=True) as client, trio.open_nursery() as nursery:
            nursery.start_soon(rig.place, client, seconds, rate)
            nursery.start_soon(rig.inject, seconds)
        settled_s = await rig.settle()
        ends, records = rig.judge()
    finally:
        with trio.CancelScope(shield=True):
            await rig.remove()
    return OrdersReport(
        seed=seed,
        broken=rig.broken,
        counts=dict(rig.counts),
        ends=dict(sorted(ends.items())),
        records=records,
        settled_s=round(settled_s, 1),
    )
