-- Which programs serve workflows under no name: so that two of them are noticed. Read and written when an App opens.

-- name: lock_origins
-- Until the transaction ends nobody else registers.
LOCK TABLE code_origin IN SHARE ROW EXCLUSIVE MODE

-- name: read_origins
-- Of a workflow ($1 job type): module and function, folder ('' where it does not matter), and whether the engine in which an
-- App has registered it lives. Those that live first, then the latest.
SELECT o.origin, o.folder, EXISTS (
  SELECT FROM engine e JOIN pg_locks l ON l.locktype = 'advisory' AND l.objid = e.number::oid AND l.objsubid = 2
    AND l.classid = coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139)::oid
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  WHERE e.number = o.engine AND e.holder = o.holder AND e.leased_until > penstock_now()) AS connected
FROM code_origin o WHERE o.job_type = $1::text ORDER BY connected DESC, o.seen_at DESC, o.origin, o.folder

-- name: write_origin
-- $1 job type $2 origin $3 folder $4 number of the engine in which it is registered, or null.
INSERT INTO code_origin (job_type, origin, folder, engine, holder, seen_at)
VALUES ($1::text, $2::text, $3::text, coalesce($4::int, -1), (SELECT holder FROM engine WHERE number = $4::int), penstock_now())
ON CONFLICT (job_type, origin, folder, engine) DO UPDATE SET holder = excluded.holder, seen_at = excluded.seen_at

-- name: delete_origins
-- Those of a workflow ($1 job type) with these origins ($2) in these folders ($3).
DELETE FROM code_origin o USING unnest($2::text[], $3::text[]) AS d(origin, folder)
WHERE o.job_type = $1::text AND o.origin = d.origin AND o.folder = d.folder RETURNING o.origin

-- name: registered_types
-- The job types of a workflow ($1, as `code:order@`), whatever version.
SELECT DISTINCT job_type FROM code_origin WHERE starts_with(job_type, $1::text) ORDER BY job_type

-- name: shared_types
-- Job types that more than one origin has registered: each with all of them, and since when; $1 rows at most.
SELECT job_type, array_agg(DISTINCT origin), max(seen_at) FROM code_origin
GROUP BY job_type HAVING count(DISTINCT origin) > 1 ORDER BY job_type LIMIT $1::int
