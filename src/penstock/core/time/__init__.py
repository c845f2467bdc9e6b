"""Durations, cron, and the times of schedules. Pure: what time it is comes in as an argument."""
