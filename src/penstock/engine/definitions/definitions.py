"""Definitions: upload, list, get; and the cache of parsed versions that everything else advances with."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, TypeVar, cast

import trio

from penstock.access.identity import actor
from penstock.core.expression import Expression
from penstock.core.expression.work import LongWork
from penstock.core.graph.definition import (
    Catch,
    Definition,
    DefinitionLimits,
    InvalidDefinition,
    Problem,
    Step,
    StepType,
)
from penstock.core.graph.fast_path import FastPlan, fast_plans, fast_start, needs_variables
from penstock.core.parsing.parsing import DEFAULT_LIMITS, STORED_LIMITS, parse_definition, readable_part
from penstock.core.rules.topic import topic_problem
from penstock.engine.definitions.signatures import Signatures
from penstock.engine.group_commit.queue import RETRY_FIRST_S, RETRY_MAX_S
from penstock.engine.requests.paging import page_bounds, slice_limit
from penstock.errors import Conflict, Forbidden, NotFound
from penstock.loop.offload import run_long
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, TOO_LARGE, Database, wait_replicated
from penstock.store.rows import definitions as store
from penstock.store.rows import engines as engine_store
from penstock.store.rows.definitions import DefinitionRow, ListedDefinition
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import DefinitionSummary
from penstock.wire.page import Page

PARSED_INLINE_MAX_BYTES: Final = 2_048
"""Larger definitions are parsed in a thread. Up to 0.1 s for so many bytes of regular expressions, as a rule 2 ms."""

TASKS: Final = (StepType.SERVICE_TASK, StepType.USER_TASK)
"""Steps with a job type."""

T = TypeVar("T")


class LoadedDefinition:
    """A parsed version with what the engine precomputes of it. Immutable, shared by all instances."""

    __slots__ = (
        "_task_types",
        "calls",
        "code",
        "definition",
        "fast_start",
        "job_types",
        "key",
        "maps",
        "needs_variables",
        "own_variables",
        "plans",
        "search_attributes",
        "secret_variables",
        "uploaded_at",
        "version",
    )  # fmt: skip

    @property
    def code_type(self) -> str | None:
        """Return the job type of a durable workflow; None of a graph."""
        return self.definition.steps[0].job_type if self.code else None

    def __init__(self, row: DefinitionRow, definition: Definition, job_type_ids: dict[str, int]) -> None:
        self.key = row.key
        self.code = row.code
        self.version = row.version
        self.uploaded_at: datetime = row.uploaded_at
        self.definition = definition
        self.job_types: tuple[int | None, ...] = tuple(
            job_type_ids[step.job_type] if step.type is StepType.SERVICE_TASK and step.job_type else None
            for step in definition.steps
        )
        self._task_types = {
            step.index: job_type_ids[step.job_type or step.id]
            for step in definition.steps
            if step.type is StepType.USER_TASK
        }
        self.plans: tuple[FastPlan | None, ...] = fast_plans(definition)
        self.fast_start = fast_start(definition)
        self.search_attributes = definition.search_attributes
        self.maps = definition.maps
        self.own_variables = definition.maps or any(step.compensates is not None for step in definition.steps)
        self.calls = any(step.callee is not None for step in definition.steps)
        self.needs_variables = needs_variables(definition)
        self.secret_variables = _secret_variables(definition.metadata)

    @property
    def types_of_jobs(self) -> dict[str, int]:
        """Return the ids of the types of jobs that its steps make, by name."""
        steps = self.definition.steps
        return {step.job_type or "": id for step in steps if (id := self.job_types[step.index]) is not None}

    def plan_of(self, step: int, output: bytes | None) -> FastPlan | None:
        """How a completion with this output takes the fast path; None for the full one."""
        declared = self.search_attributes
        if declared is not None and output is not None and declared.may_be_in(output):
            return None
        return self.plans[step]

    def job_type_of(self, step: int) -> int | None:
        """Return the id of a step's job type; None for steps that make no job."""
        return self.job_types[step]

    def step_id_of(self, step: int) -> str:
        """Return the id of a step."""
        return self.definition.steps[step].id

    def task_type_of(self, step: int) -> int:
        """Return the id of a user task's job type: for whom it is."""
        return self._task_types[step]


def _secret_variables(metadata: object) -> frozenset[str]:
    """Return the names in ``metadata.secretVariables``. Metadata may be anything: what is no list of texts names
    none."""
    named = cast("dict[str, object]", metadata).get("secretVariables") if isinstance(metadata, dict) else None
    names = cast("list[object]", named) if isinstance(named, list) else []
    return frozenset(name for name in names if isinstance(name, str))


class Definitions:
    """The operations on definitions. All are idempotent."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        cache_max_bytes: int,
        audit: bool,
        outage_wait_s: float = 0.0,
        need_topics: bool = False,
        upload_limits: DefinitionLimits = DEFAULT_LIMITS,
        uploaded: Callable[[Collection[str]], None] = lambda job_types: None,
    ) -> None:
        """``need_topics``: jobs go through Kafka, so each job type must be able to name a topic."""
        self._database = database
        self._upload_limits = upload_limits
        self._outage_wait_s = outage_wait_s
        self._metrics = metrics
        self._audit = audit
        self._cache_max_bytes = cache_max_bytes
        self._cached_bytes = 0
        self._need_topics = need_topics
        self._uploaded = uploaded
        self._by_key: OrderedDict[int, LoadedDefinition] = OrderedDict()
        self._by_version: dict[tuple[str, int], int] = {}
        self.job_type_ids: dict[str, int] = {}
        self.signatures = Signatures(database)
        """What those take that are written as code."""
        self.has_code = False
        """Whether a durable workflow was met."""
        self._job_type_names: dict[int, str] = {}

    async def upload(self, definition: Definition, *, code: bool = False) -> DefinitionSummary:
        """Store a definition, and let new starts use it; the same content as that of an existing version gives that
        version again.

        An outage of the database is waited out. ``code``: it was generated for a durable workflow. Raises
        InvalidDefinition for what only such ones may have, and in Kafka mode for a job type that can't be a topic's
        name; Conflict for the id of a definition of the other kind, and for what an engine that lives does not know;
        and Unavailable.
        """
        if not code:
            self.check_upload(definition)
        deadline = trio.current_time() + self._outage_wait_s
        pause_s = RETRY_FIRST_S
        again = False
        while True:
            try:
                return await self._upload(definition, code, again)
            except store.OtherKind:
                kind = "a definition" if code else "a durable workflow"
                raise Conflict(f"'{definition.id}' is the id of {kind}; take another one") from None
            except AWAY as error:
                if isinstance(error, TOO_LARGE) or trio.current_time() >= deadline:
                    raise
            again = True
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def check_upload(self, definition: Definition) -> None:
        """Raises InvalidDefinition for what is a definition, and yet none that this engine takes."""
        check_is_graph(definition)
        if self._need_topics:
            _check_topics(definition)
        if self._database.vault is not None:
            _check_attributes(definition)

    async def _upload(self, definition: Definition, code: bool, again: bool) -> DefinitionSummary:
        """``again``: an earlier try may have stored it."""
        async with self._database.connection() as connection:
            if again:
                await wait_replicated(connection)
            await self._check_calls(connection, definition)
            needed = _needed_version(definition)
            if needed < CODE_CALLS_VERSION and await self._calls_code(connection, definition):
                needed = CODE_CALLS_VERSION
            if needed:
                await engine_store.require_version(connection, needed)
            types = await self._job_types(connection, definition)
            row, new, active = await store.save(
                connection,
                id=definition.id,
                name=definition.name,
                description=definition.description,
                content=definition.content,
                audit=self._audit,
                actor=actor(),
                code=code,
            )
            if not new:
                await wait_replicated(connection)
        self._keep(await self._off_loop(len(definition.content), lambda: LoadedDefinition(row, definition, types)))
        if new or again:
            self._metrics.definitions_uploaded.inc()
            self._uploaded({s.job_type for s in definition.steps if s.type is StepType.SERVICE_TASK and s.job_type})
        return _summary(row, active=None if code else active)

    async def activate(self, id: str, version: int) -> DefinitionSummary:
        """Let new starts use a version: those of schedules, calls and chains that name none, too. Idempotent. Raises
        NotFound; Conflict for a durable workflow, and while an engine lives that would not know."""
        if not 0 < version < 1 << 31:
            raise NotFound(f"definition '{id}' version {version} is unknown")
        async with self._database.connection() as connection:
            try:
                row = await store.activate(connection, id, version, actor(), audit=self._audit)
            except store.OtherKind:
                raise Conflict(f"'{id}' is a durable workflow: its executors choose its version") from None
            if row is None:
                raise self.unknown(id, version)
            loaded = await self._load(connection, row)
        self._uploaded(loaded.types_of_jobs)
        return _summary(row, active=True)

    async def _calls_code(self, connection: TrioConnection, definition: Definition) -> bool:
        """Return whether it calls a durable workflow that is there, or one follows it."""
        called = {step.callee.definition_id for step in definition.steps if step.callee is not None}
        if definition.auto_start_next and definition.next_workflow_id is not None:
            called.add(definition.next_workflow_id)
        keys = await store.active_keys(connection, sorted(called)) if called else {}
        return any([(await self.by_key(connection, key)).code for key in keys.values()])

    async def _check_calls(self, connection: TrioConnection, definition: Definition) -> None:
        """Raises InvalidDefinition for a call of a durable workflow whose constants it does not take, or
        whose names."""
        problems: list[Problem] = []
        for step in definition.steps:
            callee = step.callee
            if callee is None or callee.input is None:
                continue
            loaded = await self.find(connection, callee.definition_id, callee.version)
            if loaded is None or loaded.code_type is None:
                continue
            constants = {name: value for name, value in callee.input if not isinstance(value, Expression)}
            evaluated = {name for name, value in callee.input if isinstance(value, Expression)}
            found = await self.signatures.constant_problem(connection, loaded.code_type, constants, evaluated)
            if found is not None:
                at = f"steps[{step.index}].input" + (f".{found.path}" if found.path else "")
                problems.append(Problem(at, f"{found.reason}: '{callee.definition_id}' would not take it"))
        if problems:
            raise InvalidDefinition(problems)

    async def let_call(self, id: str) -> None:
        """Let definitions that were uploaded before call a durable workflow, if there are any, and no older
        engine."""
        async with self._database.connection() as connection:
            if await store.is_mentioned(connection, id):
                with suppress(Conflict):
                    await engine_store.require_version(connection, CODE_CALLS_VERSION)

    async def get(self, id: str, version: int = 0) -> LoadedDefinition:
        """Return a version, 0 for the active one. Raises NotFound."""
        async with self._database.connection() as connection:
            loaded = await self.find(connection, id, version)
        if loaded is None:
            raise self.unknown(id, version)
        return loaded

    async def versions_of(self, id: str) -> list[LoadedDefinition]:
        """Return all versions of an id; none of one that is not there."""
        async with self._database.connection() as connection:
            return [await self.by_key(connection, key) for key in await store.keys_of(connection, id)]

    @staticmethod
    def unknown(id: str, version: int) -> NotFound:
        """The error for a definition or version that is not there."""
        return NotFound(f"definition '{id[:256]}'" + (f" version {version}" if version else "") + " is unknown")

    async def parse(self, read: Callable[[], object], size_bytes: int) -> Definition:
        """What an upload of this size is; ``read`` gives its JSON text, as bytes, or its tree. Away from the loop
        unless it is small. Raises as `parse_definition`."""
        return await self._off_loop(
            size_bytes, lambda: parse_definition(read(), limits=self._upload_limits), line="uploads"
        )

    async def readable_part(self, body: bytes) -> Definition | None:
        """What can be read of one that `parse` refused, for hints."""
        return await self._off_loop(len(body), lambda: readable_part(body, limits=self._upload_limits), line="uploads")

    async def _off_loop(self, size_bytes: int, make: Callable[[], T], *, line: str = "definitions") -> T:
        return make() if size_bytes <= PARSED_INLINE_MAX_BYTES else await run_long(make, line=line)

    # -- the cache

    async def find(
        self, connection: TrioConnection, id: str, version: int, *, locks: bool = False
    ) -> LoadedDefinition | None:
        """A version by id, 0 for the active one (which is asked of the database: another engine may know another one).

        ``locks``: the connection holds some. Raises LongWork instead of parsing what is not in memory then.
        """
        if version:
            key = self._by_version.get((id, version))
            if key is not None and key in self._by_key:
                return self._touch(key)
        if not 0 <= version < 1 << 31:
            return None
        row = await store.find(connection, id, version)
        if locks and row is not None and row.key not in self._by_key:
            raise LongWork
        return None if row is None else await self._load(connection, row)

    async def by_key(self, connection: TrioConnection, key: int) -> LoadedDefinition:
        """Return the version that an instance refers to."""
        if key in self._by_key:
            return self._touch(key)
        return await self._load(connection, await store.by_key(connection, key))

    def cached(self, key: int) -> LoadedDefinition | None:
        """As `by_key`, only from memory."""
        return self._touch(key) if key in self._by_key else None

    async def resolve_job_types(self, connection: TrioConnection, names: list[str]) -> None:
        """Look up the ids of job types that are not known yet. Those that do not exist stay unknown."""
        missing = [name for name in names if name not in self.job_type_ids]
        if missing:
            self._know(await store.job_type_ids(connection, missing))

    async def forget(self, connection: TrioConnection) -> None:
        """Read again what the database knows of all that is in memory: a version or a job type that was lost may stand
        for another one there."""
        ids = await store.job_type_ids(connection, list(self.job_type_ids))
        self.job_type_ids.clear()
        self._job_type_names.clear()
        self._know(ids)
        self._by_key.clear()
        self._by_version.clear()
        self._cached_bytes = 0

    def evict(self, id: str) -> None:
        """Find no version of an id without asking the database."""
        self._by_version = {known: key for known, key in self._by_version.items() if known[0] != id}

    def job_type_name(self, id: int) -> str | None:
        """The name of a job type that this engine has met."""
        return self._job_type_names.get(id)

    def code_types(self) -> dict[int, str]:
        """The job types of runs that this engine has met, by id."""
        return {id: name for id, name in self._job_type_names.items() if name.startswith(CODE_PREFIX)}

    def _know(self, ids: dict[str, int]) -> None:
        self.job_type_ids.update(ids)
        self._job_type_names.update((id, name) for name, id in ids.items())

    async def _load(self, connection: TrioConnection, row: DefinitionRow) -> LoadedDefinition:
        if row.key in self._by_key:
            return self._touch(row.key)
        content = row.content.encode()
        definition = await self._off_loop(len(content), lambda: parse_definition(content, limits=STORED_LIMITS))
        types = await self._job_types(connection, definition)
        return self._keep(await self._off_loop(len(content), lambda: LoadedDefinition(row, definition, types)))

    async def _job_types(self, connection: TrioConnection, definition: Definition) -> dict[str, int]:
        names = {s.job_type or s.id for s in definition.steps if s.type in TASKS}
        if any(name not in self.job_type_ids for name in names):
            self._know(await store.ensure_job_types(connection, sorted(names)))
        return {name: self.job_type_ids[name] for name in names}

    def _keep(self, loaded: LoadedDefinition) -> LoadedDefinition:
        if loaded.key in self._by_key:  # another call was quicker
            return self._touch(loaded.key)
        self._by_key[loaded.key] = loaded
        self.has_code |= loaded.code
        self._by_version[loaded.definition.id, loaded.version] = loaded.key
        self._cached_bytes += loaded.definition.memory_bytes
        while self._cached_bytes > self._cache_max_bytes and len(self._by_key) > 1:
            _, old = self._by_key.popitem(last=False)
            self._by_version.pop((old.definition.id, old.version), None)
            self._cached_bytes -= old.definition.memory_bytes
        return loaded

    def _touch(self, key: int) -> LoadedDefinition:
        self._by_key.move_to_end(key)
        return self._by_key[key]

    async def list(self, keyword: str | None, page: int, page_size: int) -> Page[DefinitionSummary]:
        """Active versions in order of id. Raises BadRequest for a negative page."""
        page_size, offset = page_bounds(page, page_size)
        async with self._database.connection() as connection:
            rows, total = await store.page(connection, keyword, page_size, offset)
        return Page(items=_summaries(rows), page=page, page_size=page_size, total=total)

    async def list_slice(self, keyword: str | None, cursor: str | None, limit: int) -> Page[DefinitionSummary]:
        """Active versions after ``cursor`` (an id) in order of id."""
        limit = slice_limit(limit)
        async with self._database.connection() as connection:
            rows, _ = await store.page(connection, keyword, limit + 1, after=cursor or "")
        return Page(items=_summaries(rows[:limit]), next=rows[limit - 1].id if len(rows) > limit else None)


def _summary(row: DefinitionRow, *, active: bool | None) -> DefinitionSummary:
    return DefinitionSummary(
        id=row.id,
        version=row.version,
        name=row.name,
        description=row.description,
        uploaded_at=row.uploaded_at,
        active=active,
    )


def _summaries(rows: Sequence[ListedDefinition]) -> list[DefinitionSummary]:
    return [
        DefinitionSummary(
            id=row.id, version=row.version, name=row.name, description=row.description, uploaded_at=row.uploaded_at
        )
        for row in rows
    ]


def job_path(step: Step) -> str:
    """Where the fields of a job stand in the upload."""
    return f"steps[{step.index}]" if step.compensates is None else f"steps[{step.compensates}].compensation"


CODE_CALLS_VERSION: Final = 18
"""The schema version whose engines tell the caller of a durable run that it has ended."""
CODE_PREFIX: Final = "code:"
"""Of the job types of durable runs, which executors alone take."""
_EXECUTOR: Final = re.compile(r"e\d+\.[0-9a-f]{8}/")


def check_is_graph(definition: Definition) -> None:
    """Raises InvalidDefinition for what only generated definitions may have."""
    problems = [
        Problem(f"{job_path(step)}.jobType", f"job types that begin with '{CODE_PREFIX}' are for durable workflows")
        for step in definition.steps
        if step.type is StepType.SERVICE_TASK and (step.job_type or "").startswith(CODE_PREFIX)
    ]
    metadata: object = definition.metadata
    if isinstance(metadata, dict) and "code" in metadata:
        problems.append(Problem("metadata.code", "is for durable workflows"))
    if problems:
        raise InvalidDefinition(problems)


def app_of(definition_id: str) -> str:
    """Of a workflow's definition, or of its job type without the prefix."""
    return definition_id.rpartition(":")[0]


def refuse_executors(worker: str, job_types: Sequence[str] = ()) -> None:
    """Raises Forbidden for what executors of durable runs only may do, or be called."""
    if any(name.startswith(CODE_PREFIX) for name in job_types):
        raise Forbidden(f"job types that begin with '{CODE_PREFIX}' are for executors of durable workflows")
    if "/" in worker and _EXECUTOR.match(worker):
        raise Forbidden("workerId: an executor of durable workflows has this id")


LANGUAGE_VERSION: Final = 21
"""Of the schema: engines of this version evaluate timers, time limits and back-offs, and know templates."""
_NEWER_WORDS: Final = re.compile(
    r"\b(?:addMonths|bit(?:and|nand|not|or|shl|shr|ushr|xor)|concat|countBy|daysBetween|decimal|endOfMonth|findIndex"
    r"|findLast|findLastIndex|flatten|formatNumber|fromPairs|get|groupBy|hasPrefix|hasSuffix|indexOf|lastIndexOf|mean"
    r"|median|merge|pad|reduce|repeat|sortBy|splitAfter|take|timezone|toPairs|trimPrefix|trimSuffix|uniq)\s*\("
    r"|\bif\b[^\"]*\{[^\"]*\}\s*else\b|\$\{[^\"}]*;"
)
"""What expressions know from `LANGUAGE_VERSION` on, and an older engine can't read. Also found in a text for people:
that only matters while such an engine lives."""
ERRORS_VERSION: Final = 14
"""Of the schema: engines from it on know error codes."""
RESULTS_VERSION: Final = 16
"""Those from it on know results of instances."""
CALLS_VERSION: Final = 17
"""Those from it on know calls."""
SEARCH_VERSION: Final = 18
"""Those from it on keep search attributes."""
MESSAGES_VERSION: Final = 18
"""Those from it on know waits for messages."""
FLOW_VERSION: Final = 18
"""Those from it on know forEach, and flow keys and priorities of definitions."""


COMPENSATION_VERSION: Final = 18
"""Those from it on know compensation."""


def _needed_version(definition: Definition) -> int:
    """The schema version that an engine has to know to run it; 0 for what all know."""
    if any(step.times_itself for step in definition.steps) or definition.has_templates:
        return LANGUAGE_VERSION  # an older one can't read the times, and takes a template for a value
    if _NEWER_WORDS.search(definition.content):
        return LANGUAGE_VERSION
    if definition.search_attributes is not None:
        return SEARCH_VERSION
    if any(step.message is not None for step in definition.steps):
        return MESSAGES_VERSION  # an older one would leave what waits behind
    if definition.start is not None:
        return FLOW_VERSION  # an older one would begin at once
    if definition.maps or definition.turn is not None or any(step.turn is not None for step in definition.steps):
        return FLOW_VERSION  # an older one would take an item for a branch, and forget whose turn it is
    if definition.undo_step is not None:
        return COMPENSATION_VERSION
    if any(step.callee is not None for step in definition.steps):
        return CALLS_VERSION  # an older one would not tell the caller of an end
    if any(step.result is not None for step in definition.steps):
        return RESULTS_VERSION
    return ERRORS_VERSION if any(_has_codes(step) for step in definition.steps) else 0


def _has_codes(step: Step) -> bool:
    catches = any(isinstance(event, Catch) for event in step.boundaries)
    return catches or bool(step.retry_on or step.no_retry_on or step.error_code)


def _check_attributes(definition: Definition) -> None:
    declared = () if definition.search_attributes is None else definition.search_attributes.types
    problems = [
        Problem(
            f"searchAttributes.{name}",
            "is one of secretVariables, and search attributes stand in clear in the database, encryption or not:"
            " take it out of one of the two",
        )
        for name in sorted(_secret_variables(definition.metadata).intersection(declared))
    ]
    if problems:
        raise InvalidDefinition(problems)


def _check_topics(definition: Definition) -> None:
    problems = [
        Problem(f"{job_path(step)}.jobType", problem)
        for step in definition.steps
        if step.type is StepType.SERVICE_TASK and (problem := topic_problem(step.job_type or ""))
    ]
    if problems:
        raise InvalidDefinition(problems)
