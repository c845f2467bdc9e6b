"""The group-commit queue of messages that are published: each is for a wait then, or kept, and for whom it is stands
written.

One transaction for all that wait in the group-commit queue. What it wrote is taken to the waits by commands on the full
path, which are queued as soon as it is known to be committed, whether or not somebody waits for the answer; what is
lost of them comes again by a timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from penstock.core.rules.correlation import RECEIVERS_MAX, Address, TooManyWaits, Wait, give
from penstock.core.rules.state import MESSAGE_TIMER
from penstock.engine.advance.call_commands import MessageCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.advance.timers import Timers
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.errors import Conflict, IdempotencyConflict, PenstockError, TooManyRequests
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, RefusedWithin, wait_replicated
from penstock.store.db.statements import Statement
from penstock.store.rows import messages as store
from penstock.store.rows.in_doubt import InDoubtCommit
from penstock.store.rows.messages import LockedWaits, NewMessage, Used
from penstock.telemetry.metrics import Metrics

Receiver = tuple[int, int, int]
"""Instance, definition, step."""


class Publication(NamedTuple):
    """What became of a message. ``going``: the commands that take it to its receivers, none for a repeated one."""

    message: int
    receivers: list[Receiver]
    going: list[MessageCommand]
    kept: bool
    """Nobody waits for it yet."""
    repeated: Used | None = None


class PublishItem(Item[Publication]):
    """A message to publish."""

    __slots__ = ("digest", "message", "planned", "remember_s")

    def __init__(self, message: NewMessage, digest: bytes, remember_s: float) -> None:
        super().__init__()
        self.message = message
        self.digest = digest
        self.remember_s = remember_s
        self.planned: list[tuple[Wait, Receiver]] = []

    @property
    def address(self) -> Address:
        return self.message.name, self.message.key


class StoredMessages:
    """How many messages there are, and their bytes: as of the last look, with what this engine has added since."""

    def __init__(self, settings: Settings) -> None:
        self._max_items = settings.messages_kept_max_items
        self._max_bytes = settings.messages_kept_max_bytes
        self.items = self.bytes = 0

    def check(self, size_bytes: int) -> None:
        """Raises TooManyRequests when there is no room for one more."""
        if self.items >= self._max_items:
            raise TooManyRequests(f"{self._max_items} messages are kept already (messages_kept_max_items)")
        if self.bytes + size_bytes > self._max_bytes:
            raise TooManyRequests(f"messages of {self._max_bytes} bytes are kept already (messages_kept_max_bytes)")

    def add(self, size_bytes: int) -> None:
        self.items += 1
        self.bytes += size_bytes


class Publications(GroupCommitQueue[PublishItem]):
    """The group-commit queue."""

    def __init__(
        self, database: Database, settings: Settings, metrics: Metrics, full_path: FullPath, timers: Timers
    ) -> None:
        super().__init__("publish", database, settings, metrics, per_key=1)
        self.kept = StoredMessages(settings)
        self._full_path = full_path
        self._timers = timers

    def key(self, item: PublishItem) -> object:
        """Of two with one id the second has to see the first."""
        return item.message.message_id or item

    async def apply(self, connection: TrioConnection, items: list[PublishItem], again: bool) -> None:
        asked: dict[Address, int] = {}
        for item in items:
            asked[item.address] = asked.get(item.address, 0) + (RECEIVERS_MAX + 1 if item.message.for_all else 1)
        ids = [
            (item.message.message_id, item.digest, item.message.id, item.remember_s)
            for item in items
            if item.message.message_id is not None
        ]
        opened = await store.open_publishing(connection, ids, asked)
        new, given, refused = _decide(items, opened, self.kept)
        if refused:
            await connection.rollback()
            for item, error in refused:
                item.refuse(error)
            if new:
                raise RefusedWithin  # the ids that they took must not be committed with the others
        elif new:
            await self._publish(connection, opened.xid, new, given)
        else:
            await connection.rollback()
        repeats = [item for item in items if not item.settled]
        if repeats:
            await wait_replicated(connection)
            _answer_repeats(repeats, opened.used)

    async def _publish(
        self, connection: TrioConnection, xid: str, items: list[PublishItem], given: dict[Wait, int]
    ) -> None:
        by_id = {item.message.id: item for item in items}
        for item in items:
            item.planned = []
        for wait, definition, step in await store.stand(connection, list(given)) if given else ():
            by_id[given[wait]].planned.append((wait, (wait.instance_id, definition, step)))
        receivers = {
            item.message.message_id: [receiver for _, receiver in item.planned]
            for item in items
            if item.message.message_id is not None and item.planned
        }
        goes = set(given.values())
        written = [item.message for item in items if item.message.ttl_s or item.message.id in goes]
        transaction = _Transaction(xid, items, self)
        with self.transaction(transaction):
            await self.commit(connection, transaction, store.publish(connection, written, given, receivers))

    def deliver(self, item: PublishItem) -> Publication:
        """Take a message to its waits, once it is written."""
        self._metrics.messages_published.inc()
        going: list[MessageCommand] = []
        for wait, _ in item.planned:
            timer = (wait.token_id, wait.seq, MESSAGE_TIMER)
            command = MessageCommand(wait.instance_id, timer, None, self._timers.on_refusal)
            try:
                self._full_path.submit_nowait(command)
            except TooManyRequests as error:
                command.refuse(error)  # the timer brings it
            going.append(command)
        kept = not going and item.message.ttl_s > 0
        if kept:
            self.kept.add(len(item.message.body))
        return Publication(item.message.id, [receiver for _, receiver in item.planned], going, kept)


def _decide(
    items: Sequence[PublishItem], opened: LockedWaits, kept: StoredMessages
) -> tuple[list[PublishItem], dict[Wait, int], list[tuple[PublishItem, PenstockError]]]:
    """Those that are new, the waits that get a message, and those that are refused."""
    new: list[PublishItem] = []
    given: dict[Wait, int] = {}
    refused: list[tuple[PublishItem, PenstockError]] = []
    for item in items:
        message = item.message
        used = opened.used.get(message.message_id or "")
        if used is not None:
            if used.request_hash != item.digest:
                reason = "messageId: another message came with this id"
                refused.append((item, IdempotencyConflict(reason)))
            continue
        try:
            goes = give(opened.waits[item.address], message.id, for_all=message.for_all)
            if not goes and message.ttl_s:
                kept.check(len(message.body))
        except TooManyWaits:
            refused.append((item, Conflict(f"more than {RECEIVERS_MAX} steps wait for it: too many for one message")))
        except TooManyRequests as error:
            refused.append((item, error))
        else:
            given |= goes
            new.append(item)
    return new, given, refused


def _answer_repeats(items: Sequence[PublishItem], used: dict[str, Used]) -> None:
    for item in items:
        before = used[item.message.message_id or ""]
        item.answer(Publication(item.message.id, before.receivers, [], before.there, before))


class _Transaction:
    """A transaction that publishes, for the group-commit queue: its items, and what proves it."""

    def __init__(self, xid: str, items: Sequence[PublishItem], commit_queue: Publications) -> None:
        self.items = items
        self._commit_queue = commit_queue
        self._sent = InDoubtCommit(xid, [], repeatable=False)

    @property
    def proof_writes(self) -> Sequence[Statement]:
        return self._sent.writes

    async def was_committed(self, connection: TrioConnection) -> bool | None:
        return await self._sent.committed(connection)

    def answer(self) -> None:
        for item in self.items:
            item.answer(self._commit_queue.deliver(item))

    async def carry_out(self, connection: TrioConnection, now: datetime | None = None) -> None:
        """Nothing: what is to be done is queued with the answers."""

    def give_up(self) -> None:
        """It reserved nothing."""
