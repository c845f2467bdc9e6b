"""Routes of batches: start many as one, follow them, collect what they gave, cancel."""

from __future__ import annotations

from typing import Final

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.instances.batches import BatchStart
from penstock.engine.requests.payload import check_variables
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_sized
from penstock.rest.codec import RequestBody, decoder, optional_decoder
from penstock.rest.exchange import Reply, text_header
from penstock.rest.reading import body_of, query_number, query_text, respond
from penstock.rest.starts import IDEMPOTENCY_KEY
from penstock.wire.model import StartRequest

DEFAULT_LIMIT: Final = 50


class BatchBody(RequestBody):
    """``items``: starts, 1 to `start_batch_max_items`. ``on_complete``: the id of a definition that is started when all
    have ended."""

    items: list[StartRequest]
    on_complete: str | None = None
    note: str | None = None


class BatchCancelBody(RequestBody):
    """``reason``: shown with the batch, and with what is cancelled."""

    reason: str | None = None


_read_batch = decoder(BatchBody)
_read_cancel = optional_decoder(BatchCancelBody)
_encode = msgspec.json.Encoder().encode


class BatchRoutes:
    """What there is to do with batches."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(self) -> Response:
        """``POST /v1/batches``"""
        body = await body_of(request)
        headers: dict[bytes, bytes] = dict(request.scope["headers"])
        key = text_header(headers, IDEMPOTENCY_KEY)
        wanted = await run_sized(len(body), lambda: self._read(body, key))
        return respond(Reply(202, _encode(await self._engine.batches.create(wanted))))

    async def list(self) -> Response:
        """``GET /v1/batches``"""
        found = await self._engine.batches.list(
            query_text(request, "cursor"), query_number(request, "limit", DEFAULT_LIMIT)
        )
        return respond(Reply(200, _encode(found)))

    async def get(self, id: str) -> Response:
        """``GET /v1/batches/{id}``"""
        found = await self._engine.batches.get(id, query_number(request, "waitSeconds"))
        return respond(Reply(200, _encode(found)))

    async def results(self, id: str) -> Response:
        """``GET /v1/batches/{id}/results``"""
        found = await self._engine.batches.results(
            id,
            query_text(request, "state"),
            query_text(request, "cursor"),
            query_number(request, "limit", DEFAULT_LIMIT),
        )
        return respond(Reply(200, _encode(found)))

    async def cancel(self, id: str) -> Response:
        """``POST /v1/batches/{id}/cancel``"""
        body = _read_cancel(await body_of(request))
        return respond(Reply(202, _encode(await self._engine.batches.cancel(id, body.reason))))

    def _read(self, body: bytes, key: str | None) -> BatchStart:
        read = _read_batch(body)
        return BatchStart(
            [self._item(place, item) for place, item in enumerate(read.items)], read.on_complete or None,
            read.note or None, key,
        )  # fmt: skip

    def _item(self, place: int, item: StartRequest) -> StartRequest:
        given = None if item.variables is None else bytes(item.variables)
        try:
            variables = check_variables(given, self._engine.limits)
        except (BadRequest, PayloadTooLarge) as error:
            raise type(error)(f"items[{place}].{error.reason}") from None
        return msgspec.structs.replace(item, variables=variables, instance_key=item.instance_key or None)
