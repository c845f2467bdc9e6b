-- What the language and the flow of jobs got next.

-- forEach: which item an execution was for, and which a token is for.
ALTER TABLE history ADD COLUMN item int;
ALTER TABLE history ADD COLUMN items jsonb;
ALTER TABLE token ADD COLUMN item int;

-- Search attributes: variables by which the instances of definitions that declare them are found. No row for others.
CREATE TABLE search_attribute (
  instance_id bigint NOT NULL,
  name        text COLLATE "C" NOT NULL,  -- of the variable
  text        text COLLATE "C",        -- a text, or true or false. Never sealed
  number      float8,                  -- a number, or of a time the seconds since 1970
  PRIMARY KEY (instance_id, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX search_attribute_text ON search_attribute (name, text, instance_id) WHERE text IS NOT NULL;
CREATE INDEX search_attribute_number ON search_attribute (name, number, instance_id) WHERE number IS NOT NULL;

-- Instances that were migrated: which rows of theirs, by position, are of which version. Step numbers belong to a version.
CREATE TABLE instance_version (
  instance_id bigint NOT NULL,
  from_pos    bigint NOT NULL,         -- rows with this position and later ones; 0: those of its start
  definition  int NOT NULL,
  steps       smallint[],              -- of a version before: by its numbers those of the same steps now; -1: there is none
  PRIMARY KEY (instance_id, from_pos)
);
CREATE FUNCTION definition_at(instance bigint, pos bigint, last int) RETURNS int LANGUAGE sql STABLE PARALLEL SAFE
  AS $$ SELECT coalesce((SELECT v.definition FROM instance_version v
    WHERE v.instance_id = instance AND v.from_pos <= pos ORDER BY v.from_pos DESC LIMIT 1), last) $$;
CREATE FUNCTION step_now(instance bigint, pos bigint, step int) RETURNS int LANGUAGE sql STABLE PARALLEL SAFE
  AS $$ SELECT coalesce((SELECT v.steps[step + 1] FROM instance_version v
    WHERE v.instance_id = instance AND v.from_pos <= pos ORDER BY v.from_pos DESC LIMIT 1), step) $$;
ALTER TABLE token ADD COLUMN migrated boolean;
ALTER TABLE bulk_operation ADD COLUMN details jsonb, DROP CONSTRAINT bulk_operation_action_check,
  ADD CONSTRAINT bulk_operation_action_check CHECK (action IN ('retry', 'cancel', 'signal', 'skip', 'move', 'migrate', 'edit'));

-- For people, with names in place of numbers (docs/support.md). Programs of ours don't read them, but for the archive, whose
-- lines are their rows: a view would hold what a plan can do with its tables. now() and not penstock_now(), which is
-- volatile: nothing could be pushed down into the views.
-- A row is found fast by `number`, of instances also by business key, definition or parent; by anything else it is a walk.

CREATE FUNCTION penstock_number(id text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE  -- of an instance's id, as REST shows it
  AS $$ SELECT ('x' || lpad(id, 16, '0'))::bit(64)::bigint $$;

CREATE FUNCTION penstock_state(state int) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT CASE state WHEN 0 /* READY */ THEN 'READY' WHEN 1 /* LOCKED */ THEN 'LOCKED' WHEN 2 /* PARKED */ THEN 'PARKED'
    WHEN 3 /* FORKED */ THEN 'FORKED' WHEN 4 /* BACKOFF */ THEN 'BACKOFF' WHEN 5 /* DISPATCHED */ THEN 'DISPATCHED'
    WHEN 6 /* ENDED */ THEN 'ENDED' WHEN 7 /* CALLED */ THEN 'CALLED' WHEN 8 /* DELAYED */ THEN 'DELAYED' ELSE state::text END $$;

CREATE FUNCTION penstock_kind(kind int) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT CASE kind WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* SKIPPED */ THEN 'SKIPPED'
    WHEN 4 /* INTERRUPTED */ THEN 'INTERRUPTED' WHEN 5 /* CAUGHT */ THEN 'CAUGHT' WHEN 6 /* COMPENSATED */ THEN 'COMPENSATED' WHEN 10 /* ATTEMPT_FAILED */ THEN 'ATTEMPT_FAILED'
    WHEN 11 /* ATTEMPT_EXPIRED */ THEN 'ATTEMPT_EXPIRED' WHEN 12 /* ATTEMPT_RELEASED */ THEN 'ATTEMPT_RELEASED'
    WHEN 13 /* ATTEMPT_REDISPATCHED */ THEN 'ATTEMPT_REDISPATCHED' WHEN 14 /* ATTEMPT_PARKED */ THEN 'ATTEMPT_PARKED'
    WHEN 15 /* JOB_SIGNALLED */ THEN 'JOB_SIGNALLED' ELSE kind::text END $$;

-- Behind the steps of the definition come the hidden ones: a handler for each that has one, then what undoes an instance.
CREATE FUNCTION penstock_step_id(content text, step int) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT nullif(coalesce(content::json -> 'steps' -> step ->> 'id', (
    SELECT e.s ->> 'id' FROM json_array_elements(content::json -> 'steps') WITH ORDINALITY AS e(s, n)
    WHERE e.s -> 'compensation' IS NOT NULL AND e.s ->> 'type' IN ('SERVICE_TASK', 'CALL_ACTIVITY')
    ORDER BY e.n OFFSET greatest(0, step - json_array_length(content::json -> 'steps')) LIMIT 1), '') ||
    CASE WHEN step >= json_array_length(content::json -> 'steps') THEN '/compensation' ELSE '' END, '') $$;

CREATE VIEW penstock_definitions AS
SELECT d.id AS definition, d.version, d.name, d.description, d.code,
  NOT EXISTS (SELECT FROM definition n WHERE n.id = d.id AND n.version > d.version) AS latest,
  json_array_length(d.content::json -> 'steps') AS steps, d.uploaded_at, now() - d.uploaded_at AS age, d.content
FROM definition d;

CREATE VIEW penstock_instances AS      -- sealed variables show as {"$enc": "<key id>:…"}
SELECT to_hex(i.id) AS id, i.id AS number, d.id AS definition, d.version,
  CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* CANCELLED */ THEN 'CANCELLED'
    ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END AS status,
  i.business_key COLLATE "C" AS business_key, i.instance_key, i.started_at, i.ended_at,
  coalesce(i.ended_at, now()) - i.started_at AS age,
  ARRAY(SELECT penstock_step_id(d.content, t.step) FROM token t
    WHERE (t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id))
      AND t.state NOT IN (3 /* FORKED */, 6 /* ENDED */, 8 /* DELAYED */) ORDER BY t.seq) AS open_steps,
  i.failure, i.failure_code, to_hex(i.parent_id) AS parent, i.parent_id AS parent_number, i.started_by,
  i.vars || coalesce(i.overlay, '{}') || coalesce((
    SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
    WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}') AS variables, i.result
FROM instance i JOIN definition d ON d.key = i.definition;

CREATE VIEW penstock_failures AS       -- instances that have failed, and where
SELECT to_hex(e.instance_id) AS id, e.instance_id AS number, d.id AS definition, d.version, e.step, j.name AS job_type,
  i.failure, i.failure_code, e.cause, i.business_key COLLATE "C" AS business_key, i.started_at, i.ended_at,
  now() - i.ended_at AS age
FROM abnormal_end e JOIN instance i ON i.id = e.instance_id JOIN definition d ON d.key = i.definition
LEFT JOIN job_type j ON j.id = e.job_type
WHERE e.status = 2 /* FAILED */;

-- Branches of open instances, by numbers. In two arms, each with its instance: then either index of `token` serves a number.
CREATE VIEW penstock_branches AS
SELECT i.id AS number, i.definition, i.business_key, t.id AS token, t.step, t.seq, t.state, t.job_type, t.priority, t.flow_key,
  t.attempt, t.failures, t.entered_at, t.claimed_at, t.claimed_by, t.lease_until, t.waits_for, t.item
FROM token t JOIN instance i ON i.id = t.id WHERE t.id = t.instance_id
UNION ALL
SELECT i.id, i.definition, i.business_key, t.id, t.step, t.seq, t.state, t.job_type, t.priority, t.flow_key,
  t.attempt, t.failures, t.entered_at, t.claimed_at, t.claimed_by, t.lease_until, t.waits_for, t.item
FROM token t JOIN instance i ON i.id = t.instance_id WHERE t.id <> t.instance_id;

CREATE VIEW penstock_jobs AS           -- that are open
SELECT to_hex(b.number) || '-' || to_hex(b.token) || '-' || to_hex(b.seq) AS id, to_hex(b.number) AS instance, b.number,
  d.id AS definition, d.version, penstock_step_id(d.content, b.step) AS step, j.name AS job_type, penstock_state(b.state) AS state,
  b.attempt, b.failures, b.priority, b.flow_key, CASE WHEN b.state = 1 /* LOCKED */ THEN b.claimed_by END AS worker,
  CASE WHEN b.state IN (1 /* LOCKED */, 5 /* DISPATCHED */) THEN b.lease_until END AS lease_until,
  CASE WHEN b.state IN (2 /* PARKED */, 4 /* BACKOFF */) THEN (
    SELECT min(m.fire_at) FROM timer m WHERE m.token_id = b.token AND m.seq = b.seq AND m.index IN (-1, -2, -16)) END AS back_at,
  b.waits_for AS waits_for_signal, b.entered_at,
  now() - CASE WHEN b.state IN (1 /* LOCKED */, 5 /* DISPATCHED */) THEN b.claimed_at ELSE b.entered_at END AS age
FROM penstock_branches b JOIN definition d ON d.key = b.definition JOIN job_type j ON j.id = b.job_type
WHERE b.state NOT IN (3 /* FORKED */, 6 /* ENDED */, 7 /* CALLED */);

CREATE VIEW penstock_steps AS          -- entries of steps: those that are open, then what history has of the others
SELECT to_hex(b.number) AS instance, b.number, d.id AS definition, d.version, penstock_step_id(d.content, b.step) AS step,
  penstock_state(b.state) AS status, true AS open, b.attempt, b.claimed_by AS worker, b.entered_at AS started_at,
  NULL::timestamptz AS ended_at, now() - b.entered_at AS age, NULL::text AS reason, NULL::text AS error_code, b.item,
  NULL::jsonb AS output, b.seq, 9223372036854775807 AS pos
FROM penstock_branches b JOIN definition d ON d.key = b.definition WHERE b.state NOT IN (3 /* FORKED */, 6 /* ENDED */, 8 /* DELAYED */)
UNION ALL
SELECT to_hex(h.instance_id), h.instance_id, d.id, d.version, penstock_step_id(d.content, x.step), penstock_kind(x.kind), false,
  x.attempt, x.worker, x.started_at, h.ended_at, h.ended_at - x.started_at, x.reason, x.error_code, x.item, x.output, x.seq, h.pos
FROM history h JOIN instance i ON i.id = h.instance_id JOIN definition d ON d.key = coalesce((
  SELECT v.definition FROM instance_version v WHERE v.instance_id = i.id AND v.from_pos <= h.pos  -- as definition_at, by the view's own right
  ORDER BY v.from_pos DESC LIMIT 1), i.definition)
CROSS JOIN LATERAL (
  SELECT h.seq, h.step, h.kind, h.started_at, h.attempt, h.worker, h.reason, h.error_code, h.item, h.output
  UNION ALL
  SELECT h.pos, h.end_step, 1 /* COMPLETED */, h.ended_at, 0, NULL, NULL, NULL, NULL, NULL WHERE h.end_step IS NOT NULL) x;

CREATE VIEW penstock_timers AS         -- to come; `step` is null of one whose execution is closed: it is swept
SELECT to_hex(m.instance_id) AS instance, m.instance_id AS number, d.id AS definition, d.version,
  penstock_step_id(d.content, t.step) AS step,
  CASE WHEN m.index >= 0 THEN 'BOUNDARY' WHEN m.index = -1 THEN 'RETRY' WHEN m.index = -2 THEN 'WAIT' WHEN m.index = -3 THEN 'CONTINUE'
    WHEN m.index IN (-4, -5, -7) THEN 'CALL' WHEN m.index = -6 THEN 'DELAY' WHEN m.index = -8 THEN 'MESSAGE' WHEN m.index IN (-12, -13) THEN 'SCHEDULE'
    WHEN m.index = -16 THEN 'WAKE' ELSE 'OTHER' END AS kind,
  m.fire_at, m.fire_at - now() AS due_in, coalesce(m.failures, 0) AS failures
FROM timer m LEFT JOIN instance i ON i.id = m.instance_id LEFT JOIN definition d ON d.key = i.definition
LEFT JOIN token t ON t.id = m.token_id AND t.seq = m.seq;
-- Messages and who waits for them.
CREATE TABLE message (
  id          bigint PRIMARY KEY,
  name        text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  for_all     boolean NOT NULL,
  taken       boolean NOT NULL,
  published_at timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  size_bytes  int NOT NULL,
  body        jsonb NOT NULL,
  sender      text,
  message_id  text
);
CREATE INDEX message_kept ON message (name, key, id) WHERE NOT taken;
CREATE INDEX message_expiry ON message (expires_at) WHERE NOT taken;
CREATE TABLE subscription (
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  instance_id bigint NOT NULL,
  name        text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  message     bigint,
  PRIMARY KEY (token_id, seq)
);
CREATE INDEX subscription_waiting ON subscription (name, key, seq) WHERE message IS NULL;
CREATE INDEX subscription_message ON subscription (message) WHERE message IS NOT NULL;
CREATE TABLE message_id (
  id          text PRIMARY KEY,
  request_hash bytea NOT NULL,
  message     bigint NOT NULL,
  receivers   jsonb,
  expires_at  timestamptz NOT NULL
);
CREATE INDEX message_id_expiry ON message_id (expires_at);

-- forEach: what is kept of its items.
CREATE TABLE map_state (               -- how far a forEach is, by the token of its step
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  total       int NOT NULL,            -- items
  next        int NOT NULL,            -- the first that has not begun
  done        int NOT NULL,
  failed      int NOT NULL,
  kept_bytes  int NOT NULL,            -- of what is collected
  PRIMARY KEY (instance_id, token_id)
) WITH (fillfactor = 50);

CREATE TABLE item_vars (               -- the variables of each item of a forEach, from its beginning to its end
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,         -- of the forEach; that of an item has it as parent_id
  item        int NOT NULL,
  vars        jsonb NOT NULL,
  PRIMARY KEY (instance_id, token_id, item)
);

CREATE TABLE map_result (              -- what is collected of the items of a forEach: gathered once, at its end
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  item        int NOT NULL,
  value       jsonb NOT NULL,
  PRIMARY KEY (instance_id, token_id, item)
);
-- The console: what engines say of themselves, of their queues and of the workers that they see.
ALTER TABLE engine ADD COLUMN facts jsonb;
ALTER TABLE sample ADD COLUMN queues jsonb;
ALTER TABLE worker_seen ADD COLUMN leased int NOT NULL DEFAULT 0;
ALTER TABLE worker_seen ADD COLUMN done int NOT NULL DEFAULT 0;
ALTER TABLE worker_seen ADD COLUMN failed int NOT NULL DEFAULT 0;

-- Queues: policies that limit the jobs of some types, the jobs that wait under one or with a key, what the limits count.
CREATE TABLE ready_flow (
  job_type    int NOT NULL,
  priority    smallint NOT NULL,
  flow_key    text COLLATE "C" NOT NULL,
  seq         bigint NOT NULL,
  token_id    bigint NOT NULL,
  PRIMARY KEY (job_type, priority, flow_key, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE queue (
  id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text COLLATE "C" NOT NULL UNIQUE,
  policy      jsonb NOT NULL,
  revision    bigint NOT NULL
);
CREATE TABLE slot (
  queue       int NOT NULL,
  running     int NOT NULL DEFAULT 0,
  tat         timestamptz,
  flow_key    text COLLATE "C" NOT NULL,
  PRIMARY KEY (queue, flow_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE job_type ADD COLUMN queue int, ADD COLUMN keyed boolean NOT NULL DEFAULT false;
ALTER TABLE instance ADD COLUMN priority smallint, ADD COLUMN flow_key text COLLATE "C";
-- The outcome of a step, written by the step's own transaction as its last statement (durable/transaction.py): under the
-- fence, and with the lock of the run until that commits, for which it has 5 s. In the schema of its tables whoever calls.
CREATE FUNCTION penstock_append(
  run bigint, run_seq bigint, run_attempt int, run_holder text, step_path text, step_name text, value text, arguments int,
  step_attempt int) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  written bigint;
BEGIN
  PERFORM set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '5s', true);
  PERFORM FROM token t WHERE t.id = run AND t.seq = run_seq AND t.state = 1 /* LOCKED */ AND t.attempt = run_attempt
    AND t.claimed_by = run_holder FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'penstock: the run is not held by this executor any more' USING ERRCODE = 'PK001';
  END IF;
  INSERT INTO journal (instance_id, pos, at, kind, attempt, digest, path, name, payload)
    VALUES (run, nextval('step_seq'), penstock_now(), 1, least(step_attempt, 32767), arguments, step_path, step_name, value)
    RETURNING pos INTO written;
  RETURN written;
END $$;

-- Compensation.
CREATE TABLE compensation (            -- completed executions that a handler has undone, or is about to: none twice
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,         -- of the execution's row in history
  token_id    bigint NOT NULL UNIQUE,  -- the handler's
  PRIMARY KEY (instance_id, pos)
);

CREATE TABLE undoing (                 -- instances that are undone before they end, and how they do; stays as long as they
  instance_id bigint PRIMARY KEY,
  status      smallint NOT NULL CHECK (status IN (2 /* FAILED */, 3 /* CANCELLED */)),
  failure     text,
  failure_code text,
  step        smallint,                -- that failed
  job         boolean NOT NULL         -- whether that was a job
);

CREATE TABLE item_output (             -- what items of a forEach completed with, of those that can be undone
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,         -- of the item's row in history
  output      jsonb NOT NULL,
  PRIMARY KEY (instance_id, pos)
);

-- Schedules: what is started by the clock, what became of each time, and which instances were started so.
CREATE TABLE schedule (
  id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text NOT NULL UNIQUE,
  spec        jsonb NOT NULL,
  variables   jsonb NOT NULL,
  definition_id text NOT NULL,
  done_until  timestamptz NOT NULL,
  fire_at     timestamptz,
  buffered    timestamptz[] NOT NULL DEFAULT '{}',
  last_instance bigint,
  paused      boolean NOT NULL DEFAULT false,
  note        text,
  backfill    jsonb,
  missed      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_due ON schedule (fire_at) WHERE fire_at IS NOT NULL;

CREATE TABLE schedule_run (
  schedule    int NOT NULL,
  at          timestamptz NOT NULL,
  seq         bigint GENERATED ALWAYS AS IDENTITY,
  instance_id bigint,
  outcome     smallint NOT NULL,
  reason      text,
  PRIMARY KEY (schedule, at)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_run_order ON schedule_run (schedule, seq);

CREATE TABLE scheduled (
  instance_id bigint PRIMARY KEY,
  schedule    text NOT NULL,
  at          timestamptz NOT NULL,
  watched     boolean NOT NULL
);

-- What attempts of jobs were given, and told last.
CREATE TABLE attempt_note (
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  attempt     int NOT NULL,
  parameters  jsonb,
  parameters_bytes int,
  progress    jsonb,
  PRIMARY KEY (instance_id, token_id, seq, attempt)
);

-- Which bulk operation changed variables.
ALTER TABLE variables_edit ADD bulk bigint;

-- Starts that share a key for a while: who asks for the same again, or too often.
CREATE TABLE start_window (
  definition_id text COLLATE "C" NOT NULL,
  kind        smallint NOT NULL,
  key         text COLLATE "C" NOT NULL,
  until       timestamptz NOT NULL,
  instance_id bigint NOT NULL,
  PRIMARY KEY (definition_id, kind, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX start_window_end ON start_window (until);
-- Which line a throttled start stands in; null costs nothing.
ALTER TABLE timer ADD throttle jsonb;

-- Runs of code that a queue counts as open.
ALTER TABLE token ADD run_queue int;
ALTER TABLE slot ADD open_runs int NOT NULL DEFAULT 0;

-- Traces: what instances were started in, where the engine has traces.
CREATE TABLE trace_context (
  instance_id bigint PRIMARY KEY,
  traceparent text NOT NULL CHECK (length(traceparent) = 55)
);

-- Retention by rules: what is kept longer than its partition moves to one of its own.
ALTER TABLE log_partition ADD COLUMN moved_at timestamptz;
CREATE FUNCTION move_kept_history(held text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  own text := held || '_kept';
  range log_partition;
BEGIN
  SELECT * FROM log_partition INTO STRICT range WHERE name = held AND parent = 'history' AND moved_at IS NULL;
  EXECUTE format('LOCK TABLE %I IN SHARE MODE', held);
  EXECUTE format('CREATE TABLE %I (LIKE history INCLUDING ALL) WITH (autovacuum_vacuum_insert_scale_factor = 0.5)', own);
  EXECUTE format('INSERT INTO %I SELECT h.* FROM %I h WHERE EXISTS (SELECT FROM instance i WHERE i.id = h.instance_id)', own, held);
  EXECUTE format('ALTER TABLE history DETACH PARTITION %I', held);
  EXECUTE format('DROP TABLE %I', held);
  EXECUTE format('ALTER TABLE history ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', own,
    first_instance_id(range.since), first_instance_id(range.until));
  UPDATE log_partition SET name = own, moved_at = penstock_now() WHERE name = held;
  RETURN own;
END $$;

-- Calls of runs of code.
ALTER TABLE called ADD COLUMN path text;

-- A worker completes its job in a transaction of its own, on this database: with what it did, or not at all. The job is then
-- PARKED with its holder and a timer, which engines take up like any completion; nobody else may end it before.
-- Its errors: PK001 the job is held no more, PK002 not enabled, PK003 an argument. Its lock on the job is held until the
-- transaction ends, for which it has 5 s.
CREATE TABLE recorded_output (         -- variables of jobs that their workers' own transactions completed, until they are taken up
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  variables   jsonb NOT NULL,          -- never sealed
  PRIMARY KEY (instance_id, token_id, seq)
);
CREATE FUNCTION complete(job text, attempt int, worker text, variables jsonb DEFAULT NULL) RETURNS void
  LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
#variable_conflict use_column
DECLARE
  ids bigint[] := ARRAY(SELECT penstock_number(part) FROM unnest(
    regexp_match(job, '^([0-7]?[0-9a-f]{1,15})-([0-7]?[0-9a-f]{1,15})-([0-7]?[0-9a-f]{1,15})$')) part);
  largest CONSTANT int := 1048576;
BEGIN
  IF coalesce((SELECT s.value::int FROM setting s WHERE s.name = 'schema_version_needed'), 0) < 18 THEN
    RAISE EXCEPTION 'penstock: complete() is not enabled here' USING ERRCODE = 'PK002',
      HINT = 'penstock migrate --may-complete ROLE enables it, once all engines know it';
  ELSIF cardinality(ids) <> 3 OR attempt IS NULL OR worker IS NULL THEN
    RAISE EXCEPTION 'penstock: complete() needs the id, the attempt and the worker of the job as its poll gave them'
      USING ERRCODE = 'PK003';
  ELSIF jsonb_typeof(variables) NOT IN ('object', 'null') THEN
    RAISE EXCEPTION 'penstock: variables: must be a JSON object, not %', jsonb_typeof(variables) USING ERRCODE = 'PK003';
  ELSIF octet_length(variables::text) > largest THEN
    RAISE EXCEPTION 'penstock: variables: has % bytes, more than %', octet_length(variables::text), largest
      USING ERRCODE = 'PK003';
  ELSIF variables @? 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")' THEN
    RAISE EXCEPTION 'penstock: variables: nested more than 100 levels deep' USING ERRCODE = 'PK003';
  ELSIF variables @? 'strict $.** ? (@.type() == "number" && (@ > 1e308 || @ < -1e308))' THEN
    RAISE EXCEPTION 'penstock: variables: has a number that is outside what an IEEE double can hold' USING ERRCODE = 'PK003';
  ELSIF variables <> '{}' AND variables <> 'null' AND EXISTS (SELECT FROM setting s WHERE s.name = 'encrypted') THEN
    RAISE EXCEPTION 'penstock: variables: the engines here encrypt them, which complete() can not' USING ERRCODE = 'PK003',
      HINT = 'Complete without variables, or report the job to the engine.';
  END IF;
  PERFORM set_config('idle_in_transaction_session_timeout', '5s', true) FROM pg_settings
    WHERE name = 'idle_in_transaction_session_timeout' AND setting::int NOT BETWEEN 1 AND 5000;
  UPDATE token t SET state = 2 /* PARKED */, job_type = NULL, claimed_by = worker, lease_until = NULL
    FROM job_type j WHERE t.id = ids[2] AND t.instance_id = ids[1] AND t.seq = ids[3] AND t.attempt = complete.attempt
    AND (t.state = 1 /* LOCKED */ AND t.claimed_by = worker OR t.state = 5 /* DISPATCHED */)
    AND j.id = t.job_type AND j.name NOT LIKE 'code:%';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'penstock: job % is not held by worker % in attempt % any more', job, worker, complete.attempt
      USING ERRCODE = 'PK001';
  END IF;
  INSERT INTO parked (instance_id, token_id) VALUES (ids[1], ids[2]);
  INSERT INTO timer (token_id, seq, fire_at, instance_id, index) VALUES (ids[2], ids[3], penstock_now(), ids[1], -9);
  IF variables <> '{}' AND variables <> 'null' THEN
    INSERT INTO recorded_output VALUES (ids[1], ids[2], ids[3], variables);
  END IF;
  PERFORM pg_notify(CASE current_schema() WHEN 'public' THEN 'penstock' ELSE left('penstock_' || current_schema(), 63) END,
    'sql t 0');
END $$;
REVOKE ALL ON FUNCTION complete(text, int, text, jsonb) FROM PUBLIC;
DO $$ BEGIN  -- of its owner's right, so nobody else's tables and functions: those of temporary schemas come last
  EXECUTE format('ALTER FUNCTION complete(text, int, text, jsonb) SET search_path = %I, pg_temp', current_schema());
END $$;

-- Batches: starts that were asked for together.
CREATE TABLE batch (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key         text COLLATE "C" UNIQUE,
  digest      bytea NOT NULL,
  total       int NOT NULL,
  begun       int NOT NULL DEFAULT 0,
  ended       int NOT NULL DEFAULT 0,
  cancelled   int,
  reason      text,
  on_complete text,
  note        text,
  actor       text,
  created_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  look_at     timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX batch_due ON batch (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX batch_end ON batch (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE batch_item (
  batch       bigint NOT NULL,
  place       int NOT NULL,
  instance_id bigint,
  request     jsonb,
  variables   jsonb,
  error       text,
  reason      text,
  PRIMARY KEY (batch, place)
) WITH (fillfactor = 80);
