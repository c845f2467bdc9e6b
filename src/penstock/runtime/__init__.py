"""The running process: one nursery that owns every task, its start and stop order, signals and services."""
