"""The engines of tests/engine."""

from __future__ import annotations

from tests.engine.conftest import driver, make_driver

__all__ = ["driver", "make_driver"]
