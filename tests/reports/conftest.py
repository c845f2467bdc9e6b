"""The fixtures of `tests/durable`: most reports are about durable workflows."""

from __future__ import annotations

from tests.durable.conftest import at

__all__ = ["at"]
