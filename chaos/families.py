"""Families under attack: durable runs and instances of graphs that wait for each other, while executors are killed -9,
PostgreSQL is killed, sessions are ended and families are cancelled at any time: `python -m chaos families`.

Every one ends, with the result of an undisturbed one or cancelled; nothing that it called outlives it, nothing is done
twice, and whoever is cancelled undoes.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psycopg
import trio

from chaos import orders
from chaos.families_process import GRAPH, MAKE_DEEDS, expected, family, leaf
from chaos.orders import Placed
from penstock.core.parsing.parsing import parse_definition
from penstock.durable import App
from penstock.engine.engine import Engine
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.telemetry.metrics import Metrics
from penstock.testing.invariants import find_broken

RATE: Final = 2.0
CANCELLED_SHARE: Final = 0.3
CANCEL_WITHIN_S: Final = 2.0


class Member(NamedTuple):
    """An instance, or run, of a family."""

    id: str
    definition: str
    status: int
    key: str | None
    result: str | None
    caller: str | None
    failure: str | None

    @property
    def ended(self) -> str:
        return orders.STATUSES[self.status]


_MEMBERS: Final = """
SELECT to_hex(i.id), d.id, i.status, i.business_key, (SELECT h.output ->> 'result' FROM history h
  WHERE h.instance_id = i.id AND h.kind = 1 LIMIT 1), to_hex(c.caller), i.failure
FROM instance i JOIN definition d ON d.key = i.definition LEFT JOIN called c ON c.id = i.id"""


class FamiliesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and found. ``broken`` is empty when every family ended as it should."""

    seed: str
    broken: list[str]
    counts: dict[str, int]
    ends: dict[str, int]
    instances: int
    settled_s: float


class Rig(orders.Rig):
    """The same executors, killed in the same ways, with other workflows."""

    def command(self) -> list[str]:
        return ["-m", "chaos.families_process", self.dsn]

    async def prepare(self) -> None:
        """The definition that is called, and where deeds are written."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(MAKE_DEEDS.encode())
        database = Database(self.tables, max_connections=2)
        try:
            engine = Engine(database, Settings(), Metrics("chaos"), 1_000)
            await engine.definitions.upload(parse_definition(msgspec.json.encode(GRAPH)))
        finally:
            await database.close(5.0)

    async def found(self, client: App, seconds: float, rate: float) -> None:
        """Families, one after the other."""
        rng = random.Random(f"{self.seed} families")
        until = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            while trio.current_time() < until:
                n = len(self.placed)
                placed = Placed(f"family-{n}", str(n), rng.random() < CANCELLED_SHARE)
                self.placed.append(placed)
                nursery.start_soon(self._raise, client, placed, rng.uniform(0, CANCEL_WITHIN_S))
                await trio.sleep(rng.expovariate(rate))

    async def _raise(self, client: App, placed: Placed, cancel_after_s: float) -> None:
        run = await self.ask(lambda: client.start(family, int(placed.story), id=placed.id))
        placed.instance_id = run.instance_id
        if placed.cancelled:
            await self.say(lambda: run.cancel("changed its mind"), cancel_after_s)

    def verdict(self) -> tuple[Counter[str], int]:
        """How the families ended, and of how many instances they were."""
        with psycopg.connect(self.tables) as connection:
            members = [Member(*row) for row in connection.execute(_MEMBERS.encode())]
            deeds: dict[str, set[str]] = defaultdict(set)
            for run, what in connection.execute("SELECT run, what FROM public.deed"):
                deeds[run].add(what)
        ends: Counter[str] = Counter()
        by_key = {member.key: member for member in members}
        by_id = {member.id: member for member in members}
        for placed in self.placed:
            found = by_key.get(placed.id)
            ends["MISSING" if found is None else found.ended] += 1
            self.broken += _problems(placed, found, by_key.get(f"beside-{placed.story}"))
        for member in members:
            self.broken += _of_one(member, deeds[member.id], by_id.get(member.caller or ""))
        self.broken += [str(each) for each in find_broken(self.tables)]
        return ends, len(members)


def _problems(placed: Placed, found: Member | None, beside: Member | None) -> Sequence[str]:
    """What is wrong with a family that ended so."""
    if found is None:
        return [f"{placed.id} was accepted and is not there"]
    if found.ended == "CANCELLED" and placed.cancelled:
        return []
    if found.ended != "COMPLETED":
        return [f"{placed.id} ended {found.ended}: {found.failure}"]
    broken = [] if found.result == str(expected(int(placed.story))) else [f"{placed.id} gave {found.result}"]
    if beside is None or beside.ended != "COMPLETED":
        broken.append(f"what {placed.id} started beside it: {beside}")
    return broken


def _of_one(member: Member, deeds: set[str], caller: Member | None) -> Sequence[str]:
    """What is wrong with one instance that ended so, having done that."""
    if caller is not None and caller.ended == "COMPLETED" != member.ended:
        return [f"{member.definition} {member.id} is {member.ended}, and its caller has completed: {member.failure}"]
    if member.definition != leaf.name:
        return []
    fits = deeds == {"begun", "done"} if member.ended == "COMPLETED" else "undone" in deeds
    return [] if fits else [f"{member.definition} {member.id} is {member.ended} and has {sorted(deeds)}"]


async def attack(
    directory: Path, seed: str, seconds: float, rate: float = RATE, executors: int = orders.EXECUTORS
) -> FamiliesReport:
    """Families and faults for so many seconds, then the verdict."""
    rig = Rig(directory, seed, executors)
    try:
        await rig.start()
        async with App(at=rig.dsn, migrate=True) as client:
            await client.find(family)  # the tables are there then
            await rig.prepare()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.found, client, seconds, rate)
                nursery.start_soon(rig.inject, seconds)
        settled_s = await rig.settle()
        ends, instances = rig.verdict()
    finally:
        with trio.CancelScope(shield=True):
            await rig.remove()
    return FamiliesReport(
        seed=seed,
        broken=rig.broken,
        counts=dict(rig.counts),
        ends=dict(sorted(ends.items())),
        instances=instances,
        settled_s=round(settled_s, 1),
    )
