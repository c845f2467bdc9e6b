-- Jobs under a queue's policy, or with a flow key: how they begin, are claimed, completed and given back. What the fast
-- path's statements (jobs.sql, instances.sql) do for jobs that nobody limits, these do for all; those refuse what has a
-- key or holds a slot.
--
-- A slot belongs to an attempt: it is taken in the statement that leases (`claim_flow`, `admit`, a late heartbeat) and
-- given back in the one that ends the attempt, whatever ends it. token.held says what it took, so whatever the policy
-- is by then. Lock order: token, then slot, a queue's own row ('') first, then its keys in their order. Claims take their
-- tokens with SKIP LOCKED and so never wait for one. A slot's row is never met by its ctid: it may have changed since the
-- snapshot, and must not be missed.
--
-- A durable run is counted as open, where its queue limits `runs`, by the claim that finds it uncounted, and to its end
-- (`finish_runs`, or what ends instances): token.run_queue. From then on its priority is less by 10, so that it goes before those that
-- have not begun, whatever waits of them.
--
-- And its time begins with its first claim, not with its start: token.entered_at, which its executors begin with, whoever
-- they are and however often. The claim itself still tells since when it waited.

-- steps: give_back
-- Slots of the attempts that `let_go` (held, flow_key) ended. Rows that hold none cost nothing.
released AS (
  UPDATE slot s SET running = s.running - r.n FROM (
    SELECT queue, flow_key, count(*)::int AS n FROM (
      SELECT held / 4 AS queue, '' COLLATE "C" AS flow_key FROM let_go WHERE held & 1 = 1
      UNION ALL SELECT held / 4, flow_key FROM let_go WHERE held & 2 = 2) each
    GROUP BY queue, flow_key ORDER BY queue, flow_key) r
  WHERE s.queue = r.queue AND s.flow_key = r.flow_key),

-- name: release_slots
-- What attempts gave back that whole instances ended ($1 queue $2 flow key $3 how many), and runs ($4), in lock order.
UPDATE slot s SET running = s.running - r.n, open_runs = s.open_runs - r.runs
FROM unnest($1::int[], $2::text[] COLLATE "C", $3::int[], $4::int[]) AS r(queue, flow_key, n, runs)
WHERE s.queue = r.queue AND s.flow_key = r.flow_key

-- steps: policy
-- Of the job type $1, as this statement's snapshot has it. A job's pace, and what may run ahead of it, in microseconds.
policy AS MATERIALIZED (
  SELECT j.queue, coalesce((q.policy ->> 'paused')::boolean, false) AS paused,
    (q.policy ->> 'concurrency')::int AS total, (q.policy ->> 'concurrencyPerKey')::int AS per_key,
    (q.policy #>> '{rate,paceMicros}')::float8 AS pace, (q.policy #>> '{rate,burst}')::int AS burst,
    (q.policy #>> '{ratePerKey,paceMicros}')::float8 AS key_pace, (q.policy #>> '{ratePerKey,burst}')::int AS key_burst,
    coalesce(q.policy ?| '{concurrencyPerKey,ratePerKey}', false) AS keys_limited, q.policy -> 'weights' AS weights,
    j.queue IS NOT NULL AND j.name LIKE 'code:%' AS code, CASE WHEN j.name LIKE 'code:%' THEN (q.policy ->> 'runs')::int END AS runs
  FROM job_type j LEFT JOIN queue q ON q.id = j.queue WHERE j.id = $1::int),

-- steps: allowance
-- What the queue's own row g lets begin at the time c: places, tokens of its rate, when there is one of these again, runs.
  SELECT CASE WHEN p.total IS NOT NULL THEN coalesce(p.total - g.running, 0) END AS places,
    CASE WHEN p.pace IS NULL THEN NULL WHEN g.running IS NULL THEN 0 ELSE
      floor(p.burst - greatest(0, extract(epoch FROM g.tat - c.now)::float8 * 1e6) / p.pace + 1e-6)::int END AS tokens,
    extract(epoch FROM g.tat - c.now)::float8 - (p.burst - 1) * p.pace / 1e6 AS wait_s,
    CASE WHEN p.runs IS NOT NULL THEN greatest(0, coalesce(p.runs - g.open_runs, 0)) END AS new_runs
  FROM policy p CROSS JOIN c LEFT JOIN g ON true

-- steps: room
-- How many jobs the queue lets begin as the snapshot has it. What it let begin since is seen under the lock of its row (`gate`),
-- which is taken late, as all claims and completions of the queue take it.
start AS MATERIALIZED (SELECT penstock_now() AS now),
-- Transactions that the snapshot does not see: those under way at it, and what began later. Whoever touched a row before and
-- has ended is none of them, however long others run.
unseen AS MATERIALIZED (
  SELECT ARRAY(SELECT x::xid FROM pg_snapshot_xip(pg_current_snapshot()) AS x) AS running,
    age(pg_snapshot_xmax(pg_current_snapshot())::xid) AS newest),
estimate AS MATERIALIZED (
  WITH c AS (SELECT now FROM start), g AS (
    SELECT s.running, s.open_runs, s.tat FROM policy p CROSS JOIN LATERAL (
      SELECT o.running, o.open_runs, o.tat FROM slot o WHERE coalesce(p.total, p.pace, p.runs) IS NOT NULL AND o.queue = p.queue AND o.flow_key = '' OFFSET 0) s)
-- steps of: allowance
  ),
room AS MATERIALIZED (
  SELECT CASE WHEN (SELECT paused FROM policy) THEN 0 ELSE greatest(0, least($2::int, places, tokens)) END AS n,
    coalesce(new_runs, $2::int) AS new_runs FROM estimate),

-- steps: waiting
    CROSS JOIN LATERAL (
      SELECT o.ctid AS token_row, o.xmin AS version,
        o.xmax = '0'::xid OR NOT (
          o.xmax = ANY((SELECT running FROM unseen)::xid[]) OR age(o.xmax) <= (SELECT newest FROM unseen)) AS untouched FROM token o
      WHERE o.id = r.token_id AND coalesce(o.queued, o.seq) = r.seq AND o.state = 0 /* READY */ OFFSET 0) old

-- steps: locked
    CROSS JOIN LATERAL (
      SELECT t.xmin AS version FROM token t WHERE t.ctid = r.token_row AND coalesce(t.queued, t.seq) = r.seq AND t.state = 0 /* READY */
      FOR NO KEY UPDATE SKIP LOCKED) t
    -- What changed since the snapshot is not written below: it must not be counted. And it is not locked, as far as can be seen,
    -- as who completes it would wait for this claim.
    WHERE r.untouched AND t.version = r.version

-- steps: key_room
-- Of the key k: how many of its jobs may begin, in how many seconds one may that its rate keeps back, whether it has a slot.
  CROSS JOIN LATERAL (
    SELECT CASE WHEN k.flow_key = '' THEN 2000000000 ELSE least(
        (SELECT per_key FROM policy) - coalesce(s.running, 0), f.tokens, 2000000000) END AS free,
      CASE WHEN k.flow_key <> '' AND f.tokens < 1 THEN f.ahead_s - (SELECT (key_burst - 1) * key_pace / 1e6 FROM policy) END AS wait_s,
      s.running IS NOT NULL AS known
    FROM (SELECT) one
    LEFT JOIN LATERAL (
      SELECT o.running, o.tat FROM slot o WHERE k.flow_key <> '' AND (SELECT coalesce(per_key, key_burst) FROM policy) IS NOT NULL
        AND o.queue = (SELECT queue FROM policy) AND o.flow_key = k.flow_key OFFSET 0) s ON true
    CROSS JOIN LATERAL (
      SELECT floor((SELECT key_burst FROM policy) - a.ahead_s * 1e6 / (SELECT key_pace FROM policy) + 1e-6)::int AS tokens, a.ahead_s
      FROM (SELECT coalesce(greatest(0, extract(epoch FROM s.tat - (SELECT now FROM start))::float8), 0) AS ahead_s OFFSET 0) a) f
    OFFSET 0) f

-- steps: first_job
-- And its first job, locked, if one may begin.
  LEFT JOIN LATERAL (
    SELECT r.seq AS place, r.queue_row, r.token_row FROM (
      SELECT r.seq, r.queue_row, old.token_row, old.version, old.untouched FROM (
        SELECT r.*, r.ctid AS queue_row FROM ready_flow r
        WHERE f.free > 0 AND r.job_type = $1::int AND r.priority = k.priority AND r.flow_key = k.flow_key
        ORDER BY r.seq LIMIT 101) r
-- steps of: waiting
      LIMIT CASE WHEN (SELECT keys_limited FROM policy) AND k.flow_key <> '' THEN 1 ELSE 101 END) r
-- steps of: locked
    LIMIT 1) h ON true

-- steps: walk
-- The keys that wait, of priorities worse than $3[1], one by one, of each from the key after its own in the cursor $3[2] on and round
-- again, until enough of them have room or $4 were looked at: a loose scan of the index, which passes over a key in one step whatever
-- waits behind it. Of a key that has room the first job is locked on the way, so that one whose jobs another claim is taking is passed
-- over, too.
rounds AS MATERIALIZED (SELECT coalesce(nullif(($3::text[])[2], '')::jsonb, '{}') AS served),
walk(priority, flow_key, wrapped, origin, free, wait_s, visited, found, known, place, queue_row, token_row) AS (
  SELECT ($3::text[])[1]::smallint, '' COLLATE "C", true, '' COLLATE "C", 0, NULL::float8, 0, 0, NULL::boolean, NULL::bigint, NULL::tid, NULL::tid
  FROM room WHERE n > 0
  UNION ALL
  SELECT k.priority, k.flow_key, k.wrapped, k.origin, f.free, f.wait_s, w.visited + 1, w.found + (h.token_row IS NOT NULL)::int,
    f.known, h.place, h.queue_row, h.token_row
  FROM walk w CROSS JOIN LATERAL (
    (SELECT r.priority, r.flow_key, w.wrapped, w.origin FROM ready_flow r
     WHERE r.job_type = $1::int AND r.priority = w.priority AND r.flow_key > w.flow_key AND (NOT w.wrapped OR r.flow_key <= w.origin)
     ORDER BY r.flow_key LIMIT 1)
    UNION ALL  -- past the last key: from the first one to where the walk of this priority began
    (SELECT r.priority, r.flow_key, true, w.origin FROM ready_flow r
     WHERE NOT w.wrapped AND r.job_type = $1::int AND r.priority = w.priority AND r.flow_key <= w.origin
     ORDER BY r.flow_key LIMIT 1)
    UNION ALL  -- the next priority
    (SELECT next.priority, first.flow_key, first.wrapped, next.origin
     FROM (SELECT r.priority, coalesce((SELECT served FROM rounds) ->> r.priority::text, '') COLLATE "C" AS origin FROM ready_flow r
           WHERE r.job_type = $1::int AND r.priority > w.priority ORDER BY r.priority LIMIT 1) next
     CROSS JOIN LATERAL (
       (SELECT r.flow_key, false AS wrapped FROM ready_flow r
        WHERE r.job_type = $1::int AND r.priority = next.priority AND r.flow_key > next.origin ORDER BY r.flow_key LIMIT 1)
       UNION ALL
       (SELECT r.flow_key, true FROM ready_flow r
        WHERE r.job_type = $1::int AND r.priority = next.priority AND r.flow_key <= next.origin ORDER BY r.flow_key LIMIT 1)
       LIMIT 1) first)
    LIMIT 1) k(priority, flow_key, wrapped, origin)
-- steps of: key_room
-- steps of: first_job
  WHERE w.visited < $4::int AND w.found < (SELECT n FROM room) AND (k.priority < 0 OR (SELECT new_runs FROM room) > 0)),
seen AS MATERIALIZED (
  SELECT priority, flow_key, free, wait_s, visited, known, place, queue_row, token_row FROM walk WHERE visited > 0),
left_over AS (SELECT NULL::text AS flow_key WHERE false),  -- the walk comes to them

-- steps: choose
-- Of the keys that have room their jobs in turn; as many are counted as there is room for.
open_keys AS MATERIALIZED (
  SELECT k.*, least(k.free, (SELECT n FROM room),
    (((SELECT n FROM room) + k.keys - 1) / k.keys) * coalesce(((SELECT weights FROM policy) ->> k.flow_key)::int, 1)) AS quota
  FROM (SELECT s.*, count(*) OVER (PARTITION BY s.priority)::int AS keys FROM seen s WHERE s.token_row IS NOT NULL) k),
held AS MATERIALIZED (
  SELECT priority, flow_key AS key, visited, free, known, quota, place, queue_row, token_row FROM open_keys
  UNION ALL
  SELECT k.priority, k.flow_key, k.visited, k.free, k.known, k.quota, c.place, c.queue_row, c.token_row
  FROM open_keys k CROSS JOIN LATERAL (
    SELECT r.seq AS place, r.queue_row, r.token_row FROM (
      SELECT r.seq, r.queue_row, old.token_row, old.version, old.untouched FROM (
        SELECT r.*, r.ctid AS queue_row FROM ready_flow r
        WHERE k.quota > 1 AND r.job_type = $1::int AND r.priority = k.priority AND r.flow_key = k.flow_key AND r.seq > k.place
        ORDER BY r.seq LIMIT k.quota + 100) r
-- steps of: waiting
      OFFSET 0) r
-- steps of: locked
    LIMIT k.quota - 1) c),
first_short AS MATERIALIZED (  -- the best priority at which a key may have more jobs than its turns here: worse ones wait for them
  SELECT min(k.priority) AS priority FROM (
    SELECT priority FROM held GROUP BY priority, key, quota, free HAVING count(*) = quota AND quota < least(free, (SELECT n FROM room))) k),
ranked AS MATERIALIZED (
  SELECT o.*, row_number() OVER w::int AS ordinal, count(*) FILTER (WHERE o.priority < 0) OVER w AS open FROM (
    SELECT h.*, row_number() OVER (PARTITION BY h.key ORDER BY h.priority, h.place) AS nth,
      (row_number() OVER (PARTITION BY h.key, h.priority ORDER BY h.place) - 1)
        / coalesce(((SELECT weights FROM policy) ->> h.key)::int, 1) AS turn
    FROM held h) o
  WHERE o.nth <= o.free AND o.priority <= coalesce((SELECT priority FROM first_short), o.priority) WINDOW w AS (ORDER BY o.priority, o.turn, o.visited, o.place)),
gate AS MATERIALIZED (
  SELECT s.running, s.open_runs, s.tat FROM policy p CROSS JOIN LATERAL (
    SELECT o.running, o.open_runs, o.tat FROM slot o
    WHERE coalesce(p.total, p.pace, p.runs) IS NOT NULL AND EXISTS (SELECT FROM ranked) AND o.queue = p.queue AND o.flow_key = '' FOR NO KEY UPDATE) s),
clock AS MATERIALIZED (SELECT penstock_now() AS now FROM (SELECT count(*) FROM gate) AS after_the_lock),
allowed AS MATERIALIZED (
  WITH c AS (SELECT now FROM clock), g AS (SELECT * FROM gate)
-- steps of: allowance
  ),
chosen AS MATERIALIZED (
  SELECT r.* FROM ranked r CROSS JOIN allowed a
  WHERE r.ordinal <= least((SELECT n FROM room), a.places, a.tokens) AND (a.new_runs IS NULL OR r.priority < 0 OR r.ordinal - r.open <= a.new_runs)),
wanted AS MATERIALIZED (
  SELECT p.queue, r.key, CASE WHEN p.per_key IS NULL THEN 0 ELSE r.n END AS places, c.now + ceil(r.n * p.key_pace) * interval '1 microsecond' AS tat,
    c.now + ceil(p.key_burst * p.key_pace) * interval '1 microsecond' AS tat_max, bool_and(r.known) OVER () AS all_known
  FROM (SELECT key, count(*)::int AS n, bool_and(known) AS known FROM chosen WHERE key <> '' GROUP BY key) r CROSS JOIN policy p CROSS JOIN clock c
  WHERE p.keys_limited),
-- Where all keys have their rows these are updated, else all go the way of new ones: either takes them once, in their order.
counted_keys AS (
  UPDATE slot s SET running = s.running + w.places,
    tat = CASE WHEN w.tat IS NULL THEN s.tat ELSE greatest(s.tat, (SELECT now FROM clock)) + (w.tat - (SELECT now FROM clock)) END
  FROM (SELECT * FROM wanted WHERE all_known ORDER BY key) w
  WHERE s.queue = w.queue AND s.flow_key = w.key
    AND ((SELECT per_key FROM policy) IS NULL OR s.running + w.places <= (SELECT per_key FROM policy))
    AND (w.tat IS NULL OR greatest(s.tat, (SELECT now FROM clock)) + (w.tat - (SELECT now FROM clock)) <= w.tat_max)
  RETURNING s.flow_key),
new_keys AS (
  INSERT INTO slot AS s (queue, flow_key, running, tat)
  SELECT queue, key, places, tat FROM wanted WHERE NOT all_known ORDER BY key
  ON CONFLICT (queue, flow_key) DO UPDATE SET running = s.running + excluded.running,
    tat = CASE WHEN excluded.tat IS NULL THEN s.tat
      ELSE greatest(s.tat, (SELECT now FROM clock)) + (excluded.tat - (SELECT now FROM clock)) END
  WHERE ((SELECT per_key FROM policy) IS NULL OR s.running + excluded.running <= (SELECT per_key FROM policy))
    AND (excluded.tat IS NULL OR greatest(s.tat, (SELECT now FROM clock)) + (excluded.tat - (SELECT now FROM clock))
      <= (SELECT max(tat_max) FROM wanted))
  RETURNING s.flow_key),
granted AS MATERIALIZED (
  SELECT r.* FROM chosen r CROSS JOIN policy p
  WHERE r.key = '' OR NOT p.keys_limited OR r.key IN (SELECT flow_key FROM counted_keys UNION ALL SELECT flow_key FROM new_keys)),

-- steps: taken_away
-- What `taken` leased or dispatched is counted in the queue's row and leaves the queue, with rows that are nobody's.
counted AS (
  UPDATE slot s SET running = s.running + CASE WHEN p.total IS NULL THEN 0 ELSE x.n END,
    open_runs = s.open_runs + x.begun,
    tat = CASE WHEN p.pace IS NULL THEN s.tat
      ELSE greatest(s.tat, c.now) + ceil(x.n * p.pace) * interval '1 microsecond' END
  FROM policy p CROSS JOIN clock c CROSS JOIN (
    SELECT count(*)::int AS n, (count(*) FILTER (WHERE begins))::int AS begun FROM taken) x
  WHERE s.queue = p.queue AND s.flow_key = '' AND x.n > 0 AND (p.total IS NOT NULL OR p.pace IS NOT NULL OR x.begun > 0)),
short AS MATERIALIZED (  -- of these keys fewer jobs were found than there was room for
  SELECT priority, key, quota FROM held GROUP BY priority, key, quota HAVING count(*) < quota
  UNION ALL SELECT priority, flow_key, 1 FROM seen WHERE free > 0 AND token_row IS NULL),
void AS MATERIALIZED (
  SELECT c.queue_row FROM short k CROSS JOIN LATERAL (
    SELECT r.*, r.ctid AS queue_row FROM ready_flow r
    WHERE r.job_type = $1::int AND r.priority = k.priority AND r.flow_key = k.key ORDER BY r.seq LIMIT k.quota + 100) c
  WHERE NOT EXISTS (
    SELECT FROM token t WHERE t.id = c.token_id AND coalesce(t.queued, t.seq) = c.seq AND t.state = 0 /* READY */ OFFSET 0)),
unqueued AS (
  DELETE FROM ready_flow r USING (SELECT queue_row FROM taken UNION ALL SELECT queue_row FROM void) gone
  WHERE r.ctid = gone.queue_row),
about AS MATERIALIZED (
  -- where the next walk begins at each priority: behind the key that was served last, or looked at last where there was more to
  -- look at; where none was served it begins as this one
  SELECT CASE WHEN EXISTS (SELECT FROM seen) THEN ((SELECT served FROM rounds) || coalesce((
      SELECT jsonb_object_agg(m.priority, m.key) FROM (
        SELECT DISTINCT ON (l.priority) l.priority, l.key FROM (
          SELECT priority, key, ordinal AS place, false AS cut FROM chosen
          UNION ALL SELECT priority, flow_key, visited, true FROM seen WHERE visited >= $4::int) l
        ORDER BY l.priority, l.cut DESC, l.place DESC) m), '{}'))::text END AS cursor,
    (SELECT count(*) FROM seen)::int AS visited, (SELECT count(*) FROM seen WHERE free <= 0)::int AS blocked,
    (SELECT count(*) FROM seen WHERE free > 0 AND token_row IS NULL)::int AS passed,
    CASE WHEN least(e.tokens, CASE WHEN EXISTS (SELECT FROM gate) THEN a.tokens END) < 1 THEN coalesce(a.wait_s, e.wait_s)
      ELSE (SELECT min(wait_s) FROM seen) END AS retry_s, ARRAY(SELECT flow_key FROM left_over) AS left_over,
    -- the priority at which the look ended for its keys' sake, where worse ones wait
    (SELECT s.priority FROM seen s WHERE s.visited >= $4::int AND (SELECT count(token_row) FROM seen) < (SELECT n FROM room)
       AND EXISTS (SELECT FROM ready_flow r WHERE r.job_type = $1::int AND r.priority > s.priority OFFSET 0)
     ORDER BY s.visited DESC LIMIT 1) AS ended_at
  FROM estimate e CROSS JOIN allowed a),

-- steps: lease
taken AS (
  UPDATE token t SET state = 1 /* LOCKED */, claimed_by = ($5::text[])[n.ordinal], attempt = t.attempt + 1, claimed_at = c.now,
    lease_until = c.now + least(($6::float8[])[n.ordinal], t.timeout_s) * interval '1 s',
    held = CASE WHEN p.total IS NOT NULL OR p.per_key IS NOT NULL AND n.key <> '' THEN
      p.queue * 4 + (p.total IS NOT NULL)::int + 2 * (p.per_key IS NOT NULL AND n.key <> '')::int END,
    run_queue = CASE WHEN b.begins THEN p.queue ELSE t.run_queue END,
    priority = CASE WHEN b.begins THEN t.priority - 10 ELSE t.priority END,
    entered_at = CASE WHEN old.entered_at IS NULL THEN t.entered_at ELSE c.now END
  FROM granted n CROSS JOIN policy p CROSS JOIN clock c CROSS JOIN LATERAL (SELECT p.runs IS NOT NULL AND n.priority >= 0 AS begins) b
  LEFT JOIN LATERAL (
    SELECT o.entered_at FROM token o WHERE p.code AND o.ctid = n.token_row AND o.attempt = 0 OFFSET 0) old ON true
  WHERE t.ctid = n.token_row AND coalesce(t.queued, t.seq) = n.place AND t.state = 0 /* READY */
  RETURNING t.*, n.ordinal, n.place, n.queue_row, b.begins, old.entered_at AS queued_at),
-- steps of: taken_away
jobs AS (
  SELECT t.job_type, t.ordinal, t.id, t.instance_id, t.seq, t.step, t.attempt, t.failures, coalesce(t.queued_at, t.entered_at),
    t.claimed_at, t.lease_until, t.priority, t.place, coalesce(t.entry, t.seq), i.definition, i.business_key,
    CASE WHEN i.sent THEN (i.vars || coalesce(i.overlay, '{}') || d.deltas)::text END
  FROM taken t CROSS JOIN LATERAL (
    SELECT i.id, i.definition, i.business_key, i.vars, i.overlay, i.folded_pos,
      t.item IS NULL AND pg_column_size(i.vars) + coalesce(pg_column_size(i.overlay), 0) <= $7::int
        AND pg_column_compression(i.vars) IS NULL AND pg_column_compression(i.overlay) IS NULL AS sent
    FROM instance i WHERE i.id = t.instance_id OFFSET 0) i
  CROSS JOIN LATERAL (  -- no subselect: see `leased_jobs`
    SELECT jsonb_merge(h.output ORDER BY h.pos) AS deltas FROM history h
    WHERE i.sent AND h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL) d)
SELECT a.cursor, a.visited, a.blocked, a.passed, a.retry_s, CASE WHEN row_number() OVER () = 1 THEN a.left_over END, a.ended_at, b.*
FROM about a LEFT JOIN jobs b ON true

-- steps: hinted
-- What waits under the flow keys $3, at any priority; $4 as many as these. No round goes on.
rounds AS (SELECT '{}'::jsonb AS served),
levels(priority) AS (
  (SELECT r.priority FROM ready_flow r WHERE r.job_type = $1::int ORDER BY r.priority LIMIT 1)
  UNION ALL
  SELECT n.priority FROM levels l CROSS JOIN LATERAL (
    SELECT r.priority FROM ready_flow r WHERE r.job_type = $1::int AND r.priority > l.priority ORDER BY r.priority LIMIT 1) n),
seen AS MATERIALIZED (
  SELECT k.priority, k.flow_key, f.free, f.wait_s, k.visited, f.known, h.place, h.queue_row, h.token_row FROM (
    SELECT l.priority, g.flow_key, (row_number() OVER (ORDER BY l.priority, g.n))::int AS visited
    FROM room CROSS JOIN levels l CROSS JOIN unnest($3::text[]) WITH ORDINALITY AS g(flow_key, n)
    WHERE room.n > 0 AND (l.priority < 0 OR room.new_runs > 0)) k
-- steps of: key_room
-- steps of: first_job
  ),
-- Those that may have more jobs than there was room for here, the least served first.
left_over AS (
  SELECT h.key AS flow_key FROM (
    SELECT l.key, max(l.free) AS free, sum(l.found) AS found, bool_or(l.found >= l.quota) AS may_have_more, min(l.visited) AS visited
    FROM (SELECT priority, key, free, quota, visited, count(*) AS found FROM held GROUP BY priority, key, free, quota, visited) l
    GROUP BY l.key) h
  LEFT JOIN (SELECT key, count(*) AS n FROM granted GROUP BY key) g ON g.key = h.key
  WHERE coalesce(g.n, 0) < h.free AND (h.may_have_more OR coalesce(g.n, 0) < h.found)
  ORDER BY coalesce(g.n, 0), h.visited),

-- steps: dispatch
taken AS (
  UPDATE token t SET state = 5 /* DISPATCHED */, claimed_by = NULL, attempt = t.attempt + 1, claimed_at = c.now,
    lease_until = c.now + $5::float8 * interval '1 s',
    held = CASE WHEN p.total IS NOT NULL OR p.per_key IS NOT NULL AND n.key <> '' THEN
      p.queue * 4 + (p.total IS NOT NULL)::int + 2 * (p.per_key IS NOT NULL AND n.key <> '')::int END
  FROM granted n CROSS JOIN policy p CROSS JOIN clock c
  WHERE t.ctid = n.token_row AND coalesce(t.queued, t.seq) = n.place AND t.state = 0 /* READY */
  RETURNING t.*, n.ordinal, n.queue_row, false AS begins),
-- steps of: taken_away
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), instance_id, id, seq, claimed_at, job_type, attempt FROM (SELECT * FROM taken ORDER BY ordinal) t)
SELECT a.*, (SELECT count(*) FROM taken) FROM about a

-- name: claim_flow
-- Leases waiting jobs of the type $1 to $2 slots ($5 worker $6 lease seconds), keys in turn: as many as its queue has
-- places and rate for, whole and by key. $3 the priority after which to look, and the cursor: as the last claim told it, or empty
-- $4 keys to look at $7 as $4 of `claim`. One row at least, with the cursor (keys by priority, as JSON), how many keys were looked at,
-- how many of them had no room and how many were passed over as their first job is held, and in how many seconds a rate lets
-- something begin; then the jobs, as `claim` has them.
WITH RECURSIVE
-- steps of: policy
-- steps of: room
-- steps of: walk
-- steps of: choose
-- steps of: lease

-- name: claim_hinted
-- As `claim_flow`, of the flow keys $3 alone, as far as they wait: what was freed or came to be beyond the keys that a walk looked
-- at. $4 as many as these.
WITH RECURSIVE
-- steps of: policy
-- steps of: room
-- steps of: hinted
-- steps of: choose
-- steps of: lease

-- name: admit
-- Kafka mode: as `claim_flow`, but into the outbox, for $2 jobs: DISPATCHED until $5 seconds from now. One row as the first of
-- `claim_flow`, with how many began.
WITH RECURSIVE
-- steps of: policy
-- steps of: room
-- steps of: walk
-- steps of: choose
-- steps of: dispatch

-- name: admit_hinted
-- As `admit`, of the flow keys $3 alone (`claim_hinted`).
WITH RECURSIVE
-- steps of: policy
-- steps of: room
-- steps of: hinted
-- steps of: choose
-- steps of: dispatch

-- name: adopt
-- Jobs of types in a queue ($1) that wait in `ready`, as they came before, or from an engine that did not know of it yet: at
-- most $2 of each move to `ready_flow`. How many rows were looked at.
WITH next AS MATERIALIZED (
  SELECT r.* FROM unnest($1::int[]) AS j(id) CROSS JOIN LATERAL (
    SELECT r.*, r.ctid AS queue_row FROM ready r WHERE r.job_type = j.id ORDER BY r.priority, r.seq LIMIT $2::int) r),
live AS MATERIALIZED (
  SELECT n.queue_row, n.seq, t.token_row FROM next n CROSS JOIN LATERAL (
    SELECT t.ctid AS token_row FROM token t WHERE t.id = n.token_id AND coalesce(t.queued, t.seq) = n.seq AND t.state = 0 /* READY */
    FOR NO KEY UPDATE SKIP LOCKED) t),
adopted AS (
  UPDATE token t SET flow_key = '' FROM live l
  WHERE t.ctid = l.token_row AND coalesce(t.queued, t.seq) = l.seq AND t.state = 0 /* READY */ AND t.flow_key IS NULL
  RETURNING t.job_type, t.priority, l.seq, t.id, l.queue_row),
queued AS (
  INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id) SELECT job_type, priority, '', seq, id FROM adopted),
void AS MATERIALIZED (
  SELECT n.queue_row FROM next n WHERE NOT EXISTS (
    SELECT FROM token t WHERE t.id = n.token_id AND coalesce(t.queued, t.seq) = n.seq AND t.state = 0 /* READY */ OFFSET 0)),
unqueued AS (
  DELETE FROM ready r USING (SELECT queue_row FROM adopted UNION ALL SELECT queue_row FROM void) gone
  WHERE r.ctid = gone.queue_row)
SELECT count(*) FROM next

-- name: complete_flow
-- As `complete_fast`, for tokens with flow keys and slots as well as for those without. $12 of the next job: 0 it waits in the
-- queue, or in the outbox; with a key, or 1: in `ready_flow`, as its type is keyed; 2: there without its key, as its queue is
-- not fair. Tells what was held, too.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::smallint[], $6::smallint[], $7::int[],
                       $8::text[], $9::float8[], $10::text[], $12::smallint[])
    AS i(token, seq, attempt, worker, op, next_step, next_type, direct_to, lease_s, output, waits)),
moved AS (
  -- `old` is the token as the statement's snapshot shows it. If the row changed since, attempt or state differ, the
  -- re-check under the lock fails and the item is refused: then the caller looks (ExecutionState) and may come again.
  UPDATE token t SET
    held = NULL, flow_key = CASE WHEN i.waits = 2 THEN '' ELSE coalesce(old.own_key, CASE i.waits WHEN 1 THEN '' END) END,
    seq = nextval('step_seq'), queued = NULL, entry = NULL, step = i.next_step, job_type = i.next_type,
    state = CASE WHEN i.direct_to IS NULL THEN 0 /* READY */ ELSE 1 /* LOCKED */ END,
    attempt = CASE WHEN i.direct_to IS NULL THEN 0 ELSE 1 END, failures = 0, expiries = 0,
    entered_at = penstock_now(), timeout_s = NULL, claimed_by = i.direct_to,
    claimed_at = CASE WHEN i.direct_to IS NOT NULL THEN penstock_now() END,
    lease_until = CASE WHEN i.direct_to IS NOT NULL THEN penstock_now() + i.lease_s * interval '1 s' END,
    unfolded = least(32000, t.unfolded + CASE WHEN i.output IS NULL THEN 0 ELSE 1 + octet_length(i.output) / 131072 END)
  FROM item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.step, o.state, o.job_type, o.attempt, o.entered_at, o.claimed_at, coalesce(o.queued, o.seq) AS place,
      o.held, o.flow_key, (SELECT x.flow_key FROM instance x WHERE x.id = o.instance_id) AS own_key
    FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE i.op = 0 AND t.ctid = old.ctid AND t.seq = i.seq
    AND (t.state IN (0 /* READY */, 1 /* LOCKED */) AND t.claimed_by = i.worker OR t.state = 5 /* DISPATCHED */)
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND t.attempt = old.attempt AND t.state = old.state
    AND t.held IS NOT DISTINCT FROM old.held AND t.migrated IS NULL AND (i.output IS NULL OR t.unfolded < 128)
  RETURNING t.id, t.instance_id, t.seq AS new_seq, t.entered_at, t.lease_until, t.unfolded, t.priority, t.flow_key AS next_key,
    i.seq, i.next_type, i.direct_to, i.worker, i.output,
    old.step, old.state, old.job_type, old.attempt, old.entered_at AS started_at, old.claimed_at, old.place, old.held, old.flow_key),
ended AS (
  DELETE FROM token t USING item i CROSS JOIN LATERAL (
    SELECT o.ctid, o.state, o.attempt FROM token o WHERE o.id = i.token AND o.seq = i.seq OFFSET 0) old
  WHERE i.op = 1 AND t.ctid = old.ctid AND t.seq = i.seq
    AND (t.state IN (0 /* READY */, 1 /* LOCKED */) AND t.claimed_by = i.worker OR t.state = 5 /* DISPATCHED */)
    AND (i.attempt IS NULL OR t.attempt = i.attempt) AND t.attempt = old.attempt AND t.state = old.state
    AND t.migrated IS NULL AND NOT t.watched  -- whoever called it is to be told
  RETURNING t.id, t.instance_id, t.seq, t.step, t.state, t.job_type, t.priority, t.attempt,
    t.entered_at AS started_at, t.claimed_at, coalesce(t.queued, t.seq) AS place, i.worker, i.output, i.next_step,
    penstock_now() AS ended_at, t.held, t.flow_key),
late AS (
  SELECT job_type, priority, place, flow_key FROM moved WHERE state = 0 /* READY */
  UNION ALL SELECT job_type, priority, place, flow_key FROM ended WHERE state = 0 /* READY */),
unqueued AS (
  DELETE FROM ready r USING late CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready q
    WHERE q.job_type = late.job_type AND q.priority = late.priority AND q.seq = late.place OFFSET 0) old
  WHERE late.flow_key IS NULL AND r.ctid = old.ctid),
unqueued_flow AS (
  DELETE FROM ready_flow r USING late CROSS JOIN LATERAL (
    SELECT q.ctid FROM ready_flow q
    WHERE q.job_type = late.job_type AND q.priority = late.priority AND q.flow_key = late.flow_key AND q.seq = late.place OFFSET 0) old
  WHERE r.ctid = old.ctid),
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT next_type, priority, new_seq, id FROM moved WHERE direct_to IS NULL AND next_key IS NULL AND NOT $11::boolean),
queued_flow AS (
  INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT next_type, priority, next_key, new_seq, id FROM moved WHERE direct_to IS NULL AND next_key IS NOT NULL),
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), instance_id, id, new_seq, entered_at, next_type, 1
  FROM moved WHERE direct_to IS NULL AND next_key IS NULL AND $11::boolean),
let_go AS (SELECT held, flow_key FROM moved UNION ALL SELECT held, flow_key FROM ended),
-- steps of: give_back
-- steps of: completed
SELECT id, seq, new_seq, entered_at, lease_until, unfolded, place <> seq, held, flow_key, next_key FROM moved
UNION ALL
SELECT id, seq, NULL, NULL, NULL, 0, NULL, held, flow_key, NULL FROM ended

-- name: start_flow
-- As `start_fast`; $10 priority (null: the usual) and $11 flow key of the instance's jobs, $12 as of `complete_flow`.
WITH item AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::text[], $7::float8[], $9::text[], $10::smallint[],
                       $11::text[], $12::smallint[])
    AS i(id, definition, vars, business_key, job_type, direct_to, lease_s, started_by, priority, flow_key, waits)),
clock AS MATERIALIZED (SELECT penstock_now() AS now),
begun AS (
  INSERT INTO instance (id, started_at, definition, vars, business_key, started_by, priority, flow_key)
  SELECT id, now, definition, vars::jsonb, business_key, started_by, priority, flow_key FROM item, clock),
opened AS (
  INSERT INTO token (id, instance_id, seq, entered_at, claimed_at, lease_until, job_type, attempt, step, state, claimed_by, priority,
    flow_key)
  SELECT id, id, nextval('step_seq'), now, CASE WHEN direct_to IS NOT NULL THEN now END,
    CASE WHEN direct_to IS NOT NULL THEN now + lease_s * interval '1 s' END, job_type,
    CASE WHEN direct_to IS NULL THEN 0 ELSE 1 END, 0,
    CASE WHEN direct_to IS NULL THEN 0 /* READY */ ELSE 1 /* LOCKED */ END, direct_to, coalesce(priority, 5),
    CASE WHEN waits = 2 THEN '' ELSE coalesce(flow_key, CASE waits WHEN 1 THEN '' END) END
  FROM item, clock
  RETURNING id, seq, entered_at, lease_until, job_type, priority, state, flow_key),
queued AS (
  INSERT INTO ready (job_type, priority, seq, token_id)
  SELECT job_type, priority, seq, id FROM opened WHERE state = 0 /* READY */ AND flow_key IS NULL AND NOT $8::boolean),
queued_flow AS (
  INSERT INTO ready_flow (job_type, priority, flow_key, seq, token_id)
  SELECT job_type, priority, flow_key, seq, id FROM opened WHERE state = 0 /* READY */ AND flow_key IS NOT NULL),
dispatched AS (
  INSERT INTO dispatch_outbox (id, instance_id, token_id, seq, created_at, job_type, attempt)
  SELECT nextval('step_seq'), id, id, seq, entered_at, job_type, 1 FROM opened
  WHERE state = 0 /* READY */ AND flow_key IS NULL AND $8::boolean)
SELECT id, seq, entered_at, lease_until, entered_at AS started_at FROM opened
