-- Schedules. Whoever acts on one has its row under its lock, and writes what it did in the same transaction: a time that was
-- decided about lies behind `done_until`. Nobody who has a token waits for a schedule: a run that ends tells its schedule by a timer.
-- So whoever has a schedule may take the tokens of the run that another one takes the place of.

-- name: put_schedule
-- $1 name $2 spec $3 variables $4 definition id $5 paused, null: as it is $6 fields of the spec that say nothing about times:
-- with others the times count from now on, else from where they were. A look comes at once and finds the next time.
INSERT INTO schedule AS s (name, spec, variables, definition_id, paused, done_until, fire_at)
SELECT $1::text, $2::jsonb, $3::jsonb, $4::text, coalesce($5::boolean, false), penstock_now(),
  CASE WHEN NOT coalesce($5::boolean, false) THEN penstock_now() END
ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, variables = excluded.variables, definition_id = excluded.definition_id,
  paused = coalesce($5::boolean, s.paused), note = CASE WHEN coalesce($5::boolean, s.paused) THEN s.note END,
  done_until = CASE WHEN s.spec - $6::text[] IS DISTINCT FROM excluded.spec - $6::text[] OR (s.paused AND NOT $5::boolean)
    THEN greatest(s.done_until, excluded.done_until) ELSE s.done_until END,
  fire_at = CASE WHEN NOT coalesce($5::boolean, s.paused) OR s.backfill IS NOT NULL THEN penstock_now() END
RETURNING s.id

-- name: pause_schedule
-- $1 name $2 note
UPDATE schedule SET paused = true, note = $2::text, fire_at = CASE WHEN backfill IS NOT NULL THEN fire_at END
WHERE name = $1::text RETURNING id

-- name: resume_schedule
-- What passed while it was paused is not caught up. $1 name
UPDATE schedule SET paused = false, note = NULL, fire_at = penstock_now(),
  done_until = CASE WHEN paused THEN greatest(done_until, penstock_now()) ELSE done_until END
WHERE name = $1::text RETURNING id

-- name: begin_backfill
-- $1 name $2 what is to be done. No row: one is under way, or there is no such schedule.
UPDATE schedule SET backfill = $2::jsonb, fire_at = penstock_now() WHERE name = $1::text AND backfill IS NULL RETURNING id

-- name: delete_schedule
WITH gone AS (DELETE FROM schedule WHERE name = $1::text RETURNING id),
runs AS (DELETE FROM schedule_run r USING gone g WHERE r.schedule = g.id)
SELECT id FROM gone

-- name: list_schedules
-- Those with names after $1, at most $2; or the one of the name $3.
SELECT s.id, s.name, s.spec::text, s.variables::text, s.definition_id, s.done_until, s.fire_at, s.buffered, s.last_instance,
  s.paused, s.note, s.backfill::text, s.missed, penstock_now()
FROM schedule s WHERE s.name > $1::text AND ($3::text IS NULL OR s.name = $3) ORDER BY s.name LIMIT $2::int

-- name: schedule_exists
SELECT FROM schedule WHERE id = $1::int

-- name: schedule_runs
-- Of the schedules $1, the latest of each first, at most $2 of each.
SELECT k.id, r.at, r.instance_id, r.outcome, r.reason FROM unnest($1::int[]) AS k(id) CROSS JOIN LATERAL (
  SELECT * FROM schedule_run r WHERE r.schedule = k.id ORDER BY r.seq DESC LIMIT $2::int) r
ORDER BY k.id, r.seq DESC

-- name: schedule_times_from
-- Times of the schedule $1 that something became of, from $2 on, at most $3.
SELECT at FROM schedule_run WHERE schedule = $1::int AND at >= $2::timestamptz ORDER BY at LIMIT $3::int

-- name: due_schedules
-- What is due now, oldest first, and how long until the first that is not; $1 limit.
WITH clock AS MATERIALIZED (SELECT penstock_now() AS now)
SELECT id, extract(epoch FROM fire_at - (SELECT now FROM clock))::float8 AS left_s FROM (
  (SELECT id, fire_at FROM schedule WHERE fire_at <= (SELECT now FROM clock) ORDER BY fire_at LIMIT $1::int)
  UNION ALL
  (SELECT id, fire_at FROM schedule WHERE fire_at > (SELECT now FROM clock) ORDER BY fire_at LIMIT 1)) next
ORDER BY left_s LIMIT $1::int + 1

-- name: reckon_schedules
-- All of them are looked at once: what is known of time zones may have changed since.
UPDATE schedule SET fire_at = penstock_now() WHERE fire_at > penstock_now()

-- name: lock_schedules
-- Those of the schedules $1 that are due, or among those of $2, and that nobody else holds.
SELECT s.id, s.name, s.spec::text, s.variables::text, s.definition_id, s.done_until, s.buffered, s.last_instance, s.paused,
  s.backfill::text
FROM schedule s WHERE s.id = ANY($1::int[]) AND (s.fire_at <= penstock_now() OR s.id = ANY($2::int[]))
ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED

-- name: schedules_stand
-- Of schedules whose rows are locked: whether the run that each started last is open, and with a backfill under way the times
-- of its latest runs. In a statement of its own: its snapshot sees what was committed before the locks were had.
SELECT s.id, EXISTS (SELECT FROM instance i WHERE i.id = s.last_instance AND i.status = 0 /* ACTIVE */),
  CASE WHEN s.backfill IS NOT NULL THEN
    ARRAY(SELECT r.at FROM schedule_run r WHERE r.schedule = s.id AND r.instance_id IS NOT NULL) END
FROM schedule s WHERE s.id = ANY($1::int[])

-- name: move_schedules
-- What a look has decided: $1 id $2 done until $3 fire at $4 buffered, as text $5 last instance, null: as it was $6 backfill
-- $7 missed since $8 whether to pause it $9 and why
UPDATE schedule s SET done_until = u.done_until, fire_at = u.fire_at, buffered = u.buffered::timestamptz[],
  last_instance = coalesce(u.last_instance, s.last_instance), backfill = u.backfill, missed = s.missed + u.missed,
  paused = s.paused OR u.pauses, note = CASE WHEN u.pauses AND NOT s.paused THEN u.note ELSE s.note END
FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[], $4::text[], $5::bigint[], $6::jsonb[], $7::bigint[], $8::boolean[],
  $9::text[]) AS u(id, done_until, fire_at, buffered, last_instance, backfill, missed, pauses, note)
WHERE s.id = u.id

-- name: forget_schedule_runs
-- Times ($1 schedule $2 time) that waited, or were not started then, and are decided about again.
DELETE FROM schedule_run r USING unnest($1::int[], $2::timestamptz[]) AS d(schedule, at)
WHERE r.schedule = d.schedule AND r.at = d.at AND r.instance_id IS NULL

-- name: insert_schedule_runs
-- $1 schedule $2 time $3 instance $4 outcome $5 reason
INSERT INTO schedule_run (schedule, at, instance_id, outcome, reason)
SELECT * FROM unnest($1::int[], $2::timestamptz[], $3::bigint[], $4::smallint[], $5::text[])

-- name: prune_schedule_runs
-- Those of the schedules $1 beyond the last $2, but for times that wait.
DELETE FROM schedule_run r USING unnest($1::int[]) AS s(id)
CROSS JOIN LATERAL (
  SELECT n.seq FROM schedule_run n WHERE n.schedule = s.id ORDER BY n.seq DESC OFFSET $2::int LIMIT 1) last
WHERE r.schedule = s.id AND r.seq <= last.seq AND r.outcome <> 1 /* BUFFERED */

-- name: insert_scheduled
-- $1 instance $2 name of the schedule $3 time $4 whether its end is to be told
INSERT INTO scheduled (instance_id, schedule, at, watched)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::boolean[])

-- name: overtake_runs
-- Durable runs ($1) whose schedules start another one in their place.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now(), i.id, 0, i.id, -13 FROM unnest($1::bigint[]) AS i(id)
ON CONFLICT (token_id, seq, index) DO NOTHING

-- name: tell_schedules
-- Of instances ($1) that have ended.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now(), s.instance_id, 0, s.instance_id, -12 FROM scheduled s WHERE s.instance_id = ANY($1::bigint[]) AND s.watched
ON CONFLICT (token_id, seq, index) DO NOTHING

-- name: run_ended
-- The schedule of the instance $1 is told of its end: it is looked at now, or paused.
WITH told AS (
  DELETE FROM timer WHERE token_id = $1::bigint AND seq = 0 AND index = -12 RETURNING instance_id),
ended AS MATERIALIZED (
  SELECT r.schedule, i.status = 2 /* FAILED */ AS failed FROM told t
  JOIN scheduled r ON r.instance_id = t.instance_id
  JOIN instance i ON i.id = t.instance_id),
woken AS (
  UPDATE schedule s SET
    paused = s.paused OR (e.failed AND coalesce((s.spec->>'pauseOnFailure')::boolean, false)),
    note = CASE WHEN e.failed AND NOT s.paused AND coalesce((s.spec->>'pauseOnFailure')::boolean, false)
      THEN $2::text ELSE s.note END,
    fire_at = penstock_now()
  FROM ended e WHERE s.name = e.schedule)
SELECT instance_id FROM told
