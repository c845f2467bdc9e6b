"""Requests that programs made by SQL functions in transactions of their own."""
