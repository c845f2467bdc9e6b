"""The PostgreSQL of our own test runs: what `penstock.testing` ships for everybody's, and where the repository is."""

from __future__ import annotations

from pathlib import Path

from penstock.testing.postgres import FAST_SETTINGS, MEMORY, PostgresServer, apply_schema, run_directory, shared_server

__all__ = ["FAST_SETTINGS", "MEMORY", "REPOSITORY", "PostgresServer", "apply_schema", "run_directory", "shared_server"]

REPOSITORY = Path(__file__).resolve().parents[1]
