-- The full path: lock, read, let `core.advance` decide, write. One transaction: `begin` to `read_tokens` in one round
-- trip, then the writes and COMMIT in a second one. Everything written here is under the locks taken first, so the
-- writes need no fences, and rows are written by the `ctid` under which they were found (`jobs.sql` says why).

-- name: lock_roots
-- The root token is an instance's lock: it exists as long as the instance is active.
SELECT id FROM token WHERE id = ANY($1::bigint[]) AND id = instance_id ORDER BY id FOR NO KEY UPDATE

-- name: lock_ended
-- The row of an instance that has no root token any more (failed ones can be retried). $1 instances.
SELECT instance_id, tokens::text, step FROM abnormal_end WHERE status = 2 /* FAILED */ AND instance_id = ANY($1::bigint[]) ORDER BY instance_id FOR UPDATE

-- name: lock_branches
-- In a statement of its own: its snapshot sees what was committed before the roots were had.
SELECT id FROM token WHERE instance_id = ANY($1::bigint[]) AND id <> instance_id
ORDER BY instance_id, id FOR NO KEY UPDATE

-- name: free_tokens
-- Those of the tokens $1 that nobody else holds, locked for a moment (54 B of WAL each): asked only after a lock was not
-- had in time. As strong as a DELETE's lock.
SELECT id FROM token WHERE id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED

-- name: free_branches
-- The same of the branches of instances $1.
SELECT id FROM token WHERE instance_id = ANY($1::bigint[]) AND id <> instance_id FOR UPDATE SKIP LOCKED

-- name: tokens_there
-- The tokens $1, and the branches of instances $2, with their instances.
SELECT id, instance_id FROM token WHERE id = ANY($1::bigint[])
UNION ALL
SELECT id, instance_id FROM token WHERE instance_id = ANY($2::bigint[]) AND id <> instance_id

-- name: read_instances
-- Variables are read by a statement of their own, only for definitions that need them.
SELECT i.id, i.definition, i.status, i.failure, i.instance_key, i.business_key, i.ended_at,
  (SELECT c.seq FROM called c WHERE c.id = i.id), i.priority, i.flow_key,
  coalesce((SELECT c.depth FROM called c WHERE c.id = i.id), 0), EXISTS (SELECT FROM scheduled s WHERE s.instance_id = i.id AND s.watched)
FROM instance i WHERE i.id = ANY($1::bigint[])

-- name: read_instances_alone
-- As `read_instances`, of those that nobody called and no schedule waits for, while somebody holds `called` or `scheduled`.
SELECT i.id, i.definition, i.status, i.failure, i.instance_key, i.business_key, i.ended_at, NULL::bigint, i.priority, i.flow_key, 0, false
FROM instance i WHERE i.id = ANY($1::bigint[])

-- name: watched_roots
-- Those of the instances $1 of whose end somebody is to be told.
SELECT id FROM token WHERE id = ANY($1::bigint[]) AND id = instance_id AND watched

-- name: read_tokens
SELECT t.id, t.instance_id, t.seq, t.step, t.state, t.entered_at, t.parent_id, t.side, t.attempt, t.failures, t.expiries,
  t.pending, t.arrived, t.unfolded, t.claimed_by, t.claimed_at, t.lease_until, t.timeout_s, t.priority, t.queued,
  t.entry, t.waits_for, t.item, t.held, t.flow_key, t.run_queue, t.backoff_s, t.backoff_max_s
FROM token t WHERE t.id = ANY($1::bigint[]) AND t.id = t.instance_id
UNION ALL
SELECT t.id, t.instance_id, t.seq, t.step, t.state, t.entered_at, t.parent_id, t.side, t.attempt, t.failures, t.expiries,
  t.pending, t.arrived, t.unfolded, t.claimed_by, t.claimed_at, t.lease_until, t.timeout_s, t.priority, t.queued,
  t.entry, t.waits_for, t.item, t.held, t.flow_key, t.run_queue, t.backoff_s, t.backoff_max_s
FROM token t WHERE t.instance_id = ANY($1::bigint[]) AND t.id <> t.instance_id
ORDER BY 1

-- name: positions
SELECT nextval('step_seq') FROM generate_series(1, $1::int)

-- name: insert_instances
INSERT INTO instance (id, started_at, definition, vars, business_key, instance_key, parent_id, started_by, priority,
  flow_key)
SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::int[], $4::jsonb[], $5::text[], $6::text[], $7::bigint[], $8::text[],
  $9::smallint[], $10::text[])

-- name: end_instances
UPDATE instance i SET status = e.status, ended_at = e.ended_at, failure = e.failure, failure_code = e.failure_code,
  result = e.result
FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::timestamptz[], $5::text[], $6::jsonb[])
  AS e(id, status, failure, ended_at, failure_code, result)
CROSS JOIN LATERAL (SELECT o.ctid FROM instance o WHERE o.id = e.id OFFSET 0) old
WHERE i.ctid = old.ctid

-- name: reopen_instances
UPDATE instance SET status = 0 /* ACTIVE */, ended_at = NULL, failure = NULL, failure_code = NULL WHERE id = ANY($1::bigint[])

-- name: insert_abnormal_ends
-- $1 status $2 instance $3 job type $4 tokens; of failures: $5 definition $6 step $7 reason
INSERT INTO abnormal_end (status, instance_id, job_type, tokens, definition, step, cause)
SELECT a.status, a.instance_id, a.job_type, a.tokens, a.definition, a.step, failure_cause(a.reason)
FROM unnest($1::smallint[], $2::bigint[], $3::int[], $4::jsonb[], $5::int[], $6::text[], $7::text[])
  AS a(status, instance_id, job_type, tokens, definition, step, reason)

-- name: delete_abnormal_ends
DELETE FROM abnormal_end WHERE status = 2 /* FAILED */ AND instance_id = ANY($1::bigint[])

-- name: forget_notes
DELETE FROM job_note WHERE token_id = ANY($1::bigint[])

-- name: insert_tokens
INSERT INTO token (id, instance_id, seq, step, state, job_type, entered_at, parent_id, side, attempt, pending, arrived,
  unfolded, claimed_by, claimed_at, lease_until, timeout_s, entry, watched, item, priority, flow_key, backoff_s,
  backoff_max_s)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::smallint[], $6::int[],
  $7::timestamptz[], $8::bigint[], $9::boolean[], $10::int[], $11::smallint[], $12::smallint[], $13::smallint[],
  $14::text[], $15::timestamptz[], $16::timestamptz[], $17::float8[], $18::bigint[], $19::boolean[], $20::int[],
  $21::smallint[], $22::text[], $23::float8[], $24::float8[])

-- name: update_tokens
UPDATE token t SET seq = u.seq, step = u.step, state = u.state, job_type = u.job_type, entered_at = u.entered_at,
  parent_id = u.parent_id, attempt = u.attempt, failures = u.failures, expiries = u.expiries, pending = u.pending,
  arrived = u.arrived, unfolded = u.unfolded, claimed_by = u.claimed_by, claimed_at = u.claimed_at,
  lease_until = u.lease_until, timeout_s = u.timeout_s, queued = u.queued, entry = u.entry,
  waits_for = u.waits_for, item = u.item, held = u.held, priority = u.priority,
  flow_key = u.flow_key, backoff_s = u.backoff_s, backoff_max_s = u.backoff_max_s,
  migrated = CASE WHEN t.seq = u.seq THEN t.migrated END
FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::smallint[], $5::int[], $6::timestamptz[], $7::bigint[],
  $8::int[], $9::int[], $10::smallint[], $11::smallint[], $12::smallint[], $13::smallint[], $14::text[],
  $15::timestamptz[], $16::timestamptz[], $17::float8[], $18::bigint[], $19::bigint[], $20::text[], $21::int[],
  $22::int[], $23::smallint[], $24::text[], $25::float8[], $26::float8[])
  AS u(id, seq, step, state, job_type, entered_at, parent_id, attempt, failures, expiries, pending, arrived, unfolded,
       claimed_by, claimed_at, lease_until, timeout_s, queued, entry, waits_for, item, held, priority,
       flow_key, backoff_s, backoff_max_s)
CROSS JOIN LATERAL (SELECT o.ctid FROM token o WHERE o.id = u.id OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: set_turns
-- Of instances that were there before their definitions told it: as they begin late, or are taken up again.
UPDATE instance i SET priority = u.priority, flow_key = u.flow_key
FROM unnest($1::bigint[], $2::smallint[], $3::text[]) AS u(id, priority, flow_key)
CROSS JOIN LATERAL (SELECT o.ctid FROM instance o WHERE o.id = u.id OFFSET 0) old
WHERE i.ctid = old.ctid

-- name: instance_priority
-- Of the instance $1; null: 5.
SELECT priority FROM instance WHERE id = $1::bigint

-- name: set_instance_priority
UPDATE instance SET priority = $2::smallint WHERE id = $1::bigint

-- name: set_token_priorities
UPDATE token t SET priority = u.priority FROM unnest($1::bigint[], $2::smallint[]) AS u(id, priority)
CROSS JOIN LATERAL (SELECT o.ctid FROM token o WHERE o.id = u.id OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: delete_tokens
DELETE FROM token WHERE id = ANY($1::bigint[])

-- name: insert_ready
INSERT INTO ready (job_type, priority, seq, token_id)
SELECT * FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bigint[])

-- name: delete_ready
DELETE FROM ready r USING unnest($1::int[], $2::smallint[], $3::bigint[]) AS d(job_type, priority, seq)
CROSS JOIN LATERAL (
  SELECT o.ctid FROM ready o WHERE o.job_type = d.job_type AND o.priority = d.priority AND o.seq = d.seq OFFSET 0) old
WHERE r.ctid = old.ctid

-- name: insert_ready_flow
INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
SELECT * FROM unnest($1::int[], $2::smallint[], $3::text[], $4::bigint[], $5::bigint[])

-- name: delete_ready_flow
DELETE FROM ready_flow r USING unnest($1::int[], $2::smallint[], $3::text[], $4::bigint[]) AS d(job_type, priority, flow_key, seq)
CROSS JOIN LATERAL (
  SELECT o.ctid FROM ready_flow o
  WHERE o.job_type = d.job_type AND o.priority = d.priority AND o.flow_key = d.flow_key COLLATE "C" AND o.seq = d.seq OFFSET 0) old
WHERE r.ctid = old.ctid

-- name: insert_parked
INSERT INTO parked (instance_id, token_id) SELECT * FROM unnest($1::bigint[], $2::bigint[])

-- name: delete_parked
DELETE FROM parked p USING unnest($1::bigint[], $2::bigint[]) AS d(instance_id, token_id)
WHERE p.instance_id = d.instance_id AND p.token_id = d.token_id

-- name: forget_blocked
-- Runs that have ended whatever they did.
SELECT penstock_goes_on(id, false) FROM unnest($1::bigint[]) AS ended(id)

-- name: insert_history
INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker,
  reason, output, error_code, item, items)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[],
  $7::timestamptz[], $8::int[], $9::smallint[], $10::smallint[], $11::text[], $12::text[], $13::jsonb[], $14::text[], $15::int[], $16::jsonb[])
