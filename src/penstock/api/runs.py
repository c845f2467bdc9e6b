"""The operations on durable runs. Programs that serve workflows as code call most of them, over gRPC only."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.api.operation import Body, DeclaredOperation, Grpc, Repeat, Rest, nothing_in
from penstock.api.permission import Permission
from penstock.wire import runs_v1 as w
from penstock.wire.model import Instance

_SERVICE: Final = "/penstock.v1.Runs/"
_MESSAGES: Final = "/v1/instances/{id}/messages"


class SendMessage(Struct, frozen=True):
    """To which run. ``payload`` is JSON of any kind; none is null."""

    id: str
    name: str | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    idempotency_key: str | None = None
    force: bool = False


class ResolveMessage(Struct, frozen=True):
    """Which message of which run, and what becomes of it: ``drop``, or a ``payload`` in its place."""

    id: str
    position: str
    drop: bool = False
    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    note: str | None = None
    force: bool = False


def _resolved(message: w.ResolveMessageRequest) -> ResolveMessage:
    payload, note = msgspec.Raw(message.payload), message.note or None
    return ResolveMessage(message.instance_id, message.position, not message.payload, payload, note, message.force)


FORK_RUN: Final = DeclaredOperation(
    name="forkRun",
    summary="Start another run with this run's journal up to an operation (addition)",
    description="The other run goes on from there, with steps and children of its own. This run stays as it is.",
    tag="instances",
    request=w.ForkRunRequest,
    answer=Instance,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/instances/{id}/fork",
        body=Body(
            name="ForkBody",
            text="``path``: of the operation that is done again, as the journal has it; `start` for the beginning,"
            " `end` for where the journal ends. ``forkId``: of the new run, which is started once under it."
            " ``laterMessages``: the new run gets the messages that came after that, too.",
        ),
        status=201,
    ),
    grpc=Grpc(_SERVICE + "Fork"),
    errors=(400, 404, 409, 413, 422, 429, 503),
    required=("path",),
    repeat=Repeat.IF_NOT_APPLIED,
)
SEND_MESSAGE: Final = DeclaredOperation(
    name="sendMessage",
    summary="Send a message to a run (addition)",
    description=(
        "`receive(name)` of the workflow function gets it. A message that comes early is kept. With an "
        "`Idempotency-Key` it comes once, however often you send it, as long as the run is kept. 409: the run has"
        " ended. 422: it does not fit the type that the run waits for, and `force` is not set. 429: the run has "
        "too many unread messages."
    ),
    tag="instances",
    request=SendMessage,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _MESSAGES,
        body=Body(
            name="MessageBody",
            text="A message to a durable run. ``payload`` may be any JSON.",
            values=("payload",),
        ),
        status=204,
        names={"idempotency_key": "Idempotency-Key"},
        headers={"Idempotency-Key": "A message with the same key is the same message."},
    ),
    errors=(400, 404, 409, 422, 429),
    required=("name",),
)
RESOLVE_MESSAGE: Final = DeclaredOperation(
    name="resolveMessage",
    summary="Drop or correct a message that a run rejected (addition)",
    description=(
        "With `drop` the run never receives it. With `payload` this comes in its place. `position` is the "
        "position of a message in `rejected` of the run's tree. 409: a `receive` has it by now, it was dropped, "
        "or the run is working: ask again. 422: the payload does not fit, and `force` is not set."
    ),
    tag="instances",
    request=ResolveMessage,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _MESSAGES + "/{position}",
        body=Body(
            name="ResolveBody",
            text="What becomes of a message that a run rejected: ``drop``, or a ``payload`` in its place.",
            values=("payload",),
        ),
        status=204,
    ),
    also=(
        nothing_in(
            _SERVICE + "ResolveMessage",
            w.ResolveMessageResponse,
            message=w.ResolveMessageRequest,
            take=_resolved,
            names={"id": "instance_id"},
        ),
    ),
    errors=(400, 404, 409, 422),
)
REGISTER_WORKFLOWS: Final = DeclaredOperation(
    name="registerWorkflows",
    summary="Register the workflows that a program serves",
    description="One after the other; the first that can't be is told.",
    tag="instances",
    request=w.RegisterWorkflowsRequest,
    answer=w.RegisterWorkflowsResponse,
    needs=Permission.EXECUTE,
    grpc=Grpc(_SERVICE + "Register"),
)
START_RUN: Final = DeclaredOperation(
    name="startRun",
    summary="Start a run",
    description="Registers the workflow when nobody has, if the caller may execute.",
    tag="instances",
    request=w.StartRunRequest,
    answer=w.StartRunResponse,
    needs=Permission.RUNS,
    grpc=Grpc(_SERVICE + "Start"),
    required=("workflow",),
)
FIND_RUN: Final = DeclaredOperation(
    name="findRun",
    summary="Find a run by its id",
    tag="instances",
    request=w.FindRunRequest,
    answer=w.FindRunResponse,
    needs=Permission.ANSWERS,
    grpc=Grpc(_SERVICE + "Find"),
)
LIST_RUNS: Final = DeclaredOperation(
    name="listRuns",
    summary="List the latest runs of a workflow, or of all",
    tag="instances",
    request=w.ListRunsRequest,
    answer=w.ListRunsResponse,
    needs=Permission.VIEW,
    grpc=Grpc(_SERVICE + "List"),
)
SEND_TO_RUN: Final = DeclaredOperation(
    name="sendToRun",
    summary="Send a message to a run, by its instance id or its own",
    tag="instances",
    request=w.SendToRunRequest,
    answer=type(None),
    needs=Permission.RUNS,
    grpc=nothing_in(_SERVICE + "Send", w.SendToRunResponse),
)
RETRY_RUN: Final = DeclaredOperation(
    name="retryRun",
    summary="Let a run that failed go on",
    tag="instances",
    request=w.RetryRunRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    grpc=nothing_in(_SERVICE + "Retry", w.RetryRunResponse),
    required=("instance_id",),
)
LIST_ENDED_RUNS: Final = DeclaredOperation(
    name="listEndedRuns",
    summary="Tell which of these runs have ended",
    tag="instances",
    request=w.EndedRunsRequest,
    answer=w.EndedRunsResponse,
    needs=Permission.VIEW,
    grpc=Grpc(_SERVICE + "Ended"),
)
LIST_RECORDS: Final = DeclaredOperation(
    name="listRecords",
    summary="Read a slice of a journal as executors do, the first one with the arguments",
    tag="instances",
    request=w.RunRecordsRequest,
    answer=w.RunRecordsResponse,
    needs=Permission.VIEW,
    grpc=Grpc(_SERVICE + "Records"),
    required=("instance_id",),
)
ADOPT_RUNS: Final = DeclaredOperation(
    name="adoptRuns",
    summary="Let programs without a name serve the runs that another one left",
    tag="instances",
    request=w.AdoptRunsRequest,
    answer=w.AdoptRunsResponse,
    needs=Permission.OPERATE,
    grpc=Grpc(_SERVICE + "Adopt"),
    required=("workflow",),
)
