-- Kafka mode: jobs that wait to be published, their hand-over to the relay, and the switch between the modes.
--
-- A row is live while its token stands on the row's execution, either READY before the row's attempt or DISPATCHED
-- with it. Anything else (completed, failed, cancelled, taken back by its last holder, dispatched anew) makes it void,
-- for good, as `attempt` and `seq` only grow; except that a job which its last holder took back by a heartbeat may lose
-- its lease again before the row is met: then that row and the new one are both live, and one attempt is published under
-- two ids. So whatever changes a token leaves the outbox alone, and void rows go when they are met. Lock order: token, then outbox; the statements here come from the outbox and take tokens with SKIP
-- LOCKED.

-- name: insert_outbox
-- $1 instance $2 token $3 seq $4 attempt $5 job type. In order of commit per instance, whose lock is held.
INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, attempt, job_type)
SELECT nextval('step_seq'), i.instance_id, i.token_id, i.seq, penstock_now(), i.attempt, i.job_type
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::int[], $5::int[]) AS i(instance_id, token_id, seq, attempt, job_type)

-- name: take_outbox
-- The oldest rows of each of the types $1 from id $5 on, at most $2 each, without the rows $3. Live ones become DISPATCHED until $4
-- seconds from now (again, when they were: then they were published before, or about to be) and come back with all that
-- the message needs; void ones are deleted. Then, per type, how many rows were looked at (`what` 2) and how many of
-- them were void (0): a look that is short of both found tokens that other transactions held, or had changed since the
-- snapshot (`version`, as in `claim`): their row may be gone. No join of two CTEs: it would be a nested loop over both.
WITH next AS MATERIALIZED (
  SELECT o.* FROM unnest($1::int[], $5::bigint[]) AS j(id, floor) CROSS JOIN LATERAL (
    SELECT o.*, o.ctid AS outbox_row FROM dispatch_outbox o WHERE o.job_type = j.id AND o.id >= j.floor AND o.id <> ALL ($3::bigint[])
    ORDER BY o.id LIMIT $2::int) o),
live AS MATERIALIZED (
  SELECT n.job_type, n.id, n.attempt, n.seq, n.created_at, t.ctid AS token_row, t.state AS old_state, t.xmin AS version
  FROM next n CROSS JOIN LATERAL (
    SELECT t.ctid, t.xmin, t.state FROM token t WHERE t.id = n.token_id AND t.seq = n.seq
      AND (t.state = 0 /* READY */ AND t.attempt = n.attempt - 1 OR t.state = 5 /* DISPATCHED */ AND t.attempt = n.attempt)
    FOR NO KEY UPDATE SKIP LOCKED) t),
void AS (
  DELETE FROM dispatch_outbox o USING next n
  WHERE o.ctid = n.outbox_row AND NOT EXISTS (
    SELECT FROM token t WHERE t.id = n.token_id AND t.seq = n.seq
      AND (t.state = 0 /* READY */ AND t.attempt = n.attempt - 1 OR t.state = 5 /* DISPATCHED */ AND t.attempt = n.attempt) OFFSET 0)
  RETURNING o.job_type, o.id),
taken AS (
  UPDATE token t SET state = 5 /* DISPATCHED */, attempt = l.attempt, claimed_by = NULL,
    claimed_at = CASE l.old_state WHEN 5 /* DISPATCHED */ THEN t.claimed_at ELSE penstock_now() END,
    lease_until = penstock_now() + $4::float8 * interval '1 s'
  FROM live l WHERE t.ctid = l.token_row AND t.seq = l.seq AND t.xmin = l.version
  RETURNING l.job_type, l.id, t.instance_id, t.id AS token_id, t.seq, coalesce(t.entry, t.seq) AS entry, t.attempt, t.step,
    t.failures, t.entered_at, t.parent_id, t.item, extract(epoch FROM penstock_now() - l.created_at)::float8 AS age_s)
SELECT 1 AS what, t.job_type, t.id, t.instance_id, t.token_id, t.seq, t.entry, t.attempt, t.step, t.failures, t.entered_at,
  t.age_s, i.definition, i.business_key,
  (i.vars || coalesce(i.overlay, '{}') || d.deltas || CASE WHEN t.item IS NULL THEN '{}'
  ELSE coalesce((SELECT v.vars FROM item_vars v
    WHERE v.instance_id = t.instance_id AND v.token_id = t.parent_id AND v.item = t.item), '{}') END)::text
FROM taken t CROSS JOIN LATERAL (SELECT * FROM instance i WHERE i.id = t.instance_id OFFSET 0) i
CROSS JOIN LATERAL (  -- no subselect: see `leased_jobs`
  SELECT jsonb_merge(h.output ORDER BY h.pos) AS deltas FROM history h
  WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL) d
UNION ALL
SELECT 2, job_type, count(*), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM next GROUP BY job_type
UNION ALL
SELECT 0, job_type, count(*), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM void GROUP BY job_type

-- name: delete_published
-- Rows that the broker has ($1 job type $2 id $3 step), with a record of each when $4. Sent again, it finds nothing.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::int[], $2::bigint[], $3::smallint[]) AS i(job_type, id, step)),
gone AS (
  DELETE FROM dispatch_outbox o USING item i CROSS JOIN LATERAL (
    SELECT q.ctid FROM dispatch_outbox q WHERE q.job_type = i.job_type AND q.id = i.id OFFSET 0) old
  WHERE o.ctid = old.ctid
  RETURNING o.id, o.instance_id, o.token_id, o.seq, o.attempt, i.step)
INSERT INTO audit (pos, at, instance_id, token_id, seq, step, kind, detail)
SELECT nextval('step_seq'), penstock_now(), instance_id, token_id, seq, step, 'DISPATCHED_VIA_BROKER',
  'attempt ' || attempt || ', dedup-id ' || to_hex(id)
FROM gone WHERE $4::boolean

-- name: outbox_types
-- The job types that have rows. One probe of the index for each type there is.
SELECT j.id FROM job_type j WHERE EXISTS (SELECT FROM dispatch_outbox o WHERE o.job_type = j.id)

-- name: outbox_depth
-- Waiting rows per job type: count (exact to 100,000) and the oldest one's age in seconds.
SELECT j.name, (SELECT count(*) FROM (SELECT 1 FROM dispatch_outbox o WHERE o.job_type = j.id LIMIT 100000) w),
  (SELECT extract(epoch FROM penstock_now() - o.created_at)::float8 FROM dispatch_outbox o
   WHERE o.job_type = j.id ORDER BY o.id LIMIT 1)
FROM job_type j

-- name: requeue_dispatched
-- As `expire`, before their deadline: of the types $1 (null: all) up to $3 jobs of tokens above $2, on the word of
-- $5, with a record of the batch when $6. Those that others hold at the moment are about to change: they are left. How many
-- came back, and the last token that was looked at. Walks over the tokens (132 ms for 1,000,000), for an operator only.
WITH due AS MATERIALIZED (
  SELECT t.id, t.seq, t.held FROM token t
  WHERE t.state = 5 /* DISPATCHED */ AND t.id > $2::bigint AND ($1::int[] IS NULL OR t.job_type = ANY ($1))
  ORDER BY t.id LIMIT $3::int FOR NO KEY UPDATE OF t SKIP LOCKED),
freed AS (
  UPDATE token t SET state = 0 /* READY */, queued = nextval('step_seq'), held = NULL FROM due d WHERE t.id = d.id AND t.seq = d.seq AND t.state = 5 /* DISPATCHED */
  RETURNING t.id, t.instance_id, t.seq, t.queued, t.job_type, t.priority, t.attempt, t.step, t.entered_at, t.claimed_at,
    $4::boolean AS to_outbox, 13 /* ATTEMPT_REDISPATCHED */ AS kind, NULL AS worker, 'brought back by ' || $5::text AS reason,
    d.held, t.flow_key),
told AS (
  INSERT INTO audit (pos, at, kind, actor, detail)
  SELECT nextval('step_seq'), penstock_now(), 'DISPATCHES_REQUEUED', $5::text, count(*) || ' jobs' FROM freed
  WHERE $6::boolean HAVING count(*) > 0),
-- steps of: put_back
SELECT (SELECT count(*) FROM freed), (SELECT max(id) FROM due)

-- name: queue_to_outbox
-- Kafka mode: up to $1 jobs that another mode left in the queue move to the outbox, oldest first, without those of the
-- tokens $2 and without durable runs, which executors take in every mode, and keyed types, which are admitted. How many rows of the queue went. No token is locked: if one changes meanwhile, its row is void.
WITH gone AS (
  DELETE FROM ready r WHERE r.ctid = ANY(ARRAY(
    SELECT ctid FROM ready WHERE token_id <> ALL ($2::bigint[])
      AND job_type <> ALL (ARRAY(SELECT j.id FROM job_type j WHERE j.keyed OR j.name LIKE 'code:%'))
    ORDER BY job_type, priority, seq LIMIT $1::int FOR UPDATE SKIP LOCKED))
  RETURNING r.job_type, r.priority, r.seq, r.token_id),
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), instance_id, token_id, seq, penstock_now(), job_type, attempt + 1 FROM (
    SELECT t.instance_id, g.token_id, t.seq, g.job_type, t.attempt FROM gone g CROSS JOIN LATERAL (
      SELECT * FROM token t WHERE t.id = g.token_id AND coalesce(t.queued, t.seq) = g.seq AND t.state = 0 /* READY */ OFFSET 0) t
    ORDER BY g.job_type, g.priority, g.seq) old)
SELECT count(*) FROM gone

-- name: outbox_to_queue
-- Polling mode: up to $1 rows that another mode left in the outbox, without those of the tokens $2, become queued jobs.
-- What was marked as dispatched but whose row is still there may or may not have been published; it is queued too. How
-- many rows went.
WITH next AS MATERIALIZED (
  SELECT o.*, o.ctid AS outbox_row FROM dispatch_outbox o WHERE o.token_id <> ALL ($2::bigint[])
  ORDER BY o.job_type, o.id LIMIT $1::int),
live AS MATERIALIZED (
  SELECT n.outbox_row, n.seq, t.id AS token_id, t.state, t.held FROM next n CROSS JOIN LATERAL (
    SELECT t.id, t.state, t.held FROM token t WHERE t.id = n.token_id AND t.seq = n.seq
      AND (t.state = 0 /* READY */ AND t.attempt = n.attempt - 1 OR t.state = 5 /* DISPATCHED */ AND t.attempt = n.attempt)
    FOR NO KEY UPDATE SKIP LOCKED) t),
void AS MATERIALIZED (
  SELECT n.outbox_row FROM next n WHERE NOT EXISTS (
    SELECT FROM token t WHERE t.id = n.token_id AND t.seq = n.seq
      AND (t.state = 0 /* READY */ AND t.attempt = n.attempt - 1 OR t.state = 5 /* DISPATCHED */ AND t.attempt = n.attempt) OFFSET 0)),
freed AS (
  -- READY ones as well: a relay that has seen the row finds the token changed (`take_outbox`). By id: those that changed
  -- since the snapshot have to be met, too.
  UPDATE token t SET state = 0 /* READY */, queued = nextval('step_seq'), held = NULL FROM live l WHERE t.id = l.token_id AND t.seq = l.seq
  RETURNING l.outbox_row, t.id, t.instance_id, t.seq, t.queued, t.job_type, t.priority, t.attempt, t.step, t.entered_at,
    t.claimed_at, false AS to_outbox, NULL AS worker, NULL AS reason, l.held, t.flow_key,
    -- the state under the lock: by the snapshot it may be READY still
    CASE l.state WHEN 5 /* DISPATCHED */ THEN 13 /* ATTEMPT_REDISPATCHED */ END AS kind),
gone AS (
  DELETE FROM dispatch_outbox o USING (SELECT outbox_row FROM freed UNION ALL SELECT outbox_row FROM void) g
  WHERE o.ctid = g.outbox_row RETURNING o.id),
-- steps of: put_back
SELECT count(*) FROM gone

-- name: first_to_outbox
-- The token whose job `queue_to_outbox` moves first, without those $1.
SELECT token_id FROM ready WHERE token_id <> ALL ($1::bigint[]) AND job_type <> ALL (ARRAY(SELECT j.id FROM job_type j WHERE j.keyed OR j.name LIKE 'code:%'))
ORDER BY job_type, priority, seq LIMIT 1

-- name: first_to_queue
-- The token whose row `outbox_to_queue` moves first, without those $1.
SELECT token_id FROM dispatch_outbox WHERE token_id <> ALL ($1::bigint[]) ORDER BY job_type, id LIMIT 1

-- name: first_outgoing
-- The row that `take_outbox` takes first of the type $1 from id $2 on, without the rows $3.
SELECT id FROM dispatch_outbox WHERE job_type = $1::int AND id >= $2::bigint AND id <> ALL ($3::bigint[])
ORDER BY id LIMIT 1

-- name: lock_migration
-- One engine at a time moves what another mode left.
SELECT pg_advisory_xact_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -4)

-- name: outbox_left
-- Whether anything of the other mode is left: in the outbox ($1), else in the queue.
SELECT CASE WHEN $1::boolean THEN EXISTS (SELECT FROM dispatch_outbox)
  ELSE EXISTS (SELECT FROM ready WHERE job_type <> ALL (ARRAY(SELECT j.id FROM job_type j WHERE j.keyed OR j.name LIKE 'code:%'))) END

-- name: dispatched_types
-- The job types that need a topic: of the newest and the active versions, and of open jobs. Walks over all tokens, once at start.
SELECT DISTINCT j.type FROM (
  (SELECT DISTINCT ON (id) content FROM definition WHERE NOT code ORDER BY id, version DESC)
  UNION ALL SELECT d.content FROM active_version a JOIN definition d USING (key)) latest
CROSS JOIN LATERAL jsonb_array_elements(latest.content::jsonb -> 'steps') AS s(step)
CROSS JOIN LATERAL (VALUES
  (CASE WHEN s.step ->> 'type' = 'SERVICE_TASK' THEN s.step ->> 'jobType' END),
  (CASE WHEN s.step ->> 'type' IN ('SERVICE_TASK', 'CALL_ACTIVITY') THEN s.step -> 'compensation' ->> 'jobType' END)) AS j(type)
WHERE j.type IS NOT NULL
UNION
SELECT j.name FROM job_type j WHERE j.name NOT LIKE 'code:%' AND j.id IN (SELECT job_type FROM token WHERE state IN (0 /* READY */, 1 /* LOCKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */))

-- name: lead
-- The session lock by which one relay is elected. 1885697139 is 'pens'; engine numbers have 0 to 1023, the retention -2.
SELECT pg_try_advisory_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -3)

-- name: end_idle_session
-- The server ends this session, and with it the lock, when nothing was heard of it for so long ($1, as 6000ms): a
-- leader that is stopped or cut off makes room.
SELECT set_config('idle_session_timeout', $1::text, false)

-- name: still_leading
-- Whether the session's server takes writes: a lock on a primary that was replaced elects nobody.
SELECT current_setting('transaction_read_only') = 'off'

-- name: switch_mode
-- Records the dispatch mode of the engines on this database; the mode before, when it was another.
WITH old AS MATERIALIZED (SELECT value FROM setting WHERE name = 'dispatch_mode'),
kept AS (
  INSERT INTO setting (name, value) VALUES ('dispatch_mode', $1::text)
  ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE setting.value <> excluded.value)
SELECT value FROM old WHERE value <> $1::text

-- name: dispatch_mode
SELECT value FROM setting WHERE name = 'dispatch_mode'
