"""The route of pages that watch: parked until something has changed, or their session has ended."""

from __future__ import annotations

from typing import Final

import msgspec
import trio
from quart import Response, request

from penstock.access.gate import AccessEnd, Gate
from penstock.access.identity import current_identity
from penstock.api.status import DEFAULT_RANGE
from penstock.engine.engine import Engine
from penstock.engine.status.watch import INSTANCES_MAX, WAIT_MAX_S, Changes
from penstock.errors import Unauthenticated
from penstock.rest.exchange import NO_CONTENT, Reply
from penstock.rest.reading import query_flag, query_number, query_text, respond

ID_MAX_CHARS: Final = 17

_encode = msgspec.json.Encoder().encode


class WatchRoutes:
    """One route."""

    def __init__(self, engine: Engine, gate: Gate | None) -> None:
        self._watch = engine.watch
        self._gate = gate

    async def wait(self) -> Response:
        """``GET /v1/watch``"""
        instances = (query_text(request, "instances", INSTANCES_MAX * ID_MAX_CHARS) or "").split(",")
        wait_s = float(query_number(request, "waitSeconds", int(WAIT_MAX_S)))
        range_name = query_text(request, "range") or DEFAULT_RANGE
        overview = range_name if query_flag(request, "overview") else None
        since, newer_than = query_text(request, "since"), query_text(request, "newerThan")
        wanted = since, [id for id in instances if id], newer_than, wait_s, overview
        identity = current_identity()
        if self._gate is None or identity is None:
            return _answer(await self._watch.wait(*wanted))
        ended = False

        def end(_: AccessEnd) -> None:
            nonlocal ended
            ended = True
            scope.cancel()

        changes: Changes | None = None
        with trio.CancelScope() as scope, self._gate.watching(identity, end):
            changes = await self._watch.wait(*wanted)
        if ended:
            raise Unauthenticated("the token was revoked or has expired, or the session has ended")
        return _answer(changes)


def _answer(changes: Changes | None) -> Response:
    return respond(NO_CONTENT if changes is None else Reply(200, _encode(changes)))
