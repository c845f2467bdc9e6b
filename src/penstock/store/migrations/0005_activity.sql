-- For the console: what engines counted lately, and the workers that they saw. Small tables that no job waits for.

CREATE TABLE sample (
  span_s      int NOT NULL,
  at          timestamptz NOT NULL,
  engine      int NOT NULL,
  counts      jsonb NOT NULL,
  workers     jsonb NOT NULL,
  PRIMARY KEY (span_s, at, engine)
);

CREATE TABLE worker_seen (
  worker      text COLLATE "C" NOT NULL,
  engine      int NOT NULL,
  job_types   jsonb NOT NULL,
  polled_at   timestamptz NOT NULL,
  PRIMARY KEY (worker, engine)
);
