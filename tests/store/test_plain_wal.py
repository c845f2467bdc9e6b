"""What a job without key and queue writes into the log: nothing more than before there were queues."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import psycopg

from penstock.store import instances, jobs
from penstock.store.connection import TrioConnection
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


class Written(NamedTuple):
    records: int
    images: int
    bytes: int


async def written(connection: TrioConnection) -> Written:
    await connection.fetch(b"SELECT pg_stat_force_next_flush()")
    (row,) = cast(Any, await connection.fetch(WAL))
    return Written(*row)


async def run_jobs(connection: TrioConnection, first: int) -> None:
    """Jobs of one step from their start to the end of their instances, in batches as under load."""
    for batch in range(BATCHES):
        ids = range(BASE + first + batch * BATCH, BASE + first + (batch + 1) * BATCH)
        await instances.start_fast(
            connection, [instances.FastStart(id, 1, b'{"order": 17}', None, 1, None, None) for id in ids]
        )
        claimed = await jobs.claim(connection, [jobs.Slot(1, n + 1, "worker", 30.0) for n in range(BATCH)])
        done = [
            jobs.FastItem(job.token, job.seq, job.attempt, "worker", True, 1, None, None, None, b'{"done": true}')
            for job in claimed
        ]
        assert len(await jobs.complete_fast(connection, done)) == BATCH


async def cost(connection: TrioConnection, first: int) -> tuple[float, float]:
    """Records and bytes of a job. Of tries in which a checkpoint had pages written whole the next one counts."""
    for attempt in range(5):
        before = await written(connection)
        await run_jobs(connection, first + attempt * BATCH * BATCHES)
        after = await written(connection)
        if after.images == before.images:
            done = BATCH * BATCHES
            return (after.records - before.records) / done, (after.bytes - before.bytes) / done
    raise AssertionError("a checkpoint in each of five tries")


async def test_a_plain_job_writes_no_byte_for_queues(database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as sql:
        sql.execute(OTHERS.encode())
        async with await connect(database_dsn) as connection:
            await run_jobs(connection, 0)  # pages that are touched for the first time are written whole
            alone = await cost(connection, 100_000)
            sql.execute(QUEUE.encode())
            beside_a_queue = await cost(connection, 200_000)
    assert max(alone[0], beside_a_queue[0]) <= RECORDS_MAX
    assert max(alone[1], beside_a_queue[1]) <= BYTES_MAX
