"""Penstock's durable workflows beside DBOS Transact's, on one PostgreSQL: `python -m benchmarks.peers.dbos`."""
