-- What is done to many instances at once, kept until it is done, whatever happens to the engine that does it.

CREATE TABLE bulk_operation (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  action      text NOT NULL CHECK (action IN ('retry', 'cancel', 'signal')),
  filter      jsonb NOT NULL,
  step        text,
  output      text,
  note        text,
  actor       text,
  per_second  float8,
  total       int NOT NULL,
  total_exact boolean NOT NULL,
  created_at  timestamptz NOT NULL,
  below       bigint NOT NULL,
  done        int NOT NULL DEFAULT 0,
  skipped     int NOT NULL DEFAULT 0,
  failed      int NOT NULL DEFAULT 0,
  errors      jsonb NOT NULL DEFAULT '[]',
  stage       text NOT NULL DEFAULT 'RUNNING' CHECK (stage IN ('RUNNING', 'DONE', 'STOPPED')),
  ended_at    timestamptz,
  engine      int,
  leased_until timestamptz
);
CREATE INDEX bulk_running ON bulk_operation (id) WHERE stage = 'RUNNING';
