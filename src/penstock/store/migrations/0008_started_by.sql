-- Who started an instance, for the audit trail.

ALTER TABLE instance ADD COLUMN started_by text;
