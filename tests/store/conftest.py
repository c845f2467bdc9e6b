from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.embedded.embedded import embedded
from tests.postgres import FAST_SETTINGS, MEMORY
from tests.store.proxy import Proxy
from tests.store.servers import copy


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


@pytest.fixture
def directory() -> Generator[Path]:
    """Where the server's account can get to; pytest's own directories are closed to it if we are root."""
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def made_directory() -> Generator[Path]:
    """A data directory with a cluster, to copy: initdb takes half a second."""
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    path.chmod(0o755)

    async def make() -> None:
        async with embedded(path / "data", settings=FAST_SETTINGS):
            pass

    trio.run(make)
    yield path / "data"
    shutil.rmtree(path)


@pytest.fixture
def data_dir(directory: Path, made_directory: Path) -> Path:
    """A data directory of one's own whose cluster exists."""
    copy(made_directory, directory / "data")
    return directory / "data"
