-- What people watch: one statement per second and engine for all of them, however many pages are open.

-- name: watch_marks
-- A number for each of the instances $1 that is another one after whatever people see of it has changed.
SELECT i.id, hashtextextended(concat_ws(' ', i.status, i.folded_pos, (
    SELECT string_agg(concat_ws(',', t.id, t.seq, t.state, t.attempt, t.failures, t.claimed_by), ';' ORDER BY t.id) FROM token t
    WHERE t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id)), (
    SELECT count(*) FROM (SELECT FROM buffered_signal b WHERE b.instance_id = i.id LIMIT 1000) s)), 0)
FROM unnest($1::bigint[]) AS w(id) CROSS JOIN LATERAL (
  SELECT i.id, i.status, i.folded_pos FROM instance i WHERE i.id = w.id OFFSET 0) i

-- name: newer_instances
-- The newest $2 instances above $1.
SELECT id FROM instance WHERE id > $1::bigint ORDER BY id DESC LIMIT $2::int
