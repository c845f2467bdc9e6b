-- Transactions: begun and ended, and what became of one whose COMMIT was not answered.

-- name: begin
BEGIN

-- name: commit
COMMIT

-- name: transaction_id
-- The transaction's id, by which its COMMIT can be looked up when the answer was lost, and the time after its locks.
SELECT pg_current_xact_id()::text, penstock_now()

-- name: transaction_status
-- Of an id, which after a crash may be another transaction's, or none's yet (an error then): see store/rows/in_doubt.py.
SELECT pg_xact_status($1::text::xid8)

-- name: history_written
-- The very row ($1 instance $2 position $3 token $4 seq), by its time ($5): after a crash positions are given again.
SELECT 1 FROM history
WHERE instance_id = $1::bigint AND pos = $2::bigint AND token_id = $3::bigint AND seq = $4::bigint
  AND ended_at = $5::timestamptz

-- name: one_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: server_started
-- Tells one server from another that follows it, and from itself before a restart.
SELECT pg_postmaster_start_time()

-- name: now
SELECT penstock_now()
