"""What people write before they upload it: definitions are checked, expressions tried. Nothing is stored.

The rules are the engine's own, so that a page needs none. Reading and evaluating is done away from the event loop, one
at a time, within the bounds that definitions and their expressions have anyway.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Protocol, cast

import msgspec

from penstock.core.expression import Expression, ExpressionError, parse, reads, reference, vocabulary
from penstock.core.graph.definition import Definition, InvalidDefinition, LateBackoff, Problem, Step, StepType, Turn
from penstock.core.parsing.child_hints import Called, called_by
from penstock.core.parsing.draft_for_each import SCOPE_NAMES
from penstock.core.parsing.hints import Hint, hints
from penstock.core.parsing.strict_json import BadJson, join_path, read_json
from penstock.engine.definitions.definitions import Definitions, job_path
from penstock.engine.requests.hiding import Hiding
from penstock.engine.requests.payload import PayloadLimits, check_variables
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_long, run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, Database
from penstock.store.rows import activity as activity_store
from penstock.store.rows import definitions as store
from penstock.wire.drafts import (
    DraftCheck,
    DraftHint,
    DraftProblem,
    ExpressionCheck,
    ExpressionLanguage,
    ExpressionProblem,
    ExpressionVerdict,
    LanguageFunction,
    VariableRead,
)
from penstock.wire.model import Instance

KINDS: Final = ("condition", "value")
IDENTIFIERS_MAX: Final = 10_000
READS_MAX: Final = 10_000
CALLED_MAX: Final = 50
"""Definitions whose ends are looked at, of those that one calls."""
_STEP: Final = re.compile(r"steps\[([0-9]{1,6})\]", re.ASCII)
_WORD: Final = re.compile(r"\w+|.", re.DOTALL)


def language() -> ExpressionLanguage:
    """Of this engine."""
    functions, operators = (
        [
            LanguageFunction(name=name, signature=one.signature, text=one.text, example=f"{one.example} → {one.gives}")
            for name, one in sorted(all_hints.items())
        ]
        for all_hints in (reference.FUNCTIONS, reference.OPERATORS)
    )
    return ExpressionLanguage(
        functions=functions, operators=operators, words=vocabulary.words(), methods=vocabulary.methods()
    )


class ReadsInstances(Protocol):
    """Says what an instance has for variables now."""

    async def get(self, id: str) -> Instance: ...


class Drafts:
    """Looks at what is not there yet."""

    def __init__(
        self,
        database: Database,
        definitions: Definitions,
        instances: ReadsInstances,
        limits: PayloadLimits,
        hiding: Hiding,
        *,
        polled: bool,
    ) -> None:
        """``polled``: jobs go out to workers that poll."""
        self._database = database
        self._polled = polled
        self._definitions = definitions
        self._instances = instances
        self._limits = limits
        self._hiding = hiding

    async def validate(self, body: bytes, *, with_reads: bool = False) -> DraftCheck:
        """Whether ``body`` could be uploaded. Raises PayloadTooLarge."""
        try:
            definition = await self._definitions.parse(lambda: body, len(body))
            self._definitions.check_upload(definition)
        except InvalidDefinition as error:
            named = await run_long(_named, body, error.problems, error.places, line="uploads")
            return DraftCheck(valid=False, problems=named, hints=await self._hints_of_part(body), identifiers=[])
        async with self._database.connection() as connection:
            same = await store.same(connection, definition.id, definition.content)
            newest = await store.newest(connection, definition.id)
            polled = await activity_store.read_worker_counts(connection) if self._asks_who_polls(definition) else None
            called = await self._called(connection, definition)
        expressions = await run_sized(len(definition.content), lambda: list(_expressions(definition)))
        names = {name for _, expression, own in expressions for name in expression.names - own}
        places = await run_sized(len(definition.content), lambda: _reads(expressions)) if with_reads else None
        return DraftCheck(
            valid=True,
            problems=[],
            hints=await _hints(definition, polled, called),
            identifiers=sorted(names)[:IDENTIFIERS_MAX],
            reads=places,
            same=same,
            latest=newest,
        )

    async def _called(self, connection: TrioConnection, definition: Definition) -> dict[Called, Definition]:
        """What it calls, as far as it is there and not too much."""
        found: dict[Called, Definition] = {}
        for id, version in called_by(definition)[:CALLED_MAX]:
            loaded = await self._definitions.find(connection, id, version)
            if loaded is not None and not loaded.code:
                found[id, version] = loaded.definition
        return found

    async def _hints_of_part(self, body: bytes) -> list[DraftHint]:
        """Of one with problems. Who polls is told where the database says so: the problems need none."""
        readable = await self._definitions.readable_part(body)
        if readable is None:
            return []
        polled: Container[str] | None = None
        if self._asks_who_polls(readable):
            with suppress(*AWAY):
                async with self._database.connection() as connection:
                    polled = await activity_store.read_worker_counts(connection)
        return await _hints(readable, polled)

    def _asks_who_polls(self, definition: Definition) -> bool:
        return self._polled and any(step.type is StepType.SERVICE_TASK and step.job_type for step in definition.steps)

    async def check_expression(self, asked: ExpressionCheck) -> ExpressionVerdict:
        """Whether it can be read, and what it gives. Raises BadRequest, PayloadTooLarge, NotFound and Overloaded."""
        if asked.kind not in KINDS:
            raise BadRequest(f"kind: must be one of {', '.join(KINDS)}")
        given = bytes(asked.variables)
        variables: bytes | None = None
        if given not in (b"", b"null"):
            if asked.instance_id is not None:
                raise BadRequest("instanceId: can't be combined with variables")
            variables = check_variables(given, self._limits)
        elif asked.instance_id is not None:
            variables = bytes(cast(msgspec.Raw, (await self._instances.get(asked.instance_id)).variables))
            if len(variables) > self._limits.variables_max_bytes:
                raise PayloadTooLarge(
                    f"the instance has more than {self._limits.variables_max_bytes} bytes of variables"
                )
            clear = variables
            variables = await run_sized(len(clear), lambda: self._hiding.drop(clear))
        return await run_long(
            _check_expression, asked.expression, asked.kind, variables, datetime.now(UTC), line="expressions"
        )


async def _hints(
    definition: Definition, polled: Container[str] | None, called: Mapping[Called, Definition] | None = None
) -> list[DraftHint]:
    """``polled``: the job types that somebody polls for; None: that is not known, or jobs go out otherwise. ``called``:
    the definitions that it calls."""
    if definition.metadata is None:
        found = await run_sized(len(definition.content), lambda: hints(definition, called))
    else:  # names of its forms are compared with others, however small it is
        found = await run_long(hints, definition, called, line="uploads")
    all_hints = [*found, *(hint for step in definition.steps for hint in _unpolled(step, polled))]
    return [DraftHint(path=hint.path, text=hint.text, kind=hint.kind) for hint in all_hints]


def _named(body: bytes, problems: Iterable[Problem], places: Mapping[Problem, int]) -> list[DraftProblem]:
    """With the ids of the steps, as far as these can be read."""
    try:
        steps = _field(read_json(body), "steps")
    except BadJson:
        steps = None
    items = cast("list[object]", steps) if isinstance(steps, list) else []
    return [
        DraftProblem(path=one.path, reason=one.reason, step_id=_step_id(items, one.path), character=places.get(one))
        for one in problems
    ]


def _step_id(steps: Sequence[object], path: str) -> str | None:
    found = _STEP.match(path)
    if found is None or int(found[1]) >= len(steps):
        return None
    id = _field(steps[int(found[1])], "id")
    return id if isinstance(id, str) and id.isprintable() else None


def _field(tree: object, name: str) -> object:
    return cast("dict[str, object]", tree).get(name) if isinstance(tree, dict) else None


_Read = tuple[str, Expression, frozenset[str]]
"""Its path, itself, and the names in it that are no variables of the instance."""


def _expressions(definition: Definition) -> Iterable[_Read]:
    """Return those that read variables of the instance; what a call gives back is of another one."""
    if definition.start is not None:
        yield from ((f"start.{place}", one, frozenset()) for place, one in definition.start.expressions)
    yield from _given("", _turn(definition.turn))
    for step in definition.steps:  # those of compensation have none
        yield from _expressions_of(step)


def _expressions_of(step: Step) -> Iterable[_Read]:
    path, each = f"steps[{step.index}]", step.for_each
    yield from ((join_path(f"{path}.conditionalNextSteps", one.source), one, frozenset()) for one, _ in step.conditions)
    values: list[tuple[str, object]] = [("duration", step.duration), ("until", step.until)]
    values += ((f"boundaryEvents[{at}].duration", timer.seconds) for at, timer in step.timers)
    values += ((join_path("transformations", name), value) for name, value in step.transformations)
    values += ((join_path("output", name), value) for name, value in step.result or ())
    if step.message is not None:
        values.append(("message.correlationKey", step.message.key))
    if each is not None:
        values.append(("forEach.items", each.items))
    yield from _given(f"{path}.", values)
    item: frozenset[str] = frozenset() if each is None else frozenset({each.name, each.index or each.name})
    values = [*_turn(step.turn), ("timeout", step.timeout_s)]
    if isinstance(step.backoff, LateBackoff):
        values += (("retryBackoff.initial", step.backoff.initial), ("retryBackoff.max", step.backoff.longest))
    if step.callee is not None:
        values.append(("businessKey", step.callee.business_key))
        values += ((join_path("input", name), value) for name, value in step.callee.input or ())
    yield from _given(f"{path}.", values, item)
    if each is not None:
        ends = (("forEach.collect", each.collect), ("forEach.until", each.until))
        yield from _given(f"{path}.", ends, item.union(SCOPE_NAMES))


def _turn(turn: Turn | None) -> Iterable[tuple[str, object]]:
    return () if turn is None else (("flowKey", turn.key), ("priority", turn.priority))


def _given(path: str, values: Iterable[tuple[str, object]], own: frozenset[str] = frozenset()) -> Iterable[_Read]:
    return ((f"{path}{place}", value, own) for place, value in values if isinstance(value, Expression))


def _reads(expressions: Iterable[_Read]) -> list[VariableRead]:
    found = (
        VariableRead(path=path, name=one.name, start=one.start, end=one.end, dot=one.dot)
        for path, expression, own in expressions
        if not expression.is_template
        for one in reads(expression.source)
        if one.name not in own
    )
    return list(islice(found, READS_MAX))


def _unpolled(step: Step, polled: Container[str] | None) -> Iterable[Hint]:
    if step.type is StepType.SERVICE_TASK and polled is not None and step.job_type and step.job_type not in polled:
        yield Hint(f"{job_path(step)}.jobType", f"nobody polls for {step.job_type} now", "NOBODY_POLLS")


def _check_expression(source: str, kind: str, variables: bytes | None, now: datetime) -> ExpressionVerdict:
    try:
        expression = parse(source)
    except ExpressionError as error:
        return ExpressionVerdict(ok=False, identifiers=[], problem=_problem(error))
    names = sorted(expression.names)
    if variables is None:
        return ExpressionVerdict(ok=True, identifiers=names)
    try:
        value = expression.evaluate(msgspec.json.decode(variables, type=dict[str, Any]), now)
    except ExpressionError as error:
        return ExpressionVerdict(ok=True, identifiers=names, value_error=_problem(error))
    if kind == "condition" and not isinstance(value, bool):
        whole = ExpressionProblem(reason="a condition must give true or false", start=0, end=len(source))
        return ExpressionVerdict(ok=True, identifiers=names, value_error=whole)
    return ExpressionVerdict(ok=True, identifiers=names, value=msgspec.Raw(msgspec.json.encode(value)))


def _problem(error: ExpressionError) -> ExpressionProblem:
    """The word, or the sign, at which it was found."""
    word = _WORD.match(error.source, error.position)
    end = error.position if word is None else word.end()
    return ExpressionProblem(reason=error.reason, start=error.position, end=end)
