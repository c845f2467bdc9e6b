"""What it costs to remove instances by the row, with their history, against dropping their partition.

``python -m benchmarks.retention [--instances 20000]``: on the embedded PostgreSQL, nothing else running on it. Prints
for each way seconds, WAL and dead rows, and for what moves to a partition of its own how long writers to it are kept
out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg
import trio

from benchmarks.calibration import print_line
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import configure
from penstock.store.rows import retention as store
from penstock.testing.postgres import apply_schema, run_directory, shared_server

HISTORY_ROWS: Final = 3
KEPT_OF: Final = 10
"""One of so many is kept for longer."""
FILL: Final = """
SET session_replication_role = replica;  -- ended ones at once
INSERT INTO instance (id, started_at, ended_at, definition, status, vars)
  SELECT first_instance_id(now() - interval '30 days') + k, now() - interval '30 days', now() - interval '29 days',
    1 + (k %% {kept_of} = 0)::int, 1, jsonb_build_object('customer', repeat('x', 200))
  FROM generate_series(1, {n}) AS k;
INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind, output)
  SELECT i.id, 10 * (i.id %% 1000000000) + s, i.id, s, now(), now(), 1, s, 1,
    '{{"out": "of some forty bytes, as most are"}}'
  FROM instance i, generate_series(1, {rows}) AS s
"""


async def measured(name: str, dsn: str, work: Callable[[TrioConnection], Awaitable[int]]) -> None:
    with psycopg.connect(dsn, autocommit=True) as eyes:

        def wal() -> Any:
            return eyes.execute("SELECT pg_current_wal_insert_lsn()").fetchall()[0][0]

        eyes.execute("CHECKPOINT")
        before, started = wal(), time.perf_counter()
        async with await TrioConnection.connect(dsn) as connection:
            await configure(connection)
            count = await work(connection)
        took_s = time.perf_counter() - started
        rows: Any = eyes.execute("SELECT pg_wal_lsn_diff(%s, %s)", (wal(), before)).fetchall()
        wal_bytes = float(rows[0][0])
    print(
        f"{name:44} {count:7} instances {took_s:7.3f} s  {wal_bytes / 1e6:8.2f} MB of WAL"
        f"  {wal_bytes / max(count, 1):7.0f} B each"
    )


async def remove(connection: TrioConnection, *, with_history: bool) -> int:
    [partition] = [each for each in await store.over(connection, "history", 1) if not each.moved]
    count, after = 0, -1
    while found := await store.retired(connection, partition, 1, after):
        after = found[-1].id
        for first in range(0, len(found), store.SLICE_MAX_ROWS if with_history else len(found)):
            piece = found[first : first + store.SLICE_MAX_ROWS] if with_history else found
            removed = await (
                store.remove_with_history(connection, piece)
                if with_history
                else store.remove_instances(connection, piece)
            )
            assert removed is not None
        count += len(found)
    if not with_history:
        assert await store.drop(connection, partition)
    return count


async def move(connection: TrioConnection) -> int:
    [partition] = await store.over(connection, "history", 1)
    rules = store.Exceptions([2], [1], [365.0])
    count, after = 0, -1
    while found := await store.retired(connection, partition, 1, after, rules):
        after = found[-1].id
        await store.remove_instances(connection, found)
        count += len(found)
    started = time.perf_counter()
    assert await store.move_kept(connection, partition, 10_000_000)
    took_ms = (time.perf_counter() - started) * 1e3
    print(f"  of these {took_ms:.0f} ms with the lock, to move what is left ({count // (KEPT_OF - 1)} instances)")
    return count


def prepare(dsn: str, instances: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT add_log_partition('history', now() - interval '31 days', now() - interval '29 days')"
        )
        connection.execute("INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('a', 1, 'a', '', now()), ('b', 1, 'b', '', now())")  # fmt: skip  # noqa: E501 - one statement
        connection.execute(FILL.format(n=instances, rows=HISTORY_ROWS, kept_of=KEPT_OF).replace("%%", "%").encode())
        connection.execute("VACUUM ANALYZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=20_000)
    instances: int = parser.parse_args().instances
    ways: dict[str, Callable[[TrioConnection], Awaitable[int]]] = {
        "instances removed, their partition dropped": lambda connection: remove(connection, with_history=False),
        "instances removed by the row": lambda connection: remove(connection, with_history=True),
        "instances removed, one of ten moved": move,
    }
    with shared_server(run_directory(durable=True), durable=True) as server:
        for name, work in ways.items():
            with server.database(apply_schema) as dsn:
                print_line(dsn)
                prepare(dsn, instances)
                trio.run(measured, name, dsn, work)


if __name__ == "__main__":
    main()
