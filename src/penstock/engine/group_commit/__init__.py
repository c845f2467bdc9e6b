"""The ways of a change into the database: queues, their batches, and what applies them."""
