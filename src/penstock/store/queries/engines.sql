-- Engine processes on this database: numbers for ids, liveness, wake-ups between them, the dispatch mode.

-- name: claim_number
-- A number that nobody has leased ($1 holder $2 seconds $3 dispatch mode $4 description $5 schema version $6 process). Two
-- at once may pick the same: the second gets no row and asks again. 1020 to 1023 are of ids that SQL functions make.
INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version, process)
SELECT n, $1::uuid, penstock_now() + $2::float8 * interval '1 s', $3::text, $4::text, $5::int, $6::text
FROM generate_series(0, 1019) AS n
WHERE NOT EXISTS (SELECT FROM engine e WHERE e.number = n AND e.leased_until > penstock_now())
ORDER BY random() LIMIT 1
ON CONFLICT (number) DO UPDATE SET holder = excluded.holder, leased_until = excluded.leased_until,
  dispatch_mode = excluded.dispatch_mode, description = excluded.description, schema_version = excluded.schema_version,
  process = excluded.process, facts = NULL
WHERE engine.leased_until <= penstock_now()
RETURNING number

-- name: extend_number
-- The number that $1 holds already, for $2 seconds more: its claim was not answered.
UPDATE engine SET leased_until = penstock_now() + $2::float8 * interval '1 s'
WHERE holder = $1::uuid AND leased_until > penstock_now() RETURNING number

-- name: server_process
SELECT pg_backend_pid()

-- name: renew_number
UPDATE engine SET leased_until = penstock_now() + $3::float8 * interval '1 s', facts = $4::jsonb
WHERE number = $1::int AND holder = $2::uuid RETURNING number

-- name: leave
DELETE FROM engine WHERE number = $1::int AND holder = $2::uuid

-- name: hold_number
-- The session lock by which other engines see at once that this one is gone. 1885697139 is 'pens'.
SELECT pg_try_advisory_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), $1::int)

-- name: listen
-- Its channel is that of `notify`, which only an identifier can say here.
DO $$ BEGIN
  EXECUTE format('LISTEN %I', CASE WHEN nullif(current_setting('penstock.lock_class', true), '') IS NULL THEN 'penstock'
    ELSE left('penstock_' || current_schema(), 63) END);
END $$

-- name: notify
-- Each installation in a database has a channel of its own; that in `public` the plain one.
SELECT pg_notify(CASE WHEN nullif(current_setting('penstock.lock_class', true), '') IS NULL THEN 'penstock'
  ELSE left('penstock_' || current_schema(), 63) END, $1::text)

-- name: wait_replicated
-- Its commit is acknowledged when a synchronous standby has it, and with it everything before it. Writes nothing where
-- no standby is waited for. No row on a standby.
SELECT CASE WHEN current_setting('synchronous_standby_names') <> '' THEN pg_logical_emit_message(true, 'penstock', '') END
WHERE NOT pg_is_in_recovery()

-- name: others
-- Other engines with a valid lease: number, holder, process, mode, description, whether their session lock is held, seconds
-- left.
SELECT e.number, e.holder::text, e.process, e.dispatch_mode, e.description, EXISTS (
  SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139)::oid AND l.objid = e.number::oid
    AND l.objsubid = 2 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
  extract(epoch FROM e.leased_until - penstock_now())::float8
FROM engine e WHERE e.leased_until > penstock_now() AND e.holder <> $1::uuid

-- name: schema_version
SELECT max(version) FROM penstock_schema

-- name: record_version
INSERT INTO penstock_schema (version) VALUES ($1::int)

-- name: needed_version
SELECT coalesce((SELECT value::int FROM setting WHERE name = 'schema_version_needed'), 0)

-- name: lock_engines
LOCK TABLE engine IN SHARE MODE

-- name: older_engines
SELECT description, schema_version FROM engine WHERE leased_until > penstock_now() AND schema_version < $1::int LIMIT 1

-- name: raise_needed_version
WITH since AS (
  INSERT INTO setting (name, value) VALUES ('needed_since_' || $1::int, extract(epoch FROM clock_timestamp())::text)
  ON CONFLICT DO NOTHING)
INSERT INTO setting AS s (name, value) VALUES ('schema_version_needed', $1::int::text)
ON CONFLICT (name) DO UPDATE SET value = greatest(s.value::int, $1::int)::text

-- name: needed_since
-- Since when every engine here has known a schema version (infinity: not yet), in seconds since 1970 by the clock of whoever makes
-- ids; 0 where the database never had a version before it.
SELECT CASE
  WHEN NOT EXISTS (SELECT FROM penstock_schema WHERE version < $1::int) THEN 0
  WHEN coalesce((SELECT value::int FROM setting WHERE name = 'schema_version_needed'), 0) < $1::int THEN 'infinity'
  ELSE coalesce((SELECT min(value::float8) FROM setting
    WHERE starts_with(name, 'needed_since_') AND substr(name, 14)::int >= $1::int), 0) END::float8

-- name: schema_exists
SELECT to_regclass('penstock_schema') IS NOT NULL

-- name: find_schema
-- The schema in which this connection sees our tables (null: in none), and whether they are in that of new installations.
SELECT (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('penstock_schema')),
  to_regclass('penstock.penstock_schema') IS NOT NULL

-- name: make_schema
-- The first of the search path, when it is not there. Changes nothing for a path that finds one.
DO $$ BEGIN
  IF current_schema() IS NULL THEN
    EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', trim(both '"' from split_part(current_setting('search_path'), ',', 1)));
  END IF;
END $$

-- name: lock_schema
SELECT pg_advisory_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -1)

-- name: unlock_schema
SELECT pg_advisory_unlock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -1)

-- name: try_lock_builds
-- Not waited for in a statement: a build of an index waits for the statements of others.
SELECT pg_try_advisory_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -5)

-- name: unlock_builds
SELECT pg_advisory_unlock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -5)

-- name: wait_for_builds
SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false)

-- name: index_exists
SELECT to_regclass($1::text) IS NOT NULL

-- name: allow_sequential_scan
SET LOCAL enable_seqscan = on

-- name: locked_tables
-- Those of our tables that other sessions hold against writers. Row locks don't show here.
SELECT DISTINCT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid() AND c.relkind IN ('r', 'p')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'token'::regclass)
  AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
