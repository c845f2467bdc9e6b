-- Batches: starts that were asked for together. An item is started by the transaction that writes its instance here, under the
-- lock of its row: once, whoever tries. Lock order: the batch, its items by place, tokens.

-- name: open_batches
-- How many have not ended, at most $1.
SELECT count(*) FROM (SELECT FROM batch WHERE look_at IS NOT NULL LIMIT $1::int) one

-- name: create_batch
-- $1 key $2 digest $3 items $4 definition of the end $5 note $6 actor. No row: the key is taken.
INSERT INTO batch (key, digest, total, on_complete, note, actor, created_at, look_at)
VALUES ($1::text, $2::bytea, $3::int, $4::text, $5::text, $6::text, penstock_now(), penstock_now())
ON CONFLICT (key) DO NOTHING RETURNING id

-- name: insert_batch_items
-- Of the batch $1: $2 places $3 requests $4 variables
INSERT INTO batch_item (batch, place, request, variables)
SELECT $1::bigint, u.* FROM unnest($2::int[], $3::jsonb[], $4::jsonb[]) u

-- name: batch_with_key
SELECT id, digest FROM batch WHERE key = $1::text

-- name: claim_batch
-- What is due longest, for $1 seconds: who takes it over afterwards does again what was not written.
UPDATE batch SET look_at = penstock_now() + $1::float8 * interval '1 s'
WHERE id = (SELECT id FROM batch WHERE look_at <= (SELECT penstock_now()) ORDER BY look_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING id, total, begun, ended, cancelled, reason, on_complete

-- name: work_of_batch
SELECT id, total, begun, ended, cancelled, reason, on_complete FROM batch WHERE id = $1::bigint AND ended_at IS NULL

-- name: next_batch
-- In how many seconds one is due.
SELECT extract(epoch FROM look_at - penstock_now())::float8 FROM batch WHERE look_at IS NOT NULL ORDER BY look_at LIMIT 1

-- name: batch_requests
-- What is still to be started of the batch $1 from place $2 on, up to $3 of its places.
SELECT place, request::text, variables::text FROM batch_item
WHERE batch = $1::bigint AND place >= $2::int AND place < $2::int + $3::int AND instance_id IS NULL AND error IS NULL ORDER BY place

-- name: hold_batch_items
-- Locks those of the items ($1 batch $2 place) that are to be started still. A batch is not cancelled meanwhile.
SELECT i.batch, i.place FROM unnest($1::bigint[], $2::int[]) u(batch, place)
JOIN batch_item i ON i.batch = u.batch AND i.place = u.place
JOIN batch b ON b.id = i.batch
WHERE i.instance_id IS NULL AND i.error IS NULL AND b.cancelled IS NULL
ORDER BY i.batch, i.place FOR NO KEY UPDATE OF i FOR SHARE OF b

-- name: place_batch_items
-- $1 batch $2 place $3 the instance that it is
UPDATE batch_item i SET instance_id = u.instance, request = NULL, variables = NULL
FROM unnest($1::bigint[], $2::int[], $3::bigint[]) u(batch, place, instance) WHERE i.batch = u.batch AND i.place = u.place

-- name: refuse_batch_items
-- Of the batch $1, if they were not started: $2 place $3 code $4 reason
UPDATE batch_item i SET error = u.error, reason = u.reason, request = NULL, variables = NULL
FROM unnest($2::int[], $3::text[], $4::text[]) u(place, error, reason)
WHERE i.batch = $1::bigint AND i.place = u.place AND i.instance_id IS NULL

-- name: batch_begun
-- The items of the batch $1 before the place $2 are started or refused; it is looked at again now.
UPDATE batch SET begun = greatest(begun, $2::int), look_at = penstock_now() WHERE id = $1::bigint AND ended_at IS NULL

-- name: first_open_of_batch
-- Of the batch $1 from the place $2 on: the first item whose instance is open, of $3 that are looked at.
SELECT i.place, i.instance_id FROM (
  SELECT place, instance_id FROM batch_item WHERE batch = $1::bigint AND place >= $2::int ORDER BY place LIMIT $3::int) i
WHERE EXISTS (SELECT FROM instance n WHERE n.id = i.instance_id AND n.status = 0 /* ACTIVE */)
ORDER BY i.place LIMIT 1

-- name: batch_ended_until
-- All before the place $2 of the batch $1 have ended. With $3 it is looked at again when a tenth of its age has passed, but
-- after $4 seconds at least and $5 at most.
UPDATE batch SET ended = greatest(ended, $2::int),
  look_at = CASE WHEN $3::boolean THEN penstock_now() + least(greatest(
    0.1 * extract(epoch FROM penstock_now() - created_at)::float8, $4::float8), $5::float8) * interval '1 s' ELSE look_at END
WHERE id = $1::bigint AND ended_at IS NULL

-- name: end_batch
UPDATE batch SET ended = total, ended_at = penstock_now(), look_at = NULL WHERE id = $1::bigint AND ended_at IS NULL

-- name: cancel_batch
-- $1 id $2 reason. No row: it has ended, or is cancelled, or there is none.
UPDATE batch SET cancelled = 0, reason = $2::text, look_at = penstock_now()
WHERE id = $1::bigint AND ended_at IS NULL AND cancelled IS NULL RETURNING id

-- name: instances_of_batch
-- Of the batch $1 the instances of $3 places from $2 on that it started and that are open. Waits for starts under way there.
SELECT i.instance_id FROM (
  SELECT instance_id FROM batch_item WHERE batch = $1::bigint AND place >= $2::int AND place < $2::int + $3::int
  ORDER BY place FOR SHARE) i
JOIN instance n ON n.id = i.instance_id WHERE n.status = 0 /* ACTIVE */ AND n.started_by = 'batch:' || $1::bigint

-- name: batch_cancelled_until
-- The items of the batch $1 before the place $2 are cancelled.
UPDATE batch SET cancelled = greatest(cancelled, $2::int), look_at = penstock_now()
WHERE id = $1::bigint AND ended_at IS NULL AND cancelled IS NOT NULL

-- name: list_batches
-- Newest first: ids below $1, at most $2; or the one with the id $3.
SELECT b.id, b.total, b.begun, b.cancelled IS NOT NULL, b.reason, b.on_complete, b.note, b.actor, b.created_at, b.ended_at,
  e.instance_id, e.error, e.reason
FROM batch b LEFT JOIN batch_item e ON e.batch = b.id AND e.place = -1
WHERE b.id < $1::bigint AND ($3::bigint IS NULL OR b.id = $3) ORDER BY b.id DESC LIMIT $2::int

-- name: count_batch
-- Of the batch $1: items by state.
-- steps of: states_of_batch
SELECT state, count(*) FROM item WHERE place >= 0 GROUP BY state

-- name: results_of_batch
-- Of the batch $1: items from the place $2 on, at most $3, in the state $4 unless that is null.
-- steps of: states_of_batch
SELECT place, state, instance_id, error, reason FROM item
WHERE place >= $2::int AND ($4::text IS NULL OR state = $4) ORDER BY place LIMIT $3::int

-- steps: states_of_batch
WITH item AS (
  SELECT i.place, i.instance_id, i.error, i.reason, CASE
    WHEN i.error IS NOT NULL THEN 'REFUSED'
    WHEN i.instance_id IS NULL THEN 'PENDING'
    WHEN n.id IS NULL THEN 'REMOVED'
    ELSE (ARRAY['ACTIVE', 'COMPLETED', 'FAILED', 'CANCELLED'])[n.status + 1] END AS state
  FROM batch_item i LEFT JOIN instance n ON n.id = i.instance_id WHERE i.batch = $1::bigint AND i.place >= 0)

-- name: purge_batches
-- Forgets the first of those that ended more than $1 days ago, $2 at most, and so many that the last begins before $3 items; how
-- many went.
WITH old AS MATERIALIZED (
  SELECT id, total, ended_at FROM batch WHERE ended_at < (SELECT penstock_now()) - $1::float8 * interval '1 day'
  ORDER BY ended_at LIMIT $2::int FOR UPDATE SKIP LOCKED),
counted AS (SELECT id, total, sum(total) OVER (ORDER BY ended_at, id) AS together FROM old),
gone AS (DELETE FROM batch b USING counted c WHERE b.id = c.id AND c.together - c.total < $3::int RETURNING b.id),
items AS (DELETE FROM batch_item i USING gone g WHERE i.batch = g.id)
SELECT count(*) FROM gone
