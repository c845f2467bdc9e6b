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
from penstock.rest.operation import (
    BOOLEAN,
    CONSOLE_HEADER,
    INTEGER,
    Kind,
    Parameter,
    RestOperation,
    struct,
)
from penstock.rest.rows import route_of, routes_of
from penstock.rest.sessions import CALLBACK, PlaceBody, SessionRoutes, SignInBegun, SignInWays, TokenBody
from penstock.rest.watch import WatchRoutes
from penstock.wire.me import Me

CONSOLE: Final = Parameter(CONSOLE_HEADER, "header", "Anything: pages of other origins can't send it.", required=True)
KINDS_FOR_PEOPLE: Final[Sequence[Kind]] = (
    TokenBody, PlaceBody, SignInWays, SignInBegun, Changes, SimulationView,
)  # fmt: skip
FOR_PEOPLE: Final[Sequence[RestOperation]] = (
    route_of(tasks.LIST_TASKS),
    route_of(tasks.COUNT_TASKS),
    route_of(tasks.CLAIM_TASK),
    route_of(tasks.RELEASE_TASK),
    route_of(status.GET_ME),
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
    route_of(drafts.SIMULATE),
    route_of(definitions.GET_IMPACT),
    route_of(workers.LIST_JOB_TYPES),
    *routes_of(queues),
    *routes_of(sql_requests),
    *routes_of(declared),
    route_of(workers.UNLOCK_JOB),
    route_of(workers.FORGET_CHECKPOINT),
    route_of(instances.LIST_ATTEMPTS),
    route_of(status.LIST_TIMERS),
    route_of(status.LIST_SETTINGS),
)  # fmt: skip
