-- Starts that share a key for a while: `start_window`, by definition id, kind (core/rules/start_rules.py) and key. Whoever claims a row
-- locks it until the start is committed; it is locked before the tokens of the instance that it names, which are locked before
-- nothing of this table.

-- name: claim_window
-- Takes a window ($1 definition id $2 kind $3 key) for $4 seconds and the instance $5, where it is free or over. Nothing where
-- another instance has it.
INSERT INTO start_window AS w (definition_id, kind, key, until, instance_id)
VALUES ($1::text, $2::smallint, $3::text, penstock_now() + $4::float8 * interval '1 s', $5::bigint)
ON CONFLICT (definition_id, kind, key) DO UPDATE SET until = excluded.until, instance_id = excluded.instance_id
WHERE w.until <= penstock_now() RETURNING instance_id

-- name: hold_window
-- As `claim_window`, but whoever has it: locked, with its instance and its end.
INSERT INTO start_window AS w (definition_id, kind, key, until, instance_id)
VALUES ($1::text, $2::smallint, $3::text, penstock_now() + $4::float8 * interval '1 s', $5::bigint)
ON CONFLICT (definition_id, kind, key) DO UPDATE SET until = w.until RETURNING instance_id, until

-- name: find_window
SELECT instance_id FROM start_window WHERE definition_id = $1::text AND kind = $2::smallint AND key = $3::text

-- name: take_window
-- Gives the window to the instance $5 for $4 seconds, if it is still that of $6, which is gone or has begun.
UPDATE start_window SET instance_id = $5::bigint, until = penstock_now() + $4::float8 * interval '1 s'
WHERE definition_id = $1::text AND kind = $2::smallint AND key = $3::text AND instance_id = $6::bigint RETURNING instance_id

-- name: throttle_start
-- One start more with a key ($1 definition id $2 kind $3 key $4 seconds between two $5 how many at once) that may have to wait for
-- $6 seconds: in how many seconds it begins. `until` is when all that began would be due if they came evenly. Nothing where the
-- wait would be longer. No burst is longer than 1e12 seconds, which an interval can still hold.
INSERT INTO start_window AS w (definition_id, kind, key, until, instance_id)
VALUES ($1::text, $2::smallint, $3::text, penstock_now() + $4::float8 * interval '1 s', 0)
ON CONFLICT (definition_id, kind, key) DO UPDATE
SET until = greatest(w.until, penstock_now()) + $4::float8 * interval '1 s'
WHERE greatest(w.until, penstock_now()) + $4::float8 * interval '1 s'
  <= penstock_now() + least($5::float8 * $4::float8 + $6::float8, 1e12) * interval '1 s'
RETURNING greatest(0, extract(epoch FROM until - penstock_now()) - $5::float8 * $4::float8)::float8

-- name: throttled_for
-- In how many seconds one more may begin; as above.
SELECT greatest(0, extract(epoch FROM greatest(until, penstock_now()) - penstock_now()) + $4::float8 - $5::float8 * $4::float8)::float8
FROM start_window WHERE definition_id = $1::text AND kind = $2::smallint AND key = $3::text

-- name: keep_throttle
-- In which line a start that is put off stands ($1 instance $2 definition id $3 key $4 seconds between two $5 how many at once).
UPDATE timer SET throttle = jsonb_build_array($2::text, $3::text, $4::float8, $5::int, false)
WHERE token_id = $1::bigint AND index = -6 /* START_TIMER */

-- name: open_lines
-- Makes the windows that lines of starts ($1 definition id $2 key) lack: what starts reserve (THROTTLE), and when those that are
-- there begin (BEGUN).
INSERT INTO start_window (definition_id, kind, key, until, instance_id)
SELECT l.definition_id, k.kind, l.key, '-infinity', 0
FROM unnest($1::text[], $2::text[]) AS l(definition_id, key) CROSS JOIN (VALUES (2 /* THROTTLE */), (4 /* BEGUN */)) AS k(kind)
WHERE NOT EXISTS (
  SELECT FROM start_window w WHERE w.definition_id = l.definition_id AND w.kind = k.kind AND w.key = l.key OFFSET 0)
ORDER BY l.definition_id COLLATE "C", l.key COLLATE "C", k.kind
ON CONFLICT (definition_id, kind, key) DO NOTHING

-- name: hold_lines
-- Locks both windows of these lines; those of which nobody else holds one. The others are passed by.
WITH held AS MATERIALIZED (
  SELECT l.definition_id, l.key
  FROM unnest($1::text[], $2::text[]) AS l(definition_id, key) CROSS JOIN (VALUES (2 /* THROTTLE */), (4 /* BEGUN */)) AS k(kind)
  CROSS JOIN LATERAL (
    SELECT FROM start_window w WHERE w.definition_id = l.definition_id AND w.kind = k.kind AND w.key = l.key
    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) w)
SELECT definition_id, key FROM held GROUP BY definition_id, key HAVING count(*) = 2

-- name: space_out
-- Throttled starts ($1 token $2 seq) that are due, whose windows are locked: each is told once when it begins, in their order,
-- and again if it is late: it has missed that by more than the time from one to the next, and a second. Those whose instance
-- somebody holds are left: who cancels one has to find its timer. How many do not begin yet.
WITH clock AS MATERIALIZED (SELECT penstock_now() AS now),
due AS MATERIALIZED (
  SELECT m.*, m.throttle ->> 0 AS definition_id, m.throttle ->> 1 AS key, (m.throttle ->> 2)::float8 * interval '1 s' AS pace,
    least((m.throttle ->> 2)::float8 * (m.throttle ->> 3)::int, 1e9) * interval '1 s' AS burst,
    CASE WHEN late THEN now ELSE m.fire_at END AS at
  FROM unnest($1::bigint[], $2::bigint[]) AS i(token, seq) CROSS JOIN clock CROSS JOIN LATERAL (
    SELECT m.ctid AS row, m.*, m.fire_at < now - greatest((m.throttle ->> 2)::float8, 1) * interval '1 s' AS late FROM timer m
    WHERE m.token_id = i.token AND m.seq = i.seq AND m.index = -6 /* START_TIMER */ AND m.throttle IS NOT NULL
      AND m.fire_at <= now OFFSET 0) m
  CROSS JOIN LATERAL (
    SELECT FROM token t WHERE t.id = m.token_id AND t.seq = m.seq AND t.state = 8 /* DELAYED */
    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) t
  WHERE late OR NOT (m.throttle ->> 4)::boolean),
summed AS (
  SELECT d.*, sum(d.pace) OVER (PARTITION BY d.definition_id, d.key ORDER BY d.fire_at, d.token_id) AS paces FROM due d),
placed AS MATERIALIZED (
  SELECT s.*, s.paces + greatest(b.until, max(s.at - (s.paces - s.pace)) OVER (
    PARTITION BY s.definition_id, s.key ORDER BY s.fire_at, s.token_id)) AS until
  FROM summed s CROSS JOIN LATERAL (
    SELECT b.until FROM start_window b
    WHERE b.definition_id = s.definition_id AND b.kind = 4 /* BEGUN */ AND b.key = s.key OFFSET 0) b),
behind AS (
  UPDATE start_window w SET until = greatest(w.until, l.until) FROM (
    SELECT definition_id, key, max(until) AS until FROM placed GROUP BY definition_id, key) l
  WHERE w.definition_id = l.definition_id AND w.kind IN (2 /* THROTTLE */, 4 /* BEGUN */) AND w.key = l.key),
told AS (
  UPDATE timer m SET fire_at = greatest(p.until - p.burst, p.at), throttle = jsonb_set(m.throttle, '{4}', 'true') FROM placed p
  WHERE m.ctid = p.row RETURNING m.fire_at)
SELECT count(*) FROM told WHERE fire_at > (SELECT now FROM clock)

-- name: hold_delayed
-- Locks the root token of an instance $1 that has not begun: its position. Nothing where it has, or is gone.
SELECT seq FROM token WHERE id = $1::bigint AND state = 8 /* DELAYED */ FOR NO KEY UPDATE

-- name: put_off
-- Moves the time of an instance $1 (the seq $2 of its root token, which is locked) to $3 seconds from now, $4 at the latest.
UPDATE timer SET fire_at = least(penstock_now() + $3::float8 * interval '1 s', $4::timestamptz)
WHERE token_id = $1::bigint AND seq = $2::bigint AND index = -6 /* START_TIMER */ RETURNING fire_at

-- name: replace_start_variables
-- Of an instance that has not begun: nothing is folded of it but edits, which `vars` has. $3: over what it has. The position
-- tells who edits, or watches, that they were written.
UPDATE instance SET vars = CASE WHEN $3::boolean THEN vars || $2::jsonb ELSE $2::jsonb END, overlay = '{}',
  folded_pos = nextval('step_seq')
WHERE id = $1::bigint RETURNING octet_length(vars::text), definition

-- name: purge_windows
-- Forgets up to $1 windows that are over; how many went. The time is asked for once, apart, as in `purge_idempotency`.
WITH gone AS (
  DELETE FROM start_window WHERE ctid IN (
    SELECT ctid FROM start_window WHERE until < (SELECT penstock_now()) ORDER BY until LIMIT $1::int FOR UPDATE SKIP LOCKED)
  RETURNING 1)
SELECT count(*) FROM gone
