-- What ordinary programs asked for.

-- Workflows as code: by which version of the rules an executor delivered a record; null before there were versions, and of
-- what others write.
ALTER TABLE journal ADD COLUMN rules smallint;
-- Who sent a message, for people.
ALTER TABLE journal ADD COLUMN sender text;

-- The outcome of a step, written by the step's own transaction as its last statement (durable/transaction.py): under the
-- fence, and with the lock of the run until that commits, for which it has 5 s. In the schema of its tables whoever calls.
CREATE FUNCTION penstock_append(
  run bigint, run_seq bigint, run_attempt int, run_holder text, step_path text, step_name text, value text, arguments int,
  step_attempt int, record_rules int) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  written bigint;
BEGIN
  PERFORM set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '5s', true);
  PERFORM FROM token t WHERE t.id = run AND t.seq = run_seq AND t.state = 1 /* LOCKED */ AND t.attempt = run_attempt
    AND t.claimed_by = run_holder FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'penstock: the run is not held by this executor any more' USING ERRCODE = 'PK001';
  END IF;
  INSERT INTO journal (instance_id, pos, at, kind, attempt, digest, path, name, payload, rules)
    VALUES (run, nextval('step_seq'), penstock_now(), 1, least(step_attempt, 32767), arguments, step_path, step_name, value,
      nullif(record_rules, 0))
    RETURNING pos INTO written;
  RETURN written;
END $$;

CREATE TABLE code_origin (             -- programs that serve workflows as code under no name: two of one workflow are noticed
  job_type    text NOT NULL,
  origin      text NOT NULL,           -- import name of the module and the function's name
  folder      text NOT NULL,           -- of its file, on an embedded database; else ''
  engine      int NOT NULL,            -- number of the engine that the App lives with; -1: it lives elsewhere
  holder      uuid,                    -- engine.holder then
  seen_at     timestamptz NOT NULL,
  PRIMARY KEY (job_type, origin, folder, engine)
);

-- A step whose work is done and whose result could not be mapped: what its mapping gave when a `retry` came back.
CREATE OR REPLACE FUNCTION penstock_kind(kind int) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT CASE kind WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* SKIPPED */ THEN 'SKIPPED'
    WHEN 4 /* INTERRUPTED */ THEN 'INTERRUPTED' WHEN 5 /* CAUGHT */ THEN 'CAUGHT' WHEN 6 /* COMPENSATED */ THEN 'COMPENSATED' WHEN 10 /* ATTEMPT_FAILED */ THEN 'ATTEMPT_FAILED'
    WHEN 11 /* ATTEMPT_EXPIRED */ THEN 'ATTEMPT_EXPIRED' WHEN 12 /* ATTEMPT_RELEASED */ THEN 'ATTEMPT_RELEASED'
    WHEN 13 /* ATTEMPT_REDISPATCHED */ THEN 'ATTEMPT_REDISPATCHED' WHEN 14 /* ATTEMPT_PARKED */ THEN 'ATTEMPT_PARKED'
    WHEN 15 /* JOB_SIGNALLED */ THEN 'JOB_SIGNALLED' WHEN 16 /* OUTPUT_MAPPED */ THEN 'OUTPUT_MAPPED' ELSE kind::text END $$;

-- Which version new starts of a definition use, where that is not the newest.
CREATE TABLE active_version (  -- of ids whose new starts do not use the newest version: which one they use
  id          text PRIMARY KEY,        -- of the definition
  key         int NOT NULL             -- definition.key
);
ALTER TABLE job_type ADD COLUMN placed boolean NOT NULL DEFAULT false;  -- somebody has put it into its queue: no program moves it

-- Which runs are blocked, since when and why.
CREATE TABLE blocked_run (             -- runs of code that no code of now could go on with, until one has. They stand in `parked`, too
  instance_id bigint PRIMARY KEY,
  since       timestamptz NOT NULL,
  reason      text NOT NULL
);
-- A run goes on that may have been blocked: it stands in `parked` only where it `waits` now.
CREATE FUNCTION penstock_goes_on(run bigint, waits boolean) RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
  DELETE FROM blocked_run WHERE instance_id = run;
  DELETE FROM parked WHERE instance_id = run AND token_id = run AND NOT waits;
$$;

-- What an expression gave for the pauses before retries when the step began.
ALTER TABLE token ADD COLUMN backoff_s float8;
ALTER TABLE token ADD COLUMN backoff_max_s float8;

-- What workflows as code take.
CREATE TABLE code_signature (          -- what workflows as code take, as the programs publish it that serve them
  job_type    text PRIMARY KEY,
  arguments   text NOT NULL            -- the JSON schema of their arguments
);

-- The text of a failure without the parts that differ between failures of one cause: engine/instances/causes.py does the same.
CREATE FUNCTION failure_words(reason text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT left(code || replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(substr(reason, length(code) + 1, 400),
      '(?<![A-Za-z0-9])''''[^'']*''''|(?<![A-Za-z0-9])''[^'']*''|"[^"]*"|`[^`]*`|“[^”]*”|„[^“”]*[“”]|«[^»]*»|»[^«]*«|‘[^’]*’|‹[^›]*›|›[^‹]*‹|「[^」]*」|『[^』]*』', '…', 'g'),
      '[A-Za-z][A-Za-z0-9+.-]{1,15}://[^ \t\r\n"''<>]*', '…', 'g'),
      '[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}', '…', 'g'),
      '(?<![A-Za-z0-9/.~…])[.~]{0,2}/[^ \t\r\n:;,"''()<>]+|(?<![A-Za-z0-9])[A-Za-z]:\\[^ \t\r\n:;,"''()<>]+|(?<![A-Za-z0-9\\])\\\\[^ \t\r\n:;,"''()<>]+|(?<![A-Za-z0-9/.~…_-])[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)+[.][A-Za-z][A-Za-z0-9]{0,4}(?![A-Za-z0-9])', '…', 'g'),
      '[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}', '…', 'g'),
      '(?<![A-Za-z0-9-])[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}(?![A-Za-z0-9-])', '…', 'g'),
      '(?<=[a-z0-9])-[b-df-hj-np-tv-xz2-9]{6,10}-[b-df-hj-np-tv-xz2-9]{5}(?![A-Za-z0-9])', '…', 'g'),
      '(?<![A-Za-z0-9:])[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?![A-Za-z0-9])', '…', 'g'),
      '[0-9]{1,3}(?:[.][0-9]{1,3}){3}(?::[0-9]{1,5})?', '…', 'g'),
      '((?:HTTP(?:/[0-9.]{1,3})?|http|[Ss]tatus|[Ee]rrno|SQLSTATE|sqlstate|[Ss]ignal|[Ss]uccess|<Response|(?<![A-Za-z])rc|TLS alert|[Ee]xited with|(?:[Ss]tatus|[Ee]rror|[Ee]xit|[Rr]esponse|[Rr]eturn)[ _-]?[Cc]ode)(?: |:|=|\[){1,3}|ORA-|PLS-|TNS-|AADSTS|HTTP/|[Ee]rror |(?<![A-Za-z])[Cc]ode ?= ?)([0-9]{1,6})(?![0-9A-Za-z])', '\1¦\2', 'g'),
      '((?:[Rr]eturned|[Rr]esponse|[Gg]ot|[Ee]rror):? |[(])([45][0-9]{2})(?![0-9A-Za-z.,])', '\1¦\2', 'g'),
      '(HRESULT:? )(0x)([0-9A-Fa-f]{8})(?![0-9A-Za-z])', '\1¦\2¦\3', 'g'),
      '(?<!¦)0x[0-9A-Fa-f]+|(?<![A-Za-z0-9¦])(?=[A-Fa-f]*[0-9])(?:[0-9a-f]{4,}|[0-9A-Fa-f]{6,})(?![A-Za-z0-9])', '…', 'g'),
      '(?<![A-Za-z0-9¦+/_-])(?=[A-Za-z+/_-]*[0-9]+[A-Za-z+/_-]*[A-Za-z][A-Za-z+/_-]*[0-9])[A-Za-z0-9+/_-]{20,}={0,2}(?![A-Za-z0-9+/_=-])', '…', 'g'),
      '(?<![A-Za-z0-9¦])(?=[A-Za-z]*[0-9]+[A-Za-z]+[0-9])[A-Za-z0-9]{12,}(?![A-Za-z0-9])', '…', 'g'),
      '(?<![0-9¦])[0-9]+(?:[.,][0-9]+)*', '…', 'g'), '¦', ''), 200)
    FROM (SELECT coalesce(substring(reason FROM '^[A-Za-z0-9_.-]{1,100} · '), '') AS code OFFSET 0) c $$;
-- A hash of those words. Its last 16 bits tell by which rules the words were found: `fill_causes` replaces others.
CREATE OR REPLACE FUNCTION failure_cause(reason text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT (hashtextextended(failure_words(reason), 0) & -65536) | 22 $$;

CREATE TABLE acknowledged (            -- rows of "Needs attention" that somebody has acknowledged
  key         text PRIMARY KEY,        -- of the row: its kind and what it is about
  count       int NOT NULL,            -- how many there were; with more the row needs attention again
  actor       text,
  note        text,
  at          timestamptz NOT NULL,
  until       timestamptz NOT NULL
);

CREATE TABLE bulk_done (               -- instances that a bulk operation was done to, so that it can tell what became of them
  operation   bigint NOT NULL,         -- bulk_operation.id
  instance_id bigint NOT NULL,
  PRIMARY KEY (operation, instance_id)
);

ALTER TABLE attempt_note ADD COLUMN stack_trace jsonb;  -- a text, encrypted as variables are
ALTER TABLE audit ADD COLUMN old text;  -- of a change: the value before; `detail` has the new one
