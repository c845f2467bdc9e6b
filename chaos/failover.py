"""A primary is killed under load, its standby promoted: what it cost before, how long nothing was done, what was lost.

    python -m chaos.failover [--seconds 10] [--engines 2] [--clients 8]

Three spans of ``--seconds`` in one run: with a standby that nobody waits for, with one that every commit waits for
(`remote_apply`), and after `kill -9` of the primary and the promotion, on the former standby alone. Clients start,
poll and complete in batches all the while. In the end whatever was acknowledged has to be there. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import trio

from chaos.processes import EngineProcess
from chaos.server import PORT, ROLE, Server
from penstock.client import Client
from penstock.client.errors import ClientError
from penstock.http import reserved_ports
from penstock.testing.invariants import find_broken
from penstock.wire.model import Completion, StartRequest

DATABASE: Final = "failover"
BATCH: Final = 8
CALL_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.02
BACK_WITHIN_S: Final = 60.0
ENDS_WITHIN_S: Final = 60.0
SETTINGS: Final = {"outage_wait_seconds": 4, "db_answer_timeout_seconds": 3, "lease_min_seconds": 1, "db_max_conns": 6}
DEFINITION: Final = msgspec.json.encode(
    {
        "id": "failover",
        "name": "failover",
        "steps": [
            {"id": "a", "name": "a", "type": "SERVICE_TASK", "jobType": "failover", "nextStep": "end"},
            {"id": "end", "name": "end", "type": "END"},
        ],
    }
)


class Verdict(msgspec.Struct, kw_only=True):
    """What was seen. Jobs a second are those that were acknowledged as done."""

    asynchronous_jobs_per_s: float
    synchronous_jobs_per_s: float
    promoted_jobs_per_s: float
    gap_s: float
    """The longest time from the kill on in which no job was acknowledged."""
    promotion_s: float
    """From the order to promote to the first job after that."""
    started: int
    done: int
    lost: list[str]
    """Ids of instances that were acknowledged as started, or their jobs as done, and are not."""
    broken: list[str]


class Callers:
    """Clients of one engine, which start, poll and complete in batches, and remember what was acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._starting, self._over = True, False
        self._changed, self._polled_at = trio.Event(), 0.0
        self.started: set[str] = set()
        self.done: dict[str, float] = {}
        """When the instance's job was acknowledged, by id."""

    async def run(self, clients: int) -> None:
        """Until `end`."""
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(self._work, number)

    def start_no_more(self) -> None:
        """Only finish what was started."""
        self._starting = False

    def end(self) -> None:
        self._over = True

    async def wait_done_after(self, moment: float) -> float:
        """Wait until a job is acknowledged that was polled after this moment; when that was."""
        while True:
            news = self._changed
            if self._polled_at > moment:
                return max(self.done.values())
            await news.wait()

    async def _work(self, number: int) -> None:
        worker = f"{self._url}-{number}"
        requests = [StartRequest("failover", variables={"number": number})] * BATCH
        async with Client(self._url, timeout_s=CALL_TIMEOUT_S) as client:
            while not self._over:
                try:
                    if self._starting:
                        made = await client.start_instances(requests)
                        self.started |= {each.instance.id for each in made if each.instance is not None}
                    asked_at = trio.current_time()
                    jobs = await client.poll_jobs(worker, ["failover"], max_jobs=BATCH, lease_s=2, wait_s=1)
                    results = [Completion(job_id=job.id, attempt=job.attempt, variables={}) for job in jobs]
                    outcomes = await client.complete_jobs(worker, results) if results else []
                except ClientError:
                    await trio.sleep(PAUSE_S)
                    continue
                now = trio.current_time()
                for job, outcome in zip(jobs, outcomes, strict=True):
                    if outcome.outcome in ("ok", "already-completed"):
                        self.done[job.instance_id] = now
                        self._polled_at = max(self._polled_at, asked_at)
                self._changed.set()
                self._changed = trio.Event()

    def lost(self, dsn: str) -> list[str]:
        """Ids of instances that were acknowledged as started, or their jobs as done, and are not."""
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("SELECT id, status FROM penstock_instances").fetchall()
        found = dict(rows)
        return sorted(self.started - found.keys()) + sorted(one for one in self.done if found.get(one) != "COMPLETED")


class Drill:
    """One of them, in an empty directory."""

    def __init__(self, directory: Path, *, seconds: float, engines: int, clients: int) -> None:
        self._directory = directory
        self._seconds = seconds
        self._clients = clients
        self._primary, self._standby = Server(directory / "primary"), Server(directory / "standby")
        self._number = engines
        self._callers: list[Callers] = []

    async def run(self) -> Verdict:
        """What was seen; the servers are ended."""
        try:
            await self._primary.make()
            self._primary.make_database(DATABASE)
            await self._standby.follow(self._primary, "standby")
            with reserved_ports(self._number) as ports:
                return await self._with_engines(ports)
        finally:
            with trio.CancelScope(shield=True):
                await self._standby.remove()
                await self._primary.remove()

    async def _with_engines(self, ports: Sequence[int]) -> Verdict:
        dsn = f"host={self._primary.host},{self._standby.host} port={PORT},{PORT} user={ROLE} dbname={DATABASE}"
        dsn += " target_session_attrs=read-write connect_timeout=3"
        logs = {port: self._directory / f"{port}.log" for port in ports}
        engines = [EngineProcess(f"engine-{port}", dsn, port, log, SETTINGS, None) for port, log in logs.items()]
        try:
            for engine in engines:
                engine.spawn()
                await engine.wait_ready()
            async with Client(f"http://127.0.0.1:{ports[0]}") as client:
                await client.upload_definition(DEFINITION)
            return await self._play(ports)
        finally:
            for engine in engines:
                engine.kill()

    async def _play(self, ports: Sequence[int]) -> Verdict:
        async with trio.open_nursery() as nursery:
            for number, port in enumerate(ports):
                self._callers.append(callers := Callers(f"http://127.0.0.1:{port}"))
                nursery.start_soon(callers.run, len(range(number, self._clients, len(ports))))
            asynchronous = await self._span()
            await self._primary.wait_for_standby("standby")
            synchronous = await self._span()
            with trio.fail_after(BACK_WITHIN_S):
                while not self._done_at():  # on a machine that is slow
                    await trio.sleep(PAUSE_S)
            last_at = max(self._done_at())
            await self._primary.kill()
            killed_at = trio.current_time()
            self._standby.promote()
            with trio.fail_after(BACK_WITHIN_S):
                while max(self._done_at()) <= killed_at:
                    await trio.sleep(PAUSE_S)
            promoted = await self._span()
            for callers in self._callers:
                callers.start_no_more()
            with trio.fail_after(ENDS_WITHIN_S):
                while not await self._all_ended():
                    await trio.sleep(PAUSE_S)
            for callers in self._callers:
                callers.end()
        dsn = f"{self._standby.dsn(DATABASE)} options='-c search_path=penstock,public'"
        times = sorted({at for at in self._done_at() if at >= last_at})
        gap_s, back_at = max((after - before, after) for before, after in pairwise(times))  # what was under way may end
        return Verdict(
            asynchronous_jobs_per_s=asynchronous,
            synchronous_jobs_per_s=synchronous,
            promoted_jobs_per_s=promoted,
            gap_s=gap_s,
            promotion_s=back_at - killed_at,
            started=sum(len(callers.started) for callers in self._callers),
            done=len(self._done_at()),
            lost=[one for callers in self._callers for one in await trio.to_thread.run_sync(callers.lost, dsn)],
            broken=[str(one) for one in await trio.to_thread.run_sync(find_broken, dsn)],
        )

    async def _span(self) -> float:
        """Jobs a second that are done from now on."""
        before, began = len(self._done_at()), trio.current_time()
        await trio.sleep(self._seconds)
        return (len(self._done_at()) - before) / (trio.current_time() - began)

    def _done_at(self) -> list[float]:
        return [at for callers in self._callers for at in callers.done.values()]

    async def _all_ended(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self._standby.dsn(DATABASE)) as connection:
            question = b"SELECT count(*) FROM penstock.instance WHERE status = 0"
            return connection.execute(question).fetchall() == [(0,)]
        return False


async def main(options: argparse.Namespace) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        drill = Drill(directory, seconds=options.seconds, engines=options.engines, clients=options.clients)
        verdict = await drill.run()
    finally:
        shutil.rmtree(directory)
    print(msgspec.json.format(msgspec.json.encode(verdict), indent=2).decode())
    return int(bool(verdict.lost or verdict.broken))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    sys.exit(trio.run(main, parser.parse_args()))
