"""Rows of the table of routes for people: what the console calls. The table is `operations`; this is a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.api import (
    audit,
    bulk,
    declared,
    definitions,
    drafts,
    instances,
    queues,
    sql_requests,
    status,
    tasks,
    workers,
)
from penstock.api.permission import Permission
from penstock.engine.simulation.simulations import SimulationView
from penstock.engine.status.watch import Changes
from penstock.rest.drafts import DraftRoutes
from penstock.rest.me import Me, MeRoutes
from penstock.rest.open_work import OpenWorkRoutes
from penstock.rest.operation import (
    BOOLEAN,
    CONSOLE_HEADER,
    INTEGER,
    Kind,
    Parameter,
    RestOperation,
    list_in,
    struct,
)
from penstock.rest.rows import route_of, routes_of
from penstock.rest.sessions import CALLBACK, PlaceBody, SessionRoutes, SignInBegun, SignInWays, TokenBody
from penstock.rest.watch import WatchRoutes
from penstock.wire.model import RecordedAttempt
from penstock.wire.simulation import SimulationRequest

CONSOLE: Final = Parameter(CONSOLE_HEADER, "header", "Anything: pages of other origins can't send it.", required=True)
KINDS_FOR_PEOPLE: Final[Sequence[Kind]] = (
    Me, TokenBody, PlaceBody, SignInWays, SignInBegun, RecordedAttempt, Changes, SimulationRequest, SimulationView,
)  # fmt: skip
FOR_PEOPLE: Final[Sequence[RestOperation]] = (
    route_of(tasks.LIST_TASKS),
    route_of(tasks.COUNT_TASKS),
    route_of(tasks.CLAIM_TASK),
    route_of(tasks.RELEASE_TASK),
    RestOperation(
        "GET", "/v1/me", MeRoutes.me, Permission.PROVED,
        "me", "service", "Read who calls, and what they may do (addition)",
        "`can` has `view`, `operate`, `model`, `tasks`, `work`. `jobTypes`: work of these job types only.",
        answer=struct(Me),
        answer_description="`can` holds `view`, `operate`, `model`, `tasks`, `work`.",
    ),
    RestOperation(
        "GET", "/v1/sessions/ways", SessionRoutes.ways, Permission.NONE,
        "signInWays", "service", "Read how people can sign in at the console (addition)",
        "`token` is false without authentication. The other calls of `/v1/sessions` are 409 then.",
        answer=struct(SignInWays),
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
        "signOut", "service", "End the session (addition)",
        "On all engines.", parameters=(CONSOLE,), status=204, errors=(400, 403, 409),
    ),
    RestOperation(
        "POST", "/v1/sessions/oidc", SessionRoutes.begin, Permission.NONE,
        "beginSignIn", "service", "Begin to sign in at the issuer (addition)",
        "`url` is where the browser has to go to sign in at the issuer.", parameters=(CONSOLE,),
        body=struct(PlaceBody), answer=struct(SignInBegun), errors=(400, 409, 429),
    ),
    RestOperation(
        "GET", CALLBACK, SessionRoutes.finish, Permission.NONE,
        "finishSignIn", "service", "Receive a browser that comes back from the issuer (addition)",
        "Redirects into the console, with the cookie or with `signIn=refused`.",
        parameters=(
            Parameter("code", "query", "The issuer's, which the engine exchanges."),
            Parameter("state", "query", "Of the sign-in that began."),
            Parameter("iss", "query", "The issuer."),
            Parameter("session_state", "query", "Ignored."),
            *(Parameter(name, "query", "Ignored.") for name in ("error", "error_description", "error_uri")),
        ),
        status=303, answer_description="To the console.", errors=(400, 409),
    ),
    route_of(instances.COUNT_INSTANCES),
    route_of(status.LIST_FAILURES),
    route_of(instances.GET_VARIABLES_AFTER),
    route_of(instances.GET_STATE),
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
    *routes_of(bulk),
    route_of(status.OVERVIEW),
    *routes_of(audit),
    route_of(workers.LIST_WORKERS),
    route_of(status.LIST_ENGINES),
    route_of(definitions.LIST_DEFINITION_ACTIVITY),
    route_of(definitions.LIST_VERSIONS),
    route_of(definitions.COUNT_VERSIONS),
    route_of(definitions.LIST_TOKENS),
    route_of(definitions.LIST_VARIABLES),
    route_of(drafts.VALIDATE_DEFINITION),
    route_of(drafts.GET_EXPRESSION_LANGUAGE),
    route_of(drafts.CHECK_EXPRESSION),
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
    route_of(definitions.GET_IMPACT),
    route_of(workers.LIST_JOB_TYPES),
    *routes_of(queues),
    *routes_of(sql_requests),
    *routes_of(declared),
    route_of(workers.UNLOCK_JOB),
    route_of(workers.FORGET_CHECKPOINT),
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
    route_of(status.LIST_TIMERS),
    route_of(status.LIST_SETTINGS),
)  # fmt: skip
