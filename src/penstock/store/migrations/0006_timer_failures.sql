-- How often a timer could not be acted on outlives the engine that tried.

ALTER TABLE timer ADD COLUMN failures smallint;
