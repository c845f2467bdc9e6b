"""Web pages that use the engine through somebody's browser: which may, and by which names it may be addressed.

A browser sends what any page asks for to an engine on this machine. Without authentication nothing else would stop the
page: so its `Origin` has to be the engine's own or one that was listed. A name that a page has bent to 127.0.0.1 (DNS
rebinding) makes the page's origin the engine's own: so on loopback only known names are answered. With authentication
a page has no token; but what a browser would prove for any page (its address, its certificate) counts for own pages
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.settings import Settings, is_loopback

_LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SEEN_MAX_ITEMS: Final = 1_000


class Pages:
    """The rules of one engine."""

    def __init__(self, settings: Settings) -> None:
        self._checked = not settings.authentication
        self._any_may_read = "*" in settings.allowed_origins
        self._origins = frozenset(origin.lower().encode() for origin in settings.allowed_origins)
        local = is_loopback(settings.bind_address)
        self._local = local
        names = {*settings.allowed_hosts, *((*_LOCAL, settings.bind_address) if local else ())}
        self._hosts = frozenset(name.lower().encode() for name in names)
        self._seen: set[bytes] = set()

    def refusal(self, method: str, headers: Mapping[bytes, bytes], *, probe: bool = False) -> str | None:
        """Why a request gets no answer; None when it may pass. ``probe``: it asks for the engine's health, for which
        orchestrators come by address."""
        host = headers.get(b"host")
        if host is not None and host not in self._seen:
            if self._hosts and _name_of(host) not in self._hosts:
                if self._local or not probe:
                    return "this engine does not answer to that Host; allowed_hosts (WE_ALLOWED_HOSTS) lists more names"
            elif len(self._seen) < _SEEN_MAX_ITEMS:
                self._seen.add(host)
        if self._checked and not self.is_own(headers) and not (self._any_may_read and method in _READS):
            return "a web page of another origin may not use this engine; cors_origins (WE_CORS_ORIGINS) lists more"
        return None

    def pass_at_once(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether there is nothing to look at: no browser, and a Host that passed before."""
        return headers.get(b"host") in self._seen and b"origin" not in headers and b"sec-fetch-site" not in headers

    def is_own(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether no page asks for this, or one of the engine's own origin or of those that were listed by
        name."""
        origin = headers.get(b"origin")
        if origin is None:
            return headers.get(b"sec-fetch-site") != b"cross-site"
        origin = origin.lower()
        return origin in self._origins or is_at(origin, headers.get(b"host", b"").lower())


def is_at(origin: bytes, host: bytes) -> bool:
    """Return whether an origin is that of pages from this host."""
    scheme, separator, authority = origin.partition(b"://")
    if not separator or not authority:
        return False  # `null`: a page without an origin of its own
    port = {b"http": b":80", b"https": b":443"}.get(scheme, b"")
    return host in (authority, authority + port)


def _name_of(host: bytes) -> bytes:
    """Without the port."""
    name, colon, port = host.lower().rpartition(b":")
    return name if colon and port.isdigit() and not name.endswith(b":") else host.lower()
