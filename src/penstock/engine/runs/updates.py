"""Calls of updates: made by anybody, served by handlers in a workflow function (`penstock.durable.update`).

A call is a record in the run's journal, kept until an executor has it; its answer stands with its id, and is waited for
here: at once where an executor of this engine writes it, else by polling.
"""

from __future__ import annotations

import math
import secrets
from typing import Any, Final

import msgspec
import trio

from penstock.access.identity import actor, check_app, is_limited_to_apps
from penstock.api import updates as api
from penstock.api.permission import Permission
from penstock.core.rules.state import InstanceStatus
from penstock.engine.definitions.definitions import app_of
from penstock.engine.queues.journal_items import UPDATE_RULES, RecordKind
from penstock.engine.requests import ids
from penstock.engine.requests.bound import Binding, bind, needed
from penstock.engine.requests.payload import check_text
from penstock.engine.runs.journal import Journal, digest_of, read_sent
from penstock.engine.runs.subscriptions import WATCH_AGAIN_S
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.settings import Settings
from penstock.store.rows import journal as store
from penstock.wire.noun import raw
from penstock.wire.shown import parts
from penstock.wire.update import RunUpdate, RunView, UpdateCall

UPDATES_VERSION: Final = 23
"""The schema version whose engines know of calls of updates: others would hand a run with one to older programs."""
ID_MAX_CHARS: Final = 200
NAME_MAX_CHARS: Final = 200
WAIT_MAX_S: Final = 20.0
FORGOTTEN: Final = "refused; the run keeps the newest refusals only, and has forgotten why"
"""Of one call that waits for an answer; whoever waits longer asks again."""


class _Answer(msgspec.Struct, frozen=True):
    """As executors write it (`durable.updates`)."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None
    refused: str | None = None


class Updates:
    """The operations on calls. Raise NotFound, Conflict for an instance that is no run, and Forbidden for an executor
    that is limited to other Apps than the run's."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._settings, self._journal, self._subscribers = settings, journal, journal.subscribers
        self._may_ask = False

    async def ask(self, instance_id: str, call: UpdateCall) -> RunUpdate:
        """Make a call, once for each id, and wait for its answer.

        Raises BadRequest, PayloadTooLarge, Conflict (the run has ended), MailboxFull,
        IdempotencyConflict (the id was used for another call), Unavailable.
        """
        number = ids.read_instance(instance_id)
        if not call.name:
            raise BadRequest("name: is required")
        check_text(call.name, "name", NAME_MAX_CHARS)
        id = check_text(call.id, "id", ID_MAX_CHARS) if call.id else secrets.token_hex(12)
        given = b"[]" if call.arguments is None else bytes(call.arguments)
        value = read_sent(given, "arguments", self._settings.payload_max_bytes)
        if value is None:
            value, given = [], b"[]"
        if not isinstance(value, (list, dict)):
            raise BadRequest("arguments: give a list by position, or an object by name")
        wait_s = _wait_s(call.wait_seconds)
        if is_limited_to_apps(Permission.OPERATE):
            found = await self._journal.find_answer(number, id)
            if found is None:
                raise NotFound(f"instance '{instance_id}' is unknown")
            check_app(app_of(found.definition_id), Permission.OPERATE)
        if not self._may_ask:
            await self._journal.require_version(UPDATES_VERSION)
            self._may_ask = True
        try:
            await self._journal.notify(
                store.RunNotice(
                    number,
                    RecordKind.ASKED,
                    id,
                    call.name,
                    given.decode(),
                    f"u:{id}",
                    digest_of(call.name, value),
                    None,
                    sender=actor(),
                    rules=UPDATE_RULES,
                )
            )
        except Conflict as error:
            found = await self._journal.find_answer(number, id)  # it ended, and may have answered the call before
            if found is None or found.status == InstanceStatus.ACTIVE:
                raise
            if not found.is_known:
                raise Conflict(f"the run has ended: it is {InstanceStatus(found.status).name}") from error
        return await self._wait(number, instance_id, id, wait_s, is_known=True)

    async def get(self, instance_id: str, id: str, wait_seconds: int | None = None) -> RunUpdate:
        """Return what became of a call; waits for its answer up to so many seconds, 20 at most. Raises NotFound."""
        check_text(id, "updateId", ID_MAX_CHARS)
        return await self._wait(ids.read_instance(instance_id), instance_id, id, _wait_s(wait_seconds))

    async def _wait(
        self, number: int, instance_id: str, id: str, wait_s: float, *, is_known: bool = False
    ) -> RunUpdate:
        """``is_known``: the run was asked. One that it forgets meanwhile was refused: it keeps all other answers."""
        ends, watched_at = trio.current_time() + wait_s, -math.inf
        with self._subscribers.subscribe(number) as subscription:
            while True:
                found = await self._journal.find_answer(number, id)
                if found is None:
                    raise NotFound(f"instance '{instance_id}' is unknown")
                check_app(app_of(found.definition_id), Permission.VIEW)
                if not found.is_known and is_known:
                    return RunUpdate(id=id, status="REFUSED", reason=FORGOTTEN)
                if not found.is_known:
                    raise NotFound(f"run '{instance_id}' has no call with the id '{id}'")
                shown, is_known = _shown(id, found), True
                if shown.status != "PENDING" or trio.current_time() >= ends:
                    return shown
                watched_at = self._watch(number, found.holder, watched_at)
                await subscription.wait(ends)

    async def view(self, instance_id: str, key: str | None = None, wait_seconds: int | None = None) -> RunView:
        """Return what a run shows, under a key or without one; waits up to so many seconds, 20 at most, until there is
        something or the run has ended. Raises NotFound, and Conflict for an instance that is no run."""
        number, ends = ids.read_instance(instance_id), trio.current_time() + _wait_s(wait_seconds)
        if key is not None:
            check_text(key, "key", NAME_MAX_CHARS)
        watched_at = -math.inf
        with self._subscribers.subscribe(number) as subscription:
            while True:
                found = await self._journal.find_view(number)
                if found is None:
                    raise NotFound(f"instance '{instance_id}' is unknown")
                check_app(app_of(found.definition_id), Permission.VIEW)
                if not found.is_code:
                    raise Conflict(f"instance '{instance_id}' is of a definition, not of code: it shows nothing")
                plain, keyed = parts(found.view)
                value, now = plain if key is None else keyed.get(key), trio.current_time()
                ended = found.status != InstanceStatus.ACTIVE
                if value is not None or ended or now >= ends:
                    return RunView(shown=value is not None, value=None if value is None else raw(value), ended=ended)
                watched_at = self._watch(number, found.holder, watched_at)
                await subscription.wait(ends)

    def _watch(self, instance: int, holder: str | None, watched_at: float) -> float:
        """Ask whoever holds the run to notify its subscribers, unless it was asked lately (Trio's time). Return when it
        was asked last."""
        now = trio.current_time()
        if holder is None or now < watched_at + WATCH_AGAIN_S:
            return watched_at
        self._journal.watch(instance, holder)
        return now


def _wait_s(seconds: float | None) -> float:
    if seconds is not None and seconds < 0:
        raise BadRequest("waitSeconds: must be 0 or more")
    return min(seconds or 0.0, WAIT_MAX_S)


def _shown(id: str, found: store.Answered) -> RunUpdate:
    if found.answer is None:
        if found.status == InstanceStatus.ACTIVE:
            return RunUpdate(id=id, status="PENDING")
        return RunUpdate(id=id, status="UNANSWERED", reason=InstanceStatus(found.status).name)
    answer = msgspec.json.decode(found.answer, type=_Answer)
    if answer.refused is not None:
        return RunUpdate(id=id, status="REFUSED", reason=answer.refused)
    if answer.error is not None:
        error = answer.error
        return RunUpdate(
            id=id, status="FAILED", reason=str(error.get("message")), error_type=str(error.get("typeName"))
        )
    return RunUpdate(id=id, status="DONE", value=raw(bytes(answer.value)))


def bindings(updates: Updates) -> tuple[Binding, ...]:
    """Return what serves the operations on calls of updates."""
    return (
        bind(api.ASK_RUN, lambda ask: updates.ask(ask.id, needed(ask.call, "call"))),
        bind(api.GET_RUN_VIEW, lambda ask: updates.view(ask.id, ask.key or None, ask.wait_seconds)),
        bind(api.GET_RUN_UPDATE, lambda ask: updates.get(ask.id, needed(ask.update_id, "updateId"), ask.wait_seconds)),
    )
