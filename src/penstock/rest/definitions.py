"""Routes on definitions: upload, list, get. Parses what is uploaded, in a thread when it is large."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.core.graph.definition import Definition
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.engine import Engine
from penstock.errors import NotFound, UnsupportedFormat
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_number, query_slice, query_text, respond

_encode = msgspec.json.Encoder().encode


class DefinitionRoutes:
    """Upload, list, read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def upload(self) -> Response:
        """``POST /v1/definitions``"""
        if "xml" in request.headers.get("Content-Type", "").partition(";")[0].lower():
            raise UnsupportedFormat("definitions are read as JSON, not as XML")
        summary = await self._engine.definitions.upload(await self._parse(await body_of(request)))
        return respond(Reply(201, _encode(summary)))

    async def _parse(self, body: bytes) -> Definition:
        return await self._engine.definitions.parse(lambda: body, len(body))

    async def list(self) -> Response:
        """``GET /v1/definitions``"""
        keyword = query_text(request, "keyword")
        if (part := query_slice(request)) is not None:
            return respond(Reply(200, _encode(await self._engine.definitions.list_slice(keyword, *part))))
        page = await self._engine.definitions.list(
            keyword, query_number(request, "page"), query_number(request, "pageSize")
        )
        return respond(Reply(200, _encode(page)))

    async def get(self, id: str) -> Response:
        """``GET /v1/definitions/{id}``: the active version"""
        return _document(await self._engine.definitions.get(id))

    async def get_version(self, id: str, number: str) -> Response:
        """``GET /v1/definitions/{id}/versions/{n}``"""
        return _document(await self._engine.definitions.get(id, _version(id, number)))


def _version(id: str, number: str) -> int:
    if not (number.isascii() and number.isdigit() and len(number) <= 10 and int(number) > 0):
        raise NotFound(f"definition '{id[:256]}' version '{number[:20]}' is unknown")
    return int(number)


def _document(stored: LoadedDefinition) -> Response:
    """The definition as it was given, with its version: uploading it again gives the same version again."""
    content = stored.definition.content
    assert content.endswith("}")
    return respond(Reply(200, f'{content[:-1]},"version":{stored.version}}}'.encode()))
