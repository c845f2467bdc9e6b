"""What a statement costs the engine: `TrioConnection` one by one, pipelined, and in one round trip.

    PYTHONPATH=src python -m benchmarks.store_connection

Prints microseconds per operation: wall time and CPU of this process (the server's is not in it).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from benchmarks.calibration import print_line
from penstock.store.db.connection import TrioConnection
from penstock.store.db.pool import Pool
from penstock.store.embedded.embedded import embedded

ROUNDS = 5
REPEATS = 1000

READ = [
    ("BEGIN", ()),
    ("SELECT id FROM token WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE", ("{1,2,3}",)),
    ("SELECT id FROM token WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE", ("{1,2,3,4,5,6}",)),
    ("SELECT id, n FROM token WHERE id = ANY($1::bigint[])", ("{1,2,3,4,5,6}",)),
]
EIGHT = (
    "SELECT $1::bigint, $2::text, now(), $3::int, $4::text, $5::text, $6::text, $7::text",
    ("12", '{"a"}', 5, None, "{1}", "{2}", "{3}"),
)
WRITE = [("UPDATE token SET n = n + 1 WHERE id = ANY($1::bigint[])", ("{1,2,3}",)), ("COMMIT", ())]


async def measure(name: str, operation: Callable[[], Awaitable[object]]) -> None:
    """The best of some rounds: the machine is rarely quiet."""
    best_wall = best_cpu = float("inf")
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(REPEATS):
            await operation()
        best_wall = min(best_wall, (time.perf_counter() - wall) / REPEATS)
        best_cpu = min(best_cpu, (time.process_time() - cpu) / REPEATS)
    print(f"{name:44} {best_wall * 1e6:6.0f} µs wall {best_cpu * 1e6:6.0f} µs CPU")


async def run(dsn: str) -> None:
    async with Pool(dsn, max_size=1) as pool, pool.connection() as connection:
        await connection.fetch("CREATE TABLE token (id bigint PRIMARY KEY, n int) WITH (fillfactor = 50)")
        await connection.fetch("INSERT INTO token SELECT id, 0 FROM generate_series(1, 6) id")

        async def in_round_trips() -> None:
            await connection.roundtrip(READ)
            await connection.roundtrip(WRITE)

        async def one_by_one() -> None:
            for sql, parameters in (*READ, *WRITE):
                await connection.fetch(sql, parameters)

        async def in_psycopgs_pipeline() -> None:
            for statements in (READ, WRITE):
                async with connection.pipeline():
                    for sql, parameters in statements:
                        await connection.execute(sql, parameters)

        async def in_a_transaction() -> None:
            async with connection.transaction():
                for sql, parameters in (*READ[1:], *WRITE[:1]):
                    await connection.fetch(sql, parameters)

        async def by_a_cursor() -> None:
            await (await connection.execute(EIGHT[0], EIGHT[1])).fetchall()

        await measure("8 parameters and columns, a cursor", by_a_cursor)
        await measure("8 parameters and columns, fetch()", lambda: connection.fetch(*EIGHT))
        await measure("SELECT 1, fetch()", lambda: connection.fetch("SELECT 1"))
        await measure("SELECT 1, roundtrip()", lambda: connection.roundtrip([("SELECT 1", ())]))
        await measure("full path, 6 statements: 2 roundtrip()", in_round_trips)
        await measure("full path, 6 statements: one by one", one_by_one)
        await measure("full path, 6 statements: transaction()", in_a_transaction)
        await measure("full path, 6 statements: psycopg's pipeline()", in_psycopgs_pipeline)
    async with Pool(dsn, max_size=1) as pool:

        async def through_the_pool() -> None:
            async with pool.connection() as connection:
                await connection.fetch("SELECT 1")

        await measure("SELECT 1 through the pool", through_the_pool)
        await measure("connect and close", lambda: connect_and_close(dsn))


async def connect_and_close(dsn: str) -> None:
    await (await TrioConnection.connect(dsn)).close()


async def main() -> None:
    print_line()
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    try:
        async with embedded(directory, settings={"synchronous_commit": "off"}) as dsn:
            await run(dsn)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    trio.run(main)
