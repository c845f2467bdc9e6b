"""HTTP servers for ASGI applications on Trio: our own for HTTP/1.1, hypercorn for HTTP/2 and TLS, one interface."""

from __future__ import annotations

from penstock.http.interface import Server, Statistics
from penstock.http.limits import Limits
from penstock.http.listen import ListenError, inherit, listen, reserved_ports
from penstock.http.server import HttpServer

__all__ = [
    "HttpServer",
    "Limits",
    "ListenError",
    "Server",
    "Statistics",
    "inherit",
    "listen",
    "reserved_ports",
]
