"""Commands that run in the process of their test set up its logging."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.logs import restored_logging


@pytest.fixture(autouse=True)
def _as_before() -> Generator[None]:
    with restored_logging():
        yield
