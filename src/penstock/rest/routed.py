"""The routes that need no speed, in quart-trio: routing, queries, errors.

The application around it (`app`) reads bodies and adds CORS; here are no limits and no time-outs. A request whose
client goes away runs to its end: left to itself the framework would cancel it half-way, also for clients that only
closed their sending side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, cast

import trio
from quart import Response, request
from quart.routing import QuartRule
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import BaseConverter, Map

from penstock.access import table
from penstock.access.identity import Identity
from penstock.errors import PenstockError
from penstock.rest.exchange import App, Message, Scope, Send
from penstock.rest.hiding import Hider, mask_of
from penstock.rest.operation import Route
from penstock.rest.parameters import UnknownParameters
from penstock.rest.problems import bug, method_not_allowed, nothing_at, problem_of, problem_of_status
from penstock.rest.reading import ROUTE, respond
from penstock.wire.paths import read_part

CALLER: Final = "penstock.caller"
"""Key in the scope, with authentication: who calls, or the error that says why that is not known."""
_METHOD_ORDER: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class PartConverter(BaseConverter):
    """A part of a path. It may hold slashes: those that were sent as ``%2F``."""

    def to_python(self, value: str) -> str:
        return read_part(value)


class StepConverter(PartConverter):
    """A step id or a key, whose slashes old clients send as they are."""

    regex = "(?s:.+?)"
    part_isolating = False


_CONVERTERS: Final = {"part": PartConverter, "step": StepConverter}


class RoutedApp:
    """The routes of the table that are not hot. ``routes`` are all that are switched on."""

    def __init__(self, routes: Sequence[Route], unknown: UnknownParameters, hider: Hider) -> None:
        self._quart = _make_quart(routes, unknown, hider, self._refuse_route)
        every = Map(
            [_Rule(_rule(operation.path), methods=[operation.method]) for operation, _ in routes],
            merge_slashes=False,
            converters=_CONVERTERS,
        )
        self._map = every.bind("")

    def methods(self, path: str) -> list[str]:
        """The methods that a path has, hot ones too; empty for an unknown path."""
        found = set(self._map.allowed_methods(path))
        return [method for method in _METHOD_ORDER if method in {*found, "OPTIONS"}] if found else []

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


class _Rule(QuartRule):
    """A rule that makes no URLs: nothing here asks for one, and werkzeug compiles two functions for each rule to make
    them, 0.25 s of an engine's start."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _no_url


def _no_url(*args: object, **kwargs: object) -> tuple[str, str]:
    raise AssertionError("nothing asks for the URL of a rule")


def _make_quart(
    every: Sequence[Route],
    unknown: UnknownParameters,
    hider: Hider,
    refuse_route: Callable[[HTTPException], Response],
) -> QuartTrio:
    quart = QuartTrio(__name__, static_folder=None)
    quart.url_rule_class = _Rule
    quart.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    for limit in ("MAX_CONTENT_LENGTH", "BODY_TIMEOUT", "RESPONSE_TIMEOUT"):
        quart.config[limit] = None
    quart.url_map.merge_slashes = False
    quart.url_map.converters.update(_CONVERTERS)
    routes = {operation.id: operation for operation, _ in every}
    for operation, handler in every:
        if not operation.inline:
            quart.add_url_rule(_rule(operation.path), operation.id, handler, methods=[operation.method])

    async def admit() -> None:
        """By the route that the framework itself has found: there is no other reading of the path."""
        scope = cast(Scope, request.scope)
        caller = cast("Identity | PenstockError | None", scope.get(CALLER))
        if request.url_rule is None:
            if isinstance(caller, PenstockError):
                raise caller
            return
        scope[ROUTE] = operation = routes[request.url_rule.endpoint]
        if caller is not None:
            table.require(operation.needs, caller)
        unknown.check(operation, scope.get("query_string"))
        hider.begin(operation, scope)

    async def hide(response: Response) -> Response:
        return await _hide(response, hider)

    async def operating_error(error: PenstockError) -> Response:
        return respond(problem_of(error))

    async def framework_error(error: HTTPException) -> Response:
        return respond(problem_of_status(error.code or 500, error.description or error.name))

    async def unexpected(error: Exception) -> Response:
        return respond(bug(error, request.method, request.path))

    quart.before_request(admit)
    quart.after_request(hide)
    quart.register_error_handler(PenstockError, operating_error)
    quart.register_error_handler(HTTPException, framework_error)
    quart.register_error_handler(NotFound, refuse_route)
    quart.register_error_handler(MethodNotAllowed, refuse_route)
    quart.register_error_handler(Exception, unexpected)
    return quart


async def _hide(response: Response, hider: Hider) -> Response:
    """The answer to the request that is served here, with what is hidden masked."""
    scope = cast(Scope, request.scope)
    if mask_of(scope) is not None and response.status_code < HTTPStatus.BAD_REQUEST:
        assert isinstance(response.response, DataBody), "who answers in pieces masks them: mask_of"
        response.set_data(await hider.hide(scope[ROUTE], await response.get_data(as_text=False)))
    return response


def _rule(path: str) -> str:
    """Return the framework's form of a path."""
    steps = path.replace("{stepId}", "<step:stepId>").replace("{key}", "<step:key>")
    return steps.replace("{", "<part:").replace("}", ">")
