"""The route that simulates a definition: its answer is written in a thread, with what it computes."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.definitions.drafts import ExpressionCheck, language
from penstock.engine.engine import Engine
from penstock.engine.simulation.simulations import SimulationRequest
from penstock.loop.offload import run_sized
from penstock.rest.codec import decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_flag, respond

_encode = msgspec.json.Encoder().encode
_read_check = decoder(ExpressionCheck)
_read_simulation = decoder(SimulationRequest)


class DraftRoutes:
    """It stores nothing."""

    def __init__(self, engine: Engine) -> None:
        self._drafts = engine.drafts
        self._simulations = engine.simulations

    async def validate(self) -> Response:
        """``POST /v1/definitions/validate``"""
        with_reads = query_flag(request, "reads")
        return respond(Reply(200, _encode(await self._drafts.validate(await body_of(request), with_reads=with_reads))))

    async def expression_language(self) -> Response:
        """``GET /v1/expressions/language``"""
        return respond(Reply(200, _encode(language())))

    async def check_expression(self) -> Response:
        """``POST /v1/expressions/check``"""
        data = await body_of(request)
        asked = await run_sized(len(data), lambda: _read_check(data))
        return respond(Reply(200, _encode(await self._drafts.check_expression(asked))))

    async def simulate(self) -> Response:
        """``POST /v1/simulations``"""
        data = await body_of(request)
        asked = await run_sized(len(data), lambda: _read_simulation(data))
        return respond(Reply(200, await self._simulations.simulate(asked)))
