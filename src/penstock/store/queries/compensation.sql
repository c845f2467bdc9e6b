-- Compensation: completed step executions that handlers undo, those that completed last first.

-- name: next_completion
-- How the instance $1 ends if it is being undone; and the newest completed execution of the steps $2 that no handler has but
-- those on the tokens $5, that is none of the positions $4, and that came before what the handler on $3 has undone (null: any).
-- Of the steps $6 each item is one.
-- One walk back through history over all compensations of an instance: each begins where the one before has found something.
-- Of an instance that was migrated, steps have the numbers of now.
WITH versions AS MATERIALIZED (SELECT EXISTS (SELECT FROM instance_version v WHERE v.instance_id = $1::bigint) AS found)
SELECT u.status, u.failure, u.failure_code, u.step, u.job, h.pos, h.step, coalesce(h.output, (
    SELECT o.output FROM item_output o WHERE o.instance_id = $1::bigint AND o.pos = h.pos))::text, h.item
FROM (SELECT) one LEFT JOIN undoing u ON u.instance_id = $1::bigint
LEFT JOIN LATERAL (
  SELECT h.pos, n.step, h.output, h.item FROM history h
  CROSS JOIN LATERAL (SELECT CASE WHEN (SELECT found FROM versions) THEN step_now($1::bigint, h.pos, h.step) ELSE h.step END AS step) n
  WHERE h.instance_id = $1::bigint AND h.kind = 1 /* COMPLETED */ AND n.step = ANY ($2::smallint[])
    AND (h.item IS NOT NULL) = (n.step = ANY ($6::smallint[]))
    AND h.pos < coalesce((SELECT c.pos FROM compensation c WHERE c.token_id = $3::bigint), 9223372036854775807)
    AND h.pos <> ALL ($4::bigint[])
    AND NOT EXISTS (
      SELECT FROM compensation c WHERE c.instance_id = $1::bigint AND c.pos = h.pos AND c.token_id <> ALL ($5::bigint[]) OFFSET 0)
  ORDER BY h.pos DESC LIMIT 1) h ON true

-- name: completions_of_handlers
-- What the handlers on the tokens $1 are to undo.
SELECT c.token_id, c.instance_id, h.pos, step_now(c.instance_id, h.pos, h.step), coalesce(h.output, (
    SELECT o.output FROM item_output o WHERE o.instance_id = h.instance_id AND o.pos = h.pos))::text, h.item
FROM compensation c CROSS JOIN LATERAL (
  SELECT * FROM history h WHERE h.instance_id = c.instance_id AND h.pos = c.pos OFFSET 0) h
WHERE c.token_id = ANY ($1::bigint[])

-- name: free_completions
-- What the handlers on the tokens $1 were to undo is to be undone by others.
DELETE FROM compensation WHERE token_id = ANY ($1::bigint[])

-- name: insert_compensations
-- $1 instance $2 position $3 token of the handler
INSERT INTO compensation (instance_id, pos, token_id) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[])

-- name: insert_undoing
INSERT INTO undoing (instance_id, status, failure, failure_code, step, job)
SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::smallint[], $6::boolean[])

-- name: insert_item_outputs
-- $1 instance $2 position $3 output. In place of a raw result that was mapped since.
INSERT INTO item_output (instance_id, pos, output) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::jsonb[])
ON CONFLICT (instance_id, pos) DO UPDATE SET output = excluded.output

-- name: delete_item_outputs
-- $1 instance $2 position
DELETE FROM item_output o USING unnest($1::bigint[], $2::bigint[]) AS d(instance_id, pos)
WHERE o.instance_id = d.instance_id AND o.pos = d.pos

-- name: raw_result
SELECT output::text FROM item_output WHERE instance_id = $1::bigint AND pos = $2::bigint
