"""Connections, the pool, the schema and how statements are sent and their outcome is known."""
