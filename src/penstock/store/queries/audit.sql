-- The audit trail: what neither instances nor their history record.

-- name: insert_audit
INSERT INTO audit (pos, at, instance_id, token_id, step, kind, actor, detail)
SELECT nextval('step_seq'), * FROM unnest($1::timestamptz[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[],
  $6::text[], $7::text[])

-- name: audit_of
SELECT at, kind, step, actor, detail FROM audit WHERE instance_id = $1::bigint ORDER BY pos LIMIT 100000
