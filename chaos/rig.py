"""Everything that is attacked, put together: PostgreSQL, two engines, workers, the load, proxies between them.

`Rig.run` starts it all, lets an attack loose, heals, waits until every instance has ended, and stops the engines in
order. What ends unasked is started again, as a supervisor would. Judging is for `verdict`.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import trio

from chaos.journal import Journal
from chaos.load import Load
from chaos.processes import EngineProcess, WorkerProcess
from chaos.server import ROLE, Server
from chaos.unkeyed import WIDE, Unkeyed
from penstock.http import reserved_ports
from penstock.store.embedded.cluster import PORT
from penstock.testing.clock import DatabaseClock
from penstock.testing.faulty_network import FaultyProxy, tcp, unix

ENGINES = 2
WORKERS = 2
DATABASE = "chaos"
SETTLE_TIMEOUT_S = 120.0
KEEP_S = 0.2
FS_BYTES = 448 * 2**20
"""The small file system of the attacks that fill the disk."""

ANSWER_TIMEOUT_S = 3.0
ENGINE_SETTINGS: dict[str, object] = {
    "lease_min_seconds": 1,
    "lease_scan_interval_seconds": 0.5,
    "lease_expiry_limit": 30_000,
    "db_max_conns": 6,
    "outage_wait_seconds": 4,
    "db_answer_timeout_seconds": ANSWER_TIMEOUT_S,
    "shutdown_grace_seconds": 5,
    "log_format": "json",
}
"""Leases may be short, and a job whose workers are killed again and again is not to be given up."""

AGED = "fault-aged"
"""A workflow of which engines archive and remove what ended a day ago, where an attack needs that."""
STARTED_MIN = 20
"""Instances that an attack has to see, however slow the machine was meanwhile."""

Watch = Callable[["Rig", Load], Awaitable[None]]


class NotSettled(Exception):
    """Instances have not ended although nothing is wrong any more."""


class Rig:
    """One deployment in ``directory``. ``counts`` is what was done to it."""

    def __init__(
        self, directory: Path, seed: str, *, rate: float, needs: frozenset[str] = frozenset(), spare: int = 0
    ) -> None:
        self.directory = directory
        self.seed = seed
        self.needs = needs
        self._spare = spare
        self.counts: Counter[str] = Counter()
        self.complaints: list[str] = []
        """What attacks themselves saw and must not see."""
        self.faults: list[dict[str, Any]] = []
        self._rate = rate
        self.server = Server(directory / "postgres")
        self.standby: Server | None = None
        self.engines: list[EngineProcess] = []
        self.workers: list[WorkerProcess] = []
        self.to_database = FaultyProxy(self._to_socket, seed=1)
        self.to_engines: list[FaultyProxy] = []
        self.clock: DatabaseClock | None = None
        self._ports = ExitStack()
        self.clock_file = directory / "clock" if "engine clock" in needs else None
        self.database_wanted = True
        self.settled_s = 0.0

    @property
    def dsn(self) -> str:
        """The database as a superuser reaches it, past all proxies."""
        return f"{self.server.dsn(DATABASE)} options='-c search_path=penstock,public'"

    async def run(self, attack: Callable[[Rig], Awaitable[None]], watch: Watch | None = None) -> Load:
        """Start, attack, heal, settle, stop; ``watch`` looks on meanwhile.

        Raises NotSettled; every process is ended in any case, but for the server, which the verdict needs.
        """
        (self.directory / "journals").mkdir(parents=True)
        (self.directory / "postgres").mkdir(mode=0o755)
        if "small disk" in self.needs:
            self._mount()
        journal = Journal(self.directory / "journals" / "load.jsonl")
        try:
            async with trio.open_nursery() as nursery:
                await self._start(nursery)
                urls = [f"http://127.0.0.1:{port}" for port in self._rest_ports()]
                load = Load(urls, journal, self.seed, self._rate)
                await load.upload()
                nursery.start_soon(load.run)
                self._unkeyed = Unkeyed([f"http://127.0.0.1:{engine.port}" for engine in self.engines], journal)
                await self._unkeyed.prepare()
                nursery.start_soon(self._unkeyed.run)
                for worker in self.workers:
                    worker.spawn()
                nursery.start_soon(self._keep)
                if watch is not None:
                    nursery.start_soon(watch, self, load)
                await attack(self)
                await self._settle(load)
                await self._stop()
                nursery.cancel_scope.cancel()
            await self._unkeyed.aclose()
            await load.aclose()  # nobody uses its clients any more
        finally:
            for process in (*self.workers, *self.engines):
                process.kill()
            self._ports.close()
        return load

    async def _to_socket(self) -> trio.SocketStream:
        """PostgreSQL's socket, whose place is known once the cluster is made."""
        return await unix(self.server.socket)()

    async def remove(self) -> None:
        """End the server, which `run` leaves for the verdict, and what was mounted for it."""
        await self.server.remove()
        if self.standby is not None:
            await self.standby.remove()
        if "small disk" in self.needs:
            self._unmount()

    # -- starting

    def _mount(self) -> None:
        target = self.directory / "postgres"
        command = ["mount", "-t", "tmpfs", "-o", f"size={FS_BYTES},mode=0755", "chaos", str(target)]
        subprocess.run(command, check=True, capture_output=True)

    def _unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.directory / "postgres")], check=False, capture_output=True)

    async def _start(self, nursery: trio.Nursery) -> None:
        await self.server.make()
        self.server.make_database(DATABASE)
        await nursery.start(self.to_database.serve)
        dsn = self.server.dsn(DATABASE, ROLE)
        if "standby" in self.needs:
            self.standby = Server(self.directory / "standby")
            await self.standby.follow(self.server, "standby")
            await self.server.wait_for_standby("standby")
            dsn = f"host={self.server.host},{self.standby.host} port={PORT},{PORT} user={ROLE} dbname={DATABASE}"
            dsn += " target_session_attrs=read-write connect_timeout=3"
        if "database proxy" in self.needs:
            dsn = f"host=127.0.0.1 port={self.to_database.port} user={ROLE} dbname={DATABASE} sslmode=disable"
            dsn += " connect_timeout=3"
        if self.clock_file is not None:
            self.clock_file.write_text("0")
        for number, port in enumerate(self._ports.enter_context(reserved_ports(ENGINES))):
            log = self.directory / f"engine-{number}.log"
            settings = {**ENGINE_SETTINGS, **({"db_max_conns": 2} if "small pool" in self.needs else {})}
            if "nights" in self.needs:
                settings |= {"partition_days": 1, "idempotency_retention_hours": 8_760}
            if "archive" in self.needs:
                settings |= {"retention_rules": f"{AGED}=1", "archive_dir": self.directory / "archive"}
            name = f"engine {number}"
            own_dsn = f"{dsn} application_name='{name}'"
            engine = EngineProcess(name, own_dsn, port, log, settings, self.clock_file)
            self.engines.append(engine)
            engine.spawn()
        for engine in self.engines:
            await engine.wait_ready()
            proxy = FaultyProxy(tcp("127.0.0.1", engine.port), seed=2)
            self.to_engines.append(proxy)
            await nursery.start(proxy.serve)
        if "database clock" in self.needs:
            self.clock = DatabaseClock(self.dsn)
        ports = self._rest_ports()
        for number in range(WORKERS):
            url = f"http://127.0.0.1:{ports[number % len(ports)]}"
            self.workers.append(WorkerProcess(f"worker-{number}", url, self.directory / "journals", self.seed))

    def _rest_ports(self) -> list[int]:
        if "engine proxy" in self.needs:
            return [proxy.port for proxy in self.to_engines]
        return [engine.port for engine in self.engines]

    async def _keep(self) -> None:
        """Start again what ended although it is wanted."""
        while True:
            await trio.sleep(KEEP_S)
            for process in (*self.engines, *self.workers):
                if process.wanted and not process.runs:
                    kind = "engine" if isinstance(process, EngineProcess) else "worker"
                    self.counts[f"{kind} ended unasked, exit code {process.exit_code}"] += 1
                    process.spawn()
            if self.database_wanted and not self.server.runs:
                self.counts["postgres ended unasked"] += 1
                with suppress(Exception):
                    await self.server.start(timeout_s=5)

    async def wait_serving(self, timeout_s: float) -> bool:
        """Wait until every engine has started an instance; False when that takes too long."""
        with trio.move_on_after(timeout_s):
            for engine in self.engines:
                async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
                    served = False
                    while not served:
                        with suppress(httpx.HTTPError):
                            url = f"http://127.0.0.1:{engine.port}/v1/instances"
                            answer = await client.post(url, json={"definitionId": WIDE, "variables": {"x": 1}})
                            served = answer.status_code == 201
                        await trio.sleep(KEEP_S / 4)
            return True
        return False

    # -- ending

    async def heal(self) -> None:
        """Nothing is wrong any more once this returns."""
        for proxy in (self.to_database, *self.to_engines):
            proxy.heal()
        self.server.resume()
        self.database_wanted = True
        for process in (*self.engines, *self.workers):
            process.wanted = True
        for engine in self.engines:
            await engine.wait_ready()

    async def _settle(self, load: Load) -> None:
        await self.heal()
        began = trio.current_time()
        with trio.move_on_after(SETTLE_TIMEOUT_S):
            await load.wait_started(STARTED_MIN)
            load.stop()
            self._unkeyed.stop()
            await load.wait_finished()
            await self._unkeyed.end(self.dsn)
            while self._open_instances():
                await trio.sleep(KEEP_S)
            self.settled_s = trio.current_time() - began
            return
        left = self._open_instances()[:10]
        waits = list(load.under_way.values())[:10]
        raise NotSettled(f"not ended {SETTLE_TIMEOUT_S:g} s after the attack: {left}; the load waits for {waits}")

    def _open_instances(self) -> Sequence[object]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(
                "SELECT to_hex(i.id), d.id, i.status, i.failure FROM instance i"
                " JOIN definition d ON d.key = i.definition"
                " WHERE i.status = 0 OR (i.status = 2 AND d.id = 'doomed')"
            ).fetchall()

    async def _stop(self) -> None:
        """Workers first; the engines have to end well."""
        for worker in self.workers:
            await worker.stop()
        for engine in self.engines:
            self.counts[f"engine exit code {await engine.stop()}"] += 1

    # -- for attacks

    @property
    def victims(self) -> list[EngineProcess]:
        """The engines that may be killed and stopped for good: all but the first ``spare``."""
        return self.engines[self._spare :]

    def rng(self, number: int) -> random.Random:
        """Where the choices of the fault with this number come from."""
        return random.Random(f"{self.seed} fault {number}")
