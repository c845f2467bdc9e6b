-- API tokens. Every change counts the version of the set up, in the same transaction: its row serialises writers, so a
-- version that is seen has everything before it.

-- name: api_tokens_version
-- And of the server: after a failover another change may have the version of one that was lost.
SELECT coalesce((SELECT value FROM setting WHERE name = 'api_tokens_version'), '')
  || ' ' || extract(epoch FROM pg_postmaster_start_time())::text

-- name: api_tokens_changed
INSERT INTO setting (name, value) VALUES ('api_tokens_version', '1')
ON CONFLICT (name) DO UPDATE SET value = (setting.value::bigint + 1)::text

-- name: api_tokens_alive
-- Those that count ($1 at most).
SELECT id, name, digest, roles, extract(epoch FROM expires_at)::float8 FROM api_token
WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > penstock_now()) ORDER BY created_at, id LIMIT $1::int

-- name: api_tokens_all
SELECT id, name, roles, created_at, created_by, expires_at, revoked_at FROM api_token ORDER BY created_at, id

-- name: forget_api_tokens
-- Those that have not counted for a year.
DELETE FROM api_token WHERE least(expires_at, revoked_at) < penstock_now() - interval '1 year'

-- name: insert_api_token
-- $1 id $2 name $3 digest $4 roles $5 by $6 seconds until it expires, null: never.
INSERT INTO api_token (id, name, digest, roles, created_at, created_by, expires_at)
VALUES ($1::text, $2::text, $3::bytea, $4::text, penstock_now(), $5::text,
  penstock_now() + $6::float8 * interval '1 s')
RETURNING expires_at

-- name: revoke_api_token
UPDATE api_token SET revoked_at = penstock_now() WHERE id = $1::text AND revoked_at IS NULL RETURNING name

-- name: audit_api_token
INSERT INTO audit (pos, at, kind, actor, detail)
VALUES (nextval('step_seq'), penstock_now(), $1::text, $2::text, $3::text)
