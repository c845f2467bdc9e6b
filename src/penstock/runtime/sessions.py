"""`penstock session`: lists and ends sessions in the engines' database, whether an engine runs or not."""

from __future__ import annotations

from penstock.errors import NotFound
from penstock.runtime.operator import operator, with_database
from penstock.settings import Settings
from penstock.store.rows import sessions as store


def everything(settings: Settings) -> list[store.ListedSession]:
    """Return all that count."""
    return with_database(settings, store.everything)


def end(settings: Settings, id: str) -> str:
    """Let a session count no longer; whose it was. Raises NotFound."""
    name = with_database(settings, lambda connection: store.end(connection, id=id, by=operator()))
    if name is None:
        raise NotFound(f"there is no session {id!r}; `penstock session list` shows them")
    return name
