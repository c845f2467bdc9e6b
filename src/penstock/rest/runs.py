"""Routes on runs of durable workflows: their journal, messages to them."""

from __future__ import annotations

from typing import Final

from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest
from penstock.loop.offload import run_sized
from penstock.rest.codec import MessageBody, ResolveBody, decoder, given_value
from penstock.rest.exchange import NO_CONTENT, text_header
from penstock.rest.reading import body_of, respond
from penstock.rest.starts import IDEMPOTENCY_KEY

MESSAGE_NAME_MAX_CHARS: Final = 256

_read_message = decoder(MessageBody)
_read_resolve = decoder(ResolveBody)


class RunRoutes:
    """Journal, messages. The rest of a run is an instance's: read, list, history, cancel."""

    def __init__(self, engine: Engine) -> None:
        self._runs, self._limits = engine.runs, engine.limits

    async def send(self, id: str) -> Response:
        """``POST /v1/instances/{id}/messages``"""
        body = await body_of(request)

        def read() -> tuple[str, bytes, bool]:
            message = _read_message(body)
            if not message.name:
                raise BadRequest("name: is required")
            name = check_text(message.name, "name", MESSAGE_NAME_MAX_CHARS)
            return name, given_value(message.payload, self._limits, "payload") or b"null", message.force

        name, payload, force = await run_sized(len(body), read)
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        await self._runs.send(id, name, payload, dedup=text_header(headers, IDEMPOTENCY_KEY), force=force)
        return respond(NO_CONTENT)

    async def resolve_message(self, id: str, position: str) -> Response:
        """``POST /v1/instances/{id}/messages/{position}``"""
        body = await body_of(request)

        def read() -> tuple[ResolveBody, bytes | None]:
            asked = _read_resolve(body)
            if asked.drop == bool(bytes(asked.payload)):
                raise BadRequest("drop, payload: give one of them")
            return asked, None if asked.drop else given_value(asked.payload, self._limits, "payload") or b"null"

        asked, payload = await run_sized(len(body), read)
        await self._runs.resolve_message(id, position, payload, note=asked.note, force=asked.force)
        return respond(NO_CONTENT)
