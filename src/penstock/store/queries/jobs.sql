-- Jobs: completion (the fast path), claim, lease. Lock order: token, then ready. Claims come the other way round
-- and therefore take tokens with SKIP LOCKED.
--
-- How rows are found is said here, not left to the planner, who knows nothing true of tables that are empty and full by
-- turns (analyzed when drained, a claim walked all tokens for each job: 10-40 s): one by one by their key, `LATERAL (...
-- OFFSET 0)`; all by `= ANY(array)`; and what a statement has found and then writes by its `ctid`. A row that changed
-- since the snapshot has another ctid: whether it is written then differs between minor versions of PostgreSQL, so what is
-- asked of the row is asked again where it is written, and what is not written must be met again.

-- steps: closed_all
-- The history of the tokens that `moved` and `ended` completed.
closed AS (
  -- `pos` only here: nextval in the UPDATE above would run before the token's lock is had, and a fold could pass it.
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, end_step,
                       worker, output)
  SELECT instance_id, nextval('step_seq'), id, seq, started_at, entered_at, claimed_at, attempt, step, 1 /* COMPLETED */, NULL,
    worker, output::jsonb
  FROM moved
  UNION ALL
  SELECT instance_id, nextval('step_seq'), id, seq, started_at, (SELECT max(ended_at) FROM ended), claimed_at, attempt,
    step, 1 /* COMPLETED */, next_step, worker, output::jsonb
  FROM ended),  -- the step's end and the instance's bear one time

-- steps: completed
-- The same, and what ends with an instance.
-- steps of: closed_all
-- steps of: finished

-- steps: finished
-- Of the instances whose token `ended` deleted.
finished AS (
  UPDATE instance i SET status = 1 /* COMPLETED */, ended_at = (SELECT max(ended_at) FROM ended)
  WHERE i.id = ANY(ARRAY(SELECT instance_id FROM ended))),
unkeyed AS (
  DELETE FROM instance_key k WHERE k.instance_id = ANY(ARRAY(SELECT instance_id FROM ended)) AND NOT k.kept),
unnoted AS (
  DELETE FROM job_note n WHERE n.token_id = ANY(ARRAY(SELECT id FROM ended)))

-- steps: items
item AS MATERIALIZED (
  SELECT *, direct_to IS NULL AS to_queue, false AS lone
  FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::smallint[], $6::smallint[], $7::int[], $8::text[],
              $9::float8[], $10::text[])
    AS i(token, seq, attempt, worker, op, next_step, next_type, direct_to, lease_s, output)),

-- steps: moved
moved AS (
  -- `old` is the token as the statement's snapshot shows it. If the row changed since, attempt or state differ, the
  -- re-check under the lock fails and the item is refused: then the caller looks (ExecutionState) and may come again.
  UPDATE token t SET
    seq = nextval('step_seq'), queued = NULL, entry = NULL, step = i.next_step, job_type = i.next_type,
    state = CASE WHEN i.to_queue THEN 0 /* READY */ ELSE 1 /* LOCKED */ END,
    attempt = CASE WHEN i.to_queue THEN 0 ELSE 1 END, failures = 0, expiries = 0,
    entered_at = penstock_now(), timeout_s = NULL, claimed_by = i.direct_to,
    claimed_at = CASE WHEN NOT i.to_queue THEN penstock_now() END,
    lease_until = CASE WHEN NOT i.to_queue THEN penstock_now() + i.lease_s * interval '1 s' END,
    unfolded = least(32000, t.unfolded + CASE WHEN i.output IS NULL THEN 0 ELSE 1 + octet_length(i.output) / 131072 END)
  FROM item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.step, o.state, o.job_type, o.attempt, o.entered_at, o.claimed_at, coalesce(o.queued, o.seq) AS place
    FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE i.op = 0 AND t.ctid = old.ctid AND t.seq = i.seq
    AND (t.state IN (0 /* READY */, 1 /* LOCKED */) AND t.claimed_by = i.worker OR t.state = 5 /* DISPATCHED */)
    AND NOT (i.lone AND t.state = 0 /* READY */)
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND t.attempt = old.attempt AND t.state = old.state
    AND t.held IS NULL AND t.flow_key IS NULL AND (i.output IS NULL OR t.unfolded < 128)
    AND t.migrated IS NULL  -- the plan may be that of the version before
  RETURNING t.id, t.instance_id, t.seq AS new_seq, t.entered_at, t.lease_until, t.unfolded, t.priority,
    i.seq, i.next_type, i.direct_to, i.worker, i.output,
    old.step, old.state, old.job_type, old.attempt, old.entered_at AS started_at, old.claimed_at, old.place),

-- steps: ended
ended AS (
  DELETE FROM token t USING item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.state, o.attempt FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE i.op = 1 AND t.ctid = old.ctid AND t.seq = i.seq
    AND (t.state IN (0 /* READY */, 1 /* LOCKED */) AND t.claimed_by = i.worker OR t.state = 5 /* DISPATCHED */)
    AND NOT (i.lone AND t.state = 0 /* READY */)
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND t.attempt = old.attempt AND t.state = old.state
    AND t.held IS NULL AND t.flow_key IS NULL AND t.migrated IS NULL AND NOT t.watched  -- whoever called it is to be told
  RETURNING t.id, t.instance_id, t.seq, t.step, t.state, t.job_type, t.priority, t.attempt,
    t.entered_at AS started_at, t.claimed_at, coalesce(t.queued, t.seq) AS place, i.worker, i.output, i.next_step,
    penstock_now() AS ended_at),

-- steps: requeued
-- Where the tokens that `moved` and `ended` completed waited, and where those of the next jobs wait.
unqueued AS (
  DELETE FROM ready r USING (
    SELECT job_type, priority, place, state FROM moved
    UNION ALL SELECT job_type, priority, place, state FROM ended) late
  CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready q
    WHERE q.job_type = late.job_type AND q.priority = late.priority AND q.seq = late.place OFFSET 0) old
  WHERE late.state = 0 /* READY */ AND r.ctid = old.ctid),
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT next_type, priority, new_seq, id FROM moved WHERE direct_to IS NULL AND NOT $11::boolean),
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), instance_id, id, new_seq, entered_at, next_type, 1
  FROM moved WHERE $11::boolean),

-- steps: closed_moved
closed AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker, output)
  SELECT instance_id, nextval('step_seq'), id, seq, started_at, entered_at, claimed_at, attempt, step, 1 /* COMPLETED */,
    worker, output::jsonb
  FROM moved)

-- name: complete_fast
-- Advances tokens whose step and next step need nothing but the token itself. One item per token, sorted by
-- lock order (schema.sql). An item that is not returned was refused and changed nothing; its neighbours commit. So are
-- those that hold a slot or have a flow key: `complete_flow` takes them.
-- $1 token $2 seq $3 attempt (null: any) $4 worker $5 op (0 advance, 1 end of a single-token instance) $6 next step
-- $7 next job type $8 worker of a direct dispatch (null: to the queue) $9 lease seconds of it
-- $10 output (null: none) $11 whether jobs wait in the outbox instead of the queue (Kafka mode). The last column: whether the job
-- had come back to the queue, so that its variables may be others than at its entry (a parked one's).
-- A token that wrote a lot since the last fold (128 times 128 kB at most, `Recorder.count_delta` has the measure) writes no
-- more here: folds are where the size of an instance's variables is looked at, and they have to keep up.
WITH
-- steps of: items
-- steps of: moved
-- steps of: ended
-- steps of: requeued
-- steps of: completed
SELECT id, seq, new_seq, entered_at, lease_until, unfolded, place <> seq FROM moved
UNION ALL
SELECT id, seq, NULL, NULL, NULL, 0, NULL FROM ended

-- name: complete_moves
-- As `complete_fast`, of completions that all go on, without an outbox: what it writes beside, and seldom or never needs, costs
-- as much as six jobs.
WITH
-- steps of: items
-- steps of: moved
unqueued AS (
  DELETE FROM ready r USING moved late CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready q
    WHERE q.job_type = late.job_type AND q.priority = late.priority AND q.seq = late.place OFFSET 0) old
  WHERE late.state = 0 /* READY */ AND r.ctid = old.ctid),
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT next_type, priority, new_seq, id FROM moved WHERE direct_to IS NULL),
-- steps of: closed_moved
SELECT id, seq, new_seq, entered_at, lease_until, unfolded, place <> seq FROM moved

-- name: complete_ends
-- As `complete_fast`, of completions that all end their instance.
WITH
-- steps of: items
-- steps of: ended
unqueued AS (
  DELETE FROM ready r USING ended late CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready q
    WHERE q.job_type = late.job_type AND q.priority = late.priority AND q.seq = late.place OFFSET 0) old
  WHERE late.state = 0 /* READY */ AND r.ctid = old.ctid),
closed AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, end_step,
                       worker, output)
  SELECT instance_id, nextval('step_seq'), id, seq, started_at, (SELECT max(ended_at) FROM ended), claimed_at, attempt,
    step, 1 /* COMPLETED */, next_step, worker, output::jsonb
  FROM ended),
-- steps of: finished
SELECT id, seq, NULL::bigint, NULL::timestamptz, NULL::timestamptz, 0, NULL::boolean FROM ended

-- name: complete_spared
-- As `complete_fast`, without the keys of instances and the notes of jobs, while somebody holds those tables. An instance with a
-- key is not among the items, and the notes are forgotten later.
WITH
-- steps of: items
-- steps of: moved
-- steps of: ended
-- steps of: requeued
-- steps of: closed_all
finished AS (
  UPDATE instance i SET status = 1 /* COMPLETED */, ended_at = (SELECT max(ended_at) FROM ended)
  WHERE i.id = ANY(ARRAY(SELECT instance_id FROM ended)))
SELECT id, seq, new_seq, entered_at, lease_until, unfolded, place <> seq FROM moved
UNION ALL
SELECT id, seq, NULL, NULL, NULL, 0, NULL FROM ended

-- name: keyed_instances
-- Those of the instances $1 that were started with an instance key.
SELECT id FROM instance WHERE id = ANY($1::bigint[]) AND instance_key IS NOT NULL

-- name: complete_lone_move
-- As `complete_moves`, of one completion whose next job is leased at once. A batch of one, as all are in an idle engine, pays
-- for each part of the plan that is made ready to run, used or not. So it has no more parts than this needs, and values in
-- place of arrays; and a token that is in the queue is refused too: `complete_moves` has the answer then.
-- $1 token $2 seq $3 attempt (null: any) $4 worker $5 next step $6 next job type $7 its worker $8 its lease seconds $9 output
-- (null: none).
WITH item AS NOT MATERIALIZED (
  SELECT $1::bigint AS token, $2::bigint AS seq, $3::int AS attempt, $4::text AS worker, 0 AS op, $5::smallint AS next_step,
    $6::int AS next_type, $7::text AS direct_to, $8::float8 AS lease_s, $9::text AS output, false AS to_queue, true AS lone),
-- steps of: moved
-- steps of: closed_moved
SELECT id, seq, new_seq, entered_at, lease_until, unfolded, place <> seq FROM moved

-- name: complete_lone_end
-- As `complete_lone_move`, of one that ends its instance: $1 token $2 seq $3 attempt $4 worker $5 next step $6 output.
-- As `finished`, but by one value: `= ANY` makes bitmaps.
WITH item AS NOT MATERIALIZED (
  SELECT $1::bigint AS token, $2::bigint AS seq, $3::int AS attempt, $4::text AS worker, 1 AS op, $5::smallint AS next_step,
    $6::text AS output, true AS lone),
-- steps of: ended
closed AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, end_step,
                       worker, output)
  SELECT instance_id, nextval('step_seq'), id, seq, started_at, ended_at, claimed_at, attempt, step, 1 /* COMPLETED */,
    next_step, worker, output::jsonb
  FROM ended),
finished AS (
  UPDATE instance i SET status = 1 /* COMPLETED */, ended_at = (SELECT ended_at FROM ended)
  WHERE i.id = (SELECT instance_id FROM ended)),
unkeyed AS (
  DELETE FROM instance_key k WHERE k.instance_id = (SELECT instance_id FROM ended) AND NOT k.kept),
unnoted AS (
  DELETE FROM job_note n WHERE n.token_id = (SELECT id FROM ended))
SELECT id, seq, NULL::bigint, NULL::timestamptz, NULL::timestamptz, 0, NULL::boolean FROM ended

-- name: probe_ready
-- How many jobs (at most $2) wait for each of the types $1, from priority $3 and place $4 on; whether any wait in
-- `ready_flow`, and the type is keyed. Serves all parked polls at once; reads only.
SELECT j.id, (SELECT count(*) FROM (
  SELECT 1 FROM ready r WHERE r.job_type = j.id AND (r.priority, r.seq) >= (j.floor_priority, j.floor)
  LIMIT $2::int) waiting),
  EXISTS (SELECT FROM ready_flow f WHERE f.job_type = j.id), (SELECT t.keyed FROM job_type t WHERE t.id = j.id)
FROM unnest($1::int[], $3::smallint[], $4::bigint[]) AS j(id, floor_priority, floor)

-- name: probe_spared
-- As `probe_ready`, while somebody holds `ready_flow` or `job_type`: jobs that take turns are not seen.
SELECT j.id, (SELECT count(*) FROM (
  SELECT 1 FROM ready r WHERE r.job_type = j.id AND (r.priority, r.seq) >= (j.floor_priority, j.floor)
  LIMIT $2::int) waiting), false, false
FROM unnest($1::int[], $3::smallint[], $4::bigint[]) AS j(id, floor_priority, floor)

-- steps: held_jobs
-- Of each type $1 as many jobs as it has slots ($3), in the order of its queue, to the slots from number $2 on: worker $6, lease
-- seconds $7. Nothing is sorted on the way, and nothing locked beyond the limit. Rows are locked in a step of its own: an UPDATE
-- with locks below it evaluates those anew, with all partitions of `history`, when a row changes under it.
held AS MATERIALIZED (
  SELECT c.*, w.first + c.ordinal - 1 AS slot
  FROM unnest($1::int[], $2::int[], $3::int[], $4::smallint[], $5::bigint[]) AS w(job_type, first, n, floor_priority, floor)
  CROSS JOIN LATERAL (
    SELECT o.*, row_number() OVER ()::int AS ordinal FROM (
      SELECT r.seq AS place, r.ctid AS queue_row, t.ctid AS token_row FROM (
        SELECT r.seq, r.token_id, r.ctid FROM ready r
        WHERE r.job_type = w.job_type AND (r.priority, r.seq) >= (w.floor_priority, w.floor)
        ORDER BY r.priority, r.seq LIMIT w.n + 1000) r
      CROSS JOIN LATERAL (
        SELECT t.ctid FROM token t WHERE t.id = r.token_id AND coalesce(t.queued, t.seq) = r.seq AND t.state = 0 /* READY */
        FOR NO KEY UPDATE SKIP LOCKED) t
      LIMIT w.n) o) c

-- steps: taken_jobs
taken AS (
  -- the slots by subscript: a join with them would be a nested loop, 6 us a job in batches of 128
  UPDATE token t SET state = 1 /* LOCKED */, claimed_by = ($6::text[])[n.slot], attempt = t.attempt + 1,
    claimed_at = penstock_now(),
    lease_until = penstock_now() + least(($7::float8[])[n.slot], t.timeout_s) * interval '1 s'
  FROM held n
  WHERE t.ctid = n.token_row AND coalesce(t.queued, t.seq) = n.place AND t.state = 0 /* READY */
  RETURNING t.job_type, t.id, t.instance_id, t.seq, t.step, t.attempt, t.failures, t.entered_at, t.claimed_at, t.lease_until,
    t.priority, t.entry, t.item, n.ordinal, n.place, n.queue_row),

-- steps: leased
-- Of types that are keyed nothing is taken, whatever the engine knows of them (`claim_flow`).
-- steps of: held_jobs
  WHERE NOT coalesce((SELECT j.keyed FROM job_type j WHERE j.id = w.job_type), false)),
-- steps of: taken_jobs

-- steps: leased_columns
SELECT t.job_type, t.ordinal, t.id, t.instance_id, t.seq, t.step, t.attempt, t.failures, t.entered_at, t.claimed_at,
  t.lease_until, t.priority, t.place, coalesce(t.entry, t.seq), i.definition, i.business_key,

-- steps: leased_jobs
-- The deltas are a join of the last SELECT and no subselect: a recheck of a row prepares all subselects and CTEs of its statement
-- (`tests/store/test_rechecks.py`).
-- steps of: leased_columns
  CASE WHEN i.sent THEN (i.vars || coalesce(i.overlay, '{}') || d.deltas)::text END
FROM taken t CROSS JOIN LATERAL (
  SELECT i.id, i.definition, i.business_key, i.vars, i.overlay, i.folded_pos,
    t.item IS NULL AND pg_column_size(i.vars) + coalesce(pg_column_size(i.overlay), 0) <= $8::int
      AND pg_column_compression(i.vars) IS NULL AND pg_column_compression(i.overlay) IS NULL AS sent
  FROM instance i WHERE i.id = t.instance_id OFFSET 0) i
CROSS JOIN LATERAL (
  SELECT jsonb_merge(h.output ORDER BY h.pos) AS deltas FROM history h
  WHERE i.sent AND h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL) d

-- name: claim
-- Leases waiting jobs, oldest first, to slots: $1 job types $2 the first slot of each $3 how many it has $4 $5 the priority and
-- place from which on it is looked at; $6 worker $7 lease seconds by slot.
-- Only the token is locked: who holds it owns its queue row, and a lock there would cost 54 B of WAL a job. A row whose
-- token another transaction holds is left, and so is one whose token left the queue and came back since the snapshot: it
-- has another row now. Variables of more than $8 bytes, or compressed (> 2 kB), are left out (null): the engine may have
-- them, and to make them into text is dear (3 ms for 256 kB). Likewise those of items of a forEach, which are read once for
-- all of them.
WITH
-- steps of: leased
unqueued AS (DELETE FROM ready r USING taken WHERE r.ctid = taken.queue_row)
-- steps of: leased_jobs

-- name: claim_known
-- As `claim`, for jobs whose variables the engine has, as far as it can know: all are left out, and no partition of history is
-- prepared. What it does not have after all takes a statement more.
WITH
-- steps of: leased
unqueued AS (DELETE FROM ready r USING taken WHERE r.ctid = taken.queue_row)
-- steps of: leased_columns
  NULL::text
FROM taken t CROSS JOIN LATERAL (
  SELECT i.definition, i.business_key FROM instance i WHERE i.id = t.instance_id OFFSET 0) i

-- name: claim_spared
-- As `claim_known`, of types that are not keyed as far as the engine knows, while somebody holds `job_type`.
WITH
-- steps of: held_jobs
  ),
-- steps of: taken_jobs
unqueued AS (DELETE FROM ready r USING taken WHERE r.ctid = taken.queue_row)
-- steps of: leased_columns
  NULL::text
FROM taken t CROSS JOIN LATERAL (
  SELECT i.definition, i.business_key FROM instance i WHERE i.id = t.instance_id OFFSET 0) i

-- name: claim_and_clear
-- As `claim`, for when one found fewer jobs than slots: of a type that has fewer again, rows that are no token's place any
-- more (schema.sql, `ready`) go, all that were looked at. Probes count them until then.
WITH
-- steps of: leased
void AS MATERIALIZED (
  SELECT c.ctid AS queue_row
  FROM unnest($1::int[], $3::int[], $4::smallint[], $5::bigint[]) AS w(job_type, n, floor_priority, floor)
  CROSS JOIN LATERAL (
    SELECT r.*, r.ctid FROM ready r WHERE r.job_type = w.job_type AND (r.priority, r.seq) >= (w.floor_priority, w.floor)
      AND (SELECT count(*) FROM taken g WHERE g.job_type = w.job_type) < w.n
    ORDER BY r.priority, r.seq LIMIT w.n + 1000) c
  WHERE NOT EXISTS (
    SELECT FROM token t WHERE t.id = c.token_id AND coalesce(t.queued, t.seq) = c.seq AND t.state = 0 /* READY */ OFFSET 0)),
unqueued AS (
  DELETE FROM ready r USING (SELECT queue_row FROM taken UNION ALL SELECT queue_row FROM void) gone
  WHERE r.ctid = gone.queue_row)
-- steps of: leased_jobs

-- steps: job_noted
noted AS (
  INSERT INTO job_note AS n (token_id, seq, attempt, checkpoint, progress)
  SELECT id, seq, attempt, checkpoint::jsonb, progress::jsonb FROM kept
  WHERE checkpoint IS NOT NULL OR progress IS NOT NULL
  ON CONFLICT (token_id) DO UPDATE SET seq = excluded.seq, attempt = excluded.attempt,
    checkpoint = CASE WHEN n.seq = excluded.seq THEN coalesce(excluded.checkpoint, n.checkpoint) ELSE excluded.checkpoint END,
    progress = CASE WHEN n.seq = excluded.seq THEN coalesce(excluded.progress, n.progress) ELSE excluded.progress END)

-- steps: attempt_noted
told AS (  -- stays when the job is done
  INSERT INTO attempt_note AS a (instance_id, token_id, seq, attempt, progress)
  SELECT instance_id, id, seq, attempt, progress::jsonb FROM kept WHERE progress IS NOT NULL
  ON CONFLICT (instance_id, token_id, seq, attempt) DO UPDATE SET progress = excluded.progress)

-- name: extend
-- Heartbeats. $1 token $2 seq $3 attempt (null: any) $4 worker $5 lease seconds $6 checkpoint $7 progress (null: keep)
-- The last holder of a job that is back in the queue takes it out again, and its slots with it, over a limit if need be; a dispatched job gets its first holder, whose
-- attempt begins now: how long the message waited in its topic is not the step's `timeout`.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::float8[], $6::text[], $7::text[])
    AS i(token, seq, attempt, worker, lease_s, checkpoint, progress)),
kept AS (
  UPDATE token t SET state = 1 /* LOCKED */, claimed_by = i.worker, held = CASE WHEN old.state = 0 /* READY */ THEN old.takes ELSE t.held END,
    claimed_at = CASE WHEN old.state = 5 /* DISPATCHED */ THEN penstock_now() ELSE t.claimed_at END,
    lease_until = least(  -- extended, never shortened
      greatest(t.lease_until, penstock_now() + i.lease_s * interval '1 s'),
      CASE WHEN old.state = 5 /* DISPATCHED */ THEN penstock_now() ELSE t.claimed_at END + t.timeout_s * interval '1 s')
  FROM item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.state, o.attempt, coalesce(o.queued, o.seq) AS place, o.flow_key,
      CASE WHEN o.state = 0 /* READY */ AND o.flow_key IS NOT NULL THEN (
        SELECT CASE WHEN p.total OR p.per_key THEN p.id * 4 + p.total::int + 2 * p.per_key::int END FROM (
          SELECT q.id, q.policy ? 'concurrency' AS total, q.policy ? 'concurrencyPerKey' AND o.flow_key <> '' AS per_key
          FROM job_type j JOIN queue q ON q.id = j.queue WHERE j.id = o.job_type) p) END AS takes
    FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND (t.state IN (0 /* READY */, 1 /* LOCKED */) AND t.claimed_by = i.worker OR t.state = 5 /* DISPATCHED */)
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND t.attempt = old.attempt AND t.state = old.state
    AND (t.timeout_s IS NULL OR t.state = 5 /* DISPATCHED */ OR t.claimed_at + t.timeout_s * interval '1 s' > penstock_now())
  RETURNING t.id, t.seq, t.instance_id, t.step, t.attempt, t.lease_until, t.mail, t.job_type, t.priority, t.flow_key, old.takes,
    old.state AS old_state, old.place, i.checkpoint, i.progress),
unqueued AS (
  DELETE FROM ready r USING kept k CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready q WHERE q.job_type = k.job_type AND q.priority = k.priority AND q.seq = k.place OFFSET 0) old
  WHERE k.old_state = 0 /* READY */ AND k.flow_key IS NULL AND r.ctid = old.ctid),
unqueued_flow AS (
  DELETE FROM ready_flow r USING kept k CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready_flow q
    WHERE q.job_type = k.job_type AND q.priority = k.priority AND q.flow_key = k.flow_key AND q.seq = k.place OFFSET 0) old
  WHERE k.old_state = 0 /* READY */ AND r.ctid = old.ctid),
retaken AS (  -- without asking for room: it does run
  INSERT INTO slot AS s (queue, flow_key, running)
  SELECT queue, flow_key, count(*) FROM (
    SELECT takes / 4 AS queue, '' COLLATE "C" AS flow_key FROM kept WHERE takes & 1 = 1
    UNION ALL SELECT takes / 4, flow_key FROM kept WHERE takes & 2 = 2) each
  GROUP BY queue, flow_key ORDER BY queue, flow_key
  ON CONFLICT (queue, flow_key) DO UPDATE SET running = s.running + excluded.running),
-- steps of: job_noted
,
-- steps of: attempt_noted
SELECT id, seq, instance_id, step, attempt, lease_until, extract(epoch FROM lease_until - penstock_now())::float8, mail, takes FROM kept

-- name: extend_leased
-- As `extend`, of jobs that are leased, or dispatched: without the tables of queues and notes, which somebody holds. $1 to $5.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::float8[]) AS i(token, seq, attempt, worker, lease_s)),
kept AS (
  UPDATE token t SET state = 1 /* LOCKED */, claimed_by = i.worker,
    claimed_at = CASE WHEN old.state = 5 /* DISPATCHED */ THEN penstock_now() ELSE t.claimed_at END,
    lease_until = least(
      greatest(t.lease_until, penstock_now() + i.lease_s * interval '1 s'),
      CASE WHEN old.state = 5 /* DISPATCHED */ THEN penstock_now() ELSE t.claimed_at END + t.timeout_s * interval '1 s')
  FROM item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.state, o.attempt FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND (t.state = 1 /* LOCKED */ AND t.claimed_by = i.worker OR t.state = 5 /* DISPATCHED */)
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND t.attempt = old.attempt AND t.state = old.state
    AND (t.timeout_s IS NULL OR t.state = 5 /* DISPATCHED */ OR t.claimed_at + t.timeout_s * interval '1 s' > penstock_now())
  RETURNING t.id, t.seq, t.instance_id, t.step, t.attempt, t.lease_until, t.mail)
SELECT id, seq, instance_id, step, attempt, lease_until, extract(epoch FROM lease_until - penstock_now())::float8, mail, NULL::int FROM kept

-- name: note_jobs
-- After `extend_leased`, in its transaction: $1 token $2 seq $3 attempt $4 instance $5 checkpoint $6 progress (null: keep)
WITH kept AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::text[], $6::text[])
    AS i(id, seq, attempt, instance_id, checkpoint, progress)),
-- steps of: job_noted
SELECT

-- name: note_attempts
-- As `note_jobs`, of what is told of them.
WITH kept AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::text[], $6::text[])
    AS i(id, seq, attempt, instance_id, checkpoint, progress)),
-- steps of: attempt_noted
SELECT

-- steps: put_back
-- Of the tokens that `freed` made READY: each waits in the queue, or in Kafka mode, unless it is a durable run or its type is
-- keyed, in the outbox,
-- and its history says why, where `kind` does. What its attempt held is free.
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT job_type, priority, queued, id FROM freed
  WHERE flow_key IS NULL AND (NOT to_outbox OR job_type = ANY(ARRAY(SELECT j.id FROM job_type j WHERE j.keyed OR j.name LIKE 'code:%')))),
queued_flow AS (
  INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT job_type, priority, flow_key, queued, id FROM freed WHERE flow_key IS NOT NULL),
let_go AS (SELECT held, flow_key FROM freed WHERE held IS NOT NULL),
-- steps of: give_back
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), instance_id, id, seq, penstock_now(), job_type, attempt + 1 FROM freed
  WHERE flow_key IS NULL AND to_outbox AND job_type <> ALL(ARRAY(SELECT j.id FROM job_type j WHERE j.keyed OR j.name LIKE 'code:%'))),
-- steps of: put_back_noted

-- steps: put_back_noted
noted AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker, reason)
  SELECT instance_id, nextval('step_seq'), id, seq, entered_at, penstock_now(), claimed_at, attempt, step, kind, worker, reason
  FROM freed WHERE kind IS NOT NULL)

-- steps: put_back_plain
-- As `put_back`, of tokens without a flow key that held nothing, not in Kafka mode: without the tables of these.
queued AS (INSERT INTO ready (job_type, priority, seq, token_id) SELECT job_type, priority, queued, id FROM freed),
-- steps of: put_back_noted

-- name: release
-- Returns leased jobs to the queue at once, behind what waits: $1 token $2 seq $3 attempt $4 worker $5 whether to the
-- outbox instead $6 when it was claimed (null: whenever). No retry and no expiry is counted, and nobody is the last
-- holder.
WITH item AS MATERIALIZED (
-- steps of: released_items
-- steps of: released_jobs
-- steps of: put_back
SELECT id, seq, job_type, attempt, flow_key FROM freed

-- steps: released_items
  SELECT i.* FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $6::timestamptz[])
    AS i(token, seq, attempt, worker, claimed_at)
-- steps: released_jobs
),
freed AS (
  UPDATE token t SET state = 0 /* READY */, queued = nextval('step_seq'), held = NULL, claimed_by = NULL, claimed_at = NULL,
    lease_until = NULL
  FROM item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.attempt, o.claimed_at, o.held FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND t.state = 1 /* LOCKED */ AND t.claimed_by = i.worker
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND old.attempt = t.attempt
    AND (i.claimed_at IS NULL OR t.claimed_at = i.claimed_at) AND t.held IS NOT DISTINCT FROM old.held
  RETURNING t.id, t.instance_id, t.seq, t.queued, t.job_type, t.priority, t.attempt, t.step, t.entered_at,
    old.claimed_at, i.worker, $5::boolean AS to_outbox, 12 /* ATTEMPT_RELEASED */ AS kind, NULL AS reason, old.held, t.flow_key),

-- name: release_plain
-- As `release`, of those alone without a flow key that hold no slot; not in Kafka mode.
WITH item AS MATERIALIZED (
-- steps of: released_items
  CROSS JOIN LATERAL (SELECT FROM token o WHERE o.id = i.token AND o.seq = i.seq AND o.flow_key IS NULL AND o.held IS NULL OFFSET 0) o
-- steps of: released_jobs
-- steps of: put_back_plain
SELECT id, seq, job_type, attempt, flow_key FROM freed

-- name: expire
-- Leases that ended, and dispatches whose deadline has come: $1 token $2 seq $3 attempt $4 expiry limit $5 whether to the
-- outbox instead (Kafka mode). The job goes to the end of the queue and keeps its last holder, who may still complete it
-- until it is claimed; in Kafka mode it is dispatched anew under a new row. One expiry short of the limit nothing is
-- changed here: the row is returned with `dead` true and goes through `advance`. Of a dispatch no expiry is counted, nor of
-- a lease in Kafka mode.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[]) AS i(token, seq, attempt)),
due AS MATERIALIZED (
-- steps of: over_leases
-- steps of: freed_leases
-- steps of: put_back
-- steps of: ended_leases

-- steps: over_leases
  SELECT t.*, t.counts AND t.expiries + 1 >= $4::int AS dead FROM item i CROSS JOIN LATERAL (
    SELECT t.ctid, t.id, t.seq, t.attempt, t.job_type, t.instance_id, t.expiries, t.state, t.held,
      t.state = 1 /* LOCKED */ AND NOT $5::boolean AS counts
    FROM token t
    WHERE t.id = i.token AND t.seq = i.seq AND t.attempt = i.attempt AND t.state IN (1 /* LOCKED */, 5 /* DISPATCHED */)
      AND t.lease_until <= penstock_now()
-- steps: freed_leases
    FOR NO KEY UPDATE SKIP LOCKED) t),
freed AS (
  UPDATE token t SET state = 0 /* READY */, queued = nextval('step_seq'), held = NULL, expiries = t.expiries + d.counts::int
  FROM due d WHERE t.ctid = d.ctid AND t.seq = d.seq AND t.state = d.state AND NOT d.dead
  RETURNING t.id, t.instance_id, t.seq, t.queued, t.job_type, t.priority, t.attempt, t.step, t.entered_at,
    t.claimed_at, t.claimed_by AS worker, $5::boolean AS to_outbox,
    CASE d.state WHEN 5 /* DISPATCHED */ THEN 13 /* ATTEMPT_REDISPATCHED */ ELSE 11 /* ATTEMPT_EXPIRED */ END AS kind, NULL AS reason, d.held, t.flow_key),
-- steps: ended_leases
SELECT id, seq, attempt, job_type, instance_id, false AS dead, flow_key FROM freed
UNION ALL
SELECT id, seq, attempt, job_type, instance_id, true, NULL FROM due WHERE dead

-- name: expire_plain
-- As `expire`, of those alone without a flow key that hold no slot, and are of none of the job types $6; not in Kafka mode.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[]) AS i(token, seq, attempt)),
due AS MATERIALIZED (
-- steps of: over_leases
      AND t.flow_key IS NULL AND t.held IS NULL AND t.job_type <> ALL($6::int[])
-- steps of: freed_leases
-- steps of: put_back_plain
-- steps of: ended_leases

-- name: scan_leases
-- Leases and dispatches that end within $1 seconds, whoever granted them. A sequential scan (132 ms for 1,000,000
-- tokens). Those first that ended first: nobody watches them, and 10,000 that are watched must not hide them.
SELECT id, seq, attempt, instance_id, extract(epoch FROM lease_until - penstock_now())::float8
FROM token WHERE state IN (1 /* LOCKED */, 5 /* DISPATCHED */) AND lease_until < penstock_now() + $1::float8 * interval '1 s' ORDER BY lease_until LIMIT 10000

-- name: checkpoints
SELECT token_id, seq, checkpoint::text FROM job_note WHERE token_id = ANY($1::bigint[]) AND checkpoint IS NOT NULL

-- name: fresh_leases
-- Tokens under their first lease since just these completions ($1 token $2 seq $3 worker $4 attempt, null: any): what a
-- direct dispatch whose answer was lost looks like. The moment of the completion is that of the entry: one statement did both.
SELECT t.id, t.seq, t.claimed_by, t.entered_at, t.lease_until
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::int[]) AS k(token, seq, worker, attempt)
CROSS JOIN LATERAL (SELECT * FROM token t WHERE t.id = k.token AND t.state = 1 /* LOCKED */ AND t.attempt = 1 OFFSET 0) t
CROSS JOIN LATERAL (
  SELECT FROM history h
  WHERE h.instance_id = t.instance_id AND h.pos > k.seq AND h.token_id = t.id AND h.seq = k.seq AND h.kind = 1 /* COMPLETED */
    AND h.worker = k.worker AND (k.attempt IS NULL OR h.attempt = k.attempt) AND h.ended_at = t.entered_at OFFSET 0) h

-- name: look_up
-- What is known of step executions ($1 instance $2 token $3 seq $4 worker), for `fencing.decide_fence`. The closing row of
-- an execution is the first of its token with a position above the execution's own.
SELECT i.status, c.kind, c.attempt, t.state, t.claimed_by, t.attempt, t.step, t.lease_until, i.definition, i.business_key,
  (SELECT CASE WHEN a.worker = k.worker THEN a.attempt END FROM history a
    WHERE a.instance_id = k.instance AND a.pos > k.seq AND a.token_id = k.token AND a.seq = k.seq
      AND a.kind IN (10 /* ATTEMPT_FAILED */, 5 /* CAUGHT */, 2 /* FAILED */)
    ORDER BY a.pos DESC LIMIT 1)
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) WITH ORDINALITY AS k(instance, token, seq, worker, n)
LEFT JOIN LATERAL (SELECT * FROM instance i WHERE i.id = k.instance OFFSET 0) i ON true
LEFT JOIN LATERAL (
  SELECT * FROM token t WHERE t.id = k.token AND t.seq = k.seq AND t.instance_id = k.instance OFFSET 0) t ON true
LEFT JOIN LATERAL (
  SELECT h.kind, h.attempt FROM history h
  WHERE h.instance_id = k.instance AND h.pos > k.seq AND h.token_id = k.token AND h.seq = k.seq AND h.kind < 10
  ORDER BY h.pos LIMIT 1) c ON true
ORDER BY k.n

-- name: step_of_closed
-- Which step (definition, number) an execution that is over was of ($1 instance $2 token $3 seq): by its closing row, as above.
SELECT definition_at(i.id, h.pos, i.definition), h.step FROM instance i JOIN LATERAL (
  SELECT h.pos, h.step FROM history h
  WHERE h.instance_id = i.id AND h.pos > $3::bigint AND h.token_id = $2::bigint AND h.seq = $3::bigint
  ORDER BY h.pos LIMIT 1) h ON true
WHERE i.id = $1::bigint

-- name: failed_jobs
-- Jobs that failed for good, newest instance first ($1 job type, null: any, $2 limit $3 offset $4 only instances below).
SELECT h.instance_id, h.token_id, h.seq, h.step, h.ended_at, h.reason, h.worker, definition_at(i.id, h.pos, i.definition), h.error_code
FROM (SELECT e.instance_id FROM abnormal_end e
      WHERE e.job_type IS NOT NULL AND e.instance_id < $4::bigint
        AND ($1::text IS NULL OR e.job_type = (SELECT j.id FROM job_type j WHERE j.name = $1))
      ORDER BY e.instance_id DESC LIMIT $2::int OFFSET $3::int) e
JOIN instance i ON i.id = e.instance_id
JOIN LATERAL (SELECT * FROM history h WHERE h.instance_id = e.instance_id AND h.kind = 2 /* FAILED */ ORDER BY h.pos DESC LIMIT 1) h ON true
ORDER BY e.instance_id DESC

-- name: count_failed_jobs
-- How many there are, counted up to $2 ($1 as above).
SELECT count(*) FROM (SELECT FROM abnormal_end e
  WHERE e.job_type IS NOT NULL AND ($1::text IS NULL OR e.job_type = (SELECT j.id FROM job_type j WHERE j.name = $1))
  LIMIT $2::int) found

-- name: queue_depth
-- Waiting jobs per type: count (exact to 100,000) and the oldest one's age in seconds, of jobs with flow keys that of the
-- first in line.
SELECT j.name, (SELECT count(*) FROM (
    (SELECT 1 FROM ready r WHERE r.job_type = j.id LIMIT 100000)
    UNION ALL (SELECT 1 FROM ready_flow r WHERE r.job_type = j.id LIMIT 100000) LIMIT 100000) w),
  (SELECT max(extract(epoch FROM penstock_now() - t.entered_at))::float8 FROM (
    (SELECT r.token_id FROM ready r WHERE r.job_type = j.id ORDER BY r.priority, r.seq LIMIT 1)
    UNION ALL
    (SELECT r.token_id FROM ready_flow r WHERE r.job_type = j.id ORDER BY r.priority, r.flow_key, r.seq LIMIT 1)) f
   CROSS JOIN LATERAL (SELECT t.entered_at FROM token t WHERE t.id = f.token_id OFFSET 0) t)
FROM job_type j
