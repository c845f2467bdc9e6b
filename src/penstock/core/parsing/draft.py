"""Reads one step of an upload: from its JSON object to a draft that still names other steps by id.

The rules that concern one step alone are here: which fields each type uses and needs, their types and ranges, its
expressions and durations. A field that the type does not use must have the right JSON type and is then left out of
the draft. What concerns several steps is in validation.py.
"""

from __future__ import annotations

import re
from typing import Final, assert_never, cast

import msgspec

from penstock.core.expression import TEMPLATE, Expression, template_in
from penstock.core.graph.definition import (
    BUSINESS_KEY_MAX_CHARS,
    Assignments,
    AwaitedMessage,
    Backoff,
    Callee,
    DefinitionLimits,
    ForEach,
    LateBackoff,
    StepType,
    Turn,
)
from penstock.core.graph.retry import longest_s
from penstock.core.parsing.draft_boundaries import BoundaryDraft, BoundaryReader, CatchDraft
from penstock.core.parsing.draft_expressions import DraftCompiler, is_expression
from penstock.core.parsing.draft_for_each import ForEachReader
from penstock.core.parsing.field_reader import FieldReader, Problems, kind_of
from penstock.core.parsing.strict_json import join_path, quote
from penstock.core.parsing.turns import read_turn
from penstock.core.rules.correlation import KEY_MAX_CHARS, NAME_MAX_CHARS
from penstock.core.time.duration import TimestampError, parse_timestamp
from penstock.wire.error_code import code_problem

_ID: Final = re.compile(r"[A-Za-z0-9_:\-]+")
BACKOFF_MULTIPLIER_MAX: Final = 100
BACKOFF_DEFAULT_MULTIPLIER: Final = 2.0

JOB_FIELDS: Final = frozenset(
    {"jobType", "retryCount", "delegateClass", "retryBackoff", "timeout", "retryOn", "noRetryOn"}
)
_TASK: Final = frozenset({"nextStep", "conditionalNextSteps", "boundaryEvents"})


def _fields(kind: StepType) -> tuple[frozenset[str], frozenset[str]]:
    """What a type uses, and what of that it needs."""
    match kind:
        case StepType.SERVICE_TASK:
            more = {"flowKey", "priority", "forEach", "compensation"}
            return _TASK | JOB_FIELDS | more, frozenset({"jobType"})
        case StepType.USER_TASK:
            return _TASK | {"jobType", "forEach"}, frozenset()
        case StepType.CALL_ACTIVITY:
            more = {"definitionId", "definitionVersion", "input", "output", "businessKey", "forEach", "compensation"}
            return _TASK | more, frozenset({"definitionId"})
        case StepType.DECISION:
            return frozenset({"conditionalNextSteps"}), frozenset({"conditionalNextSteps"})
        case StepType.TRANSFORMATION:
            return frozenset({"transformations", "nextStep"}), frozenset({"transformations", "nextStep"})
        case StepType.WAIT:
            return _TASK | {"duration", "until", "buffer", "message"}, frozenset({"nextStep"})
        case StepType.PARALLEL_GATEWAY:
            return frozenset({"parallelNextSteps", "joinStep"}), frozenset({"parallelNextSteps", "joinStep"})
        case StepType.JOIN_GATEWAY:
            return frozenset({"nextStep"}), frozenset({"nextStep"})
        case StepType.COMPENSATE:
            return frozenset({"steps", "nextStep"}), frozenset({"nextStep"})
        case StepType.END:
            return frozenset({"errorCode", "output"}), frozenset()
        case _:
            assert_never(kind)


FIELDS_BY_TYPE: Final[dict[StepType, frozenset[str]]] = {kind: _fields(kind)[0] for kind in StepType}
REQUIRED_BY_TYPE: Final[dict[StepType, frozenset[str]]] = {kind: _fields(kind)[1] for kind in StepType}
# Of a step whose type is unknown: enough to follow its references, so that one wrong type is not told as a wave of
# unreachable steps.
FIELDS_OF_UNKNOWN: Final = _TASK | {"parallelNextSteps", "joinStep"}


class StepDraft(msgspec.Struct, kw_only=True):
    """What could be read of a step. Only when no problem was found are all parts there."""

    index: int
    given: dict[str, object]
    id: str | None = None
    name: str | None = None
    type: StepType | None = None
    description: str | None = None
    next: str | None = None
    conditions: list[tuple[str, Expression | None, str | None]] = []
    """(source, compiled, target id)"""
    transformations: Assignments = ()
    branches: list[str | None] = []
    join: str | None = None
    job_type: str | None = None
    delegate_class: str | None = None
    retry_count: int = 0
    boundaries: list[BoundaryDraft | CatchDraft] = []
    backoff: Backoff | LateBackoff | None = None
    timeout_s: float | Expression | None = None
    duration: float | Expression | None = None
    until: Expression | str | None = None
    buffer: bool = False
    retry_on: tuple[str, ...] = ()
    no_retry_on: tuple[str, ...] = ()
    error_code: str | None = None
    result: Assignments | None = None
    callee: Callee | None = None
    message: AwaitedMessage | None = None
    for_each: ForEach | None = None
    compensation: StepDraft | None = None
    undoes: list[str | None] | None = None
    """None: all that can be."""
    turn: Turn | None = None

    @property
    def path(self) -> str:
        return f"steps[{self.index}]"


class StepReader:
    """Reads steps into drafts, all against the same limits and into the same list of problems."""

    def __init__(self, limits: DefinitionLimits, problems: Problems) -> None:
        self._limits = limits
        self._problems = problems
        self.compiler = DraftCompiler(limits, problems)
        self._boundaries = BoundaryReader(limits, problems, self.compiler)
        self._for_each = ForEachReader(limits, problems, self.compiler)

    def read(self, value: object, index: int) -> StepDraft:
        """Return the draft of ``steps[index]``."""
        path = f"steps[{index}]"
        if not isinstance(value, dict):
            self._problems.add(path, f"must be an object, not {kind_of(value)}")
            return StepDraft(index=index, given={})
        reader = FieldReader(cast("dict[str, object]", value), path, self._problems)
        draft = StepDraft(index=index, given=reader.given)
        limits = self._limits
        draft.id = reader.text("id", required=True, max_chars=limits.id_max_chars)
        draft.name = reader.text("name", required=True, max_chars=limits.name_max_chars)
        draft.type = self._type(reader)
        draft.description = reader.text("description", max_chars=limits.description_max_chars)
        # In the order of the canonical form.
        self._read_task_fields(reader, draft)
        self._read_wait_fields(reader, draft)
        self._read_message(reader, draft)
        self._read_call_fields(reader, draft)
        draft.for_each = self._for_each.read(reader, used=_checks(draft, "forEach"))
        if draft.for_each is not None and draft.callee is not None and draft.callee.output:
            reader.refuse("output", "with forEach nothing comes back but what forEach.collect says")
        self._read_flow_fields(reader, draft)
        checked = _checks(draft, "boundaryEvents")
        boundaries = self._boundaries.read(reader, checked=checked, may_fail=draft.type is not StepType.WAIT)
        if _uses(draft, "boundaryEvents"):
            draft.boundaries = boundaries
        self._read_compensation(reader, draft)
        reader.refuse_unknown()
        return draft

    def _type(self, reader: FieldReader) -> StepType | None:
        name = reader.text("type", required=True, max_chars=self._limits.id_max_chars)
        if name is None:
            return None
        try:
            return StepType(name)
        except ValueError:
            reader.refuse("type", f"unknown step type {quote(name)}; the types are {', '.join(StepType)}")
            return None

    def _read_task_fields(self, reader: FieldReader, draft: StepDraft) -> None:
        self._read_job_fields(reader, draft)
        draft.turn = read_turn(reader, self._limits, self.compiler, used=_uses(draft, "flowKey"))
        error_code = reader.text("errorCode", max_chars=self._limits.id_max_chars)
        if error_code is not None and _uses(draft, "errorCode"):
            draft.error_code = error_code
            if (problem := code_problem(error_code)) is not None:
                reader.refuse("errorCode", problem)
        self._read_result(reader, draft)

    def _read_job_fields(self, reader: FieldReader, draft: StepDraft) -> None:
        limits = self._limits
        job_type = reader.text("jobType", required=_needs(draft, "jobType"), max_chars=limits.id_max_chars)
        if _uses(draft, "jobType"):
            draft.job_type = job_type or draft.id
        delegate_class = reader.text("delegateClass", max_chars=limits.name_max_chars)
        if _uses(draft, "delegateClass"):
            draft.delegate_class = delegate_class
        retry_count = reader.whole_number("retryCount")
        if retry_count is not None and _uses(draft, "retryCount"):
            if 0 <= retry_count <= limits.retry_max_count:
                draft.retry_count = retry_count
            else:
                reader.refuse("retryCount", f"must lie between 0 and {limits.retry_max_count}")
        backoff = reader.fields("retryBackoff")
        if backoff is not None:
            draft.backoff = self._backoff(reader, backoff, used=_uses(draft, "retryBackoff"))
        timeout = reader.text("timeout", max_chars=limits.expression_max_chars)
        if timeout is not None and _uses(draft, "timeout"):
            draft.timeout_s = self.compiler.lasting(timeout, reader.at("timeout"))
        retry_on = self._boundaries.codes(reader, "retryOn", checked=_uses(draft, "retryOn"))
        no_retry_on = self._boundaries.codes(reader, "noRetryOn", checked=_uses(draft, "noRetryOn"))
        if _uses(draft, "retryOn"):
            draft.retry_on, draft.no_retry_on = retry_on or (), no_retry_on or ()
            for code in sorted(set(draft.retry_on) & set(draft.no_retry_on)):
                reader.refuse("noRetryOn", f"the code {quote(code)} is in retryOn, too")

    def _read_result(self, reader: FieldReader, draft: StepDraft) -> None:
        output = reader.fields("output")
        if output is None or not _uses(draft, "output") or draft.type is not StepType.END:
            return
        draft.result = self._assignments(reader, "output", output)
        if draft.error_code is not None:
            reader.refuse("output", "an END with an errorCode fails the instance, which has no result then")

    def _backoff(self, outer: FieldReader, fields: dict[str, object], *, used: bool) -> Backoff | LateBackoff | None:
        reader = FieldReader(fields, outer.at("retryBackoff"), self._problems)
        max_chars = self._limits.expression_max_chars
        initial = reader.text("initial", required=used, max_chars=max_chars)
        multiplier = reader.number("multiplier")
        longest = reader.text("max", max_chars=max_chars)
        jitter = reader.number("jitter")
        reader.refuse_unknown()
        outer.given["retryBackoff"] = reader.given
        if not used:
            return None
        initial_s = None if initial is None else self.compiler.lasting(initial, reader.at("initial"))
        max_s = None if longest is None else self.compiler.lasting(longest, reader.at("max"))
        if multiplier is not None and not 1 <= multiplier <= BACKOFF_MULTIPLIER_MAX:
            reader.refuse("multiplier", f"must lie between 1 and {BACKOFF_MULTIPLIER_MAX}")
        if jitter is not None and not 0 <= jitter <= 1:
            reader.refuse("jitter", "must lie between 0 and 1")
        if initial_s is None:
            return None
        factor = BACKOFF_DEFAULT_MULTIPLIER if multiplier is None else float(multiplier)
        share = 0.0 if jitter is None else float(jitter)
        if isinstance(initial_s, Expression) or isinstance(max_s, Expression):
            return LateBackoff(initial_s, max_s, factor, share)
        if max_s is not None and max_s < initial_s:
            reader.refuse("max", "must not be shorter than initial")
        return Backoff(initial_s, factor, longest_s(initial_s, max_s), share)

    def _read_wait_fields(self, reader: FieldReader, draft: StepDraft) -> None:
        max_chars = self._limits.expression_max_chars
        duration = reader.text("duration", max_chars=max_chars)
        until = reader.text("until", max_chars=max_chars)
        buffer = reader.flag("buffer")
        if not _uses(draft, "duration"):
            return
        draft.buffer = buffer
        if duration is not None and until is not None:
            reader.refuse("until", "a wait has either duration or until, not both")
        if duration is not None:
            draft.duration = self.compiler.lasting(duration, reader.at("duration"))
        if until is not None and is_expression(until):
            draft.until = self.compiler.compile(until, reader.at("until"))
        elif until is not None:
            draft.until = until
            try:
                parse_timestamp(until)
            except TimestampError as error:
                reader.refuse("until", str(error))

    def _read_message(self, reader: FieldReader, draft: StepDraft) -> None:
        fields = reader.fields("message")
        if fields is None:
            return
        used = _uses(draft, "message")
        about = FieldReader(fields, reader.at("message"), self._problems)
        name = about.text("name", required=used, max_chars=NAME_MAX_CHARS)
        key, compiled = self._key(about, "correlationKey", KEY_MAX_CHARS, required=used, used=used)
        about.refuse_unknown()
        reader.given["message"] = about.given
        if not used or key is None:
            return
        if name is not None and compiled is not None:
            draft.message = AwaitedMessage(name, compiled)

    def _key(
        self, reader: FieldReader, name: str, max_chars: int, *, required: bool, used: bool
    ) -> tuple[object | None, Expression | str | None]:
        """What the field has, and what it means where it is ``used``: text, an expression or a template."""
        given = reader.text_or_object(name, required=required, max_chars=self._limits.expression_max_chars)
        if given is None or not used:
            return given, None
        if not isinstance(given, str):
            template = template_in(given)
            if template is not None and isinstance(template[0], str):
                return given, self.compiler.compile_template(template[0], reader.at(name))
            reader.refuse(name, f'must be a string, or a template such as {{"{TEMPLATE}": "${{a}}-${{b}}"}}')
            return given, None
        if is_expression(given):
            return given, self.compiler.compile(given, reader.at(name))
        if len(given) > max_chars:
            reader.refuse(name, f"longer than {max_chars} characters")
        return given, given

    def _read_call_fields(self, reader: FieldReader, draft: StepDraft) -> None:
        """Of these the canonical form has what was given, as it was given."""
        used = _uses(draft, "definitionId") and draft.type is not None
        definition_id = read_definition_id(
            reader, "definitionId", self._limits, required=_needs(draft, "definitionId"), checked=used
        )
        version = reader.whole_number("definitionVersion")
        if used and version is not None and not 0 <= version < 1 << 31:
            reader.refuse("definitionVersion", "must lie between 0 (the latest) and 2147483647")
        given = reader.fields("input")
        output = reader.fields("output")
        _, compiled = self._key(reader, "businessKey", BUSINESS_KEY_MAX_CHARS, required=False, used=used)
        if not used:
            return
        draft.callee = Callee(
            definition_id or "",
            version or 0,
            None if given is None else self._assignments(reader, "input", given),
            () if output is None else self._assignments(reader, "output", output),
            compiled,
        )

    def _read_compensation(self, reader: FieldReader, draft: StepDraft) -> None:
        """The handler is read as the job that it is; and what a COMPENSATE undoes."""
        name = "compensation"
        fields = reader.fields(name)
        if fields is not None and _checks(draft, name):
            inner = FieldReader(fields, reader.at(name), self._problems)
            draft.compensation = StepDraft(index=draft.index, given=inner.given, type=StepType.SERVICE_TASK)
            self._read_job_fields(inner, draft.compensation)
            inner.refuse_unknown()
            reader.given[name] = inner.given
        items = reader.items("steps")
        if items is None or not _checks(draft, "steps"):
            return
        if not items:
            reader.refuse("steps", "must have at least one step")
        if len(items) > self._limits.branches_max_count:
            reader.refuse("steps", f"more than {self._limits.branches_max_count} steps")
            return
        path = reader.at("steps")
        draft.undoes = [self._step_id(item, join_path(path, place), required=True) for place, item in enumerate(items)]

    def _read_flow_fields(self, reader: FieldReader, draft: StepDraft) -> None:
        id_max_chars = self._limits.id_max_chars
        next_step = reader.text("nextStep", required=_needs(draft, "nextStep"), max_chars=id_max_chars)
        if _uses(draft, "nextStep"):
            draft.next = next_step
        self._read_conditions(reader, draft)
        self._read_transformations(reader, draft)
        self._read_branches(reader, draft)
        join = reader.text("joinStep", required=_needs(draft, "joinStep"), max_chars=id_max_chars)
        if _uses(draft, "joinStep"):
            draft.join = join

    def _read_conditions(self, reader: FieldReader, draft: StepDraft) -> None:
        name = "conditionalNextSteps"
        needed = _needs(draft, name)
        fields = reader.fields(name, required=needed)
        if fields is None:
            return
        checked = _checks(draft, name)
        if needed and not fields:
            reader.refuse(name, "must have at least one condition")
        if len(fields) > self._limits.conditions_max_count:
            reader.refuse(name, f"more than {self._limits.conditions_max_count} conditions")
            return
        conditions: list[tuple[str, Expression | None, str | None]] = []
        for source, target in fields.items():
            path = join_path(reader.at(name), source)
            step_id = self._step_id(target, path, required=checked)
            expression = self.compiler.compile(source, path) if checked else None
            conditions.append((source, expression, step_id))
        if _uses(draft, name):
            draft.conditions = conditions

    def _read_transformations(self, reader: FieldReader, draft: StepDraft) -> None:
        name = "transformations"
        fields = reader.fields(name, required=_needs(draft, name))
        if fields is None or not _uses(draft, name):
            return
        if not fields:
            reader.refuse(name, "must have at least one entry")
        draft.transformations = self._assignments(reader, name, fields)

    def _assignments(self, reader: FieldReader, name: str, fields: dict[str, object]) -> Assignments:
        limits = self._limits
        if len(fields) > limits.transformations_max_count:
            reader.refuse(name, f"more than {limits.transformations_max_count} entries")
            return ()
        assignments: list[tuple[str, object | Expression]] = []
        for variable, value in fields.items():
            path = join_path(reader.at(name), variable)
            if len(variable) > limits.id_max_chars:
                self._problems.add(path, f"the name is longer than {limits.id_max_chars} characters")
            if isinstance(value, str) and is_expression(value):
                assignments.append((variable, self.compiler.compile(value, path)))
            elif (template := template_in(value)) is not None:
                assignments.append((variable, self.compiler.compile_template(template[0], path)))
            else:
                assignments.append((variable, value))
        return tuple(assignments)

    def _read_branches(self, reader: FieldReader, draft: StepDraft) -> None:
        name = "parallelNextSteps"
        needed = _needs(draft, name)
        items = reader.items(name, required=needed)
        if items is None:
            return
        if needed and len(items) < 2:
            reader.refuse(name, "must have at least two branches")
        if len(items) > self._limits.branches_max_count:
            reader.refuse(name, f"more than {self._limits.branches_max_count} branches")
            return
        path = reader.at(name)
        branches = [self._step_id(item, join_path(path, place), required=needed) for place, item in enumerate(items)]
        if _uses(draft, name):
            draft.branches = branches

    def _step_id(self, value: object, path: str, *, required: bool) -> str | None:
        """A reference that is a value of an object or array and so has no field of its own."""
        if value is None or value == "":
            if required:
                self._problems.add(path, "required: the id of a step")
            return None
        if not isinstance(value, str):
            self._problems.add(path, f"must be a string, not {kind_of(value)}")
            return None
        if len(value) > self._limits.id_max_chars:
            self._problems.add(path, f"longer than {self._limits.id_max_chars} characters")
            return None
        return value


def read_definition_id(
    reader: FieldReader, name: str, limits: DefinitionLimits, *, required: bool, checked: bool
) -> str | None:
    """Return the id of a definition; ``checked``: it must look like one."""
    value = reader.text(name, required=required, max_chars=limits.id_max_chars)
    if checked and value is not None and _ID.fullmatch(value) is None:
        reader.refuse(name, "may hold only letters, digits, '_', ':' and '-'")
    return value


def _uses(draft: StepDraft, field: str) -> bool:
    return field in (FIELDS_OF_UNKNOWN if draft.type is None else FIELDS_BY_TYPE[draft.type])


def _checks(draft: StepDraft, field: str) -> bool:
    return draft.type is not None and _uses(draft, field)


def _needs(draft: StepDraft, field: str) -> bool:
    return draft.type is not None and field in REQUIRED_BY_TYPE[draft.type]
