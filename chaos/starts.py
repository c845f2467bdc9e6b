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

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
import psycopg
import trio
from psycopg.conninfo import make_conninfo

from chaos.processes import EngineProcess
from chaos.server import Server
from penstock.client import Client, Dedupe, ScheduleSpec
from penstock.client.errors import ClientError
from penstock.http import reserved_ports
from penstock.store.connection import TrioConnection
from penstock.testing.invariants import find_broken
from penstock.wire.model import Instance, StartRequest

T = TypeVar("T")

SCHEDULES: Final = 10
CALLERS: Final = 3
"""At once with one key, and of each kind of start."""
BATCH_ITEMS: Final = 40
DELAY_MAX_S: Final = 2.0
KILL_EVERY_S: Final = 1.0
DATABASE_ONE_IN: Final = 6
"""Of the kills, where the database may be killed."""
DATABASE: Final = "starts"
LOOK_EVERY_S: Final = 0.05
ENDS_WITHIN_S: Final = 60.0
CALL_TIMEOUT_S: Final = 5.0
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
    kills: int = 0
    database_kills: int = 0
    complaints: list[str] = []


class Attack:
    """One of them, on one empty database."""

    def __init__(
        self, dsn: str, directory: Path, *, engines: int, seconds: float, seed: str, server: Server | None = None
    ) -> None:
        """``server``: the one of ``dsn``, if it is to be killed, too."""
        self._dsn = dsn
        self._eyes = make_conninfo(dsn, options="-c search_path=penstock,public")
        self._seconds = seconds
        self._random = random.Random(seed)
        self._directory = directory
        self._number = engines
        self._server = server
        self._engines: list[EngineProcess] = []
        self._verdict = Verdict()
        self._answered: dict[str, Instance] = {}  # by key
        self._first: dict[str, datetime] = {}  # time of each schedule
        self._batches: list[str] = []
        self._over = False

    async def run(self) -> Verdict:
        """What was seen."""
        with reserved_ports(self._number) as ports:
            self._engines = [
                EngineProcess(f"engine-{port}", self._dsn, port, self._directory / f"{port}.log", SETTINGS, None)
                for port in ports
            ]
            try:
                self._engines[0].spawn()
                await self._engines[0].wait_ready()  # it makes the schema
                for engine in self._engines[1:]:
                    engine.spawn()
                for engine in self._engines[1:]:
                    await engine.wait_ready()
                await self._play()
                await self._account()
            finally:
                for engine in self._engines:
                    engine.kill()
        found = await trio.to_thread.run_sync(find_broken, self._eyes)
        self._verdict.complaints += [str(one) for one in found]
        return self._verdict

    async def _play(self) -> None:
        spec = ScheduleSpec("short", every="PT1S", overlap="ALLOW", catch_up="ALL")
        async with Client(f"http://127.0.0.1:{self._engines[0].port}") as client:
            await client.upload_definition(DEFINITION)
            for number in range(SCHEDULES):
                made = await client.put_schedule(f"tick-{number}", spec)
                self._first[made.id] = datetime.fromisoformat(made.next_times[0])
        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(self._delay, number)
                nursery.start_soon(self._dedupe)
            nursery.start_soon(self._batch)
            await self._strike()
            self._over = True
        for id in self._first:
            await self._surely(partial(Client.pause_schedule, schedule_id=id))
        with trio.move_on_after(ENDS_WITHIN_S) as waiting:
            while await self._asked(LEFT) != [(0,)]:
                await trio.sleep(LOOK_EVERY_S)
        if waiting.cancelled_caught:
            self._verdict.complaints.append(f"not all has ended {ENDS_WITHIN_S:.0f} s after the last kill")

    async def _strike(self) -> None:
        """Kill one engine after the other, and the database now and then."""
        until = trio.current_time() + self._seconds
        while trio.current_time() < until or not self._verdict.kills:
            await trio.sleep(KILL_EVERY_S)
            if self._server is not None and not self._random.randrange(DATABASE_ONE_IN):
                await self._server.kill()
                await self._server.start()
                self._verdict.database_kills += 1
            engine = self._random.choice(self._engines)
            if await engine.is_ready():
                engine.kill()
                engine.spawn()
                self._verdict.kills += 1
        for engine in self._engines:
            await engine.wait_ready()

    async def _surely(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """The answer, of whichever engine; what is asked may be asked twice."""
        while True:
            engine = self._random.choice(self._engines)
            with suppress(ClientError):
                async with Client(f"http://127.0.0.1:{engine.port}", timeout_s=CALL_TIMEOUT_S) as client:
                    return await ask(client)
            await trio.sleep(LOOK_EVERY_S)

    async def _delay(self, caller: int) -> None:
        rng, number = random.Random(caller), 0
        while not self._over:
            key, delay = f"later-{caller}-{number}", f"PT{rng.uniform(0.05, DELAY_MAX_S):.3f}S"
            ask = partial(
                Client.start_instance, definition_id="short", business_key=key, idempotency_key=key, delay=delay
            )
            self._answered[key] = await self._surely(ask)
            self._verdict.delayed += 1
            number += 1

    async def _dedupe(self) -> None:
        """With the keys of its neighbours, at about the same time."""
        number = 0
        while not self._over:
            key = f"once-{number}"
            ask = partial(Client.start_instance, definition_id="short", business_key=key, dedupe=Dedupe(key, "PT1H"))
            made = await self._surely(ask)
            if self._answered.setdefault(key, made).id != made.id:
                self._verdict.complaints.append(f"{key}: two callers were given two instances")
            self._verdict.deduplicated += 1
            number += 1

    async def _batch(self) -> None:
        number = 0
        while not self._over:
            items = [StartRequest("short", variables={"n": n}) for n in range(BATCH_ITEMS)]
            ask = partial(Client.start_batch, items=items, idempotency_key=f"batch-{number}", on_complete="short")
            self._batches.append((await self._surely(ask)).id)
            self._verdict.batches += 1
            number += 1
            await trio.sleep(KILL_EVERY_S / 2)

    async def _account(self) -> None:
        for what, question in COMPLAINTS.items():
            for row in await self._asked(question):
                self._verdict.complaints.append(f"{what}: {row}")
        found = {key: about for key, *about in await self._asked(KEYED)}
        for key, made in self._answered.items():
            id, begun = found.get(key, (None, None))
            if id != int(made.id, 16):
                self._verdict.complaints.append(f"{key}: instance {made.id} was answered, {id} is there")
            elif made.start_at is not None and (begun is None or begun < made.start_at):
                self._verdict.complaints.append(f"{key}: began at {begun}, before {made.start_at}")
        for schedule, first in await self._asked("SELECT schedule, min(at) FROM scheduled GROUP BY schedule"):
            if first > self._first[schedule]:
                self._verdict.complaints.append(f"{schedule}: {self._first[schedule]} is left out")
        for id in self._batches:
            batch = await self._surely(partial(Client.get_batch, batch_id=id))
            if (batch.state, batch.completed, batch.completion_id is None) != ("DONE", BATCH_ITEMS, False):
                self._verdict.complaints.append(f"batch {id}: {batch}")
        ((self._verdict.fired,),) = await self._asked("SELECT count(*) FROM scheduled")

    async def _asked(self, question: str) -> Any:
        while True:
            with suppress(psycopg.OperationalError):  # it was killed
                async with await TrioConnection.connect(self._eyes) as eyes:
                    return cast(Any, await eyes.fetch(question.encode()))
            await trio.sleep(LOOK_EVERY_S)


async def main(options: argparse.Namespace) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    server = Server(directory / "postgres")
    (directory / "postgres").mkdir(mode=0o755)
    try:
        await server.make()
        server.make_database(DATABASE)
        dsn = server.dsn(DATABASE)
        attack = Attack(
            dsn, directory, engines=options.engines, seconds=options.seconds, seed=options.seed, server=server
        )
        verdict = await attack.run()
    finally:
        with trio.CancelScope(shield=True):
            await server.remove()
        shutil.rmtree(directory)
    print(
        f"{verdict.kills} kills of engines, {verdict.database_kills} of PostgreSQL: {verdict.fired:,} firings of"
        f" {SCHEDULES} schedules, {verdict.delayed:,} delayed starts, {verdict.deduplicated:,} calls with shared keys,"
        f" {verdict.batches:,} batches of {BATCH_ITEMS}"
    )
    for complaint in verdict.complaints:
        print(complaint)
    print("broken" if verdict.complaints else "held: each firing, start and item once, and none lost")
    return int(bool(verdict.complaints) or not (verdict.kills and verdict.fired and verdict.batches))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="starts-1")
    sys.exit(trio.run(main, parser.parse_args()))
