-- Instances that go on in another version of their definition, under the locks of all their tokens. Step numbers belong to a
-- version: what is open gets those of the new one here, what is closed is read with the old one (`instance_version`).

-- name: migrate_tokens
-- $1 token $2 step $3 job type $4 seconds of an attempt. What engines remember of a token is of the version before from now on:
-- `complete_fast` refuses it until its next step.
UPDATE token t SET step = u.step, job_type = u.job_type, timeout_s = u.timeout_s, migrated = true
FROM unnest($1::bigint[], $2::smallint[], $3::int[], $4::float8[]) AS u(id, step, job_type, timeout_s)
CROSS JOIN LATERAL (SELECT o.ctid FROM token o WHERE o.id = u.id OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: requeue_migrated
-- Jobs of tokens $1 that wait, whose rows in the queue are gone: each gets a place of its own there, so that a claim which saw the old
-- one takes no step of one version with the definition of the other. $2: whether its type is another one, and its last holder nobody; $3 among which keys it waits.
WITH moved AS (
  UPDATE token t SET queued = nextval('step_seq'), flow_key = u.flow_key,
    claimed_by = CASE WHEN NOT u.retyped THEN t.claimed_by END
  FROM unnest($1::bigint[], $2::boolean[], $3::text[]) AS u(id, retyped, flow_key)
  CROSS JOIN LATERAL (SELECT o.ctid FROM token o WHERE o.id = u.id OFFSET 0) old
  WHERE t.ctid = old.ctid
  RETURNING t.job_type, t.priority, t.flow_key, t.queued, t.id),
plain AS (
  INSERT INTO ready (job_type, priority, seq, token_id) SELECT job_type, priority, queued, id FROM moved WHERE flow_key IS NULL)
INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id) SELECT * FROM moved WHERE flow_key IS NOT NULL

-- name: outdate_dispatch
-- In Kafka mode, jobs of tokens $1 whose type is another one: the row in the outbox is void, as one attempt was passed over.
UPDATE token t SET attempt = t.attempt + 1, claimed_by = NULL FROM unnest($1::bigint[]) AS u(id)
CROSS JOIN LATERAL (SELECT o.ctid FROM token o WHERE o.id = u.id OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: boundary_timers
-- Of the tokens $1.
SELECT t.fire_at, t.token_id, t.seq, t.index FROM unnest($1::bigint[]) AS u(id) CROSS JOIN LATERAL (
  SELECT * FROM timer t WHERE t.token_id = u.id AND t.index >= 0 OFFSET 0) t

-- name: delete_boundary_timers
-- Of the tokens $1.
DELETE FROM timer t USING unnest($1::bigint[]) AS u(id)
CROSS JOIN LATERAL (SELECT o.ctid FROM timer o WHERE o.token_id = u.id AND o.index >= 0 OFFSET 0) old
WHERE t.ctid = old.ctid

-- name: migrate_tasks
-- User tasks ($1 for whom they were $2 seq) as they stand in the inbox: $3 for whom $4 step $5 definition.
UPDATE open_task o SET job_type = u.job_type, step = u.step, definition = $5::int
FROM unnest($1::int[], $2::bigint[], $3::int[], $4::smallint[]) AS u(old_type, seq, job_type, step)
CROSS JOIN LATERAL (SELECT p.ctid FROM open_task p WHERE p.job_type = u.old_type AND p.seq = u.seq OFFSET 0) old
WHERE o.ctid = old.ctid

-- name: signal_steps
-- For which steps of the instances $1 signals are kept.
SELECT DISTINCT instance_id, step FROM buffered_signal WHERE instance_id = ANY($1::bigint[])

-- name: migrate_signals
-- Those of the instance $1 for steps $2 are for steps $3.
UPDATE buffered_signal s SET step = u.step FROM unnest($2::smallint[], $3::smallint[]) AS u(before, step)
WHERE s.instance_id = $1::bigint AND s.step = u.before

-- name: migrate_failure
-- What the failure of the instance $1 closed is of the definition $2: $3 the step that failed $4 tokens.
UPDATE abnormal_end SET definition = $2::int, step = $3::text, tokens = $4::jsonb
WHERE status = 2 /* FAILED */ AND instance_id = $1::bigint

-- name: migrate_instance
UPDATE instance SET definition = $2::int WHERE id = $1::bigint

-- name: note_first_version
-- All rows of the instance $1 are of the definition $2, unless that is known better.
INSERT INTO instance_version (instance_id, from_pos, definition) VALUES ($1::bigint, 0, $2::int) ON CONFLICT DO NOTHING

-- name: renumber_versions
-- By the numbers of the version of now ($2) those of the next one, for all that the instance $1 had.
UPDATE instance_version v SET steps = CASE WHEN v.steps IS NULL THEN $2::smallint[] ELSE ARRAY(
  SELECT CASE WHEN s.step < 0 THEN s.step ELSE ($2::smallint[])[s.step + 1] END
  FROM unnest(v.steps) WITH ORDINALITY AS s(step, place) ORDER BY s.place) END
WHERE v.instance_id = $1::bigint

-- name: note_version
-- The rows of the instance $1 from now on are of the definition $2.
INSERT INTO instance_version (instance_id, from_pos, definition) VALUES ($1::bigint, nextval('step_seq'), $2::int)

-- name: migrate_undoing
-- The step at which the instance $1 failed, before it is undone: by its number its number in the new version ($2).
UPDATE undoing SET step = nullif(($2::smallint[])[step + 1], -1) WHERE instance_id = $1::bigint AND step IS NOT NULL

-- name: completed_steps
-- Which of the steps $2 the instance $1 has completed.
SELECT s.step FROM unnest($2::smallint[]) AS s(step) WHERE EXISTS (
  SELECT FROM history h WHERE h.instance_id = $1::bigint AND h.kind = 1 /* COMPLETED */ AND step_now(h.instance_id, h.pos, h.step) = s.step)

-- name: flow_key_of
SELECT flow_key FROM instance WHERE id = $1::bigint

-- name: failures_of
-- What the failures of instances $1 closed, and at which step they failed. No locks.
SELECT instance_id, tokens::text, step FROM abnormal_end WHERE status = 2 /* FAILED */ AND instance_id = ANY($1::bigint[])

-- name: remove_versions
DELETE FROM instance_version WHERE instance_id = ANY($1::bigint[])
