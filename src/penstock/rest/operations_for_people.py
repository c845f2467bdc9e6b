"""Rows of the table of routes for people: what the console calls. The table is `operations`; this is a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.access.roles import Permission
from penstock.engine.definitions.drafts import DraftCheck, ExpressionCheck, ExpressionLanguage, ExpressionVerdict
from penstock.engine.instances.definition_use import (
    DefinitionActivity,
    TokensView,
    VariablesInUse,
    VersionCounts,
    VersionView,
)
from penstock.engine.instances.inbox import UserTask
from penstock.engine.simulation.simulations import SimulationRequest, SimulationView
from penstock.engine.status.diagnosis import InstanceState, VariablesAsOf
from penstock.engine.status.failures import FailureList
from penstock.engine.status.open_work import TimerView, UnlockBody
from penstock.engine.status.overview import EngineList, OverviewView
from penstock.engine.status.watch import Changes
from penstock.rest.audit import AuditRoutes
from penstock.rest.bulk import BulkRoutes
from penstock.rest.definition_use import DefinitionUseRoutes
from penstock.rest.drafts import DraftRoutes
from penstock.rest.inbox import ClaimBody, InboxRoutes
from penstock.rest.instances import FILTER, InstanceRoutes
from penstock.rest.me import Me, MeRoutes
from penstock.rest.open_work import OpenWorkRoutes, SettingView
from penstock.rest.operation import (
    BOOLEAN,
    CONSOLE_HEADER,
    INTEGER,
    SLICE,
    TIME,
    Kind,
    Parameter,
    RestOperation,
    list_in,
    ref,
    struct,
)
from penstock.rest.overview import OverviewRoutes
from penstock.rest.queues import QueueRoutes
from penstock.rest.sessions import CALLBACK, PlaceBody, SessionRoutes, SignInBegun, SignInWays, TokenBody
from penstock.rest.watch import WatchRoutes
from penstock.wire.attention import AcknowledgeBody, AttentionList
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.bulk import BulkRequest
from penstock.wire.model import RecordedAttempt
from penstock.wire.open_work import QueueRow, WorkerView
from penstock.wire.page import Count, Page
from penstock.wire.queue import Queue, QueuePolicy
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView, ImpactView

CONSOLE: Final = Parameter(CONSOLE_HEADER, "header", "Anything: pages of other origins can't send it.", required=True)
KINDS_FOR_PEOPLE: Final[Sequence[Kind]] = (
    AcknowledgeBody, AttentionList, Page[AuditTrailRecord],
    Me, UserTask, Page[UserTask], ClaimBody, TokenBody, PlaceBody, SignInWays, SignInBegun, OverviewView, QueueRow,
    Page[WorkerView], QueuePolicy, Queue, Page[Queue], EngineList, BulkRequest, BulkPreview, BulkStarted, BulkView,
    Page[BulkView], Page[TimerView], UnlockBody, SettingView, Page[VersionView],
    Page[DefinitionActivity], Page[VersionCounts], TokensView,
    VariablesInUse, ImpactView, InstanceState,
    RecordedAttempt, Count, FailureList, Changes, VariablesAsOf, DraftCheck, ExpressionCheck, ExpressionVerdict,
    SimulationRequest, SimulationView,
    ExpressionLanguage,
)  # fmt: skip
FOR_PEOPLE: Final[Sequence[RestOperation]] = (
    RestOperation(
        "GET", "/v1/tasks", InboxRoutes.list, Permission.VIEW,
        "listTasks", "tasks", "List open user tasks, oldest first (addition)",
        "A page may be short, or empty, before the last one: `next` says whether to go on. `item` is the index of the "
        "item of a forEach that a task is about, `executionId` names it to claim, release and completion.",
        parameters=(
            Parameter("jobType", "query", "For whom; exactly this."),
            Parameter("definitionId", "query", "Exactly this; needs `jobType` or `assignee` beside it."),
            Parameter("assignee", "query", "Who has claimed them."),
            Parameter("unclaimed", "query", "Those that nobody has claimed.", BOOLEAN),
            Parameter("instanceId", "query", "Of this instance; without other filters."),
            Parameter("executionId", "query", "This one, while it is open; without other filters."),
            *SLICE,
        ),
        answer=struct(Page[UserTask]), errors=(400, 404, 409),
    ),
    RestOperation(
        "GET", "/v1/tasks/count", InboxRoutes.count, Permission.VIEW,
        "countTasks", "tasks", "Count open user tasks, to 10,000 (addition)", answer=struct(Count), errors=(409, 503),
    ),
    RestOperation(
        "POST", "/v1/tasks/{id}/{stepId}/claim", InboxRoutes.claim, Permission.TASKS,
        "claimTask", "tasks", "Say who means to do a user task (addition)",
        "Advice: whoever may complete tasks still can. With authentication it is the caller, or with the role operator"
        " anybody.",
        body=struct(ClaimBody), body_required=False, answer=struct(UserTask), errors=(400, 404, 409),
    ),
    RestOperation(
        "POST", "/v1/tasks/{id}/{stepId}/release", InboxRoutes.release, Permission.TASKS,
        "releaseTask", "tasks", "Give a claimed user task back (addition)",
        "Without `by`, with the role operator or without authentication: whoever has it.",
        body=struct(ClaimBody), body_required=False, answer=struct(UserTask), errors=(400, 404, 409),
    ),
    RestOperation(
        "GET", "/v1/me", MeRoutes.me, Permission.PROVED,
        "me", "service", "Who calls, and what they may do (addition)", answer=struct(Me),
        answer_description="`can` holds `view`, `operate`, `model`, `tasks`, `work`.",
    ),
    RestOperation(
        "GET", "/v1/sessions/ways", SessionRoutes.ways, Permission.NONE,
        "signInWays", "service", "How people can sign in at the console (addition)", answer=struct(SignInWays),
    ),
    RestOperation(
        "POST", "/v1/sessions", SessionRoutes.create, Permission.NONE,
        "signIn", "service", "Open a session with a token (addition)",
        "You get what `/v1/me` says, and a session's cookie. Needs the header `X-Penstock-Console`, from the "
        "engine's own pages.", parameters=(CONSOLE,),
        body=struct(TokenBody), status=201, answer=struct(Me), errors=(400, 401, 409),
    ),
    RestOperation(
        "POST", "/v1/sessions/end", SessionRoutes.end, Permission.NONE,
        "signOut", "service", "End the session (addition)", parameters=(CONSOLE,), status=204, errors=(400, 403, 409),
    ),
    RestOperation(
        "POST", "/v1/sessions/oidc", SessionRoutes.begin, Permission.NONE,
        "beginSignIn", "service", "Begin to sign in at the issuer (addition)", parameters=(CONSOLE,),
        body=struct(PlaceBody), answer=struct(SignInBegun), errors=(400, 409, 429),
    ),
    RestOperation(
        "GET", CALLBACK, SessionRoutes.finish, Permission.NONE,
        "finishSignIn", "service", "Where the issuer sends a browser back (addition)",
        parameters=(
            Parameter("code", "query", "The issuer's, which the engine exchanges."),
            Parameter("state", "query", "Of the sign-in that began."),
            Parameter("iss", "query", "The issuer."),
            Parameter("session_state", "query", "Ignored."),
            *(Parameter(name, "query", "Ignored.") for name in ("error", "error_description", "error_uri")),
        ),
        status=303, answer_description="To the console.", errors=(400, 409),
    ),
    RestOperation(
        "GET", "/v1/instances/count", InstanceRoutes.count, Permission.VIEW,
        "countInstances", "instances", "Count instances, to 10,000 (addition)",
        "By the filters of the list. `exact` is false beyond 10,000.", parameters=FILTER,
        answer=struct(Count), errors=(400, 503),
    ),
    RestOperation(
        "GET", "/v1/failures", OverviewRoutes.failures, Permission.VIEW,
        "listFailures", "instances", "List failures by cause (addition)",
        "The newest 1,000 of instances that started within the range.",
        parameters=(
            Parameter("definitionId", "query", "Of any version."),
            Parameter("range", "query", "`15m`, `1h`, `24h` (the default), `7d` or `all`."),
        ),
        answer=struct(FailureList), errors=(400, 503),
    ),
    RestOperation(
        "GET", "/v1/instances/{id}/variables", InstanceRoutes.variables_after, Permission.VIEW,
        "getVariablesAfter", "instances", "Read the variables as an execution left them (addition)",
        parameters=(Parameter("after", "query", "The id of an execution.", required=True),),
        answer=struct(VariablesAsOf), errors=(400, 404, 409, 503), for_people=True,
    ),
    RestOperation(
        "GET", "/v1/instances/{id}/state", InstanceRoutes.state, Permission.VIEW,
        "getState", "instances", "Read where an instance stands, and why (addition)",
        "In one sentence, with its open steps, timers and kept signals.",
        answer=struct(InstanceState), errors=(404, 503),
    ),
    RestOperation(
        "GET", "/v1/watch", WatchRoutes.wait, Permission.VIEW, "watch", "service", "Wait for changes (addition)",
        "The request waits for `waitSeconds` (30 at most) until one of `instances` (200 ids, separated by commas)"
        " has changed, one newer than `newerThan` was started (`newer` counts them to 100), or with "
        "`overview=true` the overview over `range` has changed. Else 204. `since` is the `tag` of the answer "
        "before. Without it, or with another engine's, you get everything at once.",
        parameters=(
            Parameter("since", "query", "The `tag` of the answer before."),
            Parameter("instances", "query", "Up to 200 ids, with commas between."),
            Parameter("newerThan", "query", "Tell when an instance with a greater id was started."),
            Parameter("overview", "query", "Tell the overview, too, when it is another one than before.", BOOLEAN),
            Parameter("range", "query", "Of the overview: `15m` (the default), `1h`, `24h` or `7d`."),
            Parameter("waitSeconds", "query", "At most 30, by default 30.", INTEGER),
        ),
        answer=struct(Changes), errors=(400, 429, 503), waits=True,
    ),
    RestOperation(
        "POST", "/v1/instances/bulk", BulkRoutes.create, Permission.OPERATE,
        "bulk", "instances", "Retry, cancel, signal, skip, move, migrate or edit many instances (addition)",
        "In the background; each failure is retried once, each signal acts once. `dryRun`: 200, what it would meet.",
        body=struct(BulkRequest), status=202, answer=struct(BulkStarted), also=((200, struct(BulkPreview)),),
        errors=(400, 409),
    ),
    RestOperation(
        "GET", "/v1/bulk", BulkRoutes.list, Permission.VIEW,
        "listBulk", "instances", "List bulk operations, newest first (addition)", parameters=SLICE,
        answer=struct(Page[BulkView]), errors=(400,),
    ),
    RestOperation(
        "GET", "/v1/bulk/{id}", BulkRoutes.get, Permission.VIEW, "getBulk", "instances",
        "Read a bulk operation (addition)", answer=struct(BulkView), errors=(404,),
    ),
    RestOperation(
        "POST", "/v1/bulk/{id}/stop", BulkRoutes.stop, Permission.OPERATE, "stopBulk", "instances",
        "Stop a bulk operation (addition)", "What is done stays done.", answer=struct(BulkView), errors=(404,)),
    RestOperation(
        "GET", "/v1/overview", OverviewRoutes.read, Permission.VIEW,
        "overview", "service", "What happens, and what needs somebody (addition)",
        "Rates from samples of all engines; queues as this engine measured them in the last ten seconds.",
        parameters=(Parameter("range", "query", "`15m` (the default), `1h`, `24h` or `7d`."),),
        answer=struct(OverviewView), errors=(400,),
    ),
    RestOperation(
        "GET", "/v1/audit", AuditRoutes.list, Permission.OPERATE,
        "listAudit", "service", "List what people and programs did, newest first (addition)",
        "Who paused, changed, uploaded, made a token or signed in, with old and new values. A page may have fewer than "
        "`limit`, and more behind it.",
        parameters=(
            Parameter("kind", "query", "Of this kind, such as `QUEUE_CHANGED`."),
            Parameter("actor", "query", "By this caller."),
            Parameter("contains", "query", "With this in `detail`, in any case."),
            Parameter("since", "query", "Not before this time.", TIME),
            Parameter("until", "query", "Before this time.", TIME),
            *SLICE,
        ),
        answer=struct(Page[AuditTrailRecord]), errors=(400, 503),
    ),
    RestOperation(
        "GET", "/v1/attention", OverviewRoutes.attention, Permission.VIEW,
        "listAttention", "service", "List what needs somebody (addition)",
        "As in the overview: what concerns most work first, what is acknowledged last.",
        answer=struct(AttentionList), errors=(503,),
    ),
    RestOperation(
        "PUT", "/v1/attention/{key}", OverviewRoutes.acknowledge, Permission.OPERATE,
        "acknowledgeAttention", "service", "Acknowledge what needs somebody (addition)",
        "By the `key` of its row, for `attention_acknowledged_hours`, of failures until there are more than `count`.",
        body=struct(AcknowledgeBody), body_required=False, status=204, errors=(400, 409, 503),
    ),
    RestOperation(
        "DELETE", "/v1/attention/{key}", OverviewRoutes.withdraw, Permission.OPERATE,
        "withdrawAcknowledgement", "service", "Let what was acknowledged need attention again (addition)",
        status=204, errors=(404, 503),
    ),
    RestOperation(
        "GET", "/v1/workers", OverviewRoutes.workers, Permission.VIEW,
        "listWorkers", "service", "List workers of a day (addition)", answer=struct(Page[WorkerView]),
        parameters=(*SLICE, Parameter("jobType", "query", "Those that polled for it.")),
    ),
    RestOperation(
        "GET", "/v1/engines", OverviewRoutes.engines, Permission.VIEW,
        "listEngines", "service", "List engines, those gone within a day, too (addition)",
        "With what they say of themselves, and what of the database is of interest.", answer=struct(EngineList),
    ),
    RestOperation(
        "GET", "/v1/definition-activity", DefinitionUseRoutes.activity, Permission.VIEW,
        "listDefinitionActivity", "definitions", "Tell how much is going on in each definition (addition)",
        "Of those, and paged, as the list of definitions.",
        parameters=(Parameter("keyword", "query", "In the id or the name, whatever its case."), *SLICE),
        answer=struct(Page[DefinitionActivity]), errors=(400, 503),
    ),
    RestOperation(
        "GET", "/v1/definitions/{id}/versions", DefinitionUseRoutes.versions, Permission.VIEW,
        "listVersions", "definitions", "List versions, newest first (addition)",
        parameters=SLICE, answer=struct(Page[VersionView]), errors=(400, 404, 503),
    ),
    RestOperation(
        "GET", "/v1/definitions/{id}/counts", DefinitionUseRoutes.counts, Permission.VIEW,
        "countVersions", "definitions", "Count the instances of versions by status (addition)",
        "Newest version first, at most 20. Exact for a version with up to 10,000 instances, else from a sample, with "
        "`totalIsEstimate`.",
        parameters=SLICE, answer=struct(Page[VersionCounts]), errors=(400, 404, 503),
    ),
    RestOperation(
        "GET", "/v1/definitions/{id}/tokens", DefinitionUseRoutes.tokens, Permission.VIEW,
        "listTokens", "definitions", "Count what stands on each step (addition)",
        "As of the last minute; with more than 500,000 open branches estimated.",
        parameters=(Parameter("version", "query", "0, or none: the latest.", INTEGER),),
        answer=struct(TokensView), errors=(404, 503),
    ),
    RestOperation(
        "GET", "/v1/definitions/{id}/variables", DefinitionUseRoutes.variables, Permission.VIEW,
        "listVariables", "definitions", "List variables that instances of a definition have (addition)",
        "By name, with their JSON types, of the newest 100 instances of any version.",
        answer=struct(VariablesInUse), errors=(404, 503),
    ),
    RestOperation(
        "POST", "/v1/definitions/validate", DraftRoutes.validate, Permission.VIEW,
        "validateDefinition", "definitions", "Check a definition before it is uploaded (addition)",
        "All that is wrong, by step, and hints; nothing is stored. Of a valid one the variables that it reads.",
        parameters=(Parameter("reads", "query", "Where it reads variables that have to be defined, too.", BOOLEAN),),
        body=ref("Definition"), answer=struct(DraftCheck), errors=(413,),
    ),
    RestOperation(
        "GET", "/v1/expressions/language", DraftRoutes.expression_language, Permission.VIEW,
        "getExpressionLanguage", "definitions", "List the names that expressions know (addition)",
        "Functions, words, and methods of dates and durations; variables are not among them.",
        answer=struct(ExpressionLanguage),
    ),
    RestOperation(
        "POST", "/v1/expressions/check", DraftRoutes.check_expression, Permission.VIEW,
        "checkExpression", "definitions", "Try an expression (addition)",
        "With the variables given, or those that an instance has now; within the work that one in a definition has.",
        body=struct(ExpressionCheck), answer=struct(ExpressionVerdict), errors=(400, 404, 413, 503),
    ),
    RestOperation(
        "POST", "/v1/simulations", DraftRoutes.simulate, Permission.VIEW,
        "simulate", "definitions", "Simulate a definition (addition)",
        "Nothing is stored: each request has the definition and all moves so far. The engine's own rules make "
        "them, on a clock that only they move. A move's `do` is `complete` (a job, a user task, what a call "
        "started), `fail`, `cancel`, `signal`, `message`, `fire` (the timer of `index`, and all that are due "
        "before), `advance` (by `seconds`, or to the next timer) or `retry`. `can` has the moves that are "
        "possible now. The first `made` moves were made, and `stopped` says why the next was not. `test` is the "
        "same as a file for pytest. A start that the definition refuses has `made` 0 and the reason in `stopped`."
        " Limits: 500 moves, 1 s of computing (the test as long again), 64 MiB of variables that its steps write,"
        " an answer of 1 MiB.",
        body=struct(SimulationRequest), answer=struct(SimulationView), errors=(400, 413),
    ),
    RestOperation(
        "POST", "/v1/definitions/{id}/impact", DefinitionUseRoutes.impact, Permission.VIEW,
        "impact", "definitions", "Tell which open instances a new version would not fit (addition)",
        "The body is what would be uploaded; without one it is a version that was. Nothing is stored. By version and "
        "step how many stand there and what keeps them from going on in it; `refusals`: of the newest 1,000 those that "
        "can't, with every reason. Open instances stay on their version.",
        parameters=(Parameter("version", "query", "One that was uploaded; 0, or none: the latest.", INTEGER),),
        body=ref("Definition"), body_required=False, answer=struct(ImpactView), errors=(400, 404, 409, 503),
    ),
    RestOperation(
        "GET", "/v1/job-types", OpenWorkRoutes.job_types, Permission.VIEW,
        "listJobTypes", "jobs", "List queues and who polls them, those first that wait longest (addition)",
        answer=list_in("items", QueueRow), errors=(503,),
    ),
    RestOperation(
        "GET", "/v1/queues", QueueRoutes.list, Permission.VIEW, "listQueues", "jobs",
        "List queues, policies for job types, by name (addition)", parameters=SLICE, answer=struct(Page[Queue]),
        errors=(400, 503),
    ),
    RestOperation(
        "GET", "/v1/queues/{id}", QueueRoutes.get, Permission.VIEW, "getQueue", "jobs",
        "Read a queue, and how it stands (addition)", answer=struct(Queue), errors=(400, 404, 503),
    ),
    RestOperation(
        "PUT", "/v1/queues/{id}", QueueRoutes.put, Permission.OPERATE, "putQueue", "jobs",
        "Limit the jobs of some types (addition)",
        "From the next claim on, in all engines. `paused` left out: as it is. "
        "409: a job type is in another queue, or an older engine lives.",
        body=struct(QueuePolicy), answer=struct(Queue), errors=(400, 409, 503),
    ),
    RestOperation(
        "DELETE", "/v1/queues/{id}", QueueRoutes.delete, Permission.OPERATE, "deleteQueue", "jobs",
        "Forget a queue (addition)", "Its jobs are free at once.", status=204, errors=(400, 404, 503),
    ),
    RestOperation(
        "POST", "/v1/queues/{id}/pause", QueueRoutes.pause, Permission.OPERATE, "pauseQueue", "jobs",
        "Let no job of a queue begin (addition)", "What runs goes on.", answer=struct(Queue), errors=(400, 404, 503),
    ),
    RestOperation(
        "POST", "/v1/queues/{id}/resume", QueueRoutes.resume, Permission.OPERATE, "resumeQueue", "jobs",
        "Let the jobs of a queue begin again (addition)", answer=struct(Queue), errors=(400, 404, 503),
    ),
    RestOperation(
        "POST", "/v1/jobs/{id}/unlock", OpenWorkRoutes.unlock, Permission.OPERATE,
        "unlockJob", "jobs", "End a job's lease now (addition)",
        "It goes back to the queue, no retry is spent; its worker is told that it lost it.",
        body=struct(UnlockBody), body_required=False, status=204, errors=(400, 404, 409),
    ),
    RestOperation(
        "DELETE", "/v1/jobs/{id}/checkpoint", OpenWorkRoutes.forget_checkpoint, Permission.OPERATE,
        "forgetCheckpoint", "jobs", "Forget the checkpoint of an open job (addition)",
        "Its next attempt begins without. A worker that has the job may leave another one.",
        parameters=(Parameter("note", "query", "For the audit trail."),), status=204, errors=(400, 404),
    ),
    RestOperation(
        "GET", "/v1/executions/{id}/attempts", OpenWorkRoutes.attempts, Permission.VIEW,
        "listAttempts", "instances", "List the attempts of a job (addition)",
        "The newest 50, oldest first. An execution's id is its job's. `parameters` are the attempt's variables, "
        "if the definition has `recordAttempts` or the job type is in `attempts_recorded_job_types`. `progress` "
        "is the last report of its worker. A value larger than `attempt_record_max_bytes` has its size only. "
        "Callers who may operate also get `stackTrace`. `console_hide_variables` with `stackTrace` hides it in "
        "the console.",
        answer=list_in("items", RecordedAttempt), errors=(404,),
    ),
    RestOperation(
        "GET", "/v1/timers", OpenWorkRoutes.timers, Permission.VIEW,
        "listTimers", "service", "List timers to come, next first (addition)",
        parameters=(Parameter("kind", "query", "`boundary`, `retry`, `wait` or `wake`."), *SLICE),
        answer=struct(Page[TimerView]), errors=(400, 503),
    ),
    RestOperation(
        "GET", "/v1/settings", OpenWorkRoutes.settings, Permission.OPERATE,
        "listSettings", "service", "List the settings of the engine that answers (addition)",
        "Of secrets only whether they are set.", answer=list_in("items", SettingView),
    ),
)  # fmt: skip
