"""HTTP servers for ASGI applications on Trio: our own for HTTP/1.1, hypercorn for HTTP/2, one interface."""

from __future__ import annotations

from penstock.http.interface import AsgiServer, HttpStatistics
from penstock.http.limits import HttpLimits
from penstock.http.listen import ListenError, inherit, listen, reserved_ports
from penstock.http.server import HttpServer

__all__ = [
    "AsgiServer",
    "HttpLimits",
    "HttpServer",
    "HttpStatistics",
    "ListenError",
    "inherit",
    "listen",
    "reserved_ports",
]
