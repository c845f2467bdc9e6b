"""What limits of queues cost and keep, with the engine's statements alone: no engine, no worker between.

    python -m benchmarks.queues [plain keys total blocked flood rate] [--connections 4] [--seconds 8] [--jobs 1000000]

Embedded PostgreSQL with its defaults (fsync on), a new database for each. `keys`, `total` and `plain` start, claim and
complete jobs in batches of 64; `blocked` and `flood` claim beside ``--jobs`` that wait; `rate` claims what a rate per
key lets begin. Exit code 1 when a limit was exceeded or a counter does not come back to 0.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar, cast

import trio
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable

from benchmarks.calibration import print_line
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import configure
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.store.rows import flow, instances, jobs, queues
from penstock.wire.queue import QueuePolicy, Rate

BATCH: Final = 64
KEYS: Final = 10_000
KEYS_OPEN: Final = 10
KEYS_PER_CLAIM: Final = 256
PER_KEY: Final = 5
TOTAL: Final = 200
RATE_KEYS: Final = 1_000
RATE: Final = 2
"""A second and key."""
LEASE_S: Final = 600.0
START: Final = b'{"order": "%s"}' % (b"x" * 187)
OUTPUT: Final = b'{"ok": true, "reference": "R-7781", "step": 3}'
"""200 and 45 bytes, as in all figures of benchmarks/results/notebook.md."""
IDLE_S: Final = 0.001
BASE: Final = 1 << 40
FILL: Final = """
SET synchronous_commit = off;
SET lock_timeout = 0;
INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('d', 1, 'd', '{{}}', now());
INSERT INTO instance (id, started_at, definition, status, vars)
  SELECT {base} + n, now(), 1, 0, '{{}}' FROM generate_series(1, {jobs}) n;
INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state, flow_key)
  SELECT {base} + n, {base} + n, 0, 1, n, now(), 0, {key} FROM generate_series(1, {jobs}) n;
INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT 1, 5, {key}, n, {base} + n FROM generate_series(1, {jobs}) n;
SELECT setval('step_seq', {jobs} + 1);
SET synchronous_commit = on;
"""
Figures = dict[str, float]
Make = Callable[[], Awaitable[TrioConnection]]
T = TypeVar("T")


class Lab(NamedTuple):
    """One database. ``connection`` is for what is not measured."""

    connection: TrioConnection
    make: Make
    options: argparse.Namespace

    async def put(self, **policy: Any) -> None:
        await queues.put(self.connection, "q", QueuePolicy(["work"], **policy), actor=None, audit=False)

    async def fill(self, key: str, number: int) -> None:
        for statement in (*FILL.format(base=BASE, jobs=number, key=key).split(";\n"), "ANALYZE"):
            if statement.strip():
                await self.connection.fetch(statement.strip().encode())

    async def number(self, text: str) -> Any:
        rows: Any = await self.connection.fetch(text.encode())
        return rows[0][0]


async def claim_flow(
    connection: TrioConnection, cursor: str, n: int = BATCH
) -> tuple[flow.ClaimScan, list[jobs.ClaimedJob]]:
    slots = [jobs.ClaimSlot(1, place + 1, "w", LEASE_S) for place in range(n)]
    return await flow.claim(connection, slots, cursor, KEYS_PER_CLAIM)


async def complete(connection: TrioConnection, claimed: list[jobs.ClaimedJob], *, plain: bool) -> None:
    done = [jobs.FastItem(job.token, job.seq, job.attempt, "w", True, 1, None, None, None, OUTPUT) for job in claimed]
    if done and plain:
        await jobs.complete_fast(connection, done)
    elif done:
        await flow.complete(connection, done, [flow.WaitsInQueue.KEYED] * len(done), to_outbox=False)


async def repeated(refused: Counter[str], what: str, call: Callable[[], Awaitable[T]]) -> T:
    """As a group-commit queue does with a statement that did not get a row in time."""
    while True:
        try:
            return await call()
        except LockNotAvailable:
            refused[what] += 1


async def throughput(lab: Lab, *, keys: int, plain: bool = False) -> Figures:
    """Claim and complete, on several connections at once, and start as many as were done; WAL of all of it by job."""
    numbers, done, claims = count(), 0, 0
    refused: Counter[str] = Counter()
    most = 0
    before = await lab.number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    began = time.monotonic()

    async def begin(connection: TrioConnection, number: int) -> None:
        places = [next(numbers) for _ in range(number)]
        starts = [instances.FastStart(BASE + n, 1, START, None, 1, None, None) for n in places]
        if plain:
            await instances.start_fast(connection, starts)
            return
        key = [f"k{n * 7919 % keys}" if keys else None for n in places]
        flows = [flow.FlowStart(one, None, k, flow.WaitsInQueue.KEYED) for one, k in zip(starts, key, strict=True)]
        await flow.start(connection, flows, to_outbox=False)

    async def work() -> None:
        nonlocal done, claims
        connection, cursor = await lab.make(), ""
        async with connection:
            await begin(connection, BATCH)
            while time.monotonic() - began < lab.options.seconds:
                if plain:
                    slots = [jobs.ClaimSlot(1, place + 1, "w", LEASE_S) for place in range(BATCH)]
                    claimed = await jobs.claim(connection, slots)
                else:
                    scan, claimed = await repeated(refused, "claims", partial(claim_flow, connection, cursor))
                    cursor = scan.cursor or ""
                claims += 1
                if not claimed:
                    await trio.sleep(IDLE_S)
                    continue
                await repeated(refused, "completions", partial(complete, connection, claimed, plain=plain))
                done += len(claimed)
                await begin(connection, len(claimed))

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, await lab.number("SELECT count(*) FROM token WHERE state = 1"))
            await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        async with trio.open_nursery() as workers:
            for _ in range(lab.options.connections):
                workers.start_soon(work)
        took_s = time.monotonic() - began
        nursery.cancel_scope.cancel()
    wal = await lab.number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") - before
    return {
        "jobs_per_s": done / took_s,
        "wal_bytes_per_job": float(wal) / max(done, 1),
        "jobs_per_claim": done / max(claims, 1),
        "most_at_once": float(most),
        **{f"refused_{what}": float(number) for what, number in refused.items()},
        "held_at_the_end": float(await lab.number("SELECT coalesce(sum(running), 0) FROM slot")),
    }


async def plain(lab: Lab) -> Figures:
    """Jobs that nothing limits: what the others are compared with."""
    await lab.connection.fetch(b"INSERT INTO job_type (name) VALUES ('work')")
    await lab.connection.fetch(
        b"INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('d', 1, 'd', '{}', now())"
    )
    return await throughput(lab, keys=0, plain=True)


async def keys(lab: Lab) -> Figures:
    """10,000 flow keys, 5 at once of each."""
    await lab.fill("''", 0)
    await lab.put(concurrency_per_key=PER_KEY)
    return await throughput(lab, keys=KEYS)


async def total(lab: Lab) -> Figures:
    """200 at once of all."""
    await lab.fill("''", 0)
    await lab.put(concurrency=TOTAL)
    found = await throughput(lab, keys=0)
    return {**found, "exceeded": float(found["most_at_once"] > TOTAL)}


async def blocked(lab: Lab) -> Figures:
    """Of 10,000 keys whose jobs wait all but 10 are full: how long a claim takes, and until one of those is found."""
    await lab.put(concurrency_per_key=PER_KEY)
    await lab.fill(f"'k' || lpad((n % {KEYS})::text, 6, '0')", lab.options.jobs)
    await lab.connection.fetch(
        b"INSERT INTO slot (queue, flow_key, running) SELECT (SELECT id FROM queue), 'k' || lpad(n::text, 6, '0'), %d"
        b" FROM generate_series(0, %d) n WHERE n %% %d <> 17" % (PER_KEY, KEYS - 1, KEYS // KEYS_OPEN)
    )
    await lab.connection.fetch(b"ANALYZE slot")
    took_ms: list[float] = []
    cursor, found_s, began = "", 0.0, time.perf_counter()
    for _ in range(2 * KEYS // KEYS_PER_CLAIM):
        at = time.perf_counter()
        scan, claimed = await claim_flow(lab.connection, cursor)
        took_ms.append((time.perf_counter() - at) * 1e3)
        cursor = scan.cursor or ""
        if claimed and not found_s:
            found_s = time.perf_counter() - began
    return {"claim_p50_ms": median(took_ms), "claim_max_ms": max(took_ms), "found_after_s": found_s}


async def flood(lab: Lab) -> Figures:
    """One key has all jobs that wait but one: in which claim that one begins."""
    await lab.put()
    await lab.fill(f"CASE WHEN n = {lab.options.jobs} THEN 'other' ELSE 'flood' END", lab.options.jobs)
    cursor, at_claim, began = "", 0, time.perf_counter()
    while at_claim < 1_000:
        at_claim += 1
        scan, claimed = await claim_flow(lab.connection, cursor, 1)
        cursor = scan.cursor or ""
        if claimed[0].seq == lab.options.jobs:
            break
    took_ms = (time.perf_counter() - began) * 1e3
    return {"claims_until_the_other": float(at_claim), "took_ms": took_ms, "exceeded": float(at_claim > 2)}


async def rate(lab: Lab) -> Figures:
    """1,000 keys, 2 a second of each: what began, of what may have."""
    seconds = lab.options.seconds
    await lab.put(rate_per_key=Rate(RATE, "PT1S", burst=1))
    await lab.fill(f"'k' || (n % {RATE_KEYS})", int(RATE_KEYS * (RATE * seconds + 2)))
    begun: Counter[int] = Counter()
    cursor, scans, began = "", 0, time.monotonic()
    while time.monotonic() - began < seconds:
        scan, claimed = await claim_flow(lab.connection, cursor)
        scans, cursor = scans + 1, scan.cursor or ""
        begun.update(job.seq % RATE_KEYS for job in claimed)
        await complete(lab.connection, claimed, plain=False)
        if not claimed and scan.visited < KEYS_PER_CLAIM:
            await trio.sleep(scan.retry_s or 0)
    took_s = time.monotonic() - began
    most = max(begun.values(), default=0)
    return {
        "share_of_the_rate": begun.total() / (RATE_KEYS * RATE * took_s),
        "claims_per_s": scans / took_s,
        "exceeded": float(most > RATE * took_s + 1),
    }


SCENARIOS: Final[dict[str, Callable[[Lab], Awaitable[Figures]]]] = {
    each.__name__: each for each in (plain, keys, total, blocked, flood, rate)
}


@asynccontextmanager
async def new_database(dsn: str) -> AsyncGenerator[str]:
    """The DSN of an empty one on the server of ``dsn``, dropped afterwards."""
    name = f"bench_{os.getpid()}"
    async with await TrioConnection.connect(dsn) as admin:
        await admin.fetch(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        await admin.fetch(f"CREATE DATABASE {name}".encode())
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            with trio.CancelScope(shield=True):
                await admin.fetch(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def measure(dsn: str, name: str, options: argparse.Namespace) -> Figures:
    """In a database of its own on the server of ``dsn``."""

    async def make() -> TrioConnection:
        connection = await TrioConnection.connect(own)
        await configure(connection)
        return connection

    async with new_database(dsn) as own, await make() as connection:
        await ensure_schema(connection)
        return await SCENARIOS[name](Lab(connection, make, options))


async def main(names: list[str], options: argparse.Namespace) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    found: dict[str, Figures] = {}
    try:
        async with embedded(directory) as dsn:
            print_line(dsn)
            for name in names:
                found[name] = await measure(dsn, name, options)
                figures = ", ".join(f"{what} {value:,.3g}" for what, value in found[name].items())
                print(f"{name:8} {figures}", flush=True)
    finally:
        shutil.rmtree(directory)
    bad = ("exceeded", "held_at_the_end")
    return int(any(figures.get(what) for figures in found.values() for what in bad))


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], default=[])
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    given = parsed(sys.argv[1:])
    sys.exit(trio.run(main, cast("list[str]", given.scenarios) or [*SCENARIOS], given))
