-- A program starts, sends, signals, publishes and cancels in a transaction of its own, on this database. Each function only
-- inserts a row here, which an engine carries out after the commit, and deletes. It locks no row of an instance, run, queue or
-- definition. Their errors: docs/your-transaction.md.
CREATE TABLE sql_request (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- requests of one transaction are carried out in order
  operation   text NOT NULL CHECK (operation IN ('start', 'send', 'signal', 'publish', 'cancel')),
  instance_id bigint,                  -- that it is about; of a start the one that will be; null of a message
  definition_id text,                  -- of that instance
  instance_key text,                   -- of a start
  request     jsonb NOT NULL,          -- as REST has it, without variables
  body        jsonb,                   -- variables, or the payload of a message to a run. Never sealed
  size_bytes  int NOT NULL,            -- of body
  role        text NOT NULL,           -- of the database: who asked
  asked_at    timestamptz NOT NULL DEFAULT penstock_now(),
  tries       int NOT NULL DEFAULT 0,  -- that the engine was too busy for
  due_at      timestamptz,             -- not before
  failed_at   timestamptz,             -- it waits for somebody to retry or drop it
  error       text,                    -- the code of the refusal, and its reason
  reason      text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX sql_request_instance ON sql_request (instance_id) WHERE operation = 'start';
CREATE UNIQUE INDEX sql_request_key ON sql_request (definition_id, instance_key) WHERE instance_key IS NOT NULL AND failed_at IS NULL;
CREATE INDEX sql_request_transaction ON sql_request (xid, id) WHERE failed_at IS NULL;
CREATE INDEX sql_request_failed ON sql_request (id) WHERE failed_at IS NOT NULL;

CREATE TABLE sql_right (               -- what roles may ask for: everything (''), or what is about instances of one definition
  role        text NOT NULL,
  definition_id text NOT NULL,
  PRIMARY KEY (role, definition_id)
);

-- The engine numbers 1020 to 1023, which no engine takes, and this: 16,384 ids in a millisecond.
CREATE SEQUENCE sql_instance_seq MINVALUE 0 MAXVALUE 16383 CYCLE;

-- Who asks. Raises unless all engines know requests, and, with a definition, unless the role may ask about its instances ('': it
-- has to be allowed everything).
CREATE FUNCTION penstock_asking(operation text, definition text) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  asking text := CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END;
BEGIN
  IF coalesce((SELECT s.value::int FROM setting s WHERE s.name = 'schema_version_needed'), 0) < 22 THEN
    IF EXISTS (SELECT FROM engine e WHERE e.schema_version < 22 AND e.leased_until > penstock_now()) THEN
      RAISE EXCEPTION 'penstock: an engine here is too old for %()', operation USING ERRCODE = 'PK011',
        HINT = 'Upgrade all engines, then run: penstock migrate --may-start ROLE';
    END IF;
    RAISE EXCEPTION 'penstock: %() is not enabled here', operation USING ERRCODE = 'PK002',
      HINT = 'penstock migrate --may-start ROLE enables it, once all engines know it';
  ELSIF definition IS NOT NULL AND NOT pg_has_role(asking, current_user, 'USAGE') AND NOT EXISTS (
    SELECT FROM sql_right g JOIN pg_catalog.pg_roles r ON r.rolname = g.role
    WHERE g.definition_id IN ('', definition) AND pg_has_role(asking, r.oid, 'USAGE')) THEN
    RAISE EXCEPTION 'penstock: the role % may not %', asking, CASE definition WHEN '' THEN operation
      ELSE format('%s instances of the definition ''%s''', operation, definition) END USING ERRCODE = 'PK010',
      HINT = 'penstock migrate --may-start ROLE allows everything, with --definition ID what is about its instances';
  END IF;
  RETURN asking;
END $$;

-- The instance of an id, and its definition. Raises where there is none, and none is about to be.
CREATE FUNCTION penstock_asked_of(instance text, OUT number bigint, OUT definition text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
  number := CASE WHEN instance ~ '^([0-7][0-9a-f]{15}|[1-9a-f][0-9a-f]{0,14})$' THEN penstock_number(instance) END;
  SELECT d.id INTO definition FROM instance i JOIN definition d ON d.key = i.definition WHERE i.id = number
  UNION ALL SELECT r.definition_id FROM sql_request r WHERE r.instance_id = number AND r.operation = 'start' LIMIT 1;
  IF definition IS NULL THEN
    RAISE EXCEPTION 'penstock: instance: there is none with the id ''%''', left(instance, 100) USING ERRCODE = 'PK005',
      HINT = 'An instance that another transaction starts can be named once that transaction has committed.';
  END IF;
END $$;

-- Raises where a text has to be there and is not, or is longer.
CREATE FUNCTION penstock_check_text(field text, value text, longest int, needed boolean DEFAULT false) RETURNS void
  LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF needed AND coalesce(value, '') = '' THEN
    RAISE EXCEPTION 'penstock: %: is required', field USING ERRCODE = 'PK003';
  ELSIF length(value) > longest THEN
    RAISE EXCEPTION 'penstock: %: has % characters, more than %', field, length(value), longest USING ERRCODE = 'PK003';
  END IF;
END $$;

-- The size of a JSON value in bytes. Raises where it can't be kept.
CREATE FUNCTION penstock_check_body(field text, body jsonb, is_object boolean) RETURNS int LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  size_bytes int := coalesce(octet_length(body::text), 0);
  largest CONSTANT int := 4194304;
BEGIN
  IF is_object AND jsonb_typeof(body) NOT IN ('object', 'null') THEN
    RAISE EXCEPTION 'penstock: %: must be a JSON object, not %', field, jsonb_typeof(body) USING ERRCODE = 'PK003';
  ELSIF size_bytes > largest THEN
    RAISE EXCEPTION 'penstock: %: has % bytes, more than %', field, size_bytes, largest USING ERRCODE = 'PK007';
  ELSIF body @? 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")' THEN
    RAISE EXCEPTION 'penstock: %: nested more than 100 levels deep', field USING ERRCODE = 'PK008';
  ELSIF body @? 'strict $.** ? (@.type() == "number" && (@ > 1e308 || @ < -1e308))' THEN
    RAISE EXCEPTION 'penstock: %: has a number that is outside what an IEEE double can hold', field USING ERRCODE = 'PK003';
  ELSIF size_bytes > 0 AND body NOT IN ('{}', 'null') AND EXISTS (SELECT FROM setting s WHERE s.name = 'encrypted') THEN
    RAISE EXCEPTION 'penstock: %: the engines here encrypt them, which SQL can not', field USING ERRCODE = 'PK009',
      HINT = 'Leave them out and let the workflow read them by a key, or call the engine.';
  END IF;
  RETURN size_bytes;
END $$;

-- Wakes an engine, unless the transaction says that it can't: one that is prepared (PREPARE TRANSACTION) may notify nobody.
CREATE FUNCTION penstock_wake() RETURNS void LANGUAGE sql AS $$
  SELECT pg_notify(CASE current_schema() WHEN 'public' THEN 'penstock' ELSE left('penstock_' || current_schema(), 63) END, 'sql r')
  WHERE coalesce(current_setting('penstock.notify', true), '') <> 'off'
$$;

-- Start an instance; its id.
CREATE FUNCTION start(
  definition text, variables jsonb DEFAULT NULL, instance_key text DEFAULT NULL, business_key text DEFAULT NULL,
  version int DEFAULT NULL, start_at timestamptz DEFAULT NULL, priority int DEFAULT NULL, flow_key text DEFAULT NULL,
  keep_instance_key boolean DEFAULT false) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
  asking text := penstock_asking('start', definition);
  size_bytes int := penstock_check_body('variables', variables, true);
  number bigint;
  place bigint;
BEGIN
  PERFORM penstock_check_text('definition', definition, 256, true), penstock_check_text('instance_key', instance_key, 256),
    penstock_check_text('business_key', business_key, 512), penstock_check_text('flow_key', flow_key, 256, flow_key = '');
  IF priority NOT BETWEEN 0 AND 9 THEN
    RAISE EXCEPTION 'penstock: priority: must be 0 to 9, not %', priority USING ERRCODE = 'PK003';
  ELSIF NOT isfinite(start_at) THEN
    RAISE EXCEPTION 'penstock: start_at: must be a time, not %', start_at USING ERRCODE = 'PK003';
  ELSIF keep_instance_key AND coalesce(instance_key, '') = '' THEN
    RAISE EXCEPTION 'penstock: keep_instance_key: needs an instance_key to keep' USING ERRCODE = 'PK003';
  ELSIF NOT EXISTS (SELECT FROM definition d WHERE d.id = definition AND d.version = coalesce(version, d.version)) THEN
    RAISE EXCEPTION 'penstock: definition: ''%'' % is unknown', definition, coalesce('version ' || version, '')
      USING ERRCODE = 'PK004';
  END IF;
  LOOP
    place := nextval('sql_instance_seq');
    number := first_instance_id(penstock_now()) | ((1020 + (place >> 12)) << 12) | (place & 4095);
    CONTINUE WHEN EXISTS (SELECT FROM instance i WHERE i.id = number);  -- the clock was set back
    INSERT INTO sql_request AS r (operation, instance_id, definition_id, instance_key, request, body, size_bytes, role)
    VALUES ('start', number, definition, nullif(instance_key, ''), jsonb_strip_nulls(jsonb_build_object(
      'definitionId', definition, 'definitionVersion', version, 'instanceKey', nullif(instance_key, ''),
      'businessKey', business_key, 'keepInstanceKey', nullif(keep_instance_key, false), 'priority', priority,
      'flowKey', flow_key, 'startAt', to_char(start_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))),
      variables, size_bytes, asking)
    ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND AND (instance_key IS NULL OR NOT EXISTS (
      SELECT FROM instance_key k WHERE k.definition_id = definition AND k.key = instance_key));
    IF FOUND OR EXISTS (SELECT FROM sql_request r WHERE r.definition_id = definition AND r.instance_key = instance_key
      AND r.failed_at IS NULL) THEN
      RAISE EXCEPTION 'penstock: instance_key: an instance of ''%'' has the key ''%''', definition, instance_key
        USING ERRCODE = 'PK006';
    END IF;
  END LOOP;
  PERFORM penstock_wake();
  RETURN to_hex(number);
END $$;

-- Send a message to a run of a workflow function; the number of the request.
CREATE FUNCTION send(run text, name text, payload jsonb DEFAULT 'null', message_id text DEFAULT NULL) RETURNS bigint
  LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
  asking text := penstock_asking('send', NULL);
  about record := penstock_asked_of(run);
  request bigint;
BEGIN
  PERFORM penstock_asking('send', about.definition), penstock_check_text('name', name, 256, true),
    penstock_check_text('message_id', message_id, 256);
  INSERT INTO sql_request (operation, instance_id, definition_id, request, body, size_bytes, role)
  VALUES ('send', about.number, about.definition, jsonb_strip_nulls(jsonb_build_object('name', name, 'messageId', message_id)),
    coalesce(payload, 'null'), penstock_check_body('payload', payload, false), asking) RETURNING id INTO request;
  PERFORM penstock_wake();
  RETURN request;
END $$;

-- Signal a step that waits, or will; the number of the request.
CREATE FUNCTION signal(instance text, step text, variables jsonb DEFAULT NULL, signal_id text DEFAULT NULL) RETURNS bigint
  LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
  asking text := penstock_asking('signal', NULL);
  about record := penstock_asked_of(instance);
  request bigint;
BEGIN
  PERFORM penstock_asking('signal', about.definition), penstock_check_text('step', step, 256, true),
    penstock_check_text('signal_id', signal_id, 256);
  INSERT INTO sql_request (operation, instance_id, definition_id, request, body, size_bytes, role)
  VALUES ('signal', about.number, about.definition, jsonb_strip_nulls(jsonb_build_object('stepId', step, 'signalId', signal_id)),
    variables, penstock_check_body('variables', variables, true), asking) RETURNING id INTO request;
  PERFORM penstock_wake();
  RETURN request;
END $$;

-- Publish a message to whoever waits for its name and key, or will; the number of the request.
CREATE FUNCTION publish(
  name text, key text, variables jsonb DEFAULT NULL, ttl text DEFAULT NULL, message_id text DEFAULT NULL,
  deliver text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
  asking text := penstock_asking('publish', '');
  request bigint;
BEGIN
  PERFORM penstock_check_text('name', name, 256, true), penstock_check_text('key', key, 256, true),
    penstock_check_text('message_id', message_id, 256, message_id = '');
  IF deliver NOT IN ('ONE', 'ALL') THEN
    RAISE EXCEPTION 'penstock: deliver: must be ONE or ALL' USING ERRCODE = 'PK003';
  END IF;
  INSERT INTO sql_request (operation, request, body, size_bytes, role)
  VALUES ('publish', jsonb_strip_nulls(jsonb_build_object('name', name, 'correlationKey', key, 'ttl', ttl, 'messageId', message_id,
    'deliver', deliver)), variables, penstock_check_body('variables', variables, true), asking) RETURNING id INTO request;
  PERFORM penstock_wake();
  RETURN request;
END $$;

-- Cancel an instance, or ask a run to end; the number of the request.
CREATE FUNCTION cancel(instance text, reason text DEFAULT NULL, compensate boolean DEFAULT false) RETURNS bigint
  LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
  asking text := penstock_asking('cancel', NULL);
  about record := penstock_asked_of(instance);
  request bigint;
BEGIN
  PERFORM penstock_asking('cancel', about.definition), penstock_check_text('reason', reason, 4096);
  INSERT INTO sql_request (operation, instance_id, definition_id, request, size_bytes, role)
  VALUES ('cancel', about.number, about.definition, jsonb_strip_nulls(jsonb_build_object('reason', reason, 'compensate',
    nullif(compensate, false))), 0, asking) RETURNING id INTO request;
  PERFORM penstock_wake();
  RETURN request;
END $$;

-- Of their owner's right, and nobody's until `penstock migrate --may-start`. In `public`, where everybody's functions may lie,
-- their names have a prefix.
DO $$
DECLARE
  one regprocedure;
BEGIN
  FOREACH one IN ARRAY ARRAY[
    'penstock_asking(text, text)', 'penstock_asked_of(text)', 'penstock_check_text(text, text, int, boolean)',
    'penstock_check_body(text, jsonb, boolean)', 'penstock_wake()',
    'start(text, jsonb, text, text, int, timestamptz, int, text, boolean)', 'send(text, text, jsonb, text)',
    'signal(text, text, jsonb, text)', 'publish(text, text, jsonb, text, text, text)', 'cancel(text, text, boolean)']::regprocedure[]
  LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', one);
    EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', one, current_schema());
    IF current_schema() = 'public' AND NOT starts_with((SELECT proname FROM pg_proc WHERE oid = one), 'penstock_') THEN
      EXECUTE format('ALTER FUNCTION %s RENAME TO %I', one, 'penstock_' || (SELECT proname FROM pg_proc WHERE oid = one));
    END IF;
  END LOOP;
END $$;
