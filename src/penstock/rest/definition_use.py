"""Routes for people on definitions: versions, where instances stand in one, whom a new one would not fit."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_number, query_text, respond

_encode = msgspec.json.Encoder().encode


class DefinitionUseRoutes:
    """They read, and change nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def activity(self) -> Response:
        """``GET /v1/definition-activity``"""
        found = await self._engine.definition_use.activity(
            query_text(request, "keyword"), query_text(request, "cursor"), query_number(request, "limit", 50)
        )
        return respond(Reply(200, _encode(found)))

    async def versions(self, id: str) -> Response:
        """``GET /v1/definitions/{id}/versions``"""
        found = await self._engine.definition_use.versions(
            id, query_text(request, "cursor"), query_number(request, "limit", 50)
        )
        return respond(Reply(200, _encode(found)))

    async def counts(self, id: str) -> Response:
        """``GET /v1/definitions/{id}/counts``"""
        found = await self._engine.definition_use.counts(
            id, query_text(request, "cursor"), query_number(request, "limit", 20)
        )
        return respond(Reply(200, _encode(found)))

    async def tokens(self, id: str) -> Response:
        """``GET /v1/definitions/{id}/tokens``"""
        found = await self._engine.definition_use.tokens(id, query_number(request, "version"))
        return respond(Reply(200, _encode(found)))

    async def variables(self, id: str) -> Response:
        """``GET /v1/definitions/{id}/variables``"""
        return respond(Reply(200, _encode(await self._engine.definition_use.variables(id))))

    async def impact(self, id: str) -> Response:
        """``POST /v1/definitions/{id}/impact``"""
        body = await body_of(request)
        version = query_number(request, "version")
        definition = await self._engine.definitions.parse(lambda: body, len(body)) if body else None
        return respond(Reply(200, _encode(await self._engine.impact.of(id, version, definition))))
