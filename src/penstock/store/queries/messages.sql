-- Messages and who waits for them (core/rules/correlation.py). What is for whom is changed only under the advisory locks of
-- `lock_addresses`, which are held to the end of the transaction and taken after all locks of rows: whoever has them
-- waits for nobody but others who want them, too, in the same order.

-- name: lock_addresses
-- Locks the names $1 with the keys $2, and those of the waits that are being closed ($3 token $4 seq).
SELECT pg_advisory_xact_lock(a.hash) FROM (
  SELECT DISTINCT hashtextextended('penstock message ' || x.name, hashtextextended(x.key, 0)) AS hash FROM (
    SELECT * FROM unnest($1::text[], $2::text[]) AS a(name, key)
    UNION ALL
    SELECT s.name, s.key FROM unnest($3::bigint[], $4::bigint[]) AS g(token_id, seq)
    CROSS JOIN LATERAL (SELECT * FROM subscription s WHERE s.token_id = g.token_id AND s.seq = g.seq OFFSET 0) s) x
  ORDER BY 1 OFFSET 0) a

-- name: closing_waits
-- The waits that are being closed ($1 token $2 seq), and what is for them.
SELECT s.token_id, s.seq, s.name, s.key, m.id, coalesce(m.for_all, false), coalesce(m.expires_at <= clock.now, false)
FROM (SELECT penstock_now() AS now) clock CROSS JOIN unnest($1::bigint[], $2::bigint[]) AS g(token_id, seq)
CROSS JOIN LATERAL (SELECT * FROM subscription s WHERE s.token_id = g.token_id AND s.seq = g.seq OFFSET 0) s
LEFT JOIN LATERAL (SELECT * FROM message m WHERE m.id = s.message OFFSET 0) m ON true

-- name: open_waits
-- The oldest waits without a message: of each name $1 with the key $2 as many as $3 says, and of those of the waits that
-- are being closed ($4 token $5 seq) as many as $6.
WITH asked AS MATERIALIZED (
  SELECT x.name, x.key, sum(x.most) AS most FROM (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int[]) AS a(name, key, most)
    UNION ALL
    SELECT s.name, s.key, $6::int FROM unnest($4::bigint[], $5::bigint[]) AS g(token_id, seq)
    CROSS JOIN LATERAL (SELECT * FROM subscription s WHERE s.token_id = g.token_id AND s.seq = g.seq OFFSET 0) s) x
  GROUP BY x.name, x.key)
SELECT a.name, a.key, s.seq, s.token_id, s.instance_id FROM asked a CROSS JOIN LATERAL (
  SELECT * FROM subscription s WHERE s.name = a.name AND s.key = a.key AND s.message IS NULL
  ORDER BY s.seq LIMIT a.most) s

-- name: kept_messages
-- The oldest messages that are kept: of each name $1 with the key $2 as many as $3 says.
SELECT a.name, a.key, m.id FROM unnest($1::text[], $2::text[], $3::int[]) AS a(name, key, most)
CROSS JOIN (SELECT penstock_now() AS now) clock CROSS JOIN LATERAL (
  SELECT * FROM message m WHERE m.name = a.name AND m.key = a.key AND NOT m.taken AND m.expires_at > clock.now
  ORDER BY m.id LIMIT a.most) m

-- name: subscribe
-- $1 token $2 seq $3 instance $4 name $5 key $6 message
INSERT INTO subscription (token_id, seq, instance_id, name, key, message)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[])

-- name: unsubscribe
-- $1 token $2 seq
DELETE FROM subscription s USING unnest($1::bigint[], $2::bigint[]) AS g(token_id, seq)
CROSS JOIN LATERAL (SELECT o.ctid FROM subscription o WHERE o.token_id = g.token_id AND o.seq = g.seq OFFSET 0) old
WHERE s.ctid = old.ctid

-- name: give_messages
-- Waits ($1 token $2 seq) get messages ($3).
UPDATE subscription s SET message = g.message FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS g(token_id, seq, message)
CROSS JOIN LATERAL (SELECT o.ctid FROM subscription o WHERE o.token_id = g.token_id AND o.seq = g.seq OFFSET 0) old
WHERE s.ctid = old.ctid

-- name: arm_messages
-- Waits ($1 token $2 seq $3 instance) have a message since now; whoever gave it goes there itself within $4 seconds.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now() + $4::float8 * interval '1 second', a.*, -8 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS a

-- name: take_messages
-- The messages $1 are for a wait now; those of $2 are kept again.
UPDATE message m SET taken = g.taken FROM (
  SELECT unnest($1::bigint[]) AS id, true AS taken UNION ALL SELECT unnest($2::bigint[]), false) g
CROSS JOIN LATERAL (SELECT o.ctid FROM message o WHERE o.id = g.id OFFSET 0) old
WHERE m.ctid = old.ctid

-- name: drop_messages
-- The messages $1, and those of $2 that are for no wait any more.
DELETE FROM message m USING (
  SELECT unnest($1::bigint[]) AS id
  UNION ALL
  SELECT g.id FROM (SELECT DISTINCT unnest($2::bigint[]) AS id) g
  WHERE (SELECT s.token_id FROM subscription s WHERE s.message = g.id LIMIT 1) IS NULL) g
CROSS JOIN LATERAL (SELECT o.ctid FROM message o WHERE o.id = g.id OFFSET 0) old
WHERE m.ctid = old.ctid

-- name: message_for
-- What is for the wait ($1 token $2 seq).
SELECT m.id, m.name, m.sender, m.body::text FROM subscription s
CROSS JOIN LATERAL (SELECT * FROM message m WHERE m.id = s.message OFFSET 0) m
WHERE s.token_id = $1::bigint AND s.seq = $2::bigint

-- name: claim_message_ids
-- Takes ids ($1, with $2 hash $3 message $4 seconds to remember); those that were taken before are not returned. Two at
-- once: the second waits for the first one's commit, and they are asked for in one order.
INSERT INTO message_id (id, request_hash, message, expires_at)
SELECT i.id, i.request_hash, i.message, penstock_now() + i.remember_s * interval '1 second'
FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::float8[]) AS i(id, request_hash, message, remember_s) ORDER BY i.id
ON CONFLICT (id) DO NOTHING RETURNING id

-- name: find_message_ids
-- What came with the ids $1: hash, whom it was for at first, whether it is still here.
SELECT i.id, i.request_hash, i.receivers::text, (SELECT m.id FROM message m WHERE m.id = i.message LIMIT 1) IS NOT NULL
FROM message_id i WHERE i.id = ANY($1::text[])

-- name: note_receivers
-- Of the ids $1: whom their messages are for ($2).
UPDATE message_id i SET receivers = g.receivers FROM unnest($1::text[], $2::jsonb[]) AS g(id, receivers)
CROSS JOIN LATERAL (SELECT o.ctid FROM message_id o WHERE o.id = g.id OFFSET 0) old
WHERE i.ctid = old.ctid

-- name: insert_messages
-- $1 id $2 name $3 key $4 for all $5 taken $6 seconds to keep $7 bytes $8 body $9 sender $10 sender's id
INSERT INTO message (id, name, key, for_all, taken, published_at, expires_at, size_bytes, body, sender, message_id)
SELECT m.id, m.name, m.key, m.for_all, m.taken, clock.now, clock.now + m.ttl_s * interval '1 second', m.size_bytes, m.body,
  m.sender, m.message_id
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::boolean[], $5::boolean[], $6::float8[], $7::int[], $8::jsonb[],
  $9::text[], $10::text[]) AS m(id, name, key, for_all, taken, ttl_s, size_bytes, body, sender, message_id)
CROSS JOIN (SELECT penstock_now() AS now) clock

-- name: receivers_of
-- Where the waits ($1 token $2 seq) stand: definition and step.
SELECT t.id, t.seq, i.definition, t.step FROM unnest($1::bigint[], $2::bigint[]) AS g(token_id, seq)
CROSS JOIN LATERAL (SELECT * FROM token t WHERE t.id = g.token_id AND t.seq = g.seq OFFSET 0) t
CROSS JOIN LATERAL (SELECT * FROM instance i WHERE i.id = t.instance_id OFFSET 0) i

-- name: messages_there
-- Which of the messages $1 nobody has received yet.
SELECT id FROM message WHERE id = ANY($1::bigint[])

-- name: purge_messages
-- Forgets up to $1 messages that have expired while nobody waited for them, oldest first; how many went. One that is
-- taken just now is passed by.
WITH gone AS (
  DELETE FROM message WHERE ctid IN (
    SELECT ctid FROM message WHERE NOT taken AND expires_at <= (SELECT penstock_now())
    ORDER BY expires_at LIMIT $1::int FOR UPDATE SKIP LOCKED)
  RETURNING 1)
SELECT count(*) FROM gone

-- name: purge_message_ids
-- Forgets up to $1 ids whose time is over; how many went.
WITH gone AS (
  DELETE FROM message_id WHERE ctid IN (
    SELECT ctid FROM message_id WHERE expires_at <= (SELECT penstock_now())
    ORDER BY expires_at LIMIT $1::int FOR UPDATE SKIP LOCKED)
  RETURNING 1)
SELECT count(*) FROM gone

-- name: count_messages
-- How many messages there are, and their bytes; not more than $1 are looked at.
SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM (SELECT size_bytes FROM message LIMIT $1::int) m

-- name: list_messages
-- Messages that nobody has received yet, oldest first: $1 name and $2 key (null: any) after $3, at most $4.
SELECT m.id, m.name, m.key, m.message_id, m.published_at, m.expires_at, m.size_bytes, m.taken FROM message m
WHERE m.id > $3::bigint AND ($1::text IS NULL OR m.name = $1::text) AND ($2::text IS NULL OR m.key = $2::text)
ORDER BY m.id LIMIT $4::int
