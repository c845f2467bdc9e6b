"""Attacks on running engines, and whether the guarantees held: `python -m chaos` (docs/reliability.md)."""
