"""Routes on instances, but for starting them (`starts`)."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from penstock.engine.engine import Engine
from penstock.engine.instances import AUDIT_PAGE_MAX
from penstock.engine.paging import BUSINESS_KEY_MAX_CHARS
from penstock.rest.codec import CancelBody, optional_decoder
from penstock.rest.exchange import Reply
from penstock.rest.reading import body_of, query_number, query_slice, query_text, respond

_read_cancel = optional_decoder(CancelBody)
_encode = msgspec.json.Encoder().encode


class InstanceRoutes:
    """Read, list, history, audit, cancel, retry."""

    def __init__(self, engine: Engine) -> None:
        self._instances = engine.instances

    def blueprint(self) -> Blueprint:
        """The routes."""
        blueprint = Blueprint("instances", __name__)
        blueprint.add_url_rule("/v1/instances", view_func=self.list, methods=["GET"])
        blueprint.add_url_rule("/v1/instances/<id>", view_func=self.get, methods=["GET"])
        blueprint.add_url_rule("/v1/instances/<id>/history", view_func=self.history, methods=["GET"])
        blueprint.add_url_rule("/v1/instances/<id>/audit", view_func=self.audit, methods=["GET"])
        blueprint.add_url_rule("/v1/instances/<id>/cancel", view_func=self.cancel, methods=["POST"])
        blueprint.add_url_rule("/v1/instances/<id>/retry", view_func=self.retry, methods=["POST"])
        return blueprint

    async def list(self) -> Response:
        """``GET /v1/instances``"""
        wanted = (
            query_text(request, "definitionId"),
            query_text(request, "status"),
            query_text(request, "businessKey", BUSINESS_KEY_MAX_CHARS),
        )
        if (part := query_slice(request)) is not None:
            return respond(Reply(200, _encode(await self._instances.list_slice(*wanted, *part))))
        page = await self._instances.list(*wanted, query_number(request, "page"), query_number(request, "pageSize"))
        return respond(Reply(200, _encode(page)))

    async def get(self, id: str) -> Response:
        """``GET /v1/instances/{id}``"""
        return respond(Reply(200, _encode(await self._instances.get(id))))

    async def history(self, id: str) -> Response:
        """``GET /v1/instances/{id}/history``"""
        return respond(Reply(200, b'{"items":%b}' % _encode(await self._instances.history(id))))

    async def audit(self, id: str) -> Response:
        """``GET /v1/instances/{id}/audit``"""
        limit = query_number(request, "limit", AUDIT_PAGE_MAX)
        return respond(
            Reply(
                200,
                b'{"items":%b}' % _encode(await self._instances.audit(id, limit, query_number(request, "after", 0))),
            )
        )

    async def cancel(self, id: str) -> Response:
        """``POST /v1/instances/{id}/cancel``"""
        body = _read_cancel(await body_of(request))
        return respond(Reply(200, _encode(await self._instances.cancel(id, body.reason))))

    async def retry(self, id: str) -> Response:
        """``POST /v1/instances/{id}/retry``"""
        return respond(Reply(200, _encode(await self._instances.retry(id))))
