"""The operations on instances, and on what instances and messages leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from penstock.api.operation import CURSOR_MAX_CHARS, PAGE, Body, DeclaredOperation, Grpc, Repeat, Rest, nothing_in
from penstock.api.permission import Permission
from penstock.wire import repair_v1 as w
from penstock.wire import runs_v1
from penstock.wire import workflow_v1 as m
from penstock.wire.alike import alike
from penstock.wire.model import (
    AuditRecord,
    Instance,
    JournalRecord,
    KeptSignal,
    RecordedAttempt,
    RunTree,
    StepExecution,
)
from penstock.wire.page import Count, Page
from penstock.wire.standing import InstanceState, ShownExecution, VariablesAsOf

_PATH: Final = "/v1/instances/{id}"
_WORKFLOW: Final = "/workflow.v1.WorkflowEngine/"
_RUNS: Final = "/penstock.v1.Runs/"
_INSTANCE: Final = {"id": "instance_id"}
NEWEST: Final = "newest"
VIEW_FULL: Final = "full"
VIEW_SUMMARY: Final = "summary"
AT_START: Final = "start"
"""In place of an execution's id: before the first one."""


class GetInstance(Struct, frozen=True):
    """Which instance, and how long its end is waited for."""

    id: str
    wait_seconds: float | None = None


class CountInstances(Struct, frozen=True, kw_only=True):
    """Which instances: those with all that is given. ``status`` is one of the wire's; ``instance_key`` and
    ``definition_version`` need the ``definition_id``. Of a business key the whole is given, or how it begins.
    ``attributes`` are search attributes by their names; of numbers and times ``NAME.from`` is the least and ``NAME.to``
    what they are below.
    ``cause`` (the text of a failure; its ids and numbers may differ), ``step_id`` and ``error_contains`` (a part of the
    error code or the reason) need the status FAILED, ``step_id`` a ``definition_id`` as well. ``delayed``: those that
    have not begun; they are ACTIVE. ``blocked``: durable runs that no code could go on with so far; they are WAITING.
    ``open``: those of a bulk operation (``bulk_id``) that have not ended. ``current_step_id``: open ones that stand on
    this step; it needs a ``definition_id``."""

    definition_id: str | None = None
    status: str | None = None
    business_key: str | None = None
    instance_key: str | None = None
    business_key_prefix: str | None = None
    parent_instance_id: str | None = None
    flow_key: str | None = None
    definition_version: int | None = None
    cause: str | None = None
    step_id: str | None = None
    current_step_id: str | None = None
    error_contains: str | None = None
    bulk_id: str | None = None
    open: bool = False
    started_after: datetime | None = None
    started_before: datetime | None = None
    delayed: bool = False
    blocked: bool = False
    attributes: Mapping[str, str] = {}


class ListInstances(CountInstances, frozen=True, kw_only=True):
    """Which instances, in which order, how much of each, and which part of the list."""

    order: str | None = None
    view: str | None = None
    page: int | None = None
    page_size: int | None = None
    cursor: str | None = None
    limit: int | None = None


class GetHistory(Struct, frozen=True):
    """Of which instance."""

    id: str


class ListExecutions(Struct, frozen=True):
    """Of which instance, which part, and whether with what each wrote. ``order`` is `NEWEST`."""

    id: str
    order: str = NEWEST
    cursor: str | None = None
    limit: int | None = None
    output: bool = False


class CancelInstance(Struct, frozen=True):
    """Which instance, why, and how."""

    id: str
    reason: str | None = None
    force: bool = False
    compensate: bool = False


class ListAttempts(Struct, frozen=True):
    """Of which execution."""

    execution_id: str


class ListSignals(Struct, frozen=True):
    """Of which instance."""

    id: str


class GetAudit(Struct, frozen=True):
    """Whose audit trail, and which part of it."""

    id: str
    limit: int | None = None
    after: int | None = None
    cursor: str | None = None


class GetJournal(Struct, frozen=True):
    """Whose journal, and which part of it."""

    id: str
    cursor: str | None = None
    limit: int | None = None


class GetVariablesAfter(Struct, frozen=True):
    """Whose variables, as which execution left them. ``after`` is its id, or `AT_START`."""

    id: str
    after: str | None = None


class GetState(Struct, frozen=True):
    """Of which instance."""

    id: str


def _cancelled_run(message: runs_v1.CancelRunRequest) -> CancelInstance:
    return CancelInstance(message.instance_id, message.reason or None, message.force)


GET_INSTANCE: Final = DeclaredOperation(
    name="getInstance",
    summary="Read an instance",
    description=(
        "With `waitSeconds` you get the answer when the instance has ended, or after so many seconds as it is then, at "
        "most 60. 429: 10,000 calls wait in this engine."
    ),
    tag="instances",
    request=GetInstance,
    answer=Instance,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH, {"waitSeconds": "Answer when it has ended, or after so long, at most 60 (addition)."}),
    grpc=Grpc(
        _WORKFLOW + "GetInstance",
        message=m.GetInstanceRequest,
        send=lambda asked: m.GetInstanceRequest(asked.id, round(1_000 * (asked.wait_seconds or 0))),
        take=lambda message: GetInstance(message.id, message.wait_ms / 1_000),
        answer=m.GetInstanceResponse,
        give=m.GetInstanceResponse,
        read=lambda message, _: message.instance,
    ),
    also=(
        Grpc(
            "/penstock.v1.Repair/GetInstance",
            message=w.GetInstanceRequest,
            take=lambda message: GetInstance(message.instance_id),
            names=_INSTANCE,
        ),
        Grpc(
            _RUNS + "Result",
            message=runs_v1.RunResultRequest,
            take=lambda message: GetInstance(message.instance_id, message.wait_ms / 1_000),
            names=_INSTANCE,
        ),
    ),
    errors=(400, 404, 429),
    holds="wait_seconds",
)
_FILTER: Final[Mapping[str, str]] = {
    "definitionId": "Of any version.",
    "status": "One status.",
    "delayed": "Those that have not begun (addition).",
    "blocked": "Durable runs that no code could go on with so far (addition).",
    "businessKey": "The whole key.",
    "businessKeyPrefix": "How the key begins (addition).",
    "parentInstanceId": "Which called them, or chained into them (addition).",
    "flowKey": "Whose turn their jobs come in (addition).",
    "instanceKey": "Of the definition id: the instance that has it (addition).",
    "definitionVersion": "Of the definition id (addition).",
    "cause": "Failures of this cause: `text` of `/v1/failures` (addition).",
    "stepId": "Failures at this step of the definition id (addition).",
    "errorContains": "Failures with this in their error code or reason, in any case (addition).",
    "currentStepId": "Open ones that stand on this step of the definition id (addition).",
    "bulkId": "To which this bulk operation was done, as far as that is kept (addition).",
    "open": "Of the bulk operation: those that have not ended (addition).",
    "startedAfter": "Not before this time (addition).",
    "startedBefore": "Before this time (addition).",
    "attr.*": (
        "With this value of a search attribute, as `attr.customer=4711`; of numbers and times also `attr.amount.from` "
        "(at least) and `attr.amount.to` (below). Up to five attributes (addition)."
    ),
}
"""Which instances a list or a count has."""
_FILTER_NAMES: Final = {"attributes": "attr.*"}
_FILTER_MAX_CHARS: Final = {
    "businessKey": 512, "businessKeyPrefix": 512, "cause": 1_000, "errorContains": 1_000,
    "cursor": CURSOR_MAX_CHARS,
}  # fmt: skip
_STATUSES: Final = {"status": ("ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED")}


def status_name(number: int) -> str | None:
    """Return an instance's status by its number in messages; 0 is "not given". Raises ValueError."""
    try:
        return m.InstanceStatus(number).name if number else None
    except ValueError:
        raise ValueError(f"status: {number} is not a value of InstanceStatus") from None


def status_number(status: str | None) -> int:
    """Return the number of an instance's status, 0 of none. Raises ValueError."""
    try:
        return m.InstanceStatus[status] if status else 0
    except KeyError:
        raise ValueError(f"status: {status!r} is not a status of an instance") from None


LIST_INSTANCES: Final = DeclaredOperation(
    name="listInstances",
    summary="List instances, newest first",
    description=(
        "Filters combine. `total` is exact up to 10,000. Beyond that it is an estimate, with `totalIsEstimate: "
        "true`. With `view=summary` the answer has no variables, but `where`: the open steps (of a failed "
        "instance the step at which it failed), and `cause`. `order` is by the time of the start (`newest` or "
        "`oldest` first), by `businessKey` (only instances that have one), by end (`ended`, the latest first, "
        "only ended ones) or by last change (`changed`, the latest first: it ended, came to a step, or a worker "
        "got a job of it). The last two sort at most 10,000 instances."
    ),
    tag="instances",
    request=ListInstances,
    answer=Page[Instance],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        "/v1/instances",
        {
            **_FILTER,
            "order": (
                "By the start (the default is `newest` first), the business key, the end, or the last change. All but "
                "`newest` need a `limit` (addition)."
            ),
            "view": "`summary` leaves the variables out and adds where each stands (addition).",
            **PAGE,
        },
        names=_FILTER_NAMES,
        choices={
            **_STATUSES,
            "order": (NEWEST, "oldest", "businessKey", "ended", "changed"),
            "view": (VIEW_FULL, VIEW_SUMMARY),
        },
        max_chars=_FILTER_MAX_CHARS,
        answer={
            "anyOf": [
                {"$ref": "#/components/schemas/InstancePage"}, {"$ref": "#/components/schemas/InstanceSummaryPage"},
            ]
        },
        by_hand="its answer may be larger than the memory for answers: it leaves piece by piece",
    ),
    grpc=Grpc(
        _WORKFLOW + "ListInstances",
        message=m.ListInstancesRequest,
        send=lambda ask: alike(ask, m.ListInstancesRequest, status=status_number(ask.status)),
        take=lambda message: alike(message, ListInstances, status=status_name(message.status)),
        answer=m.ListInstancesResponse,
        give=lambda page: m.ListInstancesResponse(page.items, total=page.total or 0, next=page.next or ""),
        read=lambda message, _: Page(items=message.instances, total=message.total, next=message.next or None),
        lacks=tuple(sorted({*ListInstances.__struct_fields__} - {*m.ListInstancesRequest.__struct_fields__})),
    ),
    errors=(400,),
)  # fmt: skip
COUNT_INSTANCES: Final = DeclaredOperation(
    name="countInstances",
    summary="Count instances, to 10,000 (addition)",
    description="By the filters of the list. `exact` is false beyond 10,000.",
    tag="instances",
    request=CountInstances,
    answer=Count,
    needs=Permission.VIEW,
    rest=Rest(
        "GET", "/v1/instances/count", _FILTER, names=_FILTER_NAMES, choices=_STATUSES, max_chars=_FILTER_MAX_CHARS
    ),
    errors=(400, 503),
)
GET_HISTORY: Final = DeclaredOperation(
    name="getHistory",
    summary="Read the step executions, in order of entry",
    description=(
        "One item per step execution. With `order=newest` you get a slice of at most `limit`: open executions, then "
        "those that closed last. `output=true` adds what each wrote. `attemptNumber` is 0 there: it is not counted."
    ),
    tag="instances",
    request=GetHistory,
    answer=list[StepExecution],
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH + "/history", for_people=True),
    grpc=Grpc(
        _WORKFLOW + "GetInstanceHistory",
        message=m.GetInstanceHistoryRequest,
        answer=m.GetInstanceHistoryResponse,
        give=m.GetInstanceHistoryResponse,
        read=lambda message, _: message.executions,
    ),
    errors=(400, 404, 503),
)
LIST_EXECUTIONS: Final = DeclaredOperation(
    name="listExecutions",
    summary="Read a slice of the step executions, open ones first, then those that closed last",
    tag="instances",
    request=ListExecutions,
    answer=Page[ShownExecution],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        _PATH + "/history",
        {
            "order": "`newest`.",
            "cursor": "The `next` of the slice before.",
            "limit": "1 to 500, clamped; with `output` to 50.",
            "output": "With what each execution wrote, up to 64 kB each.",
        },
        choices={"order": (NEWEST,)},
        when="order",
        for_people=True,
    ),
)
CANCEL_INSTANCE: Final = DeclaredOperation(
    name="cancelInstance",
    summary="Cancel an instance",
    description=(
        "A run of a durable workflow is asked to end and cleans up first, so it may still be open in the answer. "
        "`force` ends it at once, without clean-up. With `compensate` an instance compensates its completed steps "
        "first, so it may still be open in the answer. 409: it has ended, or it is compensating already."
    ),
    tag="instances",
    request=CancelInstance,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _PATH + "/cancel",
        body=Body(
            name="CancelBody",
            text="``force``: a durable run ends at once, without the clean-up of its body. ``compensate``: what an "
            "instance did is\n    undone first.",
            required=False,
        ),
    ),
    grpc=Grpc(
        _WORKFLOW + "CancelInstance",
        message=m.CancelInstanceRequest,
        answer=m.CancelInstanceResponse,
        give=m.CancelInstanceResponse,
        read=lambda message, _: message.instance,
        lacks=("force",),
        cleaned=("reason",),
    ),
    also=(
        nothing_in(
            _RUNS + "Cancel",
            runs_v1.CancelRunResponse,
            message=runs_v1.CancelRunRequest,
            take=_cancelled_run,
            names=_INSTANCE,
        ),
    ),
    errors=(400, 404, 409),
    repeat=Repeat.IF_NOT_APPLIED,
)
LIST_ATTEMPTS: Final = DeclaredOperation(
    name="listAttempts",
    summary="List the attempts of a job (addition)",
    description=(
        "The newest 50, oldest first. An execution's id is its job's. `parameters` are the attempt's variables, "
        "if the definition has `recordAttempts` or the job type is in `attempts_recorded_job_types`. `progress` "
        "is the last report of its worker. A value larger than `attempt_record_max_bytes` has its size only. "
        "Callers who may operate also get `stackTrace`. `console_hide_variables` with `stackTrace` hides it in "
        "the console."
    ),
    tag="instances",
    request=ListAttempts,
    answer=list[RecordedAttempt],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/executions/{id}/attempts", names={"execution_id": "id"}),
    errors=(404,),
)
LIST_SIGNALS: Final = DeclaredOperation(
    name="listSignals",
    summary="List kept signals, oldest first (addition)",
    tag="tasks",
    request=ListSignals,
    answer=list[KeptSignal],
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH + "/signals"),
    errors=(404,),
)
GET_AUDIT: Final = DeclaredOperation(
    name="getAudit",
    summary="Read the audit trail, oldest first (addition)",
    description="`after` is how many records to leave out. `cursor` is the `next` of the slice before.",
    tag="instances",
    request=GetAudit,
    answer=Page[AuditRecord],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        _PATH + "/audit",
        {
            "limit": "1 to 1,000, clamped.",
            "after": "How many records to leave out.",
            "cursor": "In place of `after`: the `next` of the slice before.",
        },
    ),
    errors=(400, 404),
)
GET_JOURNAL: Final = DeclaredOperation(
    name="getJournal",
    summary="Read a run's journal, oldest first (addition)",
    description=(
        "For a run of a durable workflow: all that came into the workflow function from outside, in order. "
        "`replayed`: the executor that has the run, or ended it, found the record there and replayed it. A slice "
        "ends earlier where records are large. 409: it is not a run of a durable workflow."
    ),
    tag="instances",
    request=GetJournal,
    answer=Page[JournalRecord],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        _PATH + "/journal",
        {"cursor": "The `next` of the slice before.", "limit": "1 to 1,000, clamped; by default 1,000."},
    ),
    also=(
        Grpc(
            _RUNS + "Journal",
            message=runs_v1.RunJournalRequest,
            take=lambda message: GetJournal(message.instance_id, message.cursor or None, message.limit or None),
            answer=runs_v1.RunJournalResponse,
            give=lambda page: runs_v1.RunJournalResponse(
                [msgspec.json.encode(record) for record in page.items], page.next or ""
            ),
            names=_INSTANCE,
        ),
    ),
    errors=(400, 404, 409),
)
GET_TREE: Final = DeclaredOperation(
    name="getTree",
    summary="Read the tree of a run's branches, or of an instance's calls (addition)",
    description=(
        "For a run of a durable workflow: its branches, what they did and what they wait for. Ended branches are "
        "as the journal says, open ones as the executor reported last. `rejected` has the oldest 20 messages that"
        " fit nothing that the run waits for. For an instance of a definition the branches are the instances that"
        " it called, and those that they called: the first 1,000."
    ),
    tag="instances",
    request=w.GetTreeRequest,
    answer=RunTree,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH + "/tree", names={"instance_id": "id"}),
    grpc=Grpc("/penstock.v1.Repair/GetTree"),
    also=(Grpc(_RUNS + "Tree", message=runs_v1.RunTreeRequest),),
    errors=(404,),
)
GET_VARIABLES_AFTER: Final = DeclaredOperation(
    name="getVariablesAfter",
    summary="Read the variables as an execution left them (addition)",
    description=(
        "`after` is the id of an execution. You get the variables as that execution left them, and the names of "
        "the variables that it wrote. 409: it is open. With `after=start` you get the variables that the instance "
        "was started with, whatever steps and edits did to them since; `changed` and `by` are empty then."
    ),
    tag="instances",
    request=GetVariablesAfter,
    answer=VariablesAsOf,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/instances/{id}/variables", {"after": "The id of an execution, or `start`."}, for_people=True),
    errors=(400, 404, 409, 503),
    required=("after",),
)
GET_STATE: Final = DeclaredOperation(
    name="getState",
    summary="Read where an instance stands, and why (addition)",
    description=(
        "`text` says in one sentence why the instance is where it is. `children` are the newest 200 instances "
        "that it started. `path` has the ways that its newest 500 executions took. `version` is the version of "
        "its variables for `ifVersion`. The cost does not grow with the instance's length. 503: the database is "
        "too busy for it."
    ),
    tag="instances",
    request=GetState,
    answer=InstanceState,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/instances/{id}/state"),
    errors=(404, 503),
)
