-- Jobs that their workers' own transactions completed: the SQL function `complete` of schema.sql writes them.

-- name: read_recorded
-- The variables of one ($1 instance $2 token $3 seq). Under the lock of its token.
SELECT variables::text FROM recorded_output WHERE instance_id = $1::bigint AND token_id = $2::bigint AND seq = $3::bigint

-- name: forget_recorded
-- Those of instances $1 whose jobs are closed. Under their locks, after the writes to their tokens.
DELETE FROM recorded_output r WHERE r.instance_id = ANY($1::bigint[])
  AND NOT EXISTS (SELECT FROM token t WHERE t.id = r.token_id AND t.seq = r.seq AND t.state = 2 /* PARKED */)

-- name: allow_completions
-- Lets a role call `complete`, and nothing else. In the schema of this connection's tables.
DO $$ BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', current_schema(), quote_ident(current_setting('penstock.grantee')));
  EXECUTE format('GRANT EXECUTE ON FUNCTION complete(text, int, text, jsonb) TO %s', quote_ident(current_setting('penstock.grantee')));
END $$

-- name: name_grantee
SELECT set_config('penstock.grantee', $1::text, true)

-- name: record_encryption
-- That engines encrypt variables: for `complete`, which can't.
INSERT INTO setting (name, value) VALUES ('encrypted', 'variables') ON CONFLICT DO NOTHING
