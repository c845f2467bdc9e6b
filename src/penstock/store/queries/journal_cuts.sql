-- What is taken out of the journal of a durable run: what came after the place where a failed one goes on, and all of it
-- where the run continues as a new one. Lock order: as queries/journal.sql.

-- name: last_execution
-- Of a run ($1 instance) that has ended: seq, attempt and beginning of its last execution.
SELECT seq, attempt, started_at FROM history WHERE instance_id = $1::bigint AND kind < 10 /* ATTEMPT_FAILED */
ORDER BY pos DESC LIMIT 1

-- name: find_failed
-- The record of the step that failed last in a run ($1 instance; kinds of outcomes: $2 of failures, $3 of what was done):
-- path and position; then path and name of the first that was done since.
SELECT f.path, f.pos, d.path, d.name FROM (
  SELECT j.path, j.pos FROM journal j WHERE j.instance_id = $1::bigint AND j.kind = ANY($2::smallint[])
  ORDER BY j.pos DESC LIMIT 1) f
LEFT JOIN LATERAL (
  SELECT j.path, j.name FROM journal j WHERE j.instance_id = $1::bigint AND j.pos > f.pos AND j.kind = ANY($3::smallint[])
  ORDER BY j.pos LIMIT 1) d ON true

-- name: last_child
-- The end of a child that came last in a run ($1 instance; $2 its kind): path, position, payload; then path and name of the
-- first that was done since (kinds $3).
SELECT f.path, f.pos, f.payload, d.path, d.name FROM (
  SELECT j.path, j.pos, j.payload FROM journal j WHERE j.instance_id = $1::bigint AND j.kind = $2::smallint
  ORDER BY j.pos DESC LIMIT 1) f
LEFT JOIN LATERAL (
  SELECT j.path, j.name FROM journal j WHERE j.instance_id = $1::bigint AND j.pos > f.pos AND j.kind = ANY($3::smallint[])
  ORDER BY j.pos LIMIT 1) d ON true

-- name: find_path
-- The first outcome (kinds $3) of an operation ($2 path), or of one within, in a run ($1 instance).
SELECT pos FROM journal WHERE instance_id = $1::bigint AND kind = ANY($3::smallint[])
  AND (path = $2::text OR starts_with(path, $2::text || '/') OR starts_with(path, $2::text || '.'))
ORDER BY pos LIMIT 1

-- name: cut_journal
-- A run ($1 instance) that failed goes on from a position ($2): records from there on are forgotten, but for messages, what
-- drops those, calls of updates, and what a continued one began with. Mere passing of time become: of the operation ($3 path) that is done again
-- the attempts before, so it has all of its retries; and records with marks that were appended together with the first one
-- that is forgotten, as the body said these before that. A cancel that is forgotten may come again.
WITH place AS MATERIALIZED (  -- of the append: one time per statement
  SELECT at FROM journal WHERE instance_id = $1::bigint AND pos = $2::bigint),
gone AS (
  DELETE FROM journal WHERE instance_id = $1::bigint
    AND (kind IN (12 /* VIEW */, 13 /* ERROR */) OR pos >= $2::bigint AND kind NOT IN (6 /* MESSAGE */, 10 /* BEGUN */, 14 /* DROPPED */, 15 /* ASKED */)
      AND NOT (mark IS NOT NULL AND at IN (SELECT at FROM place)))),
begun AS (
  UPDATE journal SET kind = 5 /* CLOCK */, path = '', name = NULL, payload = NULL, digest = NULL, attempt = 1, took_ms = NULL
  WHERE instance_id = $1::bigint AND (pos < $2::bigint AND kind = 9 /* RETRY */ AND path = $3::text
    OR pos >= $2::bigint AND mark IS NOT NULL AND at IN (SELECT at FROM place)))
DELETE FROM signal_id s WHERE s.instance_id = $1::bigint AND s.id = '~cancel' AND NOT EXISTS (
  SELECT FROM journal j WHERE j.instance_id = $1::bigint AND j.pos < $2::bigint AND j.kind = 7 /* CANCEL */)

-- name: continue_run
-- A run goes on as a new one: $1 token $2 seq $3 attempt $4 holder $5 mail seen; the root is locked. Its journal is a record
-- with the name $6, which tells it from those of earlier continuations, and the payload $7 (one in an array), then the
-- messages and calls of updates at the positions $8, in that order, which nobody has received: they are what others wrote from then on. A run that is not returned
-- has mail, or is not the holder's;
-- one that was continued by an earlier try is returned, and stays as it is.
WITH held AS MATERIALIZED (
  SELECT t.id, t.mail, coalesce((
    SELECT j.kind <> 10 /* BEGUN */ OR j.name <> $6::text FROM journal j
    WHERE j.instance_id = $1::bigint ORDER BY j.pos LIMIT 1), true) AS is_new
  FROM token t WHERE t.id = $1::bigint AND t.seq = $2::bigint AND t.state = 1 /* LOCKED */
    AND t.attempt = $3::int AND t.claimed_by = $4::text),
new AS MATERIALIZED (SELECT id FROM held WHERE is_new AND mail = $5::int),
gone AS (
  DELETE FROM journal WHERE instance_id = $1::bigint AND EXISTS (SELECT FROM new) RETURNING pos, kind, path, name, payload, sender, rules),
clock AS MATERIALIZED (SELECT penstock_now() AS now),
begun AS (
  INSERT INTO journal (instance_id, pos, at, kind, attempt, path, name, payload)
  SELECT id, nextval('step_seq'), now, 10 /* BEGUN */, 1, '', $6::text, ($7::text[])[1] FROM new, clock RETURNING pos),
kept AS (  -- one that was sent in the place of another is a message as others
  INSERT INTO journal (instance_id, pos, at, kind, attempt, path, name, payload, sender, rules)
  SELECT $1::bigint, nextval('step_seq'), now, CASE WHEN is_call THEN 15 ELSE 6 /* MESSAGE */ END, 1,
    CASE WHEN is_call THEN path ELSE '' END, name, payload, sender, CASE WHEN is_call THEN rules END
  FROM begun, clock, (
    SELECT gone.*, kind = 15 /* ASKED */ AS is_call FROM gone JOIN unnest($8::bigint[]) WITH ORDINALITY AS k(pos, n) USING (pos) ORDER BY n) g RETURNING pos),
counted AS (
  UPDATE token t SET mail = (SELECT count(*) FROM kept) FROM new WHERE t.id = new.id AND t.mail <> (SELECT count(*) FROM kept))
SELECT id FROM held WHERE mail = $5::int OR NOT is_new
