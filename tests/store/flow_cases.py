"""Rows of queues, and the statements that a database with 10,000 flow keys and 20,000 schedules is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows import flow
from penstock.store.rows.flow import FlowStart, WaitsInQueue
from penstock.store.rows.instances import FastStart
from penstock.store.rows.jobs import ClaimedJob, ClaimSlot, FastItem
from penstock.store.rows.queues import COUNTED_MAX_ITEMS
from tests.store.test_plans import BASE

KEYED = BASE + 4_000_000
KEYS, JOBS, HELD = 10_000, 20_000, 100
FREE_KEYS = 1_000
"""The first ones; all others are full."""
QUEUE_ROWS = """
INSERT INTO queue (name, policy, revision) VALUES ('q', '{"concurrency": 100000, "concurrencyPerKey": 2}', 1);
INSERT INTO job_type (name, queue, keyed) VALUES ('keyed', 1, true), ('plain', 1, true);
INSERT INTO slot (queue, flow_key) VALUES (1, '');
"""
"""There before anything is asked."""
FILL_QUEUES = f"""
UPDATE slot SET running = {HELD} WHERE queue = 1;
INSERT INTO slot (queue, flow_key, running)
  SELECT 1, lpad(k::text, 5, '0'), 2 FROM generate_series({FREE_KEYS}, {KEYS} - 1) k;
INSERT INTO instance (id, started_at, definition, status, vars, flow_key)
  SELECT {KEYED} + k, now(), 1, 0, '{{}}', lpad((k % {KEYS})::text, 5, '0')
  FROM generate_series(0, {JOBS} + {HELD} - 1) k;
INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state, flow_key, attempt, claimed_by, lease_until,
    held)
  SELECT i.id, i.id, 300000 + k, now(), 1, 0, held::int, i.flow_key, held::int,
    CASE WHEN held THEN 'w' END, CASE WHEN held THEN now() END, CASE WHEN held THEN 7 END
  FROM generate_series(0, {JOBS} + {HELD} - 1) k CROSS JOIN LATERAL (SELECT k >= {JOBS} AS held) h
  JOIN instance i ON i.id = {KEYED} + k;
INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT 1, priority, flow_key, seq, id FROM token WHERE id >= {KEYED} AND state = 0;
INSERT INTO instance (id, started_at, definition, status, vars)
  SELECT {KEYED} + 100000 + k, now(), 1, 0, '{{}}' FROM generate_series(0, 999) k;
INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state)
  SELECT {KEYED} + 100000 + k, {KEYED} + 100000 + k, 400000 + k, now(), 2, 0, 0 FROM generate_series(0, 999) k;
INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT 2, 5, seq, id FROM token WHERE id >= {KEYED} + 100000;
"""

Call = Callable[[TrioConnection], Awaitable[Any]]


class Case(NamedTuple):
    """``call`` touches ``rows`` of what it is about, at ``blocks`` each, and gives so many."""

    call: Call
    rows: int
    blocks: int
    gives: int | None = None


def ints(values: Any) -> str:
    return "{" + ",".join(map(str, values)) + "}"


async def run(connection: TrioConnection, name: str, *parameters: object) -> list[Any]:
    return list(await connection.fetch(SQL[name], parameters) or [])


def asked(name: str, *parameters: object) -> Call:
    """The statement alone."""
    return lambda connection: run(connection, name, *parameters)


def claim(cursor: str) -> Call:
    async def call(connection: TrioConnection) -> list[ClaimedJob]:
        slots = [ClaimSlot(1, ordinal, "w", 30) for ordinal in range(1, 65)]
        _, jobs = await flow.claim(connection, slots, cursor, 256)
        return jobs

    return call


async def claim_hinted(connection: TrioConnection) -> list[ClaimedJob]:
    slots = [ClaimSlot(1, ordinal, "w", 30) for ordinal in range(1, 11)]
    _, jobs = await flow.claim_hinted(connection, slots, [f"{key:05}" for key in (3, 7, 9_000)])
    return jobs


async def admit(connection: TrioConnection) -> list[int]:
    _, count = await flow.admit(connection, 1, 64, "", 256, 30.0)
    return [count]


async def admit_hinted(connection: TrioConnection) -> list[int]:
    _, count = await flow.admit_hinted(connection, 1, 64, [f"{key:05}" for key in (3, 7, 9_000)], 30.0)
    return [count] * count


async def complete(connection: TrioConnection) -> Sequence[Any]:
    tokens = [KEYED + JOBS + k for k in range(HELD)]
    items = [
        FastItem(token, 300_000 + JOBS + k, 1, "w", k % 2 == 1, 1, None if k % 2 else 1, None, None, b"{}")
        for k, token in enumerate(tokens)
    ]
    return await flow.complete(connection, items, [WaitsInQueue.KEYED] * len(items), to_outbox=False)


async def start(connection: TrioConnection) -> Sequence[Any]:
    starts = [FastStart((1 << 42) + k, 1, b"{}", None, 1, None, None) for k in range(64)]
    return await flow.start(connection, [FlowStart(one, 5, "k", WaitsInQueue.KEYED) for one in starts], to_outbox=False)


QUEUE_CASES = {
    "claim_flow": Case(claim('{"5": "00500"}'), 64, 60, 64),
    "claim_flow, 256 full keys": Case(claim('{"5": "05000"}'), 256, 15, 0),
    "claim_hinted": Case(claim_hinted, 4, 100, 4),
    "admit": Case(admit, 64, 60, 1),
    "admit_hinted": Case(admit_hinted, 4, 100, 4),
    "adopt": Case(lambda c: flow.reassign(c, [2], 100), 100, 40),
    "complete_flow": Case(complete, HELD, 60, HELD),
    "start_flow": Case(start, 64, 40, 64),
    "release_slots": Case(
        asked("release_slots", *map(ints, ([1] * 50, (f"{k:05}" for k in range(2_000, 2_050)), [1] * 50, [0] * 50))),
        50, 15,
    ),
    "lock_queues": Case(asked("lock_queues"), 1, 1, 1),
    "queues_version": Case(asked("queues_version"), 1, 5),
    "queues_changed": Case(asked("queues_changed"), 1, 15),
    "keyed_types": Case(asked("keyed_types"), 2, 10, 2),
    "list_queues": Case(asked("list_queues", "", 50, None), 1, 15, 1),
    "types_of_other_queues": Case(asked("types_of_other_queues", "other", "{keyed}"), 1, 15, 1),
    "put_queue": Case(asked("put_queue", "q", "{}", True), 1, 30, 1),
    "assign_job_types": Case(asked("assign_job_types", 1, "{keyed}"), 2, 30),
    "may_join": Case(asked("may_join", "code:new", "q"), 1, 15),
    "join_queue": Case(asked("join_queue", 1, "code:new"), 1, 15, 0),
    "make_queue": Case(asked("make_queue", "q"), 1, 30, 1),
    "unmarked_types": Case(asked("unmarked_types"), 1, 20, 0),
    "mark_keyed": Case(asked("mark_keyed", "{1}"), 1, 15),
    "pause_queue": Case(asked("pause_queue", "q", True), 1, 20, 1),
    "delete_queue": Case(asked("delete_queue", "q"), 1, 60, 1),
    "queue_state": Case(asked("queue_state", 1, "{1}", COUNTED_MAX_ITEMS), JOBS + KEYS, 1, 1),
    "queue_limits": Case(asked("queue_limits", ints(range(KEYED, KEYED + 50))), 50, 30, 50),
    "first_in_line": Case(asked("first_in_line", "{keyed,plain}"), 1, 30, 1),
    "measure_queues": Case(asked("measure_queues", 100, 1_000), 1_000, 2, 1),
    "queue_keys": Case(asked("queue_keys", 1, "{1}", 20, COUNTED_MAX_ITEMS), KEYS, 1, 20),
    "waiting_jobs": Case(asked("waiting_jobs", 1, 5, 300_500, 50, "00500"), 50, 15, 50),
    "purge_slots": Case(asked("purge_slots", 0, "", 100), 100, 12, 1),
}  # fmt: skip
