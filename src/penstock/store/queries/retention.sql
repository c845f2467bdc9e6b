-- Partitions of history, journal and audit, and the end of what is older than the retention. All of it in transactions of their
-- own, one engine at a time, with a short lock_timeout: whoever serves jobs never waits long behind these.

-- name: short_locks
SET LOCAL lock_timeout = '500ms'

-- name: retention_turn
-- Whether it is this transaction's turn; another engine has it otherwise. 1885697139 is 'pens'.
SELECT pg_try_advisory_xact_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -2)

-- name: wait_for_retention_turn
-- Until it is, for as long as a lock may take. Engines that start at once wait for each other's partitions.
SELECT pg_advisory_xact_lock(coalesce(nullif(current_setting('penstock.lock_class', true), '')::int, 1885697139), -2)

-- name: partitions_wanted
-- The ranges that are missing so that $1 days each cover now and the two ranges after it, for each parent. They begin
-- where the last one ends, so that the number of days may change; without one, at a multiple of it. Last whether rows may come
-- into the range by now, or soon, and lie in the default partition meanwhile.
WITH period AS (SELECT $1::float8 * interval '1 day' AS length),
base AS (
  SELECT p.parent, length, greatest(
    (SELECT max(l.until) FROM log_partition l WHERE l.parent = p.parent),
    date_bin(length, penstock_now(), timestamptz '2025-01-01 00:00:00Z')) AS since
  FROM (VALUES ('history'), ('audit'), ('journal')) AS p(parent), period)
SELECT parent, since + n * length, since + (n + 1) * length, since + n * length <= penstock_now() + length
FROM base, generate_series(0, 2) AS n WHERE since + n * length <= penstock_now() + 2 * length
ORDER BY 1, 2

-- name: hold_history
-- Nobody writes until the transaction ends. Who has chosen the default partition already would write what is not its any more.
LOCK TABLE ONLY history IN SHARE ROW EXCLUSIVE MODE

-- name: hold_journal
LOCK TABLE ONLY journal IN SHARE ROW EXCLUSIVE MODE

-- name: hold_audit
LOCK TABLE ONLY audit IN SHARE ROW EXCLUSIVE MODE

-- name: add_partition
SELECT add_log_partition($1::text, $2::timestamptz, $3::timestamptz)

-- name: partitions_over
-- Partitions of $1 whose whole range is older than $2 days.
SELECT name, since, until, moved_at IS NOT NULL FROM log_partition
WHERE parent = $1::text AND until <= penstock_now() - $2::float8 * interval '1 day' ORDER BY since

-- name: drop_partition
-- Nothing where an instance that started in its range is there: it needs its history and journal.
SELECT drop_log_partition(p.name) FROM log_partition p WHERE p.name = $1::text AND (p.parent = 'audit' OR NOT EXISTS (
  SELECT FROM instance i WHERE i.id >= first_instance_id(p.since) AND i.id < first_instance_id(p.until)))

-- name: retired_instances
-- Instances started in [$1, $2) with an id above $3 that ended more than $4 days ago; $5 at most. What was called stays as
-- long as the first instance of its tree. Those for which $6 has `version status` have so many days. xmin is of the row's
-- last change: what a retry, an edit or a migration writes has another.
SELECT id, xmin::text::bigint FROM instance WHERE id >= first_instance_id($1::timestamptz) AND id < first_instance_id($2::timestamptz)
  AND id > $3::bigint AND status <> 0 /* ACTIVE */ AND ended_at < penstock_now() - coalesce(
    ($6::jsonb ->> (definition::text || ' ' || status::text))::float8, $4::float8) * interval '1 day'
  AND NOT EXISTS (SELECT FROM called c JOIN instance r ON r.id = c.root WHERE c.id = instance.id)
ORDER BY id LIMIT $5::int

-- name: walk_version
-- The next $5 instances of the version $1 with an id above $2 that started more than $3 days ago, and whether each is due:
-- it ended more than $4[status] days ago. What was called stays as long as the first instance of its tree.
SELECT i.id, i.xmin::text::bigint, i.ended_at IS NOT NULL AND i.ended_at < penstock_now() - ($4::float8[])[i.status] * interval '1 day'
  AND NOT EXISTS (SELECT FROM called c JOIN instance r ON r.id = c.root WHERE c.id = i.id)
FROM instance i WHERE (i.definition, i.id) > ($1::int, $2::bigint)
  AND (i.definition, i.id) < ($1, first_instance_id(penstock_now() - $3::float8 * interval '1 day'))
ORDER BY i.definition, i.id LIMIT $5::int

-- name: versions_kept
SELECT key, id FROM definition

-- name: remove_history
-- Of instances that go before their partition, between the least and the greatest of them; how many rows.
WITH gone AS (DELETE FROM history WHERE instance_id = ANY($1::bigint[]) AND instance_id BETWEEN $2::bigint AND $3::bigint RETURNING 1)
SELECT count(*) FROM gone

-- name: remove_own_journals
DELETE FROM journal WHERE instance_id = ANY($1::bigint[]) AND instance_id BETWEEN $2::bigint AND $3::bigint

-- name: kept_rows
-- Whether more than $3 rows of history are of instances that started in [$1, $2) and are there.
SELECT count(*) > $3::bigint FROM (
  SELECT FROM instance i CROSS JOIN LATERAL (SELECT FROM history h WHERE h.instance_id = i.id OFFSET 0) h
  WHERE i.id >= first_instance_id($1::timestamptz) AND i.id < first_instance_id($2::timestamptz) LIMIT $3::bigint + 1) AS rows

-- name: move_kept
SELECT move_kept_history($1::text)

-- name: remove_lost_traces
-- Of starts that never came to be in [$1, $2).
DELETE FROM trace_context t WHERE t.instance_id >= first_instance_id($1::timestamptz)
  AND t.instance_id < first_instance_id($2::timestamptz) AND NOT EXISTS (SELECT FROM instance i WHERE i.id = t.instance_id)

-- name: lock_abnormal_ends
-- First of all: a retry takes these rows before it reopens an instance, so that either it or this comes too late.
SELECT FROM abnormal_end WHERE instance_id = ANY($1::bigint[]) ORDER BY status, instance_id FOR UPDATE

-- name: remove_instances
-- Those of $1 whose last change is still that of $2.
DELETE FROM instance i USING unnest($1::bigint[], $2::bigint[]) AS selected(id, changed)
WHERE i.id = selected.id AND i.xmin::text::bigint = selected.changed AND i.status <> 0 /* ACTIVE */ RETURNING i.id

-- name: remove_abnormal_ends
DELETE FROM abnormal_end WHERE instance_id = ANY($1::bigint[])

-- name: remove_signals
-- Those that failed instances kept for their retry.
DELETE FROM buffered_signal WHERE instance_id = ANY($1::bigint[])

-- name: remove_signal_ids
DELETE FROM signal_id WHERE instance_id = ANY($1::bigint[])

-- name: remove_journals
-- Of what is in no partition that will be dropped.
DELETE FROM journal_other WHERE instance_id = ANY($1::bigint[])

-- name: remove_orphaned_journals
-- The journals of at most $3 instances that started in [$1, $2) and are removed, where others keep the partition. It walks
-- from instance to instance by the key, so that those that are left cost a step each.
WITH RECURSIVE walk AS (
  (SELECT j.instance_id FROM journal j
   WHERE j.instance_id >= first_instance_id($1::timestamptz) AND j.instance_id < first_instance_id($2::timestamptz)
   ORDER BY j.instance_id LIMIT 1)
  UNION ALL
  SELECT (
    SELECT j.instance_id FROM journal j
    WHERE j.instance_id > w.instance_id AND j.instance_id < first_instance_id($2::timestamptz)
    ORDER BY j.instance_id LIMIT 1)
  FROM walk w WHERE w.instance_id IS NOT NULL),
orphaned AS MATERIALIZED (
  SELECT w.instance_id FROM walk w
  WHERE w.instance_id IS NOT NULL AND NOT EXISTS (SELECT FROM instance i WHERE i.id = w.instance_id) LIMIT $3::int),
removed AS (DELETE FROM journal j WHERE j.instance_id = ANY(ARRAY(SELECT instance_id FROM orphaned)))
SELECT count(*) FROM orphaned

-- name: remove_called
DELETE FROM called WHERE id = ANY($1::bigint[])

-- name: remove_search_attributes
DELETE FROM search_attribute WHERE instance_id = ANY($1::bigint[])

-- name: remove_compensations
DELETE FROM compensation WHERE instance_id = ANY($1::bigint[])

-- name: remove_item_outputs
DELETE FROM item_output WHERE instance_id = ANY($1::bigint[])

-- name: remove_undoing
DELETE FROM undoing WHERE instance_id = ANY($1::bigint[])

-- name: remove_scheduled
DELETE FROM scheduled WHERE instance_id = ANY($1::bigint[])

-- name: remove_traces
DELETE FROM trace_context WHERE instance_id = ANY($1::bigint[])

-- name: remove_edits
DELETE FROM variables_edit WHERE instance_id = ANY($1::bigint[])

-- name: remove_instance_keys
DELETE FROM instance_key WHERE instance_id = ANY($1::bigint[])

-- name: instances_left
-- How many instances (at most 1,000) started in [$1, $2) are still there, and the oldest one.
SELECT count(*), min(id) FROM (
  SELECT id FROM instance WHERE id >= first_instance_id($1::timestamptz) AND id < first_instance_id($2::timestamptz)
  ORDER BY id LIMIT 1000) AS some_left
