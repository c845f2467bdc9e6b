"""`penstock token`: makes, lists and revokes API tokens in the engines' database, whether an engine runs or not."""

from __future__ import annotations

import getpass
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from penstock.access.roles import Grant
from penstock.access.tokens import NAME_MAX_CHARS, TOKENS_MAX_COUNT, NewToken, make_token
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.settings import Settings
from penstock.store import api_tokens as store
from penstock.store.connection import TrioConnection
from penstock.store.database import with_defaults
from penstock.store.embedded import DataDirectoryInUse, embedded, running_dsn
from penstock.store.schema import ensure_schema

T = TypeVar("T")


def new(settings: Settings, name: str, grant: Grant, expires_s: float | None) -> NewToken:
    """Make a token. Raises BadRequest, Conflict (too many), and what the database raises."""
    if not 0 < len(name) <= NAME_MAX_CHARS or not name.isprintable():
        raise BadRequest(f"a token's name has 1 to {NAME_MAX_CHARS} printable characters")
    made = make_token()

    async def insert(connection: TrioConnection) -> None:
        if len(await store.alive(connection, TOKENS_MAX_COUNT)) >= TOKENS_MAX_COUNT:
            raise Conflict(f"there are {TOKENS_MAX_COUNT} API tokens already: revoke some")
        await store.insert(
            connection, id=made.id, name=name, digest=made.digest, roles=str(grant), by=_by(), expires_s=expires_s
        )

    _with_database(settings, insert)
    return made


def everything(settings: Settings) -> list[store.ListedToken]:
    """All tokens that count, and for a year those that don't any more."""
    return _with_database(settings, store.everything)


def revoke(settings: Settings, id: str) -> str:
    """Let a token count no longer; its name. Raises NotFound."""
    name = _with_database(settings, lambda connection: store.revoke(connection, id, _by()))
    if name is None:
        raise NotFound(f"there is no token {id!r} that counts; `penstock token list` shows them")
    return name


def _by() -> str:
    """Whom the audit trail names."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"


def _with_database(settings: Settings, act: Callable[[TrioConnection], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _dsn(settings) as dsn:
            connection = await TrioConnection.connect(with_defaults(dsn))
            try:
                await ensure_schema(connection)
                return await act(connection)
            finally:
                connection.close_nowait()

    return trio.run(run, strict_exception_groups=True)


@asynccontextmanager
async def _dsn(settings: Settings) -> AsyncGenerator[str]:
    """The database: a server of ours, the one that an engine runs on our data directory, or one that we start."""
    if settings.postgres_dsn is not None:
        yield settings.postgres_dsn.reveal()
        return
    try:
        async with embedded(settings.data_path) as dsn:
            yield dsn
    except DataDirectoryInUse:
        running = running_dsn(settings.data_path)
        if running is None:
            raise
        yield running
