-- The layout of the hot rows, settled once: later versions only add. `token`, `ready` and `engine` are rewritten in the
-- order of schema.sql, so no engine may live meanwhile, and one of version 1 that comes too late can't take a number.

LOCK TABLE engine, token, ready IN ACCESS EXCLUSIVE MODE;

DO $$
DECLARE
  alive text;
BEGIN
  -- One without its session lock that renewed its number within 10 s (of a lease of 30) may be starting.
  SELECT e.description INTO alive FROM engine e
  WHERE e.leased_until > penstock_now() + interval '20 s' OR e.leased_until > penstock_now() AND EXISTS (
    SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = 1885697139 AND l.objid = e.number::oid
      AND l.objsubid = 2 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
  LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the tables are rewritten for version 2 and an engine (%) lives: stop all engines first', alive
      USING ERRCODE = 'object_in_use';
  END IF;
END $$;

DELETE FROM engine;
ALTER TABLE engine ADD COLUMN schema_version int NOT NULL;

CREATE TEMP TABLE token_1 ON COMMIT DROP AS TABLE token;  -- not renamed: its constraints would keep their names
DROP TABLE token;
CREATE TABLE token (
  id          bigint PRIMARY KEY,
  instance_id bigint NOT NULL,
  parent_id   bigint,
  timeout_s   float8,
  failures    int NOT NULL DEFAULT 0,
  expiries    smallint NOT NULL DEFAULT 0,
  pending     smallint NOT NULL DEFAULT 0 CHECK (pending >= 0),
  arrived     smallint NOT NULL DEFAULT 0,
  side        boolean NOT NULL DEFAULT false,
  watched     boolean NOT NULL DEFAULT false,
  mail        int NOT NULL DEFAULT 0,
  unfolded    smallint NOT NULL DEFAULT 0,
  step        smallint NOT NULL,
  job_type    int,
  held        int,
  seq         bigint NOT NULL,
  queued      bigint,
  entry       bigint,
  entered_at  timestamptz NOT NULL,
  state       smallint NOT NULL CHECK (state BETWEEN 0 AND 15),
  priority    smallint NOT NULL DEFAULT 5,
  attempt     int NOT NULL DEFAULT 0,
  claimed_at  timestamptz,
  lease_until timestamptz,
  claimed_by  text,
  flow_key    text COLLATE "C",
  CHECK (state <> 1 OR (claimed_by IS NOT NULL AND lease_until IS NOT NULL)),
  CHECK ((state = 3) = (pending > 0)),
  CHECK (state <> 6 OR id = instance_id)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
INSERT INTO token (id, instance_id, parent_id, timeout_s, failures, expiries, pending, arrived, side, unfolded, step,
  job_type, seq, entered_at, state, attempt, claimed_at, lease_until, claimed_by)
SELECT id, instance_id, parent_id, timeout_s, failures, expiries, pending, arrived, side, unfolded, step,
  job_type, seq, entered_at, state, attempt, claimed_at, lease_until, claimed_by FROM token_1;
CREATE INDEX token_branch ON token (instance_id) WHERE id <> instance_id;

CREATE TEMP TABLE ready_1 ON COMMIT DROP AS TABLE ready;
DROP TABLE ready;
CREATE TABLE ready (
  job_type    int NOT NULL,
  priority    smallint NOT NULL DEFAULT 5,
  seq         bigint NOT NULL,
  token_id    bigint NOT NULL,
  PRIMARY KEY (job_type, priority, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO ready (job_type, seq, token_id) SELECT job_type, seq, token_id FROM ready_1 ORDER BY job_type, seq;

CREATE TABLE parked (
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  PRIMARY KEY (instance_id, token_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
INSERT INTO parked (instance_id, token_id) SELECT instance_id, id FROM token WHERE state = 2 ORDER BY 1, 2;

ALTER TABLE instance_key ADD COLUMN kept boolean NOT NULL DEFAULT false;

CREATE TABLE signal_id (
  instance_id bigint NOT NULL,
  id          text NOT NULL,
  request_hash bytea NOT NULL,
  PRIMARY KEY (instance_id, id)
);
