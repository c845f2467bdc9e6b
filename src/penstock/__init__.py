"""Penstock: a durable workflow engine on Trio and PostgreSQL."""

from __future__ import annotations

__version__ = "0.1.0"
