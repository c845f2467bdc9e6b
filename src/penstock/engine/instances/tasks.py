"""Operations on user tasks and waits."""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from penstock.core.advance.event import Event, JobSignalled
from penstock.core.graph.definition import Step, StepType
from penstock.core.rules.state import InstanceStatus, Token, TokenState
from penstock.engine.advance.command import AlreadyAnswered, IsCode, WritesOnly
from penstock.engine.advance.commands import TaskCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.instances.instances import Instances
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, current_reservation
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import EMPTY_OBJECT, check_text
from penstock.errors import Conflict, IdempotencyConflict, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.statements import Statement
from penstock.store.db.vault import Vault
from penstock.store.rows import idempotency, signals
from penstock.store.rows import instances as instance_store
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo
from penstock.wire.model import KeptSignal, Signal, UserTaskCompletion
from penstock.wire.noun import raw

SIGNALS_MAX = 10_000
"""Signals that may be kept for one instance."""
SIGNALS_FULL_BYTES = 4_194_304
"""With so many bytes kept for it an instance takes no further signal: whoever locks it reads up to so many."""


class SignalCommand(TaskCommand):
    """A signal: acts on an open wait or a parked job, or is kept for one that is not there yet, or has others to take
    first."""

    __slots__ = ("_audit", "_kept", "_vault", "buffer", "key", "signal_id")

    def __init__(self, instance: int, request: Signal, *, audit: bool, vault: Vault | None) -> None:
        super().__init__(instance, request.step_id, StepType.WAIT, request.variables, None)
        self._audit = audit
        self._vault = vault
        self.signal_id = request.signal_id
        if request.signal_id is not None:
            self.detail = request.signal_id
        self.buffer = request.buffer or request.signal_id is not None
        self.key = request.idempotency_key
        self._kept: int | None = None

    @property
    def scope(self) -> str:
        """Where the idempotency key is unique."""
        return f"signal:{self.instance:x}:{self.step_id}"

    @property
    def digest(self) -> bytes:
        """What makes two signals with one key the same."""
        value = msgspec.json.decode(self.output or b"{}")
        return hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()

    @property
    def signal_digest(self) -> bytes:
        """What makes two signals with one id the same. The id is the instance's, not the step's."""
        return hashlib.sha256(self.step_id.encode() + b"\0" + self.digest).digest()

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        if self.signal_id is not None:
            came = await signals.find_id(connection, self.instance, self.signal_id)
            if came is not None:
                if came != self.signal_digest:
                    raise IdempotencyConflict("signalId: another signal came to the instance with this id")
                raise AlreadyAnswered(None)
        if self.key is None:
            return
        used = await idempotency.find(connection, self.scope, self.key)
        if used is not None:
            if bytes(used[0]) != self.digest:
                raise IdempotencyConflict("the Idempotency-Key was used with another request")
            raise AlreadyAnswered(None)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        self._kept = None
        step = loaded.definition.step(self.step_id)
        of_job = step is None or step.type is StepType.SERVICE_TASK
        if of_job and not loaded.code and locked.instance.status is InstanceStatus.ACTIVE:
            token = self._parked_job(locked, step)
            if token is not None:
                return JobSignalled(token.id, self.output)
            if step is not None and self.buffer:
                return self._keep(locked, step.index)
        return super().event(locked, loaded, known, armed)

    def _parked_job(self, locked: LockedInstance, step: Step | None) -> Token | None:
        """The oldest one that waits for a signal of this name, or waits for one at the step."""
        index = -1 if step is None else step.index
        waiting = [
            token
            for token in locked.tokens
            if token.state is TokenState.PARKED
            and token.waits_for is not None
            and (token.waits_for == self.step_id or token.step == index)
        ]
        return min(waiting, key=lambda token: token.seq, default=None)

    def not_open(self, locked: LockedInstance, step: Step) -> Event:
        if not (self.buffer or step.buffer):
            return super().not_open(locked, step)
        return self._keep(locked, step.index)

    def finish(self, locked: LockedInstance, token: Token) -> Event:
        if locked.signals.get(token.step):  # those come first, and bring this one along (`CONTINUE_TIMER`)
            return self._keep(locked, token.step)
        return super().finish(locked, token)

    def _keep(self, locked: LockedInstance, step: int) -> Event:
        if locked.kept_count >= SIGNALS_MAX:
            raise Conflict(f"{SIGNALS_MAX} signals are kept for this instance already")
        if locked.kept_bytes >= SIGNALS_FULL_BYTES:
            raise Conflict(f"signals of {SIGNALS_FULL_BYTES} bytes are kept for this instance already")
        self._kept = step
        raise WritesOnly

    def statements(self) -> list[Statement]:
        writes: list[Statement] = []
        if self._kept is not None:
            writes.append(
                signals.keep(
                    self.instance,
                    self._kept,
                    self.output or b"{}",
                    self._vault,
                    audit=self._audit,
                    actor=self.actor,
                    id=self.signal_id,
                )
            )
        if self.signal_id is not None:
            writes.append(signals.record_signal_id(self.instance, self.signal_id, self.signal_digest))
        if self.key is not None:
            writes.append(idempotency.use(self.scope, self.key, self.digest, self.instance))
        return writes


class SendsToRuns(Protocol):
    """Takes a signal to an instance whose body is code."""

    async def send(
        self, instance_id: str, name: str, payload: bytes, *, dedup: str | None = None, bulk: int | None = None
    ) -> None: ...


class Tasks:
    """The operations on user tasks and waits."""

    def __init__(
        self,
        database: Database,
        definitions: Definitions,
        instances: Instances,
        full_path: FullPath,
        runs: SendsToRuns,
        *,
        audit: bool,
    ) -> None:
        self._database = database
        self._instances = instances
        self._audit = audit
        self._definitions = definitions
        self._full_path = full_path
        self._runs = runs

    async def complete_user_task(self, request: UserTaskCompletion) -> None:
        """Complete the oldest open execution of a user task, or the one that is named.

        Raises NotFound (no such instance, step or open task), BadRequest (another type of step), Conflict (the
        instance has ended). Not idempotent: a repeat finds the task closed.
        """
        if request.completed_by is not None:
            check_text(request.completed_by, "completedBy", NAME_MAX_CHARS)
        check_text(request.step_id, "stepId", NAME_MAX_CHARS)
        instance = ids.read_instance(request.instance_id)
        execution = ids.read_execution(request.execution_id)
        await self._full_path.submit(
            TaskCommand(
                instance, request.step_id, StepType.USER_TASK, request.variables, request.completed_by, execution
            )
        )

    async def signal(self, request: Signal) -> None:
        """Signal the oldest open execution of a wait, or the oldest job whose worker waits for a signal: by the id of
        the step, or by the name that the worker gave.

        The signal is kept when none is open, if it has ``buffer`` or a ``signal_id``, or the step says so.

        Raises NotFound (no such instance), BadRequest (another type of step), Conflict (not parked there, unknown
        step, ended instance), IdempotencyConflict. Idempotent with a key or an id.
        """
        await self._signal(ids.read_instance(request.instance_id), request)

    async def signal_one_of_many(self, instance: int, request: Signal, bulk: int) -> None:
        """As `signal`, counted for a bulk operation."""
        await self._signal(instance, request, bulk)

    async def signal_by_key(self, definition_id: str, instance_key: str, request: Signal) -> None:
        """As `signal`, to the instance that has the key: the open one, or the one that keeps it."""
        number = await self._instances.find_by_key(definition_id, instance_key)
        if number is None:
            raise NotFound(f"no instance of '{definition_id}' has the instance key '{instance_key}'")
        await self._signal(number, request)

    async def _signal(self, instance: int, request: Signal, bulk: int | None = None) -> None:
        for value, field in ((request.idempotency_key, "Idempotency-Key"), (request.signal_id, "signalId")):
            if value is not None:
                check_text(value, field, NAME_MAX_CHARS)
        check_text(request.step_id, "stepId", NAME_MAX_CHARS)
        command = SignalCommand(instance, request, audit=self._audit, vault=self._database.vault)
        try:
            await self._full_path.submit(command.of(bulk))
        except IsCode:
            await self._runs.send(
                ids.show_instance(instance),
                request.step_id,
                request.variables or EMPTY_OBJECT,
                dedup=request.signal_id or request.idempotency_key,
                bulk=bulk,
            )

    async def buffered(self, instance_id: str) -> list[KeptSignal]:
        """Return the signals kept for an instance, oldest first. Raises NotFound."""
        number = ids.read_instance(instance_id)
        await current_reservation().reserve_soon(COPIES * SIGNALS_FULL_BYTES)
        async with self._database.connection() as connection:
            rows = await instance_store.view(connection, [number], None)
            if not rows:
                raise NotFound(f"instance '{instance_id}' is unknown")
            loaded = await self._definitions.by_key(connection, rows[0].definition)
            kept = await signals.of_instance(connection, number)
        return [
            KeptSignal(id=f"{id:x}", step_id=loaded.definition.steps[step].id, received_at=at, variables=raw(variables))
            for id, step, at, variables in kept
        ]
