"""The gate: from what a call brings to who calls, for all transports alike; made only with authentication.

A proof that is given counts alone: a wrong token gets no role for its network. Calls that last are watched, and end
when what proved them does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

import trio

from penstock.access.identity import Identity
from penstock.access.issuer import Issuer
from penstock.access.networks import TrustedNetworks
from penstock.access.roles import Grant, read_grant
from penstock.access.sessions import Sessions
from penstock.access.sign_in import SignIn
from penstock.access.tokens import PREFIX, TOKEN_MAX_BYTES, KnownToken, TokenBook, read_fixed_tokens
from penstock.errors import BadRequest, Unauthenticated
from penstock.settings import Settings

POLL_INTERVAL_S: Final = 1.0


class AccessEnd(Enum):
    """Why a call's proof counts no longer."""

    REVOKED = auto()
    EXPIRED = auto()


REVOKED: Final = "the token was revoked"
EXPIRED: Final = "the token has expired"


def reason_of(ending: AccessEnd) -> str:
    """What a caller is told of it."""
    return EXPIRED if ending is AccessEnd.EXPIRED else REVOKED


class Gate:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        """Raises BadRequest, with the name of the setting, for what can't be read."""
        self.tokens = TokenBook(read_fixed_tokens(settings.api_tokens))
        self.issuer = Issuer(settings) if settings.oidc_issuer is not None else None
        self.sessions = Sessions(self.tokens, settings.session_max_hours)
        self.sign_in = None if self.issuer is None or settings.oidc_client_id is None else SignIn(settings, self.issuer)
        self._networks = TrustedNetworks(settings.trusted_networks)
        self._certificates = _read_certificates(settings.tls_client_roles)
        self._watched: dict[object, tuple[Identity, Callable[[AccessEnd], None]]] = {}

    async def identify(
        self,
        authorization: Sequence[bytes],
        address: str | None,
        certificate: Sequence[str] = (),
        *,
        ambient: bool = True,
        session: bytes = b"",
    ) -> Identity:
        """Who calls: from each `Authorization` header, the session's cookie, the names in the client's certificate, the
        socket's address.

        ``ambient``: what a browser would add for any page counts. Raises Unauthenticated. A checkpoint only for a key
        of the issuer or a session that is not known yet.
        """
        if len(authorization) > 1:
            raise Unauthenticated("the request has the header Authorization twice: send it once")
        if authorization:
            return await self._of_token(authorization[0])
        if session:
            return await self.sessions.identify(session, address)
        identity = (self._of_certificate(certificate) or self._networks.find(address)) if ambient else None
        if identity is None:
            raise Unauthenticated("this call needs a token: send the header `Authorization: Bearer …`")
        return identity

    def find(self, authorization: Sequence[bytes], address: str | None, certificate: Sequence[str]) -> Identity | None:
        """As `identify`, of who is known without waiting, a browser's session apart; None for all others."""
        if not authorization:
            return self._of_certificate(certificate) or self._networks.find(address)
        scheme, _, rest = authorization[0].partition(b" ")
        token = rest.strip(b" ")
        if len(authorization) > 1 or scheme.lower() != b"bearer" or self._is_issuers(token):
            return None
        return self.tokens.find(token) if len(token) <= TOKEN_MAX_BYTES else None

    def _is_issuers(self, token: bytes) -> bool:
        return self.issuer is not None and token.count(b".") == 2 and not token.startswith(PREFIX.encode())

    async def _of_token(self, header: bytes) -> Identity:
        scheme, _, rest = header.partition(b" ")
        token = rest.strip(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise Unauthenticated("the header Authorization must be `Bearer`, a blank and a token")
        if self.issuer is not None and self._is_issuers(token):
            return await self.issuer.verify(token)
        identity = self.tokens.find(token) if len(token) <= TOKEN_MAX_BYTES else None
        if identity is None:
            raise Unauthenticated("the token is unknown, revoked or expired")
        return identity

    def _of_certificate(self, names: Sequence[str]) -> Identity | None:
        """The certificate was verified by TLS; what it allows is told by the first of its names that has roles."""
        for name in names:
            grant = self._certificates.get(name)
            if grant is not None:
                return Identity.of(f"cert:{name}", grant, ambient=True)
        grant = self._certificates.get("*")
        return Identity.of(f"cert:{names[0]}", grant, ambient=True) if names and grant is not None else None

    # -- calls that last

    @contextmanager
    def watching(self, identity: Identity, on_end: Callable[[AccessEnd], None]) -> Generator[None]:
        """Call ``on_end`` once, within about a second, when the proof counts no longer in this block."""
        mark = object()
        self._watched[mark] = identity, on_end
        try:
            yield
        finally:
            self._watched.pop(mark, None)

    async def watch_step(self) -> None:
        """One round of the service loop that ends calls whose proof has expired."""
        await trio.sleep(POLL_INTERVAL_S)
        self.end_over()

    def replace_tokens(self, tokens: Iterable[KnownToken]) -> None:
        """What the database holds has changed."""
        self.tokens.replace(tokens)
        self.end_over()

    def end_over(self) -> None:
        """End the calls whose proof counts no longer."""
        now = time.time()
        for mark, (identity, on_end) in list(self._watched.items()):
            ending = self.ending(identity, now)
            if ending is not None:
                del self._watched[mark]
                on_end(ending)

    def ending(self, identity: Identity, now: float) -> AccessEnd | None:
        """Why the proof of a caller counts no longer; None while it does. ``now``: seconds since the epoch."""
        if (identity.key.startswith("token:") and not self.tokens.has(identity.key)) or (
            identity.session and not self.sessions.has(identity.session)
        ):
            return AccessEnd.REVOKED
        return AccessEnd.EXPIRED if identity.expires_at <= now else None


def _read_certificates(lines: Sequence[str]) -> dict[str, Grant]:
    """``dns:w.example=worker`` each; ``*`` is any name. Raises BadRequest."""
    found: dict[str, Grant] = {}
    for line in lines:
        name, _, roles = line.partition("=")
        try:
            if not re.fullmatch(r"(dns|uri|email|cn):.+|\*", name.strip()):
                raise BadRequest("a name begins with dns:, uri:, email: or cn:, or is * for any")
            found[name.strip()] = read_grant(roles.strip())
        except BadRequest as error:
            raise BadRequest(f"tls_client_roles: {line!r}: {error.reason}") from error
    return found
