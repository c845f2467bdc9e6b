"""Definitions over gRPC: a message to the JSON tree that `core.parsing` reads, and stored text back to a message.

A proto map has no order, and order means something: conditions are taken in sorted order of their expressions,
transformations in that of their names (by code point). Objects in `metadata` and in transformations' values are sorted
too: Go's library writes a map in another order each time, and the same content would be a new version. A definition
that was uploaded through REST keeps its own order in the engine; only the message does not show it. What the message
does not have (`retryBackoff`, `timeout`, `duration`, `until`, error boundaries and codes) can't be given here and does
not come back.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Final, cast

import msgspec
from grpclib.const import Handler

from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.engine import Engine
from penstock.engine.requests.answers import COPIES, current_reservation
from penstock.errors import BadRequest, TooManyRequests
from penstock.loop.offload import run_sized
from penstock.rpc.methods import unary
from penstock.rpc.reading import given, known, required, slice_of
from penstock.wire import workflow_v1 as m
from penstock.wire.model import DefinitionSummary

LIST_MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the definitions in one answer, as JSON text; a page with more is refused: the contract has all steps in it."""

_PREFIX: Final = "/workflow.v1.WorkflowEngine/"


class DefinitionService:
    """UploadDefinition, GetDefinition, ListDefinitions."""

    def __init__(self, engine: Engine) -> None:
        self._definitions = engine.definitions

    def __mapping__(self) -> dict[str, Handler]:
        return {
            f"{_PREFIX}UploadDefinition": unary(self.upload, m.UploadDefinitionRequest, m.UploadDefinitionResponse),
            f"{_PREFIX}GetDefinition": unary(self.get, m.GetDefinitionRequest, m.GetDefinitionResponse),
            f"{_PREFIX}ListDefinitions": unary(self.list, m.ListDefinitionsRequest, m.ListDefinitionsResponse),
        }

    async def upload(self, request: m.UploadDefinitionRequest, _call: object) -> m.UploadDefinitionResponse:
        """The same content as that of a version gives that version again. New starts use it."""
        message = request.definition
        if message is None:
            raise BadRequest("definition: is required")
        parsed = await self._definitions.parse(lambda: tree_of(message), _size_of(message))
        summary = await self._definitions.upload(parsed)
        return m.UploadDefinitionResponse(
            id=summary.id, version=summary.version, uploaded_at=summary.uploaded_at, active=bool(summary.active)
        )

    async def get(self, request: m.GetDefinitionRequest, _call: object) -> m.GetDefinitionResponse:
        """Version 0 is the active one."""
        id = required(request.id, "id").replace("\0", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL takes no NUL
        stored = await self._definitions.get(id, request.version)
        return m.GetDefinitionResponse(await _message_of_soon(stored))

    async def list(self, request: m.ListDefinitionsRequest, _call: object) -> m.ListDefinitionsResponse:
        """Active versions, with their steps."""
        keyword = given(request.keyword, "keyword")
        if (part := slice_of(request)) is not None:
            some = await self._definitions.list_slice(keyword, *part)
            return m.ListDefinitionsResponse(await self._with_steps(some.items), next=some.next or "")
        page = await self._definitions.list(keyword, request.page, request.page_size)
        return m.ListDefinitionsResponse(await self._with_steps(page.items), total=page.total or 0)

    async def _with_steps(self, items: Sequence[DefinitionSummary]) -> builtins.list[m.WorkflowDefinition]:
        found: builtins.list[m.WorkflowDefinition] = []
        left_bytes = LIST_MAX_BYTES
        for item in items:
            stored = await self._definitions.get(item.id, item.version)
            left_bytes -= len(stored.definition.content)
            if left_bytes < 0:
                raise TooManyRequests(
                    f"page_size, limit: the definitions of this page have over {LIST_MAX_BYTES} bytes: ask for fewer"
                )
            found.append(await _message_of_soon(stored))
        return found


async def _message_of_soon(stored: LoadedDefinition) -> m.WorkflowDefinition:
    """`message_of`, within the memory for answers, and away from the loop unless it is small."""
    size_bytes = len(stored.definition.content)
    await current_reservation().reserve_soon(COPIES * size_bytes)
    return await run_sized(size_bytes, lambda: message_of(stored))


def _size_of(message: m.WorkflowDefinition) -> int:
    """About what its JSON text would have."""
    return 100 * len(message.steps) + sum(
        len(key) + len(value)
        for step in message.steps
        for key, value in (*step.transformations.items(), *step.conditional_next_steps.items())
    )


# ------------------------------------------------------------------------------------------- message to JSON tree


def tree_of(message: m.WorkflowDefinition) -> dict[str, object]:
    """The JSON tree; what is at its default is left out. Raises BadRequest for enum numbers that are none."""
    tree = _given(
        id=message.id,
        name=message.name,
        description=message.description,
        autoStartNextWorkflow=message.auto_start_next_workflow,
        nextWorkflowId=message.next_workflow_id,
        steps=[_step_tree(step, f"steps[{index}]") for index, step in enumerate(message.steps)],
    )
    if message.metadata:
        tree["metadata"] = _sorted(msgspec.json.decode(message.metadata))
    return tree


def _sorted(value: object) -> object:
    """Return the same with the names of every object in order. A Struct nests 32 levels at most."""
    if isinstance(value, dict):
        return {name: _sorted(inner) for name, inner in sorted(cast("dict[str, object]", value).items())}
    if isinstance(value, list):
        return [_sorted(inner) for inner in cast("list[object]", value)]
    return value


def _step_tree(step: m.WorkflowStep, path: str) -> dict[str, object]:
    kind = known(m.StepType, step.type, f"{path}.type")
    transformations = step.transformations
    return _given(
        id=step.id,
        name=step.name,
        type="" if kind is None else kind.name,
        description=step.description,
        nextStep=step.next_step,
        parallelNextSteps=step.parallel_next_steps,
        joinStep=step.join_step,
        conditionalNextSteps=dict(sorted(step.conditional_next_steps.items())),
        transformations={name: _sorted(msgspec.json.decode(transformations[name])) for name in sorted(transformations)},
        jobType=step.job_type,
        delegateClass=step.delegate_class,
        retryCount=step.retry_count,
        boundaryEvents=[
            _boundary_tree(event, f"{path}.boundaryEvents[{place}]") for place, event in enumerate(step.boundary_events)
        ],
        buffer=step.buffer,
    )


def _boundary_tree(event: m.BoundaryEvent, path: str) -> dict[str, object]:
    kind = known(m.BoundaryEventType, event.type, f"{path}.type")
    return _given(
        type="" if kind is None else kind.name,
        duration=event.duration,
        interrupting=event.interrupting,
        targetStepId=event.target_step_id,
    )


def _given(**fields: object) -> dict[str, object]:
    """Without defaults: an empty list or object is one that was not given."""
    return {name: value for name, value in fields.items() if value}


# ------------------------------------------------------------------------------------------- stored text to message


class _BoundaryText(msgspec.Struct, rename="camel"):
    type: str = ""
    duration: str = ""
    interrupting: bool = False
    target_step_id: str = ""


class _StepText(msgspec.Struct, rename="camel"):
    """A step as it stands in a definition's canonical text. A reference that its type does not use may be null."""

    id: str
    name: str
    type: str
    description: str = ""
    next_step: str = ""
    parallel_next_steps: list[str | None] = []
    join_step: str = ""
    conditional_next_steps: dict[str, str | None] = {}
    transformations: dict[str, msgspec.Raw] = {}
    job_type: str = ""
    delegate_class: str = ""
    retry_count: int = 0
    boundary_events: list[_BoundaryText] = []
    buffer: bool = False


class _DefinitionText(msgspec.Struct, rename="camel"):
    id: str
    name: str
    steps: list[_StepText]
    description: str = ""
    auto_start_next_workflow: bool = False
    next_workflow_id: str = ""
    metadata: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_read_text = msgspec.json.Decoder(_DefinitionText, strict=True).decode


def message_of(stored: LoadedDefinition) -> m.WorkflowDefinition:
    """Return a stored definition, with its steps and its version."""
    text = _read_text(stored.definition.content)
    return m.WorkflowDefinition(
        id=text.id,
        version=stored.version,
        name=text.name,
        description=text.description,
        auto_start_next_workflow=text.auto_start_next_workflow,
        next_workflow_id=text.next_workflow_id,
        steps=[_step_message(step) for step in text.steps],
        metadata=bytes(text.metadata),
    )


def _step_message(step: _StepText) -> m.WorkflowStep:
    return m.WorkflowStep(
        id=step.id,
        name=step.name,
        type=m.StepType[step.type],
        description=step.description,
        next_step=step.next_step,
        parallel_next_steps=[head for head in step.parallel_next_steps if head],
        join_step=step.join_step,
        conditional_next_steps={source: target for source, target in step.conditional_next_steps.items() if target},
        transformations={name: bytes(value) for name, value in step.transformations.items()},
        job_type=step.job_type,
        delegate_class=step.delegate_class,
        retry_count=step.retry_count,
        boundary_events=[
            m.BoundaryEvent(
                type=m.BoundaryEventType.TIMER if event.type == "TIMER" else m.BoundaryEventType.UNSPECIFIED,
                duration=event.duration,
                interrupting=event.interrupting,
                target_step_id=event.target_step_id,
            )
            for event in step.boundary_events
            if event.type != "ERROR"
        ],
        buffer=step.buffer,
    )
