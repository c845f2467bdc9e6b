"""Routes of bulk operations: make one or look at what it would meet, follow it, stop it."""

from __future__ import annotations

from typing import Final

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.rest.codec import decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_number, query_text, respond
from penstock.wire.bulk import BulkRequest

DEFAULT_LIMIT: Final = 50

_read = decoder(BulkRequest)
_encode = msgspec.json.Encoder().encode


class BulkRoutes:
    """Make, look at, stop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(self) -> Response:
        """``POST /v1/instances/bulk``"""
        wanted = _read(await body_of(request))
        if wanted.dry_run:
            return respond(Reply(200, _encode(await self._engine.bulk.preview(wanted))))
        return respond(Reply(202, _encode(await self._engine.bulk.create(wanted))))

    async def list(self) -> Response:
        """``GET /v1/bulk``"""
        found = await self._engine.bulk.list(
            query_text(request, "cursor"), query_number(request, "limit", DEFAULT_LIMIT)
        )
        return respond(Reply(200, _encode(found)))

    async def get(self, id: str) -> Response:
        """``GET /v1/bulk/{id}``"""
        return respond(Reply(200, _encode(await self._engine.bulk.get(id))))

    async def stop(self, id: str) -> Response:
        """``POST /v1/bulk/{id}/stop``"""
        return respond(Reply(200, _encode(await self._engine.bulk.stop(id))))
