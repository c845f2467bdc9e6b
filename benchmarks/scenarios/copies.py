"""Rows by the million: copies of one instance that the engine made, in a few SQL statements.

Relies on `schema.sql`: ids are 41 bits of milliseconds, then the engine's number and a counter; a copy is put a number
of milliseconds before its model, with the highest counters, which no engine reaches within a millisecond here.
"""

from __future__ import annotations

from benchmarks.database import Database

READY_COUNTER, FINISHED_COUNTER, WAITING_COUNTER, PARKED_COUNTER = 4095, 4094, 4093, 4092


def copy_ready(database: Database, model: int, number: int) -> None:
    """Copies of an instance whose one job waits in the queue: not one row differs in shape."""
    database.execute(
        """
        WITH copy AS MATERIALIZED (
          SELECT (((%s::bigint >> 22) - n) << 22) | (%s::bigint & 4190208) | %s AS id, nextval('step_seq') AS seq
          FROM generate_series(1, %s) AS n),
        made AS (
          INSERT INTO instance (id, started_at, definition, vars)
          SELECT c.id, i.started_at, i.definition, i.vars FROM copy c, instance i WHERE i.id = %s),
        tokens AS (
          INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state)
          SELECT c.id, c.id, c.seq, t.entered_at, t.job_type, t.step, t.state FROM copy c, token t WHERE t.id = %s)
        INSERT INTO ready (job_type, seq, token_id)
        SELECT t.job_type, c.seq, c.id FROM copy c, token t WHERE t.id = %s
        """,
        [model, model, READY_COUNTER, number, model, model, model],
    )


def copy_keyed(database: Database, model: int, number: int, keys: int) -> None:
    """Copies of an instance whose one job waits for its turn, under flow keys `k000000` and so on."""
    database.execute(
        """
        WITH copy AS MATERIALIZED (
          SELECT (((%s::bigint >> 22) - n) << 22) | (%s::bigint & 4190208) | %s AS id, nextval('step_seq') AS seq,
            'k' || lpad((n %% %s)::text, 6, '0') AS flow_key
          FROM generate_series(1, %s) AS n),
        made AS (
          INSERT INTO instance (id, started_at, definition, vars, flow_key)
          SELECT c.id, i.started_at, i.definition, i.vars, c.flow_key FROM copy c, instance i WHERE i.id = %s),
        tokens AS (
          INSERT INTO token (id, instance_id, seq, entered_at, job_type, step, state, flow_key)
          SELECT c.id, c.id, c.seq, t.entered_at, t.job_type, t.step, t.state, c.flow_key
          FROM copy c, token t WHERE t.id = %s)
        INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
        SELECT t.job_type, t.priority, c.flow_key, c.seq, c.id FROM copy c, token t WHERE t.id = %s
        """,
        [model, model, READY_COUNTER, keys, number, model, model, model],
    )


def copy_finished(database: Database, model: int, number: int) -> None:
    """Copies of an instance that completed, with its history."""
    database.execute(
        """
        WITH copy AS MATERIALIZED (
          SELECT (((%s::bigint >> 22) - n) << 22) | (%s::bigint & 4190208) | %s AS id FROM generate_series(1, %s) AS n),
        made AS (
          INSERT INTO instance (id, started_at, ended_at, definition, status, vars)
          SELECT c.id, i.started_at, i.ended_at, i.definition, i.status, i.vars
          FROM copy c, instance i WHERE i.id = %s)
        INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind,
          end_step, worker, output)
        SELECT c.id, nextval('step_seq'), c.id, h.seq, h.started_at, h.ended_at, h.claimed_at, h.attempt, h.step,
          h.kind, h.end_step, h.worker, h.output
        FROM copy c, history h WHERE h.instance_id = %s
        """,
        [model, model, FINISHED_COUNTER, number, model, model],
    )


def copy_waiting(database: Database, model: int, number: int) -> None:
    """Copies of an instance that stands on a wait with a timer."""
    database.execute(
        """
        WITH copy AS MATERIALIZED (
          SELECT n, (((%s::bigint >> 22) - n) << 22) | (%s::bigint & 4190208) | %s AS id, nextval('step_seq') AS seq
          FROM generate_series(1, %s) AS n),
        made AS (
          INSERT INTO instance (id, started_at, definition, vars)
          SELECT c.id, i.started_at, i.definition, i.vars FROM copy c, instance i WHERE i.id = %s),
        tokens AS (
          INSERT INTO token (id, instance_id, seq, entered_at, step, state)
          SELECT c.id, c.id, c.seq, t.entered_at, t.step, t.state FROM copy c, token t WHERE t.id = %s)
        INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
        SELECT c.id, c.seq, m.fire_at + c.n * interval '1 ms', c.id, m.index FROM copy c, timer m
        WHERE m.instance_id = %s
        """,
        [model, model, WAITING_COUNTER, number, model, model, model],
    )


def copy_parked(database: Database, model: int, number: int) -> None:
    """Copies of a durable workflow's run that is parked with a deadline."""
    database.execute(
        """
        WITH copy AS MATERIALIZED (
          SELECT n, (((%s::bigint >> 22) - n) << 22) | (%s::bigint & 4190208) | %s AS id, nextval('step_seq') AS seq
          FROM generate_series(1, %s) AS n),
        made AS (
          INSERT INTO instance (id, started_at, definition, vars)
          SELECT c.id, i.started_at, i.definition, i.vars FROM copy c, instance i WHERE i.id = %s),
        tokens AS (
          INSERT INTO token (id, instance_id, seq, entered_at, job_type, attempt, step, state)
          SELECT c.id, c.id, c.seq, t.entered_at, t.job_type, t.attempt, t.step, t.state
          FROM copy c, token t WHERE t.id = %s),
        listed AS (INSERT INTO parked (instance_id, token_id) SELECT id, id FROM copy),
        noted AS (
          INSERT INTO job_note (token_id, seq, attempt, checkpoint, progress)
          SELECT c.id, c.seq, n.attempt, n.checkpoint, n.progress FROM copy c, job_note n WHERE n.token_id = %s)
        INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
        SELECT c.id, c.seq, m.fire_at + c.n * interval '1 ms', c.id, m.index FROM copy c, timer m
        WHERE m.instance_id = %s
        """,
        [model, model, PARKED_COUNTER, number, model, model, model, model],
    )
