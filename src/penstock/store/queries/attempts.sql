-- Attempts of jobs: what each was given, and what came of it.

-- name: record_parameters
-- What attempts were given ($1 instance $2 token $3 seq $4 attempt $5 variables, null: too large to be kept $6 their bytes).
INSERT INTO attempt_note (instance_id, token_id, seq, attempt, parameters, parameters_bytes)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::int[], $5::jsonb[], $6::int[])
ON CONFLICT (instance_id, token_id, seq, attempt)
DO UPDATE SET parameters = excluded.parameters, parameters_bytes = excluded.parameters_bytes

-- name: record_stack_trace
-- Where an attempt had its error ($1 instance $2 token $3 seq $4 attempt $5 a text as JSON, in an array), if its instance is there.
INSERT INTO attempt_note (instance_id, token_id, seq, attempt, stack_trace)
SELECT $1::bigint, $2::bigint, $3::bigint, $4::int, ($5::jsonb[])[1] FROM instance i WHERE i.id = $1::bigint
ON CONFLICT (instance_id, token_id, seq, attempt) DO UPDATE SET stack_trace = excluded.stack_trace

-- name: attempts
-- The newest $4 rows about an execution ($1 instance $2 token $3 seq), oldest first, the open one last; with what its end
-- wrote where that has $5 bytes at most, and its bytes.
SELECT * FROM (
  (SELECT h.pos, h.step, h.kind, h.started_at, h.ended_at, h.claimed_at, h.attempt, h.worker, h.reason, h.error_code,
     CASE WHEN octet_length(h.output::text) <= $5::int THEN h.output::text END AS output, octet_length(h.output::text) AS bytes
   FROM history h WHERE h.instance_id = $1::bigint AND h.pos > $3::bigint AND h.token_id = $2::bigint AND h.seq = $3::bigint
   ORDER BY h.pos DESC LIMIT $4::int)
  UNION ALL
  (SELECT NULL, t.step, NULL, t.entered_at, NULL,
     CASE WHEN t.state IN (1 /* LOCKED */, 5 /* DISPATCHED */) THEN t.claimed_at END, t.attempt, t.claimed_by, NULL, NULL, NULL, NULL
   FROM token t WHERE t.id = $2::bigint AND t.seq = $3::bigint AND t.instance_id = $1::bigint)) a
ORDER BY a.pos NULLS LAST

-- name: attempt_notes
-- What is kept of the newest $4 attempts of an execution ($1 instance $2 token $3 seq).
SELECT n.attempt, n.parameters::text, n.parameters_bytes, n.progress::text, n.stack_trace::text FROM attempt_note n
WHERE n.instance_id = $1::bigint AND n.token_id = $2::bigint AND n.seq = $3::bigint ORDER BY n.attempt DESC LIMIT $4::int

-- name: forget_checkpoint
-- Of an open job ($1 instance $2 token $3 seq): its next attempt begins without. One row if the job is open: whether there was one.
SELECT EXISTS (SELECT FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq AND n.checkpoint IS NOT NULL)
FROM token t WHERE t.id = $2::bigint AND t.seq = $3::bigint AND t.instance_id = $1::bigint
  AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */) AND t.job_type IS NOT NULL

-- name: drop_checkpoint
-- By the key, not by where the row was: a heartbeat that is under way moves it.
UPDATE job_note SET checkpoint = NULL WHERE token_id = $1::bigint AND seq = $2::bigint

-- name: remove_attempts
DELETE FROM attempt_note WHERE instance_id = ANY($1::bigint[])
