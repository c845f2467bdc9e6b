"""The route on jobs by state: those that failed come by pages, too."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.rest.exchange import Reply
from penstock.rest.reading import query_number, query_slice, query_text, respond

_encode = msgspec.json.Encoder().encode


class TaskRoutes:
    """One route."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list_jobs(self) -> Response:
        """``GET /v1/jobs``: those that failed for good, or of another status"""
        status = query_text(request, "status") or "FAILED"
        job_type = query_text(request, "jobType")
        if status != "FAILED":
            cursor, limit = query_slice(request) or (None, 0)
            found = await self._engine.open_work.jobs(status, job_type, cursor, limit)
            return respond(Reply(200, _encode(found)))
        if (part := query_slice(request)) is not None:
            return respond(Reply(200, _encode(await self._engine.jobs.failed_slice(*part, job_type))))
        page = await self._engine.jobs.failed(
            query_number(request, "page"), query_number(request, "pageSize"), job_type
        )
        return respond(Reply(200, _encode(page)))
