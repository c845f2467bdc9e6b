-- Penstock's schema: the one truth, applied to an empty database by `penstock migrate` and at start-up. One that holds an
-- older version is brought here by src/penstock/store/migrations/. How to change it: CONTRIBUTING.md.
-- PostgreSQL >= 15.
--
-- What is hot and what is not (figures: benchmarks/results/notebook.md):
--   instance   written at its start and at its end; `overlay` now and then (see below)
--   token      one narrow row per branch, updated in place: no volatile column is indexed, fillfactor leaves room
--              on the page, so that nearly every update is HOT (heap-only: no index is touched)
--   ready      only the jobs that nobody was waiting for; deleted at the claim
--   timer      boundary timers, retry back-offs, ends of waits; deleted in the statement that closes their step
--   journal    append-only, but for retries and runs that continue as new ones; of durable runs, which have one row in `history`
--   history    append-only; one row per closed step execution or ended attempt; carries the variable delta;
--              partitioned by time, so that old history is dropped, not deleted
--
-- Lock order, everywhere: the root token of each instance (by id), then its other tokens (by id), then `ready`,
-- `timer`, `open_task`, `history`, `instance` and the rest, last `slot` (by its key). A statement that goes the other way round (claims, timer sweeps) takes
-- its tokens with SKIP LOCKED and never waits.
--
-- Variables of an instance are  vars || overlay || outputs of history with pos > folded_pos, in order of pos.
-- `pos` is taken from step_seq after the token's lock, never a time. Folding moves outputs into `overlay` under the
-- locks of all tokens, and records how far it went; `vars` (it may be 256 kB) is written again only when somebody edits
-- the variables, which folds everything into it; `variables_edit` keeps what it was.
--
-- Numbers of states, statuses and kinds: src/penstock/core/rules/state.py. Times come from penstock_now() only.

CREATE TABLE penstock_schema (
  version     int PRIMARY KEY,
  applied_at  timestamptz NOT NULL DEFAULT now()
);

-- The one clock of everything durable. clock_timestamp() and not now(): a statement that waited for a lock must see
-- the time after the wait. A function, so that tests can set the clock of a database.
CREATE FUNCTION penstock_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
  AS $$ SELECT clock_timestamp() $$;

CREATE AGGREGATE jsonb_merge(jsonb) (sfunc = jsonb_concat, stype = jsonb, initcond = '{}');

-- One position for everything that has an order: step executions (token.seq), history rows, audit records.
CREATE SEQUENCE step_seq;

CREATE TABLE setting (                 -- facts about the database that all engines on it share
  name        text PRIMARY KEY,
  value       text NOT NULL
);

CREATE TABLE engine (                  -- one row per number that engines put into ids; a leased row
  number      int PRIMARY KEY CHECK (number BETWEEN 0 AND 1023),
  holder      uuid NOT NULL,
  leased_until timestamptz NOT NULL,
  dispatch_mode text NOT NULL,
  description text NOT NULL,           -- host and process id, for people
  schema_version int NOT NULL,         -- the newest that this engine knows
  process     text,                    -- what tells its process from all others, also of other machines
  facts       jsonb                    -- what it says of itself every few seconds, for people; of engines from version 18 on
);

CREATE TABLE job_type (
  id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text NOT NULL UNIQUE,
  queue       int,                     -- whose policy its jobs are under
  keyed       boolean NOT NULL DEFAULT false, -- in a queue, or had a job with a flow key: its jobs wait in `ready_flow`; stays
  placed      boolean NOT NULL DEFAULT false  -- somebody has put it into its queue: no program moves it
);

CREATE TABLE code_origin (             -- programs that serve durable workflows under no name: two of one workflow are noticed
  job_type    text NOT NULL,
  origin      text NOT NULL,           -- import name of the module and the function's name
  folder      text NOT NULL,           -- of its file, on an embedded database; else ''
  engine      int NOT NULL,            -- number of the engine that the App lives with; -1: it lives elsewhere
  holder      uuid,                    -- engine.holder then
  seen_at     timestamptz NOT NULL,
  PRIMARY KEY (job_type, origin, folder, engine)
);

CREATE TABLE code_signature (          -- what durable workflows take, as the programs publish it that serve them
  job_type    text PRIMARY KEY,
  arguments   text NOT NULL            -- the JSON schema of their arguments
);

CREATE TABLE definition (
  key         int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- what instance.definition refers to
  id          text NOT NULL,
  version     int NOT NULL CHECK (version > 0),
  name        text NOT NULL,
  description text,
  content     text NOT NULL,           -- canonical JSON; text, because jsonb would reorder it
  uploaded_at timestamptz NOT NULL,
  code        boolean NOT NULL DEFAULT false,  -- generated for a durable workflow
  UNIQUE (id, version)
);

CREATE TABLE active_version (          -- of ids whose new starts do not use the newest version: which one they use
  id          text PRIMARY KEY,        -- of the definition
  key         int NOT NULL             -- definition.key
);

CREATE TABLE instance (
  id          bigint PRIMARY KEY,      -- made by the engine, time-ordered: 41 bits ms | 10 bits engine | 12 bits count
  started_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  parent_id   bigint,                  -- the instance that chained into this one
  folded_pos  bigint NOT NULL DEFAULT 0,
  definition  int NOT NULL,            -- definition.key; no foreign key: it cost 23 % CPU per start
  status      smallint NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 3),
  vars        jsonb NOT NULL,
  overlay     jsonb,
  business_key text,
  instance_key text,
  failure     text,
  started_by  text,                    -- with authentication: the caller that was proved
  failure_code text,                   -- of the error that failed it
  result      jsonb,                   -- what its END gave
  priority    smallint,                -- of its jobs, and their flow key, where steps have none of their own; null: 5
  flow_key    text COLLATE "C",
  CHECK ((status = 0 /* ACTIVE */) = (ended_at IS NULL))
) WITH (fillfactor = 50);                -- the one update at the end is HOT then: 100 B of WAL less per job
CREATE INDEX instance_definition ON instance (definition, id);
CREATE INDEX instance_key_prefix ON instance (business_key COLLATE "C", id) WHERE business_key IS NOT NULL;
CREATE INDEX instance_parent ON instance (parent_id, id) WHERE parent_id IS NOT NULL;

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
CREATE FUNCTION failure_cause(reason text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT (hashtextextended(failure_words(reason), 0) & -65536) | 22 $$;

CREATE TABLE abnormal_end (            -- instances that failed or were cancelled: found without an index on status
  status      smallint NOT NULL CHECK (status IN (2 /* FAILED */, 3 /* CANCELLED */)),
  instance_id bigint NOT NULL,
  job_type    int,                     -- of the job that failed for good; null when no job did
  tokens      jsonb,                   -- what a failure closed, for `retry`
  definition  int,                     -- of a failure; this and the next two are null of those before version 12
  step        text,                    -- id of the step that failed
  cause       bigint,                  -- failure_cause of the reason
  PRIMARY KEY (status, instance_id)
);
CREATE INDEX abnormal_end_cause ON abnormal_end (cause, instance_id) WHERE cause IS NOT NULL;
CREATE INDEX abnormal_end_step ON abnormal_end (definition, step, instance_id) WHERE step IS NOT NULL;
CREATE INDEX failed_job ON abnormal_end (instance_id) WHERE job_type IS NOT NULL;
CREATE INDEX failed_job_type ON abnormal_end (job_type, instance_id) WHERE job_type IS NOT NULL;

CREATE TABLE instance_version (        -- of instances that were migrated: which rows, by position, are of which version.
                                       -- Step numbers belong to a version
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

CREATE TABLE instance_key (            -- unique among the instances of a definition id that are open or keep theirs
  definition_id text NOT NULL,
  key         text NOT NULL,
  instance_id bigint NOT NULL UNIQUE,
  kept        boolean NOT NULL DEFAULT false,  -- stays after the instance's end, as long as its row
  PRIMARY KEY (definition_id, key)
);

-- The order of the columns: WAL holds of an update what lies between the first and the last byte that changed, so what
-- seldom changes comes first and what a claim sets comes last (26 B less per job). `watched`, `mail`, `held`, `priority`
-- and `flow_key` are for what comes; they lie in the padding or are null, and cost an ordinary row no byte.
CREATE TABLE token (
  id          bigint PRIMARY KEY,      -- = instance_id for the root token, which is the instance's lock
  instance_id bigint NOT NULL,
  parent_id   bigint,                  -- the gateway's token, while inside its block; of an item that of its forEach
  timeout_s   float8,                  -- an attempt's lease is never extended beyond so many seconds
  failures    int NOT NULL DEFAULT 0,
  expiries    smallint NOT NULL DEFAULT 0,
  pending     smallint NOT NULL DEFAULT 0 CHECK (pending >= 0),
  arrived     smallint NOT NULL DEFAULT 0,
  side        boolean NOT NULL DEFAULT false,
  watched     boolean NOT NULL DEFAULT false,  -- of the root: somebody is to be told of its end
  mail        int NOT NULL DEFAULT 0,  -- of a code run: what it has been told
  unfolded    smallint NOT NULL DEFAULT 0,
  step        smallint NOT NULL,
  job_type    int,
  held        int,                     -- slots of its attempt: queue * 4 + (1: the queue's) + (2: its key's); null: none
  seq         bigint NOT NULL,         -- this step execution; the job id is (instance_id, id, seq)
  queued      bigint,                  -- while READY, the id of its row in `ready`; null: seq
  entry       bigint,                  -- this entry of the step, the same after a `retry` of the instance; null: seq
  entered_at  timestamptz NOT NULL,
  state       smallint NOT NULL CHECK (state BETWEEN 0 AND 15),
  priority    smallint NOT NULL DEFAULT 5,
  attempt     int NOT NULL DEFAULT 0,
  claimed_at  timestamptz,
  lease_until timestamptz,             -- kept after expiry, as the last holder is
  claimed_by  text,                    -- of a token PARKED: by whose own transaction its job was completed
  flow_key    text COLLATE "C",
  waits_for   text,                    -- of a parked job: the signal that wakes it
  item        int,                     -- index of the item of a forEach that it is for
  migrated    boolean,                 -- its instance came to another version since it entered the step: what engines
                                       -- remember of that is of the one before. Null: no
  run_queue   int,                     -- of a durable run: the queue that counts it as open; its priority is less by 10
  backoff_s   float8,                  -- first and longest pause before a retry, where the step's are evaluated
  backoff_max_s float8,
  CHECK (state <> 1 /* LOCKED */ OR (claimed_by IS NOT NULL AND lease_until IS NOT NULL)),
  CHECK ((state = 3 /* FORKED */) = (pending > 0)),
  CHECK (state <> 6 /* ENDED */ OR id = instance_id)
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX token_branch ON token (instance_id) WHERE id <> instance_id;

-- A row's `seq` is an id of its own for each time that a job is queued: the first time that of the execution, which costs
-- nothing, then one from step_seq that stands in token.queued. So a row is a job's if, and only if, the token is READY
-- and says so. One that was not seen by the statement that should have deleted it (it came after the statement's snapshot,
-- before its lock on the token) is no job's ever again, and goes when a claim meets it.
CREATE TABLE ready (
  job_type    int NOT NULL,
  priority    smallint NOT NULL DEFAULT 5,  -- lowest first
  seq         bigint NOT NULL,         -- oldest first
  token_id    bigint NOT NULL,
  PRIMARY KEY (job_type, priority, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- As `ready`, of jobs under a queue's policy or with a flow key: keys take turns within a priority. Which of the two tables
-- a READY token waits in stands in it: in `ready` if, and only if, its flow_key is null ('': no key, and waits here).
CREATE TABLE ready_flow (
  job_type    int NOT NULL,
  priority    smallint NOT NULL,
  flow_key    text COLLATE "C" NOT NULL,
  seq         bigint NOT NULL,
  token_id    bigint NOT NULL,
  PRIMARY KEY (job_type, priority, flow_key, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE queue (                   -- a policy for the jobs of some types
  id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text COLLATE "C" NOT NULL UNIQUE,
  policy      jsonb NOT NULL,          -- store/rows/queues.py has its fields
  revision    bigint NOT NULL
);

CREATE TABLE slot (                    -- what limits count: of a queue ('') and of its flow keys. Locked after tokens, in
  queue       int NOT NULL,            -- the order of the key
  running     int NOT NULL DEFAULT 0,  -- tokens whose `held` counts here, always
  tat         timestamptz,             -- GCRA: when what a rate let begin is paid for
  flow_key    text COLLATE "C" NOT NULL,
  open_runs   int NOT NULL DEFAULT 0,  -- tokens whose `run_queue` this is; of a queue's own row
  PRIMARY KEY (queue, flow_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE parked (                  -- tokens in state PARKED, and those of blocked runs: what makes an instance WAITING
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  PRIMARY KEY (instance_id, token_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE blocked_run (             -- durable runs that no code of now could go on with, until one has. They stand in `parked`, too
  instance_id bigint PRIMARY KEY,
  since       timestamptz NOT NULL,
  reason      text NOT NULL
);
-- A run goes on that may have been blocked: it stands in `parked` only where it `waits` now.
CREATE FUNCTION penstock_goes_on(run bigint, waits boolean) RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
  DELETE FROM blocked_run WHERE instance_id = run;
  DELETE FROM parked WHERE instance_id = run AND token_id = run AND NOT waits;
$$;

CREATE TABLE open_task (               -- user tasks that are open: the inbox. From tokens PARKED on a USER_TASK
  seq         bigint NOT NULL,         -- of the execution
  token_id    bigint NOT NULL,
  instance_id bigint NOT NULL,
  entered_at  timestamptz NOT NULL,
  job_type    int NOT NULL,            -- for whom
  definition  int NOT NULL,
  step        smallint NOT NULL,
  assignee    text COLLATE "C",        -- who has claimed it; advice
  PRIMARY KEY (job_type, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX open_task_assignee ON open_task (assignee, seq) WHERE assignee IS NOT NULL;

CREATE TABLE called (                  -- instances that a call of another one started
  id          bigint PRIMARY KEY,
  caller      bigint NOT NULL,         -- the instance, its token and the execution that waits; after a retry of the caller,
  token_id    bigint NOT NULL,         -- the new one
  seq         bigint NOT NULL,
  root        bigint NOT NULL,         -- the first instance of the tree: none of it is removed before that one
  depth       smallint NOT NULL,
  path        text                     -- of a durable run that calls: the operation that waits, and `seq` is of the call alone
);
CREATE UNIQUE INDEX called_by ON called (token_id, seq);
CREATE INDEX called_caller ON called (caller, id);

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

CREATE TABLE item_output (             -- what items of a forEach that can be undone completed with; raw results to be mapped
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,         -- of its row in history
  output      jsonb NOT NULL,
  PRIMARY KEY (instance_id, pos)
);

CREATE TABLE timer (
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,         -- with token_id the second net: a timer of a closed execution is void
  fire_at     timestamptz NOT NULL,
  instance_id bigint NOT NULL,
  index       smallint NOT NULL,       -- position in boundaryEvents; negative: src/penstock/core/rules/state.py
  failures    smallint,                -- how often it could not be acted on; null: never
  throttle    jsonb,                   -- of a throttled start: definition id, key, seconds between two, burst, whether it was put off
  PRIMARY KEY (token_id, seq, index)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX timer_due ON timer (fire_at);

CREATE TABLE history (
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  started_at  timestamptz NOT NULL,
  ended_at    timestamptz NOT NULL,
  claimed_at  timestamptz,
  attempt     int NOT NULL,
  step        smallint NOT NULL,
  kind        smallint NOT NULL,
  end_step    smallint,                -- the END that the same statement entered and closed: a row of its own for it
                                       -- would be 64 B of WAL per job of a run of three; its seq is this row's pos
  worker      text,
  reason      text,
  output      jsonb,
  error_code  text,                    -- of the error with which it ended
  item        int,                     -- index of the item of a forEach
  items       jsonb,                   -- of the whole of one: {"total", "completed", "failed", "running": 0}
  PRIMARY KEY (instance_id, pos)
) PARTITION BY RANGE (instance_id);      -- ids are ordered by time, and every statement names the instance
CREATE TABLE history_other PARTITION OF history DEFAULT WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

CREATE TABLE journal (                 -- of runs of durable workflows: all that came from outside into the body
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,         -- from step_seq, under the token's lock
  at          timestamptz NOT NULL,    -- one time per statement
  kind        smallint NOT NULL,       -- kernel/record.py has the numbers
  attempt     smallint NOT NULL,       -- of the step
  digest      int,                     -- CRC-32 of the encoded arguments
  took_ms     int,
  path        text NOT NULL,           -- of the operation that it answers; '' for the clock, the scope's for a cancel
  name        text,
  payload     text,                    -- JSON; anything else is '~<codec>:<base64>', which no JSON begins with
  mark        text,                    -- of `patched`: what the code asked for the first time before this record
  rules       smallint,                -- by which version of the rules an executor delivered it; null before there were versions, and of what others write
  sender      text,                    -- of a message: who sent it, for people
  PRIMARY KEY (instance_id, pos)
) PARTITION BY RANGE (instance_id);
CREATE TABLE journal_other PARTITION OF journal DEFAULT WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

CREATE TABLE variables_edit (          -- people changed an instance's variables
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,         -- outputs of history with a lower one are in what `vars` became
  before      jsonb NOT NULL,          -- `vars` as it was
  bulk        bigint,                  -- the bulk operation that did it
  PRIMARY KEY (instance_id, pos)
);

CREATE TABLE job_note (                -- what heartbeats left: one row per token, void when seq is another
  token_id    bigint PRIMARY KEY,
  seq         bigint NOT NULL,
  attempt     int NOT NULL,
  checkpoint  jsonb,
  progress    jsonb
);

CREATE TABLE attempt_note (            -- what attempts of jobs were given, and told last; stays as long as the instance
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  attempt     int NOT NULL,
  parameters  jsonb,                   -- variables, encrypted where there are keys; where they are recorded, and not too large
  parameters_bytes int,                -- of these
  progress    jsonb,
  stack_trace jsonb,                   -- a text, encrypted as variables are: where the worker that failed it had the error
  PRIMARY KEY (instance_id, token_id, seq, attempt)
);

CREATE TABLE buffered_signal (
  id          bigint PRIMARY KEY,
  instance_id bigint NOT NULL,
  step        smallint NOT NULL,
  received_at timestamptz NOT NULL,
  output      jsonb NOT NULL
);
CREATE INDEX buffered_signal_instance ON buffered_signal (instance_id, id);

CREATE TABLE signal_id (               -- signals, messages and calls that came with an id of their sender's; kept as long as the instance
                                       -- but for refused calls: the newest, with `~u:<position>:<id>` beside each (forget_refusals)
  instance_id bigint NOT NULL,
  id          text NOT NULL,
  request_hash bytea NOT NULL,
  answer      text,                    -- of a call of an update (`u:<id>`): JSON, sealed as payloads are; null until it is answered
  PRIMARY KEY (instance_id, id)
);

-- Messages (core/rules/correlation.py). All that changes which message is for which wait is done under an advisory lock of the
-- name and the key, taken after all locks of rows.
CREATE TABLE message (                 -- deleted by the wait that receives it, or when it has expired
  id          bigint PRIMARY KEY,
  name        text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  for_all     boolean NOT NULL,        -- several waits may have it
  taken       boolean NOT NULL,        -- it is for a wait; else it is kept for one that may come
  published_at timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,    -- of those that are kept
  size_bytes  int NOT NULL,            -- of the clear body
  body        jsonb NOT NULL,          -- variables, encrypted where there are keys
  sender      text,
  message_id  text                     -- the sender's own id of it
);
CREATE INDEX message_kept ON message (name, key, id) WHERE NOT taken;
CREATE INDEX message_expiry ON message (expires_at) WHERE NOT taken;

CREATE TABLE subscription (            -- open waits for a message
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  instance_id bigint NOT NULL,
  name        text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  message     bigint,                  -- the one that is for it: then a timer with index -8 is armed
  PRIMARY KEY (token_id, seq)
);
CREATE INDEX subscription_waiting ON subscription (name, key, seq) WHERE message IS NULL;
CREATE INDEX subscription_message ON subscription (message) WHERE message IS NOT NULL;

CREATE TABLE message_id (              -- ids that senders gave, by which repeats are known
  id          text PRIMARY KEY,
  request_hash bytea NOT NULL,
  message     bigint NOT NULL,
  receivers   jsonb,                   -- whom it was for at first: [[instance, definition, step], …]
  expires_at  timestamptz NOT NULL
);
CREATE INDEX message_id_expiry ON message_id (expires_at);

CREATE TABLE idempotency (
  scope       text NOT NULL,           -- 'start' or 'signal:<instance>:<step>'
  key         text NOT NULL,
  request_hash bytea NOT NULL,
  instance_id bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  answer      bytea,                   -- the first answer, word for word; NULL for answers without a body
  PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);

CREATE TABLE audit (                   -- what neither instance nor history records
  pos         bigint NOT NULL,
  at          timestamptz NOT NULL,
  instance_id bigint,
  token_id    bigint,
  seq         bigint,
  step        smallint,
  kind        text NOT NULL,
  actor       text,
  detail      text,
  old         text,                    -- of a change: the value before; `detail` has the new one
  PRIMARY KEY (pos, at)
) PARTITION BY RANGE (at);
CREATE TABLE audit_other PARTITION OF audit DEFAULT;
CREATE INDEX audit_instance ON audit (instance_id, pos) WHERE instance_id IS NOT NULL;

CREATE TABLE dispatch_outbox (         -- Kafka mode: jobs to publish, in order; ids only, folded when published
  id          bigint NOT NULL,         -- from step_seq; also the dedup_id
  instance_id bigint NOT NULL,
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  job_type    int NOT NULL,
  attempt     int NOT NULL,            -- the attempt that this row dispatches; the row is void once the token is past it
  PRIMARY KEY (job_type, id)           -- a topic whose rows wait is no burden to the others
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE api_token (               -- who may call, with authentication; `setting` counts the changes
  id          text PRIMARY KEY,        -- public: part of the token, names it in lists
  name        text NOT NULL,           -- whom the audit trail names
  digest      bytea NOT NULL UNIQUE,   -- SHA-256 of the token, which is shown once and kept nowhere
  roles       text NOT NULL,           -- as access/roles.py writes them: viewer+worker(pack|ship)
  created_at  timestamptz NOT NULL,
  created_by  text NOT NULL,
  expires_at  timestamptz,
  revoked_at  timestamptz
);

CREATE TABLE session (                 -- of people at the console; ended ones are gone, `setting` counts those that were ended
  digest      bytea PRIMARY KEY,       -- SHA-256 of the cookie
  id          text NOT NULL UNIQUE,    -- names it to people
  name        text NOT NULL,           -- the audit trail's: token:… or oidc:…
  key         text NOT NULL,           -- what it was opened with; of a token, what the session ends with
  permissions text[] NOT NULL,         -- of one that was opened with a JSON Web Token; an API token's are as they are now
  job_types   text[],                  -- a worker's limit, null: none
  created_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL
);
CREATE INDEX session_key ON session (key, created_at);
CREATE INDEX session_expiry ON session (expires_at);

CREATE TABLE sample (                  -- what an engine counted in a span of time: 10 s for an hour, 60 s for a day, 600 s for a week
  span_s      int NOT NULL,
  at          timestamptz NOT NULL,    -- the span's beginning; of those of 10 s its end
  engine      int NOT NULL,
  counts      jsonb NOT NULL,          -- {"started": 12, "completed": 11, …}
  workers     jsonb NOT NULL,          -- how many poll for each job type; kept in those of 10 s only
  queues      jsonb,                   -- by job type: jobs under lease, jobs done, seconds since the last poll; in those of 10 s only
  PRIMARY KEY (span_s, at, engine)
);

CREATE TABLE worker_seen (             -- workers by their own names, for a day
  worker      text COLLATE "C" NOT NULL,
  engine      int NOT NULL,            -- that saw them
  job_types   jsonb NOT NULL,
  polled_at   timestamptz NOT NULL,
  leased      int NOT NULL DEFAULT 0,  -- jobs that it had
  done        int NOT NULL DEFAULT 0,  -- jobs that it did within the 15 minutes before
  failed      int NOT NULL DEFAULT 0,  -- … that it reported as failed
  PRIMARY KEY (worker, engine)
);

CREATE TABLE acknowledged (            -- rows of "Needs attention" that somebody has acknowledged
  key         text PRIMARY KEY,        -- of the row: its kind and what it is about
  count       int NOT NULL,            -- how many there were; with more the row needs attention again
  actor       text,
  note        text,
  at          timestamptz NOT NULL,
  until       timestamptz NOT NULL
);

CREATE TABLE bulk_operation (          -- something done to many instances: by one engine at a time, page by page, newest first
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  action      text NOT NULL CHECK (action IN ('retry', 'cancel', 'signal', 'skip', 'move', 'migrate', 'edit')),
  filter      jsonb NOT NULL,          -- which, or {"ids": […]}
  step        text,                    -- of a signal
  output      text,                    -- of a signal, encrypted where variables are
  note        text,                    -- for the audit trail of each instance
  actor       text,
  per_second  float8,                  -- null: as fast as it goes
  total       int NOT NULL,            -- that matched when it was made
  total_exact boolean NOT NULL,
  created_at  timestamptz NOT NULL,
  below       bigint NOT NULL,         -- instances with ids below are still to come; those started later never come
  done        int NOT NULL DEFAULT 0,  -- counted with what is done to each, in one transaction
  skipped     int NOT NULL DEFAULT 0,  -- there was nothing to do any more
  failed      int NOT NULL DEFAULT 0,
  errors      jsonb NOT NULL DEFAULT '[]',
  stage       text NOT NULL DEFAULT 'RUNNING' CHECK (stage IN ('RUNNING', 'DONE', 'STOPPED')),
  ended_at    timestamptz,
  engine      int,                     -- that works on it
  leased_until timestamptz,            -- until then
  details     jsonb,                   -- of an action that needs more: {"toStepId": …} or {"version": …, "steps": {…}}
  counted     bigint[] NOT NULL DEFAULT '{}' -- instances of the page under way that are in `done`
);
CREATE INDEX bulk_running ON bulk_operation (id) WHERE stage = 'RUNNING';

CREATE TABLE bulk_done (               -- instances that a bulk operation was done to, so that it can tell what became of them
  operation   bigint NOT NULL,         -- bulk_operation.id
  instance_id bigint NOT NULL,
  PRIMARY KEY (operation, instance_id)
);

CREATE TABLE schedule (                -- what is started by the clock
  id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text NOT NULL UNIQUE,
  spec        jsonb NOT NULL,          -- when, and what to do where runs meet: core/time/schedule.py
  variables   jsonb NOT NULL,
  definition_id text NOT NULL,
  done_until  timestamptz NOT NULL,    -- up to here each of its times was decided about
  fire_at     timestamptz,             -- when to look at it next; null: not before somebody changes it
  buffered    timestamptz[] NOT NULL DEFAULT '{}',  -- times that wait for the end of the open run
  last_instance bigint,                -- that it started
  paused      boolean NOT NULL DEFAULT false,
  note        text,                    -- why it is paused
  backfill    jsonb,                   -- one under way, and how far it came
  missed      bigint NOT NULL DEFAULT 0  -- times that passed and were not caught up
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_due ON schedule (fire_at) WHERE fire_at IS NOT NULL;

CREATE TABLE declared (                -- schedules and queues as the code of durable workflows has them; operators may have changed them
  kind        text NOT NULL,           -- schedule, queue
  name        text COLLATE "C" NOT NULL,
  workflow    text NOT NULL,           -- the id of its definition
  version     int NOT NULL,            -- of the workflow: the highest holds
  body        jsonb,                   -- as the code has it; null: no code has it any more
  applied     jsonb,                   -- what was put because of it; null: nothing was
  seen_at     timestamptz NOT NULL,    -- when a program said so last
  PRIMARY KEY (kind, name)
);
CREATE INDEX declared_workflow ON declared (workflow);

CREATE TABLE schedule_run (            -- what became of its times; the last 100. The key is the second net against two runs of one
  schedule    int NOT NULL,
  at          timestamptz NOT NULL,    -- the nominal time
  seq         bigint GENERATED ALWAYS AS IDENTITY,  -- in what order they were decided about
  instance_id bigint,
  outcome     smallint NOT NULL,       -- core/time/schedule.py has the numbers
  reason      text,                    -- why it could not be started
  PRIMARY KEY (schedule, at)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_run_order ON schedule_run (schedule, seq);

CREATE TABLE trace_context (           -- the trace that an instance was started in: its jobs go on with it. Empty without otel_enabled
  instance_id bigint PRIMARY KEY,
  traceparent text NOT NULL CHECK (length(traceparent) = 55)
);

CREATE TABLE scheduled (               -- instances that a schedule started
  instance_id bigint PRIMARY KEY,
  schedule    text NOT NULL,           -- its name, also when it is gone
  at          timestamptz NOT NULL,
  watched     boolean NOT NULL         -- whether the schedule is to be told of its end
);

CREATE TABLE start_window (            -- starts that share a key for a while: who asks for the same again, or too often
  definition_id text COLLATE "C" NOT NULL,
  kind        smallint NOT NULL,       -- 1: once in a window, 2: so many in a period, 3: put off (src/penstock/core/rules/start_rules.py)
  key         text COLLATE "C" NOT NULL,
  until       timestamptz NOT NULL,    -- the end of the window; of 2 when all that began would be due if they came evenly
  instance_id bigint NOT NULL,         -- whose window it is; of 2 zero
  PRIMARY KEY (definition_id, kind, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX start_window_end ON start_window (until);

CREATE TABLE batch (                   -- starts that were asked for together, and are followed together
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key         text COLLATE "C" UNIQUE, -- that the caller gave, and what it asked for then
  digest      bytea NOT NULL,
  total       int NOT NULL,
  begun       int NOT NULL DEFAULT 0,  -- items before this place are started, or refused
  ended       int NOT NULL DEFAULT 0,  -- items before this place had ended, all of them, when it was looked at
  cancelled   int,                     -- of a batch that is cancelled: items before this place are, too
  reason      text,                    -- why it was cancelled
  on_complete text,                    -- the definition that is started when all have ended
  note        text,
  actor       text,
  created_at  timestamptz NOT NULL,
  ended_at    timestamptz,
  look_at     timestamptz              -- when to look at it next; null: it has ended
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX batch_due ON batch (look_at) WHERE look_at IS NOT NULL;
CREATE INDEX batch_end ON batch (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE batch_item (              -- what a batch starts, in order; place -1: what is started at its end
  batch       bigint NOT NULL,
  place       int NOT NULL,
  instance_id bigint,                  -- written by the transaction that starts it, so it is started once
  request     jsonb,                   -- until then; without variables
  variables   jsonb,                   -- likewise, encrypted where variables are
  error       text,                    -- the code of a refusal
  reason      text,
  PRIMARY KEY (batch, place)
) WITH (fillfactor = 80);

-- Partitions of `history` and `journal` (by the time in the instance's id) and `audit` (by `at`). They are made ahead of time, in which
-- case the default partitions stay empty; what falls outside all of them lands there and is never dropped.
CREATE TABLE log_partition (
  name        text PRIMARY KEY,
  parent      text NOT NULL CHECK (parent IN ('history', 'audit', 'journal')),
  since       timestamptz NOT NULL,
  until       timestamptz NOT NULL CHECK (until > since),
  moved_at    timestamptz,             -- when what is kept for longer moved here, and the rest went
  UNIQUE (parent, since)
);

-- The smallest id that an instance started at a time can have; engine/requests/ids.py has the layout.
CREATE FUNCTION first_instance_id(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT greatest(0, floor(extract(epoch FROM at) * 1000)::bigint - 1735689600000) << 22 $$;

-- Attached, not created in place: that would lock the parent against writers; this locks the (empty) default only.
CREATE FUNCTION add_log_partition(parent text, since timestamptz, until timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  name text := parent || to_char(since AT TIME ZONE 'UTC', '_YYYYMMDD_HH24MI');
  low text := CASE parent WHEN 'audit' THEN since::text ELSE first_instance_id(since)::text END;
  high text := CASE parent WHEN 'audit' THEN until::text ELSE first_instance_id(until)::text END;
BEGIN
  INSERT INTO log_partition (name, parent, since, until) VALUES (name, parent, since, until);
  EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL) WITH (autovacuum_vacuum_insert_scale_factor = 0.5)', name, parent);
  EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, name, low, high);
  RETURN name;
END $$;

CREATE FUNCTION drop_log_partition(gone text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  owner text;
BEGIN
  DELETE FROM log_partition WHERE name = gone RETURNING parent INTO STRICT owner;
  EXECUTE format('ALTER TABLE %I DETACH PARTITION %I', owner, gone);
  EXECUTE format('DROP TABLE %I', gone);
END $$;

-- Retention by rules: rows of a partition of history whose instances are there still move to one of their own, and the
-- rest goes with the partition.
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
-- The same of an engine that knows no rules.
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
    WHEN 15 /* JOB_SIGNALLED */ THEN 'JOB_SIGNALLED' WHEN 16 /* OUTPUT_MAPPED */ THEN 'OUTPUT_MAPPED' ELSE kind::text END $$;

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
    WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}') AS variables, i.result,
  coalesce((SELECT e.before FROM variables_edit e WHERE e.instance_id = i.id ORDER BY e.pos LIMIT 1), i.vars) AS start_variables
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

-- Attempts of jobs, each once, as engine/queues/attempts.py shows them: those that run, then what history has of the others.
CREATE VIEW penstock_attempts AS
SELECT to_hex(b.number) || '-' || to_hex(b.token) || '-' || to_hex(b.seq) AS job, to_hex(b.number) AS instance, b.number,
  d.id AS definition, d.version, penstock_step_id(d.content, b.step) AS step, b.attempt, 'RUNNING' AS status, b.claimed_by AS worker,
  b.claimed_at AS started_at, NULL::timestamptz AS ended_at, now() - b.claimed_at AS age, NULL::text AS reason,
  NULL::text AS error_code, b.item, n.parameters, n.parameters_bytes, n.progress, NULL::jsonb AS result
FROM penstock_branches b JOIN definition d ON d.key = b.definition
LEFT JOIN attempt_note n ON n.instance_id = b.number AND n.token_id = b.token AND n.seq = b.seq AND n.attempt = b.attempt
WHERE b.state IN (1 /* LOCKED */, 5 /* DISPATCHED */)
UNION ALL
SELECT to_hex(h.instance_id) || '-' || to_hex(h.token_id) || '-' || to_hex(h.seq), to_hex(h.instance_id), h.instance_id,
  d.id, d.version, penstock_step_id(d.content, h.step), h.attempt,
  CASE WHEN h.kind IN (1 /* COMPLETED */, 6 /* COMPENSATED */) THEN 'COMPLETED' WHEN h.kind = 3 /* SKIPPED */ THEN 'SKIPPED'
    WHEN h.kind = 11 /* ATTEMPT_EXPIRED */ THEN 'LEASE_EXPIRED' WHEN h.kind = 12 /* ATTEMPT_RELEASED */ THEN 'RELEASED'
    WHEN h.kind = 13 /* ATTEMPT_REDISPATCHED */ THEN 'REDISPATCHED' WHEN h.kind = 14 /* ATTEMPT_PARKED */ THEN 'PARKED'
    ELSE 'FAILED' END, h.worker, h.claimed_at, h.ended_at, h.ended_at - h.claimed_at, h.reason, h.error_code, h.item,
  n.parameters, n.parameters_bytes, n.progress, CASE WHEN h.kind IN (1 /* COMPLETED */, 6 /* COMPENSATED */) THEN h.output END
FROM history h JOIN instance i ON i.id = h.instance_id JOIN definition d ON d.key = coalesce((
  SELECT v.definition FROM instance_version v WHERE v.instance_id = i.id AND v.from_pos <= h.pos
  ORDER BY v.from_pos DESC LIMIT 1), i.definition)
LEFT JOIN attempt_note n ON n.instance_id = h.instance_id AND n.token_id = h.token_id AND n.seq = h.seq AND n.attempt = h.attempt
WHERE h.attempt > 0 AND h.kind <> 15 /* JOB_SIGNALLED */
  AND NOT EXISTS (                     -- a result after the lease tells more; what closed the step from elsewhere, less
    SELECT FROM history o WHERE o.instance_id = h.instance_id AND o.token_id = h.token_id AND o.seq = h.seq
      AND o.attempt = h.attempt AND o.kind <> 15 /* JOB_SIGNALLED */
      AND CASE WHEN h.kind IN (3 /* SKIPPED */, 4 /* INTERRUPTED */)
        THEN o.pos < h.pos OR o.kind NOT IN (3 /* SKIPPED */, 4 /* INTERRUPTED */)
        ELSE o.pos > h.pos AND o.kind NOT IN (3 /* SKIPPED */, 4 /* INTERRUPTED */) END)
  AND NOT EXISTS (                     -- its worker has come back, and has the job again
    SELECT FROM token t WHERE t.id = h.token_id AND t.instance_id = h.instance_id AND t.seq = h.seq
      AND t.attempt = h.attempt AND t.state IN (1 /* LOCKED */, 5 /* DISPATCHED */));

CREATE VIEW penstock_timers AS         -- to come; `step` is null of one whose execution is closed: it is swept
SELECT to_hex(m.instance_id) AS instance, m.instance_id AS number, d.id AS definition, d.version,
  penstock_step_id(d.content, t.step) AS step,
  CASE WHEN m.index >= 0 THEN 'BOUNDARY' WHEN m.index = -1 THEN 'RETRY' WHEN m.index = -2 THEN 'WAIT' WHEN m.index = -3 THEN 'CONTINUE'
    WHEN m.index IN (-4, -5, -7) THEN 'CALL' WHEN m.index = -6 THEN 'DELAY' WHEN m.index = -8 THEN 'MESSAGE' WHEN m.index IN (-12, -13) THEN 'SCHEDULE'
    WHEN m.index = -16 THEN 'WAKE' ELSE 'OTHER' END AS kind,
  m.fire_at, m.fire_at - now() AS due_in, coalesce(m.failures, 0) AS failures
FROM timer m LEFT JOIN instance i ON i.id = m.instance_id LEFT JOIN definition d ON d.key = i.definition
LEFT JOIN token t ON t.id = m.token_id AND t.seq = m.seq;

INSERT INTO setting (name, value) VALUES ('open_tasks', 'listed');  -- all that are open; not so in an older database at first
INSERT INTO penstock_schema (version) VALUES (25);
