"""Metrics and traces, of the engine, the client and workers."""
