"""What a recheck of a row prepares must prune no partitions: PostgreSQL 18 before its minor release of November 2026.

Under READ COMMITTED a statement that comes to a row which another transaction has changed looks at its newest version,
in a copy of its plan. All subselects and CTEs of the statement are in that copy, and what they prune by while they run
is put into the copy's memory (PostgreSQL's commit 1b5dd3a repairs it). A row lock gives the copy up long before the
statement ends; what then prunes, prunes by memory that is not its own. An UPDATE or DELETE keeps it to the end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import SESSION_SETTINGS
from penstock.store.db.statements import SQL
from penstock.store.embedded import embedded as embedding
from penstock.store.rows import flow, jobs, outbox
from penstock.store.rows.jobs import ClaimSlot
from tests.postgres import FAST_SETTINGS, PostgresServer, apply_schema
from tests.store.plan_trees import locks_rows, plan, prunes_in_a_recheck
from tests.store.test_plans import connect

WEEKS = 4
SAFE = {
    "fold": "deltas are read in a CTE, not in what a recheck runs",
    "edit_variables": "as fold",
    "renew_call": "one row, and the recheck prunes by the same caller as the look before it",
    "remove_orphaned_journals": "the walk has ended before the first row is deleted",
    "tell_runs": "messages are counted in a CTE, not in what a recheck runs",
    "block_runs": "the last reason is read behind the UPDATE, not in what a recheck runs",
}
"""Statements that lock no rows but those that they change: their rechecks keep their memory to the end.

Each with why it also finds the right partitions: a recheck prunes by values of the statement's own run."""
AS_CLAIMS_WERE = b"""
WITH held AS MATERIALIZED (SELECT t.ctid AS place FROM token t WHERE t.id = $1::bigint FOR NO KEY UPDATE SKIP LOCKED),
taken AS (UPDATE token t SET attempt = t.attempt + 1 FROM held h WHERE t.ctid = h.place RETURNING t.instance_id)
SELECT (SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h WHERE h.instance_id = t.instance_id) FROM taken t"""


def make_partitions(connection: psycopg.Connection) -> None:
    connection.execute(
        """SELECT add_log_partition(parent, now() + week * interval '7 days', now() + (week + 1) * interval '7 days')
          FROM unnest('{history,journal,audit}'::text[]) parent, generate_series(0, %s - 1) week""",
        (WEEKS,),
    )


@pytest.fixture(scope="module")
def planner(postgres_server: PostgresServer) -> Generator[psycopg.Connection]:
    """Plans statements over partitions."""
    with postgres_server.database(apply_schema) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        make_partitions(connection)
        yield connection


@pytest.mark.parametrize("settings", [SESSION_SETTINGS, b"RESET ALL"], ids=["engines", "PostgreSQL"])
def test_a_recheck_prunes_no_partitions(planner: psycopg.Connection, settings: bytes, needs_server) -> None:
    needs_server(18, "partPruneInfos in the text of a plan")
    for setting in settings.split(b"; "):
        planner.execute(setting)
    plans = {name: written for name, text in SQL.items() if (written := plan(planner, text)) is not None}
    assert len(plans) > 400
    found = {name: locks_rows(written) for name, written in plans.items() if prunes_in_a_recheck(written)}
    assert found == dict.fromkeys(SAFE, False)


@pytest.mark.parametrize("statement", [AS_CLAIMS_WERE, AS_CLAIMS_WERE.replace(b"FOR NO KEY UPDATE SKIP LOCKED", b"")])
def test_the_look_finds_what_claims_were(planner: psycopg.Connection, statement: bytes, needs_server) -> None:
    needs_server(18, "partPruneInfos in the text of a plan")
    written = plan(planner, statement)
    assert written is not None
    assert prunes_in_a_recheck(written)
    assert locks_rows(written) == (b"LOCKED" in statement)


JOBS = 3 * WEEKS
FILL = f"""
INSERT INTO queue (name, policy, revision) VALUES ('q', '{{"concurrency": 100}}', 1);
INSERT INTO job_type (name, queue, keyed) VALUES ('plain', NULL, false), ('keyed', 1, true), ('sent', NULL, false);
INSERT INTO slot (queue, flow_key) VALUES (1, '');
INSERT INTO instance (id, started_at, definition, vars, flow_key)
  SELECT first_instance_id(now() + k % {WEEKS} * interval '7 days' + interval '1 h') + type * {JOBS} + k, now(), type,
    '{{"start": 0}}', CASE type WHEN 2 THEN 'key' END
  FROM generate_series(1, 3) type, generate_series(1, {JOBS}) k;
INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind, output)
  SELECT id, nextval('step_seq'), id, 1, now(), now(), 1, 0, 1, jsonb_build_object('written ' || n, id)
  FROM instance, generate_series(1, 2) n;
INSERT INTO token (id, instance_id, step, job_type, seq, entered_at, state, flow_key)
  SELECT id, id, 0, definition, nextval('step_seq'), now(), 0, flow_key FROM instance;
INSERT INTO ready (job_type, seq, token_id) SELECT job_type, seq, id FROM token WHERE job_type = 1;
INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT job_type, priority, flow_key, seq, id FROM token WHERE job_type = 2;
INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT seq, id, id, seq, now(), job_type, 1 FROM token WHERE job_type = 3;
CREATE OR REPLACE FUNCTION penstock_now() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(18);
  RETURN clock_timestamp();
END $$
"""
"""A statement that asks for the time waits for the lock 18."""
CHANGE = b"""
UPDATE token SET failures = failures
WHERE id = ANY(ARRAY(SELECT id FROM token WHERE seq % 3 = 0 FOR UPDATE SKIP LOCKED)) RETURNING id"""
WAITS = b"SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def fill(dsn: str) -> None:
    apply_schema(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        make_partitions(connection)
        connection.execute(FILL.encode())


@pytest.fixture
async def strict_server(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[str]:
    """A server of the test's own, which may end: it overwrites memory that it gives up, and who reads that crashes."""
    of_ours = embedding.server_environment
    monkeypatch.setattr(embedding, "server_environment", lambda: of_ours() | {"MALLOC_PERTURB_": "165"})
    async with embedding.embedded(directory, settings=FAST_SETTINGS) as dsn:
        await trio.to_thread.run_sync(fill, dsn)
        yield dsn


def slots(job_type: int) -> list[ClaimSlot]:
    return [ClaimSlot(job_type, ordinal, "w", 60) for ordinal in range(1, JOBS + 1)]


async def claim_flow(connection: TrioConnection) -> list[Any]:
    return (await flow.claim(connection, slots(2), "", 10))[1]


async def claim_hinted(connection: TrioConnection) -> list[Any]:
    return (await flow.claim_hinted(connection, slots(2), ["key"]))[1]


async def take_outbox(connection: TrioConnection) -> list[Any]:
    return (await outbox.take(connection, {3: 0}, JOBS, [], 60.0, [], audit=False)).outgoing


TAKES: dict[str, Callable[[TrioConnection], Awaitable[list[Any]]]] = {
    "claim": lambda c: jobs.claim(c, slots(1)),
    "claim_and_clear": lambda c: jobs.claim(c, slots(1), clear=True),
    "claim_flow": claim_flow,
    "claim_hinted": claim_hinted,
    "take_outbox": take_outbox,
}


@pytest.mark.slow(reason="races of every statement")
@pytest.mark.parametrize("name", TAKES)
async def test_others_are_whole_where_some_change(strict_server: str, nursery: trio.Nursery, name: str) -> None:
    """As long as the deltas were a subselect PostgreSQL 18.4 crashed at claim, claim_and_clear and take_outbox."""
    taken: list[Any] = []

    async def take(*, task_status: trio.TaskStatus[trio.Event]) -> None:
        task_status.started(done := trio.Event())
        taken.extend(await TAKES[name](taking))
        done.set()

    async with await connect(strict_server) as taking, await TrioConnection.connect(strict_server) as other:
        await taking.fetch(b"SET lock_timeout = 0")
        await other.fetch(b"SELECT pg_advisory_lock(18)")
        done = await nursery.start(take)
        with trio.fail_after(30):
            while not await other.fetch(WAITS):
                await trio.lowlevel.checkpoint()
            changed = await other.fetch(CHANGE)
            await other.fetch(b"SELECT pg_advisory_unlock(18)")
            await done.wait()
    assert len(changed) >= JOBS - 1
    left = {id for (id,) in changed}  # they come with the next look
    assert left.isdisjoint(job.token for job in taken)
    assert len(taken) >= JOBS // 2
    assert [json.loads(job.variables) for job in taken] == [
        {"start": 0, "written 1": job.instance, "written 2": job.instance} for job in taken
    ]
