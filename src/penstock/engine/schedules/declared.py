"""Schedules and queues that the code of workflows has: put when a program connects, unless somebody has changed them.

What is put because of code is kept beside it. While the schedule or the queue is as it was put, code may change it;
from an operator's change on it stays as the operator has it, until somebody applies the code's again. Of several
versions of a workflow the highest holds. What code has no more is listed, and never deleted.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.api import declared as api
from penstock.engine.queues.queues import Queues, check_policy
from penstock.engine.queues.queues import check_name as check_queue
from penstock.engine.requests.bound import Binding, bind, needed
from penstock.engine.requests.paging import NAME_MAX_CHARS, slice_limit
from penstock.engine.requests.payload import PayloadLimits, check_text, check_variables
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.schedules.schedule_spec import check_spec
from penstock.engine.schedules.schedules import Schedules
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.loop.offload import run_long
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, unavailable_when_away
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import declared as store
from penstock.store.rows import engines as engine_store
from penstock.store.rows import queues as queue_store
from penstock.store.rows import schedules as schedule_store
from penstock.store.rows.declared import Declared
from penstock.wire.declared import Declaration
from penstock.wire.page import Page
from penstock.wire.queue import QueuePolicy, Rate, burst_of
from penstock.wire.schedule import ScheduleSpec

DECLARED_VERSION: Final = 24
UNREADABLE: Final = object()
"""A schedule whose variables' key this engine lacks."""
ARGUMENTS_VERSION: Final = 25
"""Engines before take the sealed arguments of a schedule in code for its arguments."""
"""The schema version whose engines know declarations."""
SCHEDULE: Final = "schedule"
QUEUE: Final = "queue"
LIST_DEFAULT: Final = 50
BODY_MAX_BYTES: Final = 262_144
"""Of one schedule or policy, as JSON."""
T = TypeVar("T")
_read_exactly: Final = msgspec.json.Decoder(float_hook=Decimal).decode


class InCode(NamedTuple):
    """What a workflow function has beside its code: JSON, empty where it has none. ``queue``: the name of its queue."""

    schedule: bytes = b""
    queue: str = ""
    policy: bytes = b""


class Declarations:
    """Keeps what code has, and puts it."""

    def __init__(self, database: Database, limits: PayloadLimits, schedules: Schedules, queues: Queues) -> None:
        self._database = database
        self._limits = limits
        self._schedules = schedules
        self._queues = queues

    async def register(self, workflow: CodeWorkflow, found: InCode) -> None:
        """Register what a program has connected with. Puts what is new, or was put and is as it was. Idempotent.

        Raises BadRequest, Conflict (older engines live), Unavailable.
        """
        id = workflow.definition_id
        spec = None if not found.schedule else _read(found.schedule, ScheduleSpec, "schedule")
        policy = None if not found.policy else _read(found.policy, QueuePolicy, "queue")
        if spec is not None:
            spec = msgspec.structs.replace(spec, definition_id=id, variables=self._arguments(spec), paused=None)
            await run_long(check_spec, id, spec, datetime.now(UTC))
        if policy is not None:
            check_queue(found.queue)
            policy = msgspec.structs.replace(policy, job_types=[], paused=None)
            check_policy(policy)
        schedule = None if spec is None else id
        queue = None if policy is None else found.queue

        async def note(connection: TrioConnection) -> None:
            if schedule is not None or queue is not None:
                has_arguments = spec is not None and spec.variables is not None
                needed = ARGUMENTS_VERSION if has_arguments else DECLARED_VERSION
                await engine_store.require_version(connection, needed)
            await store.undeclare(connection, id, workflow.version, SCHEDULE, schedule)
            await store.undeclare(connection, id, workflow.version, QUEUE, queue)

        await self._ask(note)
        if spec is not None:
            await self._declare(SCHEDULE, id, workflow, msgspec.json.encode(spec).decode())
        if policy is not None:
            await self._declare(QUEUE, found.queue, workflow, msgspec.json.encode(policy).decode())

    def _arguments(self, spec: ScheduleSpec) -> Any:
        """Return what the schedule of a workflow gives its runs. Raises BadRequest, PayloadTooLarge."""
        given = b"" if spec.variables is None else bytes(spec.variables)
        checked = check_variables(given or None, self._limits, "schedule.variables")
        return None if msgspec.json.decode(checked) == {} else msgspec.Raw(checked)

    async def _declare(self, kind: str, name: str, workflow: CodeWorkflow, body: str) -> None:
        async def note(connection: TrioConnection) -> str | None:
            async with connection.transaction():
                await store.lock(connection, kind, name)
                before, live = await store.find(connection, kind, name), await _live(connection, kind, name)
                stored = await store.declare(connection, kind, name, workflow.definition_id, workflow.version, body)
                if stored is None:
                    return None
                if live == _plain(kind, body):
                    await store.applied(connection, kind, name, stored)
                    return None
                if live is None:
                    return stored if before is None or before.applied is None else None
                ours = [] if before is None else [each for each in (before.body, before.applied) if each is not None]
                return stored if live in [_unset(kind), *(_plain(kind, each) for each in ours)] else None

        if (stored := await self._ask(note)) is not None:
            await self._put(kind, name, body, stored)

    async def _put(self, kind: str, name: str, body: str, stored: str) -> None:
        """Put it. Where code has another one meanwhile, that."""
        while True:
            await self._put_once(kind, name, body)
            if await self._ask(partial(store.applied, kind=kind, name=name, stored=stored)):
                return
            found = await self._ask(lambda connection: store.find(connection, kind, name))
            if found is None or found.body is None or found.stored is None or not found.is_readable:
                return
            body, stored = found.body, found.stored

    async def _put_once(self, kind: str, name: str, body: str) -> None:
        if kind == SCHEDULE:
            await self._schedules.put(name, msgspec.json.decode(body, type=ScheduleSpec))
            return
        types = await self._ask(lambda connection: store.placed_types(connection, name))
        policy = msgspec.json.decode(body, type=QueuePolicy)
        await self._queues.put(name, msgspec.structs.replace(policy, job_types=types))

    async def list(self, cursor: str | None, limit: int | None) -> Page[Declaration]:
        """List them by kind and id. Raises BadRequest, Unavailable."""
        kind, _, name = (cursor or "").partition(":")
        size = slice_limit(LIST_DEFAULT if limit is None else limit)

        async def read(connection: TrioConnection) -> builtins.list[Declaration]:
            rows = await store.page(connection, (kind, name), size + 1)
            return [_shown(row, await _live(connection, row.kind, row.name)) for row in rows]

        items = await self._ask(read)
        last = items[size - 1] if len(items) > size else None
        return Page(items=items[:size], next=None if last is None else f"{last.kind}:{last.id}")

    async def apply(self, kind: str, name: str) -> Declaration:
        """Put it as the code has it, whatever somebody has changed. Raises BadRequest, NotFound, Conflict (no code has
        it any more), Unavailable."""
        if kind not in (SCHEDULE, QUEUE):
            raise BadRequest(f"kind: must be {SCHEDULE} or {QUEUE}")
        check_text(name, "id", NAME_MAX_CHARS)
        row = await self._ask(lambda connection: store.find(connection, kind, name))
        if row is None:
            raise NotFound(f"no code has ever had a {kind} '{name}'")
        if row.body is None or row.stored is None:
            raise Conflict(f"no code has the {kind} '{name}' any more: change or delete it by hand")
        if not row.is_readable:
            raise KeyMissing(f"this engine lacks the key of the arguments of {kind} '{name}' (encryption_keys)")
        await self._put(kind, name, row.body, row.stored)

        async def read(connection: TrioConnection) -> Declaration:
            return _shown(await store.find(connection, kind, name) or row, await _live(connection, kind, name))

        return await self._ask(read)

    async def _ask(self, act: Callable[[TrioConnection], Awaitable[T]]) -> T:
        with unavailable_when_away():
            async with self._database.connection() as connection:
                return await act(connection)


def bindings(declared: Declarations) -> tuple[Binding, ...]:
    """Return what serves the operations on what code has."""
    return (
        bind(api.LIST_DECLARATIONS, lambda ask: declared.list(ask.cursor, ask.limit)),
        bind(api.APPLY_DECLARATION, lambda ask: declared.apply(needed(ask.kind, "kind"), ask.id)),
    )


def _read(text: bytes, kind: type[T], field: str) -> T:
    if len(text) > BODY_MAX_BYTES:
        raise BadRequest(f"{field}: has more than {BODY_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{field}: {error}") from None


async def _live(connection: TrioConnection, kind: str, name: str) -> object:
    """Return the schedule or the queue as it is, to be compared; None where there is none."""
    if kind == SCHEDULE:
        try:
            rows = await schedule_store.read(connection, name=name)
        except KeyMissing:  # it is none that code has, and "As in code" makes it one
            return UNREADABLE
        return _plain_schedule(rows[0].spec, rows[0].variables) if rows else None
    row = await queue_store.find(connection, name)
    return None if row is None else _plain_policy(row.policy)


def _plain(kind: str, body: str) -> object:
    """Return a declaration as `_live` gives what is."""
    if kind == QUEUE:
        return _plain_policy(msgspec.json.decode(body, type=QueuePolicy))
    spec = msgspec.json.decode(body, type=ScheduleSpec)
    return _plain_schedule(body, "{}" if spec.variables is None else bytes(spec.variables).decode())


def _unset(kind: str) -> object:
    """Return a queue that nobody has given limits, as a workflow that only joins it makes it."""
    return _plain_policy(QueuePolicy([])) if kind == QUEUE else object()


def _plain_schedule(spec: str, variables: str) -> object:
    found = msgspec.json.decode(spec, type=ScheduleSpec)
    return msgspec.structs.replace(found, variables=None, paused=None, cron=found.cron or []), _given(variables)


def _given(variables: str) -> Any:
    """Return arguments to be compared by value: the database gives the digits of 1e30."""
    return _read_exactly(variables) or {}


def _plain_policy(policy: QueuePolicy) -> object:
    return msgspec.structs.replace(
        policy, job_types=[], paused=None, rate=_plain_rate(policy.rate), rate_per_key=_plain_rate(policy.rate_per_key)
    )


def _plain_rate(rate: Rate | None) -> Rate | None:
    if rate is None:
        return None
    return msgspec.structs.replace(rate, burst=burst_of(rate))


def _shown(row: Declared, live: object) -> Declaration:
    """A declaration without the arguments of its runs: the schedule shows them."""
    if row.body is None:
        state = "NOT_IN_CODE"
    elif live is None:
        state = "DELETED"
    else:
        state = "AS_IN_CODE" if live == _plain(row.kind, row.body) else "CHANGED"
    return Declaration(
        kind=row.kind,
        id=row.name,
        state=state,
        workflow=row.workflow,
        version=row.version,
        seen_at=row.seen_at,
        body=None if row.body is None else _without_variables(msgspec.json.decode(row.body)),
    )


def _without_variables(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "variables"}
