"""A PostgreSQL of our own: its cluster, its process, and who shares it."""
