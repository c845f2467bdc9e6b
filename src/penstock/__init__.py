"""Penstock: a durable workflow engine on Trio and PostgreSQL."""

from __future__ import annotations

__version__ = "0.2.0"
DISTRIBUTION = "penstock-workflow"
"""What is installed; another project has the name `penstock` in the public index."""

import penstock.distribution  # noqa: E402, F401 - needs the name  # pyright: ignore[reportUnusedImport] - it warns
