"""A batch of one has statements of its own: they do what those for any batch do, and leave to these what is unusual."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, cast

import psycopg
import pytest

from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import IdTaken
from penstock.store.db.statements import SQL
from penstock.store.db.vault import Vault
from penstock.store.rows import instances, jobs
from penstock.store.rows.instances import FastStart
from penstock.store.rows.jobs import FastItem
from tests.store.test_plans import connect

NAMES = {text: name for name, text in SQL.items()}
STANDING_CLOCK = """CREATE OR REPLACE FUNCTION penstock_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT '2026-01-01T00:00:00Z'::timestamptz $$"""
LEASED = """
    INSERT INTO instance (id, started_at, definition, vars)
    SELECT id, '2025-01-01', 1, '{}' FROM (VALUES (4), (8)) AS i(id);
    INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state, attempt, claimed_at, claimed_by,
      lease_until, failures, expiries, timeout_s)
    SELECT id, id, id * 10, '2025-01-01', 1, 0, 1, 2, '2025-01-02', 'w', '2027-01-01', 1, 2, 30 FROM instance;
    INSERT INTO instance_key (definition_id, key, instance_id) VALUES ('d', 'one', 4), ('d', 'other', 8);
    INSERT INTO job_note (token_id, seq, attempt) VALUES (4, 40, 2), (8, 80, 2);
    SELECT setval('step_seq', 1000)"""
READY = """UPDATE token SET state = 0, queued = 41, lease_until = NULL, claimed_at = NULL WHERE id = 4;
    INSERT INTO ready (job_type, seq, token_id) VALUES (1, 41, 4), (1, 80, 8)"""
TABLES = ("instance", "token", "ready", "history", "instance_key", "job_note", "dispatch_outbox", "parked")


class Case(NamedTuple):
    """``lone``: whether the statement for one applies a completion that moves, and one that ends; ``applied``: whether
    any does."""

    change: str = ""
    lone: tuple[bool, bool] = (True, True)
    applied: tuple[bool, bool] = (True, True)
    attempt: int | None = 2
    worker: str = "w"
    seq: int = 40
    output: bytes | None = b'{"a": "\\\\ \\" \xc3\xa4", "b": [1, null]}'


NO, YES = (False, False), (True, True)
CASES = {
    "leased": Case(),
    "any attempt": Case(attempt=None),
    "no output": Case(output=None),
    "large output": Case(output=b'{"a": "%s"}' % (b"x" * 300_000)),
    "lease over": Case("UPDATE token SET lease_until = '2025-01-03' WHERE id = 4"),
    "came back before": Case("UPDATE token SET queued = 41, entry = 39 WHERE id = 4"),
    "another attempt": Case(attempt=1, lone=NO, applied=NO),
    "another worker": Case(worker="x", lone=NO, applied=NO),
    "another execution": Case(seq=39, lone=NO, applied=NO),
    "no token": Case("DELETE FROM token WHERE id = 4", lone=NO, applied=NO),
    "in the queue again": Case(READY, lone=NO),
    "in the queue again, of another": Case(READY, lone=NO, applied=NO, worker="x"),
    "claimed by another": Case("UPDATE token SET claimed_by = 'x', attempt = 3 WHERE id = 4", lone=NO, applied=NO),
    "dispatched": Case(
        "UPDATE token SET state = 0, claimed_by = NULL WHERE id = 4; UPDATE token SET state = 5 WHERE id = 4"
    ),
    "parked": Case("UPDATE token SET state = 2 WHERE id = 4", lone=NO, applied=NO),
    "in backoff": Case("UPDATE token SET state = 4 WHERE id = 4", lone=NO, applied=NO),
    "flow key": Case("UPDATE token SET flow_key = 'k' WHERE id = 4", lone=NO, applied=NO),
    "holds a place": Case("UPDATE token SET held = 1 WHERE id = 4", lone=NO, applied=NO),
    "migrated": Case("UPDATE token SET migrated = true WHERE id = 4", lone=NO, applied=NO),
    "watched": Case("UPDATE token SET watched = true WHERE id = 4", lone=(True, False), applied=(True, False)),
    "much to fold": Case("UPDATE token SET unfolded = 128 WHERE id = 4", lone=(False, True), applied=(False, True)),
    "much to fold, no output": Case("UPDATE token SET unfolded = 128 WHERE id = 4", output=None),
    "kept key": Case("UPDATE instance_key SET kept = true"),
    "no key, no note": Case("DELETE FROM instance_key; DELETE FROM job_note"),
}  # fmt: skip


class Recorded(NamedTuple):
    sent: list[str]
    rows: list[Any]
    written: dict[str, list[Any]]


@pytest.fixture
async def connection(database_dsn: str) -> AsyncGenerator[TrioConnection]:
    with psycopg.connect(database_dsn, autocommit=True) as setting_up:
        setting_up.execute(STANDING_CLOCK.encode())
        setting_up.execute(
            "INSERT INTO definition (id, version, name, content, uploaded_at)"
            " SELECT id, version, '', '', now() FROM (VALUES ('d', 1), ('d', 2), ('e', 1)) AS d(id, version)"
        )
    async with await connect(database_dsn) as connection:
        yield connection


async def recorded(connection: TrioConnection, set_up: Sequence[str], call: Any, monkeypatch: Any) -> Recorded:
    """What a call sends, returns and writes; undone afterwards."""
    fetch, sent = connection.fetch, list[str]()

    async def noted(sql: Any, params: Sequence[object] = ()) -> list[Any]:
        sent.append(NAMES[sql])
        return await fetch(sql, params)

    await fetch(b"BEGIN")
    for several in set_up:
        for statement in several.split(";"):
            if statement.strip():
                await fetch(statement.encode())
    with monkeypatch.context() as patch:
        patch.setattr(connection, "fetch", noted)
        rows = await call()
    written = {table: await fetch(f"SELECT t::text FROM {table} t ORDER BY 1".encode()) for table in TABLES}
    await fetch(b"ROLLBACK")
    return Recorded(sent, rows, written)


async def nothing(*_: object) -> list[Any]:
    return []


@pytest.mark.parametrize("ends", [False, True], ids=["moves", "ends"])
@pytest.mark.parametrize("name", CASES)
async def test_one_completion_does_what_a_batch_does(
    connection: TrioConnection, monkeypatch: pytest.MonkeyPatch, name: str, ends: bool
) -> None:
    case = CASES[name]
    following = (None, None, None) if ends else (2, "next", 60.0)
    item = FastItem(4, case.seq, case.attempt, case.worker, ends, 1, *following, case.output)
    set_up = LEASED, case.change

    async def call() -> list[Any]:
        return await jobs.complete_fast(connection, [item])

    found = await recorded(connection, set_up, call, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_complete_lone", nothing)
        batch = await recorded(connection, set_up, call, monkeypatch)
    lone, general = ("complete_lone_end", "complete_ends") if ends else ("complete_lone_move", "complete_moves")
    assert batch.sent == [general]
    assert found.sent == ([lone] if case.lone[ends] else [lone, general])
    assert found.rows == batch.rows
    assert found.written == batch.written
    assert len(found.rows) == case.applied[ends]
    before = await recorded(connection, set_up, nothing, monkeypatch)
    assert (found.written != before.written) is case.applied[ends]


async def test_a_completion_without_a_poll_goes_to_the_queue(
    connection: TrioConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = FastItem(4, 40, 2, "w", False, 1, 2, None, None, None)
    found = await recorded(connection, [LEASED], lambda: jobs.complete_fast(connection, [item]), monkeypatch)
    assert found.sent == ["complete_moves"]
    assert len(found.written["ready"]) == 1


@pytest.mark.parametrize("ends", [False, True])
async def test_the_outbox_has_the_statement_for_all(
    connection: TrioConnection, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    item = FastItem(4, 40, 2, "w", ends, 1, None if ends else 2, None, None, None)
    found = await recorded(
        connection, [LEASED], lambda: jobs.complete_fast(connection, [item], to_outbox=True), monkeypatch
    )
    assert found.sent == ["complete_fast"]
    assert len(found.rows) == 1
    assert len(found.written["dispatch_outbox"]) == (not ends)


LATEST = {
    "by its version": ((), 1),
    "the latest": ((("d", 2),), 1),
    "outdated": ((("d", 1),), 0),
    "of no definition": ((("f", 1),), 0),
}


@pytest.mark.parametrize("latest", LATEST)
@pytest.mark.parametrize("about", [("order-7", "caller"), (None, None)])
async def test_one_start_does_what_a_batch_does(
    connection: TrioConnection,
    monkeypatch: pytest.MonkeyPatch,
    latest: str,
    about: tuple[str | None, str | None],
) -> None:
    wanted, n = LATEST[latest]
    key, caller = about
    item = FastStart(12, 2, b'{"a": "\\\\ \\" \xc3\xa4"}', key, 1, "w", 60.0, caller)
    found = await recorded(
        connection, [LEASED], lambda: instances.start_fast(connection, [item], latest=wanted), monkeypatch
    )

    async def as_batch() -> list[Any]:
        columns = instances.start_columns(connection, [item], to_outbox=False)
        ids = "{" + ",".join(id for id, _ in wanted) + "}"
        keys = "{" + ",".join(str(key) for _, key in wanted) + "}"
        return await instances.begin(connection, SQL["start_fast"], (*columns, ids, keys))

    batch = await recorded(connection, [LEASED], as_batch, monkeypatch)
    assert (found.sent, batch.sent) == (["start_lone"], ["start_fast"])
    assert found.rows == batch.rows
    assert found.written == batch.written
    assert len(found.rows) == n


async def test_one_start_without_a_poll_goes_to_the_queue(
    connection: TrioConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = FastStart(12, 1, b"{}", None, 1, None, None)
    for to_outbox, table in ((False, "ready"), (True, "dispatch_outbox")):

        async def call(to_outbox: bool = to_outbox) -> list[Any]:
            return await instances.start_fast(connection, [item], to_outbox=to_outbox)

        found = await recorded(connection, [], call, monkeypatch)
        assert found.sent == ["start_fast"]
        assert len(found.written[table]) == 1


async def test_one_start_under_a_taken_id_is_reported(connection: TrioConnection) -> None:
    item = FastStart(12, 1, b"{}", None, 1, "w", 60.0)
    assert len(await instances.start_fast(connection, [item])) == 1
    with pytest.raises(IdTaken):
        await instances.start_fast(connection, [item])


async def test_what_one_writes_is_encrypted(connection: TrioConnection) -> None:
    vault = connection.vault = Vault({"k1": os.urandom(32)})
    [begun] = await instances.start_fast(connection, [FastStart(12, 1, b'{"a": "one"}', None, 1, "w", 60.0)])
    item = FastItem(12, begun.seq, 1, "w", False, 1, 2, "w", 60.0, b'{"b": "two"}')
    [moved] = await jobs.complete_fast(connection, [item])
    assert moved.new_seq is not None
    last = item._replace(seq=moved.new_seq, ends=True, output=b'{"c": "three"}')
    [ended] = await jobs.complete_fast(connection, [last])
    assert ended.new_seq is None
    rows = cast(
        Any,
        await connection.fetch(
            b"SELECT vars::text FROM instance UNION ALL (SELECT output::text FROM history ORDER BY pos)"
        ),
    )
    assert ["$enc" in text for (text,) in rows] == [True, True, True]
    assert [json.loads(vault.open(text)) for (text,) in rows] == [{"a": "one"}, {"b": "two"}, {"c": "three"}]
