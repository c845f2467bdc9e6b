-- Which line a throttled start stands in; null costs nothing. 18 got it late: databases that were brought there before lack it.
ALTER TABLE timer ADD COLUMN IF NOT EXISTS throttle jsonb;
