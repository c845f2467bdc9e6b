-- Idempotency keys: which request came with a key, and its first answer.

-- name: claim_idempotency
-- Takes a key for this transaction, or nothing when it was taken before ($1 scope $2 key $3 hash $4 instance).
-- Two at once: the second waits here for the first one's commit.
INSERT INTO idempotency (scope, key, request_hash, instance_id, created_at)
VALUES ($1::text, $2::text, $3::bytea, $4::bigint, penstock_now()) ON CONFLICT (scope, key) DO NOTHING RETURNING 1

-- name: find_idempotency
SELECT request_hash, instance_id, answer FROM idempotency WHERE scope = $1::text AND key = $2::text

-- name: answer_idempotency
UPDATE idempotency SET answer = $3::bytea WHERE scope = $1::text AND key = $2::text

-- name: purge_idempotency
-- Forgets up to $2 keys that are older than $1 hours, oldest first; how many went. The time is asked for once, apart: a
-- volatile function in the condition itself can't use the index, and every key there is was read at each look.
WITH gone AS (
  DELETE FROM idempotency WHERE ctid IN (
    SELECT ctid FROM idempotency WHERE created_at < (SELECT penstock_now()) - $1::float8 * interval '1 hour'
    ORDER BY created_at LIMIT $2::int FOR UPDATE SKIP LOCKED)
  RETURNING 1)
SELECT count(*) FROM gone
