"""Routes of schedules: make or change one, look at it, pause and resume, start a run now, backfill, preview."""

from __future__ import annotations

from typing import Final

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.engine.schedules.schedule_spec import unknown_field
from penstock.errors import BadRequest
from penstock.rest.codec import RequestBody, decoder, optional_decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_number, query_text, respond
from penstock.wire.schedule import ScheduleSpec

DEFAULT_LIMIT: Final = 50
PREVIEW_DEFAULT: Final = 10


class PauseBody(RequestBody):
    """``note``: why, shown with the schedule."""

    note: str | None = None


class TriggerBody(RequestBody):
    """``overlap``: in place of the schedule's own."""

    overlap: str | None = None


class BackfillBody(RequestBody):
    """A span of the past, both ends counted. ``overlap``: ALLOW (the default), or BUFFER_ALL: one after the other."""

    since: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    overlap: str | None = None


_read_names = decoder(dict[str, msgspec.Raw])
_read_spec = decoder(ScheduleSpec)
_read_pause, _read_trigger = optional_decoder(PauseBody), optional_decoder(TriggerBody)
_read_backfill = decoder(BackfillBody)
_encode = msgspec.json.Encoder().encode


class ScheduleRoutes:
    """What there is to do with schedules."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def put(self, id: str) -> Response:
        """``PUT /v1/schedules/{id}``"""
        spec = _spec(await body_of(request))
        return respond(Reply(200, _encode(await self._engine.schedules.put(id, spec))))

    async def get(self, id: str) -> Response:
        """``GET /v1/schedules/{id}``"""
        return respond(Reply(200, _encode(await self._engine.schedules.get(id))))

    async def list(self) -> Response:
        """``GET /v1/schedules``"""
        found = await self._engine.schedules.list(
            query_text(request, "cursor"), query_number(request, "limit", DEFAULT_LIMIT)
        )
        return respond(Reply(200, _encode(found)))

    async def delete(self, id: str) -> Response:
        """``DELETE /v1/schedules/{id}``"""
        await self._engine.schedules.delete(id)
        return respond(Reply(204))

    async def pause(self, id: str) -> Response:
        """``POST /v1/schedules/{id}/pause``"""
        body = _read_pause(await body_of(request))
        return respond(Reply(200, _encode(await self._engine.schedules.pause(id, body.note))))

    async def resume(self, id: str) -> Response:
        """``POST /v1/schedules/{id}/resume``"""
        return respond(Reply(200, _encode(await self._engine.schedules.resume(id))))

    async def trigger(self, id: str) -> Response:
        """``POST /v1/schedules/{id}/trigger``"""
        body = _read_trigger(await body_of(request))
        return respond(Reply(200, _encode(await self._engine.schedules.trigger(id, body.overlap))))

    async def backfill(self, id: str) -> Response:
        """``POST /v1/schedules/{id}/backfill``"""
        body = _read_backfill(await body_of(request))
        found = await self._engine.schedules.backfill(id, body.since, body.to, body.overlap)
        return respond(Reply(202, _encode(found)))

    async def preview(self) -> Response:
        """``POST /v1/schedules/preview``"""
        id = query_text(request, "id") or ""
        count = query_number(request, "count", PREVIEW_DEFAULT)
        found = await self._engine.schedules.preview(id, _spec(await body_of(request)), count)
        return respond(Reply(200, _encode(found)))


def _spec(body: bytes) -> ScheduleSpec:
    """Raises BadRequest, also for a field that there is not."""
    unknown = unknown_field(_read_names(body))
    if unknown is not None:
        raise BadRequest(f"{check_text(unknown, 'body', NAME_MAX_CHARS)}: is no field of a schedule")
    return _read_spec(body)
