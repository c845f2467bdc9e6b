"""The command that gives an instance another priority: what waits now, and what comes to wait later.

It has no event: nothing is advanced. Steps that say their own priority keep it.
"""

from __future__ import annotations

from penstock.access.identity import actor
from penstock.core.advance.event import Event
from penstock.core.rules.state import OPEN_STATES, InstanceStatus, TokenState
from penstock.engine.advance.command import Command, WritesOnly
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.errors import Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows import audit
from penstock.store.rows import flow as store
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo


class PriorityCommand(Command):
    """``to_outbox``: jobs without flow keys wait for the relay, which knows no priorities."""

    __slots__ = ("_actor", "_audit", "_before", "_priority", "_to_outbox", "_writes")

    def __init__(self, instance: int, priority: int, *, audit: bool, to_outbox: bool) -> None:
        super().__init__(instance)
        self._priority = priority
        self._audit = audit
        self._before: int | None = None
        self._actor = actor()
        self._to_outbox = to_outbox
        self._writes: list[Statement] = []

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        if self._audit:
            self._before = await store.instance_priority(connection, self.instance)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        status = locked.instance.status
        if status not in (InstanceStatus.ACTIVE, InstanceStatus.FAILED):
            raise Conflict(f"the instance is {status.name}: it has no jobs to order any more")
        tokens: list[tuple[int, int]] = []
        moved: list[store.MovedJob] = []
        for token in locked.tokens:
            turn = loaded.definition.steps[token.step].turn
            if token.state not in OPEN_STATES or (turn is not None and turn.priority is not None):
                continue
            priority = self._priority - (store.OPEN_RUN_LEAD if token.run_queue is not None else 0)
            tokens.append((token.id, priority))
            job_type = loaded.job_type_of(token.step)
            in_queue = loaded.code or token.flow_key is not None or not self._to_outbox
            if token.state is TokenState.READY and in_queue and job_type is not None and priority != token.priority:
                moved.append(store.MovedJob(job_type, token.priority, priority, token.flow_key, token.place, token.id))
        self._writes = store.set_priority(self.instance, self._priority, tokens, moved)
        if self._audit:
            before = "none of its own" if self._before is None else str(self._before)
            now = str(self._priority)
            self._writes.append(audit.add(self.instance, None, "PRIORITY_CHANGED", self._actor, now, before))
        raise WritesOnly

    def statements(self) -> list[Statement]:
        return self._writes
