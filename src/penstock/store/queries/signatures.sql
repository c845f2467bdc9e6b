-- What durable workflows take: written when an App opens, read when a run starts.

-- name: read_signature
SELECT arguments FROM code_signature WHERE job_type = $1::text

-- name: write_signature
-- $1 job type $2 JSON schema of its arguments. The same again is no write.
INSERT INTO code_signature AS s (job_type, arguments) VALUES ($1::text, $2::text)
ON CONFLICT (job_type) DO UPDATE SET arguments = excluded.arguments WHERE s.arguments <> excluded.arguments

-- name: delete_signature
DELETE FROM code_signature WHERE job_type = $1::text
