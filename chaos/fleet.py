"""Engines on one database, of which one dies after the other by `kill -9`, and PostgreSQL now and then: what
``chaos.limits``, ``chaos.starts`` and ``chaos.spacing`` have in common.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import psycopg
import trio
from psycopg.conninfo import make_conninfo

from chaos.processes import EngineProcess
from chaos.server import Server
from penstock.client import Client
from penstock.client.errors import ClientError
from penstock.http import reserved_ports
from penstock.store.db.connection import TrioConnection
from penstock.testing.invariants import find_broken

T = TypeVar("T")

KILL_EVERY_S: Final = 1.0
DATABASE_ONE_IN: Final = 6
"""Of the kills, where the database may be killed."""
POLL_INTERVAL_S: Final = 0.05
ENDS_WITHIN_S: Final = 60.0
"""After the last kill, all that was begun must have ended."""
CALL_TIMEOUT_S: Final = 5.0
DATABASE: Final = "fleet"


class Fleet:
    """They, on one empty database."""

    def __init__(
        self,
        dsn: str,
        directory: Path,
        settings: Mapping[str, int],
        *,
        engines: int,
        seconds: float,
        seed: str,
        server: Server | None = None,
    ) -> None:
        """``seconds``: how long they are killed. ``server``: the one of ``dsn``, if it is to be killed, too."""
        self._dsn = dsn
        self.eyes = make_conninfo(dsn, options="-c search_path=penstock,public")
        self._directory = directory
        self._settings = settings
        self._number = engines
        self._seconds = seconds
        self._random = random.Random(seed)
        self._server = server
        self.engines: list[EngineProcess] = []
        self.kills = 0
        self.database_kills = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """All of them, ready."""
        with reserved_ports(self._number) as ports:
            self.engines = [
                EngineProcess(
                    f"engine-{port}", self._dsn, port, self._directory / f"{port}.log", dict(self._settings), None
                )
                for port in ports
            ]
            try:
                self.engines[0].spawn()
                await self.engines[0].wait_ready()  # it makes the schema
                for engine in self.engines[1:]:
                    engine.spawn()
                for engine in self.engines[1:]:
                    await engine.wait_ready()
                yield
            finally:
                for engine in self.engines:
                    engine.kill()

    async def strike(self) -> None:
        """Kill one engine after the other, at least one, and the database now and then; all are ready at the end."""
        until = trio.current_time() + self._seconds
        while trio.current_time() < until or not self.kills:
            await trio.sleep(KILL_EVERY_S)
            if self._server is not None and not self._random.randrange(DATABASE_ONE_IN):
                await self._server.kill()
                await self._server.start()
                self.database_kills += 1
            engine = self._random.choice(self.engines)
            if await engine.is_ready():
                engine.kill()
                engine.spawn()
                self.kills += 1
        for engine in self.engines:
            await engine.wait_ready()

    def client(self, number: int | None = None) -> Client:
        """Of the engine of that number, or of any."""
        engine = self._random.choice(self.engines) if number is None else self.engines[number % len(self.engines)]
        return Client(f"http://127.0.0.1:{engine.port}", timeout_s=CALL_TIMEOUT_S)

    async def surely(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """The answer, of whichever engine; what is asked may be asked twice."""
        while True:
            with suppress(ClientError):
                async with self.client() as client:
                    return await ask(client)
            await trio.sleep(POLL_INTERVAL_S)

    async def ended(self, left: str) -> list[str]:
        """Waits until a question for what is left is answered by 0; a complaint when it never is."""
        with trio.move_on_after(ENDS_WITHIN_S):
            while await self.ask(left) != [(0,)]:
                await trio.sleep(POLL_INTERVAL_S)
            return []
        return [f"not all has ended {ENDS_WITHIN_S:.0f} s after the last kill"]

    async def ask(self, question: str) -> list[Any]:
        """Rows of the database, when it is there."""
        while True:
            with suppress(psycopg.OperationalError):  # it was killed
                async with await TrioConnection.connect(self.eyes) as eyes:
                    return cast(list[Any], await eyes.fetch(question.encode()))
            await trio.sleep(POLL_INTERVAL_S)

    async def find_broken(self) -> list[str]:
        """Which invariants of the tables do not hold."""
        return [str(one) for one in await trio.to_thread.run_sync(find_broken, self.eyes)]

    def untried(self, **seen: float) -> list[str]:
        """A complaint for each of these that there was nothing of, or no kill: then nothing was attacked."""
        return [f"an attack without {what}" for what, count in {"kills": self.kills, **seen}.items() if not count]

    def __str__(self) -> str:
        return f"{self.kills} kills of engines, {self.database_kills} of PostgreSQL"


def read_options(description: str | None, *, engines: int, seed: str) -> argparse.Namespace:
    """Of a command line: ``engines``, ``seconds``, ``seed``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=engines)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default=seed)
    return parser.parse_args()


async def fault_own_server(
    options: argparse.Namespace, settings: Mapping[str, int], attack: Callable[[Fleet], Awaitable[T]]
) -> T:
    """What ``attack`` saw of a fleet on a PostgreSQL of its own, which is removed then."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    server = Server(directory / "postgres")
    (directory / "postgres").mkdir(mode=0o755)
    try:
        await server.make()
        server.make_database(DATABASE)
        return await attack(
            Fleet(
                server.dsn(DATABASE),
                directory,
                settings,
                engines=options.engines,
                seconds=options.seconds,
                seed=options.seed,
                server=server,
            )
        )
    finally:
        with trio.CancelScope(shield=True):
            await server.remove()
        shutil.rmtree(directory)
