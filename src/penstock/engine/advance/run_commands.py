"""Commands about durable runs, for what is not said to their journals: a failed one is taken up again."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.core.advance.effect import Effects
from penstock.core.advance.event import Event, RetryRequested
from penstock.core.rules.state import InstanceStatus, Token, TokenState
from penstock.engine.advance.commands import RetryCommand, failed_tokens
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.queues.journal_items import DONE_KINDS, FAILED_KINDS, RecordKind
from penstock.errors import BadRequest, Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows import journal_cuts as store
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo

FROM_START: Final = "start"
FROM_END: Final = "end"
"""In place of a path: nothing is forgotten, what changed is the code."""


class RetryRunCommand(RetryCommand):
    """Let a failed run go on: from the step that failed last, or from the operation with a path. The records before
    stay, and the body gets there by them."""

    __slots__ = ("_cut_at", "_execution", "_path")

    def __init__(
        self,
        instance: int,
        note: str | None = None,
        failed_until: datetime | None = None,
        from_path: str | None = None,
    ) -> None:
        super().__init__(instance, note, failed_until)
        self._path = from_path

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        if not loaded.code or locked.instance.status is not InstanceStatus.FAILED:
            return  # `event` refuses it
        await super().prepare(connection, locked, loaded)
        self._execution = await store.last_execution(connection, self.instance)
        self._cut_at = await self._find_cut(connection)

    async def _find_cut(self, connection: TrioConnection) -> store.FailedStep:
        """The operation that is done again, and its position."""
        path = self._path
        if path == FROM_START:
            return store.FailedStep("", 0, None, None)
        if path == FROM_END:
            return store.FailedStep("", store.BEYOND_ALL, None, None)
        if path is not None:
            outcomes = (*DONE_KINDS, *FAILED_KINDS)
            pos = await store.find_path(connection, self.instance, path, outcomes) if path else None
            if pos is None:
                raise BadRequest(f"fromStepId: nothing with the path '{path[:256]}' is in the run's journal")
            return store.FailedStep(path, pos, None, None)
        failed = await store.find_failed(connection, self.instance, FAILED_KINDS, DONE_KINDS)
        child = await store.last_child(connection, self.instance, RecordKind.CHILD, DONE_KINDS)
        if child is not None and (failed is None or child[0].pos > failed.pos) and not _completed(child[1]):
            failed = child[0]
        if failed is None:
            return store.FailedStep("", store.BEYOND_ALL, None, None)
        if failed.done_path is not None:
            raise Conflict(
                f"'{failed.done_name}' at {failed.done_path} was done after the step that failed, at {failed.path}: say"
                f" from where it goes on; a path, '{FROM_START}' or '{FROM_END}'"
            )
        return failed

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        if not loaded.code:
            raise Conflict("the instance is of a definition, not a durable run: it has no journal to go on from")
        if locked.instance.status is not InstanceStatus.FAILED:
            raise Conflict(f"only a FAILED instance can be retried; this one is {locked.instance.status.name}")
        failed_tokens(locked, self.failed_until)
        last = self._execution
        locked.tokens[:] = [Token(self.instance, self.instance, last.seq, 0, TokenState.READY, last.started_at)]
        return RetryRequested()

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        [token] = effects.inserted
        # the run's time begins where it began; and who takes it knows that there is a journal
        token.entered_at, token.attempt = self._execution.started_at, self._execution.attempt
        return super().after(effects, loaded)

    def statements(self) -> list[Statement]:
        return [store.cut(self.instance, self._cut_at.pos, self._cut_at.path)]


def _completed(payload: str) -> bool:
    """Return whether the end of a child is that of one that did."""
    end: dict[str, Any] = msgspec.json.decode(payload)
    return bool(end["status"] == InstanceStatus.COMPLETED.name)
