"""One program with an `App` and short outages of PostgreSQL, one after the other: it goes on after each of them.

    python -m chaos.outages [--outages 200] [--away 0.5 10] [--runs 20] [--seed outages-1]

The program keeps so many runs of short steps and sleeps open. PostgreSQL is stopped at once and started again after a
time between the two of ``--away``. After each outage new runs must come to their ends; a program that ends none for
a minute hangs, and its stacks are printed. In the end each step stands in its journal once and each result is right.
Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg
import trio

from chaos.server import ROLE, Server
from penstock.durable import App, move_on_after, receive, sleep, step, workflow

DATABASE: Final = "outages"
HANGS_AFTER_S: Final = 60.0
"""So long after an outage without the end of a run."""
BETWEEN_S: Final = 1.5
ROUNDS: Final = 5
TWICE: Final = "SELECT instance_id, path FROM journal WHERE kind = 1 GROUP BY 1, 2 HAVING count(*) > 1"


@step
async def add(number: int) -> int:
    await trio.sleep(0.01)
    return number + 1


@workflow
async def counting(number: int) -> int:
    """Steps, sleeps, and deadlines that pass: all that asks for the clock."""
    for _ in range(ROUNDS):
        number = await add(number)
        await sleep("50 ms")
        with move_on_after("50 ms"):
            await receive("never", int)
    return number


async def serve(dsn: str, runs: int) -> None:
    """Start runs and wait for them, for ever; a line for each end."""
    faulthandler.register(signal.SIGUSR1)
    async with App(counting, at=dsn, name="outages", migrate=True) as app, trio.open_nursery() as nursery:

        async def keep_one(number: int) -> None:
            while True:
                run = await app.start(counting, number, id=f"{number}-{time.time_ns()}")
                assert await run.result() == number + ROUNDS
                sys.stdout.write(f"{number}\n")
                sys.stdout.flush()

        for number in range(runs):
            nursery.start_soon(keep_one, number)


class Ends:
    """The ends that the program tells of."""

    def __init__(self, stdout: trio.abc.ReceiveStream) -> None:
        self._stdout, self.count, self._more = stdout, 0, trio.Event()

    async def read(self) -> None:
        async for data in self._stdout:
            self.count += data.count(b"\n")
            self._more.set()
            self._more = trio.Event()

    async def wait_for(self, count: int) -> None:
        """Until so many have come since now."""
        wanted = self.count + count
        while self.count < wanted:
            await self._more.wait()


async def attack(outages: int, away: tuple[float, float], runs: int, seed: str, directory: Path) -> int:
    """Gives the exit code."""
    chance, server = random.Random(seed), Server(directory / "postgres")
    await server.make()
    try:
        server.make_database(DATABASE)
        dsn = server.dsn(DATABASE, ROLE)
        command = [sys.executable, "-m", "chaos.outages", "--serve", dsn, "--runs", str(runs)]
        environment = {**os.environ, "WE_OUTAGE_WAIT_SECONDS": "60"}
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        async with trio.open_nursery() as nursery:
            ends = Ends(process.stdout)
            nursery.start_soon(ends.read)
            failed = await _hurt(server, ends, process, outages, away, chance)
            process.terminate()
            with trio.move_on_after(HANGS_AFTER_S) as ending:
                await process.wait()
            if ending.cancelled_caught:
                failed = failed or "it does not end"
                process.kill()
            nursery.cancel_scope.cancel()
        with psycopg.connect(server.dsn(DATABASE), options="-c search_path=penstock") as connection:
            twice = connection.execute(TWICE.encode()).fetchall()
        print(
            f"{outages} outages, {ends.count} runs ended; steps with two outcomes: {len(twice)}; {failed or 'all well'}"
        )
        return int(bool(failed or twice))
    finally:
        with trio.CancelScope(shield=True):
            await server.remove()


async def _hurt(
    server: Server, ends: Ends, process: trio.Process, outages: int, away: tuple[float, float], chance: random.Random
) -> str | None:
    await ends.wait_for(1)
    for number in range(1, outages + 1):
        await trio.sleep(chance.uniform(0, BETWEEN_S))
        await server.stop_immediately()
        await trio.sleep(chance.uniform(*away))
        await server.start()
        with trio.move_on_after(HANGS_AFTER_S) as waiting:
            await ends.wait_for(3)
        if process.returncode is not None:
            return f"the program has ended after outage {number}"
        if waiting.cancelled_caught:
            process.send_signal(signal.SIGUSR1)
            await trio.sleep(1)
            return f"no run has ended for {HANGS_AFTER_S:.0f} s after outage {number}: it hangs"
        if number % 20 == 0:
            print(f"{number} outages, {ends.count} runs ended", flush=True)
    return None


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--outages", type=int, default=200)
    parser.add_argument("--away", type=float, nargs=2, default=(0.5, 10.0), metavar="SECONDS")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", default="outages-1")
    parser.add_argument("--serve", metavar="DSN", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        trio.run(serve, given.serve, given.runs)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)  # of the server's account, too
        return trio.run(attack, given.outages, tuple(given.away), given.runs, given.seed, path)


if __name__ == "__main__":
    sys.exit(main())
