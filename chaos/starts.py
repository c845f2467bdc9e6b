"""Schedules, delayed and deduplicated starts and batches under `kill -9`: engines on one database, of which one dies
after the other, and PostgreSQL now and then.

    python -m chaos.starts [--engines 3] [--seconds 60] [--seed starts-1]

Schedules fire each second all the while (`catchUp: ALL`: none may be left out). Clients start instances that begin
later, several at once with one `dedupe` key, and batches with an end of their own; what is not answered they ask for
again with the same key. In the end each second of each schedule must have one instance, each start that was answered
one, which did not begin before its time, each key one, and each batch an instance for each item and one for its end.
Exit code 1 otherwise.
"""

from __future__ import annotations

import random
import sys
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
import trio

from chaos.fleet import KILL_EVERY_S, Fleet, fault_own_server, read_options
from penstock.client import Client, Dedupe, ScheduleSpec
from penstock.wire.model import Instance, StartRequest

SCHEDULES: Final = 10
CALLERS: Final = 3
"""At once with one key, and of each kind of start."""
BATCH_ITEMS: Final = 40
DELAY_MAX_S: Final = 2.0
SETTINGS: Final = {"start_batch_lease_seconds": 2, "start_batch_look_max_seconds": 1}
DEFINITION: Final = msgspec.json.encode(
    {
        "id": "short",
        "name": "short",
        "steps": [
            {"id": "pause", "name": "pause", "type": "WAIT", "duration": "PT0.1S", "nextStep": "end"},
            {"id": "end", "name": "end", "type": "END"},
        ],
    }
)
LEFT: Final = """
SELECT (SELECT count(*) FROM instance WHERE status = 0) + (SELECT count(*) FROM batch WHERE ended_at IS NULL)"""
KEYED: Final = """
SELECT i.business_key, i.id, (SELECT min(h.started_at) FROM history h WHERE h.instance_id = i.id)
FROM instance i WHERE i.business_key IS NOT NULL"""
COMPLAINTS: Final = {
    "times of schedules without an instance, or with two": """
      SELECT schedule, count(*), count(DISTINCT at), extract(epoch FROM max(at) - min(at))::int + 1
      FROM scheduled GROUP BY schedule
      HAVING count(*) <> count(DISTINCT at) OR count(*) <> extract(epoch FROM max(at) - min(at))::int + 1""",
    "schedules whose mark is not where they stopped": """
      SELECT s.name, s.done_until, max(d.at) FROM schedule s LEFT JOIN scheduled d ON d.schedule = s.name
      GROUP BY s.name, s.done_until
      HAVING floor(extract(epoch FROM s.done_until)) IS DISTINCT FROM extract(epoch FROM max(d.at))""",
    "instances that did not complete": "SELECT id, status FROM instance WHERE status <> 1",
    "keys with two instances": """
      SELECT business_key, count(*) FROM instance WHERE business_key IS NOT NULL
      GROUP BY business_key HAVING count(*) > 1""",
    "batches whose items are not all started, once": """
      SELECT b.id, b.total, count(i.instance_id), count(DISTINCT i.instance_id)
      FROM batch b JOIN batch_item i ON i.batch = b.id GROUP BY b.id, b.total
      HAVING count(i.instance_id) <> b.total + 1 OR count(DISTINCT i.instance_id) <> b.total + 1""",
    "instances of batches that are not items": """
      SELECT i.id, i.started_by FROM instance i WHERE starts_with(i.started_by, 'batch:')
      AND NOT EXISTS (SELECT FROM batch_item b WHERE b.instance_id = i.id)""",
}
"""What may not be when all is done."""


class Verdict(msgspec.Struct):
    """What was seen."""

    fired: int = 0
    delayed: int = 0
    deduplicated: int = 0
    batches: int = 0
    complaints: list[str] = []


class Attack:
    """One of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._verdict = Verdict()
        self._answered: dict[str, Instance] = {}  # by key
        self._first: dict[str, datetime] = {}  # time of each schedule
        self._batches: list[str] = []
        self._over = False

    async def run(self) -> Verdict:
        """What was seen."""
        async with self._fleet.running():
            await self._play()
            await self._account()
        self._verdict.complaints += await self._fleet.find_broken()
        return self._verdict

    async def _play(self) -> None:
        spec = ScheduleSpec("short", every="PT1S", overlap="ALLOW", catch_up="ALL")
        async with self._fleet.client(0) as client:
            await client.upload_definition(DEFINITION)
            for number in range(SCHEDULES):
                made = await client.put_schedule(f"tick-{number}", spec)
                self._first[made.id] = datetime.fromisoformat(made.next_times[0])
        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(self._delay, number)
                nursery.start_soon(self._dedupe)
            nursery.start_soon(self._batch)
            await self._fleet.strike()
            self._over = True
        for id in self._first:
            await self._fleet.surely(partial(Client.pause_schedule, schedule_id=id))
        self._verdict.complaints += await self._fleet.ended(LEFT)

    async def _delay(self, caller: int) -> None:
        rng, number = random.Random(caller), 0
        while not self._over:
            key, delay = f"later-{caller}-{number}", f"PT{rng.uniform(0.05, DELAY_MAX_S):.3f}S"
            ask = partial(
                Client.start_instance, definition_id="short", business_key=key, idempotency_key=key, delay=delay
            )
            self._answered[key] = await self._fleet.surely(ask)
            self._verdict.delayed += 1
            number += 1

    async def _dedupe(self) -> None:
        """With the keys of its neighbours, at about the same time."""
        number = 0
        while not self._over:
            key = f"once-{number}"
            ask = partial(Client.start_instance, definition_id="short", business_key=key, dedupe=Dedupe(key, "PT1H"))
            made = await self._fleet.surely(ask)
            if self._answered.setdefault(key, made).id != made.id:
                self._verdict.complaints.append(f"{key}: two callers were given two instances")
            self._verdict.deduplicated += 1
            number += 1

    async def _batch(self) -> None:
        number = 0
        while not self._over:
            items = [StartRequest("short", variables={"n": n}) for n in range(BATCH_ITEMS)]
            ask = partial(Client.start_batch, items=items, idempotency_key=f"batch-{number}", on_complete="short")
            self._batches.append((await self._fleet.surely(ask)).id)
            self._verdict.batches += 1
            number += 1
            await trio.sleep(KILL_EVERY_S / 2)

    async def _account(self) -> None:
        for what, question in COMPLAINTS.items():
            for row in await self._fleet.ask(question):
                self._verdict.complaints.append(f"{what}: {row}")
        found = {key: about for key, *about in await self._fleet.ask(KEYED)}
        for key, made in self._answered.items():
            id, begun = found.get(key, (None, None))
            if id != int(made.id, 16):
                self._verdict.complaints.append(f"{key}: instance {made.id} was answered, {id} is there")
            elif made.start_at is not None and (begun is None or begun < made.start_at):
                self._verdict.complaints.append(f"{key}: began at {begun}, before {made.start_at}")
        for schedule, first in await self._fleet.ask("SELECT schedule, min(at) FROM scheduled GROUP BY schedule"):
            if first > self._first[schedule]:
                self._verdict.complaints.append(f"{schedule}: {self._first[schedule]} is left out")
        for id in self._batches:
            batch = await self._fleet.surely(partial(Client.get_batch, batch_id=id))
            if (batch.state, batch.completed, batch.completion_id is None) != ("DONE", BATCH_ITEMS, False):
                self._verdict.complaints.append(f"batch {id}: {batch}")
        ((self._verdict.fired,),) = await self._fleet.ask("SELECT count(*) FROM scheduled")


async def attack(fleet: Fleet) -> int:
    """The exit code."""
    verdict = await Attack(fleet).run()
    complaints = verdict.complaints + fleet.untried(
        firings=verdict.fired, delayed=verdict.delayed, deduplicated=verdict.deduplicated, batches=verdict.batches
    )
    print(
        f"{fleet}: {verdict.fired:,} firings of {SCHEDULES} schedules, {verdict.delayed:,} delayed starts,"
        f" {verdict.deduplicated:,} calls with shared keys, {verdict.batches:,} batches of {BATCH_ITEMS}"
    )
    for complaint in complaints:
        print(complaint)
    print("broken" if complaints else "held: each firing, start and item once, and none lost")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(trio.run(fault_own_server, read_options(__doc__, engines=3, seed="starts-1"), SETTINGS, attack))
