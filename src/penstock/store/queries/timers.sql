-- Timers: due ones are found by time; all are armed and disarmed under the lock of their instance.

-- name: armed
-- Which of the timers ($1 token $2 seq $3 index) are still there and due. A retry's may have been armed anew meanwhile.
SELECT t.* FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS i(token_id, seq, index) CROSS JOIN LATERAL (
  SELECT t.token_id, t.seq, t.index FROM timer t
  WHERE t.token_id = i.token_id AND t.seq = i.seq AND t.index = i.index AND t.fire_at <= penstock_now() OFFSET 0) t

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

-- name: due_timers
-- What is due now, oldest first, and how long until the first that is not; $1 limit $2 negative indexes that this engine
-- knows (the others are a newer one's); $3: also throttled starts that are due, but for those that stand in the lines $4 definition
-- id $5 key. One row of those that are not due: the first $1 of a million armed ones were 504 blocks a look. The last columns: the
-- line of a throttled start.
WITH clock AS MATERIALIZED (SELECT penstock_now() AS now)
SELECT token_id, seq, index, instance_id, extract(epoch FROM fire_at - (SELECT now FROM clock))::float8 AS left_s,
  coalesce(failures, 0), throttle ->> 0, throttle ->> 1 FROM (
  (SELECT * FROM timer WHERE fire_at <= (SELECT now FROM clock) AND (index >= 0 OR index = ANY($2::smallint[]))
     AND (throttle IS NULL OR $3::boolean AND NOT EXISTS (
       SELECT FROM unnest($4::text[], $5::text[]) AS l(definition_id, key) WHERE definition_id = throttle ->> 0 AND key = throttle ->> 1))
   ORDER BY fire_at LIMIT $1::int)
  UNION ALL
  (SELECT * FROM timer WHERE fire_at > (SELECT now FROM clock) AND (index >= 0 OR index = ANY($2::smallint[]))
   ORDER BY fire_at LIMIT 1)) next
ORDER BY left_s LIMIT $1::int

-- name: count_timer_failures
-- One failure more of single timers ($1 token $2 seq $3 index). A row that somebody holds is passed by: they act on it.
WITH failed AS MATERIALIZED (
  SELECT old.row FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS d(token_id, seq, index)
  CROSS JOIN LATERAL (
    SELECT o.ctid AS row FROM timer o WHERE o.token_id = d.token_id AND o.seq = d.seq AND o.index = d.index
    OFFSET 0 FOR UPDATE SKIP LOCKED) old)
UPDATE timer t SET failures = least(coalesce(t.failures, 0) + 1, 32000) FROM failed f WHERE t.ctid = f.row
