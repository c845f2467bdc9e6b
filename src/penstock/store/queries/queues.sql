-- Queues: policies for the jobs of some types. Changes take turns (`lock_queues`), and each counts the version of the set up,
-- by which engines see that they have to read it again.

-- name: lock_queues
SELECT pg_advisory_xact_lock(hashtextextended('penstock queues', 0))

-- name: queues_version
SELECT value FROM setting WHERE name = 'queues_version'

-- name: queues_changed
INSERT INTO setting (name, value) VALUES ('queues_version', '1')
ON CONFLICT (name) DO UPDATE SET value = (setting.value::bigint + 1)::text

-- name: keyed_types
-- All that engines have to know: job types whose jobs wait in `ready_flow`, each with its queue and policy.
SELECT j.id, j.name, q.name, q.policy::text FROM job_type j LEFT JOIN queue q ON q.id = j.queue WHERE j.keyed

-- name: list_queues
-- In order of their names, after $1 (limit $2); or the one called $3.
SELECT q.id, q.name, q.policy::text, ARRAY(SELECT j.name FROM job_type j WHERE j.queue = q.id ORDER BY j.name COLLATE "C")
FROM queue q WHERE q.name > $1::text AND ($3::text IS NULL OR q.name = $3::text COLLATE "C") ORDER BY q.name LIMIT $2::int

-- name: types_of_other_queues
-- Which of the job types $2 are in a queue that is not called $1, and not because a workflow's program said so.
SELECT j.name, q.name FROM job_type j JOIN queue q ON q.id = j.queue WHERE j.name = ANY($2::text[]) AND q.name <> $1::text AND (j.placed OR j.name NOT LIKE 'code:%') ORDER BY 1

-- name: put_queue
-- $1 name $2 policy $3 whether a pause stays; its own row of slots is made with it.
WITH kept AS (
  INSERT INTO queue (name, policy, revision) VALUES ($1::text, $2::jsonb, 1)
  ON CONFLICT (name) DO UPDATE SET revision = queue.revision + 1, policy = excluded.policy || CASE
    WHEN $3::boolean AND queue.policy ? 'paused' THEN jsonb_build_object('paused', queue.policy -> 'paused') ELSE '{}' END
  RETURNING id),
counted AS (INSERT INTO slot (queue, flow_key) SELECT id, '' FROM kept ON CONFLICT (queue, flow_key) DO NOTHING)
SELECT id FROM kept

-- name: assign_job_types
-- The job types of the queue $1 are now those called $2, and those that joined it: of durable workflows. What somebody placed
-- stays there, whatever its program says (`join_queue`).
UPDATE job_type SET queue = CASE WHEN name = ANY($2::text[]) THEN $1::int END, keyed = true, placed = name = ANY($2::text[])
WHERE queue = $1::int AND name <> ALL($2::text[]) AND (placed OR name NOT LIKE 'code:%')
  OR name = ANY($2::text[]) AND (queue IS DISTINCT FROM $1::int OR NOT keyed OR NOT placed)

-- name: join_queue
-- The job type $2 is in the queue $1 from now on.
UPDATE job_type SET queue = $1::int, keyed = true WHERE name = $2::text AND queue IS DISTINCT FROM $1::int AND NOT placed RETURNING id

-- name: may_join
-- Whether the job type $1 is not where somebody placed it, whether the queue called $2 is there, and how many queues there are.
SELECT NOT placed, EXISTS (SELECT FROM queue WHERE name = $2::text), (SELECT count(*) FROM queue) FROM job_type WHERE name = $1::text

-- name: make_queue
-- The queue called $1, without limits where it is new.
WITH made AS (
  INSERT INTO queue (name, policy, revision) VALUES ($1::text, '{}', 1) ON CONFLICT (name) DO NOTHING RETURNING id),
counted AS (INSERT INTO slot (queue, flow_key) SELECT id, '' FROM made)
SELECT id FROM made UNION ALL SELECT id FROM queue WHERE name = $1::text

-- name: unmarked_types
-- Job types with jobs in `ready_flow` that are not keyed.
SELECT j.id, j.name FROM job_type j WHERE NOT j.keyed AND EXISTS (SELECT FROM ready_flow r WHERE r.job_type = j.id)

-- name: mark_keyed
-- Jobs of the types $1 come with flow keys.
UPDATE job_type SET keyed = true WHERE id = ANY($1::int[]) AND NOT keyed

-- name: pause_queue
-- $1 name $2 whether nothing begins.
UPDATE queue SET policy = jsonb_set(policy, '{paused}', to_jsonb($2::boolean)), revision = revision + 1 WHERE name = $1::text
RETURNING id

-- name: delete_queue
-- Its jobs are free at once. What slots are still held goes with `purge_slots`.
WITH gone AS (DELETE FROM queue WHERE name = $1::text RETURNING id),
freed AS (UPDATE job_type SET queue = NULL, placed = false WHERE queue IN (SELECT id FROM gone))
SELECT id FROM gone


-- name: queue_state
-- Of the queue $1 with the job types $2: what runs (its own row's count, the sum of $3 of its keys', null: neither is kept), how many
-- jobs wait, to $3, the age of the first in line, and how many durable runs it counts as open.
SELECT (SELECT s.running FROM slot s WHERE s.queue = $1::int AND s.flow_key = ''),
  (SELECT sum(k.running) FROM (SELECT s.running FROM slot s WHERE s.queue = $1::int AND s.flow_key <> '' LIMIT $3::int) k),
  (SELECT count(*) FROM (
    SELECT FROM unnest($2::int[]) AS j(id) CROSS JOIN LATERAL (
      (SELECT FROM ready_flow r WHERE r.job_type = j.id LIMIT $3::int) UNION ALL
      (SELECT FROM ready r WHERE r.job_type = j.id LIMIT $3::int)) w LIMIT $3::int) w),
  (SELECT extract(epoch FROM penstock_now() - min(t.entered_at))::float8 FROM unnest($2::int[]) AS j(id)
   CROSS JOIN LATERAL (
    (SELECT r.token_id FROM ready_flow r WHERE r.job_type = j.id ORDER BY r.priority, r.flow_key, r.seq LIMIT 1) UNION ALL
    (SELECT r.token_id FROM ready r WHERE r.job_type = j.id ORDER BY r.priority, r.seq LIMIT 1)) f
   CROSS JOIN LATERAL (SELECT t.entered_at FROM token t WHERE t.id = f.token_id OFFSET 0) t),
  (SELECT s.open_runs FROM slot s WHERE s.queue = $1::int AND s.flow_key = '')

-- name: queue_limits
-- Of the tokens $1 that wait for a job to begin, those whose job type is in a queue: the queue and its policy; what it counts as
-- running now, in all and of the token's flow key, and as open runs (null: the token is one of them); for how many seconds its
-- rates let nothing begin.
SELECT t.id, q.name, q.policy::text, t.flow_key, coalesce(own.running, 0), coalesce(of_key.running, 0),
  CASE WHEN t.run_queue IS NULL THEN coalesce(own.open_runs, 0) END,
  extract(epoch FROM own.tat - penstock_now())::float8
    - ((q.policy->'rate'->>'burst')::float8 - 1) * (q.policy->'rate'->>'paceMicros')::float8 / 1e6,
  extract(epoch FROM of_key.tat - penstock_now())::float8
    - ((q.policy->'ratePerKey'->>'burst')::float8 - 1) * (q.policy->'ratePerKey'->>'paceMicros')::float8 / 1e6
FROM unnest($1::bigint[]) AS w(id)
CROSS JOIN LATERAL (
  SELECT t.id, t.job_type, t.run_queue, coalesce(t.flow_key, '') AS flow_key FROM token t
  WHERE t.id = w.id AND t.state = 0 /* READY */ OFFSET 0) t
CROSS JOIN LATERAL (SELECT j.queue FROM job_type j WHERE j.id = t.job_type OFFSET 0) j
CROSS JOIN LATERAL (SELECT q.id, q.name, q.policy FROM queue q WHERE q.id = j.queue OFFSET 0) q
LEFT JOIN LATERAL (SELECT s.running, s.tat, s.open_runs FROM slot s WHERE s.queue = q.id AND s.flow_key = '' OFFSET 0) own ON true
LEFT JOIN LATERAL (
  SELECT s.running, s.tat FROM slot s WHERE s.queue = q.id AND s.flow_key = t.flow_key AND t.flow_key <> '' OFFSET 0) of_key ON true

-- name: first_in_line
-- The first job in line of each of the job types called $1 that have limits: (type, token).
SELECT n.name, f.token_id FROM unnest($1::text[]) AS n(name)
CROSS JOIN LATERAL (SELECT j.id FROM job_type j WHERE j.name = n.name OFFSET 0) j
CROSS JOIN LATERAL (
  SELECT r.token_id FROM ready_flow r WHERE r.job_type = j.id ORDER BY r.priority, r.flow_key, r.seq LIMIT 1) f

-- name: measure_queues
-- Of the first $1 queues: what runs, where that is counted (of flow keys to 10,000 of them), and what waits, to $2.
SELECT q.name, CASE WHEN q.policy ? 'concurrency' THEN (SELECT s.running FROM slot s WHERE s.queue = q.id AND s.flow_key = '')
    WHEN q.policy ? 'concurrencyPerKey' THEN (
      SELECT coalesce(sum(s.running), 0)::int FROM (
        SELECT s.running FROM slot s WHERE s.queue = q.id AND s.flow_key <> '' LIMIT 10000) s) END,
  (SELECT count(*) FROM (
    SELECT FROM unnest(ARRAY(SELECT j.id FROM job_type j WHERE j.queue = q.id)) AS j(id) CROSS JOIN LATERAL (
      (SELECT FROM ready_flow r WHERE r.job_type = j.id LIMIT $2::int) UNION ALL
      (SELECT FROM ready r WHERE r.job_type = j.id LIMIT $2::int)) w LIMIT $2::int) w)
FROM (SELECT * FROM queue ORDER BY name LIMIT $1::int) q

-- name: queue_keys
-- Flow keys of the queue $1 with the job types $2: the $3 with most under way (of $4), then those that are first in line.
WITH RECURSIVE line(job_type, priority, flow_key, n) AS (
  SELECT f.job_type, f.priority, f.flow_key, 1 FROM unnest($2::int[]) AS j(id) CROSS JOIN LATERAL (
    SELECT r.job_type, r.priority, r.flow_key FROM ready_flow r WHERE r.job_type = j.id
    ORDER BY r.priority, r.flow_key LIMIT 1) f
  UNION ALL
  SELECT l.job_type, next.priority, next.flow_key, l.n + 1 FROM line l CROSS JOIN LATERAL (
    SELECT r.priority, r.flow_key FROM ready_flow r
    WHERE r.job_type = l.job_type AND (r.priority, r.flow_key) > (l.priority, l.flow_key) ORDER BY r.priority, r.flow_key LIMIT 1) next
  WHERE l.n < $3::int),
busy AS (SELECT s.flow_key, s.running FROM (
           SELECT s.flow_key, s.running FROM slot s WHERE s.queue = $1::int AND s.flow_key <> '' LIMIT $4::int) s WHERE s.running > 0
         ORDER BY s.running DESC, s.flow_key LIMIT $3::int),
found AS (
  SELECT flow_key, running FROM busy
  UNION ALL SELECT DISTINCT flow_key, 0 FROM line WHERE flow_key <> '' AND flow_key NOT IN (SELECT flow_key FROM busy))
SELECT f.flow_key, coalesce((SELECT s.running FROM slot s WHERE s.queue = $1::int AND s.flow_key = f.flow_key), 0), (
    SELECT count(*) FROM (
      SELECT FROM unnest($2::int[]) AS j(id) CROSS JOIN generate_series(-10, 9) AS p(priority) CROSS JOIN LATERAL (
        SELECT FROM ready_flow r WHERE r.job_type = j.id AND r.priority = p.priority AND r.flow_key = f.flow_key LIMIT 1000) w
      LIMIT 1000) w)
FROM (SELECT * FROM found ORDER BY running DESC, flow_key LIMIT $3::int) f

-- name: purge_slots
-- Rows after ($1 queue, $2 flow key) that count nothing: of keys whose rate is paid for, and of queues that are no more. Of $3
-- rows; the last one that was looked at, and how many went.
WITH looked AS MATERIALIZED (
  SELECT s.queue, s.flow_key, s.running, s.tat FROM slot s WHERE (s.queue, s.flow_key) > ($1::int, $2::text COLLATE "C")
  ORDER BY s.queue, s.flow_key LIMIT $3::int),
idle AS MATERIALIZED (
  SELECT l.queue, l.flow_key FROM looked l CROSS JOIN LATERAL (
    SELECT FROM slot s WHERE s.queue = l.queue AND s.flow_key = l.flow_key AND s.running = 0 AND s.open_runs = 0
      AND coalesce(s.tat <= penstock_now(), true) FOR UPDATE SKIP LOCKED) s
  WHERE l.running = 0 AND coalesce(l.tat <= penstock_now(), true)
    AND (l.flow_key <> '' OR NOT EXISTS (SELECT FROM queue q WHERE q.id = l.queue))),
gone AS (
  DELETE FROM slot s USING idle i
  WHERE s.queue = i.queue AND s.flow_key = i.flow_key AND s.running = 0 AND s.open_runs = 0 AND coalesce(s.tat <= penstock_now(), true))
SELECT l.queue, l.flow_key, (SELECT count(*) FROM idle) FROM looked l ORDER BY l.queue DESC, l.flow_key DESC LIMIT 1
