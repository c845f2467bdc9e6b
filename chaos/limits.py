"""Limits of a queue under `kill -9`: several engines on one database, of which one dies after the other, and PostgreSQL
now and then.

    python -m chaos.limits [--engines 4] [--seconds 60] [--seed limits-1]

Clients take jobs with flow keys from all engines and complete most of them; some are forgotten until their leases end.
All the while a look of its own counts what is under lease. Nothing may exceed the limits, and when all is done the
counters must be equal to the tokens, which hold nothing. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import psycopg
import trio
from psycopg.conninfo import make_conninfo

from chaos.processes import EngineProcess
from chaos.server import Server
from penstock.client import Client
from penstock.client.errors import ClientError
from penstock.http import reserved_ports
from penstock.store.connection import TrioConnection
from penstock.testing.invariants import find_broken
from penstock.wire.model import StartRequest
from penstock.wire.queue import QueuePolicy

WHOLE, PER_KEY, KEYS = 12, 2, 10
WORKERS: Final = 3
"""Clients per engine."""
LEASE_S: Final = 2
FORGOTTEN_SHARE: Final = 0.05
KILL_EVERY_S: Final = 1.0
DATABASE_ONE_IN: Final = 6
"""Of the kills, where the database may be killed."""
DATABASE: Final = "limits"
LOOK_EVERY_S: Final = 0.02
ENDS_WITHIN_S: Final = 60.0
CALL_TIMEOUT_S: Final = 5.0
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
    kills: int = 0
    database_kills: int = 0
    looks: int = 0
    most: tuple[int, int] = (0, 0)
    broken: list[str] = []

    @property
    def complaints(self) -> list[str]:
        """Nothing, if all limits held."""
        whole, of_key = self.most
        over = [f"{whole} at once, more than {WHOLE}"] * (whole > WHOLE)
        over += [f"{of_key} at once of one key, more than {PER_KEY}"] * (of_key > PER_KEY)
        return over + self.broken


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
        self._over = False

    async def run(self) -> Verdict:
        """What was seen."""
        with reserved_ports(self._number) as ports:
            self._engines = [
                EngineProcess(
                    f"engine-{port}", self._dsn, port, self._directory / f"{port}.log", {"lease_min_seconds": 1}, None
                )
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
            finally:
                for engine in self._engines:
                    engine.kill()
        found = await trio.to_thread.run_sync(find_broken, self._eyes)
        self._verdict.broken += [str(one) for one in found]
        return self._verdict

    async def _play(self) -> None:
        async with Client(f"http://127.0.0.1:{self._engines[0].port}") as client:
            await client.upload_definition(DEFINITION)
            await client.put_queue("q", QueuePolicy(["limited"], concurrency=WHOLE, concurrency_per_key=PER_KEY))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            for number in range(self._number * WORKERS):
                nursery.start_soon(self._work, number)
            await self._strike()
            with trio.move_on_after(ENDS_WITHIN_S) as waiting:
                while await self._asked("SELECT count(*) FROM instance WHERE status = 0"):
                    await trio.sleep(LOOK_EVERY_S)
            if waiting.cancelled_caught:
                self._verdict.broken.append(f"jobs still wait {ENDS_WITHIN_S:.0f} s after the last kill")
            self._over = True
        held = await self._asked("SELECT coalesce(sum(running), 0) + count(*) FILTER (WHERE running < 0) FROM slot")
        if held:
            self._verdict.broken.append(f"{held} places are held when all is done")

    async def _strike(self) -> None:
        """Start instances, and kill one engine after the other."""
        until = trio.current_time() + self._seconds
        while trio.current_time() < until:
            await self._start()
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

    async def _start(self) -> None:
        requests = [StartRequest("limited", variables={}, flow_key=f"k{n % KEYS}") for n in range(4 * KEYS)]
        engine = self._random.choice(self._engines)
        with suppress(ClientError):
            async with Client(f"http://127.0.0.1:{engine.port}", timeout_s=CALL_TIMEOUT_S) as client:
                results = await client.start_instances(requests)
                self._verdict.started += sum(result.instance is not None for result in results)

    async def _work(self, number: int) -> None:
        rng = random.Random(number)
        url = f"http://127.0.0.1:{self._engines[number % self._number].port}"
        name = f"w{number}"
        async with Client(url, timeout_s=CALL_TIMEOUT_S) as client:
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
                async with await TrioConnection.connect(self._eyes) as eyes:
                    while not self._over:
                        ((whole, of_key),) = cast(Any, await eyes.fetch(COUNTED.encode()))
                        before = self._verdict.most
                        self._verdict.most = max(before[0], whole), max(before[1], of_key)
                        self._verdict.looks += 1
                        await trio.sleep(LOOK_EVERY_S)
            await trio.sleep(LOOK_EVERY_S)

    async def _asked(self, question: str) -> Any:
        async with await TrioConnection.connect(self._eyes) as eyes:
            return cast(Any, await eyes.fetch(question.encode()))[0][0]


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
        f"{verdict.started:,} instances, {verdict.kills} kills of engines, {verdict.database_kills} of PostgreSQL,"
        f" {verdict.looks:,} looks;"
        f" most at once {verdict.most[0]} of {WHOLE}, of one key {verdict.most[1]} of {PER_KEY}"
    )
    for complaint in verdict.complaints:
        print(complaint)
    print(
        "broken" if verdict.complaints else "held: the counters are equal to the tokens, and nothing is held at the end"
    )
    return int(bool(verdict.complaints) or not (verdict.kills and verdict.started))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="limits-1")
    sys.exit(trio.run(main, parser.parse_args()))
