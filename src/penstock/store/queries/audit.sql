-- The audit trail: what neither instances nor their history record.

-- name: insert_audit
INSERT INTO audit (pos, at, instance_id, token_id, step, kind, actor, detail)
SELECT nextval('step_seq'), * FROM unnest($1::timestamptz[], $2::bigint[], $3::bigint[], $4::smallint[], $5::text[],
  $6::text[], $7::text[])

-- name: add_audit
INSERT INTO audit (pos, at, instance_id, step, kind, actor, detail, old)
VALUES (nextval('step_seq'), penstock_now(), $1::bigint, $2::smallint, $3::text, $4::text, $5::text, $6::text)

-- name: list_audit
-- Newest first: records below the position $1 from the time $2 on and before $3, of the kind $4, by the caller $5, with the text $6
-- in what they are about, in any case (each null: any); without a kind not of what engines dispatch. At most $7 of the next $8; last
-- a row without a kind: the lowest position looked at, null where there were no more.
WITH looked AS MATERIALIZED (
  SELECT pos, at, kind, actor, detail, old, instance_id FROM audit
  WHERE pos < $1::bigint AND at >= coalesce($2::timestamptz, '-infinity') AND at < coalesce($3::timestamptz, 'infinity')
  ORDER BY pos DESC LIMIT $8::int)
(SELECT pos, at, kind, actor, detail, old, instance_id FROM looked
 WHERE ($4::text IS NULL AND kind <> 'DISPATCHED_VIA_BROKER' OR kind = $4) AND ($5::text IS NULL OR actor = $5)
   AND ($6::text IS NULL OR strpos(lower(coalesce(detail, '')), lower($6)) > 0)
 ORDER BY pos DESC LIMIT $7::int)
UNION ALL
SELECT CASE WHEN (SELECT count(*) FROM looked) = $8::int THEN (SELECT min(pos) FROM looked) END, NULL, NULL, NULL, NULL, NULL, NULL

-- name: audit_of
SELECT at, kind, step, actor, detail, pos FROM audit WHERE instance_id = $1::bigint ORDER BY pos LIMIT 100000
