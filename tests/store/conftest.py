from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio

from penstock.store.connection import TrioConnection
from tests.store.proxy import Proxy


@pytest.fixture
async def connection(empty_database_dsn: str) -> AsyncGenerator[TrioConnection]:
    async with await TrioConnection.connect(empty_database_dsn) as connection:
        yield connection


@pytest.fixture
async def other(empty_database_dsn: str) -> AsyncGenerator[TrioConnection]:
    """A second connection to the same database, to look from outside."""
    async with await TrioConnection.connect(empty_database_dsn) as connection:
        yield connection


@pytest.fixture
async def proxy(empty_database_dsn: str, nursery: trio.Nursery) -> Proxy:
    proxy = Proxy(empty_database_dsn)
    await nursery.start(proxy.serve)
    return proxy
