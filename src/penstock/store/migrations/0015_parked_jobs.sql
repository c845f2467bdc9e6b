-- Jobs whose workers wait for a signal.

ALTER TABLE token ADD COLUMN waits_for text;
