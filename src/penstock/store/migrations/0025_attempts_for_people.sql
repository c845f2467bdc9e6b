-- For people: what instances were started with, and attempts with what they were given.
CREATE OR REPLACE VIEW penstock_instances AS      -- sealed variables show as {"$enc": "<key id>:…"}
SELECT to_hex(i.id) AS id, i.id AS number, d.id AS definition, d.version,
  CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED' WHEN 3 /* CANCELLED */ THEN 'CANCELLED'
    ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END AS status,
  i.business_key COLLATE "C" AS business_key, i.instance_key, i.started_at, i.ended_at,
  coalesce(i.ended_at, now()) - i.started_at AS age,
  ARRAY(SELECT penstock_step_id(d.content, t.step) FROM token t
    WHERE (t.id = i.id OR (t.instance_id = i.id AND t.id <> t.instance_id))
      AND t.state NOT IN (3 /* FORKED */, 6 /* ENDED */, 8 /* DELAYED */) ORDER BY t.seq) AS open_steps,
  i.failure, i.failure_code, to_hex(i.parent_id) AS parent, i.parent_id AS parent_number, i.started_by,
  i.vars || coalesce(i.overlay, '{}') || coalesce((
    SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
    WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}') AS variables, i.result,
  coalesce((SELECT e.before FROM variables_edit e WHERE e.instance_id = i.id ORDER BY e.pos LIMIT 1), i.vars) AS start_variables
FROM instance i JOIN definition d ON d.key = i.definition;

-- Attempts of jobs, each once, as engine/queues/attempts.py shows them: those that run, then what history has of the others.
CREATE VIEW penstock_attempts AS
SELECT to_hex(b.number) || '-' || to_hex(b.token) || '-' || to_hex(b.seq) AS job, to_hex(b.number) AS instance, b.number,
  d.id AS definition, d.version, penstock_step_id(d.content, b.step) AS step, b.attempt, 'RUNNING' AS status, b.claimed_by AS worker,
  b.claimed_at AS started_at, NULL::timestamptz AS ended_at, now() - b.claimed_at AS age, NULL::text AS reason,
  NULL::text AS error_code, b.item, n.parameters, n.parameters_bytes, n.progress, NULL::jsonb AS result
FROM penstock_branches b JOIN definition d ON d.key = b.definition
LEFT JOIN attempt_note n ON n.instance_id = b.number AND n.token_id = b.token AND n.seq = b.seq AND n.attempt = b.attempt
WHERE b.state IN (1 /* LOCKED */, 5 /* DISPATCHED */)
UNION ALL
SELECT to_hex(h.instance_id) || '-' || to_hex(h.token_id) || '-' || to_hex(h.seq), to_hex(h.instance_id), h.instance_id,
  d.id, d.version, penstock_step_id(d.content, h.step), h.attempt,
  CASE WHEN h.kind IN (1 /* COMPLETED */, 6 /* COMPENSATED */) THEN 'COMPLETED' WHEN h.kind = 3 /* SKIPPED */ THEN 'SKIPPED'
    WHEN h.kind = 11 /* ATTEMPT_EXPIRED */ THEN 'LEASE_EXPIRED' WHEN h.kind = 12 /* ATTEMPT_RELEASED */ THEN 'RELEASED'
    WHEN h.kind = 13 /* ATTEMPT_REDISPATCHED */ THEN 'REDISPATCHED' WHEN h.kind = 14 /* ATTEMPT_PARKED */ THEN 'PARKED'
    ELSE 'FAILED' END, h.worker, h.claimed_at, h.ended_at, h.ended_at - h.claimed_at, h.reason, h.error_code, h.item,
  n.parameters, n.parameters_bytes, n.progress, CASE WHEN h.kind IN (1 /* COMPLETED */, 6 /* COMPENSATED */) THEN h.output END
FROM history h JOIN instance i ON i.id = h.instance_id JOIN definition d ON d.key = coalesce((
  SELECT v.definition FROM instance_version v WHERE v.instance_id = i.id AND v.from_pos <= h.pos
  ORDER BY v.from_pos DESC LIMIT 1), i.definition)
LEFT JOIN attempt_note n ON n.instance_id = h.instance_id AND n.token_id = h.token_id AND n.seq = h.seq AND n.attempt = h.attempt
WHERE h.attempt > 0 AND h.kind <> 15 /* JOB_SIGNALLED */
  AND NOT EXISTS (                     -- a result after the lease tells more; what closed the step from elsewhere, less
    SELECT FROM history o WHERE o.instance_id = h.instance_id AND o.token_id = h.token_id AND o.seq = h.seq
      AND o.attempt = h.attempt AND o.kind <> 15 /* JOB_SIGNALLED */
      AND CASE WHEN h.kind IN (3 /* SKIPPED */, 4 /* INTERRUPTED */)
        THEN o.pos < h.pos OR o.kind NOT IN (3 /* SKIPPED */, 4 /* INTERRUPTED */)
        ELSE o.pos > h.pos AND o.kind NOT IN (3 /* SKIPPED */, 4 /* INTERRUPTED */) END)
  AND NOT EXISTS (                     -- its worker has come back, and has the job again
    SELECT FROM token t WHERE t.id = h.token_id AND t.instance_id = h.instance_id AND t.seq = h.seq
      AND t.attempt = h.attempt AND t.state IN (1 /* LOCKED */, 5 /* DISPATCHED */));
