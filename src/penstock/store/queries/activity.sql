-- What engines counted, and which workers they saw: for the console. Written every ten seconds by engines that have work;
-- the paths that serve jobs write nothing here.

-- name: write_sample
-- Of the engine $1: counts since its last one $2, workers by job type $3, and what else it knows of each type $4.
INSERT INTO sample (span_s, at, engine, counts, workers, queues)
VALUES (10, penstock_now(), $1::int, $2::jsonb, $3::jsonb, $4::jsonb)
ON CONFLICT DO NOTHING

-- name: roll_up_samples
-- Samples of $1 seconds that are older than $3 seconds become sums over $2 seconds, of whole spans only. By the primary key.
WITH old AS MATERIALIZED (
  SELECT span_s, at, engine FROM sample
  WHERE span_s = $1::int AND at < date_bin($2::int * interval '1 s', penstock_now() - $3::int * interval '1 s', timestamptz '2025-01-01Z')
  ORDER BY at, engine LIMIT 10000 FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM sample s USING old o WHERE s.span_s = o.span_s AND s.at = o.at AND s.engine = o.engine
  RETURNING s.at, s.engine, s.counts),
sums AS (
  SELECT date_bin($2::int * interval '1 s', at, timestamptz '2025-01-01Z') AS since, engine, c.key, sum(c.value::bigint) AS total
  FROM gone, jsonb_each_text(counts) c GROUP BY 1, 2, 3)
INSERT INTO sample (span_s, at, engine, counts, workers)
SELECT $2::int, since, engine, jsonb_object_agg(key, total), '{}' FROM sums GROUP BY since, engine
ON CONFLICT DO NOTHING

-- name: purge_samples
DELETE FROM sample WHERE span_s = $1::int AND at < penstock_now() - $2::int * interval '1 s'

-- name: read_samples
-- Sums of all engines over the last $1 seconds, in steps of $2 seconds: (since, started, completed, failed, cancelled).
SELECT date_bin($2::int * interval '1 s', s.at, timestamptz '2025-01-01Z') AS since,
  sum(coalesce((s.counts ->> 'started')::bigint, 0))::bigint, sum(coalesce((s.counts ->> 'completed')::bigint, 0))::bigint,
  sum(coalesce((s.counts ->> 'failed')::bigint, 0))::bigint, sum(coalesce((s.counts ->> 'cancelled')::bigint, 0))::bigint
FROM (VALUES (10), (60), (600)) AS spans(seconds)
CROSS JOIN LATERAL (
  SELECT at, counts FROM sample
  WHERE span_s = spans.seconds AND at >= penstock_now() - $1::int * interval '1 s' ORDER BY at OFFSET 0) s
GROUP BY 1 ORDER BY 1

-- name: read_worker_counts
-- (job type, workers that poll for it) by what each engine said last, within 30 seconds.
SELECT w.key, sum(w.value::bigint)::bigint FROM (
  SELECT DISTINCT ON (engine) engine, workers FROM (
    SELECT at, engine, workers FROM sample WHERE span_s = 10 AND at > penstock_now() - interval '30 s' ORDER BY at OFFSET 0) s
  ORDER BY engine, at DESC) latest, jsonb_each_text(latest.workers) w
GROUP BY 1

-- name: read_durations
-- How many instances of all engines completed within the last $1 seconds, by the bound of how long they took.
SELECT c.key, sum(c.value::bigint)::bigint
FROM (VALUES (10), (60), (600)) AS spans(seconds)
CROSS JOIN LATERAL (
  SELECT counts FROM sample
  WHERE span_s = spans.seconds AND at >= penstock_now() - $1::int * interval '1 s' ORDER BY at OFFSET 0) s
CROSS JOIN LATERAL jsonb_each_text(s.counts) c WHERE c.key LIKE 'took %' GROUP BY 1

-- name: read_queue_facts
-- (job type, workers that poll for it, jobs under lease, jobs done within a minute, its last poll) by what each engine said within
-- 30 seconds, of what was done and asked within a minute.
WITH lately AS MATERIALIZED (
  SELECT at, engine, workers, queues FROM sample WHERE span_s = 10 AND at > penstock_now() - interval '60 s' ORDER BY at OFFSET 0),
latest AS (
  SELECT DISTINCT ON (engine) workers, queues FROM lately WHERE at > penstock_now() - interval '30 s' ORDER BY engine, at DESC)
SELECT f.name, sum(f.workers)::bigint, coalesce(sum(f.locked), 0)::bigint, coalesce(sum(f.done), 0)::bigint, max(f.polled_at) FROM (
  SELECT w.key AS name, w.value::bigint AS workers, 0 AS locked, 0 AS done, NULL::timestamptz AS polled_at
  FROM latest, jsonb_each_text(latest.workers) w
  UNION ALL
  SELECT q.key, 0, (q.value ->> 'locked')::bigint, 0, NULL FROM latest, jsonb_each(latest.queues) q
  UNION ALL
  SELECT q.key, 0, 0, (q.value ->> 'done')::bigint, lately.at - (q.value ->> 'polled')::float8 * interval '1 s'
  FROM lately, jsonb_each(lately.queues) q) f
GROUP BY 1

-- name: read_last_polls
-- When a worker of a day polled last for each of the job types $1. Reads all workers, of which there are some thousands per engine.
SELECT n.name, max(w.polled_at) FROM unnest($1::text[]) AS n(name) JOIN worker_seen w ON w.job_types ? n.name GROUP BY 1

-- name: write_workers
-- Seen by the engine $1: workers $2 with the job types $3 (JSON), $4 seconds ago; jobs that each has $5, did $6 and reported as
-- failed $7.
INSERT INTO worker_seen (worker, engine, job_types, polled_at, leased, done, failed)
SELECT w.worker, $1::int, w.job_types::jsonb, penstock_now() - w.ago * interval '1 s', w.leased, w.done, w.failed
FROM unnest($2::text[], $3::text[], $4::float8[], $5::int[], $6::int[], $7::int[]) AS w(worker, job_types, ago, leased, done, failed)
ON CONFLICT (worker, engine) DO UPDATE SET job_types = excluded.job_types, polled_at = excluded.polled_at,
  leased = excluded.leased, done = excluded.done, failed = excluded.failed

-- name: read_workers
-- After the worker $1, at most $2, of those that polled for the job type $3, if it is given: (worker, engine that saw it last, job
-- types, polled at, jobs that it has, did, reported as failed). Each once, whichever engines it has asked: of what others saw only
-- the last minute before its last poll counts as now, and 15 minutes as done. By the primary key; with a type all rows may be read,
-- some thousands per engine. One whose name is its host, process and chance, and that was there before another one of its host took
-- all of its types, was started anew: it is left out. A pod of a Deployment has chance in its host's name, in Kubernetes' letters.
WITH page AS MATERIALIZED (
  SELECT s.worker, max(s.polled_at) AS last FROM worker_seen s
  CROSS JOIN LATERAL (SELECT regexp_replace(
    s.worker, '(-[b-df-hj-np-tv-xz2-9]{1,10}-[b-df-hj-np-tv-xz2-9]{5})?-[0-9]+-[0-9a-f]{8}$', '') COLLATE "C" AS host) h
  WHERE s.worker > $1::text AND ($3::text IS NULL OR s.job_types ? $3::text)
    AND NOT (h.host <> s.worker AND s.polled_at < penstock_now() - interval '90 s' AND EXISTS (
      SELECT FROM worker_seen o WHERE o.worker > h.host || '-' AND o.worker < h.host || '.' AND o.worker <> s.worker
        AND regexp_replace(o.worker, '(-[b-df-hj-np-tv-xz2-9]{1,10}-[b-df-hj-np-tv-xz2-9]{5})?-[0-9]+-[0-9a-f]{8}$', '') = h.host
        AND o.polled_at > s.polled_at AND o.job_types @> s.job_types))
  GROUP BY s.worker ORDER BY s.worker LIMIT $2::int)
SELECT p.worker, (array_agg(w.engine ORDER BY w.polled_at DESC))[1], (
    SELECT jsonb_agg(DISTINCT t.value)::text FROM worker_seen n CROSS JOIN LATERAL jsonb_array_elements(n.job_types) t
    WHERE n.worker = p.worker AND n.polled_at >= p.last - interval '1 min'), p.last,
  coalesce(sum(w.leased) FILTER (WHERE w.polled_at >= p.last - interval '1 min'), 0)::int,
  coalesce(sum(w.done) FILTER (WHERE w.polled_at >= p.last - interval '15 min'), 0)::int,
  coalesce(sum(w.failed) FILTER (WHERE w.polled_at >= p.last - interval '15 min'), 0)::int
FROM page p JOIN worker_seen w ON w.worker = p.worker GROUP BY p.worker, p.last ORDER BY p.worker

-- name: purge_workers
-- Those not seen for $1 seconds, of the first $3 after $2; the last one looked at.
WITH looked_at AS MATERIALIZED (SELECT worker, engine, polled_at FROM worker_seen WHERE worker > $2::text ORDER BY worker, engine LIMIT $3::int),
gone AS (
  DELETE FROM worker_seen w USING looked_at s
  WHERE w.worker = s.worker AND w.engine = s.engine AND s.polled_at < penstock_now() - $1::int * interval '1 s')
SELECT max(worker) FROM looked_at

-- name: count_open
-- Instances that are open, to $1: their root tokens, by the primary key.
SELECT count(*) FROM (SELECT 1 FROM (SELECT id, instance_id FROM token ORDER BY id LIMIT 10 * $1::int) t WHERE id = instance_id LIMIT $1::int) n

-- name: all_engines
-- (number, mode, description, schema version, seconds that its lease lasts, negative when it is over, what it said of itself),
-- without those that are over for a day. A thousand rows at most. An older engine that took the number says nothing.
SELECT number, dispatch_mode, description, schema_version, extract(epoch FROM leased_until - penstock_now())::float8,
  CASE WHEN schema_version >= 18 THEN facts::text END
FROM engine WHERE leased_until > penstock_now() - interval '1 day' ORDER BY number

-- name: database_facts
-- The server's version, the database's bytes, partitions of history, and since when the oldest is; the oldest instance.
SELECT current_setting('server_version'), pg_database_size(current_database()),
  (SELECT count(*) FROM log_partition WHERE parent = 'history')::int, (SELECT min(since) FROM log_partition WHERE parent = 'history'),
  (SELECT id FROM instance ORDER BY id LIMIT 1)

-- name: replica_lag
-- Whether this is a standby, and how many seconds it is behind: none when all that it was sent is applied, and it is being sent
-- more. One that is cut off has applied everything, too, for hours: its last transaction tells then.
SELECT pg_is_in_recovery(), CASE WHEN NOT pg_is_in_recovery() THEN 0
  WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() AND EXISTS (SELECT FROM pg_stat_wal_receiver) THEN 0
  ELSE coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 'Infinity') END::float8
