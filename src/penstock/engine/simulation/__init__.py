"""Definitions tried in memory, before they are uploaded."""
