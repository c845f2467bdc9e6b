"""The gate: from what a call brings to who calls, for all transports alike; made only with authentication.

A proof that is given counts alone: a wrong token gets no role for its network. Calls that last are watched, and end
when what proved them does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

import trio

from penstock.access.identity import Identity
from penstock.access.issuer import Issuer
from penstock.access.networks import TrustedNetworks
from penstock.access.tokens import PREFIX, TOKEN_MAX_BYTES, KnownToken, TokenBook, read_fixed_tokens
from penstock.errors import Unauthenticated
from penstock.settings import Settings

LOOK_INTERVAL_S: Final = 1.0


class Ending(Enum):
    """Why a call's proof counts no longer."""

    REVOKED = auto()
    EXPIRED = auto()


REVOKED: Final = "the token was revoked"
EXPIRED: Final = "the token has expired"


class Gate:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        """Raises BadRequest, with the name of the setting, for what can't be read."""
        self.tokens = TokenBook(read_fixed_tokens(settings.api_tokens))
        self.issuer = Issuer(settings) if settings.oidc_issuer is not None else None
        self._networks = TrustedNetworks(settings.trusted_networks)
        self._watched: dict[object, tuple[Identity, Callable[[Ending], None]]] = {}

    async def identify(self, authorization: Sequence[bytes], address: str | None, *, ambient: bool = True) -> Identity:
        """Who calls: from each `Authorization` header, and the address of the socket.

        ``ambient``: what a browser would add for any page counts. Raises Unauthenticated. A checkpoint only for a key
        of the issuer that is not known yet.
        """
        if len(authorization) > 1:
            raise Unauthenticated("Authorization stands twice")
        if authorization:
            return await self._of_token(authorization[0])
        identity = self._networks.find(address) if ambient else None
        if identity is None:
            raise Unauthenticated("a token is needed: Authorization: Bearer ...")
        return identity

    async def _of_token(self, header: bytes) -> Identity:
        scheme, _, rest = header.partition(b" ")
        token = rest.strip(b" ")
        if scheme.lower() != b"bearer" or not token:
            raise Unauthenticated("Authorization has to be: Bearer, a blank, a token")
        if self.issuer is not None and token.count(b".") == 2 and not token.startswith(PREFIX.encode()):
            return await self.issuer.verify(token)
        identity = self.tokens.find(token) if len(token) <= TOKEN_MAX_BYTES else None
        if identity is None:
            raise Unauthenticated("the token is unknown, revoked or expired")
        return identity

    # -- calls that last

    @contextmanager
    def watching(self, identity: Identity, on_end: Callable[[Ending], None]) -> Generator[None]:
        """Call ``on_end`` once, within about a second, when the proof counts no longer in this block."""
        mark = object()
        self._watched[mark] = identity, on_end
        try:
            yield
        finally:
            self._watched.pop(mark, None)

    async def watch_step(self) -> None:
        """One round of the service loop that ends calls whose proof has expired."""
        await trio.sleep(LOOK_INTERVAL_S)
        self._end_over()

    def replace_tokens(self, tokens: Iterable[KnownToken]) -> None:
        """What the database holds has changed."""
        self.tokens.replace(tokens)
        self._end_over()

    def _end_over(self) -> None:
        now = time.time()
        for mark, (identity, on_end) in list(self._watched.items()):
            if identity.key.startswith("token:") and not self.tokens.has(identity.key):
                ending = Ending.REVOKED
            elif identity.expires_at <= now:
                ending = Ending.EXPIRED
            else:
                continue
            del self._watched[mark]
            on_end(ending)
