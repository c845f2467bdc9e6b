"""How long a page of a list takes by the number of open instances, of which few or nearly all wait.

    PYTHONPATH=src python -m benchmarks.lists [INSTANCES, default 1,000,000]

Fills a database by SQL and prints the median and the longest of `ROUNDS` pages in milliseconds, with their totals as a
list shows them: counted up to 10,001, ~ where there was no time to.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

from benchmarks.calibration import print_line
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.embedded import embedded
from penstock.store.rows import instances
from penstock.store.rows.instances import IdPage, Listed

ROUNDS = 5
PAGE = 20
PIECE = 50_000
"""Rows that are filled in at once: a statement has ten seconds."""
COUNT_MAX = 10_001
FILL_INSTANCES = (  # every tenth is of definition 2, every second of one of 5,000 flow keys, few of a rare one
    "INSERT INTO instance (id, started_at, definition, vars, business_key, flow_key)"
    " SELECT n, now(), CASE n % 10 WHEN 0 THEN 2 ELSE 1 END, '{}', 'order-' || n,"
    " CASE WHEN n % 50000 = 7 THEN 'rare' WHEN n % 2 = 0 THEN 'k' || n % 10000 END"
    " FROM generate_series($1::int, $2::int) n"
)
FILL_TOKENS = (
    "INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state)"
    " SELECT n, n, 0, 1, n, now(), 0 FROM generate_series($1::int, $2::int) n"
)
PARK = (
    "UPDATE token SET state = 2 WHERE state = 0 AND id % $1::int <> 0",
    "INSERT INTO parked SELECT id, id FROM token WHERE state = 2",
)
LISTS = {
    "all": Listed(),
    "ACTIVE": Listed(status="ACTIVE"),
    "ACTIVE of a definition": Listed([2], "ACTIVE"),
    "WAITING": Listed(status="WAITING"),
    "WAITING of a definition": Listed([2], "WAITING"),
    "WAITING by business key": Listed(None, "WAITING", "order-17"),
    "COMPLETED": Listed(status="COMPLETED"),
    "of a rare flow key": Listed(flow_key="rare"),
    "ACTIVE of a rare flow key": Listed(status="ACTIVE", flow_key="rare"),
    "of one of 5,000 flow keys": Listed(flow_key="k4242"),
}


async def show(connection: TrioConnection, title: str) -> None:
    """A line for each list."""
    print(title)
    for name, wanted in LISTS.items():
        seconds: list[float] = []
        page = IdPage([], 0, complete=True)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            page = await instances.find_page(connection, wanted, limit=PAGE, offset=0, count_max=COUNT_MAX)
            seconds.append(time.perf_counter() - began)
        about = "" if page.complete else "~"
        print(
            f"  {name:26} {statistics.median(seconds) * 1e3:8.1f} ms, longest {max(seconds) * 1e3:8.1f} ms,"
            f" {len(page.ids):3} of {about}{page.total:,}"
        )


async def run(dsn: str, count: int) -> None:
    """Each state of the database in turn."""
    database = Database(dsn, max_connections=1)
    async with database.connection() as connection:
        await ensure_schema(connection)
        await connection.fetch("SET statement_timeout = 0")
        await connection.fetch("SET lock_timeout = 0")  # VACUUM waits for an autovacuum
        for first in range(1, count + 1, PIECE):
            for statement in (FILL_INSTANCES, FILL_TOKENS):
                await connection.fetch(statement, (first, min(first + PIECE - 1, count)))
        await connection.fetch("VACUUM (ANALYZE)")
        await show(connection, f"{count:,} open instances, none of them waits")
        for statement, params in zip(PARK, ((10_000,), ()), strict=True):
            await connection.fetch(statement, params)
        await connection.fetch("VACUUM (ANALYZE)")
        await show(connection, f"{count:,} open instances, all but each ten-thousandth wait")
    await database.close(5.0)


async def main(count: int) -> None:
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn:
            print_line(dsn)
            await run(dsn, count)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if sys.argv[1:] else 1_000_000)
