"""What one instance tells another, and messages that are for a wait: commands whose timers another transaction has
inserted (`store/queries/calls.sql`, `messages.sql`).

Each holds its timer first, those of a batch together (`hear`): the row is there for one of several who want to act on
it (`RetryCommand` is another one), and goes with what they write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.core.advance.compensation import is_compensating
from penstock.core.advance.effect import Effects, Timer
from penstock.core.advance.event import (
    CancellationRequested,
    ChildEnded,
    Event,
    MessageReceived,
    RetryRequested,
    StepGivenUp,
)
from penstock.core.rules.state import (
    CANCEL_TIMER,
    CHILD_TIMER,
    MESSAGE_TIMER,
    RECORDED_TIMER,
    REOPEN_TIMER,
    InstanceStatus,
    Token,
)
from penstock.engine.advance.command import AlreadyAnswered, Command, IsCode, WritesOnly
from penstock.engine.advance.commands import TimerCommand, TimerKey, ignore_refusal
from penstock.engine.advance.recorded import RecordedCommand
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.requests.ids import show_instance
from penstock.errors import PenstockError
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import calls, messages, timers
from penstock.store.rows import instances as instance_store
from penstock.store.rows.calls import Child
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.instances import InstanceRow
from penstock.store.rows.jobs import ExecutionInfo

NO_TIME = datetime.min.replace(tzinfo=UTC)
"""Of timers that are only named."""
CANCEL_REASON = "the call that waited for it was closed"


RESULTS_MAX_BYTES = 8_388_608
"""Of children that are read for one batch; what has more is read by itself."""


class _CallNotice(TimerCommand):
    """Something that another instance told this one. Answers whether it was acted on."""

    __slots__ = ("_acted", "held")

    held: bool
    """Whether the timer is there, and nobody else's."""

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        self.planned, self._acted = False, False
        if not self.held:
            raise AlreadyAnswered(False)

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        assert self.timer is not None
        self._acted = True
        effects.fired.append(Timer(NO_TIME, *self.timer))
        return True

    def statements(self) -> list[Statement]:
        assert self.timer is not None
        return [] if self._acted else [timers.delete(*self.timer)]


class ChildEndedCommand(_CallNotice):
    """A call's instance has ended."""

    __slots__ = ("child", "result")

    child: Child | None
    result: bytes | None

    def asks_for(self, locked: LockedInstance, loaded: LoadedDefinition) -> int | None:
        """The instance whose result is asked for. None is where it is given up: that may be what failed."""
        assert self.timer is not None
        token = _waiting(locked, *self.timer[:2])
        done = self.child is not None and self.child.status is InstanceStatus.COMPLETED
        if self.child is None or token is None or not done or self._give_up is not None:
            return None
        step = loaded.definition.steps[token.step]
        return self.child.id if step.for_each is not None or (step.callee is not None and step.callee.output) else None

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        await super().prepare(connection, locked, loaded)
        asked = self.asks_for(locked, loaded)
        if asked is not None and self.result is None:
            [row] = await instance_store.view(connection, [asked])
            self.result = _result(row)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        token = _waiting(locked, *self.timer[:2])
        child = self.child
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
            self.result,
        )


class CancelChildCommand(_CallNotice):
    """The call that waited for the instance was closed. What is undone when it fails is undone now, too. Raises IsCode
    for a durable run."""

    __slots__ = ()

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        if locked.instance.status is not InstanceStatus.ACTIVE or locked.called_seq != self.timer[1]:
            raise WritesOnly
        if loaded.code:
            raise IsCode
        undo = loaded.definition.undoes_failures
        if undo and is_compensating(loaded.definition, locked.tokens):
            raise WritesOnly  # as it is
        return CancellationRequested(CANCEL_REASON, undo)


class ReopenChildCommand(_CallNotice):
    """A `retry` of the caller came back to the call: what failed goes on. Where it can't, the caller is told again."""

    __slots__ = ("_notifies",)

    @property
    def arms(self) -> bool:
        """The caller is told by a timer."""
        return self._notifies

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        self._notifies = False
        if locked.called_seq != self.timer[1] or locked.instance.status is InstanceStatus.ACTIVE:
            raise WritesOnly
        if locked.instance.status is not InstanceStatus.FAILED or locked.snapshot is None:
            self._notifies = True
            raise WritesOnly
        locked.tokens[:] = msgspec.json.decode(locked.snapshot, type=list[Token])
        return RetryRequested()

    def statements(self) -> list[Statement]:
        return [*super().statements(), *(calls.notifications([], [], [self.instance], []) if self._notifies else [])]


class MessageCommand(_CallNotice):
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


async def read_notices(
    connection: TrioConnection,
    items: Sequence[Command],
    instances: Mapping[int, LockedInstance],
    loaded: Mapping[int, LoadedDefinition],
) -> None:
    """Hold the timers of what instances were told, and read what the children of calls ended with."""
    notices = [item for item in items if isinstance(item, _CallNotice)]
    if not notices:
        return
    ended = [item for item in notices if isinstance(item, ChildEndedCommand)]
    waiting = [item.timer[:2] for item in ended if item.timer is not None]
    held, children = await calls.lock_notices(connection, [item.timer for item in notices if item.timer], waiting)
    for item in notices:
        item.held = item.timer in held
    asked: dict[int, ChildEndedCommand] = {}
    for item in ended:
        assert item.timer is not None
        item.child, item.result = children.get(item.timer[:2]), None
        locked = instances.get(item.instance)
        child = None if locked is None or not item.held else item.asks_for(locked, loaded[item.instance])
        if child is not None:
            asked[child] = item
    if not asked:
        return
    try:
        rows = await instance_store.view(connection, list(asked), RESULTS_MAX_BYTES)
    except KeyMissing:
        return  # each is read by itself: one that can't be is refused, and no other one
    for row in rows:
        asked[row.id].result = None if row.variables is None else _result(row)


def _result(row: InstanceRow) -> bytes:
    return (row.result or row.variables or "{}").encode()


def _waiting(locked: LockedInstance, token_id: int, seq: int) -> Token | None:
    return next((token for token in locked.tokens if (token.id, token.seq) == (token_id, seq) and token.is_open), None)


_BY_INDEX: dict[int, type[TimerCommand]] = {
    CHILD_TIMER: ChildEndedCommand,
    CANCEL_TIMER: CancelChildCommand,
    REOPEN_TIMER: ReopenChildCommand,
    MESSAGE_TIMER: MessageCommand,
    RECORDED_TIMER: RecordedCommand,
}


def timer_command(
    instance: int,
    timer: TimerKey,
    give_up: str | None = None,
    on_refused: Callable[[int, TimerKey, PenstockError], object] = ignore_refusal,
) -> TimerCommand:
    """What is to be done when a timer is due."""
    return _BY_INDEX.get(timer[2], TimerCommand)(instance, timer, give_up, on_refused)
