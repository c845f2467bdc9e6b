"""Routes on what is not uploaded yet: is a definition valid, what does an expression give."""

from __future__ import annotations

from functools import partial

import msgspec
from quart import Response, request

from penstock.core.definition import DefinitionLimits
from penstock.core.parsing import parse_definition
from penstock.engine.drafts import ExpressionCheck
from penstock.engine.engine import Engine
from penstock.offload import run_sized
from penstock.rest.codec import decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, respond

_encode = msgspec.json.Encoder().encode
_read_check = decoder(ExpressionCheck)


class DraftRoutes:
    """They store nothing."""

    def __init__(self, engine: Engine) -> None:
        self._drafts = engine.drafts
        self._limits = DefinitionLimits(steps_max_count=engine.settings.definition_max_steps)

    async def validate(self) -> Response:
        """``POST /v1/definitions/validate``"""
        read = partial(parse_definition, limits=self._limits)
        return respond(Reply(200, _encode(await self._drafts.validate(await body_of(request), read))))

    async def check_expression(self) -> Response:
        """``POST /v1/expressions/check``"""
        data = await body_of(request)
        asked = await run_sized(len(data), lambda: _read_check(data))
        return respond(Reply(200, _encode(await self._drafts.check_expression(asked))))
