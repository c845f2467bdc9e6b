"""The document of the interface, and a page that shows it without anything from another host."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response

from penstock.rest.exchange import Reply
from penstock.rest.openapi import openapi_document
from penstock.rest.reading import respond


class DocsRoutes:
    """``/openapi.json`` and ``/docs``. Both are made at the first request."""

    def blueprint(self) -> Blueprint:
        blueprint = Blueprint("docs", __name__)
        return blueprint
