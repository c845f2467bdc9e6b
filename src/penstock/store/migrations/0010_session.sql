-- Sessions of people who signed in at the console: any engine takes them.

CREATE TABLE session (
  digest      bytea PRIMARY KEY,
  id          text NOT NULL UNIQUE,
  name        text NOT NULL,
  key         text NOT NULL,
  permissions text[] NOT NULL,
  job_types   text[],
  created_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL
);
CREATE INDEX session_key ON session (key, created_at);
CREATE INDEX session_expiry ON session (expires_at);
