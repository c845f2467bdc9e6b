"""The one table of the REST interface: method, path, handler, who may, messages, statuses, and the words for it.

Router, `OPTIONS`, labels of metrics, the OpenAPI document and the table of roles are made from it: a route without a
row is not there. A handler may read no parameter of the query that its row does not name (`reading`). Must not decide
anything: what a handler does not do is not true because it stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.api import (
    ROUTED,
    batches,
    definitions,
    instances,
    jobs,
    messages,
    repair,
    runs,
    schedules,
    tasks,
    updates,
    workers,
)
from penstock.api.permission import Permission
from penstock.engine.instances.views import InstanceSummary, Whereabouts
from penstock.rest.codec import WatchBody
from penstock.rest.docs import DocsRoutes
from penstock.rest.health import LIVE_PATH, HealthRoutes, Readiness
from penstock.rest.instances import InstanceRoutes
from penstock.rest.jobs import JobRoutes
from penstock.rest.operation import (
    INTEGER,
    STRING,
    Kind,
    Parameter,
    RestOperation,
    list_in,
    name_of,
    ref,
    struct,
)
from penstock.rest.operations_for_people import FOR_PEOPLE, KINDS_FOR_PEOPLE
from penstock.rest.rows import kinds_of, required_of, route_of, routes_of
from penstock.rest.starts import StartRoutes
from penstock.wire.model import (
    Branch,
    Completion,
    FailedJob,
    Failure,
    Heartbeat,
    HeartbeatOutcome,
    Instance,
    Job,
    JobOutcome,
    JobRef,
    Lease,
    LostJob,
    Park,
    PollRequest,
    RejectedMessage,
    RunTree,
    StartRequest,
    StartResult,
)
from penstock.wire.open_work import OpenJobView
from penstock.wire.page import Page

TAGS: Final[Mapping[str, str]] = {
    "definitions": "What workflows look like.",
    "instances": "Runs of a definition.",
    "jobs": "Work for workers.",
    "tasks": "User tasks and waits.",
    "schedules": "What is started by the clock.",
    "batches": "Many starts as one.",
    "service": "The engine itself.",
}
PAGE: Final = (
    Parameter("page", "query", "From 0.", INTEGER),
    Parameter("pageSize", "query", "1 to 200, clamped; by default 20.", INTEGER),
    Parameter(
        "cursor", "query", "The `next` of the slice before. Slices leave nothing out and repeat nothing (addition)."
    ),
    Parameter("limit", "query", "As `pageSize`, of a slice: in place of pages, from the first one on.", INTEGER),
)
KEY: Final = Parameter(
    "Idempotency-Key", "header", "The same key gives the first answer again, for 24 hours (addition)."
)
REQUIRED: Final[Mapping[str, Sequence[str]]] = {
    "PollBody": ("workerId", "jobTypes"),
    "WatchBody": ("workerId",),
    "CompletionBody": ("workerId",),
    "CompletionItem": ("jobId",),
    "FailureBody": ("workerId", "retryable"),
    "FailureItem": ("jobId", "retryable"),
    "HeartbeatBody": ("workerId",),
    "HeartbeatItem": ("jobId",),
    "ReleaseItem": ("jobId",),
    "StartBody": ("definitionId",),
    "StartItem": ("definitionId",),
    "ScheduleSpec": ("definitionId",),
    **required_of(ROUTED),
    # Of answers, whose classes clients share and so have a default for everything. A summary has no variables.
    "Attempt": ("attempt", "status"),
    "RecordedAttempt": ("attempt", "status"),
    "ItemCounts": ("total", "completed", "failed", "running"),
    "BeatOutcome": ("jobId", "outcome"),
    "ItemOutcome": ("jobId", "outcome"),
    "DefinitionSummary": ("id", "version", "name", "uploadedAt"),
    "MigrationCheck": ("instanceId", "fromVersion", "toVersion", "possible", "reasons", "timersDue"),
    "BulkCause": ("cause", "text", "count"),
    "BulkStep": ("stepId", "count"),
    "BulkRefusals": ("checked", "refused", "instances", "timersDue"),
    "BulkPreview": ("count", "exact"),
    "BulkStarted": ("id",),
    "BulkView": (
        "id", "action", "filter", "state", "done", "skipped", "failed", "total", "totalExact", "errors", "createdAt",
    ),
    "StepImpact": ("stepId", "open", "change", "reasons"),
    "VersionImpact": ("version", "open", "atChanged", "atRemoved", "steps"),
    "ChangedSteps": ("added", "changed", "removed"),
    "ImpactView": ("at", "exact", "versions", "steps", "refusals"),
    "RejectedMessage": ("position", "name", "at", "reason"),
    "Branch": ("path", "status"),
    "RunTree": ("id", "status", "workflow", "version", "branches"),
    "Schedule": (
        "id", "definitionId", "variables", "cron", "overlap", "catchUp", "catchUpWindow", "pauseOnFailure", "paused",
        "nextTimes", "runs", "buffered", "missed",
    ),
    "ScheduleRun": ("at", "outcome"),
    "ScheduleTime": ("at", "firesAt"),
    "SchedulePreview": ("times",),
    "Batch": (
        "id", "state", "total", "pending", "active", "completed", "failed", "cancelled", "refused", "removed",
        "createdAt",
    ),
    "BatchResult": ("index", "state"),
    "Instance": ("id", "definitionId", "definitionVersion", "status", "currentStepIds", "startedAt"),
    "InstanceSummary": ("id", "definitionId", "definitionVersion", "status", "currentStepIds", "startedAt", "where"),
    "StepExecution": ("id", "instanceId", "stepId", "stepType", "attemptNumber", "status", "startedAt"),
    "ShownExecution": ("id", "instanceId", "stepId", "stepType", "attemptNumber", "status", "startedAt"),
    "Job": (
        "id", "jobType", "instanceId", "stepId", "stepExecutionId", "retriesRemaining", "variables", "lockExpiresAt",
        "status", "workerId", "lockedAt", "createdAt", "attempt", "idempotencyKey", "definitionId", "definitionVersion",
    ),
}  # fmt: skip
BODIES: Final[Mapping[str, tuple[type[msgspec.Struct], Sequence[str]]]] = {
    "CompletionBody": (Completion, ("jobId",)),
    "CompletionItem": (Completion, ("workerId",)),
    "FailureBody": (Failure, ("jobId",)),
    "FailureItem": (Failure, ("workerId",)),
    "HeartbeatBody": (Heartbeat, ("jobId",)),
    "HeartbeatItem": (Heartbeat, ("workerId",)),
    "ReleaseItem": (JobRef, ("workerId",)),
    "ParkBody": (Park, ("jobId",)),
    "PollBody": (PollRequest, ()),
    "StartBody": (StartRequest, ("idempotencyKey",)),
    "StartItem": (StartRequest, ()),
    "ItemOutcome": (JobOutcome, ("attempt",)),
    "BeatOutcome": (HeartbeatOutcome, ("attempt",)),
}
"""Nouns without the fields that stand elsewhere: the job in the path, the worker of a batch, the key in the header."""
KINDS: Final[Sequence[Kind]] = (
    PollRequest, WatchBody, Completion, Failure, Heartbeat, JobRef, Park, StartRequest,
    Instance, Page[Instance], InstanceSummary,
    Whereabouts, Page[InstanceSummary], Branch, RejectedMessage, RunTree, StartResult, Job, LostJob,
    Lease, JobOutcome, HeartbeatOutcome, Page[FailedJob], Readiness,
    Page[OpenJobView], *KINDS_FOR_PEOPLE,
    *kinds_of(ROUTED),
)  # fmt: skip
KINDS_BY_NAME: Final[Mapping[str, Kind]] = {name_of(kind): kind for kind in KINDS}

OPERATIONS: Final[Sequence[RestOperation]] = (
    # -- definitions
    route_of(definitions.UPLOAD_DEFINITION),
    route_of(definitions.LIST_DEFINITIONS),
    route_of(definitions.GET_DEFINITION),
    route_of(definitions.ACTIVATE_VERSION),
    route_of(definitions.DELETE_DEFINITION),
    route_of(definitions.GET_DEFINITION_VERSION),
    # -- instances
    RestOperation(
        "POST", "/v1/instances", StartRoutes.start, Permission.OPERATE,
        "startInstance", "instances", "Start an instance",
        "A second start with the same `instanceKey` returns the first instance while it is open, with "
        "`keepInstanceKey` also after its end, as long as its row is kept. With `startAt` or `delay` the instance"
        " exists at once and begins later. `dedupe`, `throttle` and `debounce` decide about other starts with "
        "their key. With `waitSeconds` you get the answer when the instance has ended, or after so many seconds, "
        "at most 60.",
        parameters=(KEY,), body=ref("StartBody"), status=201, answer=struct(Instance), errors=(400, 404, 409, 422, 429),
        waits_with=b'"waitSeconds"',
    ),
    route_of(jobs.START_INSTANCES)._replace(handler=StartRoutes.start_batch, waits_with=b'"waitSeconds"'),
    route_of(instances.LIST_INSTANCES)._replace(handler=InstanceRoutes.list),
    route_of(instances.GET_INSTANCE),
    route_of(instances.GET_HISTORY),
    route_of(instances.GET_AUDIT),
    route_of(instances.CANCEL_INSTANCE),
    *routes_of(repair),
    route_of(instances.GET_JOURNAL),
    route_of(instances.GET_TREE),
    *routes_of(runs),
    # -- jobs
    RestOperation(
        "POST", "/v1/jobs/poll", JobRoutes.poll, Permission.WORK, "pollJobs", "jobs", "Claim jobs",
        "Oldest first. With `waitSeconds` the request waits until a job is there. If you go away meanwhile, "
        "nothing stays leased to you. 410: Kafka dispatches the jobs.",
        body=ref("PollBody"), answer=list_in("jobs", Job), errors=(400, 410), waits=True,
    ),
    RestOperation(
        "POST", "/v1/jobs/lost", JobRoutes.wait_lost, Permission.WORK,
        "waitLostJobs", "jobs", "Wait for jobs that are cancelled under your lease (addition)",
        "Jobs that were cancelled under the worker's lease, through whichever engine. The request waits for "
        "`waitSeconds` while there are none. Each job is reported once. It is a wake-up hint: heartbeats report "
        "lost jobs, too.",
        body=struct(WatchBody), answer=list_in("lost", LostJob), errors=(400,), waits=True,
    ),
    RestOperation(
        "POST", "/v1/jobs/{id}/complete", JobRoutes.complete, Permission.WORK, "completeJob", "jobs", "Complete a job",
        "`variables` are merged at top level. You may repeat it: a job that is completed already is a success and"
        " changes nothing. With `attempt` the call applies to this attempt only.",
        body=ref("CompletionBody"), status=204, errors=(400, 404, 409),
    ),
    RestOperation(
        "POST", "/v1/jobs/{id}/fail", JobRoutes.fail, Permission.WORK, "failJob", "jobs", "Report that a job failed",
        "The job is retried while it is `retryable` (`false` if left out) and retries are left. Else the instance"
        " fails. `errorMessage` is cut at 4 KiB and never refused. `variables` are the `data` of an error with "
        "`errorCode`. The last `stack_trace_max_bytes` of `stackTrace` are kept. Without `attempt` a call that "
        "comes too late is answered with 204, too.",
        body=ref("FailureBody"), status=204, errors=(400, 404, 409),
    ),
    RestOperation(
        "POST", "/v1/jobs/{id}/heartbeat", JobRoutes.heartbeat, Permission.WORK,
        "heartbeatJob", "jobs", "Extend a lease (addition)",
        "The next attempt gets `checkpoint` (JSON, 256 kB). `progress` is shown at the instance.",
        body=ref("HeartbeatBody"), answer=struct(Lease), errors=(400, 404, 409),
    ),
    RestOperation(
        "POST", "/v1/jobs/{id}/park", JobRoutes.park, Permission.WORK, "parkJob", "jobs", "Park a job (addition)",
        "The worker waits with the job. It comes back at `until`, or when a signal of that name (or to the step) "
        "comes: as the next attempt, with its checkpoint. Give one of the two, or both. No retry is used up. A "
        "repeat changes nothing.",
        body=ref("ParkBody"), status=204, errors=(400, 404, 409),
    ),
    route_of(jobs.COMPLETE_JOBS)._replace(handler=JobRoutes.complete_many),
    route_of(jobs.FAIL_JOBS)._replace(handler=JobRoutes.fail_many),
    route_of(jobs.HEARTBEAT_JOBS)._replace(handler=JobRoutes.heartbeat_many),
    route_of(jobs.RELEASE_JOBS)._replace(handler=JobRoutes.release_many),
    route_of(workers.LIST_JOBS),
    # -- tasks
    route_of(tasks.COMPLETE_USER_TASK),
    route_of(tasks.SIGNAL),
    route_of(tasks.SIGNAL_BY_KEY),
    route_of(instances.LIST_SIGNALS),
    route_of(messages.PUBLISH_MESSAGE),
    route_of(messages.LIST_MESSAGES),
    # -- service
    RestOperation(
        "GET", "/healthz", HealthRoutes.live, Permission.NONE,
        "live", "service", "Check that the process lives",
        "200 with an empty body while the process lives.", answer_description="It lives; no body.",
    ),
    RestOperation(
        "GET", "/readyz", HealthRoutes.ready, Permission.NONE, "ready", "service",
        "Check that the engine can serve (addition)",
        "`degraded` lists what is away and the engine can do without, such as `kafka`. `rowsAside` counts rows "
        "that the database refused (`{\"timers\": 1}`): the log and the metric `penstock_quarantined_row` say which "
        "and why. `insecure`: everybody may do everything. 503 with the reason: the database does not answer, or the "
        "engine stops.",
        answer=struct(Readiness), answer_description="It can; `degraded` names what is away.", errors=(503,),
    ),
    RestOperation(
        "GET", "/openapi.json", DocsRoutes.document, Permission.VIEW,
        "openapi", "service", "Read the OpenAPI document (addition)", answer={"type": "object"},
        answer_description="OpenAPI 3.1.",
    ),
    RestOperation(
        "GET", "/docs", DocsRoutes.page, Permission.NONE,
        "docs", "service", "Read the OpenAPI document as a page (addition)", answer=STRING,
        answer_type="text/html", answer_description="A page that loads nothing from other hosts.",
    ),
    *FOR_PEOPLE,
    *routes_of(schedules),
    *routes_of(updates),
    *routes_of(batches),
)  # fmt: skip
LIVE: Final = next(operation for operation in OPERATIONS if operation.path == LIVE_PATH)
START: Final = next(operation for operation in OPERATIONS if operation.id == "startInstance")
