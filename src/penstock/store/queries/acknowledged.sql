-- Rows of "Needs attention" that somebody has acknowledged.

-- name: acknowledge
-- $1 key $2 how many there are $3 actor $4 note $5 for how many seconds. What is over goes first.
WITH clock AS MATERIALIZED (SELECT penstock_now() AS now),
over AS (DELETE FROM acknowledged a USING clock WHERE a.until <= clock.now AND a.key <> $1::text)
INSERT INTO acknowledged (key, count, actor, note, at, until)
SELECT $1::text, $2::int, $3::text, $4::text, now, now + $5::float8 * interval '1 s' FROM clock
ON CONFLICT (key) DO UPDATE SET count = excluded.count, actor = excluded.actor, note = excluded.note, at = excluded.at,
  until = excluded.until

-- name: withdraw_acknowledgement
DELETE FROM acknowledged WHERE key = $1::text AND until > penstock_now() RETURNING key

-- name: read_acknowledged
-- Those that hold, the newest $1: (key, count, actor, note, at, until).
SELECT key, count, actor, note, at, until FROM acknowledged WHERE until > penstock_now() ORDER BY at DESC LIMIT $1::int
