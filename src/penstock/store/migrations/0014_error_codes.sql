-- Codes of errors: of what ended an execution or an attempt, and of what failed an instance.

ALTER TABLE history ADD COLUMN error_code text;
ALTER TABLE instance ADD COLUMN failure_code text;
