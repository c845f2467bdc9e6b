"""PostgreSQL: the only place with SQL. Connection, pool, batching, and one module per noun."""
