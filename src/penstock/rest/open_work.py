"""The route on the attempts of a job: who calls decides whether stack traces are shown."""

from __future__ import annotations

from typing import Final, cast

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.log.masking import MASK
from penstock.rest.exchange import Reply, Scope
from penstock.rest.hiding import hides
from penstock.rest.reading import respond

_encode = msgspec.json.Encoder().encode


STACK_TRACE: Final = "stackTrace"
"""By this name a pattern hides the stack traces of workers from the console."""


class OpenWorkRoutes:
    """One route."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def attempts(self, id: str) -> Response:
        """``GET /v1/executions/{id}/attempts``"""
        found = await self._engine.attempts.of(id)
        if hides(self._engine.hiding, STACK_TRACE, cast("Scope", request.scope)["headers"]):
            found = [msgspec.structs.replace(one, stack_trace=MASK if one.stack_trace else None) for one in found]
        return respond(Reply(200, b'{"items":%b}' % _encode(found)))
