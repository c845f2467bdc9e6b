-- Sessions of people at the console. `sessions_version` in `setting` counts those that end before their time, in the same
-- transaction: engines that know a session look again when it changes.

-- name: sessions_version
-- And the start of the server: after a failover another end may have the version of one that was lost.
SELECT extract(epoch FROM pg_postmaster_start_time())::text,
  coalesce((SELECT value::bigint FROM setting WHERE name = 'sessions_version'), 0)

-- name: sessions_ended
INSERT INTO setting (name, value) VALUES ('sessions_version', '1')
ON CONFLICT (name) DO UPDATE SET value = (setting.value::bigint + 1)::text

-- name: insert_session
-- $1 digest of the cookie $2 id $3 name $4 key of the identity $5 permissions $6 job types (null: any) $7 when it expires. No row
-- when there are $8 already.
INSERT INTO session (digest, id, name, key, permissions, job_types, created_at, expires_at)
SELECT $1::bytea, $2::text, $3::text, $4::text, $5::text[], $6::text[], penstock_now(), to_timestamp($7::float8)
WHERE (SELECT count(*) FROM session) < $8::int
RETURNING id

-- name: forget_oldest_sessions
-- Of the key $1 all but the newest $2.
DELETE FROM session WHERE digest IN (
  SELECT digest FROM session WHERE key = $1::text ORDER BY created_at DESC, digest OFFSET $2::int)
RETURNING id

-- name: forget_expired_sessions
-- At most $1.
DELETE FROM session WHERE digest IN (
  SELECT digest FROM session WHERE expires_at <= penstock_now() ORDER BY expires_at LIMIT $1::int FOR UPDATE SKIP LOCKED)

-- name: find_session
SELECT digest, name, key, permissions, job_types, extract(epoch FROM expires_at)::float8 FROM session
WHERE digest = $1::bytea AND expires_at > penstock_now()

-- name: sessions_left
-- Which of $1 there are still.
SELECT s.digest FROM unnest($1::bytea[]) AS d(digest) CROSS JOIN LATERAL (SELECT s.digest FROM session s WHERE s.digest = d.digest OFFSET 0) s

-- name: list_sessions
SELECT id, name, created_at, expires_at FROM session WHERE expires_at > penstock_now() ORDER BY created_at, id

-- name: end_session
-- The one with the digest $1 or the id $2.
DELETE FROM session WHERE digest = $1::bytea OR id = $2::text RETURNING id, name

-- name: audit_session
INSERT INTO audit (pos, at, kind, actor, detail)
VALUES (nextval('step_seq'), penstock_now(), $1::text, $2::text, $3::text)
