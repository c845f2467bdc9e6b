"""The document of the interface, and a page that shows it and loads nothing from other hosts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Final

from quart import Response

from penstock.rest.exchange import Headers, Reply
from penstock.rest.reading import respond

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
_PAGE_HEADERS: Final[Headers] = ((b"content-security-policy", _POLICY.encode()),)


@cache
def _page() -> bytes:
    return files("penstock.rest").joinpath("docs.html").read_bytes()


class DocsRoutes:
    """Both answers are made at the first request and kept. ``document`` is made from the table of routes, which has
    these two."""

    def __init__(self, document: Callable[[], bytes]) -> None:
        self._document = document

    async def document(self) -> Response:
        """``GET /openapi.json``"""
        return respond(Reply(200, self._document()))

    async def page(self) -> Response:
        """``GET /docs``"""
        return respond(Reply(200, _page(), b"text/html; charset=utf-8", _PAGE_HEADERS))
