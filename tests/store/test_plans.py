"""What the engine's statements cost when the tables are big: no sequential scan, and blocks that don't grow with them.

One database holds 1,000,000 open instances with a token each (995,000 of them in the queue), 1,000,000 finished ones
with a history row each and 1,000,000 timers in the future; a second one, of 20,000 each, is what it is compared with.
There the statements are prepared while the tables are empty and the tables never analysed, as in an engine that was
started on a new database. Every call goes through the engine's own functions and session settings, in a transaction
that is rolled back. Its cost is what PostgreSQL itself counts for the transaction: blocks fetched (hit or read) of all
our tables, indexes and sequences, and sequential scans of the big tables.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import psycopg
import pytest
import trio

from penstock.core.advance.completion import Question
from penstock.core.rules.search_attributes import Wanted
from penstock.engine.advance.timers import DUE_MAX
from penstock.engine.engine import Engine
from penstock.engine.instances.instances import COUNT_MAX
from penstock.settings import Settings
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, configure
from penstock.store.db.statements import SQL
from penstock.store.rows import (
    acknowledged,
    audit,
    compensation,
    definition_use,
    definitions,
    diagnosis,
    engines,
    idempotency,
    instances,
    jobs,
    journal,
    origins,
    retention,
    timers,
    traces,
    variables,
)
from penstock.store.rows.instances import FastStart, IdPage, Listed
from penstock.store.rows.jobs import ClaimedJob, ClaimSlot, Extension, FastItem, JobKey, Lease
from penstock.store.rows.timers import Timer
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import definition, end, step
from tests.engine.driver import Driver
from tests.postgres import PostgresServer, apply_schema

pytestmark = pytest.mark.slow(reason="plans over large tables")

MANY = 1_000_000
FEW = 20_000
BASE = 1 << 40  # ids below all that an engine makes
BIG_TABLES = (
    "instance", "token", "ready", "timer", "history", "idempotency", "search_attribute", "trace_context", "bulk_done",
    "blocked_run", "audit_other",
)  # fmt: skip

# Open instances are BASE + 4k, finished ones BASE + 4k + 2. One of 200 is parked, one of 1,000 finished ones failed,
# one of 10,000 has the rare definition, one of 10,000 finished ones has a definition of which none is open, one of 100
# has a business key.
FILL = {
    "token": """INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state)
        SELECT {base} + 4 * k, {base} + 4 * k, k + 1, now(),
          CASE WHEN k % 200 = 3 THEN NULL WHEN k % 2000 = 5 THEN 2 ELSE 1 END, 0,
          CASE WHEN k % 200 = 3 THEN 2 ELSE 0 END FROM generate_series(0, {n} - 1) AS k""",
    "ready": """INSERT INTO ready (job_type, seq, token_id)
        SELECT CASE WHEN k % 2000 = 5 THEN 2 ELSE 1 END, k + 1, {base} + 4 * k
        FROM generate_series(0, {n} - 1) AS k WHERE k % 200 <> 3""",
    "parked": """INSERT INTO parked (instance_id, token_id)
        SELECT {base} + 4 * k, {base} + 4 * k FROM generate_series(0, {n} - 1) AS k WHERE k % 200 = 3""",
    "blocked_run": """INSERT INTO blocked_run (instance_id, since, reason)
        SELECT {base} + 4 * k, now(), 'no' FROM generate_series(0, {n} - 1) AS k WHERE k % 200 = 5""",
    "bulk_done": """INSERT INTO bulk_done (operation, instance_id)
        SELECT k % 20, {base} + 4 * k + 2 * (k % 2) FROM generate_series(0, {n} - 1) AS k""",
    "audit": """INSERT INTO audit (pos, at, kind, actor, detail)
        SELECT k + 1, now() - ({n} - k) * interval '1 s', 'QUEUE_CHANGED', 'p' || k % 50, 'q' || k % 1000
        FROM generate_series(0, {n} - 1) AS k""",
    "timer": """INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
        SELECT {base} + 4 * k, k + 1, now() + (30 + (k::bigint * 7919 % {n}) / {n}::float8) * interval '1 day',
          {base} + 4 * k, 0 FROM generate_series(0, {n} - 1) AS k""",
    "history": """INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind,
          output)
        SELECT {base} + 4 * k + 2, 3000000 + k, {base} + 4 * k + 2, 2000000 + k, now(), now(), 1, 0, 1, '{{"out": 1}}'
        FROM generate_series(0, {n} - 1) AS k""",
    "instance": """SET session_replication_role = replica;  -- ended ones at once
        INSERT INTO instance (id, started_at, ended_at, definition, status, vars, business_key)
        SELECT {base} + 2 * j, now(), CASE WHEN j % 2 = 1 THEN now() END,
          CASE WHEN j % 20000 = 37 THEN 3 WHEN j / 2 % 10000 = 17 THEN 2 ELSE 1 END,
          CASE WHEN j % 2 = 0 THEN 0 WHEN j / 2 % 1000 = 7 THEN 2 ELSE 1 END, '{{"in": 1}}',
          CASE WHEN j / 2 % 100 = 17 THEN 'order-' || j END FROM generate_series(0, 2 * {n} - 1) AS j;
        SET session_replication_role = origin""",
    "abnormal_end": """INSERT INTO abnormal_end (status, instance_id, job_type, definition, step, cause)
        SELECT 2, {base} + 4 * k + 2, CASE k / 1000 % 4 WHEN 3 THEN 1 END, 1, 'pay', failure_cause('no paper ' || k)
        FROM generate_series(0, {n} - 1) AS k WHERE k % 1000 = 7""",
    "search_attribute": """INSERT INTO search_attribute (instance_id, name, text, number)
        SELECT {base} + 4 * k, 'customer', 'c' || k % 1000, k % 1000 FROM generate_series(0, {n} - 1) AS k""",
    "trace_context": """INSERT INTO trace_context (instance_id, traceparent)
        SELECT {base} + 4 * k, repeat('0', 55) FROM generate_series(0, {n} / 10 - 1) AS k""",
    "idempotency": """INSERT INTO idempotency (scope, key, request_hash, instance_id, created_at)
        SELECT 'start', 'key-' || k, '', {base} + 4 * k, now() + k * interval '1 ms'
        FROM generate_series(0, {n} - 1) AS k""",
}
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NO_JOB = ClaimedJob(1, 1, 1, 1, 1, 0, 1, 0, NOW, NOW, NOW, 5, 1, 1, 1, None, "{}")
BEGIN, COMMIT = SQL["begin"], SQL["commit"]
TIME_LIMITS = SQL["give_up_soon"], SQL["look_briefly"], SQL["walk_for_seconds"]
BLOCKS = b"""SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::bigint FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i', 'S')"""
SCANS = b"SELECT relname, pg_stat_get_xact_numscans(oid) FROM pg_class WHERE relname = ANY($1::text[])"


def fill(dsn: str, n: int) -> None:
    """One transaction per table, two tables at a time."""

    def insert(table: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute(FILL[table].format(base=BASE, n=n).encode())

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(insert, FILL))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT setval('step_seq', 10000000)")


@pytest.fixture(scope="module")
def big_dsn(postgres_server: PostgresServer) -> Generator[str]:
    with postgres_server.database(apply_schema) as dsn:
        fill(dsn, MANY)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("ANALYZE")
        yield dsn


class Cost(NamedTuple):
    """Of one call. ``rows`` is the length of what it returned."""

    blocks: int
    scans: dict[str, int]
    rows: int


class InTransaction:
    """The connection without two things that a function sends itself: BEGIN and COMMIT, as the test's transaction is
    around it; and its limits of time, as blocks are counted here and a busy machine takes longer."""

    def __init__(self, connection: TrioConnection) -> None:
        self.transaction = connection.transaction
        self._connection = connection

    async def fetch(self, statement: bytes, params: Sequence[object] = ()) -> list[Any]:
        return [] if statement in TIME_LIMITS else await self._connection.fetch(statement, params)

    async def roundtrip(self, statements: Sequence[tuple[bytes, Sequence[object]]]) -> list[list[Any]]:
        kept = [statement for statement in statements if statement[0] not in (BEGIN, COMMIT, *TIME_LIMITS)]
        return [[], *await self._connection.roundtrip(kept), []]


Call = Callable[[TrioConnection, list[ClaimedJob]], Awaitable[Any]]


class Case(NamedTuple):
    """``call`` gets as many jobs as ``leased``; what it returns has ``rows`` rows and costs ``blocks`` at most."""

    call: Call
    rows: int
    blocks: int
    leased: int = 0
    lease_s: float = 30


def slots(n: int, lease_s: float = 30) -> list[ClaimSlot]:
    return [ClaimSlot(1, ordinal, "w", lease_s) for ordinal in range(1, n + 1)]


def completion(job: ClaimedJob) -> FastItem:
    return FastItem(job.token, job.seq, job.attempt, "w", False, 1, 1, None, None, b'{"a":1}')


def last_completion(job: ClaimedJob) -> FastItem:
    return FastItem(job.token, job.seq, job.attempt, "w", True, 1, None, None, None, b'{"a":1}')


def facts_keys(leased: list[ClaimedJob]) -> list[JobKey]:
    """Half of them open, half of them closed long ago."""
    closed = [JobKey(BASE + 4 * k + 2, BASE + 4 * k + 2, 2000000 + k) for k in range(0, 5000, 100)]
    return [JobKey(job.instance, job.token, job.seq) for job in leased] + closed


async def failed(connection: TrioConnection, job_type: str | None) -> list[Any]:
    wrapped = cast(Any, InTransaction(connection))
    found, total = await jobs.failed_jobs(wrapped, job_type, limit=5, offset=0, count_max=5)
    return [*found, *range(total)]


def starts(n: int) -> list[FastStart]:
    return [FastStart((1 << 42) + k, 1, b"{}", f"new-{k}", 1, None, None) for k in range(n)]


def found(**filters: Any) -> Call:
    limit, oldest = filters.pop("limit", 50), filters.pop("oldest", False)
    wanted = Listed(**filters)
    return lambda connection, _: instances.find_ids(
        cast(Any, InTransaction(connection)), wanted, limit=limit, oldest=oldest
    )


def sorted_by_key(limit: int, **filters: Any) -> Call:
    async def page(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
        wrapped = cast(Any, InTransaction(connection))
        return (await instances.find_by_key(wrapped, Listed(**filters), instances.KeyPlace(), limit))[0]

    return page


def sorted_by_time(limit: int, *, ended: bool, **filters: Any) -> Call:
    async def page(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
        wrapped, wanted = cast(Any, InTransaction(connection)), Listed(**filters)
        most, after = COUNT_MAX, instances.TimePlace()
        read = await instances.find_by_time(wrapped, wanted, after, limit, most=most, ended=ended)
        return ["too many"] if read is None else read[0]

    return page


async def history(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    read = await instances.history(connection, BASE + 4 * 100 + 2)
    return [] if read is None else read[1]


async def fill_causes(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    return [await instances.fill_causes(connection, 0, 10)]


async def failure_behind(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    return [await instances.failure_behind(connection, 0, 20)]


async def alike(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    """Of the newest 20 that failed; all for one cause."""
    return (await instances.failures_alike(connection, 20, 5))[0]


async def stands(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    """One that waits, with a timer that is not its own execution's."""
    tokens = await diagnosis.tokens(connection, BASE + 4 * 3)
    timers = await diagnosis.timers(connection, tokens)
    assert await diagnosis.signals(connection, BASE + 4 * 3) == 0
    assert await diagnosis.failure(connection, BASE + 4 * 3) is None
    return [*tokens, *timers]


async def summary(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    """Where fifty stand: half of them open, one failed."""
    wanted = [BASE + 4 * k for k in range(25)] + [BASE + 4 * k + 2 for k in range(25)]
    found = await instances.places(connection, wanted)
    return [place for places in found.values() for place in places]


async def way(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    found, whole = await diagnosis.passages(connection, BASE + 4 * 100 + 2, 500)
    assert whole
    assert await diagnosis.children(connection, BASE + 4 * 100, 200) == []
    await variables.version(connection, BASE + 4 * 100 + 2)
    return found


async def next_undone(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    found = await compensation.find(connection, BASE + 4 * 100 + 2, Question((0, 1)))
    return [found.completion] if found.completion else []


async def nothing_undone(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    found = await compensation.find(connection, BASE + 4 * 100, Question((0, 1)))
    return [found.completion] if found.completion else []


async def history_slice(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    instance = BASE + 4 * 100 + 2
    opened = await diagnosis.open_history(connection, instance)
    return opened + await diagnosis.history_slice(
        connection, instance, before=diagnosis.BEYOND_ALL, most=500, output_max_bytes=100
    )


async def backlog(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    await connection.fetch(
        b"CREATE OR REPLACE FUNCTION penstock_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        b" AS $$ SELECT clock_timestamp() + interval '100 days' $$"
    )
    return await timers.due(connection, DUE_MAX)


async def fail_timers(connection: TrioConnection) -> list[Timer]:
    rows = await connection.fetch(b"SELECT token_id, seq, index FROM timer LIMIT 100")
    keys = [cast(Timer, row) for row in rows] or [(0, 0, 0)]
    await timers.count_failures(connection, keys)
    return keys


def open_of(key: int) -> Call:
    async def ask(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
        added = f"""INSERT INTO definition (key, id, version, name, content, uploaded_at, code)
            OVERRIDING SYSTEM VALUE VALUES ({key}, 'asked', 1, '', '', now(), true)"""
        await connection.fetch(added.encode())
        return [row for row in await connection.fetch(SQL["has_open_instances"], ("asked", None)) if row[0]]

    return ask


async def purge(connection: TrioConnection, hours: float) -> range:
    return range(await idempotency.purge(connection, hours, 1_000))


def audited(wanted: audit.AuditFilter) -> Call:
    async def find(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
        return (await audit.find(connection, wanted, before=1 << 60, limit=50))[0]

    return find


async def acknowledge(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    wrapped = cast(Any, InTransaction(connection))
    await acknowledged.acknowledge(wrapped, "cause:1", 3, None, lasts_s=60, actor="ann", audit=True)
    return list(await acknowledged.read(connection))


async def needed_since(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    return [await engines.needed_since(connection, 20)]


async def go_on(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    await journal.go_on(connection, journal.RunLease(BASE, 1, 1, "w"))
    return []


async def forget_blocked(connection: TrioConnection, leased: list[ClaimedJob]) -> list[Any]:
    await connection.fetch(SQL["forget_blocked"], (arrays.ints(BASE + 4 * k for k in range(5, 20_005, 200)),))
    return []


async def register_origin(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    """As an App does that opens."""
    await origins.lock(connection)
    await origins.write(connection, "code:order@1", origins.OriginRow("shop.order"), None)
    await origins.delete(connection, "code:order@2", [origins.OriginRow("shop.order")])
    assert await origins.types_of(connection, "code:order@") == ["code:order@1"]
    assert await origins.shared(connection, 20) == []
    return await origins.read(connection, "code:order@1")


async def count_code(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
    return [None] * await definitions.count_code(connection, "shop", 1_000)


SOME = {"since": BASE, "until": BASE + 4 * 1_000}
AS_MANY = {"since": BASE, "until": BASE + 2 * COUNT_MAX}
CASES = {
    "open runs of a workflow": Case(open_of(1), 1, 60),
    "open runs of a rare workflow": Case(open_of(2), 1, 80),
    "open runs of a workflow that has none": Case(open_of(3), 0, 100 * 10),
    "open runs of a workflow that never ran": Case(open_of(4), 0, 60),
    "walk of a version": Case(lambda c, _: retention.walk(c, 2, 0, (1, 1, 1)), 2, 1_200),
    "traces": Case(lambda c, _: traces.find(c, [BASE + 4 * k for k in range(0, 200, 2)]), 100, 100 * 4),
    "claim": Case(lambda c, _: jobs.claim(c, slots(64)), 64, 64 * 40),
    "claim of jobs whose variables are known": Case(lambda c, _: jobs.claim(c, slots(64), known=True), 64, 64 * 32),
    "claim of a type without jobs": Case(lambda c, _: jobs.claim(c, [ClaimSlot(3, 1, "w", 30)]), 0, 15),
    "claim and clear": Case(lambda c, _: jobs.claim(c, slots(64), clear=True), 64, 64 * 40),
    "claim and clear of no jobs": Case(lambda c, _: jobs.claim(c, [ClaimSlot(3, 1, "w", 30)], clear=True), 0, 20),
    "complete_fast": Case(
        lambda c, leased: jobs.complete_fast(c, [completion(job) for job in leased]), 100, 100 * 30, 100
    ),
    "complete_fast of both": Case(
        lambda c, leased: jobs.complete_fast(
            c, [*map(completion, leased[:50]), *map(last_completion, leased[50:])]
        ), 100, 100 * 40, 100,
    ),
    "completions without the tables that somebody holds": Case(
        lambda c, leased: jobs.complete_spared(
            c, [*map(completion, leased[:50]), *map(last_completion, leased[50:])]
        ), 100, 100 * 40, 100,
    ),
    "claim without them": Case(lambda c, _: jobs.claim(c, slots(64), spared=True), 64, 64 * 32),
    "probe without them": Case(lambda c, _: jobs.probe_ready(c, [1, 2, 3], 500, spared=True), 2, 1500),
    "instances with a key": Case(lambda c, _: jobs.keyed_instances(c, range(BASE, BASE + 4 * 50, 2)), 0, 400),
    "complete_fast at the end": Case(
        lambda c, leased: jobs.complete_fast(c, [last_completion(job) for job in leased]), 100, 100 * 40, 100
    ),
    "completion of one": Case(
        lambda c, leased: jobs.complete_fast(c, [completion(leased[0])._replace(direct_to="w", lease_s=30)]), 1, 45, 1
    ),
    "completion of one at the end": Case(
        lambda c, leased: jobs.complete_fast(c, [last_completion(leased[0])]), 1, 60, 1
    ),
    "extend": Case(
        lambda c, leased: jobs.extend(
            c, [Extension(job.token, job.seq, job.attempt, "w", 60, b"{}", b"1") for job in leased]
        ), 100, 100 * 30, 100,
    ),
    "extend without the tables that somebody holds": Case(
        lambda c, leased: jobs.extend_leased(
            c, [Extension(job.token, job.seq, job.attempt, "w", 60, b"{}", b"1") for job in leased]
        ), 100, 100 * 30, 100,
    ),
    "release": Case(
        lambda c, leased: jobs.release(c, [Lease(job.token, job.seq, job.attempt, "w") for job in leased]),
        100, 100 * 25, 100,
    ),
    "expire": Case(
        lambda c, leased: jobs.expire(c, [(job.token, job.seq, job.attempt) for job in leased], 10),
        100, 100 * 30, 100, lease_s=-1,
    ),
    "look_up": Case(lambda c, leased: jobs.look_up(c, facts_keys(leased), ["w"] * 100), 100, 100 * 20, 50),
    "probe_ready": Case(lambda c, _: jobs.probe_ready(c, [1, 2, 3], 500), 2, 1500),
    "view": Case(lambda c, _: instances.view(c, range(BASE, BASE + 4 * 50, 2)), 100, 100 * 40),
    "history": Case(history, 1, 30),
    "start_fast": Case(lambda c, _: instances.start_fast(c, starts(100)), 100, 100 * 30),
    "start of one": Case(
        lambda c, _: instances.start_fast(c, [starts(1)[0]._replace(direct_to="w", lease_s=30)]), 1, 45
    ),
    "due_timers": Case(lambda c, _: timers.due(c, DUE_MAX), 1, 12),  # the next one
    "due_timers with all of them due": Case(backlog, DUE_MAX, 1000),
    "watch": Case(lambda c, _: c.fetch(SQL["watch_marks"], (arrays.ints(range(BASE, BASE + 4 * 50, 2)),)), 100, 3_000),
    "list of blocked ones": Case(found(status=instances.BLOCKED), 50, 700),
    "list of what a bulk operation did": Case(found(bulk=3), 50, 700),
    "list of what is left of it": Case(found(bulk=3, status="COMPLETED"), 50, 1_400),
    "audit": Case(audited(audit.AuditFilter()), 50, 45_000),
    "audit of an actor": Case(audited(audit.AuditFilter(actor="p7")), 50, 45_000),
    "acknowledgement": Case(acknowledge, 1, 40),
    "needed_since": Case(needed_since, 1, 20),
    "go on": Case(go_on, 0, 20),
    "forgotten blocks": Case(forget_blocked, 0, 100 * 20),
    "origins": Case(register_origin, 1, 60),
    "count_code": Case(count_code, 0, 20),
    "count_timer_failures": Case(lambda c, _: fail_timers(c), 100, 100 * 25),
    "purge without old keys": Case(lambda c, _: purge(c, 24), 0, 10),
    "purge": Case(lambda c, _: purge(c, -1), 1_000, 5_000),
    "list": Case(found(), 50, 200),
    "list by business key": Case(found(business_key="order-10034"), 1, 20),
    "count by status": Case(lambda c, _: definition_use.by_status(cast(Any, InTransaction(c)), [2]), 2, 4_000),
    "list by attribute": Case(found(attributes=[Wanted("customer", "c7", 7.0, 7.1)], limit=20), 20, 400),
    "list by two attributes": Case(found(attributes=[Wanted("customer", "c7", None, None)] * 2, limit=20), 20, 400),
    "list by unknown attribute": Case(found(attributes=[Wanted("other", "c7", None, None)]), 0, 20),
    "list by unknown business key": Case(found(business_key="order"), 0, 20),
    "list by parent": Case(found(parent=BASE), 0, 20),
    "list DELAYED by parent": Case(found(parent=BASE, status="DELAYED"), 0, 20),
    "list BLOCKED": Case(found(status="BLOCKED"), 50, 60),
    "list BLOCKED by parent": Case(found(parent=BASE, status="BLOCKED"), 0, 20),
    "list FAILED by parent": Case(found(parent=BASE, status="FAILED"), 0, 20),
    "list by business key prefix": Case(found(key_prefix="order-1003", limit=2), 2, 60),
    "list by common business key prefix": Case(found(key_prefix="order-"), 50, 1_000),
    "list by unknown business key prefix": Case(found(key_prefix="bill"), 0, 20),
    "list FAILED by business key prefix": Case(found(status="FAILED", key_prefix="order-1003"), 0, 100),
    "list ACTIVE by business key prefix": Case(found(status="ACTIVE", key_prefix="order-10034", limit=1), 1, 60),
    "list WAITING by business key prefix": Case(found(status="WAITING", key_prefix="order-10034"), 0, 60),
    "list by definition": Case(found(definitions=[1]), 50, 300),
    "list by a rare definition": Case(found(definitions=[2], limit=2), 2, 300),
    "list by several definitions": Case(found(definitions=[1, 2]), 50, 300),
    "list COMPLETED": Case(found(status="COMPLETED"), 50, 300),
    "list COMPLETED of a definition": Case(found(status="COMPLETED", definitions=[1]), 50, 300),
    "list COMPLETED by business key": Case(found(status="COMPLETED", business_key="order-10035"), 1, 20),
    "list COMPLETED of a rare definition": Case(found(status="COMPLETED", definitions=[2], limit=2), 2, 500),
    "list FAILED": Case(found(status="FAILED", limit=20), 20, 300),
    "list FAILED of a definition": Case(found(status="FAILED", definitions=[1], limit=20), 20, 300),
    "list FAILED by business key": Case(found(status="FAILED", business_key="order-10035"), 0, 20),
    "list FAILED by cause": Case(found(status="FAILED", cause="no paper 1", limit=20), 20, 80),
    "list FAILED at a step": Case(found(status="FAILED", definitions=[1], step="pay", limit=20), 20, 80),
    "list of an hour": Case(found(since=BASE, until=BASE + 4 * 1000), 50, 200),
    "newest failures": Case(
        lambda c, _: instances.newest_failures(cast(Any, InTransaction(c)), None, 0, 20), 20, 300
    ),
    "failure behind": Case(failure_behind, 1, 60),
    "failures alike": Case(alike, 1, 60),
    "fill causes": Case(fill_causes, 1, 200),
    "standing": Case(stands, 2, 60),
    "summary": Case(summary, 26, 600),
    "path, children and version": Case(way, 1, 60),
    "next to be undone": Case(next_undone, 1, 30),
    "next to be undone of nothing": Case(nothing_undone, 0, 20),
    "what handlers undo": Case(lambda c, _: compensation.of_handlers(c, [*range(100)]), 0, 100 * 6),
    "history slice": Case(history_slice, 1, 60),
    "failed jobs": Case(lambda c, _: failed(c, None), 5, 150),  # counted; their history is not there
    "failed jobs of an unknown type": Case(lambda c, _: failed(c, "none"), 0, 60),
    "list ACTIVE": Case(found(status="ACTIVE"), 50, 1000),
    "list ACTIVE of a definition": Case(found(status="ACTIVE", definitions=[1]), 50, 1000),
    "list ACTIVE of a rare definition": Case(found(status="ACTIVE", definitions=[2], limit=2), 2, 2500),
    "list ACTIVE by business key": Case(found(status="ACTIVE", business_key="order-10034"), 1, 30),
    "list WAITING": Case(found(status="WAITING"), 50, 30),
    "list WAITING of a definition": Case(found(status="WAITING", definitions=[1]), 50, 5_000),
    "list WAITING by business key": Case(found(status="WAITING", business_key="order-10034"), 0, 30),
    "list at a step": Case(found(definitions=[1], status="OPEN", at_step=[0], limit=20), 20, 400),
    "list at a step, ACTIVE": Case(found(definitions=[1, 2], status="ACTIVE", at_step=[0, 0], limit=20), 20, 400),
    "list at a step, WAITING": Case(found(definitions=[1], status="WAITING", at_step=[0], limit=1), 1, 4_000),
    "list oldest first": Case(found(oldest=True), 50, 200),
    "list ACTIVE oldest first": Case(found(status="ACTIVE", oldest=True), 50, 1000),
    "list WAITING oldest first": Case(found(status="WAITING", oldest=True), 50, 30),
    "list COMPLETED of a definition, oldest first": Case(
        found(status="COMPLETED", definitions=[1], oldest=True), 50, 300
    ),
    "list by business key, sorted": Case(sorted_by_key(limit=20), 20, 200),
    "list by end": Case(sorted_by_time(50, ended=True, **SOME), 50, 300),
    "list by change": Case(sorted_by_time(50, ended=False, **SOME), 50, 15_000),
    "list by end of as many as are sorted": Case(sorted_by_time(50, ended=True, **AS_MANY), 50, 2_000),
    "list by change of as many as are sorted": Case(sorted_by_time(50, ended=False, **AS_MANY), 50, 75_000),
    "list by change of too many": Case(sorted_by_time(50, ended=False), 1, 1_000),
    "list FAILED by end": Case(sorted_by_time(20, ended=True, status="FAILED"), 20, 5_000),
    "list WAITING by change": Case(sorted_by_time(50, ended=False, status="WAITING"), 50, 100_000),
    "list by end of a rare definition": Case(sorted_by_time(2, ended=True, definitions=[2]), 2, 2_000),
    "list ACTIVE by change of a rare definition": Case(
        sorted_by_time(2, ended=False, status="ACTIVE", definitions=[2]), 2, 4_000
    ),
    "list by business key prefix, sorted": Case(sorted_by_key(key_prefix="order-1003", limit=2), 2, 60),
    "list ACTIVE by business key, sorted": Case(sorted_by_key(status="ACTIVE", limit=20), 20, 600),
}  # fmt: skip


async def cost(connection: TrioConnection, case: Case) -> Cost:
    """Of one call, undone afterwards."""
    await connection.fetch(BEGIN)
    leased = await jobs.claim(connection, slots(case.leased, case.lease_s)) if case.leased else []
    before = await counted(connection)
    result = await case.call(connection, leased)
    after = await counted(connection)
    await connection.fetch(b"ROLLBACK")
    scans = {table: n - before[1][table] for table, n in after[1].items() if n > before[1][table]}
    return Cost(after[0] - before[0], scans, len(result))


async def counted(connection: TrioConnection) -> tuple[int, dict[str, int]]:
    blocks = cast(int, (await connection.fetch(BLOCKS))[0][0])
    return blocks, dict(cast(Any, await connection.fetch(SCANS, ("{" + ",".join(BIG_TABLES) + "}",))))


async def connect(dsn: str) -> TrioConnection:
    """As an engine does, but for the limit of a statement's time."""
    connection = await TrioConnection.connect(dsn)
    await configure(connection)
    await connection.fetch(b"SET statement_timeout = 0")
    return connection


async def costs(connection: TrioConnection, names: Iterable[str]) -> dict[str, Cost]:
    """Each second call: the first one's planning looks at the ends of indexes."""
    found = {}
    for name in names:
        await cost(connection, CASES[name])
        found[name] = await cost(connection, CASES[name])
    return found


@pytest.fixture(scope="module")
def big(big_dsn: str) -> dict[str, Cost]:
    async def run() -> dict[str, Cost]:
        async with await connect(big_dsn) as connection:
            return await costs(connection, CASES)

    return trio.run(run)


@pytest.fixture(scope="module")
def small(postgres_server: PostgresServer) -> Generator[dict[str, Cost]]:
    """The lists are planned anew for their values at each call, so they alone need statistics."""
    lists = [name for name in CASES if name.startswith("list")]

    async def run(dsn: str) -> dict[str, Cost]:
        async with await connect(dsn) as connection:
            for case in CASES.values():
                if case.call is not backlog:  # it changes a function, and with that all plans are void
                    await connection.fetch(BEGIN)
                    await case.call(connection, [NO_JOB])
                    await connection.fetch(b"ROLLBACK")
            await trio.to_thread.run_sync(fill, dsn, FEW)
            found = await costs(connection, [name for name in CASES if name not in lists])
            await connection.fetch(b"ANALYZE")
            return found | await costs(connection, lists)

    with postgres_server.database(apply_schema) as dsn:
        yield trio.run(run, dsn)


@pytest.mark.parametrize("name", CASES)
def test_a_call_scans_no_table_and_keeps_to_its_blocks(big: dict[str, Cost], small: dict[str, Cost], name: str) -> None:
    for found in (big[name], small[name]):
        assert found.rows == CASES[name].rows
        assert found.scans == {}
        assert found.blocks <= CASES[name].blocks


RARE: dict[str, Call] = {
    "count by status": CASES["count by status"].call,
    "walk of a version": CASES["walk of a version"].call,
    "recent": lambda c, _: definition_use.recent(c, ["d2"], BASE, most=1_000, versions=10),
}


@pytest.mark.parametrize("name", RARE)
async def test_statistics_of_one_definition_lead_nothing_astray(database_dsn: str, name: str) -> None:
    """To find none of another one, all instances were walked over by their ids."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO definition (id, version, name, content, uploaded_at)
              SELECT id, 1, '', '', now() FROM unnest('{d1,d2}'::text[]) AS id"""
        )
        one_definition = FILL["instance"].replace("THEN 3 WHEN", "THEN 1 WHEN").replace("THEN 2 ELSE", "THEN 1 ELSE", 1)
        connection.execute(one_definition.format(base=BASE, n=10_000).encode())
        connection.execute("ANALYZE")
    async with await connect(database_dsn) as connection:
        found = await cost(connection, Case(RARE[name], 0, 40))
    assert found.blocks <= 40


async def gives_up(*args: Any, **kwargs: Any) -> list[int]:
    raise psycopg.errors.QueryCanceled


@pytest.mark.parametrize(
    ("wanted", "total"),
    [
        (Listed(), 10_001),
        (Listed(status="WAITING"), 5_000),
        (Listed([2], "WAITING"), 0),
        (Listed(None, "WAITING", "order-10034"), 0),
        (Listed(status="ACTIVE"), 10_001),
        (Listed([2], "ACTIVE"), 100),
        (Listed([2], "COMPLETED"), 100),
        (Listed([2], "OPEN", at_step=[0]), 100),
        (Listed([1], "WAITING", at_step=[0]), 5_000),
        (Listed([2], "ACTIVE", at_step=[7]), 0),
    ],
)
def test_a_list_takes_seconds_at_most(
    big_dsn: str, monkeypatch: pytest.MonkeyPatch, wanted: Listed, total: int
) -> None:
    """And its walk, which is for what is rarer still, finds the same."""
    bounds = {"limit": 20, "offset": 3, "count_max": 10_001}

    async def run() -> tuple[IdPage, IdPage]:
        async with await connect(big_dsn) as connection:
            monkeypatch.setattr(instances, "WALK_S", 60)
            with trio.fail_after(120):
                found = await instances.find_page(connection, wanted, **bounds)
            assert connection.pgconn.transaction_status == 0
            monkeypatch.setattr(instances, "find_ids", gives_up)
            return found, await instances.find_page(connection, wanted, **bounds)

    found, walked = trio.run(run)
    assert (len(found.ids), found.total) == (max(0, min(20, total - 3)), total)
    assert found.ids == sorted(found.ids, reverse=True)
    assert walked == found


def test_a_walk_ends_in_time_and_goes_on_from_there(big_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that there is to find lies behind a million others."""
    wanted = Listed([2], "ACTIVE")
    monkeypatch.setattr(instances, "find_ids", gives_up)
    monkeypatch.setattr(instances, "WALK_S", 0.1)

    async def run() -> tuple[IdPage, list[int], int]:
        async with await connect(big_dsn) as connection:
            page = await instances.find_page(connection, wanted, limit=200, offset=0, count_max=10_001)
            found: list[int] = []
            before: int | None = instances.BEYOND_ALL
            slices = 0
            while before is not None:
                with trio.fail_after(60):
                    ids, before = await instances.find_slice(connection, wanted, limit=30, before=before)
                found += ids
                slices += 1
            return page, found, slices

    page, found, slices = trio.run(run)
    assert not page.complete
    assert len(page.ids) < page.total <= 100
    assert found == [BASE + 4 * k for k in range(MANY - 10_000 + 17, 0, -10_000)]
    assert slices > 100 / 30 + 1


def test_the_counters_show_a_sequential_scan(big_dsn: str) -> None:
    async def scan(connection: TrioConnection, _: list[ClaimedJob]) -> list[Any]:
        await connection.fetch(SQL["allow_sequential_scan"])
        return await connection.fetch(SQL["scan_leases"], (0.0,))

    async def run() -> Cost:
        async with await connect(big_dsn) as connection:
            return await cost(connection, Case(scan, 0, 0))

    found = trio.run(run)
    assert found.scans == {"token": 1}
    assert found.blocks > 10_000


async def test_only_the_due_ones_of_a_million_timers_fire(big_dsn: str, nursery: trio.Nursery) -> None:
    database = Database(big_dsn, max_connections=4)
    engine = Engine(database, Settings(), Metrics("test"), 0)
    for batcher in engine.batchers():
        nursery.start_soon(batcher.run)
    driver = Driver(engine, big_dsn)
    waits = definition(step("wait", "WAIT", duration="PT1H", nextStep="end"), end(), definition_id="waits")
    await driver.upload(waits)
    started = [(await driver.start("waits")).id for _ in range(3)]
    assert await driver.due() == 0
    driver.clock.advance(3601)
    async with await connect(big_dsn) as connection:
        due = Case(CASES["due_timers"].call, 4, 20)
        await cost(connection, due)
        found_due = await cost(connection, due)
    assert (found_due.rows, found_due.scans) == (4, {})  # those that are due and the next one
    assert found_due.blocks <= due.blocks
    assert await driver.due() == 3
    assert [await driver.status(id) for id in started] == ["COMPLETED"] * 3
    assert driver.rows("SELECT count(*) FROM timer") == [(MANY,)]
    assert await driver.due() == 0
    driver.close()
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await database.close(2)
