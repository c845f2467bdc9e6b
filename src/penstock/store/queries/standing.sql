-- Where an instance stands and what it did last: for people who look at it. Each is bounded, however long the instance runs.

-- name: standing_tokens
-- The open executions of the instance $1, in order of entry, at most $2; with the reason why a job's last attempt ended, if that is
-- among the last 200 rows of history, and the key of the message that it waits for.
SELECT t.id, t.seq, t.step, t.state, t.entered_at, t.attempt, t.failures, t.claimed_by, t.claimed_at, t.lease_until,
  CASE WHEN t.failures > 0 OR t.expiries > 0 THEN (
    SELECT h.reason FROM (
      SELECT h.token_id, h.seq, h.reason, h.pos FROM history h
      WHERE h.instance_id = $1::bigint AND h.pos > t.seq ORDER BY h.pos DESC LIMIT 200) h
    WHERE h.token_id = t.id AND h.seq = t.seq ORDER BY h.pos DESC LIMIT 1) END,
  (SELECT n.progress::text FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq),
  (SELECT u.key FROM subscription u WHERE u.token_id = t.id AND u.seq = t.seq)
FROM token t
WHERE (t.id = $1::bigint OR (t.instance_id = $1::bigint AND t.id <> t.instance_id))
  AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */, 8 /* DELAYED */)
ORDER BY t.seq LIMIT $2::int

-- name: standing_dead_end
-- Whether all tokens of the instance $1 have ended: nothing of it goes on by itself.
SELECT NOT EXISTS (
  SELECT FROM token t
  WHERE (t.id = $1::bigint OR (t.instance_id = $1::bigint AND t.id <> t.instance_id)) AND t.state <> 6 /* ENDED */)

-- name: standing_timers
-- Timers of the tokens $1: (token, index, due), of their present executions $2.
SELECT r.token_id, r.index, r.fire_at FROM unnest($1::bigint[], $2::bigint[]) AS t(id, seq) CROSS JOIN LATERAL (
  SELECT r.token_id, r.index, r.fire_at FROM timer r WHERE r.token_id = t.id AND r.seq = t.seq OFFSET 0) r
ORDER BY r.fire_at LIMIT 200

-- name: standing_failure
-- The failure that ended the instance $1, if it is among its last 1,000 rows: (step, attempt, reason, when, position).
SELECT h.step, h.attempt, h.reason, h.ended_at, h.pos FROM (
  SELECT h.step, h.kind, h.attempt, h.reason, h.ended_at, h.pos FROM history h
  WHERE h.instance_id = $1::bigint ORDER BY h.pos DESC LIMIT 1000) h
WHERE h.kind = 2 /* FAILED */ ORDER BY h.pos DESC LIMIT 1

-- name: standing_signals
-- Signals that are kept for the instance $1, to 1,000.
SELECT count(*) FROM (SELECT FROM buffered_signal WHERE instance_id = $1::bigint LIMIT 1000) s

-- name: passages
-- The $2 executions of the instance $1 that closed last, and those that are open: (token, entered at, step, kind, closed at). An
-- END after the step that led to it has that row's position as both.
(SELECT h.token_id, x.seq, x.step, h.kind, h.pos FROM (
   SELECT * FROM history h WHERE h.instance_id = $1::bigint AND h.kind < 10 ORDER BY h.pos DESC LIMIT $2::int) h
 CROSS JOIN LATERAL (SELECT h.seq, h.step UNION ALL SELECT h.pos, h.end_step WHERE h.end_step IS NOT NULL) x)
UNION ALL
(SELECT t.id, t.seq, t.step, NULL, NULL FROM token t
 WHERE (t.id = $1::bigint OR (t.instance_id = $1::bigint AND t.id <> t.instance_id))
   AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
 ORDER BY t.seq LIMIT 200)

-- name: children
-- The newest $2 instances that the instance $1 has started.
SELECT id FROM instance WHERE parent_id = $1::bigint ORDER BY id DESC LIMIT $2::int

-- name: history_open
-- The open executions of the instance $1 as rows of history, and the attempts that ended of them, of the last 200 rows.
WITH open AS MATERIALIZED (
  SELECT t.* FROM token t
  WHERE (t.id = $1::bigint OR (t.instance_id = $1::bigint AND t.id <> t.instance_id))
    AND (t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
      OR t.state = 3 /* FORKED */ AND EXISTS (SELECT FROM map_state m WHERE m.instance_id = $1::bigint AND m.token_id = t.id))
  ORDER BY t.seq LIMIT 200)
SELECT t.id, t.seq, t.step, NULL, t.entered_at, NULL, CASE WHEN t.state IN (1 /* LOCKED */, 5 /* DISPATCHED */) THEN t.claimed_at END,
  t.attempt, t.claimed_by, NULL, NULL, NULL, NULL, NULL, (SELECT c.id FROM called c WHERE c.token_id = t.id AND c.seq = t.seq),
  t.item, (SELECT jsonb_build_object('total', m.total, 'completed', m.done, 'failed', m.failed, 'running', t.pending - t.arrived)::text
    FROM map_state m WHERE t.state = 3 /* FORKED */ AND m.instance_id = $1::bigint AND m.token_id = t.id)
FROM open t
UNION ALL
SELECT h.token_id, h.seq, h.step, h.kind, h.started_at, h.ended_at, h.claimed_at, h.attempt, h.worker, h.reason, h.pos,
  h.error_code, NULL, NULL, NULL, h.item, NULL
FROM open t CROSS JOIN LATERAL (
  SELECT h.* FROM history h WHERE h.instance_id = $1::bigint AND h.pos > t.seq ORDER BY h.pos DESC LIMIT 200) h
WHERE t.attempt > 0 AND h.token_id = t.id AND h.seq = t.seq AND h.kind >= 10

-- name: history_slice
-- The $3 executions of the instance $1 that closed last before the position $2, and the attempts that they had. $4: with what
-- they wrote, if that has at most $5 bytes, and its size.
WITH closed AS MATERIALIZED (
  SELECT h.* FROM history h WHERE h.instance_id = $1::bigint AND h.pos < $2::bigint AND h.kind < 10
  ORDER BY h.pos DESC LIMIT $3::int)
SELECT h.token_id, x.seq, x.step, h.kind, x.started_at, h.ended_at, x.claimed_at, x.attempt, x.worker, h.reason, h.pos,
  CASE WHEN x.seq = h.seq THEN h.error_code END,
  CASE WHEN $4::boolean AND x.seq = h.seq AND pg_column_size(h.output) <= $5::int AND octet_length(h.output::text) <= $5::int
    THEN h.output::text END,
  CASE WHEN $4::boolean AND x.seq = h.seq THEN pg_column_size(h.output) END,
  (SELECT c.id FROM called c WHERE c.token_id = h.token_id AND c.seq = x.seq),
  CASE WHEN x.seq = h.seq THEN h.item END, CASE WHEN x.seq = h.seq THEN h.items::text END
FROM closed h CROSS JOIN LATERAL (
  SELECT h.seq, h.step, h.started_at, h.claimed_at, h.attempt, h.worker
  UNION ALL
  SELECT h.pos, h.end_step, h.ended_at, NULL, 0, NULL WHERE h.end_step IS NOT NULL) x
UNION ALL
SELECT a.token_id, a.seq, a.step, a.kind, a.started_at, a.ended_at, a.claimed_at, a.attempt, a.worker, a.reason, a.pos,
  a.error_code, NULL, NULL, NULL, a.item, NULL
FROM closed c CROSS JOIN LATERAL (
  SELECT h.* FROM history h WHERE h.instance_id = $1::bigint AND h.pos > c.seq AND h.pos < c.pos ORDER BY h.pos DESC LIMIT 200) a
WHERE (c.attempt > 1 OR c.kind <> 1 /* COMPLETED */) AND a.token_id = c.token_id AND a.seq = c.seq AND a.kind >= 10

-- name: closed_at
-- The position at which the execution ($2 token, $3 seq) of the instance $1 closed, and its step. Of an END that is the row which
-- holds it.
SELECT h.pos, CASE h.pos WHEN $3::bigint THEN h.end_step ELSE h.step END FROM (
  (SELECT h.pos, h.step, h.end_step FROM history h
   WHERE h.instance_id = $1::bigint AND h.pos > $3::bigint AND h.token_id = $2::bigint AND h.seq = $3::bigint AND h.kind < 10
   ORDER BY h.pos LIMIT 1)
  UNION ALL
  (SELECT h.pos, h.step, h.end_step FROM history h
   WHERE h.instance_id = $1::bigint AND h.pos = $3::bigint AND h.end_step IS NOT NULL)) h
LIMIT 1

-- name: variables_as_of
-- The variables of the instance $1 as they were after the position $2, if they have at most $3 bytes, and how many they have; and
-- which of them the row at that position wrote. An edit by hand has folded what was written before it.
SELECT CASE WHEN octet_length(w.vars) <= $3::bigint THEN w.vars END, octet_length(w.vars), ARRAY(
  SELECT k FROM history h CROSS JOIN LATERAL jsonb_object_keys(h.output) k
  WHERE h.instance_id = $1::bigint AND h.pos = $2::bigint AND h.output IS NOT NULL ORDER BY k)
FROM (
  SELECT (coalesce(later.before, i.vars) || coalesce((
      SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
      WHERE h.instance_id = i.id AND h.pos > coalesce(earlier.pos, 0) AND h.pos <= $2::bigint AND h.output IS NOT NULL), '{}'))::text AS vars
  FROM instance i
  LEFT JOIN LATERAL (
    SELECT e.before FROM variables_edit e WHERE e.instance_id = i.id AND e.pos > $2::bigint ORDER BY e.pos LIMIT 1) later ON true
  LEFT JOIN LATERAL (
    SELECT e.pos FROM variables_edit e WHERE e.instance_id = i.id AND e.pos <= $2::bigint ORDER BY e.pos DESC LIMIT 1) earlier ON true
  WHERE i.id = $1::bigint OFFSET 0) w
