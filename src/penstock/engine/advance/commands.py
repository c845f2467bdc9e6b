"""Commands: one class per thing that can be done with an instance, each only says what it wants."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from penstock.access.identity import actor
from penstock.core.advance.compensation import is_compensating
from penstock.core.advance.effect import AuditRow, Effects
from penstock.core.advance.event import (
    CancellationRequested,
    Event,
    JobCompleted,
    JobDeadLettered,
    JobFailed,
    JobParked,
    RetryRequested,
    StepGivenUp,
    TaskCompleted,
    TimerFired,
)
from penstock.core.graph.definition import Step, StepType
from penstock.core.rules.fencing import FenceDecision, FenceRequest, decide_fence
from penstock.core.rules.state import RETRY_TIMER, START_TIMER, InstanceStatus, Token, TokenState
from penstock.engine.advance.command import AlreadyAnswered, Command, IsCode, WritesOnly
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.requests.ids import show_instance
from penstock.errors import BadRequest, Conflict, NotFound, PenstockError
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows import calls, for_each, inbox, keys, timers
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo, JobKey


class ReportCommand(Command):
    """What a worker reports of a job, which has to pass the fence. Answers a Verdict."""

    __slots__ = ("call", "output", "reported")

    def __init__(self, job: JobKey, call: FenceRequest, reported: JobCompleted | JobFailed | JobParked) -> None:
        super().__init__(job.instance, job=job, worker=call.worker)
        self.call = call
        self.reported = reported
        match reported:
            case JobCompleted():
                self.output = reported.output
            case JobFailed():
                self.output = reported.data
            case JobParked():
                self.output = None

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert known is not None
        decision = decide_fence(self.call, known.execution)
        if decision is not FenceDecision.APPLY:
            raise AlreadyAnswered(decision)
        return self.reported

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        return FenceDecision.DONE


class DeadLetterCommand(Command):
    """A job whose lease expired as often as is allowed. ``on_end`` is told what became of it where nobody waits for
    that: of one that stood aside, as another transaction held its rows."""

    __slots__ = ("attempt", "expiries", "key", "on_end")

    def __init__(self, key: JobKey, attempt: int, expiries: int) -> None:
        super().__init__(key.instance)
        self.on_end: Callable[[PenstockError | None], None] | None = None
        self.key = key
        self.attempt = attempt
        self.expiries = expiries

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        token = next((token for token in locked.tokens if token.id == self.key.token), None)
        if loaded.code or token is None or token.seq != self.key.seq or token.attempt != self.attempt:
            raise AlreadyAnswered(None)  # a durable run never fails for its executors (`store.rows.journal.expire`)
        if token.state is not TokenState.LOCKED or token.lease_until is None or token.lease_until > locked.now:
            raise AlreadyAnswered(None)  # also when a late heartbeat extended the lease meanwhile
        return JobDeadLettered(token.id, self.expiries)

    def answer(self, answer: object) -> None:
        super().answer(answer)
        self._notify(None)

    def refuse(self, error: PenstockError) -> None:
        super().refuse(error)
        self._notify(error)

    def _notify(self, error: PenstockError | None) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(error)


class CancelCommand(Command):
    """Cancel an instance. Raises IsCode for a durable run that has begun and is not to be ended by ``force``.
    ``compensate``: what it did is undone first. ``note`` is for the audit trail; else that has the reason."""

    __slots__ = ("actor", "compensate", "force", "note", "reason")

    def __init__(
        self,
        instance: int,
        reason: str | None,
        *,
        force: bool = False,
        compensate: bool = False,
        note: str | None = None,
    ) -> None:
        super().__init__(instance)
        self.note = reason if note is None else note
        self.force = force
        self.compensate = compensate
        self.reason = reason
        self.actor = actor()

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        if locked.instance.status is not InstanceStatus.ACTIVE:
            status = locked.instance.status.name
            raise Conflict(f"the run has ended: it is {status}" if loaded.code else f"the instance is {status} already")
        if loaded.code and not self.force and any(map(_has_begun, locked.tokens)):
            raise IsCode
        if self.compensate and is_compensating(loaded.definition, locked.tokens):
            raise Conflict("the instance is being compensated already")
        return CancellationRequested(self.reason, self.compensate)

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        effects.audit.append(AuditRow("CANCELLED", actor=self.actor, detail=self.note))
        return None


def _has_begun(token: Token) -> bool:
    """Return whether an executor has ever had the durable run; before, there is nothing that it could clean up."""
    return token.state is not TokenState.DELAYED and (token.state is not TokenState.READY or token.attempt > 0)


async def take_up(connection: TrioConnection, locked: LockedInstance) -> None:
    """Before a FAILED instance goes on: its caller must wait for it still, and its key be free. Raises Conflict."""
    instance = locked.instance.id
    if locked.instance.status is not InstanceStatus.FAILED:
        return
    read = await calls.take_notification(connection, instance)
    if read is not None and not read[1]:
        raise Conflict(
            f"instance '{show_instance(read[0])}', which called it, does not wait for it any more: retry that instance"
        )
    holder = await keys.reclaim(connection, instance)
    if holder is not None:
        raise Conflict(f"instance '{show_instance(holder)}' has the same instance key")


def failed_tokens(locked: LockedInstance, failed_until: datetime | None) -> list[Token]:
    """What the failure of a FAILED instance closed. ``failed_until``: only of one that failed by then. Raises
    Conflict."""
    if failed_until is not None and locked.ended_at is not None and locked.ended_at > failed_until:
        raise Conflict("it has failed again since")
    if locked.snapshot is None:
        raise Conflict("nothing is left to retry: migrate or move the instance")
    return msgspec.json.decode(locked.snapshot, type=list[Token])


async def check_compensated(connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
    """Before a FAILED instance is retried: no item may have been done whose result an older engine could not map and
    did not keep. Raises Conflict."""
    if locked.instance.status is not InstanceStatus.FAILED or locked.snapshot is None or not loaded.maps:
        return
    steps = loaded.definition.steps
    items = [
        token
        for token in msgspec.json.decode(locked.snapshot, type=list[Token])
        if token.item is not None
        and token.raw is None
        and (each := steps[token.step].for_each) is not None
        and (each.collect is not None or each.until is not None)
        and steps[token.step].callee is None  # its instance says what it gave
    ]
    done = await for_each.failed_when_done(connection, locked.instance.id, items, [steps[t.step].type for t in items])
    if done is not None:
        raise Conflict(
            f"step '{steps[done.step].id}': item {done.item} was done before its result could not be mapped, and an "
            'older engine did not keep the result: a retry with `"again": true` does the work again; or skip the step'
        )


class RetryCommand(Command):
    """Let a failed instance go on. ``failed_until``: only if it failed by then, so that nothing is retried twice.
    ``again``: also where that does work again. Raises IsCode for a durable run."""

    __slots__ = ("actor", "again", "failed_until", "note")

    def __init__(
        self, instance: int, note: str | None = None, failed_until: datetime | None = None, *, again: bool = False
    ) -> None:
        super().__init__(instance)
        self.again = again
        self.actor = actor()
        self.note = note
        self.failed_until = failed_until

    prepares = True

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        await take_up(connection, locked)
        if not self.again:
            await check_compensated(connection, locked, loaded)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        if locked.instance.status is not InstanceStatus.FAILED:
            raise Conflict(f"only a FAILED instance can be retried; this one is {locked.instance.status.name}")
        if loaded.code:
            raise IsCode
        locked.tokens[:] = failed_tokens(locked, self.failed_until)
        return RetryRequested()

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        effects.audit.append(AuditRow("RETRIED", actor=self.actor, detail=self.note))
        return None


class TaskCommand(Command):
    """Complete the oldest open execution of a user task, or that with this token and seq, or signal that of a wait."""

    __slots__ = ("actor", "by", "detail", "execution", "kind", "nameless", "output", "step_id")

    def __init__(
        self,
        instance: int,
        step_id: str,
        kind: StepType,
        output: bytes | None,
        by: str | None,
        execution: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(instance)
        self.execution = execution
        self.step_id = step_id
        self.kind = kind
        self.output = output
        self.actor = actor(by)
        self.by = self.actor if by is None else by
        self.detail = None if self.by == self.actor else f"for {self.by}"
        self.nameless = self.by is None and kind is StepType.USER_TASK

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        """Where nothing says who completes a task, it is whoever has claimed it."""
        step = loaded.definition.step(self.step_id) if self.nameless else None
        token = None if step is None or step.type is not self.kind else _oldest(locked.tokens, step, self.execution)
        if step is not None and token is not None:
            key = inbox.TaskKey(loaded.task_type_of(step.index), token.seq)
            self.actor = self.by = await inbox.assignee(connection, key)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        signal = self.kind is StepType.WAIT
        if loaded.code and signal:
            raise IsCode
        step = loaded.definition.step(self.step_id)
        if locked.instance.status is not InstanceStatus.ACTIVE:
            raise Conflict(f"the instance is {locked.instance.status.name}")
        if step is None:
            text = f"step '{self.step_id[:256]}' is unknown"
            raise Conflict(text) if signal else NotFound(text)
        if step.type is not self.kind:
            raise BadRequest(f"step '{step.id}' has the type {step.type.value}, not {self.kind.value}")
        token = _oldest(locked.tokens, step, self.execution)
        if token is None:
            return self.not_open(locked, step)
        return self.finish(locked, token)

    def finish(self, locked: LockedInstance, token: Token) -> Event:
        """The step is open on ``token``."""
        return TaskCompleted(token.id, self.by, self.output)

    def not_open(self, locked: LockedInstance, step: Step) -> Event:
        """No execution of the step is open."""
        if self.kind is StepType.WAIT:
            raise Conflict(f"the instance is not parked at '{step.id}'")
        raise NotFound(f"user task '{step.id}' is not open")

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        step = loaded.definition.step(self.step_id)
        kind = "SIGNALLED" if self.kind is StepType.WAIT else "USER_TASK_COMPLETED"
        index = None if step is None else step.index
        effects.audit.append(AuditRow(kind, step=index, actor=self.actor, detail=self.detail))
        return None


TimerKey = tuple[int, int, int]
"""Token, seq and index."""


def ignore_refusal(instance: int, timer: TimerKey, error: PenstockError) -> None:
    """Nobody counts refusals."""


class TimerCommand(Command):
    """A timer is due. Answers whether it fired. One of an execution that is closed is garbage, and goes.

    ``give_up``: the reason with which it fails its instance instead of firing. ``on_refused`` hears of a refusal that
    nobody waits for any more, as the item had to wait or takes long.
    """

    __slots__ = ("_give_up", "_on_refused", "_void")

    def __init__(
        self,
        instance: int,
        timer: TimerKey,
        give_up: str | None = None,
        on_refused: Callable[[int, TimerKey, PenstockError], object] = ignore_refusal,
    ) -> None:
        super().__init__(instance, timer=timer)
        self._void = False
        self._give_up = give_up
        self._on_refused = on_refused

    @property
    def same_as(self) -> object:
        return self.timer

    def refuse(self, error: PenstockError) -> None:
        if not self.settled and (self.was_lock_waiting or self.was_long):
            assert self.timer is not None
            self._on_refused(self.instance, self.timer, error)
        super().refuse(error)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        assert self.timer is not None
        token_id, seq, index = self.timer
        if not armed:
            raise AlreadyAnswered(False)
        token = next((token for token in locked.tokens if token.id == token_id and token.seq == seq), None)
        self._void = (
            token is None
            or not (token.is_open or token.state in (TokenState.FORKED, TokenState.DELAYED))  # FORKED: a forEach
            or (index == RETRY_TIMER and token.state is not TokenState.BACKOFF)
            or (index == START_TIMER) is not (token.state is TokenState.DELAYED)
        )
        if self._void:
            self.planned = False
            raise WritesOnly
        return (
            TimerFired(token_id, index)
            if self._give_up is None or loaded.code
            else StepGivenUp(token_id, self._give_up)
        )

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        return True

    def statements(self) -> list[Statement]:
        assert self.timer is not None
        return [timers.delete(*self.timer)] if self._void else []


class FoldCommand(Command):
    """Move the variable deltas of an instance into its overlay. No event."""

    __slots__ = ("_done",)

    repeatable = True
    folds = True

    def __init__(self, instance: int, done: Callable[[], None]) -> None:
        super().__init__(instance)
        self._done = done

    def answer(self, answer: Any) -> None:
        self._done()
        super().answer(answer)

    def refuse(self, error: PenstockError) -> None:
        self._done()
        super().refuse(error)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        if locked.instance.status is not InstanceStatus.ACTIVE:
            raise AlreadyAnswered(None)
        raise WritesOnly


def _oldest(tokens: list[Token], step: Step, execution: tuple[int, int] | None) -> Token | None:
    """``execution``: only that one."""
    parked = [
        token
        for token in tokens
        if token.step == step.index and token.state is TokenState.PARKED and execution in (None, (token.id, token.seq))
    ]
    return min(parked, key=lambda token: token.seq, default=None)
