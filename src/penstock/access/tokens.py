"""API tokens: their form, and the book of those that are valid, by the SHA-256 of each.

A token has 256 random bits, so a plain hash keeps it: there is nothing to guess. The book is whole in memory and
bounded, so a call with a token costs no look into the database, and one without a valid token neither.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.access.identity import Identity
from penstock.access.roles import Grant, read_grant
from penstock.errors import BadRequest

PREFIX: Final = "pst_"
"""So that scanners for leaked secrets, and people, know one when they see it."""
TOKENS_MAX_COUNT: Final = 10_000
NAME_MAX_CHARS: Final = 200
TOKEN_MAX_BYTES: Final = 512
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")


class NewToken(msgspec.Struct, frozen=True):
    """A token as it is made: ``text`` is shown once and kept nowhere."""

    id: str
    text: str

    @property
    def digest(self) -> bytes:
        return digest_of(self.text.encode())


def make_token() -> NewToken:
    """``pst_<id>_<secret>``. The id is public: it names the token in lists and in what leaked."""
    id = secrets.token_hex(_ID_BYTES)
    return NewToken(id, f"{PREFIX}{id}_{secrets.token_urlsafe(_SECRET_BYTES)}")


def digest_of(token: bytes) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token).digest()


class KnownToken(msgspec.Struct, frozen=True):
    """A token that counts: from the database or from the settings."""

    id: str
    name: str
    digest: bytes
    grant: Grant
    expires_at: float

    def identity(self) -> Identity:
        return Identity.of(f"token:{self.name}", self.grant, key=f"token:{self.id}", expires_at=self.expires_at)


class TokenBook:
    """All tokens that count."""

    def __init__(self, fixed: Iterable[KnownToken] = ()) -> None:
        """``fixed`` are those of the settings, which stay."""
        self._fixed = list(fixed)
        self._by_digest: dict[bytes, tuple[KnownToken, Identity]] = {}
        self._by_key: dict[str, Identity] = {}
        self.replace(())

    def __len__(self) -> int:
        return len(self._by_digest)

    def replace(self, tokens: Iterable[KnownToken]) -> None:
        """These, and the fixed ones, count from now on."""
        self._by_digest = {token.digest: (token, token.identity()) for token in (*tokens, *self._fixed)}
        self._by_key = {identity.key: identity for _, identity in self._by_digest.values()}

    def find(self, token: bytes) -> Identity | None:
        """Whose token this is; None for one that is unknown, revoked or over."""
        digest = digest_of(token)
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found[0].digest, digest) or found[1].expires_at <= time.time():
            return None
        return found[1]

    def has(self, key: str) -> bool:
        """Return whether the token with this identity's key counts still."""
        return key in self._by_key

    def identity_of(self, key: str) -> Identity | None:
        """By an identity's key; None when the token counts no longer."""
        found = self._by_key.get(key)
        return None if found is None or found.expires_at <= time.time() else found


def read_fixed_tokens(lines: Sequence[str]) -> list[KnownToken]:
    """``name=roles=sha256:<hex>`` each, as `penstock token new --offline` prints it. Raises BadRequest."""
    tokens: list[KnownToken] = []
    for line in lines:
        name, _, rest = line.partition("=")
        roles, _, kept = rest.rpartition("=")
        match = _HASH.fullmatch(kept.strip())
        if not name.strip() or match is None:  # the line is not shown: it may hold the token itself
            raise BadRequest(f"entry {len(tokens) + 1} of api_tokens is not name=roles=sha256:<64 hex digits>")
        try:
            grant = read_grant(roles.strip())
        except BadRequest as error:
            raise BadRequest(f"entry {name.strip()!r} of api_tokens: {error.reason}") from error
        digest = bytes.fromhex(match[1])
        tokens.append(KnownToken(f"settings:{digest[:6].hex()}", name.strip(), digest, grant, float("inf")))
    return tokens
