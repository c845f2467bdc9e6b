"""After each test with an engine of `penstock.testing`, what must hold in its database is checked."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from penstock.testing import TestEngine
from penstock.testing.invariants import assert_invariants


@pytest.fixture
def engine(penstock: TestEngine, penstock_dsn: str) -> Generator[TestEngine]:
    """The plugin's engine, with the invariants checked at the end."""
    yield penstock
    assert_invariants(penstock_dsn)
