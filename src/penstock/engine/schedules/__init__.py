"""Schedules, and the group-commit queue that fires them."""
