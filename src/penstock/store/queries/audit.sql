-- The audit trail: what neither instances nor their history record.

-- name: insert_audit
INSERT INTO audit (pos, at, instance_id, token_id, step, kind, actor, detail)
SELECT nextval('step_seq'), * FROM unnest($1::timestamptz[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[],
  $6::text[], $7::text[])

-- name: add_audit
INSERT INTO audit (pos, at, instance_id, step, kind, actor, detail)
VALUES (nextval('step_seq'), penstock_now(), $1::bigint, $2::smallint, $3::text, $4::text, $5::text)

-- name: audit_of
SELECT at, kind, step, actor, detail, pos FROM audit WHERE instance_id = $1::bigint ORDER BY pos LIMIT 100000
