"""The layout of the hot rows, which every job pays for."""

from __future__ import annotations

import psycopg

ROW = "INSERT INTO {table} (id, instance_id, step, job_type, seq, entered_at, state) VALUES (1, 1, 0, 1, 1, now(), 0)"
LEASE = "UPDATE {table} SET state = 1, attempt = 1, claimed_at = now(), lease_until = now(), claimed_by = 'worker'"
VERSION_1 = """CREATE TEMP TABLE old_token (
  id bigint, instance_id bigint, parent_id bigint, timeout_s float8, failures int DEFAULT 0,
  expiries smallint DEFAULT 0, pending smallint DEFAULT 0, arrived smallint DEFAULT 0, side boolean DEFAULT false,
  unfolded smallint DEFAULT 0, step smallint, job_type int, seq bigint, entered_at timestamptz, state smallint,
  attempt int DEFAULT 0, claimed_at timestamptz, lease_until timestamptz, claimed_by text)"""


def test_what_version_2_prepares_costs_a_job_no_byte(database_dsn: str) -> None:
    sizes = {}
    with psycopg.connect(database_dsn) as connection:
        connection.execute(VERSION_1)
        for table in ("token", "old_token"):
            connection.execute(ROW.format(table=table).encode())
            ready = connection.execute(f"SELECT pg_column_size(t) FROM {table} t".encode()).fetchone()
            connection.execute(LEASE.format(table=table).encode())
            leased = connection.execute(f"SELECT pg_column_size(t) FROM {table} t".encode()).fetchone()
            sizes[table] = ready, leased
    assert sizes == {"token": ((96,), (119,)), "old_token": ((96,), (119,))}
