"""Penstock's durable functions beside DBOS Transact's, on one PostgreSQL: `python -m benchmarks.peers.dbos`."""
