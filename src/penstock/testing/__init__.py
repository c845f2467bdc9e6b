"""Shipped helpers for tests: factories of definitions, a settable clock, invariants."""
