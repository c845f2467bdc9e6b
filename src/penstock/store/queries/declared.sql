-- Schedules and queues as the code of durable workflows has them. Written when a program connects, which is seldom.

-- name: lock_declared
-- Until the transaction ends nobody else declares that of the kind $1 with the name $2.
SELECT pg_advisory_xact_lock(hashtextextended('penstock declared ' || $1::text || ' ' || $2::text, 0))

-- name: declare
-- $1 kind $2 name $3 workflow $4 version $5 body. Answers with the body. No row: a higher version of that workflow has declared
-- it, or another workflow of a higher version.
INSERT INTO declared AS d (kind, name, workflow, version, body, seen_at)
VALUES ($1::text, $2::text, $3::text, $4::int, $5::jsonb, penstock_now())
ON CONFLICT (kind, name) DO UPDATE SET workflow = excluded.workflow, version = excluded.version, body = excluded.body,
  seen_at = excluded.seen_at
WHERE d.version <= excluded.version OR d.body IS NULL AND d.workflow <> excluded.workflow
RETURNING body::text

-- name: undeclare
-- The workflow $1 in the version $2 has nothing of the kind $3 but, where it is not null, that with the name $4.
UPDATE declared SET body = NULL, version = $2::int, seen_at = penstock_now()
WHERE workflow = $1::text AND version <= $2::int AND kind = $3::text AND name IS DISTINCT FROM $4::text AND body IS NOT NULL

-- name: applied
-- What was put because of a declaration ($1 kind $2 name) whose body was $3.
UPDATE declared SET applied = $3::jsonb WHERE kind = $1::text AND name = $2::text AND body = $3::jsonb RETURNING name

-- name: list_declared
-- Those after ($1 kind, $2 name), at most $3; or that of the kind $4 with the name $5.
SELECT kind, name, workflow, version, body::text, applied::text, seen_at FROM declared
WHERE ($5::text IS NULL AND (kind, name) > ($1::text, $2::text COLLATE "C")) OR (kind = $4::text AND name = $5::text COLLATE "C")
ORDER BY kind, name LIMIT $3::int

-- name: placed_types
-- The job types of a queue ($1 its name) that somebody has placed there.
SELECT j.name FROM job_type j JOIN queue q ON q.id = j.queue
WHERE q.name = $1::text COLLATE "C" AND (j.placed OR j.name NOT LIKE 'code:%') ORDER BY 1
