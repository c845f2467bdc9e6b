"""The document of the interface, and a page that shows it and loads nothing from other hosts."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from quart import Blueprint, Response

from penstock.rest.exchange import Headers, Reply
from penstock.rest.openapi import openapi_json
from penstock.rest.reading import respond

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
_PAGE_HEADERS: Final[Headers] = ((b"content-security-policy", _POLICY.encode()),)


@cache
def _page() -> bytes:
    return files("penstock.rest").joinpath("docs.html").read_bytes()


class DocsRoutes:
    """Both answers are made at the first request and kept."""

    def blueprint(self) -> Blueprint:
        """The routes."""
        blueprint = Blueprint("docs", __name__)
        blueprint.add_url_rule("/openapi.json", view_func=self.document, methods=["GET"])
        blueprint.add_url_rule("/docs", view_func=self.page, methods=["GET"])
        return blueprint

    async def document(self) -> Response:
        """``GET /openapi.json``"""
        return respond(Reply(200, openapi_json()))

    async def page(self) -> Response:
        """``GET /docs``"""
        return respond(Reply(200, _page(), b"text/html; charset=utf-8", _PAGE_HEADERS))
