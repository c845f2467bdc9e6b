"""From an upload (JSON text, or a JSON tree that another edge made) to a Definition, or to everything wrong with it.

Three passes, none of which stops at a problem of its own kind: values (strict_json), fields of each step (draft),
rules between steps (validation). Stored definitions come through here again when an engine loads them, so the
canonical text of a valid definition must parse to an equal one. Must not do I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final, cast

from penstock.core.expression import Expression
from penstock.core.graph.definition import (
    Boundary,
    Catch,
    Definition,
    DefinitionLimits,
    InvalidDefinition,
    Problem,
    Step,
    StepType,
)
from penstock.core.parsing.draft import StepDraft, StepReader, read_definition_id
from penstock.core.parsing.draft_boundaries import BoundaryDraft, CatchDraft
from penstock.core.parsing.field_reader import FieldReader, Problems, kind_of
from penstock.core.parsing.handlers import check_compensation, with_handlers
from penstock.core.parsing.start_of_definition import read_start
from penstock.core.parsing.strict_json import BadJson, find_flaws, join_path, quote, read_json, write_json
from penstock.core.parsing.turns import read_turn
from penstock.core.parsing.validation import check_steps
from penstock.core.rules.search_attributes import ATTRIBUTE_NAME, AttributeType, SearchAttributes
from penstock.errors import PayloadTooLarge

DEFAULT_LIMITS: Final = DefinitionLimits()
STORED_LIMITS: Final = DefinitionLimits(expression_nodes_max_count=sys.maxsize, patterns_max_steps=sys.maxsize)
"""For what was uploaded before there were these."""

_CONTENT_WEIGHT: Final = 24
"""Bytes that a character of the text takes as a tree: `[[],[],…]` has the most."""
_ATTRIBUTE_TYPES: Final = [each.value for each in AttributeType]
_NODE_BYTES: Final = 350
_PATTERN_STEP_BYTES: Final = 4


def parse_definition(body: bytes | object, *, limits: DefinitionLimits = DEFAULT_LIMITS) -> Definition:
    """Return the definition in a JSON body: UTF-8 text as bytes, or a tree of dict, list, str, int, float, bool and
    None.

    `version` is ignored. Raises InvalidDefinition with every problem found, or PayloadTooLarge for bytes over
    ``limits.body_max_bytes``. Pure; 10,000 steps take about half a second.
    """
    problems = Problems(limits.problems_max_count)
    tree = _read_body(body, limits) if isinstance(body, bytes) else body
    for path, reason in find_flaws(
        tree, nesting_max_levels=limits.nesting_max_levels, number_max_digits=limits.number_max_digits
    ):
        problems.add(path, reason)
    if not isinstance(tree, dict):
        raise InvalidDefinition([Problem("", f"a definition must be an object, not {kind_of(tree)}")])
    header = _Header(FieldReader(cast("dict[str, object]", tree), "", problems), limits, problems)
    indexes = check_steps(header.drafts, limits, problems)
    check_compensation(header.drafts, indexes, problems, undoes_failures=header.undoes_failures)
    # Beyond here the canonical text is made, which a tree with flaws does not have.
    problems.raise_if_any()
    content = _write_content(header, limits, problems)
    problems.raise_if_any()
    return _build(header, indexes, content)


def readable_part(body: bytes, *, limits: DefinitionLimits = DEFAULT_LIMITS) -> Definition | None:
    """Of a definition with problems the steps that could be read, for hints alone: its steps lead nowhere, and it has
    metadata only where all is known that these speak of. None: nothing can be told of it."""
    problems = Problems(limits.problems_max_count)
    try:
        tree = _read_body(body, limits)
    except InvalidDefinition:
        return None
    flaws = find_flaws(tree, nesting_max_levels=limits.nesting_max_levels, number_max_digits=limits.number_max_digits)
    if not isinstance(tree, dict) or next(iter(flaws), None) is not None:
        return None
    header = _Header(FieldReader(cast("dict[str, object]", tree), "", problems), limits, problems)
    read = [_readable_step(draft) for draft in header.drafts]
    whole = None not in read and problems.are_expressions_read
    return Definition(
        id="",
        name="",
        description=None,
        auto_start_next=False,
        next_workflow_id=None,
        steps=tuple(step for step in read if step is not None),
        metadata=header.metadata if whole else None,
        content=write_json(
            {"steps": [draft.given if step else {} for draft, step in zip(header.drafts, read, strict=True)]}
        ),
        search_attributes=None,
        record_attempts=False,
        single_token=False,
        memory_bytes=0,
    )


def _readable_step(draft: StepDraft) -> Step | None:
    """Without what names other steps, and without conditions of which one can't be read."""
    if draft.id is None or draft.type is None:
        return None
    compiled = [expression for _, expression, _ in draft.conditions if expression is not None]
    return Step(
        index=draft.index,
        id=draft.id,
        name=draft.name or draft.id,
        type=draft.type,
        description=None,
        next=None,
        conditions=tuple((each, 0) for each in compiled) if len(compiled) == len(draft.conditions) else (),
        transformations=draft.transformations,
        branches=(),
        join=None,
        job_type=draft.job_type if "jobType" in draft.given else None,
        delegate_class=None,
        retry_count=0,
        boundaries=(),
        backoff=None,
        timeout_s=None,
        duration=None,
        until=None,
        callee=draft.callee,
    )


def _read_body(body: bytes, limits: DefinitionLimits) -> object:
    if len(body) > limits.body_max_bytes:
        raise PayloadTooLarge(f"the definition has {len(body)} bytes, more than {limits.body_max_bytes}")
    try:
        return read_json(body)
    except BadJson as error:
        raise InvalidDefinition([Problem("", str(error))]) from error


class _Header:
    """The top-level fields, read in the order of the canonical form; ``given`` is that form."""

    def __init__(self, reader: FieldReader, limits: DefinitionLimits, problems: Problems) -> None:
        self.given = reader.given
        self.id = read_definition_id(reader, "id", limits, required=True, checked=True)
        self.name = reader.text("name", required=True, max_chars=limits.name_max_chars)
        self.description = reader.text("description", max_chars=limits.description_max_chars)
        self.auto_start_next = reader.flag("autoStartNextWorkflow")
        self.next_workflow_id = read_definition_id(
            reader, "nextWorkflowId", limits, required=self.auto_start_next, checked=self.auto_start_next
        )
        on_failure = reader.text("onFailure", max_chars=limits.id_max_chars)
        if on_failure not in (None, "COMPENSATE"):
            reader.refuse("onFailure", f"must be COMPENSATE, not {quote(on_failure)}")
        self.undoes_failures = on_failure is not None
        self.steps = StepReader(limits, problems)
        self.drafts = _read_steps(reader, limits, self.steps)
        self.metadata = reader.fields("metadata")
        self.search_attributes = _read_search_attributes(reader, limits, problems)
        self.record_attempts = reader.flag("recordAttempts")
        self.turn = read_turn(reader, limits, self.steps.compiler, used=True)
        self.start = read_start(reader, self.steps.compiler, problems, limits.expression_max_chars)
        reader.ignore("version")
        reader.refuse_unknown()


def _read_steps(reader: FieldReader, limits: DefinitionLimits, steps: StepReader) -> list[StepDraft]:
    items = reader.items("steps", required=True)
    if items is None:
        return []
    if not items:
        reader.refuse("steps", "must have at least one step")
    if len(items) > limits.steps_max_count:
        reader.refuse("steps", f"has {len(items)} steps, more than {limits.steps_max_count}")
        return []
    drafts = [steps.read(item, index) for index, item in enumerate(items)]
    reader.given["steps"] = [draft.given for draft in drafts]
    return drafts


def _read_search_attributes(
    reader: FieldReader, limits: DefinitionLimits, problems: Problems
) -> SearchAttributes | None:
    given = reader.fields("searchAttributes")
    if not given:
        reader.given.pop("searchAttributes", None)
        return None
    if len(given) > limits.search_attributes_max_count:
        reader.refuse("searchAttributes", f"has {len(given)} names, more than {limits.search_attributes_max_count}")
    types: dict[str, AttributeType] = {}
    for name, value in given.items():
        path = join_path("searchAttributes", name)
        if ATTRIBUTE_NAME.fullmatch(name) is None:
            problems.add(path, "must be the name of a variable: up to 64 letters, digits and _, no digit first")
        elif value not in _ATTRIBUTE_TYPES:
            problems.add(path, f"must be one of {', '.join(_ATTRIBUTE_TYPES)}")
        else:
            types[name] = AttributeType(value)
    return SearchAttributes(types)


def _write_content(header: _Header, limits: DefinitionLimits, problems: Problems) -> str:
    """Return the canonical text. Its size is checked too, because numbers may be longer in it than they were sent."""
    if header.metadata is not None:
        size = len(write_json(header.metadata).encode())
        if size > limits.metadata_max_bytes:
            problems.add("metadata", f"has {size} bytes, more than {limits.metadata_max_bytes}")
    content = write_json(header.given)
    size = len(content.encode())
    if size > limits.body_max_bytes:
        problems.add("", f"the canonical text has {size} bytes, more than {limits.body_max_bytes}")
    return content


def _build(header: _Header, indexes: Mapping[str, int], content: str) -> Definition:
    assert header.id is not None
    assert header.name is not None
    visible = tuple(_build_step(draft, indexes) for draft in header.drafts)
    steps, undo_step = with_handlers(visible, header.drafts, indexes)
    return Definition(
        id=header.id,
        name=header.name,
        description=header.description,
        auto_start_next=header.auto_start_next,
        next_workflow_id=header.next_workflow_id,
        steps=steps,
        metadata=header.metadata,
        content=content,
        search_attributes=header.search_attributes,
        record_attempts=header.record_attempts,
        single_token=_has_single_token(steps),
        memory_bytes=_CONTENT_WEIGHT * len(content)
        + _NODE_BYTES * header.steps.compiler.nodes
        + _PATTERN_STEP_BYTES * header.steps.compiler.pattern_steps,
        undo_step=undo_step,
        undoes_failures=header.undoes_failures,
        turn=header.turn,
        start=header.start,
    )


def _has_single_token(steps: Sequence[Step]) -> bool:
    return not any(
        step.type in (StepType.PARALLEL_GATEWAY, StepType.COMPENSATE)
        or step.for_each is not None
        or any(not boundary.interrupting for _, boundary in step.timers)
        for step in steps
    )


def _build_step(draft: StepDraft, indexes: Mapping[str, int]) -> Step:
    """Return the step of a draft without problems: every reference is known and every expression compiled."""
    assert draft.id is not None
    assert draft.name is not None
    assert draft.type is not None
    conditions: list[tuple[Expression, int]] = []
    for _, expression, target in draft.conditions:
        assert expression is not None
        assert target is not None
        conditions.append((expression, indexes[target]))
    return Step(
        index=draft.index,
        id=draft.id,
        name=draft.name,
        type=draft.type,
        description=draft.description,
        next=None if draft.next is None else indexes[draft.next],
        conditions=tuple(conditions),
        transformations=draft.transformations,
        branches=tuple(indexes[head] for head in draft.branches if head is not None),
        join=None if draft.join is None else indexes[draft.join],
        job_type=draft.job_type,
        delegate_class=draft.delegate_class,
        retry_count=draft.retry_count,
        boundaries=tuple(_build_boundary(event, indexes) for event in draft.boundaries),
        backoff=draft.backoff,
        timeout_s=draft.timeout_s,
        duration=draft.duration,
        until=draft.until,
        buffer=draft.buffer,
        retry_on=draft.retry_on,
        no_retry_on=draft.no_retry_on,
        error_code=draft.error_code,
        result=draft.result,
        callee=draft.callee,
        message=draft.message,
        for_each=draft.for_each,
        turn=draft.turn,
    )


def _build_boundary(draft: BoundaryDraft | CatchDraft, indexes: Mapping[str, int]) -> Boundary | Catch:
    assert draft.target is not None
    target = indexes[draft.target]
    if isinstance(draft, CatchDraft):
        return Catch(draft.codes or (), draft.variable, target)
    return Boundary(draft.duration, draft.seconds, draft.interrupting, target)
