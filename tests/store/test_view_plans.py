"""What docs/support.md calls indexed reads a few pages and scans no big table, in a session as `psql` has one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg
import pytest

from tests.postgres import PostgresServer, apply_schema
from tests.store.test_plans import BASE, BIG_TABLES, FEW, fill

pytestmark = pytest.mark.slow(reason="plans over large tables")

DEFINITIONS = """INSERT INTO definition (id, version, name, content, uploaded_at)
    SELECT 'flow', n, 'flow', '{"steps": [{"id": "only"}]}', now() FROM generate_series(1, 2) AS n;
    INSERT INTO job_type (name) VALUES ('one'), ('two')"""
SOME = BASE + 4 * (FEW // 2)
DONE = SOME + 2
INDEXED = {
    "an instance": (f"SELECT * FROM penstock_instances WHERE number = {SOME}", 1),
    "instances by key": ("SELECT * FROM penstock_instances WHERE business_key = 'order-10034'", 1),
    "instances of a time": (f"SELECT id FROM penstock_instances WHERE number >= {SOME} ORDER BY number LIMIT 9", 9),
    "the newest": ("SELECT id, status, variables FROM penstock_instances ORDER BY number DESC LIMIT 9", 9),
    "children": (f"SELECT * FROM penstock_instances WHERE parent_number = {SOME}", 0),
    "a failure": (f"SELECT * FROM penstock_failures WHERE number = {BASE + 4 * 7 + 2}", 1),
    "jobs of an instance": (f"SELECT * FROM penstock_jobs WHERE number = {SOME}", 1),
    "steps of an open instance": (f"SELECT * FROM penstock_steps WHERE number = {SOME}", 1),
    "steps of an ended instance": (f"SELECT * FROM penstock_steps WHERE number = {DONE} ORDER BY pos, seq", 1),
    "attempts of an open instance": (f"SELECT * FROM penstock_attempts WHERE number = {SOME}", 0),
    "attempts of an ended instance": (f"SELECT * FROM penstock_attempts WHERE number = {DONE}", 1),
    "what an instance was started with": (f"SELECT start_variables FROM penstock_instances WHERE number = {SOME}", 1),
    "the next timers": ("SELECT * FROM penstock_timers ORDER BY fire_at LIMIT 9", 9),
    "a definition": ("SELECT * FROM penstock_definitions WHERE definition = 'flow' AND latest", 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def filled_dsn(postgres_server: PostgresServer) -> Generator[str]:
    with postgres_server.database(apply_schema) as dsn:
        fill(dsn, FEW)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(DEFINITIONS.encode())
            connection.execute(b"ANALYZE")
        yield dsn


def scanned(plan: dict[str, Any]) -> set[str]:
    """Tables that a plan reads from end to end."""
    below = [name for part in plan.get("Plans", ()) for name in scanned(part)]
    own = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" and plan["Actual Loops"] else []
    return {*below, *own}


@pytest.mark.parametrize("what", INDEXED)
def test_what_the_page_calls_indexed_scans_no_table(filled_dsn: str, what: str) -> None:
    query, count = INDEXED[what]
    with psycopg.connect(filled_dsn) as connection:
        ((explained,),) = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}".encode()).fetchall()
    plan = explained[0]["Plan"]
    assert plan["Actual Rows"] == count
    assert scanned(plan) & {*BIG_TABLES, "history_other"} == set()
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 300
