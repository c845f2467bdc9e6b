"""The console's files at `/console/`: read once, kept in memory, sent compressed to those who take it.

They hold nobody's data, so they need no token; what the page then asks of `/v1` does. Must not read anything but the
package's own folder: a request names a file of the list made at the start, or gets the page.
"""

from __future__ import annotations

import base64
import gzip
import mimetypes
import secrets
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from penstock.loop.offload import INLINE_MAX_BYTES, run_long
from penstock.rest.exchange import Headers, Reply

PATH: Final = "/console/"
_PAGE: Final = "index.html"
_NONCE_PLACE: Final = b'name="csp-nonce" content=""'
_ALWAYS: Final[Headers] = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_FOREVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")
"""Names in `assets` and `vendor` change with their content."""
_HASHED: Final = ("assets/", "vendor/")
_MISSING: Final = b"The console is not built here: `make console` does that.\n"
_COMPRESSED_ALREADY: Final = (".woff2", ".png")
_TYPES: Final = {".js": b"text/javascript; charset=utf-8", ".woff2": b"font/woff2"}


def policy(nonce: str) -> bytes:
    """What the page may load: its own files, from here. An editor puts its styles in under the nonce."""
    own = "script-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; worker-src 'self'"
    none = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; {own}; style-src 'self' 'nonce-{nonce}'; {none}".encode()


class ConsoleFiles:
    """Answers for everything below `/console/`. A few megabytes once they were asked for."""

    def __init__(self) -> None:
        self._folder = files("penstock.console").joinpath("static")
        self._names: frozenset[str] | None = None
        self._plain: dict[str, bytes] = {}
        self._packed: dict[str, bytes] = {}

    async def answer(self, method: str, path: str, headers: dict[bytes, bytes]) -> Reply:
        """For a path that begins with `PATH`, or is that without the last slash."""
        if method not in ("GET", "HEAD"):
            return Reply(405, b"", b"text/plain", ((b"allow", b"GET, HEAD"),))
        if not path.startswith(PATH):
            return Reply(307, b"", b"text/plain", ((b"location", PATH.encode()),))
        if self._names is None:
            self._names = await run_long(lambda: frozenset(_names_in(self._folder, "")))
        name = path[len(PATH) :]
        if name not in self._names or name == _PAGE:
            if name.startswith(_HASHED):
                return Reply(
                    404, b"", b"text/plain", _ALWAYS
                )  # a page of an older engine: not to be taken for a script
            reply = await self._page()
        else:
            reply = await self._file(name, headers)
        return reply if method == "GET" else _without_body(reply)

    async def _page(self) -> Reply:
        assert self._names is not None
        if _PAGE not in self._names:
            return Reply(404, _MISSING, b"text/plain; charset=utf-8", _ALWAYS)
        nonce = base64.b64encode(secrets.token_bytes(16)).decode()
        page = (await self._read(_PAGE)).replace(_NONCE_PLACE, b'name="csp-nonce" content="%s"' % nonce.encode())
        more = ((b"content-security-policy", policy(nonce)), (b"cache-control", b"no-store"))
        return Reply(200, page, b"text/html; charset=utf-8", (*_ALWAYS, *more))

    async def _file(self, name: str, headers: dict[bytes, bytes]) -> Reply:
        suffix = name[name.rfind(".") :]
        kind = _TYPES.get(suffix) or (mimetypes.guess_type(name)[0] or "application/octet-stream").encode()
        more: Headers = (*_ALWAYS, (b"vary", b"accept-encoding"))
        more = (*more, _FOREVER if name.startswith(_HASHED) else (b"cache-control", b"no-cache"))
        body = await self._read(name)
        if len(body) < INLINE_MAX_BYTES or suffix in _COMPRESSED_ALREADY or not _takes_gzip(headers):
            return Reply(200, body, kind, more)
        if name not in self._packed:
            self._packed[name] = await run_long(lambda: gzip.compress(body, 6, mtime=0))
        return Reply(200, self._packed[name], kind, (*more, (b"content-encoding", b"gzip")))

    async def _read(self, name: str) -> bytes:
        if name not in self._plain:
            self._plain[name] = await run_long(self._folder.joinpath(name).read_bytes)
        return self._plain[name]


def prefers_page(headers: dict[bytes, bytes]) -> bool:
    """Return whether somebody's browser asks, and no program."""
    return b"text/html" in headers.get(b"accept", b"")


def _takes_gzip(headers: dict[bytes, bytes]) -> bool:
    codings = headers.get(b"accept-encoding", b"").lower().replace(b" ", b"").split(b",")
    return any(
        coding == b"gzip" or (coding.startswith(b"gzip;q=") and coding[7:] not in (b"0", b"0.0")) for coding in codings
    )


def _without_body(reply: Reply) -> Reply:
    length = (b"content-length", b"%d" % len(reply.body or b""))
    return Reply(reply.status, None, headers=(*reply.headers, (b"content-type", reply.content_type), length))


def _names_in(folder: Traversable, before: str) -> list[str]:
    if not folder.is_dir():
        return []
    names: list[str] = []
    for entry in folder.iterdir():
        name = before + entry.name
        names += _names_in(entry, name + "/") if entry.is_dir() else [name]
    return names
