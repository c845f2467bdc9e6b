-- What an instance leaves in the archive before it is removed: lines of JSON, of the views for people, so that a line is understood
-- without the database. Sealed values stay sealed. Reads only.

-- name: archived_instance
-- The instance $1, with what it was started with; nothing when its last change is not that of $2 any more, when it is open, or gone.
SELECT json_build_object('instance', row_to_json(i))::text FROM penstock_instances i
WHERE i.number = $1::bigint AND i.ended_at IS NOT NULL
  AND EXISTS (SELECT FROM instance r WHERE r.id = $1::bigint AND r.xmin::text::bigint = $2::bigint)

-- name: archived_left
-- How many of the instances $1 are there.
SELECT count(*)::int FROM instance WHERE id = ANY($1::bigint[])

-- name: archived_steps
-- Its steps and ended attempts after ($2 position, $3 seq), in order, at most $4.
SELECT s.pos, s.seq, json_build_object('step', row_to_json(s))::text FROM penstock_steps s
WHERE s.number = $1::bigint AND (s.pos, s.seq) > ($2::bigint, $3::bigint) ORDER BY s.pos, s.seq LIMIT $4::int

-- name: archived_records
-- Of a durable run its journal after the position $2, at most $3 records.
SELECT j.pos, json_build_object('record', row_to_json(j))::text FROM journal j
WHERE j.instance_id = $1::bigint AND j.pos > $2::bigint ORDER BY j.pos LIMIT $3::int
