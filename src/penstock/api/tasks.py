"""The operations on user tasks and waits. What the console alone calls, only REST has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.api.operation import SLICE, Body, DeclaredOperation, Repeat, Rest, nothing_in
from penstock.api.permission import Permission
from penstock.wire import workflow_v1 as m
from penstock.wire.model import Signal, UserTaskCompletion
from penstock.wire.page import Count, Page
from penstock.wire.user_task import UserTask

_WORKFLOW: Final = "/workflow.v1.WorkflowEngine/"
_KEY: Final = "Idempotency-Key"
_SIGNAL: Final[Mapping[str, str]] = {
    "buffer": "Keep the signal until the wait opens (addition).",
    "signalId": "The sender's id of the signal, remembered as long as the instance: it may come early, or twice, and "
    "acts once (addition).",
}
_KEYED: Final[Mapping[str, str]] = {_KEY: "The same key gives the first answer again, for 24 hours (addition)."}
_VARIABLES: Final = Body(field="variables", schema={"type": "object", "additionalProperties": True}, required=False)
_CLAIM: Final = (
    "Who takes a task, or gives it back. ``execution_id``: of several open executions of the step this one, not the\n"
    "    oldest."
)


class UserTaskBody(Struct, rename="camel", kw_only=True):
    """``result`` is what gRPC and old clients call ``variables``. ``execution_id``: this one of several that are open,
    not the oldest."""

    variables: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    completed_by: str | None = None
    execution_id: str | None = None
    worker_id: str | None = None


class ListTasks(Struct, frozen=True):
    """Which tasks to list."""

    job_type: str | None = None
    definition_id: str | None = None
    assignee: str | None = None
    unclaimed: bool = False
    instance_id: str | None = None
    execution_id: str | None = None
    limit: int | None = None
    cursor: str | None = None


class CountTasks(Struct, frozen=True):
    """All of them."""


class ClaimTask(Struct, frozen=True):
    """Which task, and who takes it, or gives it back."""

    id: str
    step_id: str
    by: str | None = None
    execution_id: str | None = None


def _take_signal(message: Signal) -> Signal:
    by_key = bool(message.definition_id or message.instance_key)
    if by_key and message.instance_id:
        raise ValueError("instance_id: can't be combined with definition_id and instance_key")
    needed: dict[str, Any] = {"wait_step_id": message.step_id}
    if by_key:
        needed |= {"definition_id": message.definition_id, "instance_key": message.instance_key}
    else:
        needed = {"instance_id": message.instance_id, **needed}
    for name, value in needed.items():
        if not value:
            raise ValueError(f"{name}: is required")
    return message


COMPLETE_USER_TASK: Final = DeclaredOperation(
    name="completeUserTask",
    summary="Complete a user task",
    description=(
        "The oldest open execution of the step, or that of `executionId`. If nothing says who did it, it is the "
        "assignee. 404: no open task there. 409: the instance has ended. 400: it is another type of step."
    ),
    tag="tasks",
    request=UserTaskCompletion,
    answer=type(None),
    needs=Permission.TASKS,
    rest=Rest(
        "POST",
        "/v1/instances/{id}/user-tasks/{stepId}/complete",
        body=Body(kind=UserTaskBody, required=False, aliases={"result": "variables", "worker_id": "completed_by"}),
        status=204,
        names={"instance_id": "id"},
    ),
    grpc=nothing_in(
        _WORKFLOW + "CompleteUserTask",
        m.CompleteUserTaskResponse,
        names={"step_id": "user_task_step_id", "variables": "result"},
    ),
    errors=(400, 404, 409),
    maps=("variables",),
    repeat=Repeat.IF_NOT_APPLIED,
)
SIGNAL: Final = DeclaredOperation(
    name="signal",
    summary="Signal a wait",
    description=(
        "The body is the variable map itself, or nothing. The oldest open execution of the step goes on. With "
        "`buffer=true`, or at a step with `buffer`, the signal is kept until the wait opens (for one instance at "
        "most 10,000, and none after 4 MiB of them; then 409). 409: the instance does not wait there. 400: it is "
        "another type of step."
    ),
    tag="tasks",
    request=Signal,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/instances/{id}/signals/{stepId}",
        _SIGNAL,
        _VARIABLES,
        204,
        {"instance_id": "id", "idempotency_key": _KEY},
        _KEYED,
    ),
    grpc=nothing_in(
        _WORKFLOW + "SignalWait",
        m.SignalWaitResponse,
        take=_take_signal,
        needed=(),
        headers={"idempotency_key": "idempotency-key"},
    ),
    errors=(400, 404, 409),
    maps=("variables",),
    keyed=("idempotency_key", "signal_id"),
)
SIGNAL_BY_KEY: Final = DeclaredOperation(
    name="signalByKey",
    summary="Signal a wait by instance key (addition)",
    description=(
        "The same for the instance of the definition that is open with this `instanceKey`, or keeps it. 404: "
        "there is none."
    ),
    tag="tasks",
    request=Signal,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/definitions/{id}/keys/{key}/signals/{stepId}",
        _SIGNAL,
        _VARIABLES,
        204,
        {"definition_id": "id", "instance_key": "key", "idempotency_key": _KEY},
        _KEYED,
    ),
    grpc=nothing_in(
        _WORKFLOW + "SignalWait",
        m.SignalWaitResponse,
        headers={"idempotency_key": "idempotency-key"},
        elsewhere=True,
    ),
    errors=(400, 404, 409),
    maps=("variables",),
    keyed=("idempotency_key", "signal_id"),
)
LIST_TASKS: Final = DeclaredOperation(
    name="listTasks",
    summary="List open user tasks, oldest first (addition)",
    description=(
        "A page may be short, or empty, before the last one: `next` says whether to go on. `item` is the index of"
        " the item of a `forEach` that a task is about. `executionId` names the task to assign, unassign and "
        "complete. 409: an engine lives that keeps no such list. 503: the list is being made."
    ),
    tag="tasks",
    request=ListTasks,
    answer=Page[UserTask],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        "/v1/tasks",
        {
            "jobType": "For whom; exactly this.",
            "definitionId": "Exactly this; needs `jobType` or `assignee` beside it.",
            "assignee": "Who has claimed them.",
            "unclaimed": "Those that nobody has claimed.",
            "instanceId": "Of this instance; without other filters.",
            "executionId": "This one, while it is open; without other filters.",
            **SLICE,
        },
    ),
    errors=(400, 404, 409),
)
COUNT_TASKS: Final = DeclaredOperation(
    name="countTasks",
    summary="Count open user tasks, to 10,000 (addition)",
    description="`exact` is false beyond 10,000. Refused as the list is.",
    tag="tasks",
    request=CountTasks,
    answer=Count,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/tasks/count"),
    errors=(409, 503),
)
CLAIM_TASK: Final = DeclaredOperation(
    name="claimTask",
    summary="Assign a user task (addition)",
    description=(
        "It is advice: others can still complete the task. With authentication the assignee is the caller, and an"
        " operator may name anybody. 409: somebody else has it."
    ),
    tag="tasks",
    request=ClaimTask,
    answer=UserTask,
    needs=Permission.TASKS,
    rest=Rest("POST", "/v1/tasks/{id}/{stepId}/claim", body=Body(name="ClaimBody", text=_CLAIM, required=False)),
    errors=(400, 404, 409),
)
RELEASE_TASK: Final = DeclaredOperation(
    name="releaseTask",
    summary="Unassign a user task (addition)",
    description=("Nobody has it then. Without `by` (operators, or no authentication) it does not matter who had it."),
    tag="tasks",
    request=ClaimTask,
    answer=UserTask,
    needs=Permission.TASKS,
    rest=Rest("POST", "/v1/tasks/{id}/{stepId}/release", body=Body(name="ClaimBody", text=_CLAIM, required=False)),
    errors=(400, 404, 409),
)
