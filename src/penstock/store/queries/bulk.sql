-- Bulk operations: what is done to many instances, one engine at a time, page by page, newest first.

-- name: create_bulk
-- $1 action $2 filter $3 step $4 output $5 note $6 actor $7 instances per second $8 matching then $9 whether that is exact $10 details. What
-- is started later is left out.
INSERT INTO bulk_operation (action, filter, step, output, note, actor, per_second, total, total_exact, details, created_at, below)
SELECT $1::text, $2::jsonb, $3::text, $4::text, $5::text, $6::text, $7::float8, $8::int, $9::boolean, $10::jsonb, penstock_now(),
  coalesce((SELECT id FROM instance ORDER BY id DESC LIMIT 1), 0) + 1
RETURNING id

-- name: claim_bulk
-- The oldest operation that nobody works on, for $2 seconds for the engine $1. Who died with a tag of $3 works on none: the row
-- of its number has its holder until another engine takes it.
UPDATE bulk_operation b SET engine = $1::int, leased_until = penstock_now() + $2::float8 * interval '1 s'
WHERE b.id = (
  SELECT o.id FROM bulk_operation o
  WHERE o.stage = 'RUNNING' AND (o.leased_until IS NULL OR o.leased_until <= penstock_now() OR o.engine = $1::int
    OR EXISTS (SELECT FROM engine e WHERE e.number = o.engine AND left(e.holder::text, 8) = ANY($3::text[])))
  ORDER BY o.id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, action, filter::text, step, output, note, actor, per_second, created_at, below, details::text

-- name: count_bulk
-- The instances $2 are done, of the operation $1: said in the transaction that does it.
UPDATE bulk_operation SET done = done + cardinality($2::bigint[]), counted = counted || $2::bigint[] WHERE id = $1::bigint

-- name: advance_bulk
-- After a page of the operation $1, if the engine $2 has it still: $3 the ids below are to come $4 who is done $5 who was skipped (of
-- both those that are counted already are left out) $6 how many failed $7 errors, of which 20 are kept $8 whether that was the last
-- page $9 seconds of the lease $10 of how many instances it is kept that it was done to them. No row: somebody stopped it, or it was
-- taken over.
WITH page AS MATERIALIZED (
  SELECT id, counted, done FROM bulk_operation
  WHERE id = $1::bigint AND engine = $2::int AND stage = 'RUNNING' AND leased_until > penstock_now() FOR UPDATE),
kept AS (
  INSERT INTO bulk_done (operation, instance_id)
  SELECT p.id, d.instance FROM page p CROSS JOIN LATERAL (
    SELECT unnest(p.counted) AS instance UNION SELECT unnest($4::bigint[])) d
  WHERE p.done < $10::int
  ON CONFLICT DO NOTHING)
UPDATE bulk_operation o SET below = $3::bigint, failed = o.failed + $6::int, counted = '{}',
  done = o.done + cardinality(ARRAY(SELECT unnest($4::bigint[]) EXCEPT SELECT unnest(p.counted))),
  skipped = o.skipped + cardinality(ARRAY(SELECT unnest($5::bigint[]) EXCEPT SELECT unnest(p.counted))),
  errors = CASE WHEN jsonb_array_length(o.errors) < 20
    THEN jsonb_path_query_array(o.errors || $7::jsonb, '$[0 to 19]') ELSE o.errors END,
  stage = CASE WHEN $8::boolean THEN 'DONE' ELSE 'RUNNING' END, ended_at = CASE WHEN $8::boolean THEN penstock_now() END,
  leased_until = CASE WHEN $8::boolean THEN NULL ELSE penstock_now() + $9::float8 * interval '1 s' END
FROM page p WHERE o.id = p.id RETURNING o.id

-- name: hold_bulk
-- For $3 more seconds the operation $1, if the engine $2 has it still. No row: as of `advance_bulk`.
UPDATE bulk_operation SET leased_until = penstock_now() + $3::float8 * interval '1 s'
WHERE id = $1::bigint AND engine = $2::int AND stage = 'RUNNING' AND leased_until > penstock_now() RETURNING id

-- name: stop_bulk
UPDATE bulk_operation SET stage = 'STOPPED', ended_at = penstock_now(), leased_until = NULL WHERE id = $1::bigint AND stage = 'RUNNING'

-- name: list_bulk
-- Newest first: ids below $1, at most $2; or the one with the id $3.
SELECT id, action, filter::text, step, note, actor, per_second, total, total_exact, done, skipped, failed, errors::text, stage,
  created_at, ended_at, details::text
FROM bulk_operation WHERE id < $1::bigint AND ($3::bigint IS NULL OR id = $3) ORDER BY id DESC LIMIT $2::int

-- name: purge_bulk
-- Ended ones beyond the newest $1.
DELETE FROM bulk_operation WHERE stage <> 'RUNNING' AND id < (SELECT id FROM bulk_operation ORDER BY id DESC OFFSET $1::int LIMIT 1)

-- name: purge_bulk_done
-- To whom all but the newest $1 operations were done.
DELETE FROM bulk_done WHERE operation < (SELECT id FROM bulk_operation ORDER BY id DESC OFFSET $1::int LIMIT 1)

-- name: bulk_outcome
-- How the instances stand that the operation $1 was done to: (active or waiting, completed, failed, cancelled).
SELECT count(*) FILTER (WHERE i.status = 0 /* ACTIVE */), count(*) FILTER (WHERE i.status = 1 /* COMPLETED */),
  count(*) FILTER (WHERE i.status = 2 /* FAILED */), count(*) FILTER (WHERE i.status = 3 /* CANCELLED */)
FROM bulk_done d CROSS JOIN LATERAL (SELECT o.status FROM instance o WHERE o.id = d.instance_id OFFSET 0) i
WHERE d.operation = $1::bigint
