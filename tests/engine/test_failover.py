"""A failover to a server that has not got the last commits: what an engine remembers of them counts no more."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.access.identity import Identity
from penstock.access.roles import read_grant
from penstock.access.sessions import Sessions
from penstock.access.tokens import TokenBook, digest_of
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.embedded.embedded import embedded
from penstock.store.rows import api_tokens
from penstock.testing.definitions import definition, end, service
from penstock.testing.postgres import apply_schema
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver
from tests.engine.driver import variables_of

UNSAFE = {"fsync": "off"}


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, options="-c search_path=penstock,public") as connection:
        return connection.execute(query.encode()).fetchall()


def in_a_row(id: str, *job_types: str) -> dict[str, Any]:
    following = [*job_types[1:], "end"]
    steps = [service(name, after, job_type=name) for name, after in zip(job_types, following, strict=True)]
    return definition(*steps, end(), definition_id=id)


async def test_an_engine_hears_of_the_next_server_whoever_connected_before() -> None:
    """An engine comes to be when its pool has connections already."""
    reported: list[object] = []

    async def tell(connection: TrioConnection) -> None:
        reported.append(await connection.fetch("SELECT 1"))

    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory)
        there.chmod(0o755)
        async with embedded(there / "data", settings=UNSAFE) as dsn:
            database = Database(dsn, max_connections=1)
            await database.fetch("this_schema")
            database.on_other_server = tell
            await database.fetch("this_schema")
        assert reported == []
        async with embedded(there / "data", settings=UNSAFE) as dsn:
            database.use(dsn)
            await database.fetch("this_schema")
            assert len(reported) == 1
            await database.close(1)


async def test_tokens_are_read_again_from_the_next_server() -> None:
    """As a change there may have the version of one that it never had."""
    versions: list[object] = []

    async def probe(connection: TrioConnection) -> None:
        versions.append(await api_tokens.version(connection))
        assert versions[-1] == await api_tokens.version(connection)

    await on_one_server_after_the_other(probe, probe)
    assert versions[0] != versions[1]


@pytest.mark.slow(reason="a PostgreSQL that fails over")
async def test_sessions_that_the_next_server_lacks_are_forgotten() -> None:
    """Also where as many were ended on both."""
    sessions = Sessions(TokenBook(), max_hours=1)
    cookies: list[bytes] = []

    async def sign_in(connection: TrioConnection) -> None:
        sessions.attach(lambda: nullcontext(connection))
        ada = Identity.of("oidc:ada", read_grant("viewer"))
        cookies.extend([(await sessions.open(ada)).cookie.encode() for _ in range(3)])
        await sessions.refresh(connection)
        for cookie in cookies[:2]:
            await sessions.identify(cookie, None)

    async def sign_out_unheard(connection: TrioConnection) -> None:
        sessions.attach(lambda: nullcontext(connection))
        gone, left, new = (digest_of(cookie) for cookie in cookies)
        await connection.fetch(f"DELETE FROM session WHERE digest = decode('{gone.hex()}', 'hex')".encode())
        await sessions.identify(cookies[2], None)  # comes before the look
        assert await sessions.refresh(connection)
        assert [sessions.has(digest) for digest in (gone, left, new)] == [False, True, True]
        assert not await sessions.refresh(connection)

    await on_one_server_after_the_other(sign_in, sign_out_unheard)


async def on_one_server_after_the_other(*acts: Callable[[TrioConnection], Awaitable[None]]) -> None:
    """Each on a server of its own, with what the one before has left."""
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory)
        there.chmod(0o755)
        for number, act in enumerate(acts):
            async with embedded(there / "data", settings=UNSAFE) as dsn:
                if number == 0:
                    apply_schema(dsn)
                database = Database(dsn, max_connections=1)
                async with database.connection() as connection:
                    await act(connection)
                await database.close(1)


@pytest.mark.slow(reason="a PostgreSQL that fails over")
async def test_what_a_failover_has_lost_is_remembered_by_no_engine(make_driver: MakeDriver) -> None:
    standing = "SELECT id, seq FROM token"
    keys = "SELECT max(key) FROM definition"
    types = "SELECT max(id) FROM job_type"
    with tempfile.TemporaryDirectory() as directory:  # not pytest's: the server's account may not enter that one
        there = Path(directory)
        there.chmod(0o755)
        async with embedded(there / "data", settings=UNSAFE) as dsn:
            apply_schema(dsn)
            first = make_driver(dsn=dsn)
            await first.upload(in_a_row("two", "one", "two"))
            await first.start("two")
        subprocess.run(["cp", "-a", there / "data", there / "standby"], check=True)
        async with embedded(there / "data", settings=UNSAFE) as dsn:
            first.engine.database.use(dsn)
            await first.complete(await first.one("one"), {"n": 1})
            await first.upload(in_a_row("lost", "lost"))
            await first.start("lost")
            assert await first.poll("lost") != []
            lost = rows(dsn, f"{standing} ORDER BY 1 LIMIT 1"), rows(dsn, keys), rows(dsn, types)
            await first.engine.queues.put("q", QueuePolicy(["one"]))
        async with embedded(there / "standby", settings=UNSAFE) as dsn:
            first.engine.database.use(dsn)
            second = make_driver(dsn=dsn)
            await second.complete(await second.one("one"), {"n": 2})
            await second.upload(in_a_row("found", "found"))
            assert (rows(dsn, standing), rows(dsn, keys), rows(dsn, types)) == lost, "another timeline of the same ids"
            await second.engine.queues.put("q", QueuePolicy(["two"]))
            job = await first.one("two")
            assert variables_of(job) == {"n": 2}
            assert first.engine.queues.keyed == {"two"}
            await first.complete(job)
            found = await first.start("found")
            assert await first.poll("lost") == []
            (job,) = await first.poll("found")
            await first.complete(job)
            assert await first.status(found.id) == "COMPLETED"
            for driver in (first, second):
                await driver.engine.database.close(1)
