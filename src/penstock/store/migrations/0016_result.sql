-- What an instance gave at its end, beside its variables.

ALTER TABLE instance ADD COLUMN result jsonb;
