"""The two ways in which an `App` has its runs: an engine inside, and one that it is connected to."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.durable.served import serving


@pytest.fixture(params=["library", "engine"])
async def at(request: pytest.FixtureRequest, database_dsn: str) -> AsyncGenerator[str]:
    """What an `App` is told: a database, or an engine on it."""
    if request.param == "library":
        yield database_dsn
        return
    async with serving(database_dsn) as served:
        yield served.at
