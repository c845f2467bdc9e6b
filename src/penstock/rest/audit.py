"""Route of the audit trail of everything."""

from __future__ import annotations

import msgspec
from quart import Response, request

from penstock.engine.engine import Engine
from penstock.rest.exchange import Reply
from penstock.rest.reading import query_number, query_text, query_time, respond

DEFAULT_LIMIT = 50
_encode = msgspec.json.Encoder().encode


class AuditRoutes:
    """Read it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self) -> Response:
        """``GET /v1/audit``"""
        found = await self._engine.audit_trail.list(
            query_text(request, "cursor"),
            query_number(request, "limit", DEFAULT_LIMIT),
            kind=query_text(request, "kind"),
            actor=query_text(request, "actor"),
            contains=query_text(request, "contains"),
            since=query_time(request, "since"),
            until=query_time(request, "until"),
        )
        return respond(Reply(200, _encode(found)))
