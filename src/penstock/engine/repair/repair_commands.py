"""Commands of people who repair an instance: skip a step, move a token. `core.advance.repair` has what they do."""

from __future__ import annotations

from datetime import datetime

from penstock.access.identity import actor
from penstock.core.advance.effect import AuditRow, Effects
from penstock.core.advance.event import Event, StepSkipped, TokenMoved
from penstock.core.advance.repair import SKIPPABLE, find_mover
from penstock.core.graph.definition import Step
from penstock.core.rules.state import InstanceStatus, Token, TokenState
from penstock.engine.advance.command import Command, IsCode
from penstock.engine.advance.commands import failed_tokens, take_up
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.errors import BadRequest, Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo


class _RepairCommand(Command):
    """About the oldest open execution of a step, or the one that is named, by (token, seq). Of a FAILED instance, which
    goes on by it: of those that the failure closed.

    ``entered_until``: only if it was entered, or failed, by then: so nothing is done twice.
    """

    __slots__ = ("actor", "entered_until", "execution", "note", "step_id")

    prepares = True

    def __init__(
        self,
        instance: int,
        step_id: str | None,
        execution: tuple[int, int] | None,
        note: str | None,
        entered_until: datetime | None,
    ) -> None:
        super().__init__(instance)
        self.actor = actor()
        self.step_id = step_id
        self.execution = execution
        self.note = note
        self.entered_until = entered_until

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        await take_up(connection, locked)

    def find(self, locked: LockedInstance, loaded: LoadedDefinition, *, gateways: bool = False) -> tuple[Token, Step]:
        """Return the token and its step; ``gateways``: also those of gateways, which wait for their branches. Of a
        forEach the whole step, unless an item's execution is named. What a failure closed is put into ``locked``."""
        status = locked.instance.status
        if loaded.code:
            raise Conflict("it is a durable run, which has no steps to choose: its code decides where it goes on")
        if status is InstanceStatus.FAILED:
            locked.tokens[:] = failed_tokens(locked, self.entered_until)
        elif status is not InstanceStatus.ACTIVE:
            raise Conflict(f"the instance is {status.name}: only an open or FAILED instance can be repaired")
        wanted = locked.failed_step if self.step_id is None else self.step_id
        if wanted is None:
            raise BadRequest("stepId: is required, as no failed step is known")
        step = step_of(loaded, wanted, "stepId")
        found = [
            token
            for token in locked.tokens
            if token.step == step.index
            and (token.is_open or (token.state is TokenState.FORKED and (gateways or step.for_each is not None)))
            and self.execution in (None, (token.id, token.seq))
        ]
        if not found:
            raise Conflict(f"step '{step.id}' is not open" + (" with this execution" if self.execution else ""))
        token = min(found, key=lambda token: (token.item is not None, token.seq))
        if status is InstanceStatus.ACTIVE and self.entered_until is not None and token.entered_at > self.entered_until:
            raise Conflict(f"step '{step.id}' was entered again meanwhile: read the instance again")
        return token, step

    def noted(self, what: str) -> str:
        return what if not self.note else f"{what}: {self.note}"


class SkipCommand(_RepairCommand):
    """A step counts as done, with ``output`` as its result."""

    __slots__ = ("_step", "output")

    def __init__(
        self,
        instance: int,
        step_id: str,
        output: bytes | None,
        *,
        execution: tuple[int, int] | None = None,
        note: str | None = None,
        entered_until: datetime | None = None,
    ) -> None:
        super().__init__(instance, step_id, execution, note, entered_until)
        self.output = output

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        token, step = self.find(locked, loaded)
        if step.type not in SKIPPABLE:
            raise Conflict(
                f"step '{step.id}' is a {step.type.value}, which has no result: move it to where it should go"
            )
        self._step = step.index
        return StepSkipped(token.id, self.noted("skipped"), self.output)

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        effects.audit.append(AuditRow("SKIPPED", step=self._step, actor=self.actor, detail=self.note))
        return None


class MoveCommand(_RepairCommand):
    """What stands on a step goes on at another one. ``retries``: of a FAILED instance only, and unless another step is
    named in place of the one that failed."""

    __slots__ = ("_retries", "_step", "_target")

    def __init__(
        self,
        instance: int,
        step_id: str | None,
        target: str,
        *,
        execution: tuple[int, int] | None = None,
        note: str | None = None,
        entered_until: datetime | None = None,
        retries: bool = False,
    ) -> None:
        super().__init__(instance, step_id, execution, note, entered_until)
        self._target = target
        self._retries = retries

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        if self._retries and locked.instance.status is not InstanceStatus.FAILED:
            raise Conflict(f"only a FAILED instance can be retried; this one is {locked.instance.status.name}")
        if self._retries and loaded.code:
            raise IsCode
        token, step = self.find(locked, loaded, gateways=True)
        target = step_of(loaded, self._target, "fromStepId" if self._retries else "toStepId")
        self._step = step.index
        mover = find_mover(loaded.definition, locked.tokens, token, target)
        return TokenMoved(mover.id, target.index, self.noted(f"moved to '{target.id}'"))

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        kind, way = ("RETRIED", "from") if self._retries else ("MOVED", "to")
        detail = self.noted(f"{way} '{self._target}'")
        effects.audit.append(AuditRow(kind, step=self._step, actor=self.actor, detail=detail))
        return None


def step_of(loaded: LoadedDefinition, step_id: str, field: str) -> Step:
    """Return the step with this id. Raises BadRequest, which names the field."""
    step = loaded.definition.step(step_id)
    if step is None:
        about = f"'{loaded.definition.id}' version {loaded.version}"
        raise BadRequest(f"{field}: '{step_id[:256]}' is not a step of {about}")
    return step
