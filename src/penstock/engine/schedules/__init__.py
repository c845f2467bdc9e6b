"""Schedules, and the lane that fires them."""
