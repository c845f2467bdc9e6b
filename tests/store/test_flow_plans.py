"""What the statements of calls, forEach steps, starts with keys and schedules cost beside many others.

No sequential scan, and blocks by the row.

20,000 calls that wait and 200 lists of 100 items. The statements are prepared while the tables are empty and were never
analysed, as in an engine that was started on a new database; each runs in a transaction that is rolled back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows import batches, calls, flow, for_each, forks, inbox, schedules, sql_requests, starts
from penstock.store.rows.batches import BatchPlace
from tests.postgres import PostgresServer, apply_schema
from tests.store.flow_cases import FILL_QUEUES, QUEUE_CASES, QUEUE_ROWS, Case, asked, ints, run
from tests.store.test_plans import BASE, BLOCKS, SCANS, connect

CALLS = 20_000
LISTS, ITEMS = 200, 100
DELAYED = BASE + 2_000_000
TABLES = (
    "instance", "token", "timer", "called", "map_state", "item_vars", "map_result", "definition", "abnormal_end",
    "start_window", "schedule", "schedule_run", "scheduled", "batch", "batch_item", "ready", "ready_flow", "slot",
    "bulk_operation", "item_output", "history_other", "journal_other", "sql_request",
)  # fmt: skip
FILL = f"""
SET synchronous_commit = off;
SET session_replication_role = replica;
SELECT setval(pg_get_serial_sequence(name, 'id'), 1, false) FROM unnest('{{schedule,batch,sql_request}}'::text[]) name;
INSERT INTO definition (id, version, name, content, uploaded_at) VALUES ('d', 1, 'd', '{{}}', now());
INSERT INTO instance (id, started_at, ended_at, definition, status, vars)
  SELECT {BASE} + k, now(), CASE WHEN k % 2 = 1 THEN now() END, 1, k % 2, '{{}}'
  FROM generate_series(0, 2 * {CALLS} - 1) k;
INSERT INTO bulk_operation (action, filter, total, total_exact, created_at, below)
  SELECT 'retry', '{{}}', 1, true, now(), 1 FROM generate_series(1, 1000);
INSERT INTO token (id, instance_id, seq, entered_at, step, state)
  SELECT {BASE} + 2 * k, {BASE} + 2 * k, k + 1, now(), 0, 7 FROM generate_series(0, {CALLS} - 1) k;
INSERT INTO called (id, caller, token_id, seq, root, depth)
  SELECT {BASE} + 2 * k + 1, {BASE} + 2 * k, {BASE} + 2 * k, k + 1, {BASE} + 2 * k, 1
  FROM generate_series(0, {CALLS} - 1) k;
INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
  SELECT {BASE} + 2 * k, k + 1, now(), {BASE} + 2 * k, -4 FROM generate_series(0, {CALLS} / 2) k;
INSERT INTO map_state (instance_id, token_id, total, next, done, failed, kept_bytes)
  SELECT {BASE} + k, {BASE} + k, {ITEMS}, {ITEMS}, 0, 0, 0 FROM generate_series(0, {LISTS} - 1) k;
INSERT INTO item_vars (instance_id, token_id, item, vars)
  SELECT {BASE} + k, {BASE} + k, i, '{{"item": 1}}'
  FROM generate_series(0, {LISTS} - 1) k, generate_series(0, {ITEMS} - 1) i;
INSERT INTO map_result (instance_id, token_id, item, value)
  SELECT {BASE} + k, {BASE} + k, i, '1' FROM generate_series(0, {LISTS} - 1) k, generate_series(0, {ITEMS} - 1) i;
INSERT INTO token (id, instance_id, parent_id, seq, entered_at, step, state, item)
  SELECT {BASE} + 1000000 + k, {BASE} + k, {BASE} + k, 100000 + k, now(), 0, 2, 7
  FROM generate_series(0, {LISTS} - 1) k;
INSERT INTO token (id, instance_id, seq, entered_at, step, state)
  SELECT {DELAYED} + k, {DELAYED} + k, 200000 + k, now(), 0, 8 FROM generate_series(0, {CALLS} - 1) k;
INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
  SELECT {DELAYED} + k, 200000 + k, now() + interval '1 h', {DELAYED} + k, -6 FROM generate_series(0, {CALLS} - 1) k;
UPDATE timer SET fire_at = now() - interval '1 h',
    throttle = jsonb_build_array('d', 'line ' || token_id % 5, 1, 1, false)
  WHERE token_id BETWEEN {DELAYED} + 100 AND {DELAYED} + 149;
INSERT INTO start_window (definition_id, kind, key, until, instance_id)
  SELECT 'd', 1 + k % 3, 'key ' || k, now() + (k - 100) * interval '1 s', {DELAYED} + k
  FROM generate_series(0, {CALLS} - 1) k;
INSERT INTO schedule (name, spec, variables, definition_id, done_until, fire_at)
  SELECT 's' || k, '{{}}', '{{}}', 'd', now(), now() + (k - 100) * interval '1 s' FROM generate_series(1, {CALLS}) k;
INSERT INTO schedule_run (schedule, at, instance_id, outcome)
  SELECT k % {CALLS} + 1, now() - k * interval '1 s', {BASE} + k, 0 FROM generate_series(1, 3 * {CALLS}) k;
INSERT INTO scheduled (instance_id, schedule, at, watched)
  SELECT {BASE} + k, 's' || k, now() - k * interval '1 s', false FROM generate_series(1, {CALLS}) k;
INSERT INTO batch (key, digest, total, created_at, ended_at, look_at)
  SELECT 'b' || k, '', {ITEMS}, now(), CASE WHEN k > 200 THEN now() - k * interval '1 s' END,
    CASE WHEN k <= 200 THEN now() + (k - 100) * interval '1 s' END FROM generate_series(1, {CALLS}) k;
INSERT INTO abnormal_end (status, instance_id, tokens)
  SELECT 2 + k % 2, {BASE} + k, '[]' FROM generate_series(1, {CALLS}) k;
INSERT INTO item_output (instance_id, pos, output) SELECT {BASE} + k, 7, '1' FROM generate_series(1, {CALLS}) k;
INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, attempt, step, kind, worker)
  SELECT {BASE} + k, k + i + 1, {BASE} + k, k + i, now(), now(), 1, 0, 2, 'w'
  FROM generate_series(0, {CALLS} - 1) k, generate_series(1, 3) i;
INSERT INTO journal (instance_id, pos, at, kind, attempt, path, name, payload)
  SELECT {BASE} + k, k + i + 1, now(), i, 1, '/' || i, 'n', '1'
  FROM generate_series(0, {CALLS} / 4) k, generate_series(1, 5) i;
INSERT INTO sql_request (
    xid, operation, instance_id, definition_id, request, size_bytes, role, failed_at, error, reason)
  SELECT (900 + k)::text::xid8, o, 7000000 + k, 'd', '{{}}', 0, 'r', f, CASE WHEN f IS NOT NULL THEN 'e' END, 'no'
  FROM generate_series(1, {CALLS}) k CROSS JOIN LATERAL (SELECT CASE WHEN k % 2 = 0 THEN now() END AS f) f,
    unnest('{{start,signal}}'::text[]) o;
INSERT INTO batch_item (batch, place, instance_id)
  SELECT b, i, {BASE} + (b * 97 + i) % (2 * {CALLS}) FROM generate_series(1, 400) b, generate_series(0, {ITEMS} - 1) i;
"""

TIMERS = [(BASE + 2 * k, k + 1, -4) for k in range(0, 5_000, 50)]
LIST = BASE + 100


async def reported(connection: TrioConnection) -> list[Any]:
    held, children = await calls.lock_notices(connection, TIMERS, [timer[:2] for timer in TIMERS])
    return [*held, *children]


async def kept(connection: TrioConnection) -> list[Any]:
    found = await for_each.read(connection, [LIST], [(LIST, LIST, item) for item in range(50)])
    return list(found[LIST].items)


async def put_off(connection: TrioConnection) -> list[Any]:
    """Before the table is filled there is nothing to put off."""
    return await run(connection, "put_off", str(DELAYED + 7), "200007", "60", "2100-01-01")


async def spaced_out(connection: TrioConnection) -> list[Any]:
    due = ints(DELAYED + k for k in range(100, 150)), ints(200_000 + k for k in range(100, 150))
    lines = starts.line_columns([starts.Line("d", f"line {k}") for k in range(100, 150)])
    await run(connection, "open_lines", *lines)
    await run(connection, "hold_lines", *lines)
    return await run(connection, "space_out", *due)


async def allowed(connection: TrioConnection) -> list[Any]:
    await run(connection, "name_grantee", connection.info.user)
    await run(connection, "allow_requests")
    await run(connection, "forget_rights", "r")
    return await run(connection, "allow_definitions", "r", texts("d", 1))


async def forked(connection: TrioConnection) -> list[Any]:
    found = await forks.lock_forked(connection, BASE + 8)
    more = [await forks.begun_with(connection, BASE + 8, 1), await forks.arguments(connection, BASE + 8)]
    return [] if found is None else [*found, *more]


async def copied(connection: TrioConnection) -> list[Any]:
    """Two records before the place, and what the new run begins with."""
    statement = forks.copy(
        connection, DELAYED, BASE + 8, 12, "/3", later_messages=True, name="0", payload="{}", at=datetime.now(UTC)
    )
    await connection.roundtrip([statement])
    return list(await connection.fetch(b"SELECT kind FROM journal WHERE instance_id = $1::bigint", (DELAYED,)) or [])


async def claimed(connection: TrioConnection) -> list[Any]:
    return [found for found in (await batches.claim(connection, 60), await batches.due_in(connection)) if found]


def _items() -> tuple[str, str, str]:
    return ints([9] * 100), ints(range(100)), ints(BASE + at for at in range(100))


def texts(value: object, number: int) -> str:
    """An array of the same value."""
    return ints(["NULL" if value is None else json.dumps(str(value))] * number)


UNTOLD = ints(BASE + 2 * k + 1 for k in range(15_000, 20_000, 50))
CASES = {
    "hold_told and children_of_calls": Case(reported, 100, 40, 200),
    "tell_callers": Case(lambda c: run(c, "tell_callers", UNTOLD), 100, 30),
    "tell_cancel": Case(lambda c: run(c, "tell_cancel", *_executions()), 100, 30),
    "forget_reopen": Case(lambda c: run(c, "forget_reopen", *_executions()), 100, 30),
    "earlier_child": Case(lambda c: calls.earlier_child(c, BASE, 1), 1, 30),
    "tree": Case(lambda c: calls.tree(c, BASE, 100), 1, 60, 1),
    "read_maps and read_items": Case(kept, 50, 10, 50),
    "read_next_items": Case(lambda c: for_each.next_items(c, LIST, LIST, 0), 100, 3, 100),
    "read_items_of_tokens": Case(
        lambda c: for_each.of_tokens(c, [BASE + 1_000_000 + k for k in range(100)]), 100, 12, 100
    ),
    "task_items": Case(lambda c: inbox.items(c, [BASE + 1_000_000 + k for k in range(100)], 1_048_576), 100, 12, 100),
    "read_map_results": Case(lambda c: for_each.results(c, LIST, LIST), 100, 3, 100),
    "update_maps": Case(lambda c: run(c, "update_maps", *(ints([value]) for value in (LIST, LIST, 9, 1, 1, 1))), 1, 30),
    "end_maps": Case(lambda c: run(c, "end_maps", ints([LIST]), ints([LIST])), 201, 6),
    "remove_maps": Case(lambda c: run(c, "remove_maps", ints([LIST])), 201, 6),
    "claim_window, taken": Case(lambda c: starts.claim(c, starts.StartWindow("d", 2, "key 9001"), 60.0, 1), 1, 40),
    "claim_window, free": Case(lambda c: starts.claim(c, starts.StartWindow("d", 1, "new"), 60.0, 1), 1, 40),
    "hold_window": Case(lambda c: starts.hold(c, starts.StartWindow("d", 3, "key 9002"), 60.0, 1), 1, 40),
    "throttle_start": Case(lambda c: starts.throttle(c, starts.StartWindow("d", 2, "key 9001"), 1.0, 1, 0.0), 1, 40),
    "purge_windows": Case(lambda c: starts.purge_windows(c, 50), 50, 12),
    "hold_delayed": Case(lambda c: starts.hold_delayed(c, DELAYED + 7), 1, 30),
    "put_off": Case(put_off, 1, 40),
    "keep_throttle": Case(asked("keep_throttle", DELAYED + 9, "d", "line 9", 1.0, 1), 1, 40),
    "open_lines, hold_lines and space_out": Case(spaced_out, 50, 40, 1),
    "due_schedules": Case(lambda c: schedules.due(c, 50), 50, 6),
    "lock_schedules": Case(lambda c: schedules.lock(c, range(1, 51), []), 50, 30, 50),
    "schedule_runs": Case(lambda c: schedules.runs(c, [70], 20), 3, 20, 1),
    "open_batches": Case(lambda c: batches.count_open(c, 1_000), 200, 1),
    "claim_batch and next_batch": Case(claimed, 1, 60, 2),
    "batch_requests": Case(lambda c: batches.requests(c, 7, 0, 100), 100, 2),
    "hold_batch_items": Case(lambda c: batches.hold_items(c, [BatchPlace(8, at) for at in range(100)]), 100, 12),
    "place_batch_items": Case(lambda c: run(c, "place_batch_items", *_items()), 100, 12),
    "first_open_of_batch": Case(lambda c: batches.first_open(c, 7, 0, 100), 100, 5, 2),
    "instances_of_batch": Case(lambda c: batches.open_instances(c, 7, 0, 100), 100, 8, 0),
    "count_batch": Case(lambda c: batches.count(c, 7), 100, 5, 2),
    "results_of_batch": Case(lambda c: batches.results(c, 7, 20, 50, None), 100, 5, 50),
    "list_batches": Case(lambda c: batches.read(c, before=300, limit=50), 50, 6, 50),
    "purge_batches": Case(lambda c: batches.purge(c, 0.2, 5, 10_000), 5, 60),
    "list_schedules": Case(lambda c: schedules.read(c, after="s10", limit=50), 50, 6, 50),
    "find_window": Case(asked("find_window", "d", 2, "key 9001"), 1, 5),
    "take_window": Case(asked("take_window", "d", 3, "key 9002", 60.0, 1, DELAYED + 9002), 1, 40),
    "throttled_for": Case(asked("throttled_for", "d", 2, "key 9001", 60.0, 1.0), 1, 10),
    "replace_start_variables": Case(asked("replace_start_variables", DELAYED + 7, "{}", False), 1, 30),
    "put_schedule": Case(asked("put_schedule", "s70", "{}", "{}", "d", None, "{}"), 1, 50),
    "pause_schedule": Case(asked("pause_schedule", "s70", None), 1, 40),
    "resume_schedule": Case(asked("resume_schedule", "s70"), 1, 40),
    "begin_backfill": Case(asked("begin_backfill", "s70", "{}"), 1, 40),
    "delete_schedule": Case(asked("delete_schedule", "s70"), 4, 30),
    "schedule_exists": Case(asked("schedule_exists", 70), 1, 6),
    "schedule_times_from": Case(asked("schedule_times_from", 70, "2000-01-01", 100), 3, 6),
    "move_schedules": Case(
        asked("move_schedules", ints(range(1, 51)), *(texts(value, 50) for value in (
            "2026-01-01", "2026-01-02", "{}", None, None, 0, "f", None))), 50, 40,
    ),
    "forget_schedule_runs": Case(asked("forget_schedule_runs", ints([70]), texts("2026-01-01", 1)), 1, 6),
    "insert_schedule_runs": Case(
        asked("insert_schedule_runs", ints(range(1, 51)), *(texts(value, 50) for value in ("2026-01-01", 1, 0, None))),
        50, 25,
    ),
    "prune_schedule_runs": Case(asked("prune_schedule_runs", ints(range(1, 51)), 2), 100, 12),
    "insert_scheduled": Case(
        asked("insert_scheduled", ints(range(50)), texts("s1", 50), texts("2026-01-01", 50), texts("f", 50)), 50, 30
    ),
    "overtake_runs": Case(asked("overtake_runs", ints(BASE + 2 * k for k in range(50))), 50, 30),
    "tell_schedules": Case(asked("tell_schedules", ints(BASE + 2 * k for k in range(50))), 50, 12),
    "run_ended": Case(asked("run_ended", BASE + 1, "failed"), 1, 30),
    "create_batch": Case(asked("create_batch", "new", b"", 1, None, None, None), 1, 40),
    "insert_batch_items": Case(
        asked("insert_batch_items", 30_000, ints(range(50)), *[texts("{}", 50)] * 2), 50, 15
    ),
    "count_bulk": Case(asked("count_bulk", 700, ints(range(100))), 1, 20),
    "batch_with_key": Case(asked("batch_with_key", "b7"), 1, 6),
    "work_of_batch": Case(asked("work_of_batch", 7), 1, 6),
    "refuse_batch_items": Case(asked("refuse_batch_items", 7, ints(range(50)), texts("x", 50), texts("y", 50)), 50, 15),
    "batch_begun": Case(asked("batch_begun", 7, 50), 1, 30),
    "batch_ended_until": Case(asked("batch_ended_until", 7, 50, True, 0.2, 30.0), 1, 30),
    "end_batch": Case(asked("end_batch", 7), 1, 40),
    "cancel_batch": Case(asked("cancel_batch", 7, None), 1, 40),
    "batch_cancelled_until": Case(asked("batch_cancelled_until", 7, 50), 1, 30),
    "lock_abnormal_ends": Case(asked("lock_abnormal_ends", ints([BASE + 7])), 1, 15),
    "remove_abnormal_ends": Case(asked("remove_abnormal_ends", ints([BASE + 7])), 1, 25),
    "raw_result": Case(asked("raw_result", BASE + 7, 7), 1, 6),
    "delete_item_outputs": Case(asked("delete_item_outputs", ints([BASE + 7]), ints([7])), 1, 12),
    "step_of_closed": Case(asked("step_of_closed", BASE + 7, BASE + 7, 8), 1, 60),
    "failed_when_done": Case(
        asked("failed_when_done", BASE + 7, ints([BASE + 7] * 3), ints([8, 9, 10]), ints([False] * 3)), 3, 12
    ),
    "rules_behind": Case(asked("rules_behind", BASE + 7, 0, ints([1])), 1, 20),
    "newest_rules": Case(asked("newest_rules", ints(BASE + k for k in range(50)), 1), 50, 12),
    "last_errors": Case(asked("last_errors", BASE + 7, 3, 4), 2, 20),
    "active_definition": Case(asked("active_definition", "d"), 1, 20),
    "active_keys": Case(asked("active_keys", texts("d", 1)), 1, 20),
    "newest_definition": Case(asked("newest_definition", "d"), 1, 10),
    "claim_sql_requests": Case(lambda c: sql_requests.claim(c, 50, 80, 1_000_000), 50, 30, 80),
    "keep_sql_requests": Case(asked("keep_sql_requests"), 1, 3),
    "finish_sql_requests": Case(asked("finish_sql_requests", ints(range(1, 51))), 50, 20),
    "fail_sql_requests": Case(
        asked("fail_sql_requests", ints(range(1, 51)), texts("e", 50), texts("no", 50)), 50, 40
    ),
    "delay_sql_requests": Case(asked("delay_sql_requests", ints(range(1, 51)), ints([1] * 50)), 50, 40),
    "list_sql_requests, failed": Case(lambda c: sql_requests.read(c, 5_000, 50, failed=True), 50, 8, 50),
    "list_sql_requests, waiting": Case(lambda c: sql_requests.read(c, 5_000, 50, failed=False), 50, 8, 50),
    "retry_sql_request": Case(asked("retry_sql_request", 3), 1, 40),
    "drop_sql_request": Case(asked("drop_sql_request", 3), 1, 30),
    "sql_request_state": Case(asked("sql_request_state", 3), 1, 10),
    "count_sql_requests": Case(lambda c: sql_requests.count(c, 1_000), 2_000, 3),
    "purge_sql_requests": Case(asked("purge_sql_requests", 0.0, 50), 50, 30),
    "allow_requests and allow_definitions": Case(allowed, 1, 400),
    "lock_forked, begun_with and arguments": Case(forked, 8, 16, 8),
    "fork_journal": Case(copied, 3, 20, 3),
    **QUEUE_CASES,
}  # fmt: skip
FILES = ("batches", "flow", "forks", "queues", "schedules", "sql_requests", "starts")
WALKS = {"reckon_schedules"}
"""Over all rows, when an engine starts."""


def _executions() -> tuple[str, str]:
    return ints(timer[0] for timer in TIMERS), ints(timer[1] for timer in TIMERS)


async def counted(connection: TrioConnection) -> tuple[int, dict[str, int]]:
    rows: Any = await connection.fetch(BLOCKS)
    scans: Any = await connection.fetch(SCANS, ("{" + ",".join(TABLES) + "}",))
    return rows[0][0], dict(scans)


class AwaitedEnd:
    """What a connection is asked, by name."""

    def __init__(self, connection: TrioConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        self._known = {text: name for name, text in SQL.items()}
        self._fetch, self._roundtrip = connection.fetch, connection.roundtrip
        monkeypatch.setattr(connection, "fetch", self.fetch)
        monkeypatch.setattr(connection, "roundtrip", self.roundtrip)

    async def fetch(self, sql: Any, params: Any = ()) -> Any:
        self.names.add(self._known.get(sql, ""))
        return await self._fetch(sql, params)

    async def roundtrip(self, statements: Any) -> Any:
        self.names.update(self._known.get(sql, "") for sql, _ in statements)
        return await self._roundtrip(statements)


@pytest.fixture(scope="module")
def costs(postgres_server: PostgresServer) -> Generator[dict[str, tuple[int, dict[str, int], Any]]]:
    def execute(dsn: str, text: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(text.encode())

    async def measure(dsn: str) -> dict[str, tuple[int, dict[str, int], Any]]:
        found: dict[str, tuple[int, dict[str, int], Any]] = {}
        async with await connect(dsn) as connection:
            received = AwaitedEnd(connection, monkeypatch)
            for filled in (False, True):
                for name, case in CASES.items():
                    await connection.fetch(SQL["begin"])
                    before = await counted(connection)
                    given = await case.call(connection)
                    after = await counted(connection)
                    await connection.fetch(b"ROLLBACK")
                    scans = {table: n - before[1][table] for table, n in after[1].items() if n > before[1][table]}
                    found[name] = after[0] - before[0], scans, given
                if not filled:
                    await trio.to_thread.run_sync(execute, dsn, FILL + FILL_QUEUES)
        found[""] = 0, {}, received.names
        return found

    with pytest.MonkeyPatch.context() as monkeypatch, postgres_server.database(apply_schema) as dsn:
        execute(dsn, QUEUE_ROWS)
        yield trio.run(measure, dsn)


SKIPPING = {"lock_abnormal_ends", "remove_abnormal_ends"}
"""What they look for is the second column of the index."""


@pytest.mark.parametrize("name", CASES)
def test_a_statement_scans_no_table_and_keeps_to_its_blocks(
    costs: dict[str, tuple[int, dict[str, int], Any]], name: str, needs_server: Callable[[int, str], None]
) -> None:
    if name in SKIPPING:
        needs_server(18, "skip scan: it reads the whole index of abnormal_end")
    blocks, scans, given = costs[name]
    case = CASES[name]
    assert scans == {}
    assert blocks <= case.rows * case.blocks
    assert case.gives is None or len(given) == case.gives


def test_each_statement_of_the_flow_is_measured(costs: dict[str, tuple[int, dict[str, int], Any]]) -> None:
    _, _, names = costs[""]
    queries = Path(flow.__file__).parent.parent / "queries"
    texts = [(queries / f"{file}.sql").read_text() for file in FILES]
    known = {name for text in texts for name in re.findall(r"(?m)^-- name: (\w+)$", text)}
    assert known - names == WALKS
