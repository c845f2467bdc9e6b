-- User tasks that are open, for the inbox. Filled by engines once none is left that does not know it (engine/instances/inbox.py).

CREATE TABLE open_task (
  seq         bigint NOT NULL,
  token_id    bigint NOT NULL,
  instance_id bigint NOT NULL,
  entered_at  timestamptz NOT NULL,
  job_type    int NOT NULL,
  definition  int NOT NULL,
  step        smallint NOT NULL,
  assignee    text COLLATE "C",
  PRIMARY KEY (job_type, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX open_task_assignee ON open_task (assignee, seq) WHERE assignee IS NOT NULL;
