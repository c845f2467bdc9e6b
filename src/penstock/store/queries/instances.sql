-- Instances: start, read, list, history.

-- name: start_narrow
-- Starts instances whose first step is a plain service task: $1 id $2 definition key $3 variables $4 business key
-- $5 job type $6 hand-off worker (null: to the queue) $7 lease seconds
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::text[], $7::float8[])
    AS i(id, definition, vars, business_key, job_type, hand_off, lease_s)),
clock AS MATERIALIZED (SELECT penstock_now() AS now),
begun AS (
  INSERT INTO instance (id, started_at, definition, vars, business_key)
  SELECT id, now, definition, vars::jsonb, business_key FROM item, clock
  RETURNING id, started_at),
opened AS (
  INSERT INTO token (id, instance_id, seq, entered_at, claimed_at, lease_until, job_type, attempt, step, state, claimed_by)
  SELECT id, id, nextval('step_seq'), now, CASE WHEN hand_off IS NOT NULL THEN now END,
    CASE WHEN hand_off IS NOT NULL THEN now + lease_s * interval '1 s' END, job_type,
    CASE WHEN hand_off IS NULL THEN 0 ELSE 1 END, 0, CASE WHEN hand_off IS NULL THEN 0 ELSE 1 END, hand_off
  FROM item, clock
  RETURNING id, seq, entered_at, lease_until, job_type, state),
queued AS (
  INSERT INTO ready (job_type, seq, token_id) SELECT job_type, seq, id FROM opened WHERE state = 0)
SELECT o.id, o.seq, o.entered_at, o.lease_until, b.started_at FROM opened o JOIN begun b ON b.id = o.id

-- name: started
-- Which of the instances $1 exist, with their first execution: what became of a start whose answer was lost.
SELECT i.id, t.seq, t.entered_at, t.lease_until, i.started_at, t.claimed_by
FROM instance i LEFT JOIN token t ON t.id = i.id WHERE i.id = ANY($1::bigint[])

-- name: view
-- Instances $1 as clients see them, in one snapshot with their tokens.
SELECT i.id, i.definition, i.status, i.started_at, i.ended_at, i.failure, i.business_key, i.instance_key, i.parent_id,
  (i.vars || coalesce(i.overlay, '{}') || coalesce((
    SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
    WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}'))::text,
  (SELECT array_agg(t.step ORDER BY t.seq) FROM token t
   WHERE (t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id)) AND t.state IN (0, 1, 2, 4, 5)),
  (SELECT coalesce(bool_or(t.state = 2), false) FROM token t
   WHERE t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id)),
  (SELECT jsonb_agg(jsonb_build_array(t.step, n.progress))::text FROM token t
   JOIN job_note n ON n.token_id = t.id AND n.seq = t.seq AND n.progress IS NOT NULL
   WHERE t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id))
FROM instance i WHERE i.id = ANY($1::bigint[])

-- name: instance_exists
SELECT 1 FROM instance WHERE id = $1::bigint

-- name: plan_for_values
-- The lists have optional filters: a generic plan could use no index for them (45 ms for 0.03 at 400,000 instances).
SET LOCAL plan_cache_mode = force_custom_plan

-- name: list_all
-- Newest first: $1 definition keys (null: any) $2 business key (null: any) $3 limit $4 offset
SELECT i.id FROM instance i
WHERE ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key = $2)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_completed
SELECT i.id FROM instance i
WHERE i.status = 1 AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key = $2)
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: list_ended
-- FAILED or CANCELLED ($5): they have rows of their own.
SELECT i.id FROM abnormal_end e JOIN instance i ON i.id = e.instance_id
WHERE e.status = $5::smallint AND ($1::int[] IS NULL OR i.definition = ANY($1))
  AND ($2::text IS NULL OR i.business_key = $2)
ORDER BY e.instance_id DESC LIMIT $3::int OFFSET $4::int

-- name: list_open
-- ACTIVE ($5 false) or WAITING ($5 true): open instances are those with a root token.
SELECT i.id FROM token r JOIN instance i ON i.id = r.id
WHERE r.id = r.instance_id AND i.status = 0
  AND ($1::int[] IS NULL OR i.definition = ANY($1)) AND ($2::text IS NULL OR i.business_key = $2)
  AND $5::boolean = (r.state = 2 OR EXISTS (
    SELECT FROM token t WHERE t.instance_id = r.id AND t.id <> t.instance_id AND t.state = 2))
ORDER BY i.id DESC LIMIT $3::int OFFSET $4::int

-- name: estimate_instances
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'instance'::regclass

-- name: history
-- All rows of one instance in order of entry, closed ones and open executions; $1 instance.
SELECT h.token_id, h.seq, h.step, h.kind, h.started_at, h.ended_at, h.claimed_at, h.attempt, h.worker, h.reason, h.pos
FROM history h WHERE h.instance_id = $1::bigint
UNION ALL
SELECT t.id, t.seq, t.step, NULL, t.entered_at, NULL, t.claimed_at, t.attempt, t.claimed_by, NULL, NULL
FROM token t WHERE (t.id = $1::bigint OR (t.instance_id = $1::bigint AND t.id <> t.instance_id)) AND t.state IN (0, 1, 2, 4, 5)
ORDER BY 2, 11 NULLS LAST

-- name: definition_of
SELECT definition, status FROM instance WHERE id = $1::bigint
