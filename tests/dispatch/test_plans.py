"""What Kafka mode's statements cost when everything is big: no sequential scan, blocks that don't grow with the tables.

As `tests/store/test_plans.py`, with 200,000 rows in the outbox, 2,000 of them of another job type, and as many in the
queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, cast

import psycopg
import pytest

from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import configure
from penstock.store.rows import jobs, outbox
from penstock.store.rows.outbox import PublishedRow
from tests.postgres import PostgresServer, apply_schema
from tests.store.test_plans import BASE, BLOCKS, SCANS

pytestmark = pytest.mark.slow(reason="plans over large tables")

ROWS = 200_000
BIG_TABLES = ("token", "ready", "dispatch_outbox", "instance")

# Tokens BASE + 4k wait in the outbox for k < ROWS, in the queue above. One of 100 rows of the outbox is of type 2.
FILL = """
INSERT INTO job_type (name) SELECT 'type-' || n FROM generate_series(1, 50) AS n;
SET session_replication_role = replica;  -- rows in states that no token comes to be in
INSERT INTO instance (id, started_at, definition, vars)
  SELECT {base} + 4 * k, now(), 1, '{{"in": 1}}' FROM generate_series(0, 2 * {n} - 1) AS k;
INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state, attempt, claimed_at, lease_until)
  SELECT {base} + 4 * k, {base} + 4 * k, k + 1, now(), CASE WHEN k < {n} AND k % 100 = 0 THEN 2 ELSE 1 END, 0,
    CASE WHEN k % 10 = 9 THEN 5 ELSE 0 END, CASE WHEN k % 10 = 9 THEN 1 ELSE 0 END, now(), now()
  FROM generate_series(0, 2 * {n} - 1) AS k;
INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT 3000000 + k, {base} + 4 * k, {base} + 4 * k, k + 1, now(), CASE WHEN k % 100 = 0 THEN 2 ELSE 1 END, 1
  FROM generate_series(0, {n} - 1) AS k;
INSERT INTO ready (job_type, seq, token_id)
  SELECT 1, k + 1, {base} + 4 * k FROM generate_series({n}, 2 * {n} - 1) AS k WHERE k % 10 <> 9;
SET session_replication_role = origin;
SELECT setval('step_seq', 10000000);
"""


class Case(NamedTuple):
    call: Callable[[TrioConnection], Awaitable[Any]]
    result: object
    blocks: int


async def take(connection: TrioConnection, types: dict[int, int], per_type: int) -> int:
    scan = await outbox.take(connection, types, per_type, [7, 8, 9], 60, [PublishedRow(1, 3000001, 0)], audit=True)
    return len(scan.outgoing)


async def end_dispatches(connection: TrioConnection) -> int:
    keys = [(BASE + 4 * k, k + 1, 1) for k in range(9, 1000, 10)]
    return len(await jobs.expire(connection, keys, 10, to_outbox=True))


def moving(*, to_outbox: bool) -> Callable[[TrioConnection], Awaitable[Any]]:
    return lambda connection: outbox.migrate_dispatch(connection, 1000, (), to_outbox=to_outbox)


CASES = {
    "take from a type with many rows": Case(lambda c: take(c, {1: 0}, 100), 100, 100 * 45),
    "take from a type with few rows among many": Case(lambda c: take(c, {2: 0}, 100), 100, 100 * 45),
    "take in the middle": Case(lambda c: take(c, {1: 3100000}, 100), 100, 100 * 45),
    "take from many types": Case(lambda c: take(c, dict.fromkeys(range(1, 51), 0), 4), 8, 8 * 45 + 50 * 10),
    "look for types": Case(outbox.types_with_rows, [1, 2], 50 * 10),
    "end_dispatches": Case(end_dispatches, 100, 100 * 45),
    "queue_to_outbox": Case(moving(to_outbox=True), 1000, 1000 * 35),
    "outbox_to_queue": Case(moving(to_outbox=False), 1000, 1000 * 45),
    "is anything left in the outbox": Case(lambda c: outbox.anything_left(c, to_outbox=False), True, 20),
    "is anything left in the queue": Case(lambda c: outbox.anything_left(c, to_outbox=True), True, 20),
}


@pytest.fixture(scope="module")
def full_dsn(postgres_server: PostgresServer) -> Generator[str]:
    with postgres_server.database(apply_schema) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute(FILL.format(base=BASE, n=ROWS).encode())
            connection.execute("ANALYZE")
        yield dsn


@pytest.mark.parametrize("name", CASES)
async def test_a_statement_costs_what_its_rows_cost(full_dsn: str, name: str) -> None:
    case = CASES[name]
    connection = await TrioConnection.connect(full_dsn)
    try:
        await configure(connection)
        await connection.fetch(b"BEGIN")
        before = cast(int, (await connection.fetch(BLOCKS))[0][0])
        result = await case.call(connection)
        blocks = cast(int, (await connection.fetch(BLOCKS))[0][0]) - before
        scans = dict(cast(Any, await connection.fetch(SCANS, ("{" + ",".join(BIG_TABLES) + "}",))))
        await connection.fetch(b"ROLLBACK")
    finally:
        connection.close_nowait()
    assert result == case.result
    assert blocks <= case.blocks
    assert scans == dict.fromkeys(BIG_TABLES, 0), "a sequential scan"
