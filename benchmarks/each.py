"""What `each` over many items takes in one run, on a database of its own: steps that do nothing, or children.

    PYTHONPATH=src python -m benchmarks.each [ITEMS, default 10,000] [LIMIT, default 100] [children]

Prints seconds, items per second and commits. Exit code 1 when the result is wrong. With ``children`` each item is a run
of its own, which is started, ends, and is told to the first one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg
import trio

from benchmarks.calibration import print_line
from penstock.durable import App, child, each, step, workflow
from penstock.store.embedded.embedded import embedded

BOUND_S: Final = 600.0
COMMITS: Final = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
async def one(n: int) -> int:
    return await double(n)


@workflow
async def steps(count: int, limit: int) -> int:
    return sum(await each(double, range(count), limit=limit))


@workflow
async def children(count: int, limit: int) -> int:
    return sum(await each(lambda n: child(one, n), range(count), limit=limit))


def commits(dsn: str) -> int:
    """Of the database until now."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        [found] = connection.execute(COMMITS).fetchall()
    return int(found[0])


async def main(count: int, limit: int, *, nested: bool) -> int:
    """The exit code."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        async with embedded(directory) as dsn, App(one, steps, children, at=dsn, migrate=True) as app:
            print_line(dsn)
            before, began = commits(dsn), time.perf_counter()
            run = await app.start(children if nested else steps, count, limit)
            total = await run.result(BOUND_S)
            took_s = time.perf_counter() - began
            made = commits(dsn) - before
    finally:
        shutil.rmtree(directory)
    print(f"{count:,} items, {limit} at once: {took_s:.1f} s, {count / took_s:,.0f} items/s, {made:,} commits")
    return int(total != count * (count - 1))


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
    items, at_once = numbers[0] if numbers else 10_000, numbers[1] if numbers[1:] else 100
    sys.exit(trio.run(lambda: main(items, at_once, nested="children" in sys.argv)))
