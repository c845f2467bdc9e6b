-- A durable run that begins with a part of another run's journal. Lock order: as queries/journal.sql; the run that is forked
-- is locked before anything of the new one is written.

-- name: lock_forked_token
-- A run ($1 instance) that is to be forked, kept as it is for this transaction, where it is open: when its time began.
SELECT t.entered_at FROM token t WHERE t.id = $1::bigint AND t.id = t.instance_id FOR SHARE

-- name: lock_forked_instance
-- Likewise, also where it has ended.
SELECT i.started_at FROM instance i WHERE i.id = $1::bigint FOR SHARE

-- name: forked_arguments
-- What a run ($1 instance) was started with: its variables without its result, which may have the name of an argument.
SELECT (i.vars || coalesce(i.overlay, '{}'))::text FROM instance i WHERE i.id = $1::bigint

-- name: forked_execution
-- When the time of a run ($1 instance) that has ended began.
SELECT started_at FROM history WHERE instance_id = $1::bigint AND kind < 10 /* ATTEMPT_FAILED */ ORDER BY pos DESC LIMIT 1

-- name: first_and_last
-- The first record of a run ($1 instance), with its kind, name, payload and time, and the position of the last one.
SELECT f.kind, f.name, f.payload, f.at, l.pos FROM (
  SELECT * FROM journal WHERE instance_id = $1::bigint ORDER BY pos LIMIT 1) f
CROSS JOIN LATERAL (SELECT pos FROM journal WHERE instance_id = $1::bigint ORDER BY pos DESC LIMIT 1) l

-- name: begun_with
-- What a run ($1 instance) begins with: its first record, if that is of the kind $2.
SELECT payload FROM (SELECT kind, payload FROM journal WHERE instance_id = $1::bigint ORDER BY pos LIMIT 1) j
WHERE kind = $2::smallint

-- name: fork_journal
-- What a new run ($1 instance) has of the journal of another one ($2): the records before a position ($3), as `cut_journal`
-- leaves them for an operation ($4 path) to be done again; with $5 the messages and calls of updates that came later, too.
-- Positions stay, as records name them. Before them stands what the run begins with: a record with the name $6, the payload
-- $7 (one in an array) and the time $8. Who asks the new run for one of these calls gets the answer that it had before the
-- position, or else waits for the new run's.
WITH place AS MATERIALIZED (
  SELECT at FROM journal WHERE instance_id = $2::bigint AND pos = $3::bigint),
kept AS MATERIALIZED (
  SELECT j.*, j.kind = 9 /* RETRY */ AND j.path = $4::text
    OR j.pos >= $3::bigint AND j.kind NOT IN (6 /* MESSAGE */, 14 /* DROPPED */, 15 /* ASKED */) AS passes
  FROM journal j WHERE j.instance_id = $2::bigint AND j.kind NOT IN (10 /* BEGUN */, 12 /* VIEW */, 13 /* ERROR */)
    AND (j.pos < $3::bigint OR $5::boolean AND j.kind IN (6 /* MESSAGE */, 14 /* DROPPED */, 15 /* ASKED */)
      OR j.mark IS NOT NULL AND j.at IN (SELECT at FROM place))),
calls AS (
  INSERT INTO signal_id (instance_id, id, request_hash, answer)
  SELECT $1::bigint, s.id, s.request_hash, a.payload
  FROM kept k JOIN signal_id s ON s.instance_id = $2::bigint AND s.id = 'u:' || k.path
  LEFT JOIN kept a ON a.kind = 17 /* ANSWERED */ AND a.path = k.path AND NOT a.passes
  WHERE k.kind = 15 /* ASKED */)
INSERT INTO journal (instance_id, pos, at, kind, attempt, digest, took_ms, path, name, payload, mark, rules, sender)
SELECT $1::bigint, pos, at, kind, attempt, digest, took_ms, path, name, payload, mark, rules, sender FROM kept WHERE NOT passes
UNION ALL
SELECT $1::bigint, pos, at, 5 /* CLOCK */, 1, NULL, NULL, '', NULL, NULL, mark, rules, NULL FROM kept WHERE passes
UNION ALL
SELECT $1::bigint, coalesce((SELECT min(pos) - 1 FROM kept), nextval('step_seq')), $8::timestamptz, 10 /* BEGUN */, 1, NULL, NULL,
  '', $6::text, ($7::text[])[1], NULL, NULL, NULL
