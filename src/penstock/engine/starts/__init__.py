"""The group-commit queues of starts: plain ones, and those in a transaction of their own."""
