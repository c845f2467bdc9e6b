-- Calls: instances that a step of another one started and waits for. What one instance tells another one is a timer of that
-- one, due at once, inserted by a transaction that has its own lock only. Whoever acts on such a timer deletes it first:
-- it is there for one of several who want to.

-- name: insert_called
-- $1 child $2 caller $3 token $4 seq of the call $5 first instance of the tree $6 depth $7 path, where code calls
INSERT INTO called (id, caller, token_id, seq, root, depth, path)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::smallint[], $7::text[])

-- name: hold_caller
-- The durable run that calls, locked: $1 token $2 seq $3 attempt $4 holder. The first instance of its tree, its depth in it,
-- and a seq for the call. Nothing when it is not the holder's any more.
SELECT coalesce((SELECT c.root FROM called c WHERE c.id = t.id), t.id),
  coalesce((SELECT c.depth FROM called c WHERE c.id = t.id), 0), nextval('step_seq')
FROM token t WHERE t.id = $1::bigint AND t.seq = $2::bigint AND t.state = 1 /* LOCKED */ AND t.attempt = $3::int
  AND t.claimed_by = $4::text FOR NO KEY UPDATE OF t

-- name: turn_of_caller
-- The priority and the flow key of a durable run that calls ($1 instance).
SELECT i.priority, i.flow_key FROM instance i WHERE i.id = $1::bigint

-- name: call_of_code
-- What a durable run ($1 instance $2 seq of its execution) has called at a path ($3), since it began or continued as a new
-- one: the instance and its status.
SELECT c.id, i.status FROM (
  SELECT * FROM called c WHERE c.caller = $1::bigint AND c.path = $3::text
    AND c.seq > greatest($2::bigint, (
      SELECT CASE WHEN j.kind = 10 /* BEGUN */ THEN j.pos END FROM journal j WHERE j.instance_id = $1::bigint ORDER BY j.pos LIMIT 1))
  ORDER BY c.id DESC LIMIT 1) c
CROSS JOIN LATERAL (SELECT * FROM instance i WHERE i.id = c.id OFFSET 0) i

-- name: called_at
-- By which durable run an instance ($1) was called, at which path, and its status.
SELECT c.caller, c.path, i.status FROM called c
CROSS JOIN LATERAL (SELECT i.status FROM instance i WHERE i.id = c.id OFFSET 0) i WHERE c.id = $1::bigint

-- name: renew_call
-- A durable run asks again for what it had called ($1 instance) before it was retried or continued: a seq of its own again.
UPDATE called c SET seq = nextval('step_seq') FROM (SELECT o.caller FROM called o WHERE o.id = $1::bigint OFFSET 0) old
CROSS JOIN LATERAL (SELECT t.seq FROM token t WHERE t.id = old.caller OFFSET 0) t
WHERE c.id = $1::bigint AND c.seq <= greatest(t.seq, (
  SELECT CASE WHEN j.kind = 10 /* BEGUN */ THEN j.pos END FROM journal j WHERE j.instance_id = c.caller ORDER BY j.pos LIMIT 1))

-- name: end_for_code
-- What a call of a durable run ($1 token $2 seq) waits for: instance, path, how it stands and why it failed, definition, and
-- whether it is a durable run. Nothing where the run does not wait for it any more: it was retried, or continued, since.
SELECT c.id, c.path, i.status, i.failure, i.failure_code, d.id, d.code
FROM (SELECT * FROM called c WHERE c.token_id = $1::bigint AND c.seq = $2::bigint) c
CROSS JOIN LATERAL (
  SELECT FROM token t WHERE t.id = c.caller AND c.seq > greatest(t.seq, (
    SELECT CASE WHEN j.kind = 10 /* BEGUN */ THEN j.pos END FROM journal j WHERE j.instance_id = c.caller ORDER BY j.pos LIMIT 1))
  OFFSET 0) t
CROSS JOIN LATERAL (SELECT * FROM instance i WHERE i.id = c.id OFFSET 0) i
CROSS JOIN LATERAL (SELECT d.id, d.code FROM definition d WHERE d.key = i.definition OFFSET 0) d

-- name: called_root
-- The first instance of the tree of an instance that was called.
SELECT c.root FROM called c WHERE c.id = $1::bigint

-- name: earlier_child
-- Of the instances that an entry of a call ($1 token $2 entry) started, the last one that failed and can go on, or has
-- completed: its work is done. Of a durable run that failed another one is started.
SELECT c.id FROM called c
CROSS JOIN LATERAL (
  SELECT i.status, d.code FROM instance i JOIN definition d ON d.key = i.definition WHERE i.id = c.id OFFSET 0) d
LEFT JOIN LATERAL (
  SELECT true AS found FROM abnormal_end e
  WHERE e.status = 2 /* FAILED */ AND e.instance_id = c.id AND e.tokens IS NOT NULL OFFSET 0) e ON true  -- else it was undone
WHERE c.token_id = $1::bigint AND c.seq >= $2::bigint AND (d.status = 1 /* COMPLETED */ OR (e.found AND NOT d.code))
ORDER BY c.seq DESC LIMIT 1

-- name: recall
-- Instances that failed ($1) are what calls wait for again, under another seq ($2).
UPDATE called c SET seq = u.seq FROM unnest($1::bigint[], $2::bigint[]) AS u(id, seq)
CROSS JOIN LATERAL (SELECT o.ctid FROM called o WHERE o.id = u.id OFFSET 0) old
WHERE c.ctid = old.ctid

-- name: tell_reopen
-- After `recall`: $1 children.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now(), c.id, c.seq, c.id, -7 FROM called c WHERE c.id = ANY($1::bigint[])

-- name: tell_callers
-- Of instances $1 that have ended. After all else that the transaction writes: a call that it has closed hears of nothing.
-- The row is locked: a run that asks for it again just now (`renew_call`) is told under its new seq, or sees the end.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now(), c.token_id, c.seq, c.caller, CASE WHEN c.path IS NULL THEN -4 ELSE -17 END
FROM unnest($1::bigint[]) AS e(id)
CROSS JOIN LATERAL (SELECT * FROM called c WHERE c.id = e.id OFFSET 0 FOR SHARE) c
WHERE c.path IS NOT NULL OR EXISTS (
  SELECT FROM token t WHERE t.id = c.token_id AND t.seq = c.seq AND t.state = 7 /* CALLED */)
ON CONFLICT DO NOTHING

-- name: tell_children
-- Of durable runs $1 that have ended without waiting for what they called: that is to end, too.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now(), c.id, c.seq, c.id, -5 FROM unnest($1::bigint[]) AS e(id)
CROSS JOIN LATERAL (SELECT * FROM called c WHERE c.caller = e.id AND c.path IS NOT NULL OFFSET 0) c
CROSS JOIN LATERAL (SELECT FROM instance i WHERE i.id = c.id AND i.status = 0 /* ACTIVE */ OFFSET 0) i
ON CONFLICT DO NOTHING

-- name: forget_reopen
-- Calls that were closed ($1 token $2 seq): what was still to go on for them. One that goes on just now is waited for, and
-- is open for `tell_cancel`.
DELETE FROM timer t USING unnest($1::bigint[], $2::bigint[]) AS a(token_id, seq)
CROSS JOIN LATERAL (
  SELECT c.id, c.seq FROM called c WHERE c.token_id = a.token_id AND c.seq = a.seq OFFSET 0) c
WHERE t.token_id = c.id AND t.seq = c.seq AND t.index = -7

-- name: tell_cancel
-- Calls that were closed ($1 token $2 seq): what they started, if it is open. After all else that the transaction writes.
INSERT INTO timer (fire_at, token_id, seq, instance_id, index)
SELECT penstock_now(), c.id, c.seq, c.id, -5 FROM unnest($1::bigint[], $2::bigint[]) AS a(token_id, seq)
CROSS JOIN LATERAL (
  SELECT c.id, c.seq FROM called c WHERE c.token_id = a.token_id AND c.seq = a.seq OFFSET 0) c
CROSS JOIN LATERAL (SELECT FROM instance i WHERE i.id = c.id AND i.status = 0 /* ACTIVE */ OFFSET 0) i

-- name: hold_told
-- Timers ($1 token $2 seq $3 index), locked: whoever holds the row acts on it and deletes it. In an order, as several are.
SELECT t.token_id, t.seq, t.index::int FROM (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS u(token_id, seq, index) ORDER BY 1, 2, 3) u
CROSS JOIN LATERAL (
  SELECT t.token_id, t.seq, t.index FROM timer t
  WHERE t.token_id = u.token_id AND t.seq = u.seq AND t.index = u.index FOR UPDATE) t

-- name: children_of_calls
-- What calls ($1 token $2 seq) wait for.
SELECT u.token_id, u.seq, c.id, i.status, i.failure, i.failure_code, d.id
FROM unnest($1::bigint[], $2::bigint[]) AS u(token_id, seq)
CROSS JOIN LATERAL (SELECT c.id FROM called c WHERE c.token_id = u.token_id AND c.seq = u.seq OFFSET 0) c
CROSS JOIN LATERAL (SELECT * FROM instance i WHERE i.id = c.id OFFSET 0) i
CROSS JOIN LATERAL (SELECT d.id FROM definition d WHERE d.key = i.definition OFFSET 0) d

-- name: take_telling
-- The caller of the instance $1, and whether it had not heard of its end yet; it never will.
WITH about AS MATERIALIZED (SELECT * FROM called WHERE id = $1::bigint),
taken AS (
  DELETE FROM timer t USING about a WHERE t.token_id = a.token_id AND t.seq = a.seq AND t.index IN (-4, -17) RETURNING t.token_id)
SELECT a.caller, EXISTS (SELECT FROM taken) FROM about a

-- name: call_tree
-- What the instance $1 has called, and what that has, at most $2: where it was called, how it stands. The step of a call that
-- is closed stands in history.
WITH RECURSIVE tree AS (
  SELECT c.* FROM called c WHERE c.caller = $1::bigint
  UNION ALL
  SELECT c.* FROM tree t CROSS JOIN LATERAL (SELECT * FROM called c WHERE c.caller = t.id OFFSET 0) c)
SELECT t.id, t.caller, i.definition, CASE WHEN k.step IS NULL AND h.pos IS NOT NULL
    THEN definition_at(t.caller, h.pos, p.definition) ELSE p.definition END, coalesce(k.step, h.step), i.status, i.started_at, i.ended_at, EXISTS (SELECT FROM parked w WHERE w.instance_id = t.id), t.path
FROM (SELECT * FROM tree LIMIT $2::int) t
CROSS JOIN LATERAL (SELECT * FROM instance i WHERE i.id = t.id OFFSET 0) i
CROSS JOIN LATERAL (SELECT p.definition FROM instance p WHERE p.id = t.caller OFFSET 0) p
LEFT JOIN LATERAL (SELECT k.step FROM token k WHERE k.id = t.token_id AND k.seq = t.seq) k ON true
LEFT JOIN LATERAL (SELECT h.step, h.pos FROM history h
  WHERE h.instance_id = t.caller AND h.pos > t.seq AND h.token_id = t.token_id AND h.seq = t.seq ORDER BY h.pos LIMIT 1) h ON true
ORDER BY t.seq
