"""What it costs to find a job behind dead rows that a held transaction keeps at the head of the queue.

    PYTHONPATH=src python -m benchmarks.dead_rows

Prints the median time in milliseconds of a probe and of a claim of one job, from the start of the queue and from the
floor that the engine keeps (`engine/queues/low_water_marks`, whose margin is full of dead rows here).
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
import trio

from benchmarks.batch_cost import FILL_INSTANCES, FILL_TOKENS, JOB_TYPE
from benchmarks.calibration import print_line
from penstock.engine.queues.low_water_marks import LOW_WATER_MARGIN_IDS
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.store.rows import jobs

DEAD = (20_000, 100_000, 400_000)
IDS_PER_JOB = 5
"""Drawn from the sequence for a job of a run of three: its row in the queue, its history, and others'."""
ROUNDS = 30

FILL_DEAD = "INSERT INTO ready (job_type, seq, token_id) SELECT 1, n * $2::int, -n FROM generate_series(1, $1::int) n"


async def one(
    connection: TrioConnection, low_water_marks: Mapping[int, jobs.LowWaterMark], left: int
) -> tuple[float, float]:
    """Seconds of a probe and of the claim after it."""
    began = time.perf_counter()
    counts = await jobs.probe_ready(connection, [JOB_TYPE], 500, low_water_marks)
    probed = time.perf_counter()
    claimed = await jobs.claim(connection, [jobs.ClaimSlot(JOB_TYPE, 1, "worker", 60.0)], low_water_marks)
    assert (min(counts[JOB_TYPE], left), len(claimed)) == (min(500, left), 1)
    return probed - began, time.perf_counter() - probed


async def run(dsn: str, dead: int) -> None:
    database = Database(dsn, max_connections=1)
    async with database.connection() as connection:
        await ensure_schema(connection)
        await connection.fetch("TRUNCATE instance, token, ready")
        await connection.fetch("SELECT setval('step_seq', $1::int)", (dead * IDS_PER_JOB + 1,))
        await connection.fetch(FILL_INSTANCES, (2 * ROUNDS,))
        await connection.fetch(FILL_TOKENS, (2 * ROUNDS,))
        await connection.fetch(FILL_DEAD, (dead, IDS_PER_JOB))
        await connection.fetch("INSERT INTO ready (job_type, seq, token_id) SELECT 1, seq, id FROM token")
        await connection.fetch("VACUUM (ANALYZE)")
        with psycopg.connect(dsn) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT FROM setting")
            await connection.fetch("DELETE FROM ready WHERE token_id < 0")
            floor = {JOB_TYPE: jobs.LowWaterMark(5, dead * IDS_PER_JOB - LOW_WATER_MARGIN_IDS)}
            seconds: dict[str, list[tuple[float, float]]] = {"from the start": [], "from the floor": []}
            for number in range(ROUNDS):
                left = 2 * (ROUNDS - number)
                seconds["from the start"].append(await one(connection, {}, left))
                seconds["from the floor"].append(await one(connection, floor, left - 1))
        for name, times in seconds.items():
            probe, claim = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
            print(f"{dead:9,} dead rows, {name}: probe {probe:6.2f} ms, claim of one {claim:6.2f} ms")
    await database.close(5.0)


async def main() -> None:
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn:
            print_line(dsn)
            for dead in DEAD:
                await run(dsn, dead)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    trio.run(main)
