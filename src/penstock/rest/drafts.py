"""The route that simulates a definition: its answer is written in a thread, with what it computes."""

from __future__ import annotations

from quart import Response, request

from penstock.engine.engine import Engine
from penstock.loop.offload import run_sized
from penstock.rest.codec import decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, respond
from penstock.wire.simulation import SimulationRequest

_read_simulation = decoder(SimulationRequest)


class DraftRoutes:
    """It stores nothing."""

    def __init__(self, engine: Engine) -> None:
        self._simulations = engine.simulations

    async def simulate(self) -> Response:
        """``POST /v1/simulations``"""
        data = await body_of(request)
        asked = await run_sized(len(data), lambda: _read_simulation(data))
        return respond(Reply(200, await self._simulations.simulate(asked)))
