-- Schedules and queues that the code of durable workflows has (`@workflow(schedule=…, queue=Queue(…))`).
CREATE TABLE declared (
  kind text NOT NULL,
  name text COLLATE "C" NOT NULL,
  workflow text NOT NULL,
  version int NOT NULL,
  body jsonb,
  applied jsonb,
  seen_at timestamptz NOT NULL,
  PRIMARY KEY (kind, name)
);
CREATE INDEX declared_workflow ON declared (workflow);
