"""Routes of queues: policies that limit the jobs of some types."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.rest.codec import decoder
from penstock.rest.exchange import NO_CONTENT, Reply
from penstock.rest.reading import body_of, query_number, query_text, respond
from penstock.wire.queue import Queue, QueuePolicy

DEFAULT_LIMIT = 50
_read = decoder(QueuePolicy)
_encode = msgspec.json.Encoder().encode


class QueueRoutes:
    """Look, set, pause, forget."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self) -> Response:
        """``GET /v1/queues``"""
        limit = query_number(request, "limit", DEFAULT_LIMIT)
        return respond(Reply(200, _encode(await self._engine.queues.list(query_text(request, "cursor"), limit))))

    async def get(self, id: str) -> Response:
        """``GET /v1/queues/{id}``"""
        return _answer(await self._engine.queues.get(id))

    async def put(self, id: str) -> Response:
        """``PUT /v1/queues/{id}``"""
        return _answer(await self._engine.queues.put(id, _read(await body_of(request))))

    async def delete(self, id: str) -> Response:
        """``DELETE /v1/queues/{id}``"""
        await self._engine.queues.delete(id)
        return respond(NO_CONTENT)

    async def pause(self, id: str) -> Response:
        """``POST /v1/queues/{id}/pause``"""
        return _answer(await self._engine.queues.pause(id, paused=True))

    async def resume(self, id: str) -> Response:
        """``POST /v1/queues/{id}/resume``"""
        return _answer(await self._engine.queues.pause(id, paused=False))


def _answer(queue: Queue) -> Response:
    return respond(Reply(200, _encode(queue)))
