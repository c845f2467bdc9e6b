"""Throttled and debounced starts under `kill -9`: engines on one database, of which one dies after the other, and
PostgreSQL now and then.

    python -m chaos.spacing [--engines 2] [--seconds 60] [--seed spacing-1]

Clients start instances that a throttle puts off, some at once, and instances of which only the last of some calls is
to begin; what is not answered they ask for again. Then no engine is there for ten seconds, while much comes due. In the
end each throttled start that was answered must have begun, once, not before its time, and those that came late not
beside each other; each debounced one has the variables of the last call that was answered with it, and began when that
said at the earliest.
Exit code 1 otherwise.
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Final

import msgspec
import trio

from chaos.fleet import Fleet, fault_own_server, read_options
from chaos.starts import DEFINITION
from penstock.client import Client, Debounce, Throttle
from penstock.wire.model import Instance

KEYS: Final = 3
"""Of each kind."""
AT_ONCE: Final = 8
PACE_S: Final = 0.25
THROTTLE_LIMIT: Final = 4
LATE_S: Final = 1.0
"""By so much a start may be late without moving those behind it: `space_out`."""
SLACK_S: Final = 5.0
"""From a look at what is due to the start of it: in between an engine may be killed, or stall."""
OUTAGE_S: Final = 10.0
OUTAGE_STARTS: Final = 80
"""Of a key, that come due meanwhile and after it: at once they would be more than any stall explains."""
OUTAGE_TRIES: Final = 5
"""Where so many starts take nearly as long as they are apart, as with an engine that is just coming up, more follow."""
WAIT: Final = "PT0.4S"
SHORTEST_LINE: Final = """
SELECT min(left_s)::float8 FROM (
  SELECT extract(epoch FROM max(fire_at) - now()) AS left_s FROM timer WHERE throttle IS NOT NULL
  GROUP BY throttle ->> 1) line"""
LEFT: Final = "SELECT count(*) FROM instance WHERE status = 0"
BEGUN: Final = """
SELECT i.id, i.business_key, (i.vars ->> 'n')::int, (SELECT min(h.started_at) FROM history h WHERE h.instance_id = i.id)
FROM instance i"""
COMPLAINTS: Final = {
    "instances that did not complete": "SELECT id, status FROM instance WHERE status <> 1",
    "throttled starts with two instances": """
      SELECT business_key, count(*) FROM instance WHERE business_key LIKE 'paced-%'
      GROUP BY business_key HAVING count(*) > 1""",
    "timers that nobody has": "SELECT token_id FROM timer",
}
"""What may not be when all is done."""


class Verdict(msgspec.Struct):
    """What was seen. ``longest_s``: the longest pause between two starts of one throttle."""

    paced: int = 0
    debounced: int = 0
    longest_s: float = 0.0
    complaints: list[str] = []


class Begun(msgspec.Struct, frozen=True):
    """An instance."""

    key: str
    n: int
    at: datetime | None


class Attack:
    """One of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._verdict = Verdict()
        self._asked = [0] * KEYS
        self._paced: list[dict[str, Instance]] = [{} for _ in range(KEYS)]  # by throttle, then by business key
        self._debounced: list[tuple[int, Instance]] = []  # what each call gave, in the order of its key's
        self._over = False

    async def run(self) -> Verdict:
        """What was seen."""
        async with self._fleet.running():
            async with self._fleet.client(0) as client:
                await client.upload_definition(DEFINITION)
            async with trio.open_nursery() as nursery:
                for key in range(KEYS):
                    nursery.start_soon(self._pace, key)
                    nursery.start_soon(self._debounce, key)
                await self._fleet.strike()
                self._over = True
            await self._leave_alone()
            self._verdict.complaints += await self._fleet.ended(LEFT)
            await self._account()
        self._verdict.complaints += await self._fleet.find_broken()
        return self._verdict

    def _complain(self, text: str) -> None:
        self._verdict.complaints.append(text)

    async def _leave_alone(self) -> None:
        """All engines are killed, with starts in each line, and nobody looks for some time."""
        shortest, tries = 0.0, 0
        while shortest < OUTAGE_S and tries < OUTAGE_TRIES:
            tries += 1
            async with trio.open_nursery() as nursery:
                for key in range(KEYS):
                    for _ in range(OUTAGE_STARTS):
                        nursery.start_soon(self._start_paced, key)
            ((left_s,),) = await self._fleet.ask(SHORTEST_LINE)
            shortest = left_s or 0.0  # no line at all
        if shortest < OUTAGE_S:
            self._complain(f"a line was only {shortest:.1f} s long when the outage began")
        for engine in self._fleet.engines:
            engine.kill()
        await trio.sleep(OUTAGE_S)
        for engine in self._fleet.engines:
            engine.spawn()
        for engine in self._fleet.engines:
            await engine.wait_ready()

    async def _pace(self, key: int) -> None:
        while not self._over:
            for _ in range(AT_ONCE):
                await self._start_paced(key)
            await trio.sleep(AT_ONCE * PACE_S)

    async def _start_paced(self, key: int) -> None:
        rule = Throttle(f"paced-{key}", limit=THROTTLE_LIMIT, period="PT1S", burst=1, on_excess="DELAY")
        self._asked[key] += 1
        name = f"paced-{key}-{self._asked[key]}"
        ask = partial(
            Client.start_instance, definition_id="short", business_key=name, idempotency_key=name, throttle=rule
        )
        self._paced[key][name] = await self._fleet.surely(ask)

    async def _debounce(self, key: int) -> None:
        name, number = f"last-{key}", 0
        rule = Debounce(name, WAIT, keep="LAST")
        while not self._over:
            for _ in range(AT_ONCE):
                variables = {"n": number}
                ask = partial(
                    Client.start_instance,
                    definition_id="short", business_key=name, variables=variables, debounce=rule,
                )  # fmt: skip
                self._debounced.append((number, await self._fleet.surely(ask)))
                number += 1
            await trio.sleep(2 * AT_ONCE * PACE_S)

    async def _account(self) -> None:
        for what, question in COMPLAINTS.items():
            for row in await self._fleet.ask(question):
                self._complain(f"{what}: {row}")
        found = {id: Begun(*about) for id, *about in await self._fleet.ask(BEGUN)}
        last: dict[str, int] = {}
        for number, made in self._debounced:
            last[made.id] = number
        for number, made in self._debounced:
            self._verdict.debounced += 1
            self._check_start(made, found, number == last[made.id])
            begun = found.get(int(made.id, 16))
            if number == last[made.id] and begun is not None and begun.n < number:
                self._complain(f"{made.id} has the variables of call {begun.n}, the last was {number}")
        for key, answered in enumerate(self._paced):
            for made in answered.values():
                self._verdict.paced += 1
                self._check_start(made, found, True)
            times = [found[int(made.id, 16)].at for made in answered.values() if int(made.id, 16) in found]
            self._check_gaps(key, sorted(at.timestamp() for at in times if at is not None))

    def _check_start(self, made: Instance, found: dict[int, Begun], is_last: bool) -> None:
        begun = found.get(int(made.id, 16))
        if begun is None or begun.at is None:
            self._complain(f"{made.id} was answered, and never began")
        elif is_last and made.start_at is not None and begun.at < made.start_at:
            self._complain(f"{made.id} began at {begun.at}, before {made.start_at}")

    def _check_gaps(self, key: int, times: list[float]) -> None:
        """A start is late by `LATE_S` at most, or those behind it move: in no stretch are more than it has time for."""
        floor = float("-inf")
        for number, at in enumerate(times):
            own = at - number * PACE_S
            if floor - own > LATE_S + SLACK_S:
                self._complain(f"paced-{key}: start {number} began {floor - own:.2f} s too early")
            floor = max(floor, own)
        gaps = [after - before for before, after in pairwise(times)]
        self._verdict.longest_s = max(self._verdict.longest_s, *gaps, 0.0)


async def attack(fleet: Fleet) -> int:
    """The exit code."""
    verdict = await Attack(fleet).run()
    complaints = verdict.complaints + fleet.untried(
        throttled=verdict.paced, debounced=verdict.debounced, outage=verdict.longest_s > OUTAGE_S / 2
    )
    print(
        f"{fleet}: {verdict.paced:,} throttled starts of {KEYS} keys, {verdict.debounced:,} debounced calls; at most"
        f" {verdict.longest_s:.1f} s without a start of a key"
    )
    for complaint in complaints:
        print(complaint)
    print("broken" if complaints else "held: each start once, none before its time, late ones spaced")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(trio.run(fault_own_server, read_options(__doc__, engines=2, seed="spacing-1"), dict[str, int](), attack))
