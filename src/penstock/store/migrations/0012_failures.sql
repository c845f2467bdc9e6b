-- Failures by cause and place. What failed before this version has no cause; a retry that fails again gets one.
--
-- The indexes hold no row at first, so each is one pass over a table of failed and cancelled instances only, in which such
-- an end waits.

CREATE FUNCTION failure_cause(reason text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT hashtextextended(left(regexp_replace(reason, '[0-9]+|''[^'']*''|"[^"]*"', '…', 'g'), 200), 0) $$;

ALTER TABLE abnormal_end ADD COLUMN definition int, ADD COLUMN step text, ADD COLUMN cause bigint;
CREATE INDEX abnormal_end_cause ON abnormal_end (cause, instance_id) WHERE cause IS NOT NULL;
CREATE INDEX abnormal_end_step ON abnormal_end (definition, step, instance_id) WHERE step IS NOT NULL;
