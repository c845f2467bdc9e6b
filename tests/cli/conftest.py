"""An engine for all tests of a module, with a definition `claim`, and commands on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client import SyncClient
from penstock.testing.postgres import PostgresServer
from tests.cli.shell import CLAIM, Shell
from tests.sdk.running_engine import RunningEngine, running_engine


@pytest.fixture(scope="module")
def engine(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(postgres_server, tmp_path_factory.mktemp("engine")) as running:
        with SyncClient(running.url) as client:
            client.upload_definition(CLAIM)
        yield running


@pytest.fixture
def shell(engine: RunningEngine) -> Shell:
    return Shell(engine)
