-- What is open, as people look at it: jobs that wait, that workers have, that wait for their next attempt; timers to come.
-- Reads only.

-- name: waiting_jobs
-- Of the job type $1, after ($2 priority, $5 flow key, $3 place): by priority, those without a key first, of each key in the order in
-- which they will be taken. It is the order of `ready_flow`'s index: keys as they take turns would have to be sorted, all of them.
-- Rows that are no token's place any more (schema.sql, `ready`) have none here.
SELECT q.priority, q.seq, t.id, t.instance_id, t.seq, t.step, t.attempt, t.failures, t.entered_at, NULL::text, NULL::timestamptz,
  i.definition, NULL::text, nullif(q.flow_key, '')
FROM (
  (SELECT priority, '' COLLATE "C" AS flow_key, seq, token_id FROM ready WHERE job_type = $1::int
     AND (priority, seq) > ($2::smallint, CASE WHEN $5::text = '' THEN $3::bigint ELSE 9223372036854775807 END)
   ORDER BY priority, seq LIMIT $4::int)
  UNION ALL
  (SELECT priority, flow_key, seq, token_id FROM ready_flow
   WHERE job_type = $1::int AND (priority, flow_key, seq) > ($2::smallint, $5::text COLLATE "C", $3::bigint)
   ORDER BY priority, flow_key, seq LIMIT $4::int)
  ORDER BY priority, flow_key, seq LIMIT $4::int) q
LEFT JOIN LATERAL (
  SELECT * FROM token o WHERE o.id = q.token_id AND coalesce(o.queued, o.seq) = q.seq AND o.state = 0 /* READY */ OFFSET 0) t ON true
LEFT JOIN LATERAL (SELECT definition FROM instance j WHERE j.id = t.instance_id OFFSET 0) i ON true
ORDER BY q.priority, q.flow_key, q.seq

-- name: leased_jobs
-- In the state $3 (under a lease, or handed to Kafka), of the job type $1 (null: any): those that are longest under way.
-- A walk over all tokens.
SELECT t.priority, t.seq, t.id, t.instance_id, t.seq, t.step, t.attempt, t.failures, t.claimed_at, t.claimed_by, t.lease_until, i.definition,
  (SELECT n.progress::text FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq), nullif(t.flow_key, '')
FROM (SELECT * FROM token WHERE state = $3::smallint AND ($1::int IS NULL OR job_type = $1) ORDER BY claimed_at LIMIT $2::int) t
CROSS JOIN LATERAL (SELECT definition FROM instance j WHERE j.id = t.instance_id OFFSET 0) i
ORDER BY t.claimed_at

-- name: next_timers
-- The timers among the $7 after ($1 time, $2 token, $3 seq, $4 index), next first, with the indexes $5, or with $6 of
-- boundary events; at most $8 (null: all of these).
SELECT m.fire_at, m.token_id, m.seq, m.index, m.instance_id, t.step, t.attempt, t.failures, t.entered_at, t.job_type, i.definition, t.priority,
  nullif(t.flow_key, '')
FROM (SELECT * FROM (
    SELECT * FROM timer WHERE fire_at >= $1::timestamptz AND (fire_at, token_id, seq, index) > ($1, $2::bigint, $3::bigint, $4::smallint)
    ORDER BY fire_at, token_id, seq, index LIMIT $7::int) k
  WHERE k.index = ANY($5::smallint[]) OR $6::boolean AND k.index >= 0
  ORDER BY k.fire_at, k.token_id, k.seq, k.index LIMIT $8::int) m
LEFT JOIN LATERAL (SELECT * FROM token o WHERE o.id = m.token_id AND o.seq = m.seq OFFSET 0) t ON true
LEFT JOIN LATERAL (SELECT definition FROM instance j WHERE j.id = m.instance_id OFFSET 0) i ON true
ORDER BY m.fire_at, m.token_id, m.seq, m.index

-- name: timer_at
-- The $5-th timer after ($1 time, $2 token, $3 seq, $4 index): where a look ends.
SELECT fire_at, token_id, seq, index FROM timer
WHERE fire_at >= $1::timestamptz AND (fire_at, token_id, seq, index) > ($1, $2::bigint, $3::bigint, $4::smallint)
ORDER BY fire_at, token_id, seq, index OFFSET $5::int - 1 LIMIT 1

-- name: lease_holder
-- Who has the job ($1 token, $2 seq), and its attempt.
SELECT claimed_by, attempt FROM token WHERE id = $1::bigint AND seq = $2::bigint AND state = 1 /* LOCKED */

-- name: look_briefly
SET LOCAL statement_timeout = '2s'
