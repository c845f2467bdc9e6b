"""What the statements of one instance of three steps take in a row on this PostgreSQL, without an engine.

The four that an idle engine sends for it (a start and three completions, each job leased at once), by the same
functions of the store, on one connection driven by Trio, with the same pause between instances: below that no engine
of this schema, driver and loop comes on this machine in this minute. Neither HTTP, group-commit queues nor workers are
in it. In a database of its own.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import trio
from psycopg.conninfo import make_conninfo

from benchmarks.load.counts import percentile
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import ensure_schema
from penstock.store.rows.instances import FastStart, start_fast
from penstock.store.rows.jobs import FastItem, complete_fast

DATABASE = "penstock_benchmark_statements"
WARM_UP_ROUNDS = 20
LEASE_S = 60.0


def statements_in_a_row_ms(
    dsn: str, rounds: int, variables: bytes, outputs: list[bytes], pause_s: float
) -> tuple[float, float] | None:
    """Median and 99th percentile, of so many instances; None where this account may make no database."""
    try:
        with _database(dsn) as own:
            taken = sorted(trio.run(_instances, own, rounds, variables, outputs, pause_s))
    except psycopg.errors.InsufficientPrivilege:
        return None
    p50, p99 = percentile(taken, 0.5), percentile(taken, 0.99)
    assert p50 is not None
    assert p99 is not None
    return p50 * 1e3, p99 * 1e3


@contextmanager
def _database(dsn: str) -> Generator[str]:
    drop = f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)".encode()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(f"CREATE DATABASE {DATABASE} ENCODING 'UTF8' TEMPLATE template0".encode())
        try:
            yield make_conninfo(dsn, dbname=DATABASE)
        finally:
            connection.execute(drop)


async def _instances(dsn: str, rounds: int, variables: bytes, outputs: list[bytes], pause_s: float) -> list[float]:
    database = Database(dsn, max_connections=1)
    taken: list[float] = []
    async with database.connection() as connection:
        await ensure_schema(connection)
        for id in range(1, WARM_UP_ROUNDS + rounds + 1):
            began = time.perf_counter()
            await _instance(connection, id, variables, outputs)
            taken.append(time.perf_counter() - began)
            await trio.sleep(pause_s)
    await database.close(5.0)
    return taken[WARM_UP_ROUNDS:]


async def _instance(connection: TrioConnection, id: int, variables: bytes, outputs: list[bytes]) -> None:
    (begun,) = await start_fast(connection, [FastStart(id, 1, variables, None, 1, "worker", LEASE_S)])
    seq, last = begun.seq, len(outputs) - 1
    for step, output in enumerate(outputs):
        ends = step == last
        next_type, worker, lease_s = (None, None, None) if ends else (step + 2, "worker", LEASE_S)
        item = FastItem(id, seq, 1, "worker", ends, step + 1, next_type, worker, lease_s, output)
        (moved,) = await complete_fast(connection, [item])
        assert ends is (moved.new_seq is None), "a completion went another way"
        seq = moved.new_seq or seq
