"""Definitions between JSON and the message of ``workflow.v1``.

A proto map has no order, and there the engine takes conditions and transformations in sorted order; the message lacks
``retryBackoff``, ``timeout``, ``duration`` and ``until``. A document that would mean something else on the way is
refused here, with every reason. Read back over gRPC, a definition lacks those fields: use REST for what is to be exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.client.errors import BadRequest, NotOverGrpc
from penstock.client.grpc.values import name_of
from penstock.wire import workflow_v1 as m


class _Boundary(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    type: str | None = None
    duration: str | None = None
    interrupting: bool | None = None
    target_step_id: str | None = None
    error_codes: Any = None
    error_variable: Any = None


class _Step(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    id: str | None = None
    name: str | None = None
    type: str | None = None
    description: str | None = None
    next_step: str | None = None
    parallel_next_steps: list[str] | None = None
    join_step: str | None = None
    conditional_next_steps: dict[str, str] | None = None
    transformations: dict[str, msgspec.Raw] | None = None
    job_type: str | None = None
    delegate_class: str | None = None
    retry_count: int | None = None
    boundary_events: list[_Boundary] | None = None
    retry_backoff: Any = None
    timeout: Any = None
    duration: Any = None
    until: Any = None
    buffer: bool | None = None
    retry_on: Any = None
    no_retry_on: Any = None
    error_code: Any = None
    output: Any = None
    compensation: Any = None
    steps: Any = None
    flow_key: Any = None
    priority: Any = None


class _Document(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    id: str | None = None
    version: Any = None
    name: str | None = None
    description: str | None = None
    auto_start_next_workflow: bool | None = None
    next_workflow_id: str | None = None
    on_failure: Any = None
    flow_key: Any = None
    priority: Any = None
    start: Any = None
    steps: list[_Step] | None = None
    metadata: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # `| None` would take null only


_read = msgspec.json.Decoder(_Document).decode
_WITHOUT_FIELD = {
    "retry_backoff": "retryBackoff",
    "timeout": "timeout",
    "duration": "duration",
    "until": "until",
    "retry_on": "retryOn",
    "no_retry_on": "noRetryOn",
    "error_code": "errorCode",
    "output": "output",
    "compensation": "compensation",
    "steps": "steps",
    "flow_key": "flowKey",
    "priority": "priority",
}


def message_of(document: bytes) -> m.WorkflowDefinition:
    """Return the message of a document.

    Raises:
        BadRequest: it does not have the form of a definition.
        NotOverGrpc: it would mean something else there; the reasons, all of them.
    """
    try:
        read = _read(document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"not a definition: {error}") from error
    steps = read.steps or []
    reasons = [reason for index, step in enumerate(steps) for reason in _what_is_lost(step, f"steps[{index}]")]
    if read.on_failure is not None:
        reasons.append("onFailure has no field there")
    if read.flow_key is not None or read.priority is not None:
        reasons.append("flowKey and priority have no fields there")
    if read.start is not None:
        reasons.append("start has no field there")
    if reasons:
        raise NotOverGrpc(f"this definition can't go over gRPC as it is, upload it over REST: {'; '.join(reasons)}")
    return m.WorkflowDefinition(
        id=read.id or "",
        name=read.name or "",
        description=read.description or "",
        auto_start_next_workflow=bool(read.auto_start_next_workflow),
        next_workflow_id=read.next_workflow_id or "",
        steps=[_step_message(step) for step in steps],
        metadata=bytes(read.metadata),
    )


def _what_is_lost(step: _Step, path: str) -> Iterator[str]:
    for name, shown in _WITHOUT_FIELD.items():
        if getattr(step, name) is not None:
            yield f"{path} has {shown}, which has no field there"
    for place, event in enumerate(step.boundary_events or ()):
        if event.type == "ERROR":
            yield f"{path}.boundaryEvents[{place}] is an ERROR, which has no number there"
    for name, given in (
        ("conditionalNextSteps", step.conditional_next_steps),
        ("transformations", step.transformations),
    ):
        if given is not None and list(given) != sorted(given):
            yield f"{path}.{name} would be taken in sorted order"


def _step_message(step: _Step) -> m.WorkflowStep:
    return m.WorkflowStep(
        id=step.id or "",
        name=step.name or "",
        type=_number(m.StepType, step.type),
        description=step.description or "",
        next_step=step.next_step or "",
        parallel_next_steps=step.parallel_next_steps or [],
        join_step=step.join_step or "",
        conditional_next_steps=step.conditional_next_steps or {},
        transformations={name: bytes(value) for name, value in (step.transformations or {}).items()},
        job_type=step.job_type or "",
        delegate_class=step.delegate_class or "",
        retry_count=step.retry_count or 0,
        boundary_events=[
            m.BoundaryEvent(
                type=_number(m.BoundaryEventType, event.type),
                duration=event.duration or "",
                interrupting=bool(event.interrupting),
                target_step_id=event.target_step_id or "",
            )
            for event in step.boundary_events or []
        ],
        buffer=bool(step.buffer),
    )


def _number(kind: type[m.StepType] | type[m.BoundaryEventType], name: str | None) -> int:
    try:
        return kind[name] if name else 0
    except KeyError:
        raise BadRequest(f"{name!r} is not a value of {kind.__name__}") from None


def document_of(message: m.WorkflowDefinition) -> dict[str, Any]:
    """Return a message as the JSON that REST shows, without the fields that the message lacks."""
    document = _given(
        id=message.id,
        version=message.version,
        name=message.name,
        description=message.description,
        autoStartNextWorkflow=message.auto_start_next_workflow,
        nextWorkflowId=message.next_workflow_id,
        steps=[_step_document(step) for step in message.steps],
    )
    if message.metadata:
        document["metadata"] = msgspec.json.decode(message.metadata)
    return document


def _step_document(step: m.WorkflowStep) -> dict[str, Any]:
    return _given(
        id=step.id,
        name=step.name,
        type=name_of(m.StepType, step.type),
        description=step.description,
        nextStep=step.next_step,
        parallelNextSteps=step.parallel_next_steps,
        joinStep=step.join_step,
        conditionalNextSteps=dict(sorted(step.conditional_next_steps.items())),
        transformations={
            name: msgspec.json.decode(step.transformations[name]) for name in sorted(step.transformations)
        },
        jobType=step.job_type,
        delegateClass=step.delegate_class,
        retryCount=step.retry_count,
        boundaryEvents=[
            {
                "type": name_of(m.BoundaryEventType, event.type),
                "duration": event.duration,
                "interrupting": event.interrupting,
                "targetStepId": event.target_step_id,
            }
            for event in step.boundary_events
        ],
        buffer=step.buffer,
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
