-- The traces that instances were started in, while engines have traces. Hints: what is lost of them, or left, harms nobody.

-- name: keep_traces
-- Of the instances $1 the traces $2, before or with their start: who tells the first time tells it for good.
INSERT INTO trace_context (instance_id, traceparent)
SELECT * FROM unnest($1::bigint[], $2::text[]) ON CONFLICT DO NOTHING

-- name: inherit_traces
-- The instances $1 go on with the traces of $2, which started them.
INSERT INTO trace_context (instance_id, traceparent)
SELECT n.id, t.traceparent FROM unnest($1::bigint[], $2::bigint[]) AS n(id, parent)
CROSS JOIN LATERAL (SELECT * FROM trace_context t WHERE t.instance_id = n.parent OFFSET 0) t ON CONFLICT DO NOTHING

-- name: traces_of
SELECT instance_id, traceparent FROM trace_context WHERE instance_id = ANY($1::bigint[])
