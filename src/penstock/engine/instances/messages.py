"""Messages: published to whoever waits for their name and key, now or later (`core.rules.correlation` has the
rules)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.access.identity import actor
from penstock.core.rules.correlation import KEY_MAX_CHARS, NAME_MAX_CHARS
from penstock.core.time.duration import DurationError, parse_duration
from penstock.engine.advance.call_commands import MessageCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.advance.timers import Timers
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.instances.publications import Publications, PublishItem
from penstock.engine.requests import ids
from penstock.engine.requests.ids import IdSource
from penstock.engine.requests.paging import read_cursor, slice_limit
from penstock.engine.requests.payload import EMPTY_OBJECT, check_text
from penstock.errors import BadRequest, PenstockError
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import messages as store
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import KeptMessage, MessageReceiver, MessageResult, PublishedMessage, PublishRequest
from penstock.wire.page import Page

TTL_DEFAULT_S: Final = 86_400.0
NOW_OR_NEVER: Final = "PT0S"
MESSAGE_ID_MAX_CHARS: Final = 256
PURGE_MAX_ROWS: Final = 1_000
PURGES_MAX: Final = 200
"""Such transactions of one round of chores."""


class Messages:
    """The operations on messages."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        full_path: FullPath,
        timers: Timers,
        id_source: IdSource,
    ) -> None:
        self._database = database
        self._settings = settings
        self._metrics = metrics
        self._definitions = definitions
        self._ids = id_source
        self.commit_queue = Publications(database, settings, metrics, full_path, timers)

    async def publish(self, request: PublishRequest) -> PublishedMessage:
        """Publish a message: whoever waits for it has received it, or it is kept.

        Raises BadRequest, IdempotencyConflict (another message came with its ``message_id``), Conflict (too many wait
        for one that is for all), TooManyRequests (too many are kept).
        """
        item = self._item(request)
        self.commit_queue.submit_nowait(item)
        return await self._answer(item)

    async def publish_many(self, requests: Sequence[PublishRequest]) -> list[MessageResult]:
        """Return one answer each; a bad one fails none of the others."""
        items: list[PublishItem | PenstockError] = []
        for request in requests:
            try:
                item = self._item(request)
                self.commit_queue.submit_nowait(item)
                items.append(item)
            except PenstockError as error:
                items.append(error)
        results: list[MessageResult] = []
        for one in items:
            try:
                if isinstance(one, PenstockError):
                    raise one
                results.append(MessageResult(message=await self._answer(one)))
            except PenstockError as error:
                results.append(MessageResult(error=error.code, reason=error.reason))
        return results

    def _item(self, request: PublishRequest) -> PublishItem:
        for value, field, most in (
            (request.name, "name", NAME_MAX_CHARS),
            (request.correlation_key, "correlationKey", KEY_MAX_CHARS),
            (request.message_id, "messageId", MESSAGE_ID_MAX_CHARS),
        ):
            if value == "":
                raise BadRequest(f"{field}: is required" if field != "messageId" else f"{field}: must not be empty")
            if value is not None:
                check_text(value, field, most)
        if request.deliver not in (None, "ONE", "ALL"):
            raise BadRequest("deliver: must be ONE or ALL")
        for_all = request.deliver == "ALL"
        ttl_s = _ttl_s(request.ttl, for_all=for_all)
        body = EMPTY_OBJECT if request.variables is None else request.variables
        message = store.NewMessage(
            self._ids.next(),
            request.name,
            request.correlation_key,
            for_all,
            ttl_s,
            body,
            actor(),
            request.message_id,
        )
        return PublishItem(message, _digest(message), max(ttl_s, self._settings.idempotency_retention_hours * 3600))

    async def _answer(self, item: PublishItem) -> PublishedMessage:
        published = await item.wait_answer()
        receivers, kept = published.receivers, published.kept
        if not receivers:
            return PublishedMessage(delivered=[], kept=kept)
        if published.repeated is None:
            arrivals = [await _arrived(command) for command in published.going]
            receivers = [receiver for receiver, there in zip(receivers, arrivals, strict=True) if there]
        async with self._database.connection() as connection:
            if len(receivers) < len(published.receivers):
                kept = bool(await store.there(connection, [published.message]))
            return PublishedMessage(delivered=await self._shown(connection, receivers), kept=kept)

    async def _shown(
        self, connection: TrioConnection, receivers: Sequence[tuple[int, int, int]]
    ) -> list[MessageReceiver]:
        shown: list[MessageReceiver] = []
        for instance, definition, step in receivers:
            loaded = await self._definitions.by_key(connection, definition)
            shown.append(
                MessageReceiver(instance_id=ids.show_instance(instance), step_id=loaded.definition.steps[step].id)
            )
        return shown

    async def listing(self, name: str | None, key: str | None, cursor: str | None, limit: int) -> Page[KeptMessage]:
        """Messages that nobody has received yet, oldest first; without their variables. Raises BadRequest."""
        count = slice_limit(limit)
        async with self._database.connection() as connection:
            rows = await store.listing(connection, name, key, read_cursor(cursor, 0), count + 1)
        items = [
            KeptMessage(
                id=f"{row.id:x}",
                name=row.name,
                correlation_key=row.key,
                message_id=row.message_id,
                published_at=row.published_at,
                expires_at=row.expires_at,
                size_bytes=row.size_bytes,
                taken=row.taken,
            )
            for row in rows[:count]
        ]
        return Page(items=items, next=items[-1].id if len(rows) > count else None)

    async def chores(self, connection: TrioConnection) -> None:
        """Forget what has expired, and count what is kept."""
        for _ in range(PURGES_MAX):
            gone = await store.purge(connection, PURGE_MAX_ROWS)
            self._metrics.messages_expired.inc(gone)
            if gone < PURGE_MAX_ROWS:
                break
        for _ in range(PURGES_MAX):
            if await store.purge_ids(connection, PURGE_MAX_ROWS) < PURGE_MAX_ROWS:
                break
        kept = self.commit_queue.kept
        kept.items, kept.bytes = await store.count(connection, self._settings.messages_kept_max_items)
        self._metrics.messages_kept.set(kept.items)


async def _arrived(command: MessageCommand) -> bool:
    """Return whether the wait got its message; False also while somebody holds its instance."""
    try:
        return await command.wait_tried() and bool(await command.wait_answer())
    except PenstockError:
        return False


def _ttl_s(text: str | None, *, for_all: bool) -> float:
    if text is None:
        return 0.0 if for_all else TTL_DEFAULT_S
    if text == NOW_OR_NEVER:
        return 0.0
    if for_all:
        raise BadRequest("ttl: a message for all goes to those that wait now, and is not kept: PT0S, or none")
    try:
        return parse_duration(text)
    except DurationError as error:
        raise BadRequest(f"ttl: {error}") from None


def _digest(message: store.NewMessage) -> bytes:
    """What makes two messages with one id the same. Variables by value, whatever the order of their keys."""
    about = msgspec.json.encode([message.name, message.key, message.for_all, message.ttl_s])
    return hashlib.sha256(about + msgspec.json.encode(msgspec.json.decode(message.body), order="sorted")).digest()
