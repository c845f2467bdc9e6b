"""The routes that need no speed, in quart-trio: routing, queries, errors.

The application around it (`app`) reads bodies and adds CORS; here are no limits and no time-outs. A request whose
client goes away runs to its end: left to itself the framework would cancel it half-way, also for clients that only
closed their sending side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import BaseConverter

from penstock.access import table
from penstock.access.identity import Identity
from penstock.engine.engine import Engine
from penstock.errors import PenstockError
from penstock.rest.definitions import DefinitionRoutes
from penstock.rest.docs import DocsRoutes
from penstock.rest.exchange import App, Message, Scope, Send
from penstock.rest.health import HealthRoutes
from penstock.rest.instances import InstanceRoutes
from penstock.rest.me import MeRoutes
from penstock.rest.overview import OverviewRoutes
from penstock.rest.problems import bug, method_not_allowed, nothing_at, problem_of, problem_of_status
from penstock.rest.reading import respond
from penstock.rest.runs import RunRoutes
from penstock.rest.tasks import TaskRoutes

PATTERN: Final = "penstock.pattern"
"""Key in the scope under which the pattern of the route is left for the metrics."""
CALLER: Final = "penstock.caller"
"""Key in the scope, with authentication: who calls, or the error that says why that is not known."""
_METHOD_ORDER: Final = ("GET", "HEAD", "POST", "OPTIONS")


class StepConverter(BaseConverter):
    """A step id, which may hold anything, slashes too."""

    regex = ".+?"
    part_isolating = False


class RoutedApp:
    """All routes of the framework. ``hot_methods`` gives the methods of the other routes on a path."""

    def __init__(
        self, engine: Engine, degraded: Callable[[], Sequence[str]], hot_methods: Callable[[str], Sequence[str]]
    ) -> None:
        self._hot_methods = hot_methods
        self._quart = _make_quart(engine, degraded, self._refuse_route)
        self._map = self._quart.url_map.bind("")

    def methods(self, path: str) -> list[str]:
        """The methods that a path has, hot ones too; empty for an unknown path."""
        found = {*self._map.allowed_methods(path), *self._hot_methods(path)}
        return [method for method in _METHOD_ORDER if method in {*found, "OPTIONS"}] if found else []

    def patterns(self) -> set[tuple[str, str]]:
        """(method, pattern) of all routes, hot ones left out."""
        return {
            (method, _pattern(rule.rule))
            for rule in self._quart.url_map.iter_rules()
            for method in rule.methods or ()
            if method != "HEAD"
        }

    async def __call__(self, scope: Scope, body: bytes, send: Send) -> None:
        """Serve one request whose body was read."""
        given = False

        async def receive() -> Message:
            nonlocal given
            if given:
                await trio.sleep_forever()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await cast(App, self._quart)(scope, receive, send)  # its own annotations are hypercorn's TypedDicts

    def _refuse_route(self, error: HTTPException) -> Response:
        methods = self.methods(request.path)
        if methods:
            return respond(method_not_allowed(request.method, methods))
        return respond(nothing_at(request.path))


def _make_quart(
    engine: Engine, degraded: Callable[[], Sequence[str]], refuse_route: Callable[[HTTPException], Response]
) -> QuartTrio:
    quart = QuartTrio(__name__, static_folder=None)
    quart.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    for limit in ("MAX_CONTENT_LENGTH", "BODY_TIMEOUT", "RESPONSE_TIMEOUT"):
        quart.config[limit] = None
    quart.url_map.merge_slashes = False
    quart.url_map.converters["step"] = StepConverter
    for routes in (
        DefinitionRoutes(engine),
        InstanceRoutes(engine),
        TaskRoutes(engine),
        RunRoutes(engine),
        HealthRoutes(engine, degraded),
        MeRoutes(),
        OverviewRoutes(engine),
    ):
        quart.register_blueprint(routes.blueprint())
    if engine.settings.docs_enabled:
        quart.register_blueprint(DocsRoutes().blueprint())

    async def admit() -> None:
        """By the route that the framework itself has found: there is no other reading of the path."""
        scope = cast(Scope, request.scope)
        caller = cast("Identity | PenstockError | None", scope.get(CALLER))
        if request.url_rule is None:
            if isinstance(caller, PenstockError):
                raise caller
            return
        scope[PATTERN] = pattern = _pattern(request.url_rule.rule)
        if caller is not None:
            method = "GET" if request.method == "HEAD" else request.method
            table.require(table.REST.get((method, pattern)), caller)

    async def operating_error(error: PenstockError) -> Response:
        return respond(problem_of(error))

    async def framework_error(error: HTTPException) -> Response:
        return respond(problem_of_status(error.code or 500, error.description or error.name))

    async def unexpected(error: Exception) -> Response:
        return respond(bug(error, request.method, request.path))

    quart.before_request(admit)
    quart.register_error_handler(PenstockError, operating_error)
    quart.register_error_handler(HTTPException, framework_error)
    quart.register_error_handler(NotFound, refuse_route)
    quart.register_error_handler(MethodNotAllowed, refuse_route)
    quart.register_error_handler(Exception, unexpected)
    return quart


def _pattern(rule: str) -> str:
    return rule.replace("step:step_id", "stepId").replace("step:", "").replace("<", "{").replace(">", "}")
