"""Limits of a queue under `kill -9`: several engines on one database, of which one dies after the other, and PostgreSQL
now and then.

    python -m chaos.limits [--engines 4] [--seconds 60] [--seed limits-1]

Clients take jobs with flow keys from all engines and complete most of them; some are forgotten until their leases end.
All the while a look of its own counts what is under lease. Nothing may exceed the limits, and when all is done the
counters must be equal to the tokens, which hold nothing. Exit code 1 otherwise.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
import psycopg
import trio

from chaos.fleet import KILL_EVERY_S, Fleet, fault_own_server, read_options
from penstock.client.errors import ClientError
from penstock.store.db.connection import TrioConnection
from penstock.wire.model import StartRequest
from penstock.wire.queue import QueuePolicy

WHOLE, PER_KEY, KEYS = 12, 2, 10
WORKERS: Final = 3
"""Clients per engine."""
LEASE_S: Final = 2
FORGOTTEN_SHARE: Final = 0.05
POLL_INTERVAL_S: Final = 0.02
ENDS_WITHIN_S: Final = 60.0
SETTINGS: Final = {"lease_min_seconds": 1}
DEFINITION: Final = msgspec.json.encode(
    {
        "id": "limited",
        "name": "limited",
        "steps": [
            {"id": "a", "name": "a", "type": "SERVICE_TASK", "jobType": "limited", "nextStep": "b"},
            {"id": "b", "name": "b", "type": "SERVICE_TASK", "jobType": "limited", "nextStep": "end"},
            {"id": "end", "name": "end", "type": "END"},
        ],
    }
)
COUNTED: Final = """
SELECT (SELECT count(*) FROM token WHERE state = 1),
  coalesce((SELECT max(n) FROM (SELECT count(*) AS n FROM token WHERE state = 1 GROUP BY flow_key) x), 0)"""


class Verdict(msgspec.Struct):
    """What was seen. ``most`` at once: in all, and of one key."""

    started: int = 0
    polls: int = 0
    most: tuple[int, int] = (0, 0)
    complaints: list[str] = []


class Attack:
    """One of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._verdict = Verdict()
        self._over = False

    async def run(self) -> Verdict:
        """What was seen."""
        async with self._fleet.running():
            await self._play()
        whole, of_key = self._verdict.most
        if whole > WHOLE:
            self._verdict.complaints.append(f"{whole} at once, more than {WHOLE}")
        if of_key > PER_KEY:
            self._verdict.complaints.append(f"{of_key} at once of one key, more than {PER_KEY}")
        self._verdict.complaints += await self._fleet.find_broken()
        return self._verdict

    async def _play(self) -> None:
        async with self._fleet.client(0) as client:
            await client.upload_definition(DEFINITION)
            await client.put_queue("q", QueuePolicy(["limited"], concurrency=WHOLE, concurrency_per_key=PER_KEY))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            for number in range(len(self._fleet.engines) * WORKERS):
                nursery.start_soon(self._work, number)
            async with trio.open_nursery() as starting:
                starting.start_soon(self._start)
                await self._fleet.strike()
                starting.cancel_scope.cancel()
            with trio.move_on_after(ENDS_WITHIN_S) as waiting:
                while await self._count("SELECT count(*) FROM instance WHERE status = 0"):
                    await trio.sleep(POLL_INTERVAL_S)
            if waiting.cancelled_caught:
                self._verdict.complaints.append(f"jobs still wait {ENDS_WITHIN_S:.0f} s after the last kill")
            self._over = True
        held = await self._count("SELECT coalesce(sum(running), 0) + count(*) FILTER (WHERE running < 0) FROM slot")
        if held:
            self._verdict.complaints.append(f"{held} places are held when all is done")

    async def _start(self) -> None:
        requests = [StartRequest("limited", variables={}, flow_key=f"k{n % KEYS}") for n in range(4 * KEYS)]
        while True:
            with suppress(ClientError):
                async with self._fleet.client() as client:
                    results = await client.start_instances(requests)
                    self._verdict.started += sum(result.instance is not None for result in results)
            await trio.sleep(KILL_EVERY_S)

    async def _work(self, number: int) -> None:
        rng = random.Random(number)
        name = f"w{number}"
        async with self._fleet.client(number) as client:
            while not self._over:
                with suppress(ClientError):
                    for job in await client.poll_jobs(name, ["limited"], max_jobs=2, lease_s=LEASE_S, wait_s=1):
                        await trio.sleep(rng.uniform(0, 0.03))
                        if rng.random() >= FORGOTTEN_SHARE:
                            await client.complete_job(job.id, name, attempt=job.attempt)
                await trio.sleep(0.01)

    async def _watch(self) -> None:
        while not self._over:
            with suppress(psycopg.OperationalError):  # it was killed
                async with await TrioConnection.connect(self._fleet.eyes) as eyes:
                    while not self._over:
                        ((whole, of_key),) = cast(Any, await eyes.fetch(COUNTED.encode()))
                        before = self._verdict.most
                        self._verdict.most = max(before[0], whole), max(before[1], of_key)
                        self._verdict.polls += 1
                        await trio.sleep(POLL_INTERVAL_S)
            await trio.sleep(POLL_INTERVAL_S)

    async def _count(self, question: str) -> int:
        ((count,),) = await self._fleet.ask(question)
        return int(count)


async def attack(fleet: Fleet) -> int:
    """The exit code."""
    verdict = await Attack(fleet).run()
    complaints = verdict.complaints + fleet.untried(
        starts=verdict.started, polls=verdict.polls, jobs_at_once=verdict.most[0]
    )
    print(
        f"{verdict.started:,} instances, {fleet}, {verdict.polls:,} looks;"
        f" most at once {verdict.most[0]} of {WHOLE}, of one key {verdict.most[1]} of {PER_KEY}"
    )
    for complaint in complaints:
        print(complaint)
    print("broken" if complaints else "held: the counters are equal to the tokens, and nothing is held at the end")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(trio.run(fault_own_server, read_options(__doc__, engines=4, seed="limits-1"), SETTINGS, attack))
