"""Claims of jobs that wait for turns: several at once, and what they cost beside many jobs and full keys.

20,000 jobs of 2,000 keys wait, of which 1,900 are full. The statements are prepared while the tables are empty and were
never analysed, as in an engine that was started on a new database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import psycopg
import pytest
import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows import flow, jobs, queues
from penstock.wire.queue import QueuePolicy
from tests.postgres import PostgresServer, apply_schema
from tests.store.test_plans import BASE, BLOCKS, SCANS, connect
from tests.waiting import wait_until

JOBS, KEYS, FREE_EVERY = 20_000, 2_000, 20
PER_KEY = 5
KEYS_PER_CLAIM = 256
LEASE_S = 600.0
TABLES = ("instance", "token", "ready_flow", "slot", "history")
FILL = """
INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('d', 1, 'd', '{{}}', now());
INSERT INTO instance (id, started_at, definition, vars)
  SELECT {base} + n, now(), 1, '{{}}' FROM generate_series(1, {jobs}) n;
INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state, flow_key)
  SELECT {base} + n, {base} + n, 0, 1, n, now(), 0, 'k' || n % {keys} FROM generate_series(1, {jobs}) n;
INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT 1, 5, 'k' || n % {keys}, n, {base} + n FROM generate_series(1, {jobs}) n;
SELECT setval('step_seq', {jobs} + 1)"""


def fill(dsn: str, number: int, keys: int) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(FILL.format(base=BASE, jobs=number, keys=keys).encode())


async def claim(
    connection: TrioConnection, number: int, cursor: str = ""
) -> tuple[flow.ClaimScan, list[jobs.ClaimedJob]]:
    slots = [jobs.ClaimSlot(1, place + 1, "w", LEASE_S) for place in range(number)]
    return await flow.claim(connection, slots, cursor, KEYS_PER_CLAIM)


async def complete(connection: TrioConnection, claimed: list[jobs.ClaimedJob]) -> None:
    done = [jobs.FastItem(job.token, job.seq, job.attempt, "w", True, 1, None, None, None, b"{}") for job in claimed]
    assert len(await flow.complete(connection, done, [flow.WaitsInQueue.KEYED] * len(done), to_outbox=False)) == len(
        done
    )


@asynccontextmanager
async def two_claimers(dsn: str, **policy: Any) -> AsyncGenerator[tuple[TrioConnection, TrioConnection]]:
    """Eight keys with a job each; the first of the connections is in a transaction."""
    async with await connect(dsn) as one, await connect(dsn) as other:
        await queues.put(one, "q", QueuePolicy(["work"], **policy), actor=None, audit=False)
        await trio.to_thread.run_sync(fill, dsn, 8, 8)
        await other.fetch(b"SET lock_timeout = '60s'")
        await one.fetch(SQL["begin"])
        yield one, other


@pytest.mark.parametrize("policy", [{}, {"concurrency_per_key": 1}])
async def test_a_claim_passes_over_keys_that_another_takes(database_dsn: str, policy: dict[str, int]) -> None:
    async with two_claimers(database_dsn, **policy) as (one, other):
        _, first = await claim(one, 4)
        _, second = await claim(other, 4)  # from the same place in the round
        await one.fetch(b"COMMIT")
    assert len({job.token for job in first + second}) == len(first) + len(second) == 8


async def test_claims_that_saw_the_same_room_share_it(database_dsn: str) -> None:
    async with two_claimers(database_dsn, concurrency=5) as (one, other):
        _, first = await claim(one, 3)
        found: list[jobs.ClaimedJob] = []

        async def claim_too() -> None:
            found.extend((await claim(other, 3))[1])

        async def is_waiting() -> bool:
            waiting: Any = await one.fetch(b"SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(waiting[0][0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim_too)
            await wait_until(is_waiting)
            await one.fetch(b"COMMIT")
        assert (len(first), len(found)) == (3, 2)
        assert await other.fetch(b"SELECT running FROM slot WHERE flow_key = ''") == [(5,)]
        assert (await claim(other, 3))[1] == []


class Cost(NamedTuple):
    blocks: int
    scans: dict[str, int]
    visited: int
    found: int


async def counted(connection: TrioConnection) -> tuple[int, dict[str, int]]:
    rows: Any = await connection.fetch(BLOCKS)
    scans: Any = await connection.fetch(SCANS, ("{" + ",".join(TABLES) + "}",))
    return rows[0][0], dict(scans)


async def admission_cost(connection: TrioConnection, keys: list[str]) -> Cost:
    """As `cost`, of an admission in Kafka mode."""
    await connection.fetch(SQL["begin"])
    before = await counted(connection)
    scan, found = await flow.admit_hinted(connection, 1, 64, keys, LEASE_S)
    after = await counted(connection)
    await connection.fetch(b"ROLLBACK")
    scans = {name: number - before[1][name] for name, number in after[1].items() if number > before[1][name]}
    return Cost(after[0] - before[0], scans, scan.visited, found)


async def read_cost(connection: TrioConnection, name: str, params: tuple[object, ...]) -> Cost:
    """Of a look at how the queue stands."""
    before = await counted(connection)
    rows = await connection.fetch(SQL[name], params)
    after = await counted(connection)
    scans = {table: number - before[1][table] for table, number in after[1].items() if number > before[1][table]}
    return Cost(after[0] - before[0], scans, 0, len(rows))


async def cost(connection: TrioConnection, where: str | list[str]) -> tuple[Cost, Cost]:
    """Of a claim of 64 from a cursor or of these keys, and of the completions of what it found."""
    slots = [jobs.ClaimSlot(1, place + 1, "w", LEASE_S) for place in range(64)]
    await connection.fetch(SQL["begin"])
    before = await counted(connection)
    if isinstance(where, str):
        scan, claimed = await flow.claim(connection, slots, where, KEYS_PER_CLAIM)
    else:
        scan, claimed = await flow.claim_hinted(connection, slots, where)
    between = await counted(connection)
    if claimed:
        await complete(connection, claimed)
    after = await counted(connection)
    await connection.fetch(b"ROLLBACK")

    def grown(earlier: dict[str, int], later: dict[str, int]) -> dict[str, int]:
        return {name: number - earlier[name] for name, number in later.items() if number > earlier[name]}

    found = scan.visited, len(claimed)
    claims = Cost(between[0] - before[0], grown(before[1], between[1]), *found)
    return claims, Cost(after[0] - between[0], grown(between[1], after[1]), *found)


@pytest.fixture(scope="module")
def costs(postgres_server: PostgresServer) -> Generator[dict[str, Cost]]:
    """With a limit by key: claims where all keys have room, where most are full, and completions."""

    async def measure(dsn: str) -> dict[str, Cost]:
        async with await connect(dsn) as connection:
            policy = QueuePolicy(["work"], concurrency_per_key=PER_KEY)
            await queues.put(connection, "q", policy, actor=None, audit=False)
            await trio.to_thread.run_sync(fill, dsn, 64, 64)
            _, few = await claim(connection, 64)
            await complete(connection, few)
            await flow.claim_hinted(connection, [jobs.ClaimSlot(1, 1, "w", LEASE_S)], ["k1"])
            await connection.fetch(b"TRUNCATE instance, token, ready_flow, slot, definition RESTART IDENTITY")
            await trio.to_thread.run_sync(fill, dsn, JOBS, KEYS)
            free, done = await cost(connection, '{"5": "k1"}')
            await connection.fetch(
                b"INSERT INTO slot (queue, flow_key, running) SELECT (SELECT id FROM queue), 'k' || n,"
                b" CASE WHEN n %% %d = 7 THEN 0 ELSE %d END FROM generate_series(0, %d) n"
                % (FREE_EVERY, PER_KEY, KEYS - 1)
            )
            full, _ = await cost(connection, '{"5": "k1"}')
            hinted, _ = await cost(connection, [f"k{number}" for number in range(7, 287)])
            admitted = await admission_cost(connection, [f"k{number}" for number in range(7, 287)])
            ((queue, _, _, _),) = cast(Any, await connection.fetch(SQL["list_queues"], ("", 1, "q")))
            state = await read_cost(connection, "queue_state", (queue, "{1}", 1_000))
            keys = await read_cost(connection, "queue_keys", (queue, "{1}", 20, 1_000))
            return {
                "state": state,
                "keys": keys,
                "free": free,
                "completions": done,
                "full": full,
                "hinted": hinted,
                "admitted": admitted,
            }

    with postgres_server.database(apply_schema) as dsn:
        yield trio.run(measure, dsn)


@pytest.mark.parametrize(
    ("name", "visited", "found", "blocks"),
    [
        ("free", 64, 64, 64 * 45),
        ("completions", 64, 64, 64 * 25),
        ("full", 256, 64, 256 * 9 + 64 * 30),
        ("hinted", 280, 64, 280 * 9 + 64 * 30),
        ("state", 0, 1, 2_000),
        ("keys", 0, 20, 2_000),
        ("admitted", 280, 64, 280 * 9 + 64 * 30),
    ],
)
def test_a_claim_in_turn_keeps_to_its_blocks(
    costs: dict[str, Cost], name: str, visited: int, found: int, blocks: int
) -> None:
    seen = costs[name]
    assert seen.scans == {}
    assert (seen.visited, seen.found) == (visited, found)
    assert seen.blocks <= blocks
