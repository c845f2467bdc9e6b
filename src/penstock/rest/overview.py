"""Routes for those who watch: the overview, workers, engines."""

from __future__ import annotations

from typing import Final

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.status.overview import WORKERS_MAX
from penstock.rest.codec import optional_decoder
from penstock.rest.exchange import NO_CONTENT, Reply
from penstock.rest.reading import body_of, query_number, query_text, respond
from penstock.wire.attention import AcknowledgeBody

DEFAULT_RANGE: Final = "15m"
FAILURES_RANGE: Final = "24h"

_read_acknowledge = optional_decoder(AcknowledgeBody)
_encode = msgspec.json.Encoder().encode


class OverviewRoutes:
    """They read, and change nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def read(self) -> Response:
        """``GET /v1/overview``"""
        found = await self._engine.overview.read(query_text(request, "range") or DEFAULT_RANGE)
        return respond(Reply(200, _encode(found)))

    async def failures(self) -> Response:
        """``GET /v1/failures``"""
        found = await self._engine.failures.read(
            query_text(request, "definitionId"), query_text(request, "range") or FAILURES_RANGE
        )
        return respond(Reply(200, _encode(found)))

    async def attention(self) -> Response:
        """``GET /v1/attention``"""
        return respond(Reply(200, _encode(await self._engine.overview.attention())))

    async def acknowledge(self, key: str) -> Response:
        """``PUT /v1/attention/{key}``"""
        await self._engine.overview.acknowledge(key, _read_acknowledge(await body_of(request)))
        return respond(NO_CONTENT)

    async def withdraw(self, key: str) -> Response:
        """``DELETE /v1/attention/{key}``"""
        await self._engine.overview.withdraw(key)
        return respond(NO_CONTENT)

    async def workers(self) -> Response:
        """``GET /v1/workers``"""
        limit = query_number(request, "limit", WORKERS_MAX)
        after, job_type = query_text(request, "cursor"), query_text(request, "jobType")
        return respond(Reply(200, _encode(await self._engine.overview.workers(after, limit, job_type))))

    async def engines(self) -> Response:
        """``GET /v1/engines``"""
        return respond(Reply(200, _encode(await self._engine.overview.engines())))
