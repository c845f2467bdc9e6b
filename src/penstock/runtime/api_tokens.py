"""`penstock token`: makes, lists and revokes API tokens in the engines' database, whether an engine runs or not."""

from __future__ import annotations

from penstock.access.roles import Grant
from penstock.access.tokens import NAME_MAX_CHARS, TOKENS_MAX_COUNT, NewToken, make_token
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.runtime.operator import operator, with_database
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import api_tokens as store


def new(settings: Settings, name: str, grant: Grant, expires_s: float | None) -> NewToken:
    """Make a token. Raises BadRequest, Conflict (too many), and what the database raises."""
    if not 0 < len(name) <= NAME_MAX_CHARS or not name.isprintable():
        raise BadRequest(f"a token's name has 1 to {NAME_MAX_CHARS} printable characters")
    made = make_token()

    async def insert(connection: TrioConnection) -> None:
        if len(await store.alive(connection, TOKENS_MAX_COUNT)) >= TOKENS_MAX_COUNT:
            raise Conflict(f"there are {TOKENS_MAX_COUNT} API tokens already: revoke some")
        await store.insert(
            connection, id=made.id, name=name, digest=made.digest, roles=str(grant), by=operator(), expires_s=expires_s
        )

    with_database(settings, insert, makes=True)
    return made


def everything(settings: Settings) -> list[store.ListedToken]:
    """Return all tokens that count, and for a year those that don't any more."""
    return with_database(settings, store.everything)


def revoke(settings: Settings, id: str) -> str:
    """Let a token count no longer; its name. Raises NotFound."""
    name = with_database(settings, lambda connection: store.revoke(connection, id, operator()))
    if name is None:
        raise NotFound(f"there is no token {id!r} that counts; `penstock token list` shows them")
    return name
