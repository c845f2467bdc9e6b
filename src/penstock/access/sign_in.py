"""Signing in at an OpenID Connect issuer: the authorization code flow with PKCE, whose code the engine exchanges.

What belongs to one sign-in (state, nonce, verifier) is kept by the browser in a cookie that no script reads, so any
engine can finish what another one began, and nobody unknown makes the database write. The issuer's ID token tells who
it is, and is kept nowhere. Must not follow redirects, nor trust the cookie for anything but what its own browser could
do anyway.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import secrets
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlencode

import msgspec

from penstock.access.identity import Identity
from penstock.access.issuer import Issuer, fetch_json
from penstock.access.jwt import JwtVerifier
from penstock.access.limits import SharedRate
from penstock.errors import BadRequest, TooManyRequests, Unauthenticated, Unavailable
from penstock.log.log import RateLimitedLog, get_logger
from penstock.settings import Settings

PLACE_MAX_CHARS: Final = 1_024
CODE_MAX_CHARS: Final = 2_048
SIGN_INS_MAX_PER_S: Final = 50.0
SIGN_INS_MAX_PER_HOST_PER_S: Final = 10.0
_PLACE: Final = re.compile(r"/console/[!-\[\]-~]*")
"""Where the browser goes afterwards: in the console, with no sign in it that browsers read otherwise."""
_BYTES: Final = 32

_troubles: Final = RateLimitedLog(get_logger(__name__), interval_seconds=60)


class BegunSignIn(NamedTuple):
    """``kept`` is for the cookie."""

    url: str
    kept: str


class Finished(NamedTuple):
    """``place`` is where the browser wanted to go."""

    identity: Identity
    place: str


class _Kept(msgspec.Struct, frozen=True):
    """What belongs to one sign-in."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    place: str


class SignIn:
    """At one issuer."""

    def __init__(self, settings: Settings, issuer: Issuer) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self.issuer_name = settings.oidc_issuer
        self._issuer = issuer
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_client_secret
        self._scopes = " ".join(settings.oidc_scopes)
        self._rate = SharedRate(SIGN_INS_MAX_PER_S, SIGN_INS_MAX_PER_HOST_PER_S)
        self._verifier = JwtVerifier(settings, issuer.keys, [self._client_id])

    @staticmethod
    def was_secure(kept_text: str) -> bool:
        """Return whether the sign-in began over TLS."""
        kept = _read_kept(kept_text)
        return kept is not None and kept.redirect_uri.startswith("https://")

    async def begin(self, redirect_uri: str, place: str, address: str | None) -> BegunSignIn:
        """Where to send the browser. Raises BadRequest, and Unavailable when the issuer does not answer."""
        if len(place) > PLACE_MAX_CHARS or not _PLACE.fullmatch(place):
            raise BadRequest("place: must be an address of the console, such as /console/…")
        self._count(address)
        kept = _Kept(_random(), _random(), _random(), redirect_uri, place)
        digest = hashlib.sha256(kept.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "state": kept.state,
            "nonce": kept.nonce,
            "code_challenge": _url_safe(digest),
            "code_challenge_method": "S256",
        }
        endpoint = await self._endpoint("authorization_endpoint")
        separator = "&" if "?" in endpoint else "?"
        return BegunSignIn(f"{endpoint}{separator}{urlencode(query)}", _url_safe(msgspec.json.encode(kept)))

    async def finish(
        self, kept_text: str, state: str, code: str, named_issuer: str | None, address: str | None
    ) -> Finished:
        """Who came back from the issuer with a code. Raises Unauthenticated, and Unavailable when the issuer does not
        answer."""
        kept = _read_kept(kept_text)
        if kept is None or not hmac.compare_digest(kept.state.encode(), state.encode()):
            raise Unauthenticated("this browser did not begin this sign-in, or the sign-in has expired: sign in again")
        if named_issuer is not None and named_issuer != self.issuer_name:
            raise Unauthenticated("the answer comes from another issuer")
        if not 0 < len(code) <= CODE_MAX_CHARS:
            raise Unauthenticated("the issuer's answer has no code")
        self._count(address)
        token = await self._exchange(code, kept)
        identity = await self._issuer.verify_sign_in(self._verifier, token, kept.nonce)
        # The ID token says who it is, now: how long that is believed is the session's to say.
        identity = msgspec.structs.replace(identity, expires_at=math.inf)
        return Finished(identity, kept.place if _PLACE.fullmatch(kept.place) else "/console/")

    def _count(self, address: str | None) -> None:
        """Anybody can begin: what it costs the issuer is bounded."""
        if not self._rate.take(address):
            most = f"{SIGN_INS_MAX_PER_S:g} sign-ins per second, or {SIGN_INS_MAX_PER_HOST_PER_S:g} from one host"
            raise TooManyRequests(f"the engine accepts at most {most}")

    async def _exchange(self, code: str, kept: _Kept) -> bytes:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": kept.redirect_uri,
            "code_verifier": kept.verifier,
        }
        secret = None
        if self._secret is None:
            form["client_id"] = self._client_id
        else:
            secret = self._client_id, self._secret.reveal()
        endpoint = await self._endpoint("token_endpoint")
        try:
            answer = await fetch_json(endpoint, form=form, client=secret)
        except (OSError, ValueError, RecursionError) as error:
            _troubles.warning("exchange", "the issuer gave no token for a code", error=str(error)[:300])
            raise Unavailable("the issuer gave no token for its code") from None
        token = cast("dict[str, Any]", answer).get("id_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token.isascii():
            raise Unauthenticated("the issuer gave no ID token: the scope openid is needed")
        return token.encode()

    async def _endpoint(self, name: str) -> str:
        try:
            document = await self._issuer.discover()
            return self._issuer.url_in(document, name)
        except (OSError, ValueError, RecursionError) as error:
            _troubles.warning("discovery", "the issuer does not say where to sign in", error=str(error)[:300])
            raise Unavailable("the issuer does not say where to sign in") from None


def _read_kept(text: str) -> _Kept | None:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Kept)
    except (ValueError, msgspec.MsgspecError):
        return None


def _random() -> str:
    return secrets.token_urlsafe(_BYTES)


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
