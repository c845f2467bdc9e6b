"""Routes of the inbox: open user tasks, how many there are, claim one, give it back."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.rest.codec import optional_decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, path_text, query_flag, query_number, query_text, respond


class ClaimBody(msgspec.Struct, rename="camel", forbid_unknown_fields=False):
    """Who takes a task, or gives it back. ``execution_id``: of several open executions of the step this one, not the
    oldest."""

    by: str | None = None
    execution_id: str | None = None


_read = optional_decoder(ClaimBody)
_encode = msgspec.json.Encoder().encode


class InboxRoutes:
    """List, count, claim, release."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self) -> Response:
        """``GET /v1/tasks``"""
        found = await self._engine.inbox.list_open(
            query_text(request, "jobType"),
            query_text(request, "definitionId"),
            query_text(request, "assignee"),
            unclaimed=query_flag(request, "unclaimed"),
            cursor=query_text(request, "cursor"),
            limit=query_number(request, "limit", 50),
        )
        return respond(Reply(200, _encode(found)))

    async def count(self) -> Response:
        """``GET /v1/tasks/count``"""
        return respond(Reply(200, _encode(await self._engine.inbox.count())))

    async def claim(self, id: str, step_id: str) -> Response:
        """``POST /v1/tasks/{id}/{stepId}/claim``"""
        body = _read(await body_of(request))
        found = await self._engine.inbox.claim(id, path_text(step_id), body.by, body.execution_id)
        return respond(Reply(200, _encode(found)))

    async def release(self, id: str, step_id: str) -> Response:
        """``POST /v1/tasks/{id}/{stepId}/release``"""
        body = _read(await body_of(request))
        found = await self._engine.inbox.release(id, path_text(step_id), body.by, body.execution_id)
        return respond(Reply(200, _encode(found)))
