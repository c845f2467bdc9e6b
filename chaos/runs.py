"""Durable workflows against an engine, while it, its executors and PostgreSQL are killed.

    python -m chaos.runs [--runs 10000] [--executors 3] [--restarts 2] [--seed runs-1]

Executors (`chaos.run_executor`) take runs over gRPC from `penstock serve`; one of them is killed every two seconds and
another one comes, the engine is killed once, and PostgreSQL is restarted while they work. Each run books twice in a
database of its own, starts steps side by side and some a child, and waits for a message; some are cancelled, at any
moment. Each has to end with the result of an undisturbed one, or cancelled with its clean-up done; nothing is booked
twice. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import psycopg
import trio
from psycopg.conninfo import make_conninfo

from chaos.processes import EngineProcess, Process
from chaos.run_executor import ENGINE, LEDGER, RETRIES, STEP_RETRIES, TABLES, errand, result_of
from chaos.server import Server
from penstock.client.errors import Conflict
from penstock.durable import App, RunCancelled, RunFailed
from penstock.durable.run import Run
from penstock.durable.transaction import STEP_TABLE
from penstock.http import reserved_ports
from penstock.testing.invariants import find_broken

OPEN_RUNS: Final = 200
CANCELLED_SHARE: Final = 0.1
MISFITS_SHARE: Final = 0.2
CANCEL_WITHIN_S: Final = 2.0
KILL_EVERY_S: Final = 2.0
LAST_FROM: Final = 0.9
"""The last part of the runs begins when the engine was killed and PostgreSQL restarted."""
ENDS_WITHIN_S: Final = 120.0
"""After its start a run has so long, whatever was killed meanwhile."""
SETTINGS: Final = {"outage_wait_seconds": 60, "lease_default_seconds": 5, "lease_min_seconds": 1}


class Verdict(msgspec.Struct):
    """What was seen."""

    completed: int = 0
    cancelled: int = 0
    executor_kills: int = 0
    engine_kills: int = 0
    restarts: int = 0
    complaints: list[str] = []


class Attack:
    """One of them. ``restart`` stops and starts PostgreSQL. One that ``goes_on`` begins runs until it has struck for
    the last time, however many they are."""

    def __init__(
        self,
        dsn: str,
        ledger: str,
        directory: Path,
        *,
        runs: int,
        executors: int,
        seed: str,
        restarts: int = 0,
        restart: Callable[[], Awaitable[None]] | None = None,
        ends_within_s: float = ENDS_WITHIN_S,
        step_retries: int = RETRIES,
        kill_every_s: float = KILL_EVERY_S,
        goes_on: bool = False,
    ) -> None:
        self._dsn, self._ledger, self._directory = dsn, ledger, directory
        self._runs, self._number = runs, executors
        self._restarts, self._restart = restarts, restart
        self._ends_within_s, self._step_retries, self._kill_every_s = ends_within_s, step_retries, kill_every_s
        self._goes_on = goes_on
        self._random = random.Random(seed)
        self._verdict = Verdict()
        self._begun = 0
        self._completed: list[int] = []
        self._cancelled: list[int] = []
        self._executors: list[Process] = []
        self._struck = trio.Event()

    async def run(self) -> Verdict:
        """What was seen."""
        with psycopg.connect(self._ledger) as connection:
            connection.execute(TABLES.encode())
            connection.execute(STEP_TABLE.encode())
        with reserved_ports(2) as (port, grpc_port):
            log = self._directory / "engine.log"
            engine = EngineProcess("engine", self._dsn, port, log, SETTINGS, None, grpc_port=grpc_port)
            at = f"grpc://127.0.0.1:{grpc_port}"
            environment = {ENGINE: at, LEDGER: self._ledger, STEP_RETRIES: str(self._step_retries)}
            self._executors = [
                Process(f"executor-{n}", ["-m", "chaos.run_executor"], environment, self._directory / f"{n}.log")
                for n in range(self._number)
            ]
            try:
                engine.spawn()
                await engine.wait_ready()
                for executor in self._executors:
                    executor.spawn()
                await self._play(at, engine)
            finally:
                for process in (*self._executors, engine):
                    process.kill()
        self._judge()
        eyes = make_conninfo(self._dsn, options="-c search_path=penstock,public")
        found = await trio.to_thread.run_sync(find_broken, eyes)
        self._verdict.complaints += [str(one) for one in found]
        return self._verdict

    async def _play(self, at: str, engine: EngineProcess) -> None:
        async with App(at=at) as app, trio.open_nursery() as nursery:
            nursery.start_soon(self._strike, engine)
            room = trio.CapacityLimiter(OPEN_RUNS)
            async with trio.open_nursery() as users:
                for number in itertools.count():
                    if number >= self._runs and (self._struck.is_set() or not self._goes_on):
                        break
                    if number >= self._runs * LAST_FROM and not self._goes_on:
                        await self._struck.wait()
                    await room.acquire_on_behalf_of(number)
                    users.start_soon(self._use, app, number, room)
            nursery.cancel_scope.cancel()

    async def _use(self, app: App, number: int, room: trio.CapacityLimiter) -> None:
        try:
            run = await app.start(errand, number, id=f"e-{number}")
            self._begun += 1
            if self._random.random() < CANCELLED_SHARE:
                await trio.sleep(self._random.uniform(0, CANCEL_WITHIN_S))
                await self._unless_ended(run.cancel("enough"))
            if self._random.random() < MISFITS_SHARE:  # it is rejected, and the run waits on
                await self._unless_ended(run.send("go", f"{number}", force=True))
            await self._unless_ended(run.send("go", number))
            await self._see(run, number)
        except Exception as error:
            self._verdict.complaints.append(f"{number}: {error!r}")
        finally:
            room.release_on_behalf_of(number)

    async def _unless_ended(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Conflict:
            return

    async def _see(self, run: Run[int], number: int) -> None:
        try:
            found = await run.result(self._ends_within_s)
        except RunCancelled:
            self._verdict.cancelled += 1
            self._cancelled.append(number)
            return
        except RunFailed as error:
            self._verdict.complaints.append(f"{number} failed: {error}")
            return
        self._verdict.completed += 1
        self._completed.append(number)
        if found != result_of(number):
            self._verdict.complaints.append(f"{number} gave {found} in place of {result_of(number)}")

    async def _strike(self, engine: EngineProcess) -> None:
        """One executor after the other, and after each one of the others at most, at even parts of the runs."""
        hits = [*["postgres"] * self._restarts, "engine"]
        self._random.shuffle(hits)
        before_last = int(self._runs * LAST_FROM)  # the others wait until all of it has happened
        due = {(place + 1) * before_last // (len(hits) + 1): hit for place, hit in enumerate(hits)}
        while True:
            await trio.sleep(self._kill_every_s)
            executor = self._random.choice(self._executors)
            executor.kill()
            executor.spawn()
            self._verdict.executor_kills += 1
            if due and (begun := min(due)) <= self._begun:
                if due.pop(begun) == "engine":
                    engine.kill()
                    engine.spawn()
                    self._verdict.engine_kills += 1
                elif self._restart is not None:
                    await self._restart()
                    self._verdict.restarts += 1
            if not due:
                self._struck.set()

    def _judge(self) -> None:
        """What stands in the ledger."""
        with psycopg.connect(self._ledger) as connection:
            booked = Counter(cast("list[Any]", connection.execute("SELECT number, place FROM booked").fetchall()))
            undone = Counter(number for (number,) in connection.execute("SELECT number FROM undone").fetchall())
        complaints = self._verdict.complaints
        complaints += [f"{at} is booked {count} times" for at, count in booked.items() if count > 1]
        complaints += [f"{number} was undone {count} times" for number, count in undone.items() if count > 1]
        for number in self._completed:
            if (booked[number, 1], booked[number, 2], undone[number]) != (1, 1, 0):
                complaints.append(f"{number} completed, and not all of it stands in the ledger")
        complaints += [
            f"{number} was cancelled, and its clean-up is missing"
            for number in self._cancelled
            if booked[number, 1] and not undone[number]
        ]


async def main(options: argparse.Namespace) -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        server = Server(directory / "postgres")
        await server.make()

        async def restart() -> None:
            await server.stop()
            await server.start()

        try:
            for database in ("runs", "ledger"):
                server.make_database(database)
            attack = Attack(
                server.dsn("runs"), server.dsn("ledger"), directory, runs=options.runs, executors=options.executors,
                seed=options.seed, restarts=options.restarts, restart=restart,
            )  # fmt: skip
            verdict = await attack.run()
        finally:
            with trio.CancelScope(shield=True):
                await server.remove()
    print(
        f"{verdict.completed:,} runs completed, {verdict.cancelled:,} cancelled;"
        f" killed: {verdict.executor_kills} executors, {verdict.engine_kills} engines;"
        f" {verdict.restarts} restarts of PostgreSQL"
    )
    for complaint in verdict.complaints[:20]:
        print(complaint)
    return int(bool(verdict.complaints) or verdict.completed + verdict.cancelled != options.runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--executors", type=int, default=3)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--seed", default="runs-1")
    sys.exit(trio.run(main, parser.parse_args()))
