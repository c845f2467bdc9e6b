"""Several programs on one data directory: the first starts the server, the last one stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import trio

from penstock.store.db.connection import TrioConnection
from penstock.store.embedded.cluster import find_installation, is_running, read_postmaster
from penstock.store.embedded.embedded import EmbeddedPostgresError, EmbeddedServer, run_embedded
from tests.durable.programs import own_directory
from tests.postgres import FAST_SETTINGS


@pytest.fixture
def data_dir() -> Generator[Path]:
    for directory in own_directory():
        yield directory / "data"


async def one(dsn: str) -> object:
    connection = await TrioConnection.connect(dsn)
    try:
        return (await connection.fetch(b"SELECT 1"))[0][0]
    finally:
        connection.close_nowait()


def runs(path: Path) -> bool:
    installation = find_installation(path)
    postmaster = read_postmaster(installation)
    return postmaster is not None and is_running(installation, postmaster)


class User:
    """A program that uses the server until it is told to leave."""

    def __init__(self, nursery: trio.Nursery, path: Path, *, shared: bool = True) -> None:
        self._nursery, self._path, self._shared = nursery, path, shared
        self.leaving, self.left = trio.Event(), trio.Event()

    async def enter(self) -> EmbeddedServer:
        async def use(task_status: trio.TaskStatus[EmbeddedServer]) -> None:
            async with run_embedded(self._path, settings=FAST_SETTINGS, shared=self._shared) as server:
                task_status.started(server)
                await self.leaving.wait()
            self.left.set()

        server: EmbeddedServer = await self._nursery.start(use)
        return server

    async def leave(self) -> None:
        self.leaving.set()
        await self.left.wait()


@pytest.mark.parametrize("first_leaves_first", [True, False])
async def test_a_second_program_attaches_and_the_last_stops_the_server(data_dir: Path, first_leaves_first: bool):
    async with trio.open_nursery() as nursery:
        first, second = User(nursery, data_dir), User(nursery, data_dir)
        started, found = await first.enter(), await second.enter()
        assert started.alone
        assert not found.alone
        assert found.dsn == started.dsn
        early, late = (first, second) if first_leaves_first else (second, first)
        await early.leave()
        assert await one(found.dsn) == 1
        await late.leave()
    assert not runs(data_dir)


async def test_engine_and_program_share_the_server_in_either_order(data_dir: Path):
    for engine_first in (True, False):
        async with trio.open_nursery() as nursery:
            first = User(nursery, data_dir, shared=not engine_first)
            second = User(nursery, data_dir, shared=engine_first)
            dsn = (await first.enter()).dsn
            assert (await second.enter()).dsn == dsn
            await first.leave()
            assert await one(dsn) == 1
            await second.leave()
        assert not runs(data_dir)


async def test_many_at_once_start_one_server(data_dir: Path):
    found: list[EmbeddedServer] = []
    async with trio.open_nursery() as nursery:
        users = [User(nursery, data_dir) for _ in range(5)]
        async with trio.open_nursery() as entering:
            for user in users:

                async def enter(user: User = user) -> None:
                    found.append(await user.enter())

                entering.start_soon(enter)
        assert len({server.dsn for server in found}) == 1
        assert [server.alone for server in found].count(True) == 1
        for user in users:
            await user.leave()
    assert not runs(data_dir)


async def test_who_attached_is_told_of_the_end_of_the_server(data_dir: Path):
    async with trio.open_nursery() as nursery:
        first, second = User(nursery, data_dir), User(nursery, data_dir)
        await first.enter()
        found = await second.enter()
        postmaster = read_postmaster(find_installation(data_dir))
        assert postmaster is not None
        os.kill(postmaster.pid, signal.SIGKILL)
        with trio.fail_after(30), pytest.raises(EmbeddedPostgresError):
            await found.watch()
        await second.leave()
        await first.leave()
