"""Starts that share a key with others: once in a window, so many in a period, one of those that come close together.

Each under the lock of its row of `start_window`, in the transaction of the start: of two at once the second waits for
the first one's commit.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from penstock.core.rules.start_rules import DELAY_MAX_DAYS, Debounce, Dedupe, Throttle, WindowKind
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.starts.start_item import StartItem
from penstock.errors import PayloadTooLarge, Throttled
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows import audit, instances, search_attributes
from penstock.store.rows import starts as store
from penstock.store.rows.starts import StartWindow

DEBOUNCED: Final = "DEBOUNCED"


class StartWindows:
    """What is done with them."""

    def __init__(self, settings: Settings, definitions: Definitions) -> None:
        self._settings = settings
        self._definitions = definitions

    async def dedupe(self, connection: TrioConnection, loaded: LoadedDefinition, rule: Dedupe, id: int) -> int:
        """Return the instance that the window belongs to: ``id``, or an earlier one that is there."""
        window = StartWindow(loaded.definition.id, WindowKind.DEDUPE, rule.key)
        while True:
            holder = await store.claim(connection, window, rule.window_s, id)
            if holder == id or await instances.exists(connection, holder):
                return holder
            if await store.take(connection, window, rule.window_s, id, holder):
                return id

    async def throttle(
        self, connection: TrioConnection, loaded: LoadedDefinition, rule: Throttle, now: datetime
    ) -> datetime | None:
        """When a start begins; None: at once. Raises Throttled."""
        window = StartWindow(loaded.definition.id, WindowKind.THROTTLE, rule.key)
        wait_max_s = DELAY_MAX_DAYS * 86_400.0 if rule.delays else 0.0
        begins, wait_s = await store.throttle(connection, window, rule.pace_s, rule.burst, wait_max_s)
        if not begins:
            raise Throttled(f"throttle: too many starts with the key; one may begin in {wait_s:.3g} s", wait_s)
        return now + timedelta(seconds=wait_s) if wait_s > 0 else None

    def stand_in_line(self, loaded: LoadedDefinition, rule: Throttle, id: int) -> Statement:
        """A start that the throttle has put off is one of those that begin one after the other."""
        window = StartWindow(loaded.definition.id, WindowKind.THROTTLE, rule.key)
        return store.keep_throttle(id, window, rule.pace_s, rule.burst)

    async def debounce(
        self, connection: TrioConnection, loaded: LoadedDefinition, rule: Debounce, item: StartItem, id: int
    ) -> tuple[int, datetime | None, list[Statement]]:
        """The instance that is to begin: ``id``, or one that waits, which has the start's variables now, with its new
        time and what is still to be written. Raises PayloadTooLarge."""
        window = StartWindow(loaded.definition.id, WindowKind.DEBOUNCE, rule.key)
        holder, latest = await store.hold(connection, window, rule.max_wait_s, id)
        if holder == id:
            return id, None, []
        seq = await store.hold_delayed(connection, holder)
        if seq is None:  # it has begun, or is gone
            await store.take(connection, window, rule.max_wait_s, id, holder)
            return id, None, []
        variables = item.request.variables
        size_bytes, definition = await store.replace_variables(connection, holder, variables, merges=rule.merges)
        if size_bytes > self._settings.instance_variables_max_bytes:
            raise PayloadTooLarge(f"variables: more than {self._settings.instance_variables_max_bytes} bytes together")
        at = await store.put_off(connection, holder, seq, rule.wait_s, latest)
        writes: list[Statement] = []
        attributes = (await self._definitions.by_key(connection, definition)).search_attributes  # of its own version
        if attributes is not None:
            if not rule.merges:
                writes += search_attributes.forget(holder)
            writes += search_attributes.of_changes([(holder, attributes, [variables])])
        if self._settings.audit_log_enabled:
            writes.append(audit.add(holder, None, DEBOUNCED, item.actor, None))
        return holder, at, writes
