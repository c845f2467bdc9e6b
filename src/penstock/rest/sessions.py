"""Signing in and out at the console: what proves who somebody is becomes a session, and the session a cookie.

The cookie is seen by no script, goes to this host only, and counts for the engine's own pages only (`cookie_of`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec
from quart import Response, request

from penstock.access.gate import Gate
from penstock.access.me import me_of
from penstock.access.sessions import OpenedSession
from penstock.access.sign_in import SignIn
from penstock.errors import BadRequest, Conflict, Forbidden, PenstockError, Unauthenticated
from penstock.rest.codec import RequestBody, decoder
from penstock.rest.exchange import NO_CONTENT, Reply, Scope
from penstock.rest.operation import CONSOLE_HEADER
from penstock.rest.pages import is_at
from penstock.rest.reading import body_of, query_text, respond

CALLBACK: Final = "/v1/sessions/oidc/callback"
HOME: Final = "/console/"
_SECURE: Final = "__Host-penstock"
_PLAIN: Final = "penstock"
"""Over plain HTTP. Where there is TLS the other one counts alone: a page without TLS can't set it."""
_BEGUN: Final = "penstock_sign_in"
_BEGUN_MAX_S: Final = 600
_CODE_MAX_CHARS: Final = 2_048
_ISSUER_MAX_CHARS: Final = 1_024
_READS: Final = frozenset({"GET", "HEAD"})
_HEADER: Final = CONSOLE_HEADER.lower().encode()


class TokenBody(RequestBody):
    token: str | None = None


class PlaceBody(RequestBody):
    place: str | None = None


class SignInWays(msgspec.Struct, frozen=True, omit_defaults=True):
    """How people can sign in: with a token, if there is authentication; ``oidc`` is the issuer where they also can."""

    token: bool
    oidc: str | None = None


class SignInBegun(msgspec.Struct, frozen=True):
    """Where the browser has to go."""

    url: str


_read_token = decoder(TokenBody)
_read_place = decoder(PlaceBody)
_encode = msgspec.json.Encoder().encode


def cookie_of(method: str, headers: Mapping[bytes, bytes], cookies: Iterable[bytes], *, own: bool) -> bytes:
    """The session's cookie where it counts; empty where there is none. Raises Forbidden for a call that changes
    something and may be a foreign page's: the engine's own pages send their origin, and a header that others can't."""
    found = _cookies(cookies)
    cookie = found.get(_SECURE.encode()) or found.get(_PLAIN.encode()) or b""
    if not cookie or not own:
        return b""
    if method not in _READS and not (_from_own_page(headers) and headers.get(_HEADER)):
        raise Forbidden(f"with a session's cookie this needs the engine's own Origin and the header {CONSOLE_HEADER}")
    return cookie


def has_session(cookies: Iterable[bytes]) -> bool:
    """Return whether a call with these cookie headers says that it is of a session, whatever that is worth."""
    found = _cookies(cookies)
    return _SECURE.encode() in found or _PLAIN.encode() in found


class SessionRoutes:
    """Sign in, sign out."""

    def __init__(self, gate: Gate | None) -> None:
        """Without a gate nobody has to sign in, or can."""
        self._maybe_gate = gate

    @property
    def _gate(self) -> Gate:
        if self._maybe_gate is None:
            raise Conflict("authentication is off: there is nobody to sign in")
        return self._maybe_gate

    async def ways(self) -> Response:
        """``GET /v1/sessions/ways``"""
        if self._maybe_gate is None:
            return respond(Reply(200, _encode(SignInWays(False))))
        sign_in = self._gate.sign_in
        return respond(Reply(200, _encode(SignInWays(True, None if sign_in is None else sign_in.issuer_name))))

    async def create(self) -> Response:
        """``POST /v1/sessions``"""
        token = (_read_token(await body_of(request)).token or "").strip()
        if not token:
            raise BadRequest("token: is needed")
        _check_page()
        proved = await self._gate.identify([b"Bearer " + token.encode()], None, ambient=False)
        opened = await self._gate.sessions.open(proved)
        return respond(Reply(201, _encode(me_of(opened.identity)), headers=(_set(opened, secure=_is_secure()),)))

    async def end(self) -> Response:
        """``POST /v1/sessions/end``"""
        _check_page()
        scope = cast("Scope", request.scope)
        headers = dict(scope["headers"])
        cookies = [value for name, value in scope["headers"] if name == b"cookie"]
        if cookie := cookie_of("POST", headers, cookies, own=_from_own_page(headers)):
            await self._gate.sessions.end(cookie)
        gone = tuple(_cookie(name, "", 0, secure=name == _SECURE) for name in (_SECURE, _PLAIN))
        return respond(NO_CONTENT._replace(headers=gone))

    async def begin(self) -> Response:
        """``POST /v1/sessions/oidc``"""
        place = _read_place(await body_of(request)).place or HOME
        sign_in = self._sign_in()
        origin = _check_page()
        if origin is None:
            raise BadRequest("the header Origin is needed: it tells where the issuer has to send the browser")
        begun = await sign_in.begin(origin + CALLBACK, place, _address())
        kept = _cookie(_BEGUN, begun.kept, _BEGUN_MAX_S, secure=_is_secure(), path=CALLBACK)
        return respond(Reply(200, _encode(SignInBegun(begun.url)), headers=(kept,)))

    async def finish(self) -> Response:
        """``GET /v1/sessions/oidc/callback``: where the issuer sends the browser."""
        sign_in = self._sign_in()
        cookies = _cookies([request.headers.get("cookie", "").encode()])
        kept = cookies.get(_BEGUN.encode(), b"").decode("ascii", "replace")
        secure = request.scheme == "https" or SignIn.was_secure(kept)
        headers = [_cookie(_BEGUN, "", 0, secure=secure, path=CALLBACK)]
        try:
            finished = await sign_in.finish(
                kept,
                query_text(request, "state", _CODE_MAX_CHARS) or "",
                query_text(request, "code", _CODE_MAX_CHARS) or "",
                query_text(request, "iss", _ISSUER_MAX_CHARS),
                _address(),
            )
            opened = await self._gate.sessions.open(finished.identity)
        except (Unauthenticated, BadRequest):
            place = f"{HOME}?signIn=refused"
        except Conflict:
            place = f"{HOME}?signIn=full"
        except PenstockError:
            place = f"{HOME}?signIn=away"
        else:
            place = finished.place
            headers.append(_set(opened, secure=secure))
        return respond(Reply(303, b"", b"text/plain", (*headers, (b"location", place.encode()))))

    def _sign_in(self) -> SignIn:
        if self._gate.sign_in is None:
            raise Conflict("this engine has no issuer to sign in at: oidc_client_id")
        return self._gate.sign_in


def _from_own_page(headers: Mapping[bytes, bytes]) -> bool:
    return is_at(headers.get(b"origin", b"").lower(), headers.get(b"host", b"").lower())


def _check_page() -> str | None:
    """The origin of the page that asks, if one does. Raises BadRequest for a page that is not the engine's own: it
    would sign people in as somebody else."""
    headers = dict(cast("Scope", request.scope)["headers"])
    if not headers.get(_HEADER):
        raise BadRequest(f"the header {CONSOLE_HEADER} is needed")
    origin = headers.get(b"origin")
    cross_site = headers.get(b"sec-fetch-site") == b"cross-site"
    if cross_site or (origin is not None and not _from_own_page(headers)):
        raise BadRequest("Origin: only the engine's own pages sign people in")
    return None if origin is None else origin.decode("ascii", "replace")


def _address() -> str | None:
    """Return the client's."""
    client = cast("Scope", request.scope).get("client")
    return None if client is None else client[0]


def _is_secure() -> bool:
    """Return whether the browser speaks TLS, to us or to a proxy."""
    return request.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")


def _set(opened: OpenedSession, *, secure: bool) -> tuple[bytes, bytes]:
    left_s = max(1, int(opened.identity.expires_at - time.time()))
    return _cookie(_SECURE if secure else _PLAIN, opened.cookie, left_s, secure=secure)


def _cookie(name: str, value: str, max_age_s: int, *, secure: bool, path: str = "/") -> tuple[bytes, bytes]:
    more = "; Secure" if secure else ""
    text = f"{name}={value}; Path={path}; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{more}"
    return b"set-cookie", text.encode()


def _cookies(lines: Iterable[bytes]) -> dict[bytes, bytes]:
    """By name; of a repeated one the first, which is the most special one."""
    found: dict[bytes, bytes] = {}
    for line in lines:
        for part in line.split(b";"):
            name, separator, value = part.strip().partition(b"=")
            if separator:
                found.setdefault(name, value)
    return found
