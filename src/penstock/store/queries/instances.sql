-- Instances: start, read, list, history.

-- steps: begun
begun AS (
  INSERT INTO instance (id, started_at, definition, vars, business_key, started_by)
  SELECT id, now, definition, vars::jsonb, business_key, started_by FROM item, clock),

-- steps: opened
  INSERT INTO token (id, instance_id, seq, entered_at, claimed_at, lease_until, job_type, attempt, step, state, claimed_by)
  SELECT id, id, nextval('step_seq'), now, CASE WHEN NOT to_queue THEN now END,
    CASE WHEN NOT to_queue THEN now + lease_s * interval '1 s' END, job_type,
    CASE WHEN to_queue THEN 0 ELSE 1 END, 0,
    CASE WHEN to_queue THEN 0 /* READY */ ELSE 1 /* LOCKED */ END, direct_to
  FROM item, clock
  RETURNING id, seq, entered_at, lease_until, job_type, priority, state

-- name: start_fast
-- Starts instances whose first step is a plain service task: $1 id $2 definition key $3 variables $4 business key
-- $5 job type $6 worker of a direct dispatch (null: to the queue) $7 lease seconds $8 whether to the outbox instead of the queue
-- $9 the caller that was proved $10 ids of definitions of which $11 has the keys of the active versions: where one is not, nothing
-- is started.
WITH item AS MATERIALIZED (
  SELECT *, direct_to IS NULL AS to_queue
  FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::text[], $7::float8[], $9::text[])
    AS i(id, definition, vars, business_key, job_type, direct_to, lease_s, started_by)),
clock AS MATERIALIZED (
  SELECT penstock_now() AS now WHERE NOT EXISTS (
    SELECT FROM unnest($10::text[], $11::int[]) AS l(id, key)
    WHERE l.key IS DISTINCT FROM coalesce((SELECT a.key FROM active_version a WHERE a.id = l.id),
      (SELECT d.key FROM definition d WHERE d.id = l.id ORDER BY d.version DESC LIMIT 1)))),
-- steps of: begun
opened AS (
-- steps of: opened
),
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT job_type, priority, seq, id FROM opened WHERE state = 0 /* READY */ AND NOT $8::boolean),
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), id, id, seq, entered_at, job_type, 1 FROM opened WHERE $8::boolean)
SELECT id, seq, entered_at, lease_until, entered_at AS started_at FROM opened

-- name: start_lone
-- As `start_fast`, of one whose first job is leased at once (why: `complete_lone_move`): $1 id $2 definition key $3 variables
-- $4 business key $5 job type $6 worker $7 lease seconds $8 the caller that was proved $9 (null: none) and $10 as $10 and $11 there.
WITH item AS NOT MATERIALIZED (
  SELECT $1::bigint AS id, $2::int AS definition, $3::text AS vars, $4::text AS business_key, $5::int AS job_type,
    $6::text AS direct_to, $7::float8 AS lease_s, $8::text AS started_by, false AS to_queue),
clock AS MATERIALIZED (
  SELECT penstock_now() AS now
  WHERE $9::text IS NULL OR $10::int = coalesce((SELECT a.key FROM active_version a WHERE a.id = $9::text),
    (SELECT d.key FROM definition d WHERE d.id = $9::text ORDER BY d.version DESC LIMIT 1))),
-- steps of: begun
opened AS (
-- steps of: opened
)
SELECT id, seq, entered_at, lease_until, entered_at AS started_at FROM opened

-- name: started
-- Which of the instances $1 exist: what became of a start whose answer was lost. With the lease of a direct dispatch and its
-- holder, as long as that is still the first execution's first attempt, and not over; and its definition.
SELECT i.id, t.seq, t.entered_at, CASE WHEN t.state = 1 /* LOCKED */ AND t.attempt = 1 AND t.entered_at = i.started_at
    AND t.lease_until > penstock_now() THEN t.lease_until END, i.started_at, t.claimed_by, i.definition
FROM instance i LEFT JOIN LATERAL (SELECT * FROM token t WHERE t.id = i.id OFFSET 0) t ON true WHERE i.id = ANY($1::bigint[])

-- name: view
-- Instances $1 as clients see them, in their order and in one snapshot with their tokens. Their variables as long as
-- these and results have no more than $2 bytes together, with the bytes of each; null: none of them.
SELECT v.id, v.definition, v.status, v.started_at, v.ended_at, v.failure, v.failure_code, v.business_key, v.instance_key, v.parent_id,
  CASE WHEN sum(v.bytes) OVER (ORDER BY v.place) <= $2::bigint THEN v.vars END, v.bytes,
  v.open_steps, v.waiting, v.progress,
  CASE WHEN sum(v.bytes) OVER (ORDER BY v.place) <= $2::bigint THEN v.result END, r.schedule, r.at, s.fire_at, v.priority, v.flow_key,
  b.since, b.reason
FROM (
  SELECT i.*, octet_length(i.vars) + coalesce(octet_length(i.result), 0) AS bytes, array_position($1::bigint[], i.id) AS place,
    (SELECT array_agg(t.step ORDER BY t.seq) FROM token t
     WHERE (t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id)) AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)) AS open_steps,
    (SELECT coalesce(bool_or(t.state = 2 /* PARKED */), false) FROM token t
     WHERE t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id)) AS waiting,
    (SELECT jsonb_agg(jsonb_build_array(t.step, n.progress))::text FROM token t CROSS JOIN LATERAL (
       SELECT n.progress FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq AND n.progress IS NOT NULL OFFSET 0) n
     WHERE t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id)) AS progress
  FROM (
    SELECT i.id, i.definition, i.status, i.started_at, i.ended_at, i.failure, i.failure_code, i.business_key, i.instance_key,
      i.parent_id, i.priority, i.flow_key, CASE WHEN $2::bigint IS NOT NULL THEN (i.vars || coalesce(i.overlay, '{}') || coalesce((
        SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
        WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}'))::text END AS vars,
      CASE WHEN $2::bigint IS NOT NULL THEN i.result::text END AS result
    FROM instance i WHERE i.id = ANY($1::bigint[]) OFFSET 0) i) v
LEFT JOIN LATERAL (SELECT r.schedule, r.at FROM scheduled r WHERE r.instance_id = v.id OFFSET 0) r ON true
LEFT JOIN LATERAL (
  SELECT s.fire_at FROM timer s
  WHERE v.status = 0 /* ACTIVE */ AND v.open_steps IS NULL AND s.token_id = v.id AND s.index = -6 /* START_TIMER */ OFFSET 0) s ON true
LEFT JOIN LATERAL (SELECT b.since, b.reason FROM blocked_run b WHERE b.instance_id = v.id OFFSET 0) b ON true
ORDER BY v.place

-- name: places
-- Where the instances $1 stand, in order of entry, $2 of each: (instance, step, state, since); and the steps at which they failed.
(SELECT w.id, t.step, t.state, t.entered_at, NULL::text FROM unnest($1::bigint[]) AS w(id) CROSS JOIN LATERAL (
   SELECT t.step, t.state, t.entered_at, t.seq FROM token t
   WHERE (t.id = w.id OR (t.instance_id = w.id AND t.id <> t.instance_id))
     AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
   ORDER BY t.seq LIMIT $2::int) t
 ORDER BY t.seq)
UNION ALL
(SELECT w.id, NULL, NULL, NULL, e.step FROM unnest($1::bigint[]) AS w(id) CROSS JOIN LATERAL (
   SELECT e.step FROM abnormal_end e WHERE e.status = 2 /* FAILED */ AND e.instance_id = w.id AND e.step IS NOT NULL OFFSET 0) e)

-- name: instance_exists
SELECT 1 FROM instance WHERE id = $1::bigint

-- name: plan_for_values
-- The lists have optional filters: a generic plan could use no index for them (45 ms for 0.03 at 400,000 instances).
SET LOCAL plan_cache_mode = force_custom_plan

-- name: list_all
-- Newest first: $1 definition keys (null: any) $2 business key (null: any) $3 limit $4 offset $5 only ids below $6 none below that;
-- last, also of those that follow: how the business key begins (null: any); and, where it may be asked for, the flow key (null: any)
SELECT i.id FROM instance i
WHERE i.id < $5::bigint AND i.id >= $6::bigint AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($7::text IS NULL OR i.business_key COLLATE "C" ^@ $7) AND ($8::text IS NULL OR i.flow_key = $8)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_completed
SELECT i.id FROM instance i
WHERE i.status = 1 /* COMPLETED */ AND i.id < $5::bigint AND i.id >= $6::bigint AND ($1::int[] IS NULL OR i.definition = ANY($1))
  AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($7::text IS NULL OR i.business_key COLLATE "C" ^@ $7) AND ($8::text IS NULL OR i.flow_key = $8)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_ended
-- FAILED or CANCELLED ($7): they have rows of their own. A LEFT JOIN, as of those that are active. $10 a part of the code or the reason.
SELECT e.instance_id FROM abnormal_end e LEFT JOIN instance i ON i.id = e.instance_id
WHERE e.status = $7::smallint AND e.instance_id < $5::bigint AND e.instance_id >= $6::bigint AND ($1::int[] IS NULL OR i.definition = ANY($1))
  AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($8::text IS NULL OR i.business_key COLLATE "C" ^@ $8) AND ($9::text IS NULL OR i.flow_key = $9)
  AND ($10::text IS NULL OR strpos(lower(coalesce(i.failure_code, '') || ' · ' || coalesce(i.failure, '')), lower($10)) > 0)
ORDER BY e.instance_id DESC LIMIT $3::int OFFSET $4::int

-- name: list_caused
-- Failures like the reason $7: by the hash of what such reasons have in common.
SELECT e.instance_id FROM abnormal_end e
WHERE e.cause = failure_cause($7::text) AND e.instance_id < $5::bigint AND e.instance_id >= $6::bigint
  AND ($1::int[] IS NULL OR e.definition = ANY($1)) AND ($8::text IS NULL OR e.step = $8)
  AND ($2::text IS NULL AND $9::text IS NULL OR EXISTS (
    SELECT FROM instance i WHERE i.id = e.instance_id AND ($2::text IS NULL OR i.business_key = $2) AND ($9::text IS NULL OR i.business_key COLLATE "C" ^@ $9)))
ORDER BY e.instance_id DESC LIMIT $3::int OFFSET $4::int

-- name: list_failed_at
-- Failures at the step $7 of the definitions $1. $9 a part of the code or the reason.
SELECT e.instance_id FROM abnormal_end e
WHERE e.definition = ANY($1::int[]) AND e.step = $7::text AND e.instance_id < $5::bigint AND e.instance_id >= $6::bigint
  AND ($2::text IS NULL AND $8::text IS NULL AND $9::text IS NULL OR EXISTS (
    SELECT FROM instance i WHERE i.id = e.instance_id AND ($2::text IS NULL OR i.business_key = $2) AND ($8::text IS NULL OR i.business_key COLLATE "C" ^@ $8)
      AND ($9::text IS NULL OR strpos(lower(coalesce(i.failure_code, '') || ' · ' || coalesce(i.failure, '')), lower($9)) > 0)))
ORDER BY e.instance_id DESC LIMIT $3::int OFFSET $4::int

-- name: list_children
-- Those that the instance $7 started, in the status $8 (null: any).
SELECT i.id FROM instance i
WHERE i.parent_id = $7::bigint AND i.id < $5::bigint AND i.id >= $6::bigint AND ($1::int[] IS NULL OR i.definition = ANY($1))
  AND ($2::text IS NULL OR i.business_key = $2) AND ($9::text IS NULL OR i.business_key COLLATE "C" ^@ $9)
  AND ($8::text IS NULL OR $8 = 'DELAYED' AND EXISTS (SELECT FROM token t WHERE t.id = i.id AND t.state = 8 /* DELAYED */) 
    OR $8 = 'BLOCKED' AND EXISTS (SELECT FROM blocked_run b WHERE b.instance_id = i.id) OR $8 = CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED'
    WHEN 3 /* CANCELLED */ THEN 'CANCELLED' ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_bulk_done
-- Those that the bulk operation $7 was done to, in the status $8 (null: any).
SELECT i.id FROM bulk_done b JOIN instance i ON i.id = b.instance_id
WHERE b.operation = $7::bigint AND b.instance_id < $5::bigint AND b.instance_id >= $6::bigint AND ($1::int[] IS NULL OR i.definition = ANY($1))
  AND ($2::text IS NULL OR i.business_key = $2) AND ($9::text IS NULL OR i.business_key COLLATE "C" ^@ $9)
  AND ($8::text IS NULL OR $8 = CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED'
    WHEN 3 /* CANCELLED */ THEN 'CANCELLED' ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END
    OR $8 = 'OPEN' AND i.status = 0 /* ACTIVE */)
ORDER BY b.instance_id DESC LIMIT $3::int OFFSET $4::int

-- name: newest_failures
-- The newest $2 of the definitions $1 (null: any) since the id $3: (id, definition, step, reason, code, when).
SELECT e.instance_id, i.definition, e.step, i.failure, i.failure_code, i.ended_at FROM (
  SELECT e.instance_id, e.step FROM abnormal_end e
  WHERE e.status = 2 /* FAILED */ AND e.instance_id >= $3::bigint AND ($1::int[] IS NULL OR e.definition = ANY($1))
  ORDER BY e.instance_id DESC LIMIT $2::int OFFSET 0) e
CROSS JOIN LATERAL (SELECT i.definition, i.failure, i.failure_code, i.ended_at FROM instance i WHERE i.id = e.instance_id OFFSET 0) i
ORDER BY e.instance_id DESC

-- name: failure_behind
-- The id of the failure behind the newest $1 since the id $2; nothing where there are no more.
SELECT instance_id FROM abnormal_end WHERE status = 2 /* FAILED */ AND instance_id >= $2::bigint
ORDER BY instance_id DESC OFFSET $1::int LIMIT 1

-- name: failures_alike
-- Of the newest $1 instances that stand failed the $2 most frequent causes by definition: (definition, how many, the newest's reason
-- and code, when the first of them failed, how many were looked at).
WITH newest AS MATERIALIZED (
  SELECT e.instance_id, e.definition, e.cause FROM abnormal_end e
  WHERE e.status = 2 /* FAILED */ ORDER BY e.instance_id DESC LIMIT $1::int),
alike AS (
  SELECT count(*) AS count, min(n.instance_id) AS first, max(n.instance_id) AS last FROM newest n
  GROUP BY n.definition, n.cause ORDER BY 1 DESC, 3 DESC LIMIT $2::int)
SELECT l.definition, a.count, l.failure, l.failure_code, least(f.ended_at, l.ended_at), (SELECT count(*) FROM newest) FROM alike a
CROSS JOIN LATERAL (SELECT i.ended_at FROM instance i WHERE i.id = a.first OFFSET 0) f
CROSS JOIN LATERAL (SELECT i.definition, i.failure, i.failure_code, i.ended_at FROM instance i WHERE i.id = a.last OFFSET 0) l
ORDER BY a.count DESC, a.last DESC

-- name: fill_causes
-- Gives a cause to failures that have none, or one of older rules: those among the $2 after the instance $1. How many were looked at,
-- and the last of them.
WITH looked AS MATERIALIZED (
  SELECT e.instance_id, e.cause FROM abnormal_end e
  WHERE e.status = 2 /* FAILED */ AND e.instance_id > $1::bigint ORDER BY e.instance_id LIMIT $2::int),
without AS MATERIALIZED (
  SELECT e.place, i.definition,
    CASE WHEN i.failure_code IS NULL OR i.failure_code ^@ 'Penstock.' THEN '' ELSE i.failure_code || ' · ' END || coalesce(i.failure, '') AS text
  FROM looked l
  CROSS JOIN LATERAL (
    SELECT o.ctid AS place FROM abnormal_end o
    WHERE o.status = 2 /* FAILED */ AND o.instance_id = l.instance_id FOR UPDATE SKIP LOCKED) e
  CROSS JOIN LATERAL (SELECT i.definition, i.failure, i.failure_code FROM instance i WHERE i.id = l.instance_id OFFSET 0) i
  WHERE l.cause IS NULL OR l.cause & 65535 <> 22),
filled AS (
  UPDATE abnormal_end e SET definition = w.definition, cause = failure_cause(w.text)
  FROM without w WHERE e.ctid = w.place)
SELECT count(*)::int, max(instance_id) FROM looked

-- name: list_waiting
-- All of them: $1 limit $2 offset $3 only ids below $4 none below that
SELECT DISTINCT p.instance_id FROM parked p WHERE p.instance_id < $3::bigint AND p.instance_id >= $4::bigint
ORDER BY p.instance_id DESC LIMIT $1::int OFFSET $2::int

-- name: list_waiting_of
SELECT i.id FROM instance i
WHERE i.id < $5::bigint AND i.id >= $6::bigint AND EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id)
  AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($7::text IS NULL OR i.business_key COLLATE "C" ^@ $7) AND ($8::text IS NULL OR i.flow_key = $8)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_active
-- Open instances are those with a root token. A LEFT JOIN, because it is left out when nothing asks for it.
SELECT r.id FROM token r LEFT JOIN instance i ON i.id = r.id
WHERE r.id = r.instance_id AND r.id < $5::bigint AND r.id >= $6::bigint AND NOT EXISTS (SELECT FROM parked p WHERE p.instance_id = r.id)
  AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($7::text IS NULL OR i.business_key COLLATE "C" ^@ $7) AND ($8::text IS NULL OR i.flow_key = $8)
ORDER BY r.id DESC LIMIT $3::int OFFSET $4::int

-- steps: at_step
  AND (r.step = ($7::int[])[array_position($1::int[], i.definition)]
      AND r.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
    OR EXISTS (
      SELECT FROM token t WHERE t.instance_id = r.id AND t.id <> t.instance_id AND t.step = ($7::int[])[array_position($1::int[], i.definition)]
        AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */) OFFSET 0))

-- name: list_at_step
-- Open ones that stand on a step, which has in the definitions $1 the numbers $7, in their order. $8 ACTIVE or OPEN (also WAITING).
SELECT r.id FROM token r JOIN instance i ON i.id = r.id
WHERE r.id = r.instance_id AND r.id < $5::bigint AND r.id >= $6::bigint AND i.definition = ANY($1::int[])
-- steps of: at_step
  AND ($8::text = 'OPEN' OR NOT EXISTS (SELECT FROM parked p WHERE p.instance_id = r.id OFFSET 0))
  AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($9::text IS NULL OR i.business_key COLLATE "C" ^@ $9) AND ($10::text IS NULL OR i.flow_key = $10)
ORDER BY r.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_waiting_at_step
-- As `list_at_step`, of those that are WAITING: there are few among those that are open.
SELECT i.id FROM instance i JOIN token r ON r.id = i.id
WHERE i.id < $5::bigint AND i.id >= $6::bigint AND EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) AND i.definition = ANY($1::int[])
-- steps of: at_step
  AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($8::text IS NULL OR i.business_key COLLATE "C" ^@ $8) AND ($9::text IS NULL OR i.flow_key = $9)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_by_key
-- A piece of the list by business key: the next $3 after the key $1 of the instance $2, with keys that begin with $4 (null: any):
-- (id, key, whether it is of the definitions $5 (null: any), has the flow key $6 (null: any), and the status $7 (null: any),
-- stands on the step that has the numbers $8 in those definitions (null: anywhere), and has an id from $9 to below $10).
SELECT l.id, l.business_key, ($5::int[] IS NULL OR l.definition = ANY($5)) AND ($6::text IS NULL OR l.flow_key = $6)
  AND l.id >= $9::bigint AND l.id < $10::bigint
  AND ($7::text IS NULL OR $7 = 'OPEN' AND l.status = 0 /* ACTIVE */
    OR $7 = 'DELAYED' AND EXISTS (SELECT FROM token t WHERE t.id = l.id AND t.state = 8 /* DELAYED */ OFFSET 0)
    OR $7 = 'BLOCKED' AND EXISTS (SELECT FROM blocked_run b WHERE b.instance_id = l.id OFFSET 0)
    OR $7 = CASE l.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* CANCELLED */ THEN 'CANCELLED'
      ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = l.id OFFSET 0) THEN 'WAITING' ELSE 'ACTIVE' END END)
  AND ($8::int[] IS NULL OR EXISTS (
    SELECT FROM token t WHERE (t.id = l.id OR (t.instance_id = l.id AND t.id <> t.instance_id))
      AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
      AND t.step = ($8::int[])[array_position($5::int[], l.definition)] OFFSET 0))
FROM (
  SELECT i.id, i.business_key, i.definition, i.flow_key, i.status FROM instance i
  WHERE i.business_key IS NOT NULL AND (i.business_key COLLATE "C", i.id) > ($1::text COLLATE "C", $2::bigint)
    AND ($4::text IS NULL OR i.business_key COLLATE "C" ^@ $4)
  ORDER BY i.business_key COLLATE "C", i.id LIMIT $3::int) l
ORDER BY l.business_key COLLATE "C", l.id

-- name: sort_ended
-- Of the instances $1 those that have ended, latest first, behind the microsecond $2 of the instance $3; the first $4: (id, microsecond).
SELECT l.id, l.at FROM (
  SELECT i.id, (extract(epoch FROM i.ended_at) * 1000000)::bigint AS at FROM instance i
  WHERE i.id = ANY($1::bigint[]) AND i.ended_at IS NOT NULL) l
WHERE (l.at, l.id) < ($2::bigint, $3::bigint) ORDER BY l.at DESC, l.id DESC LIMIT $4::int

-- name: sort_changed
-- As `sort_ended`, by when they last changed: ended, or came to a step that is open, or somebody took its job. With OR in
-- place of the two subselects each instance read all tokens where the plan was made while the table was empty.
SELECT l.id, l.at FROM (
  SELECT i.id, (extract(epoch FROM coalesce(i.ended_at, greatest(
    (SELECT max(greatest(t.entered_at, t.claimed_at)) FROM token t WHERE t.id = i.id),
    (SELECT max(greatest(t.entered_at, t.claimed_at)) FROM token t
     WHERE t.instance_id = i.id AND t.id <> t.instance_id)), i.started_at)) * 1000000)::bigint AS at
  FROM instance i WHERE i.id = ANY($1::bigint[])) l
WHERE (l.at, l.id) < ($2::bigint, $3::bigint) ORDER BY l.at DESC, l.id DESC LIMIT $4::int

-- name: list_delayed
-- Those open ones that have not begun: the root tokens, newest first.
SELECT r.id FROM token r LEFT JOIN instance i ON i.id = r.id
WHERE r.id = r.instance_id AND r.id < $5::bigint AND r.id >= $6::bigint AND r.state = 8 /* DELAYED */
  AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($7::text IS NULL OR i.business_key COLLATE "C" ^@ $7) AND ($8::text IS NULL OR i.flow_key = $8)
ORDER BY r.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_blocked
-- Runs that are blocked, newest first.
SELECT b.instance_id FROM blocked_run b LEFT JOIN instance i ON i.id = b.instance_id
WHERE b.instance_id < $5::bigint AND b.instance_id >= $6::bigint
  AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($7::text IS NULL OR i.business_key COLLATE "C" ^@ $7) AND ($8::text IS NULL OR i.flow_key = $8)
ORDER BY b.instance_id DESC LIMIT $3::int OFFSET $4::int

-- name: give_up_soon
-- Newest first finds a page at once, unless what is looked for is rare among very much: then `walk`.
SET LOCAL statement_timeout = '500ms'

-- name: walk
-- A piece of a list, for as long as one has time: the next $6 by the index that comes nearest to the status $4 (null: any),
-- how many there were, the last of them, and those that match, at most $3. $1 $2 $5 as in the lists, $7 none below that,
-- $11 as $7 of `list_at_step`. Oldest first: see `store.rows.instances.oldest_first`.
WITH looked AS MATERIALIZED (
  (SELECT r.id FROM token r WHERE $4::text IN ('ACTIVE', 'DELAYED', 'OPEN') AND r.id < $5::bigint AND r.id >= $7::bigint AND r.id = r.instance_id
   ORDER BY r.id DESC LIMIT $6::int)
  UNION ALL
  (SELECT DISTINCT p.instance_id FROM parked p WHERE $4::text = 'WAITING' AND p.instance_id < $5::bigint AND p.instance_id >= $7::bigint
   ORDER BY p.instance_id DESC LIMIT $6::int)
  UNION ALL
  (SELECT b.instance_id FROM blocked_run b WHERE $4::text = 'BLOCKED' AND b.instance_id < $5::bigint AND b.instance_id >= $7::bigint
   ORDER BY b.instance_id DESC LIMIT $6::int)
  UNION ALL
  (SELECT e.instance_id FROM abnormal_end e
   WHERE e.status = CASE $4::text WHEN 'FAILED' THEN 2 /* FAILED */ WHEN 'CANCELLED' THEN 3 /* CANCELLED */ END AND e.instance_id < $5::bigint AND e.instance_id >= $7::bigint
   ORDER BY e.instance_id DESC LIMIT $6::int)
  UNION ALL
  (SELECT i.id FROM instance i WHERE coalesce($4::text, 'COMPLETED') = 'COMPLETED' AND i.id < $5::bigint AND i.id >= $7::bigint
   ORDER BY i.id DESC LIMIT $6::int))
SELECT (SELECT count(*) FROM looked), (SELECT min(id) FROM looked), ARRAY(
  SELECT l.id FROM looked l LEFT JOIN instance i ON i.id = l.id
  WHERE ($4::text IS DISTINCT FROM 'COMPLETED' OR i.status = 1 /* COMPLETED */)
    AND ($4::text IS DISTINCT FROM 'ACTIVE' OR NOT EXISTS (SELECT FROM parked p WHERE p.instance_id = l.id))
    AND ($4::text IS DISTINCT FROM 'DELAYED' OR EXISTS (SELECT FROM token t WHERE t.id = l.id AND t.state = 8 /* DELAYED */))
    AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND ($8::text IS NULL OR i.business_key COLLATE "C" ^@ $8) AND ($9::text IS NULL OR i.flow_key = $9)
  AND ($10::text IS NULL OR strpos(lower(coalesce(i.failure_code, '') || ' · ' || coalesce(i.failure, '')), lower($10)) > 0)
  AND ($11::int[] IS NULL OR EXISTS (
    SELECT FROM token t WHERE (t.id = l.id OR (t.instance_id = l.id AND t.id <> t.instance_id))
      AND t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
      AND t.step = ($11::int[])[array_position($1::int[], i.definition)] OFFSET 0))
  ORDER BY l.id DESC LIMIT $3::int)

-- name: estimate_instances
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'instance'::regclass

-- name: history_count
-- Rows of history of an instance.
SELECT count(*) FROM history WHERE instance_id = $1::bigint

-- name: history
-- All rows of one instance in order of entry, closed ones and open executions; $1 instance. An END in `end_step` is an
-- execution of its own here, named by the position of the row that holds it. An open one has the time of its claim
-- while somebody has the job.
SELECT h.token_id, x.seq, x.step, h.kind, x.started_at, h.ended_at, x.claimed_at, x.attempt, x.worker, h.reason, h.pos,
  CASE WHEN x.seq = h.seq THEN h.error_code END, (SELECT c.id FROM called c WHERE c.token_id = h.token_id AND c.seq = x.seq),
  CASE WHEN x.seq = h.seq THEN h.item END, CASE WHEN x.seq = h.seq THEN h.items::text END
FROM history h CROSS JOIN LATERAL (
  SELECT h.seq, h.step, h.started_at, h.claimed_at, h.attempt, h.worker
  UNION ALL
  SELECT h.pos, h.end_step, h.ended_at, NULL, 0, NULL WHERE h.end_step IS NOT NULL) x
WHERE h.instance_id = $1::bigint
UNION ALL
SELECT t.id, t.seq, t.step, NULL, t.entered_at, NULL, CASE WHEN t.state IN (1 /* LOCKED */, 5 /* DISPATCHED */) THEN t.claimed_at END, t.attempt,
  t.claimed_by, NULL, NULL, NULL, (SELECT c.id FROM called c WHERE c.token_id = t.id AND c.seq = t.seq), t.item,
  (SELECT jsonb_build_object('total', m.total, 'completed', m.done, 'failed', m.failed, 'running', t.pending - t.arrived)::text
    FROM map_state m WHERE t.state = 3 /* FORKED */ AND m.instance_id = $1::bigint AND m.token_id = t.id)
FROM token t WHERE (t.id = $1::bigint OR (t.instance_id = $1::bigint AND t.id <> t.instance_id))
  AND (t.state IN (0 /* READY */, 1 /* LOCKED */, 2 /* PARKED */, 4 /* BACKOFF */, 5 /* DISPATCHED */, 7 /* CALLED */)
    OR t.state = 3 /* FORKED */ AND EXISTS (SELECT FROM map_state m WHERE m.instance_id = $1::bigint AND m.token_id = t.id))
ORDER BY 2, 11 NULLS LAST

-- name: definition_of
-- Of an instance: its definition, status, and of one that was migrated its versions: from which position on which
-- definition, and by their step numbers those of now.
SELECT definition, status, (SELECT json_agg(json_build_array(v.from_pos, v.definition, v.steps) ORDER BY v.from_pos)::text
  FROM instance_version v WHERE v.instance_id = i.id)
FROM instance i WHERE id = $1::bigint

-- name: find_ended
-- Those of the instances $1 that are not open: ended, or not there.
SELECT k.id FROM unnest($1::bigint[]) AS k(id)
WHERE NOT EXISTS (SELECT FROM instance i WHERE i.id = k.id AND i.status = 0 /* ACTIVE */ OFFSET 0)

-- name: started_by
-- The caller that started an instance.
SELECT started_by FROM instance WHERE id = $1::bigint
