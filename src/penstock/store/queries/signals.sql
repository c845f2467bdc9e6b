-- Signals: kept ones wait for their WAIT; ids of signals tell repeats.

-- name: read_signals
-- The oldest $2 of each instance of $1.
SELECT s.id, s.instance_id, s.step, s.output::text FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
  SELECT * FROM buffered_signal b WHERE b.instance_id = i.id ORDER BY b.id LIMIT $2::int) s ORDER BY s.id

-- name: read_many_signals
-- The oldest $2 for each WAIT of each instance of $1, and for each instance how many there are in all, and their bytes:
-- where `read_signals` did not see all, those of one WAIT may have hidden the others'.
SELECT id, instance_id, step, output, all_count, all_bytes FROM (
  SELECT id, instance_id, step, output::text, row_number() OVER (PARTITION BY instance_id, step ORDER BY id) AS place,
    count(*) OVER (PARTITION BY instance_id) AS all_count,
    sum(octet_length(output::text)) OVER (PARTITION BY instance_id) AS all_bytes
  FROM buffered_signal WHERE instance_id = ANY($1::bigint[])) s
WHERE place <= $2::int ORDER BY id

-- name: delete_signals
DELETE FROM buffered_signal WHERE id = ANY($1::bigint[])

-- name: insert_signal
-- Keeps a signal for a wait that is not open yet ($1 instance $2 step $3 variables), with a record of it when $4 ($5 actor
-- $6 the sender's id of it).
WITH kept AS (
  INSERT INTO buffered_signal (id, instance_id, step, received_at, output)
  VALUES (nextval('step_seq'), $1::bigint, $2::smallint, penstock_now(), $3::jsonb)
  RETURNING instance_id, step, received_at)
INSERT INTO audit (pos, at, instance_id, step, kind, actor, detail)
SELECT nextval('step_seq'), received_at, instance_id, step, 'SIGNAL_KEPT', $5::text, $6::text FROM kept WHERE $4::boolean

-- name: forget_signals
DELETE FROM buffered_signal WHERE instance_id = ANY($1::bigint[])

-- name: signals_of
SELECT id, step, received_at, output::text FROM buffered_signal WHERE instance_id = $1::bigint ORDER BY id

-- name: find_signal_id
-- What a signal that came with the id $2 to the instance $1 asked for.
SELECT request_hash FROM signal_id WHERE instance_id = $1::bigint AND id = $2::text

-- name: note_signal_id
INSERT INTO signal_id (instance_id, id, request_hash) VALUES ($1::bigint, $2::text, $3::bytea)
