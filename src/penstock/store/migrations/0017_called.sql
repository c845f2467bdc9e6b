-- Calls: an instance that a step of another one started, and waits for.

CREATE TABLE called (
  id          bigint PRIMARY KEY,
  caller      bigint NOT NULL,
  token_id    bigint NOT NULL,
  seq         bigint NOT NULL,
  root        bigint NOT NULL,
  depth       smallint NOT NULL
);
CREATE UNIQUE INDEX called_by ON called (token_id, seq);
CREATE INDEX called_caller ON called (caller, id);
