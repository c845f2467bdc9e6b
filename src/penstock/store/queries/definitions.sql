-- Definitions and job types. What was deleted has a row of `active_version` with the key 0: no version is active, and none is found by
-- its id; its rows stay, as instances refer to their keys.

-- name: patient_locks
-- For what takes turns: in this transaction a lock is waited for as long as callers wait for an answer.
SELECT set_config('lock_timeout', '8s', true)

-- name: lock_definition
-- Serializes uploads of one id until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('penstock definition ' || $1::text, 0))

-- name: active_definition
-- The version that new starts use: the newest, unless another one was made the active one.
SELECT key, id, version, name, description, content, uploaded_at, code FROM definition
WHERE key = coalesce((SELECT a.key FROM active_version a WHERE a.id = $1::text),
  (SELECT d.key FROM definition d WHERE d.id = $1::text ORDER BY d.version DESC LIMIT 1))

-- name: activate
-- New starts of $1 use the version with the key $2. The newest one needs no row.
WITH newest AS MATERIALIZED (SELECT key FROM definition WHERE id = $1::text ORDER BY version DESC LIMIT 1),
gone AS (DELETE FROM active_version a USING newest n WHERE a.id = $1::text AND n.key = $2::int)
INSERT INTO active_version (id, key) SELECT $1::text, $2::int FROM newest n WHERE n.key <> $2::int
ON CONFLICT (id) DO UPDATE SET key = excluded.key

-- name: newest_definition
SELECT key, id, version, name, description, content, uploaded_at, code FROM definition
WHERE id = $1::text ORDER BY version DESC LIMIT 1

-- name: same_definition
-- The newest version of an id with this very content.
SELECT key, id, version, name, description, content, uploaded_at, code FROM definition
WHERE id = $1::text AND content = $2::text ORDER BY version DESC LIMIT 1

-- name: is_deleted
SELECT EXISTS (SELECT FROM active_version WHERE id = $1::text AND key = 0)

-- name: live_version
-- The newest version of a durable workflow ($1 id) with this very content, unless it was deleted.
SELECT version FROM definition d WHERE id = $1::text AND content = $2::text
  AND NOT EXISTS (SELECT FROM active_version a WHERE a.id = $1::text AND a.key = 0)
  AND d.code = (SELECT n.code FROM definition n WHERE n.id = $1::text ORDER BY n.version DESC LIMIT 1)
ORDER BY version DESC LIMIT 1

-- name: has_open_instances
-- Whether an instance of $1 has not ended, of any version or of $2: whether one has a token with its id. The ids of both are gone through in turns,
-- newest first, each on from where the other one is: neither open instances of others nor those that have ended are walked over. (Pairs
-- are compared, as with `definition = key` the planner would rather walk over all ids.)
WITH RECURSIVE pair AS (
  SELECT d.key, i.id AS instance, t.id AS token FROM definition d
  CROSS JOIN LATERAL (SELECT i.definition, i.id FROM instance i WHERE (i.definition, i.id) <= (d.key, 9223372036854775807)
    ORDER BY i.definition DESC, i.id DESC LIMIT 1) i
  CROSS JOIN LATERAL (SELECT t.id FROM token t WHERE t.id <= i.id ORDER BY t.id DESC LIMIT 1) t
  WHERE d.id = $1::text AND ($2::int IS NULL OR d.version = $2) AND i.definition = d.key
  UNION ALL
  SELECT p.key, i.id, t.id FROM pair p
  CROSS JOIN LATERAL (SELECT i.definition, i.id FROM instance i WHERE (i.definition, i.id) <= (p.key, p.token)
    ORDER BY i.definition DESC, i.id DESC LIMIT 1) i
  CROSS JOIN LATERAL (SELECT t.id FROM token t WHERE t.id <= i.id ORDER BY t.id DESC LIMIT 1) t
  WHERE p.token < p.instance AND i.definition = p.key)
SELECT EXISTS (SELECT FROM pair WHERE token = instance)

-- name: delete_definition
INSERT INTO active_version (id, key) VALUES ($1::text, 0) ON CONFLICT (id) DO UPDATE SET key = 0

-- name: restore_definition
DELETE FROM active_version WHERE id = $1::text AND key = 0

-- name: count_code
-- How many versions of durable workflows there are of the App $1 ('': of those without a name), to $2.
SELECT count(*) FROM (SELECT FROM definition d
  WHERE d.code AND NOT EXISTS (SELECT FROM active_version a WHERE a.id = d.id AND a.key = 0) AND CASE WHEN $1::text = '' THEN position(':' IN d.id) = 0 ELSE starts_with(d.id, $1::text || ':') END LIMIT $2::int) found

-- name: definition_version
SELECT key, id, version, name, description, content, uploaded_at, code FROM definition
WHERE id = $1::text AND version = $2::int AND NOT EXISTS (SELECT FROM active_version a WHERE a.id = $1::text AND a.key = 0)

-- name: definition_by_key
SELECT key, id, version, name, description, content, uploaded_at, code FROM definition WHERE key = $1::int

-- name: insert_definition
INSERT INTO definition (id, version, name, description, content, uploaded_at, code)
VALUES ($1, $2, $3, $4, $5, penstock_now(), $6::boolean) RETURNING key, uploaded_at

-- name: audit_definition
-- $1 kind $2 detail $3 actor
INSERT INTO audit (pos, at, kind, detail, actor)
VALUES (nextval('step_seq'), penstock_now(), $1::text, $2::text, $3::text)

-- name: any_code
SELECT EXISTS (SELECT FROM definition WHERE code)

-- name: keys_of_definition
SELECT key FROM definition WHERE id = $1::text AND ($2::int IS NULL OR version = $2)

-- name: keys_of_code
SELECT key FROM definition WHERE code

-- name: steps_of_definition
-- Of the versions of the id $1 ($2: of this one, null: all) that have the step $3: (key, number of the step).
SELECT d.key, (s.place - 1)::int FROM definition d
CROSS JOIN LATERAL json_array_elements(d.content::json -> 'steps') WITH ORDINALITY s(step, place)
WHERE d.id = $1::text AND ($2::int IS NULL OR d.version = $2) AND s.step ->> 'id' = $3::text

-- name: list_definitions
-- Active versions, by id; $1 keyword (null: all) as a LIKE pattern, $2 limit $3 offset $4 only ids above
SELECT id, version, name, uploaded_at, description FROM (
  SELECT DISTINCT ON (id) id, version, name, uploaded_at, description FROM definition d LEFT JOIN active_version a USING (id)
  WHERE a.key IS DISTINCT FROM 0 ORDER BY id, d.key IS NOT DISTINCT FROM a.key DESC, version DESC) active
WHERE id > $4::text AND ($1::text IS NULL OR id ILIKE $1 OR name ILIKE $1)
ORDER BY id LIMIT $2::int OFFSET $3::int

-- name: count_definitions
SELECT count(*) FROM (
  SELECT DISTINCT ON (id) id, name FROM definition d LEFT JOIN active_version a USING (id)
  WHERE a.key IS DISTINCT FROM 0 ORDER BY id, d.key IS NOT DISTINCT FROM a.key DESC, version DESC) active
WHERE $1::text IS NULL OR id ILIKE $1 OR name ILIKE $1

-- name: add_job_types
INSERT INTO job_type (name) SELECT DISTINCT n FROM unnest($1::text[]) AS n ORDER BY n ON CONFLICT (name) DO NOTHING

-- name: job_types
SELECT name, id FROM job_type WHERE name = ANY($1::text[])

-- name: active_keys
-- The key of the active version of each id that exists.
SELECT w.id, coalesce(a.key, d.key) FROM unnest($1::text[]) AS w(id)
JOIN LATERAL (SELECT key FROM definition WHERE definition.id = w.id ORDER BY version DESC LIMIT 1) d ON true
LEFT JOIN active_version a ON a.id = w.id WHERE a.key IS DISTINCT FROM 0

-- name: is_mentioned
-- Whether the content of a definition has this id ($1, as JSON text) somewhere; the table is read.
SELECT EXISTS (SELECT FROM definition WHERE NOT code AND strpos(content, $1::text) > 0)
