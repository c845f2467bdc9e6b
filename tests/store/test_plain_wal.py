"""What a job writes into the log: without key and queue nothing more than before there were queues; with a limit by
key a quarter more at most."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

import psycopg

from penstock.store.db.connection import TrioConnection
from penstock.store.rows import flow, instances, jobs
from tests.store.test_plans import BASE, connect

BATCH: Final = 64
BATCHES: Final = 8
RECORDS_MAX: Final = 15.4
BYTES_MAX: Final = 1_296
"""15.28 records and 1,283 to 1,287 bytes, before there were queues and since. An index entry would be more, and a
column of eight bytes in the token."""
WAL: Final = b"SELECT wal_records, wal_fpi, wal_bytes::bigint FROM pg_stat_get_backend_wal(pg_backend_pid())"
OTHERS: Final = """
INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('d', 1, 'd', '{}', now());
INSERT INTO job_type (name) VALUES ('plain')"""
QUEUE: Final = """
INSERT INTO queue (name, policy, revision) VALUES ('crm', '{"concurrency": 5}', 1);
INSERT INTO slot (queue, flow_key) SELECT id, '' FROM queue;
INSERT INTO job_type (name, queue, keyed) SELECT 'limited', id, true FROM queue"""
BY_KEY: Final = """UPDATE queue SET policy = '{"concurrencyPerKey": 5}'"""
LIMIT_SHARE_MAX: Final = 1.25
START: Final = b'{"order": "%s"}' % (b"x" * 187)
OUTPUT: Final = b'{"ok": true, "reference": "R-7781", "step": 3}'


class Written(NamedTuple):
    records: int
    images: int
    bytes: int


async def written(connection: TrioConnection) -> Written:
    await connection.fetch(b"SELECT pg_stat_force_next_flush()")
    (row,) = cast(Any, await connection.fetch(WAL))
    return Written(*row)


class Payload(NamedTuple):
    start: bytes
    output: bytes


SMALL: Final = Payload(b'{"order": 17}', b'{"done": true}')
USUAL: Final = Payload(START, OUTPUT)


async def run_jobs(connection: TrioConnection, first: int, payload: Payload = SMALL) -> None:
    """Jobs of one step from their start to the end of their instances, in batches as under load."""
    for batch in range(BATCHES):
        ids = range(BASE + first + batch * BATCH, BASE + first + (batch + 1) * BATCH)
        starts = [instances.FastStart(id, 1, payload.start, None, 1, None, None) for id in ids]
        await instances.start_fast(connection, starts)
        claimed = await jobs.claim(connection, [jobs.ClaimSlot(1, n + 1, "worker", 30.0) for n in range(BATCH)])
        assert len(await jobs.complete_fast(connection, done(claimed, payload))) == BATCH


async def run_limited_jobs(connection: TrioConnection, first: int, payload: Payload) -> None:
    """As `run_jobs`, of the other type, each with one of as many flow keys as there are jobs."""
    cursor = ""
    for batch in range(BATCHES):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        rows = [instances.FastStart(BASE + first + n, 1, payload.start, None, 2, None, None) for n in numbers]
        waits = flow.WaitsInQueue.KEYED
        starts = [flow.FlowStart(row, None, f"k{n}", waits) for row, n in zip(rows, numbers, strict=True)]
        await flow.start(connection, starts, to_outbox=False)
        slots = [jobs.ClaimSlot(2, n + 1, "worker", 30.0) for n in range(BATCH)]
        scan, claimed = await flow.claim(connection, slots, cursor, 256)
        cursor = scan.cursor or ""
        items = done(claimed, payload)
        assert len(await flow.complete(connection, items, [flow.WaitsInQueue.KEYED] * BATCH, to_outbox=False)) == BATCH


def done(claimed: list[jobs.ClaimedJob], payload: Payload) -> list[jobs.FastItem]:
    return [
        jobs.FastItem(job.token, job.seq, job.attempt, "worker", True, 1, None, None, None, payload.output)
        for job in claimed
    ]


Run = Callable[[TrioConnection, int, Payload], Awaitable[None]]


async def cost(
    connection: TrioConnection, first: int, run: Run = run_jobs, payload: Payload = SMALL
) -> tuple[float, float]:
    """Records and bytes of a job. Of tries in which a checkpoint had pages written whole the next one counts."""
    for attempt in range(5):
        before = await written(connection)
        await run(connection, first + attempt * BATCH * BATCHES, payload)
        after = await written(connection)
        if after.images == before.images:
            number = BATCH * BATCHES
            return (after.records - before.records) / number, (after.bytes - before.bytes) / number
    raise AssertionError("a checkpoint in each of five tries")


async def test_a_plain_job_writes_no_byte_for_queues(database_dsn: str, needs_server) -> None:
    needs_server(18, "pg_stat_get_backend_wal")
    with psycopg.connect(database_dsn, autocommit=True) as sql:
        sql.execute(OTHERS.encode())
        async with await connect(database_dsn) as connection:
            await run_jobs(connection, 0)  # pages that are touched for the first time are written whole
            alone = await cost(connection, 100_000)
            sql.execute(QUEUE.encode())
            beside_a_queue = await cost(connection, 200_000)
    assert max(alone[0], beside_a_queue[0]) <= RECORDS_MAX
    assert max(alone[1], beside_a_queue[1]) <= BYTES_MAX


async def test_a_limit_by_key_writes_a_quarter_more_at_most(database_dsn: str, needs_server) -> None:
    needs_server(18, "pg_stat_get_backend_wal")
    with psycopg.connect(database_dsn, autocommit=True) as sql:
        for statements in (OTHERS, QUEUE, BY_KEY):
            sql.execute(statements.encode())
        async with await connect(database_dsn) as connection:
            await run_jobs(connection, 0, USUAL)
            plain = await cost(connection, 100_000, run_jobs, USUAL)
            await run_limited_jobs(connection, 200_000, USUAL)
            limited = await cost(connection, 300_000, run_limited_jobs, USUAL)
    assert limited[1] <= plain[1] * LIMIT_SHARE_MAX, (plain, limited)
