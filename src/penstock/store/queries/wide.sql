-- The wide lane: lock, read, let `core.advance` decide, write. One transaction: `begin` to `read_tokens` in one round
-- trip, then the writes and COMMIT in a second one. Everything written here is under the locks taken first, so the
-- writes need no fences, and rows are written by the `ctid` under which they were found (`jobs.sql` says why).

-- name: begin
BEGIN

-- name: commit
COMMIT

-- name: lock_roots
-- The root token is an instance's lock: it exists as long as the instance is active.
SELECT id FROM token WHERE id = ANY($1::bigint[]) AND id = instance_id ORDER BY id FOR NO KEY UPDATE

-- name: lock_ended
-- The row of an instance that has no root token any more (failed ones can be retried). $1 instances.
SELECT instance_id, tokens::text FROM abnormal_end WHERE status = 2 /* FAILED */ AND instance_id = ANY($1::bigint[]) ORDER BY instance_id FOR UPDATE

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
SELECT id, definition, status, failure, instance_key FROM instance WHERE id = ANY($1::bigint[])

-- name: read_tokens
SELECT t.id, t.instance_id, t.seq, t.step, t.state, t.entered_at, t.parent_id, t.side, t.attempt, t.failures, t.expiries,
  t.pending, t.arrived, t.unfolded, t.claimed_by, t.claimed_at, t.lease_until, t.timeout_s, t.priority, t.queued,
  t.entry
FROM token t WHERE t.id = ANY($1::bigint[]) AND t.id = t.instance_id
UNION ALL
SELECT t.id, t.instance_id, t.seq, t.step, t.state, t.entered_at, t.parent_id, t.side, t.attempt, t.failures, t.expiries,
  t.pending, t.arrived, t.unfolded, t.claimed_by, t.claimed_at, t.lease_until, t.timeout_s, t.priority, t.queued,
  t.entry
FROM token t WHERE t.instance_id = ANY($1::bigint[]) AND t.id <> t.instance_id
ORDER BY 1

-- name: read_signals
-- The oldest $2 of each instance of $1.
SELECT s.id, s.instance_id, s.step, s.output::text FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
  SELECT * FROM buffered_signal b WHERE b.instance_id = i.id ORDER BY b.id LIMIT $2::int) s ORDER BY s.id

-- name: read_many_signals
-- The oldest $2 for each WAIT of each instance of $1, and for each instance how many there are in all, and their bytes:
-- where `read_signals` did not see all, those of one WAIT may have hidden the others'.
SELECT id, instance_id, step, output, all_count, all_bytes FROM (
  SELECT id, instance_id, step, output::text, row_number() OVER (PARTITION BY instance_id, step ORDER BY id) AS place,
    count(*) OVER (PARTITION BY instance_id) AS all_count,
    sum(octet_length(output::text)) OVER (PARTITION BY instance_id) AS all_bytes
  FROM buffered_signal WHERE instance_id = ANY($1::bigint[])) s
WHERE place <= $2::int ORDER BY id

-- name: armed
-- Which of the timers ($1 token $2 seq $3 index) are still there and due. A retry's may have been armed anew meanwhile.
SELECT t.* FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS i(token_id, seq, index) CROSS JOIN LATERAL (
  SELECT t.token_id, t.seq, t.index FROM timer t
  WHERE t.token_id = i.token_id AND t.seq = i.seq AND t.index = i.index AND t.fire_at <= penstock_now() OFFSET 0) t

-- name: positions
SELECT nextval('step_seq') FROM generate_series(1, $1::int)

-- name: transaction_id
-- The transaction's id, by which its COMMIT can be looked up when the answer was lost, and the time after its locks.
SELECT pg_current_xact_id()::text, penstock_now()

-- name: transaction_status
-- Of an id, which after a crash may be another transaction's, or none's yet (an error then): see store/commits.py.
SELECT pg_xact_status($1::text::xid8)

-- name: history_written
-- The very row ($1 instance $2 position $3 token $4 seq), by its time ($5): after a crash positions are given again.
SELECT 1 FROM history
WHERE instance_id = $1::bigint AND pos = $2::bigint AND token_id = $3::bigint AND seq = $4::bigint
  AND ended_at = $5::timestamptz

-- name: now
SELECT penstock_now()

-- name: insert_instances
INSERT INTO instance (id, started_at, definition, vars, business_key, instance_key, parent_id)
SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::int[], $4::jsonb[], $5::text[], $6::text[], $7::bigint[])

-- name: end_instances
UPDATE instance i SET status = e.status, ended_at = e.ended_at, failure = e.failure
FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::timestamptz[]) AS e(id, status, failure, ended_at)
CROSS JOIN LATERAL (SELECT o.ctid FROM instance o WHERE o.id = e.id OFFSET 0) old
WHERE i.ctid = old.ctid

-- name: reopen_instances
UPDATE instance SET status = 0 /* ACTIVE */, ended_at = NULL, failure = NULL WHERE id = ANY($1::bigint[])

-- name: insert_abnormal_ends
INSERT INTO abnormal_end (status, instance_id, job_type, tokens)
SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::int[], $4::jsonb[])

-- name: delete_abnormal_ends
DELETE FROM abnormal_end WHERE status = 2 /* FAILED */ AND instance_id = ANY($1::bigint[])

-- name: forget_keys
DELETE FROM instance_key WHERE instance_id = ANY($1::bigint[]) AND NOT kept

-- name: forget_signals
DELETE FROM buffered_signal WHERE instance_id = ANY($1::bigint[])

-- name: forget_notes
DELETE FROM job_note WHERE token_id = ANY($1::bigint[])

-- name: insert_tokens
INSERT INTO token (id, instance_id, seq, step, state, job_type, entered_at, parent_id, side, attempt, pending, arrived,
  unfolded, claimed_by, claimed_at, lease_until, timeout_s, entry)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::smallint[], $6::int[],
  $7::timestamptz[], $8::bigint[], $9::boolean[], $10::int[], $11::smallint[], $12::smallint[], $13::smallint[],
  $14::text[], $15::timestamptz[], $16::timestamptz[], $17::float8[], $18::bigint[])

-- name: update_tokens
UPDATE token t SET seq = u.seq, step = u.step, state = u.state, job_type = u.job_type, entered_at = u.entered_at,
  parent_id = u.parent_id, attempt = u.attempt, failures = u.failures, expiries = u.expiries, pending = u.pending,
  arrived = u.arrived, unfolded = u.unfolded, claimed_by = u.claimed_by, claimed_at = u.claimed_at,
  lease_until = u.lease_until, timeout_s = u.timeout_s, queued = u.queued, entry = u.entry
FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::smallint[], $5::int[], $6::timestamptz[], $7::bigint[],
  $8::int[], $9::int[], $10::smallint[], $11::smallint[], $12::smallint[], $13::smallint[], $14::text[],
  $15::timestamptz[], $16::timestamptz[], $17::float8[], $18::bigint[], $19::bigint[])
  AS u(id, seq, step, state, job_type, entered_at, parent_id, attempt, failures, expiries, pending, arrived, unfolded,
       claimed_by, claimed_at, lease_until, timeout_s, queued, entry)
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

-- name: insert_parked
INSERT INTO parked (instance_id, token_id) SELECT * FROM unnest($1::bigint[], $2::bigint[])

-- name: delete_parked
DELETE FROM parked p USING unnest($1::bigint[], $2::bigint[]) AS d(instance_id, token_id)
WHERE p.instance_id = d.instance_id AND p.token_id = d.token_id

-- name: insert_timers
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT * FROM unnest($1::timestamptz[], $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[])

-- name: delete_timers
-- All timers of executions ($1 token $2 seq).
DELETE FROM timer t USING unnest($1::bigint[], $2::bigint[]) AS d(token_id, seq)
CROSS JOIN LATERAL (SELECT o.ctid FROM timer o WHERE o.token_id = d.token_id AND o.seq = d.seq OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: delete_fired
-- Single timers ($1 token $2 seq $3 index).
DELETE FROM timer t USING unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS d(token_id, seq, index)
CROSS JOIN LATERAL (
  SELECT o.ctid FROM timer o WHERE o.token_id = d.token_id AND o.seq = d.seq AND o.index = d.index OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: insert_history
INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker,
  reason, output)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[],
  $7::timestamptz[], $8::int[], $9::smallint[], $10::smallint[], $11::text[], $12::text[], $13::jsonb[])

-- name: insert_audit
INSERT INTO audit (pos, at, instance_id, token_id, step, kind, actor, detail)
SELECT nextval('step_seq'), * FROM unnest($1::timestamptz[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[],
  $6::text[], $7::text[])

-- name: delete_signals
DELETE FROM buffered_signal WHERE id = ANY($1::bigint[])

-- name: insert_signal
-- Keeps a signal for a wait that is not open yet ($1 instance $2 step $3 variables), with a record of it when $4 ($5 actor
-- $6 the sender's id of it).
WITH kept AS (
  INSERT INTO buffered_signal (id, instance_id, step, received_at, output)
  VALUES (nextval('step_seq'), $1::bigint, $2::smallint, penstock_now(), $3::jsonb)
  RETURNING instance_id, step, received_at)
INSERT INTO audit (pos, at, instance_id, step, kind, actor, detail)
SELECT nextval('step_seq'), received_at, instance_id, step, 'SIGNAL_KEPT', $5::text, $6::text FROM kept WHERE $4::boolean

-- name: fold
-- Moves the deltas of instances $1 into `overlay`, under the locks of all their tokens: nobody is writing one now. Those
-- whose variables would have more than $2 bytes (as jsonb) are left as they are, and come back.
WITH merged AS MATERIALIZED (
  SELECT j.id, j.ctid AS place, coalesce(j.overlay, '{}') || f.merged AS overlay, f.pos,
    pg_column_size(j.vars || coalesce(j.overlay, '{}') || f.merged) AS bytes
  FROM instance j CROSS JOIN LATERAL (
    SELECT jsonb_merge(h.output ORDER BY h.pos) AS merged, max(h.pos) AS pos FROM history h
    WHERE h.instance_id = j.id AND h.pos > j.folded_pos AND h.output IS NOT NULL) f
  WHERE j.id = ANY($1::bigint[]) AND f.pos IS NOT NULL),
folded AS (
  UPDATE instance i SET overlay = m.overlay, folded_pos = m.pos FROM merged m WHERE i.ctid = m.place AND m.bytes <= $2::int)
SELECT id FROM merged WHERE bytes > $2::int

-- name: count_unfolded
-- What the tokens of instances $1 wrote since the last fold: $2.
UPDATE token SET unfolded = $2::smallint
WHERE id = ANY($1::bigint[]) OR (instance_id = ANY($1::bigint[]) AND id <> instance_id)

-- name: due_timers
-- What is due now, oldest first, and how long until the first that is not; $1 limit $2 negative indexes that this engine
-- knows (the others are a newer one's). One row of those that are not due: the first $1 of a million armed ones were 504
-- blocks a look.
WITH clock AS MATERIALIZED (SELECT penstock_now() AS now)
SELECT token_id, seq, index, instance_id, extract(epoch FROM fire_at - (SELECT now FROM clock))::float8 AS left_s FROM (
  (SELECT * FROM timer WHERE fire_at <= (SELECT now FROM clock) AND (index >= 0 OR index = ANY($2::smallint[]))
   ORDER BY fire_at LIMIT $1::int)
  UNION ALL
  (SELECT * FROM timer WHERE fire_at > (SELECT now FROM clock) AND (index >= 0 OR index = ANY($2::smallint[]))
   ORDER BY fire_at LIMIT 1)) next
ORDER BY left_s LIMIT $1::int

-- name: claim_idempotency
-- Takes a key for this transaction, or nothing when it was taken before ($1 scope $2 key $3 hash $4 instance).
-- Two at once: the second waits here for the first one's commit.
INSERT INTO idempotency (scope, key, request_hash, instance_id, created_at)
VALUES ($1::text, $2::text, $3::bytea, $4::bigint, penstock_now()) ON CONFLICT (scope, key) DO NOTHING RETURNING 1

-- name: find_idempotency
SELECT request_hash, instance_id, answer FROM idempotency WHERE scope = $1::text AND key = $2::text

-- name: answer_idempotency
UPDATE idempotency SET answer = $3::bytea WHERE scope = $1::text AND key = $2::text

-- name: purge_idempotency
-- Forgets up to $2 keys that are older than $1 hours, oldest first; how many went. The time is asked for once, apart: a
-- volatile function in the condition itself can't use the index, and every key there is was read at each look.
WITH gone AS (
  DELETE FROM idempotency WHERE ctid IN (
    SELECT ctid FROM idempotency WHERE created_at < (SELECT penstock_now()) - $1::float8 * interval '1 hour'
    ORDER BY created_at LIMIT $2::int FOR UPDATE SKIP LOCKED)
  RETURNING 1)
SELECT count(*) FROM gone

-- name: reclaim_instance_key
-- Takes the key of a failed instance $1 again, which is about to be reopened; nothing when it has none or it is taken.
INSERT INTO instance_key (definition_id, key, instance_id)
SELECT d.id, i.instance_key, i.id FROM instance i JOIN definition d ON d.key = i.definition
JOIN abnormal_end e ON e.status = 2 /* FAILED */ AND e.instance_id = i.id AND e.tokens IS NOT NULL
WHERE i.id = $1::bigint AND i.status = 2 /* FAILED */ AND i.instance_key IS NOT NULL
ON CONFLICT (definition_id, key) DO NOTHING

-- name: other_holder
-- The instance that holds the instance key of instance $1 in its place.
SELECT k.instance_id FROM instance i JOIN definition d ON d.key = i.definition
JOIN instance_key k ON k.definition_id = d.id AND k.key = i.instance_key
WHERE i.id = $1::bigint AND k.instance_id <> i.id

-- name: find_instance_key
SELECT instance_id FROM instance_key WHERE definition_id = $1::text AND key = $2::text

-- name: signals_of
SELECT id, step, received_at, output::text FROM buffered_signal WHERE instance_id = $1::bigint ORDER BY id

-- name: one_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: audit_of
SELECT at, kind, step, actor, detail FROM audit WHERE instance_id = $1::bigint ORDER BY pos LIMIT 100000

-- name: claim_instance_key
-- Takes a key ($1 definition id $2 key) for the instance $3, to be kept after its end when $4; who has it then. Nothing
-- when another instance has it already, unless that is to keep it from now on.
INSERT INTO instance_key (definition_id, key, instance_id, kept) VALUES ($1::text, $2::text, $3::bigint, $4::boolean)
ON CONFLICT (definition_id, key) DO UPDATE SET kept = true WHERE excluded.kept AND NOT instance_key.kept
RETURNING instance_id

-- name: find_signal_id
-- What a signal that came with the id $2 to the instance $1 asked for.
SELECT request_hash FROM signal_id WHERE instance_id = $1::bigint AND id = $2::text

-- name: note_signal_id
INSERT INTO signal_id (instance_id, id, request_hash) VALUES ($1::bigint, $2::text, $3::bytea)
