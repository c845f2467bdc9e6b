"""The inbox: user tasks that are open, who has claimed them, and how the list is filled in a database that had none.

A claim is advice: it says who means to do the task, and stops nobody from completing it. Must not decide when a task is
open: its row comes and goes with the execution (`store.rows.full_path`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, cast

import msgspec
import trio

from penstock.access.identity import actor, current_identity
from penstock.api.permission import Permission
from penstock.core.expression import ExpressionError, OutOfSteps, parse
from penstock.core.graph.definition import Step, StepType
from penstock.core.parsing.form_hints import SUMMARY_MAX_CHARS
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, current_reservation
from penstock.engine.requests.hiding import Hiding
from penstock.engine.requests.paging import COUNT_MAX, NAME_MAX_CHARS, read_numbers, slice_limit
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest, Conflict, Forbidden, NotFound, Unavailable
from penstock.loop.offload import run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import audit as audit_store
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import inbox as store
from penstock.store.rows import instances as instance_store
from penstock.store.rows import variables as variable_store
from penstock.store.rows.inbox import OpenTask, TaskItem, TaskKey
from penstock.wire.page import Count, Page
from penstock.wire.user_task import UserTask

SCAN_MAX_S: Final = 1.0
"""So long a page is looked for among tasks that don't match; then it ends early, with a cursor to go on."""
SUMMARIES_MAX_BYTES: Final = 1_048_576
"""Of variables that are read for the summaries of one page: those with the lowest ids first."""
SUMMARY_STEPS: Final = 2_000
"""Of the evaluation of one: below a millisecond."""
FILL_S: Final = 2.0
"""Of each round of housekeeping, for a list that is not whole yet."""
FILL_ROWS: Final = 500


class Inbox:
    """The operations on the list of open user tasks."""

    def __init__(self, database: Database, definitions: Definitions, hiding: Hiding, *, audit: bool) -> None:
        self._database = database
        self._hiding = hiding
        self._definitions = definitions
        self._audit = audit
        self._whole = False
        self._fill_after = (0, 0)
        self._fill_again = False

    async def list_open(
        self,
        job_type: str | None,
        definition_id: str | None,
        assignee: str | None,
        *,
        unclaimed: bool,
        cursor: str | None,
        limit: int,
    ) -> Page[UserTask]:
        """Open user tasks, oldest first.

        Raises BadRequest (a definition alone, which no index finds; a bad cursor), Conflict (an engine lives that does
        not know the list) and Unavailable (the list is being filled).
        """
        if assignee is not None and unclaimed:
            raise BadRequest("unclaimed: can't be combined with `assignee`")
        if definition_id is not None and job_type is None and assignee is None:
            raise BadRequest("definitionId: needs `jobType` or `assignee`, too")
        after = read_numbers(cursor, digits=18)[0] if cursor else 0
        limit = slice_limit(limit)
        async with self._database.connection() as connection:
            await self._require_whole(connection)
            wanted: list[int] | None = None
            if definition_id is not None:
                wanted = await definition_store.keys_of(connection, definition_id)
            job_types: list[int] | None = None
            if job_type is not None:
                await self._definitions.resolve_job_types(connection, [job_type])
                number = self._definitions.job_type_ids.get(job_type)
                job_types = [] if number is None else [number]
            if assignee is not None:
                keys = await store.claimed(connection, assignee, after, job_types, wanted, limit + 1)
                return await self._page(connection, keys, limit)
            if job_types is None:
                job_types = await store.types(connection)
            keys, last, more = await self._walk(connection, job_types, after, wanted, unclaimed, limit)
            return Page(items=await self._shown(connection, keys), next=str(last) if more else None)

    async def list_of_instance(self, instance_id: str, cursor: str | None, limit: int) -> Page[UserTask]:
        """Return the open user tasks of an instance, oldest first. Raises as `list_open`, and NotFound for what is no
        id."""
        instance = ids.read_instance(instance_id)
        after = read_numbers(cursor, digits=18)[0] if cursor else 0
        limit = slice_limit(limit)
        async with self._database.connection() as connection:
            keys = await self._keys_of(connection, instance, None, after, limit + 1)
            return await self._page(connection, keys, limit)

    async def list_execution(self, execution_id: str) -> Page[UserTask]:
        """One task, while it is open, else none. Raises as `list_of_instance`."""
        execution = ids.read_job(execution_id)
        async with self._database.connection() as connection:
            keys = await self._keys_of(connection, execution.instance, (execution.token, execution.seq), 0, 1)
            return await self._page(connection, keys, 1)

    async def _keys_of(
        self, connection: TrioConnection, instance: int, execution: tuple[int, int] | None, after: int, limit: int
    ) -> list[TaskKey]:
        await self._require_whole(connection)
        found = await instance_store.definition_of(connection, instance)
        if found is None:
            return []
        loaded = await self._definitions.by_key(connection, found.key)
        steps = [step.index for step in loaded.definition.steps if step.type is StepType.USER_TASK]
        open_ones = await store.of_instance(connection, instance, steps, execution, after, limit)
        return [TaskKey(loaded.task_type_of(step), seq) for step, seq in open_ones]

    async def _page(self, connection: TrioConnection, keys: Sequence[TaskKey], limit: int) -> Page[UserTask]:
        """Of up to ``limit`` + 1 keys."""
        items = await self._shown(connection, keys[:limit])
        return Page(items=items, next=str(keys[limit - 1].seq) if len(keys) > limit else None)

    async def _shown(self, connection: TrioConnection, keys: Sequence[TaskKey]) -> list[UserTask]:
        tasks = await store.read(connection, keys)
        about = await self._items(connection, tasks)
        items = [await self._view(connection, task, about) for task in tasks]
        summaries = await self._summaries(connection, tasks, about)
        return [
            item if text is None else msgspec.structs.replace(item, summary=text)
            for item, text in zip(items, summaries, strict=True)
        ]

    async def count(self) -> Count:
        """How many user tasks are open. Raises as `list_open`."""
        async with self._database.connection() as connection:
            await self._require_whole(connection)
            found = await store.count(connection, COUNT_MAX + 1)
        return Count(count=min(found, COUNT_MAX), exact=found <= COUNT_MAX)

    async def _items(self, connection: TrioConnection, tasks: Sequence[OpenTask]) -> dict[int, TaskItem]:
        """Of those that are about an item of a forEach, by their tokens."""
        tokens = [
            task.token
            for task in tasks
            if (await self._definitions.by_key(connection, task.definition)).definition.steps[task.step].for_each
        ]
        return await store.items(connection, tokens, SUMMARIES_MAX_BYTES) if tokens else {}

    async def _summaries(
        self, connection: TrioConnection, tasks: Sequence[OpenTask], about: Mapping[int, TaskItem]
    ) -> list[str | None]:
        """None where a definition has none, or it does not apply; of `SUMMARIES_MAX_BYTES` of variables."""
        loaded = [await self._definitions.by_key(connection, task.definition) for task in tasks]
        sources = [
            summary_of(definition.definition.metadata, definition.definition.steps[task.step].id)
            for definition, task in zip(loaded, tasks, strict=True)
        ]
        asked = sorted({task.instance for task, source in zip(tasks, sources, strict=True) if source is not None})
        if not asked:
            return [None] * len(tasks)
        await current_reservation().reserve_soon(COPIES * SUMMARIES_MAX_BYTES)
        variables, _ = await variable_store.read_within(connection, asked, SUMMARIES_MAX_BYTES)
        now = datetime.now(UTC)

        def evaluate() -> list[str | None]:
            clear = {instance: self._clear(text) for instance, text in variables.items()}
            found: list[str | None] = []
            for task, source, definition in zip(tasks, sources, loaded, strict=True):
                item, values = about.get(task.token), clear.get(task.instance)
                own = "{}" if item is None else item.variables
                if source is None or values is None or own is None:  # without the item's it would name another thing
                    found.append(None)
                else:
                    found.append(_summary(source, values | self._clear(own), definition.secret_variables, now))
            return found

        items = (item.variables for item in about.values())
        return await run_sized(sum(len(text or "") for text in (*variables.values(), *items)), evaluate)

    def _clear(self, variables: str) -> dict[str, object]:
        """Without what is hidden."""
        found: dict[str, object] = msgspec.json.decode(self._hiding.drop(variables.encode()))
        return found

    async def _walk(
        self,
        connection: TrioConnection,
        job_types: Sequence[int],
        after: int,
        wanted: Sequence[int] | None,
        unclaimed: bool,
        limit: int,
    ) -> tuple[list[TaskKey], int, bool]:
        """(tasks, the last that was looked at, whether there may be more)."""
        found: list[TaskKey] = []
        until = trio.current_time() + SCAN_MAX_S
        while job_types:
            listing = await store.scan(connection, job_types, after, wanted, unclaimed)
            found += listing.found
            if len(found) > limit:
                return found[:limit], found[limit - 1].seq, True
            after = listing.last
            if listing.read_count < store.SCAN_ROWS:
                break
            if trio.current_time() >= until:
                return found, after, True
        return found, after, False

    async def _view(self, connection: TrioConnection, task: OpenTask, about: Mapping[int, TaskItem]) -> UserTask:
        loaded = await self._definitions.by_key(connection, task.definition)
        step = loaded.definition.steps[task.step]
        return UserTask(
            instance_id=ids.show_instance(task.instance),
            step_id=step.id,
            execution_id=ids.show_job(task.instance, task.token, task.seq),
            name=step.name or step.id,
            job_type=step.job_type or step.id,
            definition_id=loaded.definition.id,
            version=loaded.version,
            opened_at=task.entered_at,
            business_key=task.business_key,
            assignee=task.assignee,
            next_timer=task.timer_at,
            item=about[task.token].item if task.token in about else None,
        )

    # -- claims

    async def claim(self, instance_id: str, step_id: str, by: str | None, execution_id: str | None = None) -> UserTask:
        """Say who means to do a task: the oldest of the step, or the one that is named. Raises NotFound, and Conflict
        when somebody else has claimed it."""
        assignee = _assignee(by)
        return await self._change(
            instance_id,
            step_id,
            execution_id,
            "TASK_CLAIMED",
            assignee,
            lambda connection, key: store.claim(connection, key, assignee),
        )

    async def release(
        self, instance_id: str, step_id: str, by: str | None, execution_id: str | None = None
    ) -> UserTask:
        """Give a claimed task back. ``by`` None: whoever has it. Raises NotFound, and Conflict when another has it."""
        assignee = None if by is None and _may_operate() else _assignee(by)
        return await self._change(
            instance_id,
            step_id,
            execution_id,
            "TASK_RELEASED",
            assignee,
            lambda connection, key: store.release(connection, key, assignee),
        )

    async def _change(
        self,
        instance_id: str,
        step_id: str,
        execution_id: str | None,
        kind: str,
        assignee: str | None,
        change: Callable[[TrioConnection, TaskKey], Awaitable[bool]],
    ) -> UserTask:
        """Change a claim, with its record in the audit trail; ``change`` says whether it could."""
        instance = ids.read_instance(instance_id)
        async with self._database.connection() as connection:
            await self._require_whole(connection)
            key, step = await self._find(connection, instance, step_id, ids.read_execution(execution_id))
            async with connection.transaction():
                if not await change(connection, key):
                    await self._refuse(connection, key, step_id)
                await self._note(connection, instance, step, kind, assignee)
            return await self._read(connection, key, step_id)

    async def _find(
        self, connection: TrioConnection, instance: int, step_id: str, execution: tuple[int, int] | None
    ) -> tuple[TaskKey, Step]:
        rows = await instance_store.view(connection, [instance], None)
        if not rows:
            raise NotFound(f"instance '{ids.show_instance(instance)}' is unknown")
        loaded = await self._definitions.by_key(connection, rows[0].definition)
        step = loaded.definition.step(step_id)
        if step is None:
            raise NotFound(f"step '{step_id[:NAME_MAX_CHARS]}' is unknown")
        if step.type is not StepType.USER_TASK:
            raise BadRequest(f"step '{step.id}' has the type {step.type.value}, not {StepType.USER_TASK.value}")
        seq = await store.find(connection, instance, step.index, execution)
        if seq is None:
            raise _not_open(step.id)
        return TaskKey(loaded.task_type_of(step.index), seq), step

    async def _refuse(self, connection: TrioConnection, key: TaskKey, step_id: str) -> None:
        """Raises why a claim can't be changed."""
        task = await self._read(connection, key, step_id)
        raise Conflict(
            f"the task is claimed by '{task.assignee}'" if task.assignee else "the task has just changed: read it again"
        )

    async def _read(self, connection: TrioConnection, key: TaskKey, step_id: str) -> UserTask:
        tasks = await store.read(connection, [key])
        if not tasks:
            raise _not_open(step_id)
        return await self._view(connection, tasks[0], await self._items(connection, tasks))

    async def _note(
        self, connection: TrioConnection, instance: int, step: Step, kind: str, assignee: str | None
    ) -> None:
        if self._audit:
            name = actor(assignee)
            detail = None if assignee == name or assignee is None else f"for {assignee}"
            await connection.fetch(*audit_store.add(instance, step.index, kind, name, detail))

    # -- a database that had no list

    async def _require_whole(self, connection: TrioConnection) -> None:
        """Raises Conflict or Unavailable while tasks may be missing."""
        if self._whole:
            return
        self._whole, older = await store.is_filled(connection)
        if self._whole:
            return
        if older:
            raise Conflict("upgrade all engines first: an older engine does not keep a list of user tasks")
        raise Unavailable("the engine is making the list of open user tasks: try again soon")

    async def fill(self) -> bool:
        """List what was open before the list was, for `FILL_S` at most. True once nothing is missing."""
        if self._whole:
            return True
        async with self._database.connection() as connection:
            self._whole, older = await store.is_filled(connection)
            if self._whole or older:
                return self._whole
            until = trio.current_time() + FILL_S
            while trio.current_time() < until:
                rows = await store.unlisted(connection, self._fill_after, FILL_ROWS)
                tasks = [(key, row) for row in rows if (key := await self._task_type(connection, row)) is not None]
                if await store.fill(connection, tasks) < len(tasks):
                    self._fill_again = True  # some were held, or closed meanwhile
                if len(rows) == FILL_ROWS:
                    self._fill_after = rows[-1].instance, rows[-1].token
                    continue
                self._fill_after = (0, 0)
                if self._fill_again:
                    self._fill_again = False
                    return False
                await store.record_filled(connection)
                self._whole = True
                return True
        return False

    async def _task_type(self, connection: TrioConnection, row: store.Unlisted) -> int | None:
        """None for what is no open user task."""
        if row.seq is None:
            return None
        loaded: LoadedDefinition = await self._definitions.by_key(connection, row.definition)
        if loaded.code or loaded.definition.steps[row.step].type is not StepType.USER_TASK:
            return None
        return loaded.task_type_of(row.step)


def summary_of(metadata: object, step_id: str) -> str | None:
    """Return the expression in ``metadata.forms[step].summary``. Metadata may be anything."""
    for name in ("forms", step_id, "summary"):
        metadata = cast("dict[str, object]", metadata).get(name) if isinstance(metadata, dict) else None
    return metadata if isinstance(metadata, str) and len(metadata) <= SUMMARY_MAX_CHARS else None


def _summary(source: str, variables: Mapping[str, object], secret: frozenset[str], now: datetime) -> str | None:
    values = {name: value for name, value in variables.items() if name not in secret}
    try:
        found, _ = parse(source).measure(values, now, None, SUMMARY_STEPS)
    except (ExpressionError, OutOfSteps):
        return None
    if found is None:
        return None
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return text[:SUMMARY_MAX_CHARS]


def _not_open(step_id: str) -> NotFound:
    return NotFound(f"user task '{step_id}' is not open")


def _may_operate() -> bool:
    identity = current_identity()
    return identity is None or Permission.OPERATE in identity.permissions


def _assignee(by: str | None) -> str:
    """Whom a claim is for: who calls, or with the right to operate (or without authentication) who is named."""
    name = actor()
    if by is not None:
        check_text(by, "by", NAME_MAX_CHARS)
        if by != name and not _may_operate():
            raise Forbidden(f"by: to name somebody else needs the role operator, and you are {name}")
        name = by
    if not name:
        raise BadRequest("by: is required without authentication: it names who takes the task")
    return name
