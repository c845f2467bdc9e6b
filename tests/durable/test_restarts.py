"""PostgreSQL is restarted and an engine loses its session, with executors that live on: no step begins twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import psycopg
import pytest
import trio

from chaos.server import ROLE, Server
from penstock.durable import App
from penstock.durable.run import Run
from tests.durable.films import film
from tests.durable.programs import Program, ended, own_directory, until
from tests.postgres import REPOSITORY

EXECUTORS, RUNS = 3, 6
BOUND_S = 100.0
DATABASE = "films"
LISTENERS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid < 1024"


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    for directory in own_directory():
        server = Server(directory / "postgres")
        await server.make()
        server.make_database(DATABASE)
        yield server
        with trio.CancelScope(shield=True):
            await server.remove()


def listeners(server: Server) -> list[int]:
    with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
        return [int(pid) for (pid,) in connection.execute(LISTENERS.encode()).fetchall()]


@pytest.mark.slow(reason="restarts PostgreSQL under a program")
async def test_no_step_begins_twice_when_postgres_is_restarted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WE_OUTAGE_WAIT_SECONDS", "60")
    dsn = server.dsn(DATABASE, ROLE)
    begun = tmp_path / "begun"
    begun.touch()
    program = Program(tmp_path, f"import tests.durable.films as films\nfilms.main({dsn!r}, {str(begun)!r})\n")

    program.environment["PYTHONPATH"] = f"{REPOSITORY / 'src'}:{REPOSITORY}"

    def all_begun() -> bool:
        return len(begun.read_text().split()) >= RUNS

    def all_listen() -> bool:
        return len(listeners(server)) >= EXECUTORS

    with trio.fail_after(BOUND_S):
        async with App(at=dsn, migrate=True) as client:
            runs: list[Run[int]] = [await client.start(film, number) for number in range(RUNS)]
            executors, left = [program.start() for _ in range(EXECUTORS)], list[tuple[int, str, str]]()
            try:
                await trio.to_thread.run_sync(until, all_begun, *executors)
                await server.stop()
                await server.start()
                await trio.to_thread.run_sync(until, all_listen, *executors)
                with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
                    connection.execute("SELECT pg_terminate_backend(%s)", (listeners(server)[0],))
                assert [await run.result() for run in runs] == list(range(RUNS))
            finally:
                for executor in executors:
                    executor.terminate()
                with trio.CancelScope(shield=True):
                    left += [await trio.to_thread.run_sync(ended, executor) for executor in executors]
            assert [code for code, _, _ in left] == [0] * EXECUTORS, left
    assert sorted(begun.read_text().split()) == [str(number) for number in range(RUNS)]
