-- forEach: the variables of items, what is collected of them, and how far each is. All of it under the lock of the instance,
-- but for the variables, which do not change while a worker has the job.

-- name: read_maps
-- Of the instances $1.
SELECT m.instance_id, m.token_id, m.total, m.next, m.done, m.failed, m.kept_bytes FROM map_state m
WHERE m.instance_id = ANY($1::bigint[])

-- name: read_items
-- The variables of items ($1 instance $2 token of the forEach $3 item).
SELECT v.token_id, v.item, v.vars::text FROM unnest($1::bigint[], $2::bigint[], $3::int[]) AS i(instance_id, token_id, item)
CROSS JOIN LATERAL (
  SELECT * FROM item_vars v WHERE v.instance_id = i.instance_id AND v.token_id = i.token_id AND v.item = i.item OFFSET 0) v

-- name: read_next_items
-- Of the items of a forEach ($1 instance $2 token) $4 from $3 on, as long as they have no more than $5 bytes together; the
-- first one in any case.
SELECT v.item, v.vars FROM (
  SELECT v.item, v.vars::text AS vars, sum(octet_length(v.vars::text)) OVER (ORDER BY v.item) AS bytes
  FROM item_vars v WHERE v.instance_id = $1::bigint AND v.token_id = $2::bigint AND v.item >= $3::int AND v.item < $3::int + $4::int) v
WHERE v.bytes <= $5::bigint OR v.item = $3::int

-- name: read_items_of_tokens
-- The variables of the items that the tokens $1 are for.
SELECT t.id, t.instance_id, v.vars::text FROM token t CROSS JOIN LATERAL (
  SELECT v.vars FROM item_vars v WHERE v.instance_id = t.instance_id AND v.token_id = t.parent_id AND v.item = t.item OFFSET 0) v
WHERE t.id = ANY($1::bigint[])

-- name: read_map_results
-- What is collected of a forEach ($1 instance $2 token).
SELECT r.item, r.value::text FROM map_result r WHERE r.instance_id = $1::bigint AND r.token_id = $2::bigint

-- name: begin_maps
INSERT INTO map_state (instance_id, token_id, total, next, done, failed, kept_bytes)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[])

-- name: insert_items
INSERT INTO item_vars (instance_id, token_id, item, vars)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::jsonb[])

-- name: update_maps
-- $1 instance $2 token $3 next $4 done $5 failed $6 bytes
UPDATE map_state m SET next = u.next, done = u.done, failed = u.failed, kept_bytes = u.kept_bytes
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::int[], $6::int[])
  AS u(instance_id, token_id, next, done, failed, kept_bytes)
CROSS JOIN LATERAL (
  SELECT o.ctid FROM map_state o WHERE o.instance_id = u.instance_id AND o.token_id = u.token_id OFFSET 0) old
WHERE m.ctid = old.ctid

-- name: update_items
-- $1 instance $2 token $3 item $4 variables
UPDATE item_vars v SET vars = u.vars
FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::jsonb[]) AS u(instance_id, token_id, item, vars)
CROSS JOIN LATERAL (
  SELECT o.ctid FROM item_vars o WHERE o.instance_id = u.instance_id AND o.token_id = u.token_id AND o.item = u.item OFFSET 0) old
WHERE v.ctid = old.ctid

-- name: insert_map_results
INSERT INTO map_result (instance_id, token_id, item, value)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::jsonb[])

-- name: end_maps
-- Of the tokens $2 of the instances $1.
WITH ended AS MATERIALIZED (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS e(instance_id, token_id)),
items AS (
  DELETE FROM item_vars v USING ended e WHERE v.instance_id = e.instance_id AND v.token_id = e.token_id),
results AS (
  DELETE FROM map_result r USING ended e WHERE r.instance_id = e.instance_id AND r.token_id = e.token_id)
DELETE FROM map_state m USING ended e WHERE m.instance_id = e.instance_id AND m.token_id = e.token_id

-- name: remove_maps
-- All that is kept for the instances $1.
WITH items AS (DELETE FROM item_vars WHERE instance_id = ANY($1::bigint[])),
results AS (DELETE FROM map_result WHERE instance_id = ANY($1::bigint[]))
DELETE FROM map_state WHERE instance_id = ANY($1::bigint[])

-- name: failed_when_done
-- Of executions of items of the instance $1 ($2 token $3 seq $4 whether it is a task) those that a worker, or a person, had
-- and that failed without a code: an expression failed after they were done.
SELECT u.token_id FROM unnest($2::bigint[], $3::bigint[], $4::boolean[]) AS u(token_id, seq, task)
CROSS JOIN LATERAL (
  SELECT FROM history h WHERE h.instance_id = $1::bigint AND h.pos > u.seq AND h.token_id = u.token_id AND h.seq = u.seq
    AND h.kind = 2 /* FAILED */ AND h.error_code IS NULL AND (u.task OR h.worker IS NOT NULL) OFFSET 0) h
