-- Requests of SQL functions (schema.sql: start, send, signal, publish, cancel): what committed transactions ask of engines.

-- name: claim_sql_requests
-- Requests that nobody else has, of the oldest transactions, up to $1 of these and $2 requests, of up to $3 bytes after the first. Locks the first
-- of each transaction, and with it all of that transaction: they are carried out in order. What is about an instance that another
-- transaction starts waits for that start. In a transaction, which ends with what became of them.
WITH head AS MATERIALIZED (
  SELECT r.id, r.xid FROM sql_request r
  WHERE r.failed_at IS NULL AND (r.due_at IS NULL OR r.due_at <= (SELECT penstock_now()))
    AND NOT EXISTS (SELECT FROM sql_request e WHERE e.xid = r.xid AND e.id < r.id AND e.failed_at IS NULL)
    AND NOT EXISTS (SELECT FROM sql_request s WHERE s.instance_id = r.instance_id AND s.operation = 'start'
      AND s.failed_at IS NULL AND s.xid <> r.xid)
  ORDER BY r.xid, r.id LIMIT $1::int FOR UPDATE SKIP LOCKED),
claimed AS (
  SELECT m.*, sum(m.size_bytes) OVER (ORDER BY m.xid, m.id) - m.size_bytes AS before_bytes FROM head h CROSS JOIN LATERAL (
    SELECT r.* FROM sql_request r WHERE r.xid = h.xid AND r.id >= h.id AND r.failed_at IS NULL ORDER BY r.id LIMIT $2::int) m
  ORDER BY m.xid, m.id LIMIT $2::int)
SELECT c.id, c.xid::text, c.operation, c.instance_id, c.request::text, c.body::text, c.role, c.tries,
  c.operation = 'start' AND EXISTS (SELECT FROM instance i WHERE i.id = c.instance_id)
FROM claimed c WHERE c.before_bytes < $3::bigint ORDER BY c.xid, c.id

-- name: keep_sql_requests
-- The transaction that has claimed some may say nothing for a minute, until they are carried out by others.
SELECT set_config('idle_in_transaction_session_timeout', '60s', true)

-- name: finish_sql_requests
-- Those that are carried out. Under the lock of the first of their transaction.
DELETE FROM sql_request WHERE id = ANY($1::bigint[])

-- name: fail_sql_requests
-- $1 those that engines refuse $2 code $3 reason
UPDATE sql_request r SET failed_at = penstock_now(), error = u.error, reason = u.reason, due_at = NULL
FROM unnest($1::bigint[], $2::text[], $3::text[]) u(id, error, reason) WHERE r.id = u.id

-- name: delay_sql_requests
-- $1 those that come again $2 in how many seconds
UPDATE sql_request r SET due_at = penstock_now() + u.seconds * interval '1 s', tries = r.tries + 1
FROM unnest($1::bigint[], $2::float8[]) u(id, seconds) WHERE r.id = u.id

-- name: list_sql_requests
-- Up to $2 from the one after $1 on; with $3 those that failed, else those that wait.
SELECT r.id, r.operation, r.instance_id, r.definition_id, r.instance_key, r.request::text, r.size_bytes, r.role, r.asked_at, r.tries,
  r.due_at, r.failed_at, r.error, r.reason
FROM sql_request r WHERE r.id > $1::bigint AND (r.failed_at IS NOT NULL) = $3::boolean ORDER BY r.id LIMIT $2::int

-- name: retry_sql_request
-- Let $1 wait again. No row: it did not fail, or is not there.
UPDATE sql_request SET failed_at = NULL, error = NULL, reason = NULL, tries = 0 WHERE id = $1::bigint AND failed_at IS NOT NULL
RETURNING id

-- name: drop_sql_request
-- Forget $1, which failed. No row: it did not fail, or is not there.
DELETE FROM sql_request WHERE id = $1::bigint AND failed_at IS NOT NULL RETURNING id

-- name: sql_request_state
-- Whether $1 has failed. No row: there is none.
SELECT failed_at IS NOT NULL FROM sql_request WHERE id = $1::bigint

-- name: count_sql_requests
-- How many wait and how many failed, up to $1 each, and how long the oldest waits, in seconds.
SELECT (SELECT count(*) FROM (SELECT FROM sql_request WHERE failed_at IS NULL LIMIT $1::int) one),
  (SELECT count(*) FROM (SELECT FROM sql_request WHERE failed_at IS NOT NULL LIMIT $1::int) one),
  coalesce((SELECT extract(epoch FROM penstock_now() - asked_at) FROM sql_request WHERE failed_at IS NULL ORDER BY xid, id LIMIT 1), 0)::float8

-- name: purge_sql_requests
-- Forget up to $2 that failed more than $1 days ago.
DELETE FROM sql_request WHERE id IN (
  SELECT id FROM sql_request WHERE failed_at < penstock_now() - $1::float8 * interval '1 day' ORDER BY id LIMIT $2::int
  FOR UPDATE SKIP LOCKED)

-- name: allow_requests
-- Lets a role call the functions, and nothing else. In the schema of this connection's tables.
DO $$
DECLARE
  grantee text := quote_ident(current_setting('penstock.grantee'));
  one regprocedure;
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', current_schema(), grantee);
  FOR one IN SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace AND p.prosecdef
    AND regexp_replace(p.proname, '^penstock_', '') IN ('start', 'send', 'signal', 'publish', 'cancel') LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', one, grantee);
  END LOOP;
END $$

-- name: forget_rights
DELETE FROM sql_right WHERE role = $1::text

-- name: allow_definitions
-- Of the role $1: what is about instances of $2; '': everything.
INSERT INTO sql_right (role, definition_id) SELECT $1::text, u FROM unnest($2::text[]) u ON CONFLICT DO NOTHING
