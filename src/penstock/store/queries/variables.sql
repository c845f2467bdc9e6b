-- Variables: the start value, deltas in history, and what was folded of them.

-- name: variables
-- The current variables of instances $1, as text, and their bytes; as long as these are no more than $2 together.
SELECT v.id, octet_length(v.vars), CASE WHEN sum(octet_length(v.vars)) OVER (ORDER BY v.id) <= $2::bigint THEN v.vars END
FROM (
  SELECT i.id, (i.vars || coalesce(i.overlay, '{}') || coalesce((
      SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
      WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}'))::text AS vars
  FROM instance i WHERE i.id = ANY($1::bigint[]) OFFSET 0) v
ORDER BY v.id

-- name: fold
-- Moves the deltas of instances $1 into `overlay`, under the locks of all their tokens: nobody is writing one now. Those
-- whose variables would have more than $2 bytes (as jsonb) are left as they are, and come back. What has no delta is passed,
-- too: of the items of a forEach thousands would be walked over by each read.
WITH merged AS MATERIALIZED (
  SELECT j.id, j.ctid AS place, coalesce(j.overlay, '{}') || f.merged AS overlay, f.pos,
    pg_column_size(j.vars || coalesce(j.overlay, '{}') || f.merged) AS bytes
  FROM instance j CROSS JOIN LATERAL (
    SELECT jsonb_merge(h.output ORDER BY h.pos) FILTER (WHERE h.output IS NOT NULL) AS merged, max(h.pos) AS pos FROM history h
    WHERE h.instance_id = j.id AND h.pos > j.folded_pos) f
  WHERE j.id = ANY($1::bigint[]) AND f.pos IS NOT NULL),
folded AS (
  UPDATE instance i SET overlay = m.overlay, folded_pos = m.pos FROM merged m WHERE i.ctid = m.place AND m.bytes <= $2::int)
SELECT id FROM merged WHERE bytes > $2::int

-- name: count_unfolded
-- What the tokens of instances $1 wrote since the last fold: $2. Those that say so are left as they are: of a forEach that
-- is each item's (96 B of WAL and a lock for each).
UPDATE token SET unfolded = $2::smallint
WHERE (id = ANY($1::bigint[]) OR (instance_id = ANY($1::bigint[]) AND id <> instance_id)) AND unfolded <> $2::smallint

-- name: edited_size
-- What an edit of the instance $1 would lead to ($2 what is set, $3 what is removed), under the locks of all its tokens: the
-- bytes of the variables as jsonb.
SELECT pg_column_size((i.vars || coalesce(i.overlay, '{}') || coalesce((
    SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
    WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}')) - $3::text[] || $2::jsonb)
FROM instance i WHERE i.id = $1::bigint

-- name: variables_named
-- Those variables of the instance $1 that have the names $2, under the locks of all its tokens: a JSON object; null: none.
SELECT (SELECT jsonb_object_agg(v.key, v.value) FROM jsonb_each(i.vars || coalesce(i.overlay, '{}') || coalesce((
    SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
    WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}')) v WHERE v.key = ANY($2::text[]))::text
FROM instance i WHERE i.id = $1::bigint

-- name: variables_version
-- The position at which variables of the instance $1 were written last. Where none of the newest 1,000 rows wrote any, the oldest
-- of these: whatever was written before is older.
SELECT greatest(i.folded_pos, w.pos) FROM instance i CROSS JOIN LATERAL (
  SELECT coalesce(max(h.pos) FILTER (WHERE h.written), CASE count(*) WHEN 1000 THEN min(h.pos) END) AS pos FROM (
    SELECT h.pos, h.output IS NOT NULL AS written FROM history h WHERE h.instance_id = i.id ORDER BY h.pos DESC LIMIT 1000) h) w
WHERE i.id = $1::bigint

-- name: was_edited
-- Whether the bulk operation $2 has changed the variables of the instance $1.
SELECT 1 FROM variables_edit WHERE instance_id = $1::bigint AND bulk = $2::bigint LIMIT 1

-- name: edit_variables
-- Folds everything into `vars` and changes that: $1 instance $2 what is set $3 what is removed $4 for which bulk operation.
WITH old AS MATERIALIZED (
  SELECT i.ctid AS place, i.vars, nextval('step_seq') AS pos, i.vars || coalesce(i.overlay, '{}') || coalesce((
      SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
      WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}') AS whole
  FROM instance i WHERE i.id = $1::bigint),
noted AS (INSERT INTO variables_edit (instance_id, pos, before, bulk) SELECT $1::bigint, pos, vars, $4::bigint FROM old)
UPDATE instance i SET vars = o.whole - $3::text[] || $2::jsonb, overlay = '{}', folded_pos = o.pos
FROM old o WHERE i.ctid = o.place
