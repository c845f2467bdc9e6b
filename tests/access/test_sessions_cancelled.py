"""Opening, proving and ending a session, cancelled at every point: it counts or it does not, on all engines alike."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from penstock.access.identity import Identity
from penstock.access.sessions import Sessions
from penstock.access.tokens import TokenBook
from penstock.errors import Unauthenticated
from penstock.store.db.database import Database
from penstock.testing.cancellation import cancel_at_step

POINTS_MAX = 300
ADA = Identity("ada", frozenset(), key="oidc:ada", expires_at=math.inf)


@pytest.fixture
async def database(database_dsn: str) -> AsyncGenerator[Database]:
    database = Database(database_dsn, max_connections=2)
    yield database
    await database.close(1.0)


def engine(database: Database) -> Sessions:
    """The sessions of one more engine."""
    sessions = Sessions(TokenBook([]), 1.0)
    sessions.attach(database.connection)
    return sessions


async def proves(sessions: Sessions, cookie: str) -> bool:
    try:
        return (await sessions.identify(cookie.encode(), None)).name == "ada"
    except Unauthenticated:
        return False


def stored(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM session").fetchone()
    assert row is not None
    return int(row[0])


async def at_every_point(
    database: Database, operation: Callable[[], Awaitable[Any]], check: Callable[[list[Any]], Awaitable[None]]
) -> None:
    cancelled = 0
    for point in range(1, POINTS_MAX):
        attempt = await cancel_at_step(point, operation)
        cancelled += attempt.cancelled
        assert database.pool.statistics().busy == 0
        await check(attempt.results)
        if not attempt.fired:
            assert cancelled
            return
    raise AssertionError("no end")


async def test_opening_leaves_a_session_or_none(database: Database, database_dsn: str) -> None:
    one, other = engine(database), engine(database)

    async def check(results: list[Any]) -> None:
        rows = stored(database_dsn)
        assert rows <= 1
        for opened in results:
            assert rows == 1
            assert await proves(other, opened.cookie)
        with psycopg.connect(database_dsn) as connection:
            connection.execute("DELETE FROM session")

    await at_every_point(database, lambda: one.open(ADA), check)


async def test_proving_changes_nothing(database: Database, database_dsn: str) -> None:
    cookie = (await engine(database).open(ADA)).cookie
    asked: list[Sessions] = []

    async def ask() -> None:
        asked.append(engine(database))
        await asked[-1].identify(cookie.encode(), None)

    async def check(_: list[Any]) -> None:
        assert await proves(asked[-1], cookie)
        assert stored(database_dsn) == 1

    await at_every_point(database, ask, check)


async def test_ending_ends_it_everywhere_or_nowhere(database: Database, database_dsn: str) -> None:
    one, other = engine(database), engine(database)
    cookies = [(await one.open(ADA)).cookie]

    async def end() -> None:
        await one.end(cookies[-1].encode())

    async def check(results: list[Any]) -> None:
        counts = stored(database_dsn) == 1
        assert not (results and counts)
        for sessions in (one, other):
            async with database.connection() as connection:
                await sessions.refresh(connection)
            assert await proves(sessions, cookies[-1]) == counts
        if not counts:
            cookies.append((await one.open(ADA)).cookie)
            assert await proves(other, cookies[-1])
            assert await proves(one, cookies[-1])

    await at_every_point(database, end, check)
