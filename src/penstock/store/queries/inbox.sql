-- User tasks that are open, and who has claimed them. A row comes with its step execution and goes with it, in the same
-- transaction (the full path); claims change the row alone and take no other lock.

-- name: open_tasks
INSERT INTO open_task (job_type, seq, token_id, instance_id, definition, step, entered_at)
SELECT * FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[], $6::smallint[], $7::timestamptz[])
ON CONFLICT DO NOTHING

-- name: close_tasks
-- By their keys, not by ctid: a claim may be moving the row ($1 job types $2 seqs, which are unique by themselves).
DELETE FROM open_task WHERE job_type = ANY($1::int[]) AND seq = ANY($2::bigint[])

-- name: task_types
-- The job types that have open tasks, one look into the index for each.
WITH RECURSIVE found AS (
  (SELECT job_type FROM open_task ORDER BY job_type LIMIT 1)
  UNION ALL
  SELECT (SELECT o.job_type FROM open_task o WHERE o.job_type > f.job_type ORDER BY o.job_type LIMIT 1)
  FROM found f WHERE f.job_type IS NOT NULL)
SELECT job_type FROM found WHERE job_type IS NOT NULL LIMIT 1000

-- name: count_tasks
-- How many are open, to $1: of the index alone.
SELECT count(*)::int FROM (SELECT o.job_type FROM open_task o LIMIT $1::int) o

-- name: list_tasks
-- The next $5 of the job types $1 after $2, oldest first: how many there were, the last of them, and those of the
-- definitions $3 (null: any) that nobody has claimed ($4; false: claimed or not).
WITH looked AS MATERIALIZED (
  SELECT o.* FROM unnest($1::int[]) AS w(job_type) CROSS JOIN LATERAL (
    SELECT * FROM open_task t WHERE t.job_type = w.job_type AND t.seq > $2::bigint ORDER BY t.seq LIMIT $5::int) o
  ORDER BY o.seq LIMIT $5::int)
SELECT (SELECT count(*) FROM looked)::int, (SELECT max(seq) FROM looked), ARRAY(
  SELECT ARRAY[job_type, seq] FROM looked
  WHERE ($3::int[] IS NULL OR definition = ANY($3)) AND (assignee IS NULL OR NOT $4::boolean) ORDER BY seq)

-- name: list_claimed_tasks
-- Those that $1 has claimed, after $2, oldest first; $3 $4 job types and definitions (null: any) $5 how many.
SELECT o.job_type, o.seq FROM open_task o
WHERE o.assignee = $1::text AND o.seq > $2::bigint AND ($3::int[] IS NULL OR o.job_type = ANY($3))
  AND ($4::int[] IS NULL OR o.definition = ANY($4))
ORDER BY o.seq LIMIT $5::int

-- name: read_tasks
-- What people see of open tasks ($1 job types $2 seqs), oldest first. The timers of an item are those of its forEach.
SELECT o.job_type, o.seq, o.token_id, o.instance_id, o.definition, o.step, o.entered_at, o.assignee, i.business_key,
  (SELECT min(m.fire_at) FROM timer m WHERE m.token_id = coalesce(w.whole, o.token_id) AND m.index >= 0
     AND (m.seq = o.seq OR w.whole IS NOT NULL))
FROM unnest($1::int[], $2::bigint[]) AS k(job_type, seq)
CROSS JOIN LATERAL (SELECT * FROM open_task t WHERE t.job_type = k.job_type AND t.seq = k.seq OFFSET 0) o
LEFT JOIN LATERAL (SELECT t.parent_id AS whole FROM token t WHERE t.id = o.token_id AND t.item IS NOT NULL OFFSET 0) w ON true
JOIN LATERAL (SELECT business_key FROM instance j WHERE j.id = o.instance_id OFFSET 0) i ON true
ORDER BY o.seq

-- name: task_items
-- Which items of a forEach the tokens $1 are for, and the variables of these, $2 bytes together at most.
SELECT t.id, t.instance_id, t.item,
  CASE WHEN sum(octet_length(v.vars::text)) OVER (ORDER BY t.id) <= $2::bigint THEN v.vars::text END
FROM token t LEFT JOIN LATERAL (
  SELECT v.vars FROM item_vars v WHERE v.instance_id = t.instance_id AND v.token_id = t.parent_id AND v.item = t.item OFFSET 0) v ON true
WHERE t.id = ANY($1::bigint[]) AND t.item IS NOT NULL

-- name: find_task
-- The oldest open execution of the step $2 of the instance $1; with $3 and $4 that of this token and seq.
SELECT t.seq FROM token t
WHERE (t.id = $1::bigint OR t.instance_id = $1::bigint AND t.id <> t.instance_id)
  AND t.step = $2::smallint AND t.state = 2 /* PARKED */ AND ($3::bigint IS NULL OR t.id = $3 AND t.seq = $4::bigint)
ORDER BY t.seq LIMIT 1

-- name: tasks_of_instance
-- The open executions of the steps $2 of the instance $1 after $3, oldest first, $6 of them; with $4 and $5 that of this token
-- and seq.
SELECT t.step, t.seq FROM token t
WHERE (t.id = $1::bigint OR t.instance_id = $1::bigint AND t.id <> t.instance_id)
  AND t.step = ANY($2::int[]) AND t.state = 2 /* PARKED */ AND t.seq > $3::bigint
  AND ($4::bigint IS NULL OR t.id = $4 AND t.seq = $5::bigint)
ORDER BY t.seq LIMIT $6::int

-- name: claim_task
UPDATE open_task SET assignee = $3::text
WHERE job_type = $1::int AND seq = $2::bigint AND (assignee IS NULL OR assignee = $3::text) RETURNING assignee

-- name: task_assignee
SELECT assignee FROM open_task WHERE job_type = $1::int AND seq = $2::bigint

-- name: release_task
-- By $3, or by somebody who may take it from anybody (null).
UPDATE open_task SET assignee = NULL
WHERE job_type = $1::int AND seq = $2::bigint AND (assignee IS NULL OR $3::text IS NULL OR assignee = $3::text) RETURNING 1

-- name: inbox_is_filled
-- Whether all open tasks are listed, and whether an engine lives that does not know the list.
SELECT EXISTS (SELECT FROM setting WHERE name = 'open_tasks'), EXISTS (
  SELECT FROM engine WHERE leased_until > penstock_now() AND schema_version < 9)

-- name: parked_unlisted
-- Tokens that wait, $3 after ($1 instance, $2 token), with what makes a task of one: some are waits, or listed.
SELECT p.instance_id, p.token_id, t.seq, i.definition, t.step, t.entered_at
FROM (SELECT * FROM parked WHERE (instance_id, token_id) > ($1::bigint, $2::bigint)
      ORDER BY instance_id, token_id LIMIT $3::int) p
LEFT JOIN LATERAL (SELECT * FROM token o WHERE o.id = p.token_id AND o.state = 2 /* PARKED */ AND o.job_type IS NULL OFFSET 0) t ON true
LEFT JOIN LATERAL (SELECT definition FROM instance j WHERE j.id = p.instance_id OFFSET 0) i ON true
ORDER BY p.instance_id, p.token_id

-- name: list_open
-- As `open_tasks`, of executions that were open before the list was: those whose token nobody holds now, and how many these
-- are.
WITH free AS MATERIALIZED (
  SELECT w.* FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[], $6::smallint[], $7::timestamptz[])
    AS w(job_type, seq, token_id, instance_id, definition, step, entered_at)
  CROSS JOIN LATERAL (
    SELECT t.id FROM token t WHERE t.id = w.token_id AND t.seq = w.seq AND t.state = 2 /* PARKED */
    FOR UPDATE SKIP LOCKED) held),
listed AS (
  INSERT INTO open_task (job_type, seq, token_id, instance_id, definition, step, entered_at) SELECT * FROM free
  ON CONFLICT DO NOTHING)
SELECT count(*)::int FROM free

-- name: note_inbox_filled
INSERT INTO setting (name, value) VALUES ('open_tasks', 'listed') ON CONFLICT DO NOTHING
