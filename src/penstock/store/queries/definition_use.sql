-- Where instances stand in their definitions: for people. Reads only.

-- name: versions_of
-- Versions of the definition $1 below $2, newest first.
SELECT version, name, uploaded_at, key = coalesce((SELECT a.key FROM active_version a WHERE a.id = $1::text),
  (SELECT n.key FROM definition n WHERE n.id = $1::text ORDER BY n.version DESC LIMIT 1))
FROM definition WHERE id = $1::text AND version < $2::int ORDER BY version DESC LIMIT $3::int

-- name: definition_versions
-- The keys and versions of the definition $1.
SELECT key, version FROM definition WHERE id = $1::text

-- name: recent_instances
-- Of each of the definitions $1, in order: the keys of all its versions, how many instances of the newest $4 of these have ids from
-- $2 on (times are told by ids), and how many of them failed, each to $3. Failures are found by their time alone, so they are
-- walked once for all, the newest $5.
WITH failed AS MATERIALIZED (
  SELECT f.definition, count(*) AS number FROM (
    SELECT e.definition FROM abnormal_end e WHERE e.status = 2 /* FAILED */ AND e.instance_id >= $2::bigint
    ORDER BY e.instance_id DESC LIMIT $5::int) f GROUP BY f.definition)
SELECT k.id, d.keys, (SELECT count(*)::int FROM (
    SELECT FROM unnest(d.keys[:$4::int]) AS v(key) CROSS JOIN LATERAL (
      SELECT i.id FROM instance i WHERE (i.definition, i.id) >= (v.key, $2::bigint) AND (i.definition, i.id) < (v.key + 1, 0)
      ORDER BY i.definition, i.id LIMIT $3::int) i LIMIT $3::int) s),
  (SELECT least(coalesce(sum(f.number), 0), $3::int)::int FROM failed f WHERE f.definition = ANY(d.keys[:$4::int]))
FROM unnest($1::text[]) WITH ORDINALITY AS k(id, n)
CROSS JOIN LATERAL (SELECT ARRAY(SELECT v.key FROM definition v WHERE v.id = k.id ORDER BY v.version DESC) AS keys) d
ORDER BY k.n

-- name: open_tokens_estimate
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'token'::regclass

-- name: tokens_by_step
-- How many tokens stand on each step of each definition, since when the oldest, how many back off, and how many are their
-- instances'. A walk over all tokens.
SELECT i.definition, t.step, count(*)::int, min(t.entered_at), (count(*) FILTER (WHERE t.state = 4 /* BACKOFF */))::int,
  (count(*) FILTER (WHERE t.id = t.instance_id))::int
FROM token t CROSS JOIN LATERAL (SELECT definition FROM instance j WHERE j.id = t.instance_id OFFSET 0) i
WHERE t.state <> 6 /* ENDED */ GROUP BY 1, 2 LIMIT 100000

-- name: tokens_by_step_sampled
-- The same of a tenth of the table's pages.
SELECT i.definition, t.step, count(*)::int * 10, min(t.entered_at), (count(*) FILTER (WHERE t.state = 4 /* BACKOFF */))::int * 10,
  (count(*) FILTER (WHERE t.id = t.instance_id))::int * 10
FROM token t TABLESAMPLE SYSTEM (10) CROSS JOIN LATERAL (SELECT definition FROM instance j WHERE j.id = t.instance_id OFFSET 0) i
WHERE t.state <> 6 /* ENDED */ GROUP BY 1, 2 LIMIT 100000

-- name: count_by_status
-- Of each of the definitions $1 (keys) the newest $2 instances by what the wire calls their status. By a range of the index
-- (definition, id): an equality leaves the order of ids alone to the planner, which walks all instances by their ids where
-- the statistics know of one definition only.
SELECT k.key, s.named, count(*)::int FROM unnest($1::int[]) AS k(key) CROSS JOIN LATERAL (
  SELECT CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* CANCELLED */ THEN 'CANCELLED'
    ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END AS named
  FROM instance i WHERE (i.definition, i.id) >= (k.key, 0) AND (i.definition, i.id) < (k.key + 1, 0)
  ORDER BY i.definition DESC, i.id DESC LIMIT $2::int) s
GROUP BY 1, 2

-- name: count_by_status_sampled
-- The same of all instances, from $2 per cent of the table's pages.
SELECT i.definition, CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* CANCELLED */ THEN 'CANCELLED'
    ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END AS named,
  (count(*) * 100 / $2::float8)::bigint
FROM instance i TABLESAMPLE SYSTEM ($2::float8) WHERE i.definition = ANY($1::int[]) GROUP BY 1, 2

-- name: failed_by_step
-- Of the definition's $1 instances that failed, counted to $2: how many at each step. An index alone.
SELECT step, count(*)::int FROM (
  SELECT step FROM abnormal_end WHERE definition = $1::int AND step IS NOT NULL LIMIT $2::int) f GROUP BY step

-- name: walk_for_seconds
SET LOCAL statement_timeout = '10s'
