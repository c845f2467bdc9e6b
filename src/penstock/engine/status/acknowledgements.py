"""Acknowledgements of what needs somebody: they end, and with more failures a row needs attention again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.access.identity import actor
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest, NotFound
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import acknowledged as store
from penstock.store.rows import engines as engine_store
from penstock.wire.attention import AcknowledgeBody, Acknowledgement, Attention

KEY_MAX_CHARS: Final = 600
NOTE_MAX_CHARS: Final = 1_000
SINCE_VERSION: Final = 21


class Acknowledgements:
    """Takes, ends and shows them."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._lasts_s = settings.attention_acknowledged_hours * 3_600
        self._audit = settings.audit_log_enabled

    async def acknowledge(self, key: str, body: AcknowledgeBody) -> None:
        """Acknowledge a row by its key, for ``attention_acknowledged_hours``. Raises BadRequest."""
        if not key:
            raise BadRequest("key: must not be empty")
        check_text(key, "key", KEY_MAX_CHARS)
        if body.note is not None:
            check_text(body.note, "note", NOTE_MAX_CHARS)
        if not 0 <= body.count < 2**31:
            raise BadRequest("count: must be the number of the row, 0 or more")
        async with self._database.connection() as connection:
            await engine_store.require_version(connection, SINCE_VERSION)
            await store.acknowledge(
                connection,
                key,
                body.count,
                body.note,
                lasts_s=self._lasts_s,
                actor=actor(),
                audit=self._audit,
            )

    async def withdraw(self, key: str) -> None:
        """Let a row need attention again. Raises NotFound."""
        async with self._database.connection() as connection:
            if not await store.withdraw(connection, key, actor=actor(), audit=self._audit):
                raise NotFound(f"'{key[:KEY_MAX_CHARS]}' is not acknowledged")


async def marked(connection: TrioConnection, found: Sequence[Attention]) -> list[Attention]:
    """The rows, each with its acknowledgement where it has one that holds."""
    known = await store.read(connection)
    return [_marked(one, known.get(one.key)) for one in found]


def _marked(one: Attention, by: store.AcknowledgedRow | None) -> Attention:
    if by is None or (one.kind == "failures" and one.count > by.failures):
        return one
    return msgspec.structs.replace(one, acknowledged=Acknowledgement(by.at, by.until, by.actor, by.note))
