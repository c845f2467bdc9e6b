"""Routes of the inbox: open user tasks, how many there are, claim one, give it back."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.engine.instances.inbox import UserTask
from penstock.errors import BadRequest
from penstock.rest.codec import optional_decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_flag, query_number, query_text, respond
from penstock.wire.page import Page


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
        return respond(Reply(200, _encode(await self._found())))

    async def _found(self) -> Page[UserTask]:
        cursor, limit = query_text(request, "cursor"), query_number(request, "limit", 50)
        job_type, definition = query_text(request, "jobType"), query_text(request, "definitionId")
        assignee, unclaimed = query_text(request, "assignee"), query_flag(request, "unclaimed")
        instance, execution = query_text(request, "instanceId"), query_text(request, "executionId")
        given = [name for name in (job_type, definition, assignee, instance, execution) if name is not None]
        if (instance is not None or execution is not None) and (unclaimed or len(given) > 1):
            raise BadRequest("instanceId, executionId: can't be given with each other, or with another filter")
        inbox = self._engine.inbox
        if instance is not None:
            return await inbox.list_of_instance(instance, cursor, limit)
        if execution is not None:
            return await inbox.list_execution(execution)
        return await inbox.list_open(job_type, definition, assignee, unclaimed=unclaimed, cursor=cursor, limit=limit)

    async def count(self) -> Response:
        """``GET /v1/tasks/count``"""
        return respond(Reply(200, _encode(await self._engine.inbox.count())))

    async def claim(self, id: str, step_id: str) -> Response:
        """``POST /v1/tasks/{id}/{stepId}/claim``"""
        body = _read(await body_of(request))
        found = await self._engine.inbox.claim(id, step_id, body.by, body.execution_id)
        return respond(Reply(200, _encode(found)))

    async def release(self, id: str, step_id: str) -> Response:
        """``POST /v1/tasks/{id}/{stepId}/release``"""
        body = _read(await body_of(request))
        found = await self._engine.inbox.release(id, step_id, body.by, body.execution_id)
        return respond(Reply(200, _encode(found)))
