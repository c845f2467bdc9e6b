"""What must be true of a whole database at any moment: the guarantees that can be read off its rows.

Each entry of `INVARIANTS` is one query that finds what breaks a rule. Written from the rules (docs/guarantees.md) and
not from the code that keeps them. Reads only; takes a snapshot, so it may run while engines work. Costs a walk over
every table: for tests, and for databases that are suspected.
"""

from __future__ import annotations

from typing import Final

import msgspec
import psycopg

# Numbers of states and kinds: core/rules/state.py. (0, 1, 2, 4, 5, 7) are the states with an open step execution.
INVARIANTS: Final[dict[str, str]] = {
    "a job waits in the queue or in the outbox, not in both, if its token is READY": """
        SELECT t.instance_id, t.id, t.seq, r.seq, o.attempt FROM token t LEFT JOIN waiting r
          ON (r.job_type, r.priority, r.seq, r.token_id) = (t.job_type, t.priority, coalesce(t.queued, t.seq), t.id)
            AND r.flow_key IS NOT DISTINCT FROM t.flow_key
        LEFT JOIN (SELECT DISTINCT token_id, seq, attempt, job_type FROM dispatch_outbox) o
          ON o.token_id = t.id AND o.seq = t.seq AND o.attempt = t.attempt + 1 AND o.job_type = t.job_type
        WHERE t.state = 0 AND (r.token_id IS NULL) = (o.token_id IS NULL)""",
    "a row of the queue is a job that waits, or one that was queued again and then taken unseen": """
        SELECT r.token_id, r.seq, t.state, t.seq, t.queued FROM waiting r LEFT JOIN token t ON t.id = r.token_id
        WHERE (t.state, t.job_type, t.priority, coalesce(t.queued, t.seq), t.flow_key)
            IS DISTINCT FROM (0::smallint, r.job_type, r.priority, r.seq, r.flow_key)
          AND (r.seq = t.seq OR EXISTS (
            SELECT FROM history h WHERE h.token_id = r.token_id AND h.seq = r.seq))""",
    "what a limit counts are the attempts that took it, and no others": """
        SELECT * FROM (
          SELECT held / 4 AS queue, '' AS flow_key, count(*) AS running FROM token WHERE held & 1 = 1 GROUP BY 1, 2
          UNION ALL
          SELECT held / 4, flow_key, count(*) FROM token WHERE held & 2 = 2 GROUP BY 1, 2) t
        FULL JOIN slot s USING (queue, flow_key) WHERE coalesce(t.running, 0) <> coalesce(s.running, 0)""",
    "what a queue counts as open runs are open runs": """
        SELECT * FROM (SELECT run_queue AS queue, count(*) AS n FROM token WHERE run_queue IS NOT NULL GROUP BY 1) t
        FULL JOIN (SELECT queue, open_runs AS n FROM slot WHERE open_runs <> 0) s USING (queue)
        WHERE coalesce(t.n, 0) <> coalesce(s.n, 0)""",
    "runs go first if, and only if, their queue counts them": """
        SELECT instance_id, id, priority, run_queue FROM token WHERE (priority < 0) <> (run_queue IS NOT NULL)""",
    "slots are held by attempts that are under way": """
        SELECT instance_id, id, state, held FROM token WHERE held IS NOT NULL AND state NOT IN (1, 5)
          AND NOT (state = 2 AND claimed_by IS NOT NULL)""",
    "the tokens that wait for a person or a signal, and those of blocked runs, are listed, and no others": """
        SELECT t.instance_id, t.id, t.state, p.instance_id, p.token_id
        FROM (SELECT * FROM token WHERE state = 2 OR id IN (SELECT instance_id FROM blocked_run)) t
        FULL JOIN parked p ON (p.instance_id, p.token_id) = (t.instance_id, t.id)
        WHERE t.id IS NULL OR p.token_id IS NULL""",
    "runs that are listed as blocked are open, and their last attempt was blocked": """
        SELECT b.instance_id, t.state, t.failures FROM blocked_run b LEFT JOIN token t ON t.id = b.instance_id
        WHERE t.failures IS NULL OR t.failures = 0 OR t.state = 2""",
    "the user tasks that are open stand in the inbox, and no others": """
        SELECT t.id, t.seq, o.token_id, o.seq FROM (
          SELECT t.* FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
          WHERE t.state = 2 AND s.type = 'USER_TASK' AND NOT s.code) t
        FULL JOIN open_task o ON (o.token_id, o.seq, o.instance_id, o.step, o.entered_at)
          = (t.id, t.seq, t.instance_id, t.step, t.entered_at)
        WHERE (t.id IS NULL OR o.seq IS NULL) AND EXISTS (SELECT FROM setting WHERE name = 'open_tasks')""",
    "a task stands in the inbox under its job type": """
        SELECT o.token_id, o.seq, j.name, s.step ->> 'jobType' FROM open_task o
        JOIN steps s ON s.key = o.definition AND s.index = o.step LEFT JOIN job_type j ON j.id = o.job_type
        WHERE j.name IS DISTINCT FROM coalesce(nullif(s.step ->> 'jobType', ''), s.step ->> 'id')""",
    "a dispatched job has an attempt and a deadline, and no holder": """
        SELECT instance_id, id, seq, attempt, claimed_by FROM token
        WHERE state = 5 AND (attempt < 1 OR lease_until IS NULL OR claimed_at IS NULL OR claimed_by IS NOT NULL)""",
    "tokens with a job have the job type of their step, others none": """
        SELECT t.instance_id, t.id, t.state, j.name, s.step ->> 'jobType' FROM token t
        JOIN steps s ON s.key = t.definition AND s.index = t.step LEFT JOIN job_type j ON j.id = t.job_type
        WHERE (t.state IN (0, 1, 4, 5) OR s.code AND t.state = 2) IS DISTINCT FROM (t.job_type IS NOT NULL)
           OR (t.job_type IS NOT NULL AND j.name IS DISTINCT FROM s.step ->> 'jobType')""",
    "a token's state fits the type of its step": """
        SELECT t.instance_id, t.id, t.state, s.type FROM token t
        JOIN steps s ON s.key = t.definition AND s.index = t.step
        WHERE t.state NOT IN (6, 8)
          AND NOT (t.state = 3 AND s.step ? 'forEach' AND t.item IS NULL)
          AND s.type <> ALL (CASE t.state WHEN 2 THEN '{USER_TASK,WAIT,SERVICE_TASK}'::text[]
          WHEN 3 THEN '{PARALLEL_GATEWAY,COMPENSATE}' WHEN 7 THEN '{CALL_ACTIVITY}' ELSE '{SERVICE_TASK}' END)""",
    "an instance is active if, and only if, it has its root token": """
        SELECT i.id, i.status, t.id FROM instance i
        FULL JOIN (SELECT id FROM token WHERE id = instance_id) t ON t.id = i.id
        WHERE (i.status = 0) IS DISTINCT FROM (t.id IS NOT NULL)""",
    "every token belongs to an active instance": """
        SELECT t.instance_id, t.id FROM token t LEFT JOIN instance i ON i.id = t.instance_id
        WHERE i.status IS DISTINCT FROM 0""",
    "instances of definitions with a single token have one": """
        SELECT t.instance_id, count(*) FROM token t JOIN definitions d ON d.key = t.definition
        WHERE d.single_token GROUP BY 1 HAVING count(*) > 1""",
    "timers belong to open step executions": """
        SELECT m.instance_id, m.token_id, m.seq, m.index FROM timer m
        LEFT JOIN token t ON t.id = m.token_id AND t.seq = m.seq AND t.instance_id = m.instance_id
          AND t.state IN (0, 1, 2, 3, 4, 5, 7, 8)
        WHERE t.id IS NULL AND m.index NOT IN (-4, -5, -7, -12, -13, -17)""",
    "a retry timer is armed if, and only if, its job is in back-off": """
        SELECT t.instance_id, t.id, t.state FROM token t
        LEFT JOIN timer m ON m.token_id = t.id AND m.seq = t.seq AND m.index = -1
        WHERE (t.state = 4) IS DISTINCT FROM (m.token_id IS NOT NULL)""",
    "a root token that waits for the time of its start has its timer, and nothing else has one": """
        SELECT t.instance_id, t.id, t.state FROM token t
        LEFT JOIN timer m ON m.token_id = t.id AND m.seq = t.seq AND m.index = -6
        WHERE (t.state = 8) IS DISTINCT FROM (m.token_id IS NOT NULL) OR t.state = 8 AND t.id <> t.instance_id
        UNION ALL
        SELECT h.instance_id, h.token_id, 8 FROM history h JOIN token t ON t.id = h.instance_id WHERE t.state = 8""",
    "what is put off for others with its key is one instance that has not begun, or has": """
        SELECT w.definition_id, w.key, w.instance_id FROM start_window w JOIN instance i ON i.id = w.instance_id
        JOIN definition d ON d.key = i.definition WHERE w.kind <> 2 AND d.id <> w.definition_id""",
    "a wait with an end of its own has its timer, nothing else has one": """
        SELECT t.instance_id, t.id, s.step ->> 'id' FROM token t
        JOIN steps s ON s.key = t.definition AND s.index = t.step
        LEFT JOIN timer m ON m.token_id = t.id AND m.seq = t.seq AND m.index = -2
        WHERE (t.state = 2 AND s.type = 'WAIT' AND coalesce(s.step ->> 'duration', s.step ->> 'until', '') <> '')
          IS DISTINCT FROM (m.token_id IS NOT NULL) AND NOT (s.type = 'SERVICE_TASK' AND t.state = 2)""",
    "a parked job waits for something, and nothing else waits as it does": """
        SELECT t.instance_id, t.id, t.state, t.waits_for FROM token t
        JOIN steps s ON s.key = t.definition AND s.index = t.step AND NOT s.code
        LEFT JOIN timer m ON m.token_id = t.id AND m.seq = t.seq AND m.index IN (-2, -9)
        WHERE t.state = 2 AND s.type = 'SERVICE_TASK' AND t.waits_for IS NULL AND m.token_id IS NULL
           OR t.waits_for IS NOT NULL AND (t.state <> 2 OR s.type <> 'SERVICE_TASK')""",
    "what a worker's own transaction completed is about to be taken up, and nothing else is": """
        SELECT t.instance_id, t.id, t.state, t.attempt, t.claimed_by FROM token t
        LEFT JOIN timer m ON m.token_id = t.id AND m.seq = t.seq AND m.index = -9
        WHERE (t.state = 2 AND t.claimed_by IS NOT NULL) IS DISTINCT FROM (m.token_id IS NOT NULL)
          OR t.state = 2 AND t.claimed_by IS NOT NULL AND t.attempt < 1
        UNION ALL
        SELECT r.instance_id, r.token_id, NULL, NULL, NULL FROM recorded_output r WHERE NOT EXISTS (
          SELECT FROM token t
          WHERE t.id = r.token_id AND t.seq = r.seq AND t.state = 2 AND t.claimed_by IS NOT NULL)""",
    "an open wait for which signals are kept goes on by itself": """
        SELECT t.instance_id, t.id FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
        WHERE t.state = 2 AND s.type = 'WAIT' AND EXISTS (
          SELECT FROM buffered_signal b WHERE b.instance_id = t.instance_id AND b.step = t.step)
        AND NOT EXISTS (SELECT FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq AND m.index = -3)""",
    "a wait for a message waits for one while it is open, and nothing else does": """
        SELECT t.instance_id, t.id, t.seq, u.instance_id, u.token_id, u.seq FROM (
          SELECT t.* FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
          WHERE t.state = 2 AND s.type = 'WAIT' AND jsonb_typeof(s.step -> 'message') = 'object') t
        FULL JOIN subscription u ON (u.token_id, u.seq, u.instance_id) = (t.id, t.seq, t.instance_id)
        WHERE t.id IS NULL OR u.token_id IS NULL""",
    "no message is kept while a wait for it has none": """
        SELECT m.id, u.token_id FROM message m JOIN subscription u ON (u.name, u.key) = (m.name, m.key)
        WHERE NOT m.taken AND m.expires_at > penstock_now() AND u.message IS NULL""",
    "a wait that has a message is about to receive it": """
        SELECT u.token_id, u.seq, u.message FROM subscription u WHERE u.message IS NOT NULL
          AND (NOT EXISTS (SELECT FROM message m WHERE m.id = u.message AND m.taken)
            OR NOT EXISTS (SELECT FROM timer m WHERE m.token_id = u.token_id AND m.seq = u.seq AND m.index = -8))""",
    "a message is for one wait, or for all that it found": """
        SELECT m.id, m.taken, count(u.token_id) FROM message m LEFT JOIN subscription u ON u.message = m.id
        GROUP BY m.id, m.taken, m.for_all HAVING m.taken IS DISTINCT FROM (count(u.token_id) > 0)
          OR count(u.token_id) > 1 AND NOT m.for_all""",
    "the interrupting timers of an open step are armed": """
        SELECT t.instance_id, t.id, b.index FROM token t
        JOIN steps s ON s.key = t.definition AND s.index = t.step
        CROSS JOIN LATERAL (SELECT ordinality - 1 AS index, e FROM jsonb_array_elements(
          CASE jsonb_typeof(s.step -> 'boundaryEvents') WHEN 'array' THEN s.step -> 'boundaryEvents' ELSE '[]' END)
          WITH ORDINALITY AS x(e, ordinality)) b
        WHERE t.state IN (0, 1, 2, 3, 4, 5, 7) AND b.e -> 'interrupting' = 'true' AND t.item IS NULL
          AND NOT EXISTS (SELECT FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq AND m.index = b.index)""",
    "a boundary timer is one of its step's": """
        SELECT m.instance_id, m.token_id, m.index FROM timer m JOIN token t ON t.id = m.token_id
        JOIN steps s ON s.key = t.definition AND s.index = t.step
        WHERE m.index >= 0 AND s.step -> 'boundaryEvents' -> m.index IS NULL""",
    "a gateway waits for exactly the branches that are under way, a forEach for its items and those still to begin": """
        SELECT t.instance_id, t.id, t.pending, count(b.id) FROM token t LEFT JOIN token b ON b.parent_id = t.id
        JOIN steps s ON s.key = t.definition AND s.index = t.step
        GROUP BY t.instance_id, t.id, t.pending, t.arrived, t.state, s.step
        HAVING t.pending <> count(b.id) + CASE WHEN t.state = 3 AND s.step ? 'forEach' THEN t.arrived ELSE 0 END""",
    "of a forEach that is under way, and of no other, is kept how far it is": """
        SELECT t.instance_id, t.id, m.token_id FROM (
          SELECT t.* FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
          WHERE t.state = 3 AND s.step ? 'forEach') t
        FULL JOIN map_state m ON m.instance_id = t.instance_id AND m.token_id = t.id
        WHERE (t.id IS NULL OR m.token_id IS NULL) AND NOT EXISTS (
          SELECT FROM instance i WHERE i.id = m.instance_id AND i.status = 2)""",
    "a token is for an item if, and only if, its parent is a forEach's; its item has begun and is no other one's": """
        SELECT t.instance_id, t.id, t.item, m.next FROM token t
        LEFT JOIN map_state m ON m.instance_id = t.instance_id AND m.token_id = t.parent_id
        WHERE (t.item IS NULL) IS DISTINCT FROM (m.token_id IS NULL) OR t.item >= m.next OR EXISTS (
          SELECT FROM token o WHERE o.parent_id = t.parent_id AND o.item = t.item AND o.id <> t.id)""",
    "the items of a forEach have variables, each once": """
        SELECT m.instance_id, m.token_id, m.total, count(v.item) FROM map_state m
        LEFT JOIN item_vars v ON v.instance_id = m.instance_id AND v.token_id = m.token_id AND v.item < m.total
        GROUP BY m.instance_id, m.token_id HAVING count(v.item) <> m.total
        UNION ALL
        SELECT v.instance_id, v.token_id, NULL, v.item FROM item_vars v
        WHERE NOT EXISTS (SELECT FROM map_state m WHERE m.instance_id = v.instance_id AND m.token_id = v.token_id)""",
    "what is collected is of items that are done, and of all of them": """
        SELECT m.instance_id, m.token_id, m.next, r.count, open.count FROM map_state m
        JOIN instance i ON i.id = m.instance_id AND i.status = 0 JOIN token t ON t.id = m.token_id
        JOIN steps s ON s.key = i.definition AND s.index = t.step
        CROSS JOIN LATERAL (SELECT count(*) FROM token o WHERE o.parent_id = m.token_id) open
        CROSS JOIN LATERAL (SELECT count(*) FROM map_result r
          WHERE r.instance_id = m.instance_id AND r.token_id = m.token_id AND r.item < m.next
            AND NOT EXISTS (SELECT FROM token o WHERE o.parent_id = m.token_id AND o.item = r.item)) r
        WHERE s.step -> 'forEach' ? 'collect' AND r.count <> m.next - open.count
        UNION ALL
        SELECT r.instance_id, r.token_id, r.item, NULL, NULL FROM map_result r
        WHERE NOT EXISTS (SELECT FROM map_state m WHERE m.instance_id = r.instance_id AND m.token_id = r.token_id)""",
    "a branch and its gateway are in one instance": """
        SELECT b.instance_id, b.id, b.parent_id FROM token b LEFT JOIN token g ON g.id = b.parent_id
        WHERE b.parent_id IS NOT NULL
          AND (g.id IS NULL OR g.state <> 3 OR g.instance_id <> b.instance_id OR b.id = b.instance_id)""",
    "a step execution is closed once": """
        SELECT instance_id, token_id, seq, count(*), array_agg(kind) FROM history
        WHERE kind < 10 GROUP BY 1, 2, 3 HAVING count(*) > 1""",
    "an open step execution has no closing row": """
        SELECT t.instance_id, t.id, t.seq FROM token t JOIN history h
          ON h.instance_id = t.instance_id AND h.token_id = t.id AND h.seq = t.seq AND h.kind < 10
        WHERE t.state IN (0, 1, 2, 4, 5, 7)""",
    "a step execution that had an attempt is open, or was closed": """
        SELECT h.instance_id, h.token_id, h.seq FROM history h WHERE h.kind >= 10
          AND NOT EXISTS (SELECT FROM history c
            WHERE c.instance_id = h.instance_id AND c.token_id = h.token_id AND c.seq = h.seq AND c.kind < 10)
          AND NOT EXISTS (
            SELECT FROM token t WHERE t.id = h.token_id AND t.seq = h.seq AND t.state IN (0, 1, 2, 4, 5, 7))""",
    "a completed job had an attempt and a worker": """
        SELECT h.instance_id, h.token_id, h.seq, h.attempt, h.worker FROM history h
        JOIN instance i ON i.id = h.instance_id
        JOIN steps s ON s.key = definition_at(i.id, h.pos, i.definition) AND s.index = h.step
        WHERE h.kind IN (1, 6) AND s.type = 'SERVICE_TASK' AND (NOT s.step ? 'forEach' OR h.item IS NOT NULL)
          AND (h.attempt < 1 OR h.worker IS NULL)""",
    "time does not run backwards within a step execution": """
        SELECT instance_id, token_id, seq, started_at, ended_at FROM history WHERE ended_at < started_at""",
    "no two step executions have the same place in the order": """
        SELECT instance_id, seq, array_agg(DISTINCT token_id) FROM (
          SELECT instance_id, seq, token_id FROM history UNION SELECT instance_id, seq, id FROM token) x
        GROUP BY 1, 2 HAVING count(DISTINCT token_id) > 1""",
    "variable deltas come after the step that gave them was entered": """
        SELECT instance_id, token_id, seq, pos FROM history WHERE output IS NOT NULL AND pos <= seq""",
    "a completed instance reached END": """
        SELECT i.id FROM instance i WHERE i.status = 1 AND NOT EXISTS (
          SELECT FROM history h
          JOIN steps s ON s.key = definition_at(i.id, h.pos, i.definition) AND s.index IN (h.step, h.end_step)
          WHERE h.instance_id = i.id AND h.kind = 1 AND s.type = 'END')""",
    "an active instance has not reached END, unless it was retried after a missing next workflow": """
        SELECT i.id FROM instance i JOIN definitions d ON d.key = i.definition
        WHERE i.status = 0 AND NOT d.chains AND EXISTS (
          SELECT FROM history h
          JOIN steps s ON s.key = definition_at(i.id, h.pos, i.definition) AND s.index IN (h.step, h.end_step)
          WHERE h.instance_id = i.id AND h.kind = 1 AND s.type = 'END')""",
    "a failed instance has a reason": "SELECT id FROM instance WHERE status = 2 AND failure IS NULL",
    "a failed instance has a failed step, a done one that can't be left, no next workflow, or was undone": """
        SELECT i.id, i.failure FROM instance i JOIN definitions d ON d.key = i.definition
        WHERE i.status = 2
          AND NOT (d.chains AND i.failure ~ '^(NextWorkflowNotFound|WrongArguments|too many workflows)')
          AND NOT EXISTS (
          SELECT FROM history h WHERE h.instance_id = i.id AND h.kind = 2 AND h.reason = i.failure)
          AND NOT EXISTS (
          SELECT FROM abnormal_end e CROSS JOIN LATERAL jsonb_array_elements(e.tokens) AS t
          JOIN history h ON h.instance_id = i.id AND h.token_id = (t ->> 'id')::bigint AND h.seq = (t ->> 'seq')::bigint
          WHERE e.status = 2 AND e.instance_id = i.id AND h.kind IN (1, 3) AND (t ->> 'leaving')::boolean)
          AND NOT EXISTS (SELECT FROM undoing u WHERE u.instance_id = i.id AND u.failure = i.failure)""",
    "failed and cancelled instances are listed, and no others": """
        SELECT i.id, i.status, e.status FROM instance i FULL JOIN abnormal_end e ON e.instance_id = i.id
        WHERE (i.status IN (2, 3)) IS DISTINCT FROM (e.instance_id IS NOT NULL)
           OR e.status <> i.status
           OR e.status = 2 AND e.tokens IS NULL AND NOT EXISTS (SELECT FROM undoing u WHERE u.instance_id = i.id)""",
    "handlers undo completed executions of their steps, each at most once": """
        SELECT c.instance_id, c.pos, c.token_id, h.kind, h.step FROM compensation c
        LEFT JOIN history h ON h.instance_id = c.instance_id AND h.pos = c.pos
        LEFT JOIN instance i ON i.id = c.instance_id
        LEFT JOIN steps s ON s.key = i.definition AND s.index = step_now(i.id, h.pos, h.step)
        WHERE h.kind IS DISTINCT FROM 1 OR s.step -> 'compensation' IS NULL
          OR (h.item IS NOT NULL) IS DISTINCT FROM s.step ? 'forEach'
        UNION ALL
        SELECT h.instance_id, h.pos, h.token_id, h.kind, h.step FROM history h JOIN instance i ON i.id = h.instance_id
        JOIN steps s ON s.key = i.definition AND s.index = step_now(i.id, h.pos, h.step)
        LEFT JOIN compensation c ON c.token_id = h.token_id
        LEFT JOIN history o ON o.instance_id = h.instance_id AND o.pos = c.pos
        WHERE h.kind = 6 AND (s.step -> 'compensates')::int IS DISTINCT FROM step_now(i.id, o.pos, o.step)
        UNION ALL
        SELECT h.instance_id, count(*), h.token_id, 6, max(h.step) FROM history h WHERE h.kind = 6
        GROUP BY 1, 3 HAVING count(*) > 1""",
    "an open handler has something to undo, and no other token has": """
        SELECT t.instance_id, t.id, s.step, c.pos FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
        LEFT JOIN compensation c ON c.token_id = t.id
        WHERE (s.step -> 'compensates' IS NOT NULL) IS DISTINCT FROM (c.pos IS NOT NULL)""",
    "handlers of one COMPENSATE come one after the other": """
        SELECT t.instance_id, t.id, t.pending FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
        WHERE t.state = 3 AND s.type = 'COMPENSATE' AND t.pending <> 1""",
    "an open instance that is being undone has its root token there, and it is known how it will end": """
        SELECT i.id, t.id, u.status FROM (SELECT * FROM instance WHERE status = 0) i
        LEFT JOIN (SELECT t.* FROM token t JOIN steps s ON s.key = t.definition AND s.index = t.step
          WHERE t.state = 3 AND s.step ->> 'id' = '/compensation') t ON t.instance_id = i.id
        LEFT JOIN undoing u ON u.instance_id = i.id
        WHERE (t.id IS NULL) IS DISTINCT FROM (u.status IS NULL)""",
    "an instance key is held by the instance that was started with it, while that is active or if it keeps it": """
        SELECT i.id, i.instance_key, k.key FROM instance i FULL JOIN instance_key k ON k.instance_id = i.id
        WHERE (CASE WHEN i.status = 0 OR k.kept THEN i.instance_key END) IS DISTINCT FROM k.key""",
    "ids of signals are remembered for instances that are there": """
        SELECT s.instance_id, s.id FROM signal_id s LEFT JOIN instance i ON i.id = s.instance_id WHERE i.id IS NULL""",
    "notes of heartbeats belong to tokens": """
        SELECT n.token_id FROM job_note n LEFT JOIN token t ON t.id = n.token_id WHERE t.id IS NULL""",
    "signals are kept only for instances that can go on": """
        SELECT b.instance_id, b.id FROM buffered_signal b LEFT JOIN instance i ON i.id = b.instance_id
        WHERE i.status IS NULL OR i.status IN (1, 3)""",
    "what waits for Kafka is the next attempt of a job, the one under way, or void": """
        SELECT o.instance_id, o.id, o.attempt, t.attempt FROM dispatch_outbox o
        JOIN token t ON t.id = o.token_id AND t.seq = o.seq
        WHERE o.attempt > t.attempt + 1 OR o.attempt < 1 OR o.instance_id <> t.instance_id
          OR o.job_type <> t.job_type AND (t.migrated IS NULL OR o.attempt > t.attempt)
        UNION ALL
        SELECT o.instance_id, o.id, o.attempt, NULL FROM dispatch_outbox o
        WHERE NOT EXISTS (SELECT FROM instance i WHERE i.id = o.instance_id)""",
    "a chained instance has a parent that completed, a parent one child": """
        SELECT c.parent_id, array_agg(c.id), p.status FROM instance c LEFT JOIN instance p ON p.id = c.parent_id
        WHERE c.parent_id IS NOT NULL AND NOT EXISTS (SELECT FROM called x WHERE x.id = c.id)
        GROUP BY c.parent_id, p.status
        HAVING count(*) > 1 OR p.status IS DISTINCT FROM 1""",
    "an instance that completed started its next workflow": """
        SELECT i.id FROM instance i JOIN definitions d ON d.key = i.definition
        WHERE i.status = 1 AND d.chains AND NOT EXISTS (
          SELECT FROM instance c WHERE c.parent_id = i.id AND NOT EXISTS (SELECT FROM called x WHERE x.id = c.id))""",
    "a call waits for an instance that is open, or is told of its end, or has still to start it or let it go on": """
        SELECT t.instance_id, t.id, t.seq FROM token t
        LEFT JOIN called c ON c.token_id = t.id AND c.seq = t.seq LEFT JOIN instance i ON i.id = c.id
        WHERE t.state = 7 AND i.status IS DISTINCT FROM 0
          AND NOT EXISTS (SELECT FROM timer m WHERE m.token_id = t.id AND m.seq = t.seq AND m.index IN (-3, -4))
          AND NOT EXISTS (SELECT FROM timer m WHERE m.token_id = c.id AND m.seq = c.seq AND m.index = -7)""",
    "an open instance that was called is waited for, or is about to be cancelled": """
        SELECT c.id, c.token_id, c.seq FROM called c JOIN instance i ON i.id = c.id
        WHERE i.status = 0
          AND NOT EXISTS (SELECT FROM token t WHERE t.id = c.token_id
            AND (c.path IS NOT NULL OR t.seq = c.seq AND t.state = 7))
          AND NOT EXISTS (SELECT FROM timer m WHERE m.token_id = c.id AND m.seq = c.seq AND m.index = -5)
          AND NOT EXISTS (SELECT FROM journal j WHERE j.instance_id = c.id AND j.kind = 7 /* CANCEL */)""",
    "an end that a durable run waits for is in its journal, or about to be": """
        SELECT c.id, c.caller, c.path FROM called c JOIN instance i ON i.id = c.id JOIN token t ON t.id = c.caller
        WHERE c.path IS NOT NULL AND i.status <> 0 AND c.seq > t.seq
          AND c.seq > coalesce((SELECT max(j.pos) FROM journal j WHERE j.instance_id = c.caller AND j.kind = 10), 0)
          AND NOT EXISTS (SELECT FROM journal j WHERE j.instance_id = c.caller AND j.kind = 8 AND j.path = c.path)
          AND NOT EXISTS (SELECT FROM timer m WHERE m.token_id = c.caller AND m.seq = c.seq AND m.index = -17)""",
    "root tokens of instances whose end is to be told are watched, and no others": """
        SELECT t.instance_id, t.id, t.watched, c.id FROM token t LEFT JOIN called c ON c.id = t.id
        LEFT JOIN scheduled s ON s.instance_id = t.id AND s.watched
        WHERE t.watched IS DISTINCT FROM (c.id IS NOT NULL OR s.instance_id IS NOT NULL)""",
    "a run of a schedule and its instance know each other": """
        SELECT r.schedule, r.at, r.instance_id FROM schedule_run r JOIN schedule s ON s.id = r.schedule
        WHERE (r.outcome = 0 /* STARTED */) IS DISTINCT FROM (r.instance_id IS NOT NULL)
          OR (r.instance_id IS NOT NULL AND EXISTS (SELECT FROM instance i WHERE i.id = r.instance_id) AND NOT EXISTS (
            SELECT FROM scheduled d WHERE d.instance_id = r.instance_id AND d.schedule = s.name AND d.at = r.at))""",
    "no two instances are of one time of a schedule": """
        SELECT d.schedule, d.at, count(*) FROM scheduled d GROUP BY 1, 2 HAVING count(*) > 1""",
    "a time that waits stands in its schedule, too": """
        SELECT r.schedule, r.at FROM schedule_run r JOIN schedule s ON s.id = r.schedule
        WHERE r.outcome = 1 /* BUFFERED */ AND NOT r.at = ANY(s.buffered)""",
    "an item of a batch waits, is an instance, or was refused": """
        SELECT batch, place FROM batch_item
        WHERE (request IS NOT NULL)::int + (instance_id IS NOT NULL)::int + (error IS NOT NULL)::int <> 1""",
    "nothing waits of what a batch has begun, and what it started stands in it": """
        SELECT b.id, i.place, i.instance_id FROM batch b JOIN batch_item i ON i.batch = b.id
        WHERE i.place >= 0 AND i.place < b.begun AND i.request IS NOT NULL AND b.cancelled IS NULL
        UNION ALL
        SELECT b.id, NULL, n.id FROM instance n JOIN batch b ON n.started_by = 'batch:' || b.id
        WHERE NOT EXISTS (SELECT FROM batch_item i WHERE i.batch = b.id AND i.instance_id = n.id)""",
    "the time that a run waits for is armed while it is parked, and no longer": """
        SELECT m.instance_id, m.token_id, t.state FROM timer m LEFT JOIN token t ON t.id = m.token_id AND t.seq = m.seq
        WHERE m.index = -16 AND t.state IS DISTINCT FROM 2""",
    "runs have one token, which counts what others have written for them, and journals belong to runs": """
        SELECT t.instance_id, t.id, t.mail, j.told FROM token t JOIN definitions d ON d.key = t.definition
        CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE kind IN (6, 7, 8, 14, 15)) AS told FROM journal j
          WHERE j.instance_id = t.instance_id AND j.pos > t.seq) j
        CROSS JOIN LATERAL (  -- refused calls have left the journal; the newest are remembered
          SELECT count(*) AS refused FROM signal_id s WHERE s.instance_id = t.instance_id AND starts_with(s.id, 'u:')
            AND s.answer IS NOT NULL AND NOT EXISTS (
              SELECT FROM journal j WHERE j.instance_id = t.instance_id AND j.kind = 15 AND 'u:' || j.path = s.id)) s
        WHERE d.code AND (t.mail < j.told OR t.mail > j.told AND s.refused = 0 OR t.id <> t.instance_id)
          OR NOT d.code AND t.mail <> 0
        UNION ALL
        SELECT j.instance_id, j.pos, NULL, NULL FROM journal j LEFT JOIN instance i ON i.id = j.instance_id
        LEFT JOIN definitions d ON d.key = i.definition WHERE d.code IS NOT TRUE""",
    "search attributes are what the variables are that the definition declares": """
        SELECT v.id, a.key, v.vars -> a.key, s.text, s.number FROM (
          SELECT i.id, d.content::jsonb -> 'searchAttributes' AS declared,
            i.vars || coalesce(i.overlay, '{}') || coalesce((SELECT jsonb_merge(h.output ORDER BY h.pos) FROM history h
              WHERE h.instance_id = i.id AND h.pos > i.folded_pos AND h.output IS NOT NULL), '{}') AS vars
          FROM instance i JOIN definition d ON d.key = i.definition WHERE d.content LIKE '%"searchAttributes"%') v
        CROSS JOIN LATERAL jsonb_each_text(v.declared) AS a
        LEFT JOIN search_attribute s ON s.instance_id = v.id AND s.name = a.key
        WHERE a.value <> 'TIME' AND v.vars -> a.key -> '$enc' IS NULL AND (s.text, s.number) IS DISTINCT FROM (
          CASE WHEN jsonb_typeof(v.vars -> a.key) = lower(a.value) AND length(v.vars ->> a.key) <= 256
            AND a.value <> 'NUMBER' THEN v.vars ->> a.key END,
          CASE WHEN jsonb_typeof(v.vars -> a.key) = 'number' AND a.value = 'NUMBER' THEN (v.vars ->> a.key)::float8 END)
        UNION ALL
        SELECT s.instance_id, s.name, NULL, s.text, s.number FROM search_attribute s
        WHERE NOT EXISTS (SELECT FROM instance i WHERE i.id = s.instance_id)""",
    "the newest version of an instance that was migrated is the one that it has, from its start on one is known": """
        SELECT v.instance_id, v.definition, i.definition FROM (
          SELECT DISTINCT ON (instance_id) instance_id, definition FROM instance_version
          ORDER BY instance_id, from_pos DESC) v
        LEFT JOIN instance i ON i.id = v.instance_id WHERE i.definition IS DISTINCT FROM v.definition
        UNION ALL
        SELECT v.instance_id, NULL, NULL FROM instance_version v GROUP BY 1 HAVING min(v.from_pos) > 0""",
    "what was folded is kept": "SELECT id FROM instance WHERE folded_pos > 0 AND overlay IS NULL",
}
"""Sentence → the query that finds the rows for which it is not true."""

# Tables where they may be: each query would plan a view's parts anew, a fifth of the time that all of them take.
_RELATIONS: Final = """
CREATE TEMP TABLE definitions AS
  SELECT key, code, content::jsonb AS content, jsonb_path_query_array(content::jsonb, '$.steps[*]') AS steps,
    coalesce(content::jsonb ->> 'autoStartNextWorkflow', '') = 'true' AS chains,
    NOT content::jsonb @? '$.steps[*] ? (@.type == "PARALLEL_GATEWAY")'
    AND NOT content::jsonb @? '$.steps[*] ? (exists (@.forEach) && @.type != "WAIT")'
    AND NOT content::jsonb @? '$.steps[*].boundaryEvents[*] ? (@.type == "TIMER" && !(@.interrupting == true))'
    AND NOT content::jsonb @? '$.steps[*] ? (@.type == "SERVICE_TASK" || @.type == "CALL_ACTIVITY").compensation'
      AS single_token
  FROM definition;
CREATE TEMP TABLE steps AS
  SELECT d.key, d.code, x.n - 1 AS index, x.step ->> 'type' AS type, x.step
  FROM definitions d CROSS JOIN LATERAL jsonb_array_elements(d.steps) WITH ORDINALITY AS x(step, n)
  UNION ALL
  SELECT d.key, d.code, jsonb_array_length(d.steps) + y.n - 1,
    'SERVICE_TASK', y.step
  FROM definitions d CROSS JOIN LATERAL (
    SELECT row_number() OVER (ORDER BY x.n) AS n, x.step -> 'compensation' || jsonb_build_object(
      'id', (x.step ->> 'id') || '/compensation', 'compensates', x.n - 1) AS step
    FROM jsonb_array_elements(d.steps) WITH ORDINALITY AS x(step, n)
    WHERE x.step ? 'compensation' AND x.step ->> 'type' IN ('SERVICE_TASK', 'CALL_ACTIVITY')) y
  UNION ALL
  SELECT d.key, d.code, jsonb_array_length(d.steps) + count(*), 'COMPENSATE', '{"id": "/compensation"}'
  FROM definitions d CROSS JOIN LATERAL jsonb_array_elements(d.steps) AS x(step)
  WHERE x.step ? 'compensation' AND x.step ->> 'type' IN ('SERVICE_TASK', 'CALL_ACTIVITY')
  GROUP BY d.key, d.code, d.steps;
CREATE TEMP TABLE waiting AS
  SELECT job_type, priority, NULL AS flow_key, seq, token_id FROM ready
  UNION ALL SELECT job_type, priority, flow_key, seq, token_id FROM ready_flow;
CREATE TEMP VIEW token AS
  SELECT t.*, i.definition FROM token t LEFT JOIN instance i ON i.id = t.instance_id;
"""


class Broken(msgspec.Struct, frozen=True):
    """An invariant that does not hold, with some of the rows that show it."""

    sentence: str
    rows: list[tuple[object, ...]]

    def __str__(self) -> str:
        return f"not true: {self.sentence}: {self.rows}"


def find_broken(dsn: str, *, rows_max: int = 10) -> list[Broken]:
    """The invariants that do not hold in the database at ``dsn``, in one snapshot."""
    broken: list[Broken] = []
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute(_RELATIONS)
        answers = connection.execute(";".join(INVARIANTS.values()).encode())  # at once: most are shorter than a turn
        for sentence in INVARIANTS:
            rows = answers.fetchmany(rows_max)
            if rows:
                broken.append(Broken(sentence, rows))
            answers.nextset()
        connection.rollback()
    return broken


def assert_invariants(dsn: str) -> None:
    """Raises AssertionError naming every invariant that does not hold."""
    broken = find_broken(dsn)
    assert not broken, "\n".join(map(str, broken))
