-- Calls of updates (`@update`): what was answered, beside the id that makes a call the same one.
ALTER TABLE signal_id ADD COLUMN answer text;
