-- Durable functions: the journals of runs, which definitions are code, and by what an engine's process is told from others.

CREATE TABLE journal (
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,
  at          timestamptz NOT NULL,
  kind        smallint NOT NULL,
  attempt     smallint NOT NULL,
  digest      int,
  took_ms     int,
  path        text NOT NULL,
  name        text,
  payload     text,
  mark        text,
  PRIMARY KEY (instance_id, pos)
) PARTITION BY RANGE (instance_id);
CREATE TABLE journal_other PARTITION OF journal DEFAULT WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

ALTER TABLE definition ADD COLUMN code boolean NOT NULL DEFAULT false;
ALTER TABLE engine ADD COLUMN process text;

ALTER TABLE log_partition DROP CONSTRAINT log_partition_parent_check,
  ADD CONSTRAINT log_partition_parent_check CHECK (parent IN ('history', 'audit', 'journal'));

CREATE OR REPLACE FUNCTION add_log_partition(parent text, since timestamptz, until timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  name text := parent || to_char(since AT TIME ZONE 'UTC', '_YYYYMMDD_HH24MI');
  low text := CASE parent WHEN 'audit' THEN since::text ELSE first_instance_id(since)::text END;
  high text := CASE parent WHEN 'audit' THEN until::text ELSE first_instance_id(until)::text END;
BEGIN
  INSERT INTO log_partition (name, parent, since, until) VALUES (name, parent, since, until);
  EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL) WITH (autovacuum_vacuum_insert_scale_factor = 0.5)', name, parent);
  EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, name, low, high);
  RETURN name;
END $$;
