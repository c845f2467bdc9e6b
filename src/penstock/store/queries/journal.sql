-- Runs of durable workflows: one token each, the root, whose job an executor holds. What executors and others
-- write into their journals, and how runs come to wait, wake, stand back and end. Lock order: token, then ready, parked,
-- timer, history, journal, instance and the rest.
--
-- What decides stands in the token (`mail`, `attempt`), which is read again under its lock, never in a row beside it: that
-- may have been committed while the statement waited, and is not in its snapshot. Where rows beside it must be seen (tell,
-- wake), the lock is had by a statement before. How rows are found: queries/jobs.sql.

-- steps: runs_to_append
-- Of append_records and append_answers: `held` are the runs that the holders have, `refused` those that they have not.
item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::int[], $6::float8[])
    AS i(token, seq, attempt, holder, mail, lease_s)),
held AS MATERIALIZED (
  SELECT t.*, i.mail AS seen, i.lease_s FROM item i CROSS JOIN LATERAL (
    SELECT t.ctid, t.id, t.mail, t.expiries, t.failures FROM token t
    WHERE t.id = i.token AND t.seq = i.seq AND t.state = 1 /* LOCKED */ AND t.attempt = i.attempt
      AND t.claimed_by = i.holder
    FOR NO KEY UPDATE) t),
refused AS MATERIALIZED (SELECT token FROM item WHERE token NOT IN (SELECT id FROM held)),
clock AS MATERIALIZED (SELECT penstock_now() AS now FROM (SELECT count(*) FROM held) AS after_the_locks),
extended AS (  -- seldom: when half of the lease is over, and the first record after a takeover
  UPDATE token t SET expiries = 0, failures = 0,
    lease_until = CASE WHEN h.lease_s IS NULL THEN t.lease_until
      ELSE greatest(t.lease_until, now + h.lease_s * interval '1 s') END
  FROM held h, clock
  WHERE t.ctid = h.ctid AND t.state = 1 /* LOCKED */ AND (h.lease_s IS NOT NULL OR h.expiries > 0 OR h.failures > 0)
  RETURNING t.id, extract(epoch FROM t.lease_until - now)::float8 AS left_s,
    CASE WHEN h.failures > 0 THEN penstock_goes_on(t.id, false) END),

-- name: append_records
-- One item per run, in lock order: $1 token $2 seq $3 attempt $4 holder $5 mail seen $6 lease seconds (null: leave it).
-- One row per record, in the order of delivery: $7 instance $8 kind $9 path $10 name $11 payload $12 digest $13 attempt of
-- the step $14 took ms $15 mark $16 rules (0: those before there were versions of them). A run that has no row in the answer was refused; its neighbours commit. Rows without a
-- position tell that others wrote (their `mail` is another than what was seen), or that the lease was extended.
WITH
-- steps of: runs_to_append
written AS (
  INSERT INTO journal (instance_id, pos, at, kind, attempt, digest, took_ms, path, name, payload, mark, rules)
  SELECT instance, nextval('step_seq'), now, kind, attempt, digest, took_ms, path, name, payload, mark, nullif(rules, 0)
  FROM (SELECT * FROM unnest($7::bigint[], $8::smallint[], $9::text[], $10::text[], $11::text[], $12::int[], $13::smallint[],
                             $14::int[], $15::text[], $16::smallint[])
        WITH ORDINALITY AS r(instance, kind, path, name, payload, digest, attempt, took_ms, mark, rules, n) ORDER BY n) r, clock
  WHERE instance NOT IN (SELECT token FROM refused)
  RETURNING instance_id, pos, extract(epoch FROM at)::float8 AS at)
SELECT instance_id, pos, at, NULL::int AS mail, NULL::float8 AS left_s FROM written
UNION ALL
SELECT id, NULL, NULL, mail, NULL FROM held WHERE mail <> seen
UNION ALL
SELECT id, NULL, NULL, NULL, left_s FROM extended

-- name: append_answers
-- As append_records, with records about calls of updates among them: an answer (kind $17) is noted with the id of the call,
-- its path. A refusal (kind $18) is noted there, too, and is no record: `take_out_calls` and `forget_refusals` follow. For the
-- latter a row beside it, `~u:<position>:<id>`, tells which refusals are the oldest. What is answered already stays so.
WITH
-- steps of: runs_to_append
given AS MATERIALIZED (
  SELECT r.*, nextval('step_seq') AS pos FROM (
    SELECT * FROM unnest($7::bigint[], $8::smallint[], $9::text[], $10::text[], $11::text[], $12::int[], $13::smallint[],
                         $14::int[], $15::text[], $16::smallint[])
      WITH ORDINALITY AS r(instance, kind, path, name, payload, digest, attempt, took_ms, mark, rules, n)
    WHERE instance NOT IN (SELECT token FROM refused) ORDER BY n) r, clock),
written AS (
  INSERT INTO journal (instance_id, pos, at, kind, attempt, digest, took_ms, path, name, payload, mark, rules)
  SELECT instance, pos, now, kind, attempt, digest, took_ms, path, name, payload, mark, nullif(rules, 0)
  FROM given, clock WHERE kind <> $18::smallint ORDER BY n),
answered AS (
  UPDATE signal_id s SET answer = r.payload FROM given r
  WHERE r.kind IN ($17::smallint, $18::smallint) AND s.instance_id = r.instance AND s.id = 'u:' || r.path AND s.answer IS NULL
  RETURNING r.instance, r.kind, r.pos, r.path),
noted AS (
  INSERT INTO signal_id (instance_id, id, request_hash)
  SELECT instance, '~u:' || lpad(pos::text, 19, '0') || ':' || path, '' FROM answered WHERE kind = $18::smallint)
SELECT instance AS instance_id, pos, extract(epoch FROM now)::float8 AS at, NULL::int AS mail, NULL::float8 AS left_s
FROM given, clock
UNION ALL
SELECT id, NULL, NULL, mail, NULL FROM held WHERE mail <> seen
UNION ALL
SELECT id, NULL, NULL, NULL, left_s FROM extended

-- name: take_out_calls
-- Calls of updates that were refused leave the journals of the runs that the holders have: one item per refusal, $1 token
-- $2 seq $3 attempt $4 holder $5 position $6 id of the call; $7 is the kind of a call. In the transaction of append_answers,
-- which has locked the tokens: a statement that locks rows may not prune partitions (tests/store/test_rechecks.py).
DELETE FROM journal j WHERE j.instance_id = ANY($1::bigint[]) AND j.pos = ANY($5::bigint[]) AND j.kind = $7::smallint
  AND EXISTS (
    SELECT FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::bigint[], $6::text[])
      AS c(token, seq, attempt, holder, pos, path)
    CROSS JOIN LATERAL (
      SELECT FROM token t WHERE t.id = c.token AND t.seq = c.seq AND t.state = 1 /* LOCKED */ AND t.attempt = c.attempt
        AND t.claimed_by = c.holder OFFSET 0) t
    WHERE c.token = j.instance_id AND c.pos = j.pos AND c.path = j.path)

-- name: forget_refusals
-- Runs that the holders have remember their newest $5 refusals: one item per refusal that append_answers wrote in this
-- transaction, $1 token $2 seq $3 attempt $4 holder. As many go as were written, with what tells their order; a limit beyond
-- that would walk over all dead rows of those that went before. The tokens are locked: nobody asks for such a call meanwhile.
-- Digits of one length stand in order in every collation, other characters need not.
WITH held AS MATERIALIZED (
  SELECT t.id, count(*) AS n FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[]) AS c(token, seq, attempt, holder)
  CROSS JOIN LATERAL (
    SELECT t.id FROM token t WHERE t.id = c.token AND t.seq = c.seq AND t.state = 1 /* LOCKED */ AND t.attempt = c.attempt
      AND t.claimed_by = c.holder OFFSET 0) t
  GROUP BY t.id),
old AS MATERIALIZED (
  SELECT h.id AS instance, m.id FROM held h CROSS JOIN LATERAL (
    SELECT s.id FROM signal_id s WHERE s.instance_id = h.id AND s.id BETWEEN '~u:0000000000000000000' AND '~u:9999999999999999999'
      AND starts_with(s.id, '~u:') ORDER BY s.id DESC OFFSET $5::int LIMIT h.n) m)
DELETE FROM signal_id d USING old o CROSS JOIN LATERAL (
  SELECT s.ctid FROM signal_id s WHERE s.instance_id = o.instance AND s.id IN (o.id, 'u:' || substr(o.id, 24)) OFFSET 0) gone
WHERE d.ctid = gone.ctid

-- name: find_answer
-- A call ($2 its id) of an update of a run ($1 instance): the id of the instance's definition, its status, whether it is
-- code, and who holds it; whether there is such a call, and its answer.
SELECT (SELECT d.id FROM definition d WHERE d.key = i.definition), i.status,
  (SELECT d.code FROM definition d WHERE d.key = i.definition), t.claimed_by, s.id IS NOT NULL, s.answer
FROM instance i
LEFT JOIN LATERAL (SELECT * FROM token t WHERE t.id = i.id AND t.id = t.instance_id OFFSET 0) t ON true
LEFT JOIN LATERAL (
  SELECT s.id, s.answer FROM signal_id s WHERE s.instance_id = i.id AND s.id = 'u:' || $2::text OFFSET 0) s ON true
WHERE i.id = $1::bigint

-- name: find_view
-- What a run ($1 instance) shows: the id of its definition, its status, whether it is code, who holds it, what its holder noted;
-- and its last record, if that is of the kind $2, of one that has ended.
SELECT (SELECT d.id FROM definition d WHERE d.key = i.definition), i.status,
  (SELECT d.code FROM definition d WHERE d.key = i.definition), t.claimed_by, n.progress::text,
  CASE WHEN i.status <> 0 /* ACTIVE */ THEN (
    SELECT payload FROM (SELECT kind, payload FROM journal WHERE instance_id = $1::bigint ORDER BY pos DESC LIMIT 1) j
    WHERE kind = $2::smallint) END
FROM instance i
LEFT JOIN LATERAL (SELECT * FROM token t WHERE t.id = i.id AND t.id = t.instance_id OFFSET 0) t ON true
LEFT JOIN LATERAL (SELECT * FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq OFFSET 0) n ON true
WHERE i.id = $1::bigint

-- name: read_journal
-- Records of a run ($1) beyond a position ($2), oldest first: $3 at most, and as many as have $4 bytes together, but one;
-- each with how many rows of those $3 there are.
SELECT pos, extract(epoch FROM at)::float8, kind, path, name, payload, digest, attempt, took_ms, mark, rules, looked FROM (
  SELECT *, count(*) OVER () AS looked, row_number() OVER w AS n,
    sum(100 + octet_length(path) + coalesce(octet_length(payload), 0)) OVER w AS size
  FROM (SELECT * FROM journal WHERE instance_id = $1::bigint AND pos > $2::bigint ORDER BY pos LIMIT $3::int) j
  WINDOW w AS (ORDER BY pos)) j
WHERE n = 1 OR size <= $4::bigint ORDER BY pos

-- name: read_beginnings
-- The first records of runs $1, of each as many as are among $2 and have $3 bytes together; and how many of those $2 there
-- are. One row without a record where there is none.
SELECT k.id, k.looked, j.* FROM (
  SELECT u.id, (SELECT count(*) FROM (SELECT FROM journal l WHERE l.instance_id = u.id LIMIT $2::int) l) AS looked
  FROM unnest($1::bigint[]) AS u(id)) k
LEFT JOIN LATERAL (
  SELECT pos, extract(epoch FROM at)::float8, kind, path, name, payload, digest, attempt, took_ms, mark, rules FROM (
    SELECT *, sum(100 + octet_length(path) + coalesce(octet_length(payload), 0)) OVER (ORDER BY pos) AS size
    FROM (SELECT * FROM journal WHERE instance_id = k.id ORDER BY pos LIMIT $2::int) j) j
  WHERE size <= $3::bigint) j ON true
ORDER BY k.id, j.pos

-- name: rules_behind
-- By which rules the first record of a run ($1) beyond a position ($2) was delivered that is none of these kinds ($3).
SELECT coalesce(rules, 0) FROM journal WHERE instance_id = $1::bigint AND pos > $2::bigint AND kind <> ALL($3::smallint[])
ORDER BY pos LIMIT 1

-- name: newest_rules
-- Of runs $1 those with records that were delivered by newer rules than $2.
SELECT k.id FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT FROM journal j WHERE j.instance_id = k.id AND j.rules > $2::smallint LIMIT 1) j

-- name: journal_marks
-- What `patched` said yes to in a run ($1): the marks of all its records.
SELECT mark FROM journal WHERE instance_id = $1::bigint AND mark IS NOT NULL ORDER BY pos

-- name: go_on
-- A run ($1 token $2 seq $3 attempt $4 holder) that was blocked is at work again, though nothing was written yet.
UPDATE token t SET failures = 0 WHERE t.id = $1::bigint AND t.seq = $2::bigint AND t.state = 1 /* LOCKED */
  AND t.attempt = $3::int AND t.claimed_by = $4::text AND t.failures > 0
RETURNING penstock_goes_on(t.id, false)

-- name: run_marks
-- What is not in the job: of runs $1, how much others have written, and the takeovers without a record.
SELECT id, mail, expiries FROM token WHERE id = ANY($1::bigint[]) AND id = instance_id

-- name: taken_runs
-- What is not in the job of a run that is taken: as `run_marks`, the id that it was started with, when its time began, whether
-- it is blocked.
SELECT t.id, t.mail, t.expiries, i.business_key, extract(epoch FROM t.entered_at)::float8, t.failures > 0
FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (
  SELECT t.id, t.mail, t.expiries, t.entered_at, t.failures FROM token t WHERE t.id = k.id AND t.id = t.instance_id OFFSET 0) t
CROSS JOIN LATERAL (SELECT i.business_key FROM instance i WHERE i.id = k.id OFFSET 0) i

-- name: open_runs
-- Runs of a definition ($1 key) beyond an id ($2), in its order, of $3 instances that are looked at: those that have not
-- ended, with how their token stands and what its holder noted of their branches. The others without a token.
SELECT i.id, i.business_key, t.state, extract(epoch FROM t.entered_at)::float8, CASE WHEN t.id IS NOT NULL THEN i.vars::text END,
  n.checkpoint::text
FROM (SELECT * FROM instance WHERE definition = $1::int AND id > $2::bigint ORDER BY id LIMIT $3::int) i
LEFT JOIN LATERAL (SELECT * FROM token t WHERE t.id = i.id AND t.id = t.instance_id AND i.status = 0 /* ACTIVE */ OFFSET 0) t ON true
LEFT JOIN LATERAL (SELECT * FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq OFFSET 0) n ON true
ORDER BY i.id

-- name: last_view
-- What a run ($1 instance) that has ended showed last: its last record, if that is of the kind $2.
SELECT payload FROM (SELECT kind, payload FROM journal WHERE instance_id = $1::bigint ORDER BY pos DESC LIMIT 1) j
WHERE kind = $2::smallint

-- name: last_errors
-- Of a run ($1 instance) what its steps raised last ($2 kind), and its function ($3 kind): one record each at most, with path
-- and name.
(SELECT kind, path, name, payload FROM journal WHERE instance_id = $1::bigint AND kind = $2::smallint ORDER BY pos DESC LIMIT 1)
UNION ALL
(SELECT kind, path, name, payload FROM journal WHERE instance_id = $1::bigint AND kind = $3::smallint ORDER BY pos DESC LIMIT 1)

-- name: run_states
-- How runs stand ($1 instance $2 seq), in order: the token's columns, or how the execution was closed and by whom; and the
-- instance's flow key.
SELECT i.status, t.state, t.attempt, t.claimed_by, t.mail, c.attempt, c.worker, i.flow_key
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS k(instance, seq, n)
LEFT JOIN LATERAL (SELECT * FROM instance i WHERE i.id = k.instance OFFSET 0) i ON true
LEFT JOIN LATERAL (SELECT * FROM token t WHERE t.id = k.instance AND t.seq = k.seq OFFSET 0) t ON true
LEFT JOIN LATERAL (
  SELECT h.attempt, h.worker FROM history h
  WHERE h.instance_id = k.instance AND h.pos > k.seq AND h.token_id = k.instance AND h.seq = k.seq AND h.kind < 10 /* ATTEMPT_FAILED */
  ORDER BY h.pos LIMIT 1) c ON true
ORDER BY k.n

-- name: appended
-- Which of these records ($1 instance $2 kind $3 path $4 attempt) stand beyond a position ($5): what became of an append
-- whose answer was lost, once the session that was to write them is gone.
SELECT r.instance FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::smallint[], $5::bigint[])
  AS r(instance, kind, path, attempt, after)
CROSS JOIN LATERAL (
  SELECT FROM journal j WHERE j.instance_id = r.instance AND j.pos > r.after AND j.kind = r.kind AND j.path = r.path
    AND j.attempt = r.attempt LIMIT 1) j

-- steps: wait_again
-- Runs of `waiting` stand in the queue.
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id) SELECT job_type, priority, queued, id FROM waiting WHERE flow_key IS NULL),
queued_flow AS (
  INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT job_type, priority, flow_key, queued, id FROM waiting WHERE flow_key IS NOT NULL),

-- name: tell_runs
-- Records that others have for runs: $1 instance $2 kind $3 path $4 name $5 payload $6 dedup $7 hash of what is said, in
-- hex $8 actor (null: no audit record, '': nobody) $15 what that record says (null: the name) $12 token $13 seq $14 index of the timer
-- that says it (null: none): it goes, and where it has gone nothing is written. $16 sender $17 position: it is written only
-- where no record came after that, but for those that only drop messages (null: whatever came) $18 rules. The roots are locked.
-- $9: so many messages in a row that nobody read are the most; $10 $11 $19: the kinds of messages, of cancels, and of what
-- drops a message.
-- One row for each, in order: the instance's status, whether it is code, whether it was written now, the hash of what
-- came with this dedup before, whether there are too many; and of the token its state before, job type, holder, mail, flow key.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                       $12::bigint[], $13::bigint[], $14::smallint[], $15::text[], $16::text[], $17::bigint[], $18::smallint[])
    WITH ORDINALITY AS i(instance, kind, path, name, payload, dedup, hash, actor, by_token, by_seq, by_index, note, sender, as_of,
                         rules, n)),
heard AS (
  DELETE FROM timer d USING item i CROSS JOIN LATERAL (
    SELECT o.ctid FROM timer o WHERE o.token_id = i.by_token AND o.seq = i.by_seq AND o.index = i.by_index OFFSET 0) old
  WHERE d.ctid = old.ctid RETURNING i.n),
about AS MATERIALIZED (
  SELECT i.*, a.status, a.code, s.request_hash, t.row, t.seq, t.state, t.mail, t.job_type, t.priority, t.flow_key, t.claimed_by,
    i.kind IN ($10::smallint, 15 /* ASKED */) AND t.mail >= $9::int AND (
      SELECT count(*) = $9::int AND bool_and(j.kind IN ($10::smallint, 15 /* ASKED */)) FROM (
        SELECT j.kind FROM journal j WHERE j.instance_id = i.instance ORDER BY j.pos DESC LIMIT $9::int) j) AS is_full
  FROM item i
  LEFT JOIN LATERAL (
    SELECT i2.status, (SELECT d.code FROM definition d WHERE d.key = i2.definition) AS code
    FROM instance i2 WHERE i2.id = i.instance OFFSET 0) a ON true
  LEFT JOIN LATERAL (
    SELECT t.ctid AS row, t.* FROM token t WHERE t.id = i.instance AND t.id = t.instance_id OFFSET 0) t ON true
  LEFT JOIN LATERAL (
    SELECT s.request_hash FROM signal_id s WHERE s.instance_id = i.instance AND s.id = i.dedup OFFSET 0) s ON true),
new AS MATERIALIZED (
  SELECT * FROM about WHERE status = 0 /* ACTIVE */ AND code AND row IS NOT NULL AND request_hash IS NULL AND is_full IS NOT TRUE
    AND (by_token IS NULL OR n IN (SELECT n FROM heard))
    AND (as_of IS NULL OR NOT EXISTS (
        SELECT FROM journal j WHERE j.instance_id = about.instance AND j.pos > about.as_of
          AND (j.kind <> $19::smallint OR j.payload IS NOT NULL))
      AND NOT EXISTS (
        SELECT FROM item e WHERE e.instance = about.instance AND e.n < about.n
          AND (e.kind <> $19::smallint OR e.payload IS NOT NULL)))),
noted AS (
  INSERT INTO signal_id (instance_id, id, request_hash) SELECT instance, dedup, decode(hash, 'hex') FROM new),
clock AS MATERIALIZED (SELECT penstock_now() AS now),
told AS (
  UPDATE token t SET mail = t.mail + r.n, state = CASE t.state WHEN 2 /* PARKED */ THEN 0 /* READY */ ELSE t.state END,
    queued = CASE t.state WHEN 2 /* PARKED */ THEN nextval('step_seq') ELSE t.queued END
  FROM (SELECT instance, row, state AS was, count(*)::int AS n FROM new GROUP BY instance, row, state) r
  WHERE t.ctid = r.row
  RETURNING t.id, t.seq, t.job_type, t.priority, t.flow_key, t.queued, t.mail, r.was),
waiting AS (SELECT * FROM told WHERE was = 2 /* PARKED */),
-- steps of: wait_again
unparked AS (
  DELETE FROM parked p USING told t CROSS JOIN LATERAL (
    SELECT o.ctid FROM parked o WHERE o.instance_id = t.id AND o.token_id = t.id OFFSET 0) old
  WHERE t.was = 2 AND p.ctid = old.ctid),
disarmed AS (
  DELETE FROM timer d USING told t CROSS JOIN LATERAL (
    SELECT o.ctid FROM timer o WHERE o.token_id = t.id AND o.seq = t.seq AND o.index = -16 OFFSET 0) old
  WHERE t.was = 2 AND d.ctid = old.ctid),
written AS (
  INSERT INTO journal (instance_id, pos, at, kind, attempt, path, name, payload, sender, rules)
  SELECT instance, nextval('step_seq'), now, kind, 1, path, name, payload, sender, rules
  FROM (SELECT * FROM new ORDER BY n) r, clock),
audited AS (
  INSERT INTO audit (pos, at, instance_id, kind, actor, detail)
  SELECT nextval('step_seq'), now, instance, CASE WHEN kind = $11::smallint THEN 'CANCEL_REQUESTED'
    WHEN payload IS NULL THEN 'MESSAGE_DROPPED' ELSE 'MESSAGE_CORRECTED' END, nullif(actor, ''), coalesce(note, name)
  FROM new, clock WHERE kind IN ($11::smallint, $19::smallint) AND actor IS NOT NULL)
SELECT a.status, a.code, a.n IN (SELECT n FROM new), encode(a.request_hash, 'hex'), coalesce(a.is_full, false), a.state,
  (SELECT j.name FROM job_type j WHERE j.id = a.job_type), a.claimed_by, coalesce((SELECT t.mail FROM told t WHERE t.id = a.instance), a.mail, 0), a.flow_key
FROM about a ORDER BY a.n

-- name: read_waits
-- What open runs ($1 instances) have said of their branches, and the position of their last record that does more than drop a
-- message (kind $2, without a payload): what was said before that may not hold any more.
SELECT k.id, n.checkpoint::text,
  (SELECT j.pos FROM journal j WHERE j.instance_id = k.id AND (j.kind <> $2::smallint OR j.payload IS NOT NULL)
   ORDER BY j.pos DESC LIMIT 1)
FROM unnest($1::bigint[]) AS k(id)
CROSS JOIN LATERAL (SELECT t.id, t.seq FROM token t WHERE t.id = k.id AND t.id = t.instance_id OFFSET 0) t
CROSS JOIN LATERAL (SELECT n.checkpoint FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq OFFSET 0) n

-- name: ask_again
-- Parked runs ($1 instances) are due now: by their timers they go to the queue, and say again what they wait for.
-- Those that are given were; the others are at work, or were due already.
INSERT INTO timer AS m (token_id, seq, fire_at, instance_id, index)
SELECT t.id, t.seq, penstock_now(), t.id, -16 FROM unnest($1::bigint[]) AS k(id) CROSS JOIN LATERAL (
  SELECT t.id, t.seq FROM token t WHERE t.id = k.id AND t.id = t.instance_id AND t.state = 2 /* PARKED */ OFFSET 0) t
ON CONFLICT (token_id, seq, index) DO UPDATE SET fire_at = excluded.fire_at WHERE m.fire_at > excluded.fire_at
RETURNING token_id

-- name: read_messages
-- Messages of a run ($1 instance) at positions $2; those that were sent in the place of others are some.
SELECT pos, extract(epoch FROM at)::float8, name, payload, sender FROM journal
WHERE instance_id = $1::bigint AND pos = ANY($2::bigint[]) AND (kind = 6 /* MESSAGE */ OR kind = 14 /* DROPPED */ AND payload IS NOT NULL)
ORDER BY pos

-- name: read_senders
-- Who sent messages to a run ($1 instance), by position, from $2 to $3.
SELECT pos, sender FROM journal
WHERE instance_id = $1::bigint AND pos BETWEEN $2::bigint AND $3::bigint AND sender IS NOT NULL

-- name: park_runs
-- Runs that wait: $1 token $2 seq $3 attempt $4 holder $5 mail seen $6 when they are due (seconds since 1970; null: never)
-- $7 branches $8 view (null: keep). Answers in how many seconds each is due, and job type and flow key if it gave something
-- back to a queue. A run that is not returned has mail, or is not the holder's.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::int[], $6::float8[], $7::text[], $8::text[])
    AS i(token, seq, attempt, holder, mail, due_at, branches, view)),
let_go AS (
  UPDATE token t SET state = 2 /* PARKED */, held = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, expiries = 0, failures = 0
  FROM item i CROSS JOIN LATERAL (SELECT o.ctid, o.held, o.failures FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND t.state = 1 /* LOCKED */ AND t.attempt = i.attempt
    AND t.claimed_by = i.holder AND t.mail = i.mail AND t.held IS NOT DISTINCT FROM old.held
  RETURNING t.id, t.seq, t.instance_id, t.attempt, i.due_at, i.branches, i.view, t.job_type, old.held, t.flow_key,
    CASE WHEN old.failures > 0 THEN penstock_goes_on(t.id, true) END),
-- steps of: give_back
listed AS (INSERT INTO parked (instance_id, token_id) SELECT instance_id, id FROM let_go ON CONFLICT DO NOTHING),
armed AS (
  INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
  SELECT id, seq, to_timestamp(due_at), instance_id, -16 FROM let_go WHERE due_at IS NOT NULL
  ON CONFLICT (token_id, seq, index) DO UPDATE SET fire_at = excluded.fire_at),
noted AS (
  INSERT INTO job_note AS n (token_id, seq, attempt, checkpoint, progress)
  SELECT id, seq, attempt, branches::jsonb, view::jsonb FROM let_go WHERE branches IS NOT NULL OR view IS NOT NULL
  ON CONFLICT (token_id) DO UPDATE SET seq = excluded.seq, attempt = excluded.attempt,
    checkpoint = coalesce(excluded.checkpoint, n.checkpoint), progress = coalesce(excluded.progress, n.progress))
SELECT id, extract(epoch FROM to_timestamp(due_at) - penstock_now())::float8,
  CASE WHEN held IS NOT NULL THEN (SELECT j.name FROM job_type j WHERE j.id = job_type) END, flow_key FROM let_go

-- name: lock_due_runs
-- Locks the runs whose timer −16 ($1 token $2 seq) is due, and notes for `wake_runs`, in the same transaction, which these
-- are. Those that another transaction holds are left.
WITH held AS MATERIALIZED (
  SELECT t.id FROM unnest($1::bigint[], $2::bigint[]) AS i(token, seq) CROSS JOIN LATERAL (
    SELECT m.token_id FROM timer m
    WHERE m.token_id = i.token AND m.seq = i.seq AND m.index = -16 AND m.fire_at <= penstock_now() OFFSET 0) m
  CROSS JOIN LATERAL (
    SELECT t.id FROM token t WHERE t.id = i.token AND t.seq = i.seq AND t.id = t.instance_id
    FOR NO KEY UPDATE SKIP LOCKED) t)
SELECT set_config('penstock.due', ARRAY(SELECT id FROM held)::text, true)

-- name: wake_runs
-- Wakes runs by their timers ($1 token $2 seq), if these are due still: those that `lock_due_runs` has locked before.
-- A timer goes with what it did, and one whose run is not that far any more, or not there, goes for itself. Answers what
-- was woken, with its job type and flow key, and with a job type of null what had nothing to wake.
WITH due AS MATERIALIZED (
  SELECT m.* FROM unnest($1::bigint[], $2::bigint[]) AS i(token, seq) CROSS JOIN LATERAL (
    SELECT m.ctid AS row, m.token_id, m.seq FROM timer m
    WHERE m.token_id = i.token AND m.seq = i.seq AND m.index = -16 AND m.fire_at <= penstock_now() OFFSET 0) m),
run AS MATERIALIZED (
  SELECT d.*, t.token_row, t.state FROM due d LEFT JOIN LATERAL (
    SELECT t.ctid AS token_row, t.state FROM token t WHERE t.id = d.token_id AND t.seq = d.seq OFFSET 0) t ON true
  WHERE t.token_row IS NULL OR d.token_id = ANY((SELECT current_setting('penstock.due')::bigint[])::bigint[])),
woken AS (
  UPDATE token t SET state = 0 /* READY */, queued = nextval('step_seq') FROM run r
  WHERE t.ctid = r.token_row AND t.state = 2 /* PARKED */
  RETURNING t.id, t.seq, t.job_type, t.priority, t.flow_key, t.queued),
waiting AS (SELECT * FROM woken),
-- steps of: wait_again
unparked AS (
  DELETE FROM parked p USING woken t CROSS JOIN LATERAL (
    SELECT o.ctid FROM parked o WHERE o.instance_id = t.id AND o.token_id = t.id OFFSET 0) old
  WHERE p.ctid = old.ctid),
gone AS (DELETE FROM timer d USING run r WHERE d.ctid = r.row)
SELECT r.token_id, r.seq, (SELECT j.name FROM job_type j WHERE j.id = w.job_type), w.flow_key
FROM run r LEFT JOIN woken w ON w.id = r.token_id

-- steps: closed_runs
-- Of runs that `ended` has taken: their last row of history, what they showed, and their instance.
closed AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, end_step,
                       worker, reason, output)
  SELECT instance_id, nextval('step_seq'), id, seq, entered_at, now, claimed_at, attempt, step,
    CASE status WHEN 1 /* COMPLETED */ THEN 1 /* COMPLETED */ WHEN 2 /* FAILED */ THEN 2 /* FAILED */ ELSE 3 /* SKIPPED */ END,
    CASE status WHEN 1 /* COMPLETED */ THEN end_step END, claimed_by, failure,
    output::jsonb
  FROM ended, clock),
shown AS (
  INSERT INTO journal (instance_id, pos, at, kind, attempt, path, payload)
  SELECT instance_id, nextval('step_seq'), now, kind, 1, '', payload
  FROM (SELECT e.instance_id, r.kind, r.payload FROM ended e
        CROSS JOIN LATERAL (VALUES (1, $13::smallint, e.raised), (2, $11::smallint, e.shown)) AS r(n, kind, payload)
        WHERE r.payload IS NOT NULL ORDER BY e.instance_id, r.n) r, clock),
finished AS (
  UPDATE instance i SET status = e.status, ended_at = clock.now, failure = e.failure
  FROM ended e CROSS JOIN LATERAL (SELECT o.ctid FROM instance o WHERE o.id = e.instance_id OFFSET 0) old, clock
  WHERE i.ctid = old.ctid)

-- name: finish_runs
-- Ends runs: $1 token $2 seq $3 attempt $4 holder $5 mail seen $6 status $7 index of the END step $8 output $9 failure
-- $10 what it showed last (null: nothing), which becomes its last record, of the kind $11; $12 what its function raised (null:
-- nothing), a record of the kind $13 before that. Answers whether others may be told,
-- and as `park_runs`. A run that is not returned has mail, or is not the holder's.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::int[], $6::smallint[], $7::smallint[],
                       $8::text[], $9::text[], $10::text[], $12::text[])
    AS i(token, seq, attempt, holder, mail, status, end_step, output, failure, shown, raised)),
ended AS (
  DELETE FROM token t USING item i CROSS JOIN LATERAL (
    SELECT o.ctid FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND t.state = 1 /* LOCKED */ AND t.attempt = i.attempt
    AND t.claimed_by = i.holder AND t.mail = i.mail
  RETURNING t.id, t.instance_id, t.seq, t.step, t.attempt, t.entered_at, t.claimed_at, t.claimed_by, i.status, i.end_step,
    i.output, i.failure, i.shown, i.raised, t.job_type, t.held, t.flow_key, t.run_queue, t.watched,
    CASE WHEN t.failures > 0 THEN penstock_goes_on(t.id, false) END),
released AS (  -- as `give_back`, and open runs
  UPDATE slot s SET running = s.running - r.n, open_runs = s.open_runs - r.runs FROM (
    SELECT queue, flow_key, sum(n)::int AS n, sum(runs)::int AS runs FROM (
      SELECT held / 4 AS queue, '' COLLATE "C" AS flow_key, 1 AS n, 0 AS runs FROM ended WHERE held & 1 = 1
      UNION ALL SELECT held / 4, flow_key, 1, 0 FROM ended WHERE held & 2 = 2
      UNION ALL SELECT run_queue, '', 0, 1 FROM ended WHERE run_queue IS NOT NULL) each
    GROUP BY queue, flow_key ORDER BY queue, flow_key) r
  WHERE s.queue = r.queue AND s.flow_key = r.flow_key),
clock AS MATERIALIZED (SELECT penstock_now() AS now FROM (SELECT count(*) FROM ended) AS after_the_locks),
disarmed AS (
  DELETE FROM timer d USING ended e CROSS JOIN LATERAL (
    SELECT o.ctid FROM timer o WHERE o.token_id = e.id AND o.seq = e.seq OFFSET 0) old
  WHERE d.ctid = old.ctid),
-- steps of: closed_runs
,
abnormal AS (
  INSERT INTO abnormal_end (status, instance_id, tokens, definition, cause)
  SELECT e.status, e.instance_id, CASE e.status WHEN 2 /* FAILED */ THEN '[]'::jsonb END, f.definition,
    CASE e.status WHEN 2 /* FAILED */ THEN failure_cause(coalesce(e.failure, '')) END
  FROM ended e LEFT JOIN LATERAL (
    SELECT i.definition FROM instance i WHERE i.id = e.instance_id AND e.status = 2 /* FAILED */ OFFSET 0) f ON true
  WHERE e.status IN (2 /* FAILED */, 3 /* CANCELLED */)),
unkeyed AS (
  DELETE FROM instance_key k WHERE k.instance_id = ANY(ARRAY(SELECT instance_id FROM ended)) AND NOT k.kept),
unnoted AS (
  DELETE FROM job_note n WHERE n.token_id = ANY(ARRAY(SELECT id FROM ended))),
told AS (  -- whoever called it
  INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
  SELECT now, c.token_id, c.seq, c.caller, CASE WHEN c.path IS NULL THEN -4 ELSE -17 END
  FROM ended e CROSS JOIN LATERAL (SELECT * FROM called c WHERE c.id = e.id OFFSET 0 FOR SHARE) c, clock
  WHERE e.watched AND (c.path IS NOT NULL OR EXISTS (
    SELECT FROM token t WHERE t.id = c.token_id AND t.seq = c.seq AND t.state = 7 /* CALLED */))
  ON CONFLICT DO NOTHING),
orphaned AS (  -- what it has called; one that completes has waited for that
  INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
  SELECT now, c.id, c.seq, c.id, -5
  FROM ended e CROSS JOIN LATERAL (SELECT * FROM called c WHERE c.caller = e.id AND c.path IS NOT NULL OFFSET 0) c
  CROSS JOIN LATERAL (SELECT FROM instance i WHERE i.id = c.id AND i.status = 0 /* ACTIVE */ OFFSET 0) i, clock
  WHERE e.status <> 1 /* COMPLETED */
  ON CONFLICT DO NOTHING)  -- a run that was retried may end again before that is done
SELECT id, watched OR status <> 1 /* COMPLETED */,
  CASE WHEN coalesce(held, run_queue) IS NOT NULL THEN (SELECT j.name FROM job_type j WHERE j.id = job_type) END, flow_key FROM ended

-- name: finish_spared
-- As `finish_runs`, while somebody holds tables that few runs need, of those that need none of them: who completed, holds no
-- slots and is told to nobody. What its workers noted, and timers of its seq, stay: these do nothing any more.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::int[], $6::smallint[], $7::smallint[],
                       $8::text[], $9::text[], $10::text[], $12::text[])
    AS i(token, seq, attempt, holder, mail, status, end_step, output, failure, shown, raised)),
ended AS (
  DELETE FROM token t USING item i CROSS JOIN LATERAL (
    SELECT o.ctid FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND t.state = 1 /* LOCKED */ AND t.attempt = i.attempt
    AND t.claimed_by = i.holder AND t.mail = i.mail AND i.status = 1 /* COMPLETED */ AND t.held IS NULL AND t.run_queue IS NULL
    AND NOT t.watched
  RETURNING t.id, t.instance_id, t.seq, t.step, t.attempt, t.entered_at, t.claimed_at, t.claimed_by, i.status, i.end_step,
    i.output, i.failure, i.shown, i.raised, t.flow_key,
    CASE WHEN t.failures > 0 THEN penstock_goes_on(t.id, false) END),
clock AS MATERIALIZED (SELECT penstock_now() AS now FROM (SELECT count(*) FROM ended) AS after_the_locks),
-- steps of: closed_runs
SELECT id, false, NULL::text, flow_key FROM ended

-- name: block_runs
-- Runs that the holder's code can't go on with: $1 token $2 seq $3 attempt $4 holder $5 reason. They come back after a
-- pause, twice as long each time. A reason that is the last one's is not noted again. $6: whether they are listed as blocked.
-- Answers the pause, and as `park_runs`.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::text[]) AS i(token, seq, attempt, holder, reason)),
stopped AS (
  UPDATE token t SET state = 4 /* BACKOFF */, failures = least(t.failures + 1, 1000), expiries = 0, held = NULL, claimed_by = NULL,
    claimed_at = NULL, lease_until = NULL
  FROM item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.claimed_at, o.held FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE t.ctid = old.ctid AND t.seq = i.seq AND t.state = 1 /* LOCKED */ AND t.attempt = i.attempt
    AND t.claimed_by = i.holder AND t.held IS NOT DISTINCT FROM old.held
  RETURNING t.*, i.holder, i.reason, old.claimed_at AS began_at, old.held AS was_held,
    least(5 * 2 ^ least(t.failures - 1, 10), 300)::float8 AS pause_s),
let_go AS (SELECT was_held AS held, flow_key FROM stopped),
-- steps of: give_back
clock AS MATERIALIZED (SELECT penstock_now() AS now FROM (SELECT count(*) FROM stopped) AS after_the_locks),
armed AS (
  INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
  SELECT id, seq, now + pause_s * interval '1 s', instance_id, -1 FROM stopped, clock),
noted AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker, reason)
  SELECT instance_id, nextval('step_seq'), id, seq, entered_at, now, began_at, attempt, step, 10 /* ATTEMPT_FAILED */,
    holder, reason
  FROM stopped s, clock
  WHERE reason IS DISTINCT FROM (
    SELECT h.reason FROM history h WHERE h.instance_id = s.instance_id AND h.pos > s.seq AND h.kind = 10 /* ATTEMPT_FAILED */
    ORDER BY h.pos DESC LIMIT 1)),
placed AS (INSERT INTO parked (instance_id, token_id) SELECT instance_id, id FROM stopped WHERE $6::boolean ON CONFLICT DO NOTHING),
listed AS (
  INSERT INTO blocked_run AS b (instance_id, since, reason) SELECT instance_id, now, reason FROM stopped, clock WHERE $6::boolean
  ON CONFLICT (instance_id) DO UPDATE SET reason = excluded.reason WHERE b.reason <> excluded.reason)
SELECT id, pause_s, CASE WHEN was_held IS NOT NULL THEN (SELECT j.name FROM job_type j WHERE j.id = job_type) END, flow_key FROM stopped

-- name: expire_runs
-- Those of the jobs that are runs, and whose lease ended, or whose holder's engine is gone: $1 token $2 seq $3 attempt $4 holder that is gone (null: the
-- lease must be over). They go to the queue, behind all that was not taken over (LATE_PLACE, store/rows/jobs.py), so that thousands of
-- them keep nobody's new run waiting; those with a flow key keep to their line. From the third time on without a record between
-- they stand back before, longer each time, so that what kills executors does not kill them one after the other. Never dead.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[]) AS i(token, seq, attempt, holder)),
due AS MATERIALIZED (
  SELECT t.* FROM item i CROSS JOIN LATERAL (
    SELECT t.ctid, t.id, t.seq, t.expiries, t.expiries >= 2 AS stands_back, t.claimed_by, t.claimed_at, t.held FROM token t
    WHERE t.id = i.token AND t.seq = i.seq AND t.attempt = i.attempt AND t.state = 1 /* LOCKED */
      AND t.job_type = ANY(ARRAY(SELECT j.id FROM job_type j WHERE j.name LIKE 'code:%'))
      AND CASE WHEN i.holder IS NULL THEN t.lease_until <= penstock_now() ELSE t.claimed_by = i.holder END
    FOR NO KEY UPDATE SKIP LOCKED) t),
freed AS (
  UPDATE token t SET state = CASE WHEN d.stands_back THEN 4 /* BACKOFF */ ELSE 0 /* READY */ END,
    queued = CASE WHEN d.stands_back THEN t.queued
      ELSE nextval('step_seq') + CASE WHEN coalesce(t.flow_key, '') = '' THEN 1152921504606846976 ELSE 0 END END,
    held = NULL, claimed_by = NULL, claimed_at = NULL, lease_until = NULL, expiries = least(d.expiries + 1, 32000)
  FROM due d WHERE t.ctid = d.ctid AND t.seq = d.seq AND t.state = 1 /* LOCKED */
  RETURNING t.*, d.claimed_by AS holder, d.claimed_at AS began_at, d.held AS was_held),
clock AS MATERIALIZED (SELECT penstock_now() AS now FROM (SELECT count(*) FROM freed) AS after_the_locks),
waiting AS (SELECT * FROM freed WHERE state = 0 /* READY */),
-- steps of: wait_again
let_go AS (SELECT was_held AS held, flow_key FROM freed),
-- steps of: give_back
armed AS (
  INSERT INTO timer (token_id, seq, fire_at, instance_id, index)
  SELECT id, seq, now + least(5 * 2 ^ least(expiries - 3, 10), 300) * interval '1 s', instance_id, -1 FROM freed, clock
  WHERE state = 4 /* BACKOFF */),
noted AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker)
  SELECT instance_id, nextval('step_seq'), id, seq, entered_at, now, began_at, attempt, step, 11 /* ATTEMPT_EXPIRED */,
    holder
  FROM freed, clock)
SELECT f.id, f.seq, f.attempt, (SELECT j.name FROM job_type j WHERE j.id = f.job_type), f.state, f.expiries, f.flow_key FROM freed f

-- name: expire_runs_plain
-- As `expire_runs`, of those alone without a flow key that hold no slot and need not stand back; $5: the job types of runs, $6: their names.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[]) AS i(token, seq, attempt, holder)),
due AS MATERIALIZED (
  SELECT t.* FROM item i CROSS JOIN LATERAL (
    SELECT t.ctid, t.id, t.seq, t.expiries, t.claimed_by, t.claimed_at FROM token t
    WHERE t.id = i.token AND t.seq = i.seq AND t.attempt = i.attempt AND t.state = 1 /* LOCKED */ AND t.job_type = ANY($5::int[])
      AND t.flow_key IS NULL AND t.held IS NULL AND t.expiries < 2
      AND CASE WHEN i.holder IS NULL THEN t.lease_until <= penstock_now() ELSE t.claimed_by = i.holder END
    FOR NO KEY UPDATE SKIP LOCKED) t),
freed AS (
  UPDATE token t SET state = 0 /* READY */, queued = nextval('step_seq') + 1152921504606846976, claimed_by = NULL, claimed_at = NULL,
    lease_until = NULL, expiries = d.expiries + 1
  FROM due d WHERE t.ctid = d.ctid AND t.seq = d.seq AND t.state = 1 /* LOCKED */
  RETURNING t.*, d.claimed_by AS worker, d.claimed_at AS began_at),
queued AS (INSERT INTO ready (job_type, priority, seq, token_id) SELECT job_type, priority, queued, id FROM freed),
noted AS (
  INSERT INTO history (instance_id, pos, token_id, seq, started_at, ended_at, claimed_at, attempt, step, kind, worker)
  SELECT instance_id, nextval('step_seq'), id, seq, entered_at, penstock_now(), began_at, attempt, step, 11 /* ATTEMPT_EXPIRED */, worker
  FROM freed)
SELECT f.id, f.seq, f.attempt, k.name, f.state, f.expiries, f.flow_key FROM freed f
JOIN unnest($5::int[], $6::text[]) AS k(id, name) ON k.id = f.job_type

-- name: held_by
-- Runs that executors of these engines ($1: the tags in `e<number>.<tag>/`) hold, beyond an id ($2). A sequential scan (132 ms for
-- 1,000,000 tokens), as only the death of an engine asks for it.
SELECT id, seq, attempt, claimed_by FROM token
WHERE state = 1 /* LOCKED */ AND id > $2::bigint AND substring(claimed_by FROM '^e\d+\.([0-9a-f]{8})/') = ANY($1::text[])
  AND job_type IN (SELECT j.id FROM job_type j WHERE j.name LIKE 'code:%')
ORDER BY id LIMIT 1000

-- name: outline
-- What a run's journal says without its payloads ($1 instance), as of the latest $2 records, oldest first.
SELECT * FROM (
  SELECT pos, at, kind, path, name, attempt, took_ms FROM journal WHERE instance_id = $1::bigint ORDER BY pos DESC LIMIT $2::int) j
ORDER BY pos

-- name: run_taken
-- The attempt at a run ($1 instance) that goes on, or that ended it, and since when; nothing while nobody has it.
SELECT t.attempt, extract(epoch FROM t.claimed_at)::float8 FROM token t
WHERE t.id = $1::bigint AND t.id = t.instance_id AND t.state = 1 /* LOCKED */
UNION ALL
SELECT h.attempt, extract(epoch FROM h.claimed_at)::float8 FROM (
  SELECT * FROM history l WHERE l.instance_id = $1::bigint ORDER BY l.pos DESC LIMIT 1) h
WHERE h.kind < 10 /* ATTEMPT_FAILED */ AND h.claimed_at IS NOT NULL AND NOT EXISTS (SELECT FROM token t WHERE t.id = $1::bigint)

-- name: run_began
-- When the time of a run ($1 instance) began, open or ended; nothing where it never did.
SELECT extract(epoch FROM t.entered_at)::float8 FROM token t WHERE t.id = $1::bigint AND t.id = t.instance_id
UNION ALL
SELECT extract(epoch FROM h.started_at)::float8 FROM (
  SELECT * FROM history l WHERE l.instance_id = $1::bigint ORDER BY l.pos DESC LIMIT 1) h
WHERE NOT EXISTS (SELECT FROM token t WHERE t.id = $1::bigint)

-- name: run_about
-- A run ($1 instance) that has not ended: its token's columns, what its holder noted, when it goes on by itself, why an
-- attempt at it ended last, and since when it is blocked.
SELECT t.state, t.mail, t.failures, t.expiries, n.checkpoint::text, n.progress::text, m.fire_at, coalesce(b.reason, h.reason), b.since
FROM token t
LEFT JOIN LATERAL (SELECT * FROM blocked_run b WHERE b.instance_id = t.id OFFSET 0) b ON true
LEFT JOIN LATERAL (SELECT * FROM job_note n WHERE n.token_id = t.id AND n.seq = t.seq OFFSET 0) n ON true
LEFT JOIN LATERAL (
  SELECT min(m.fire_at) AS fire_at FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq AND m.index IN (-1, -16) OFFSET 0) m
  ON true
LEFT JOIN LATERAL (
  SELECT h.reason FROM history h
  WHERE h.instance_id = t.id AND h.pos > t.seq AND h.seq = t.seq AND h.kind = 10 /* ATTEMPT_FAILED */
  ORDER BY h.pos DESC LIMIT 1) h ON true
WHERE t.id = $1::bigint AND t.id = t.instance_id
