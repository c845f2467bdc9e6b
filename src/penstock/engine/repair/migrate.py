"""The command that lets an instance go on in another version. `core.advance.migration` says whether it can.

It has no event: nothing is advanced. What engines remember of its jobs is of the version before; the tokens say so, and
the fast path leaves such ones to the full path, which reads the definition under the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.access.identity import actor
from penstock.core.advance.event import Event
from penstock.core.advance.migration import (
    Evaluate,
    TimerRule,
    needs_variables,
    not_compensated_any_more,
    numbers,
    plan_migration,
)
from penstock.core.expression.work import Work
from penstock.core.graph.definition import Definition, StepType
from penstock.core.rules.state import JOB_STATES, InstanceStatus, Token, TokenState
from penstock.engine.advance.command import Command, WritesOnly
from penstock.engine.advance.commands import failed_tokens
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.errors import Conflict
from penstock.loop.offload import run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows import audit, search_attributes
from penstock.store.rows import migration as store
from penstock.store.rows import variables as variable_store
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo

EVALUATED_MAX_STEPS: Final = 100_000
"""Of the expressions of one instance's timers: 10 ms or so, on the event loop."""


class MigrateCommand(Command):
    """Go on in ``target``. ``changed`` is told after it which job types have waiting jobs, and which timers there
    are."""

    __slots__ = (
        "_actor", "_audit", "_changed", "_flow_key", "_note", "_now", "_place_key", "_plan", "_queued", "_renamed",
        "_rule", "_target", "_to_outbox", "_writes",
    )  # fmt: skip

    def __init__(
        self,
        instance: int,
        target: LoadedDefinition,
        renamed: Mapping[str, str],
        *,
        note: str | None,
        audit: bool,
        to_outbox: bool,
        place_key: Callable[[str, str | None], str | None],
        changed: Callable[[set[str], list[datetime], datetime], None],
        rule: TimerRule = "FROM_ENTRY",
    ) -> None:
        super().__init__(instance)
        self._target = target
        self._renamed = renamed
        self._note = note
        self._rule: TimerRule = rule
        self._audit = audit
        self._actor = actor()
        self._to_outbox = to_outbox
        self._place_key = place_key
        self._flow_key: str | None = None
        self._changed = changed
        self._writes: list[Statement] = []
        self._queued: set[str] = set()

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        check_target(locked.instance.status, loaded, self._target.definition, self._target.key)
        failed = locked.instance.status is InstanceStatus.FAILED
        tokens = failed_tokens(locked, None) if failed else locked.tokens
        timers = [] if failed else await store.timers_of(connection, tokens)
        signals = await store.signal_steps(connection, self.instance)
        old, new = loaded.definition, self._target.definition
        lost = not_compensated_any_more(old, new, self._renamed)
        completed = await store.completed_steps(connection, self.instance, lost)
        evaluate = await evaluator(connection, self.instance, new, locked.now)
        plan = plan_migration(
            old, new, self._renamed, tokens, timers, signals, locked.now, completed, evaluate, self._rule
        )
        self._flow_key = locked.instance.flow_key
        self._plan, self._now, self._writes, self._queued = plan, locked.now, [], set()
        if failed:
            for token in tokens:
                token.step = plan.steps[token.id]
            step = locked.failed_step
            named = None if step is None else self._renamed.get(step, step)
            self._writes.append(store.move_failure(self.instance, self._target.key, named, tokens))
        else:
            self._writes += self._of_open(loaded, tokens)
        self._writes += await self._attributes(connection)
        steps = numbers(old, new, self._renamed)
        self._writes += store.note(self.instance, loaded.key, self._target.key, steps, plan.signals)
        if self._audit:
            versions = f"from version {loaded.version} to {self._target.version}"
            detail = versions if not self._note else f"{versions}: {self._note}"
            self._writes.append(audit.add(self.instance, None, "MIGRATED", self._actor, detail))

    def _of_open(self, loaded: LoadedDefinition, tokens: list[Token]) -> list[Statement]:
        plan, target = self._plan, self._target
        moved: list[store.MovedToken] = []
        waiting: list[store.WaitingJob] = []
        tasks: list[tuple[int, int, int, int]] = []
        for token in tokens:
            step = target.definition.steps[plan.steps[token.id]]
            job_type = target.job_type_of(step.index) if token.state in JOB_STATES else None
            moved.append(store.MovedToken(token, step.index, job_type, plan.timeouts_s[token.id]))
            old_type = loaded.job_type_of(token.step)
            if token.state is TokenState.READY and old_type is not None and job_type is not None:
                retyped = token.id in plan.retyped
                key = (
                    self._place_key(step.job_type or "", token.flow_key or self._flow_key)
                    if retyped
                    else token.flow_key
                )
                waiting.append(store.WaitingJob(token, old_type, job_type, key, retyped))
                self._queued.add(step.job_type or "")
            if token.state is TokenState.PARKED and step.type is StepType.USER_TASK:
                tasks.append((loaded.task_type_of(token.step), token.seq, target.task_type_of(step.index), step.index))
        return [
            *store.move_tokens(moved),
            *store.requeue(waiting, to_outbox=self._to_outbox),
            *store.replace_timers(self.instance, tokens, plan.timers),
            *store.move_tasks(tasks, target.key),
        ]

    async def _attributes(self, connection: TrioConnection) -> list[Statement]:
        """What the instance is found by: the new version may declare other variables."""
        declared = self._target.search_attributes
        found = search_attributes.forget(self.instance)
        if declared is None:
            return found
        variables = (await variable_store.read(connection, [self.instance])).get(self.instance)
        written = [] if variables is None else [variables.encode()]
        return [*found, *search_attributes.of_changes([(self.instance, declared, written)])]

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        raise WritesOnly

    def statements(self) -> list[Statement]:
        return self._writes

    def answer(self, answer: Any) -> None:
        self._changed(self._queued, [timer.fire_at for timer in self._plan.timers], self._now)
        super().answer(answer)


def check_target(status: InstanceStatus, loaded: LoadedDefinition, target: Definition, key: int | None) -> None:
    """Raises Conflict for an instance that can't go on in another version whatever that is, or is of it already.
    ``key``: the target's, where it was uploaded."""
    if loaded.code:
        raise Conflict("it is a durable run, which goes on with the code of its executor")
    if status not in (InstanceStatus.ACTIVE, InstanceStatus.FAILED):
        raise Conflict(f"the instance is {status.name}: only an open or FAILED instance can be migrated")
    if loaded.definition.id != target.id:
        raise Conflict(f"it is of '{loaded.definition.id}', not of '{target.id}'")
    if loaded.key == key:
        raise Conflict(f"it is of version {loaded.version} already")


async def evaluator(connection: TrioConnection, instance: int, target: Definition, now: datetime) -> Evaluate | None:
    """What evaluates on the instance's variables, for `plan_migration`; None where it needs none. Raises Conflict where
    they can't be read."""
    if not needs_variables(target):
        return None
    text = (await variable_store.read(connection, [instance])).get(instance)
    if text is None:
        raise Conflict("the instance's variables can't be read: this engine lacks a key (encryption_keys)")
    variables = await run_sized(len(text), lambda: msgspec.json.decode(text, type=dict[str, Any]))
    work = Work(EVALUATED_MAX_STEPS)
    return lambda source: work.evaluate(source, variables, now)
