"""Calls from browsers of other origins: which headers an answer needs, and the answer to a preflight (Fetch, CORS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.rest.exchange import Headers, Reply

METHODS: Final = b"GET, POST, PUT, DELETE, OPTIONS"
PREFLIGHT_MAX_AGE_SECONDS: Final = 600
_VARY: Final = (b"vary", b"Origin")


class Cors:
    """The rules of one engine. ``*`` allows any origin, no origins at all allow none."""

    def __init__(self, origins: Sequence[str], allowed_headers: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._preflight: Headers = (
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", ", ".join(allowed_headers).encode()),
            (b"access-control-max-age", b"%d" % PREFLIGHT_MAX_AGE_SECONDS),
        )

    @property
    def unasked(self) -> Headers:
        """For an answer to a request that was not read as far as its `Origin`."""
        return ((b"access-control-allow-origin", b"*"),) if self._any else ()

    def headers(self, origin: bytes | None) -> Headers:
        """For any answer to a request with this `Origin`."""
        if origin is None:
            return ()
        if self._any:
            return ((b"access-control-allow-origin", b"*"),)
        if origin in self._origins:
            return ((b"access-control-allow-origin", origin), _VARY)
        return (_VARY,)

    def preflight(self, origin: bytes) -> Reply:
        """The answer to a preflight, without what `headers` gives. One from another origin is told nothing, and its
        browser keeps the call to itself."""
        allowed = self._any or origin in self._origins
        return Reply(204, headers=self._preflight if allowed else ())
