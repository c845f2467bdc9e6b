"""Patroni's leader is killed and switched over under load: what was lost, and how long nothing was done.

    python -m chaos.patroni [--rounds 10] [--clients 8] [--executors 2] [--runs 2000] [--seed patroni-1]

Three nodes by the commands of docs/high-availability.md (`chaos.patroni_cluster`). Two engines, one by a DSN of all
nodes, one through HAProxy, have clients that start, poll and complete in batches; a third engine has executors of
durable workflows, which are killed themselves all the while (`chaos.runs`), with their own tables on the same cluster.
Each round kills the leader as a machine that is gone, and later switches it over. Whatever was acknowledged has to be
there in the end, and each engine has to complete jobs again within the TTL and 5 s. Exit code 1 otherwise, 2 where
Patroni, etcd, HAProxy or PostgreSQL is not installed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import trio
from psycopg.conninfo import make_conninfo

from chaos import runs
from chaos.failover import DEFINITION, SETTINGS, Callers
from chaos.patroni_cluster import TTL_S, Cluster, NoPrograms
from chaos.processes import EngineProcess
from penstock.client import Client
from penstock.http import reserved_ports
from penstock.testing.invariants import find_broken

BACK_WITHIN_S: Final = TTL_S + 5
POLL_S: Final = 0.1
GIVE_UP_S: Final = 180.0
"""Service that is back later than it should be is a complaint; later than this ends the drill."""
RUN_ENDS_WITHIN_S: Final = 600.0
KILL_EXECUTOR_EVERY_S: Final = 15.0
"""More often than one starts on a slow machine, none would do anything."""
STEP_RETRIES: Final = 500
"""Of the steps that book: they fail while there is no leader."""
SEARCH_PATH: Final = "-c search_path=penstock,public"


class Strike(msgspec.Struct, kw_only=True):
    """One of them."""

    kind: str
    back_s: list[float]
    """From the order on until a job was done that was polled afterwards: by the engine with a DSN of all nodes, and by
    the one behind HAProxy."""


class Verdict(msgspec.Struct, kw_only=True):
    """What was seen."""

    strikes: list[Strike]
    started: int
    done: int
    lost: list[str]
    broken: list[str]
    runs: runs.Verdict
    late: list[str]

    @property
    def holds(self) -> bool:
        return not (self.lost or self.broken or self.late or self.runs.complaints)


class Drill:
    """One of them, in an empty directory."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self._directory, self._options = directory, options
        self._cluster = Cluster(directory)
        self._callers: tuple[Callers, ...] = ()
        self._strikes: list[Strike] = []
        self._kills_next = True

    async def run(self) -> Verdict:
        """What was seen; everything is ended."""
        try:
            await self._cluster.make()
            with reserved_ports(2) as ports:
                return await self._with_engines(*ports)
        finally:
            await self._cluster.remove()

    async def _with_engines(self, direct: int, proxied: int) -> Verdict:
        dsns = {direct: self._cluster.dsn, proxied: self._cluster.proxied_dsn}
        engines = [
            EngineProcess(f"engine-{port}", dsn, port, self._directory / f"{port}.log", SETTINGS, None)
            for port, dsn in dsns.items()
        ]
        try:
            for engine in engines:
                engine.spawn()
                await engine.wait_ready()
            async with Client(f"http://127.0.0.1:{direct}") as client:
                await client.upload_definition(DEFINITION)
            return await self._play(direct, proxied)
        finally:
            for engine in engines:
                engine.kill()

    async def _play(self, *ports: int) -> Verdict:
        self._callers = tuple(Callers(f"http://127.0.0.1:{port}") for port in ports)
        attack = runs.Attack(
            self._cluster.dsn, self._cluster.dsn, self._directory, runs=self._options.runs,
            executors=self._options.executors, seed=self._options.seed, restarts=2 * self._options.rounds,
            restart=self._strike, ends_within_s=RUN_ENDS_WITHIN_S, step_retries=STEP_RETRIES,
            kill_every_s=KILL_EXECUTOR_EVERY_S, goes_on=True,
        )  # fmt: skip
        async with trio.open_nursery() as nursery:
            for callers in self._callers:
                nursery.start_soon(callers.run, self._options.clients // 2)
            of_runs = await attack.run()
            for callers in self._callers:
                callers.start_no_more()
            with trio.fail_after(GIVE_UP_S):
                while not await trio.to_thread.run_sync(self._all_ended):
                    await trio.sleep(POLL_S)
            for callers in self._callers:
                callers.end()
        return await trio.to_thread.run_sync(self._verdict, of_runs)

    async def _strike(self) -> None:
        """Kill the leader or switch it over, in turn. Returns when the engines serve, and the cluster is whole."""
        kills, self._kills_next = self._kills_next, not self._kills_next
        ordered_at, killed = trio.current_time(), None
        if kills:
            killed = await self._cluster.kill_leader()
        else:
            await self._cluster.switch_over()
        struck_at = trio.current_time()
        back_s = [0.0] * len(self._callers)

        async def wait_back(place: int) -> None:
            back_s[place] = await self._callers[place].wait_done_after(struck_at) - ordered_at

        with trio.fail_after(GIVE_UP_S):
            async with trio.open_nursery() as nursery:
                for place in range(len(back_s)):
                    nursery.start_soon(wait_back, place)
        strike = Strike(kind="killed" if kills else "switched over", back_s=back_s)
        self._strikes.append(strike)
        print(msgspec.json.encode(strike).decode(), flush=True)
        if killed is not None:
            self._cluster.start(killed)
        await self._cluster.wait_healthy()

    def _all_ended(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self._cluster.dsn) as connection:
            question = b"SELECT count(*) FROM penstock.instance WHERE status = 0"
            return connection.execute(question).fetchall() == [(0,)]
        return False

    def _verdict(self, of_runs: runs.Verdict) -> Verdict:
        eyes = make_conninfo(self._cluster.dsn, options=SEARCH_PATH)
        return Verdict(
            strikes=self._strikes,
            started=sum(len(callers.started) for callers in self._callers),
            done=sum(len(callers.done) for callers in self._callers),
            lost=[one for callers in self._callers for one in callers.lost(eyes)],
            broken=[str(one) for one in find_broken(eyes)],
            runs=of_runs,
            late=[
                f"strike {number} ({strike.kind}): served again after {max(strike.back_s):.1f} s"
                for number, strike in enumerate(self._strikes, 1)
                if max(strike.back_s) > BACK_WITHIN_S
            ],
        )


async def main(options: argparse.Namespace) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        verdict = await Drill(directory, options).run()
    except NoPrograms as error:
        print(f"chaos.patroni: {error}", file=sys.stderr)
        return 2
    finally:
        if not options.keep:
            shutil.rmtree(directory)
    print(msgspec.json.format(msgspec.json.encode(verdict), indent=2).decode())
    return int(not verdict.holds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of a kill and a switchover each")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument(
        "--runs",
        type=int,
        default=2_000,
        help="durable workflows, at least: they start until the last strike",
    )
    parser.add_argument("--seed", default="patroni-1")
    parser.add_argument("--keep", action="store_true", help="leave the directory with all logs")
    sys.exit(trio.run(main, parser.parse_args(), strict_exception_groups=True))
