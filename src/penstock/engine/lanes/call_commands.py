"""What one instance tells another, and messages that are for a wait: commands whose timers another transaction has
inserted (`store/queries/calls.sql`, `messages.sql`).

Each deletes its timer first: the row is there for one of several who want to act on it (`RetryCommand` is another one).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.compensation import is_undoing
from penstock.core.event import CancelRequested, ChildEnded, Event, MessageReceived, RetryRequested, StepGivenUp
from penstock.core.state import CANCEL_TIMER, CHILD_TIMER, MESSAGE_TIMER, REOPEN_TIMER, InstanceStatus, Token
from penstock.engine.definitions import LoadedDefinition
from penstock.engine.ids import show_instance
from penstock.engine.lanes.command import Settled, WritesOnly
from penstock.engine.lanes.commands import TimerCommand, TimerKey, ignore_refusal
from penstock.errors import PenstockError
from penstock.store import calls, messages
from penstock.store import instances as instance_store
from penstock.store.connection import TrioConnection
from penstock.store.full_path import LockedInstance
from penstock.store.jobs import ExecutionInfo
from penstock.store.statements import Statement

CANCEL_REASON = "the call that waited for it was closed"


class _Told(TimerCommand):
    """Something that another instance told this one. Answers whether it was acted on."""

    __slots__ = ()

    prepares = True

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        assert self.timer is not None
        self.planned = False
        if not await calls.take_timer(connection, *self.timer):
            raise Settled(False)

    def statements(self) -> list[Statement]:
        return []


class ChildEndedCommand(_Told):
    """A call's instance has ended."""

    __slots__ = ("_child", "_result")

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        await super().prepare(connection, locked, loaded)
        assert self.timer is not None
        token_id, seq, _ = self.timer
        self._result: bytes | None = None
        self._child = await calls.child_of(connection, token_id, seq)
        token = _waiting(locked, token_id, seq)
        done = self._child is not None and self._child.status is InstanceStatus.COMPLETED
        if self._child is None or token is None or not done or self._give_up is not None:
            return  # nothing is read where it is given up: that may be what failed
        step = loaded.definition.steps[token.step]
        if step.for_each is not None or (step.callee is not None and step.callee.output):
            [row] = await instance_store.view(connection, [self._child.id])
            self._result = (row.result or row.variables or "{}").encode()

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        token = _waiting(locked, *self.timer[:2])
        child = self._child
        if token is None or child is None or child.status is InstanceStatus.ACTIVE:
            raise WritesOnly
        if self._give_up is not None:
            return super().event(locked, loaded, known, armed)
        return ChildEnded(
            token.id,
            show_instance(child.id),
            child.definition_id,
            child.status,
            child.failure,
            child.failure_code,
            self._result,
        )


class CancelChildCommand(_Told):
    """The call that waited for the instance was closed. What is undone when it fails is undone now, too."""

    __slots__ = ()

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        if locked.instance.status is not InstanceStatus.ACTIVE or locked.called_seq != self.timer[1]:
            raise WritesOnly
        undo = loaded.definition.undoes_failures
        if undo and is_undoing(loaded.definition, locked.tokens):
            raise WritesOnly  # as it is
        return CancelRequested(CANCEL_REASON, undo)


class ReopenChildCommand(_Told):
    """A `retry` of the caller came back to the call: what failed goes on. Where it can't, the caller is told again."""

    __slots__ = ("_tells",)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        self._tells = False
        if locked.called_seq != self.timer[1] or locked.instance.status is InstanceStatus.ACTIVE:
            raise WritesOnly
        if locked.instance.status is not InstanceStatus.FAILED or locked.snapshot is None:
            self._tells = True
            raise WritesOnly
        locked.tokens[:] = msgspec.json.decode(locked.snapshot, type=list[Token])
        return RetryRequested()

    def statements(self) -> list[Statement]:
        return calls.tell([], [], [self.instance], []) if self._tells else []


class MessageCommand(_Told):
    """There is a message for a wait. Answers whether the wait got it."""

    __slots__ = ("_message", "output")

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        self._message: messages.GivenMessage | None = None
        self.output = None
        await super().prepare(connection, locked, loaded)
        assert self.timer is not None
        token_id, seq, _ = self.timer
        if self._give_up is None and _waiting(locked, token_id, seq) is not None:
            self._message = await messages.message_for(connection, token_id, seq)
            self.output = None if self._message is None else self._message.body

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        token, message = _waiting(locked, *self.timer[:2]), self._message
        if token is not None and self._give_up is not None:
            return StepGivenUp(token.id, self._give_up)
        if token is None or message is None:
            raise WritesOnly
        return MessageReceived(token.id, message.id, message.name, message.sender, message.body)


def _waiting(locked: LockedInstance, token_id: int, seq: int) -> Token | None:
    return next((token for token in locked.tokens if (token.id, token.seq) == (token_id, seq) and token.is_open), None)


_BY_INDEX: dict[int, type[TimerCommand]] = {
    CHILD_TIMER: ChildEndedCommand,
    CANCEL_TIMER: CancelChildCommand,
    REOPEN_TIMER: ReopenChildCommand,
    MESSAGE_TIMER: MessageCommand,
}


def timer_command(
    instance: int,
    timer: TimerKey,
    give_up: str | None = None,
    on_refused: Callable[[int, TimerKey, PenstockError], object] = ignore_refusal,
) -> TimerCommand:
    """What is to be done when a timer is due."""
    return _BY_INDEX.get(timer[2], TimerCommand)(instance, timer, give_up, on_refused)
