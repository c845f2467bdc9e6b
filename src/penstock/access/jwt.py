"""JSON Web Tokens of one OpenID Connect issuer: who they are from, and what their roles mean here.

PyJWT checks signatures and times (extra ``oidc``). Decided here, and not left to the token: which algorithm a key is
for, so that neither ``none`` nor a public key taken for a shared secret gets through; and which key, by its id only.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from penstock.access.identity import Identity
from penstock.access.roles import Grant, Role, merged, read_grant
from penstock.errors import BadRequest, Unauthenticated
from penstock.settings import Settings

TOKEN_MAX_BYTES: Final = 16 * 1024
CACHE_MAX_ITEMS: Final = 10_000
NAME_MAX_CHARS: Final = 200
RSA_MIN_BITS: Final = 2_048
LATEST_S: Final = 253_402_300_800
"""The beginning of the year 10000, in seconds since the epoch: what is later is no time here."""

_RSA: Final[Sequence[str]] = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final[Mapping[str, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
_REQUIRED: Final = ["exp", "iss", "aud"]


class KeyUnknown(Unauthenticated):
    """The token names a key that the issuer did not have when it was last asked."""


class Key(Protocol):
    """What is used of ``jwt.PyJWK``."""

    key_id: str | None
    key: Any


class IssuerKeys:
    """The issuer's public keys, by id."""

    def __init__(self) -> None:
        self._library = load_library()
        self._by_id: dict[str | None, tuple[Key, list[str]]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def replace(self, document: object) -> None:
        """The keys of a JWK set; those that nothing here can use are passed over. Raises BadRequest."""
        keys = cast("dict[str, list[Any]]", document).get("keys") if isinstance(document, dict) else None
        if not isinstance(keys, list):
            raise BadRequest("the issuer's keys are not a JSON Web Key Set")
        found: dict[str | None, tuple[Key, list[str]]] = {}
        for each in keys:
            algorithms = _algorithms_of(each)
            if not algorithms:
                continue
            try:
                key = cast(Key, self._library.PyJWK.from_dict(each, algorithms[0]))
            except (self._library.PyJWTError, ValueError, TypeError, KeyError):
                continue
            if getattr(key.key, "key_size", RSA_MIN_BITS) < RSA_MIN_BITS and each["kty"] == "RSA":
                continue
            found[key.key_id] = key, algorithms
        if not found:
            raise BadRequest("the issuer's JSON Web Key Set holds no key that can be used")
        self._by_id = found

    def find(self, key_id: object) -> tuple[Key, list[str]]:
        """A key and the algorithms it is for. Raises KeyUnknown."""
        if key_id is None and len(self._by_id) == 1:
            return next(iter(self._by_id.values()))
        found = self._by_id.get(key_id) if isinstance(key_id, str) else None
        if found is None:
            raise KeyUnknown("the token is signed with a key that its issuer does not list")
        return found


class JwtVerifier:
    """See the module."""

    def __init__(self, settings: Settings, keys: IssuerKeys, audience: Sequence[str] | None = None) -> None:
        """``audience``: whom tokens are for, other than the setting says."""
        assert settings.oidc_issuer is not None
        self.keys = keys
        self._library = load_library()
        self._issuer = settings.oidc_issuer
        self._audience = list(settings.oidc_audience if audience is None else audience)
        self._skew_s = settings.oidc_clock_skew_seconds
        self._name_claim = settings.oidc_name_claim
        self._roles_claim = settings.oidc_roles_claim.split(".")
        self._grants = _read_mapping(settings.oidc_roles)
        self._seen: OrderedDict[bytes, Identity] = OrderedDict()

    def forget(self) -> None:
        """The keys have changed: look at each token anew."""
        self._seen.clear()

    def verify(self, token: bytes) -> Identity:
        """Whose token this is. Raises Unauthenticated."""
        digest = hashlib.sha256(token).digest()
        identity = self._seen.get(digest)
        if identity is None:
            identity = self._verify(token)
            if len(self._seen) >= CACHE_MAX_ITEMS:
                self._seen.popitem(last=False)
            self._seen[digest] = identity
        if identity.expires_at <= time.time():
            raise Unauthenticated("the token has expired")
        return identity

    def verify_sign_in(self, token: bytes, nonce: str) -> Identity:
        """Of an ID token that was asked for with this nonce. Raises Unauthenticated."""
        claims = self._claims(token)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise Unauthenticated("the token is not valid: it is for another sign-in")
        return self._identity(claims)

    def _verify(self, token: bytes) -> Identity:
        return self._identity(self._claims(token))

    def _claims(self, token: bytes) -> Mapping[str, Any]:
        if len(token) > TOKEN_MAX_BYTES:
            raise Unauthenticated(f"the token has more than {TOKEN_MAX_BYTES} bytes")
        jwt = self._library
        try:
            header = cast("dict[str, Any]", jwt.get_unverified_header(token))
            if "crit" in header:
                raise Unauthenticated("the token asks for extensions that are not known here")
            key, algorithms = self.keys.find(header.get("kid"))
            claims = cast(
                "dict[str, Any]",
                jwt.decode(
                    token,
                    key.key,
                    algorithms=algorithms,
                    audience=self._audience,
                    issuer=self._issuer,
                    leeway=self._skew_s,
                    options={"require": _REQUIRED, "verify_signature": True},
                ),
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the token is not valid: {_cause(error)}") from None
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise Unauthenticated("the token is not valid") from None
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX_CHARS or not name.isprintable():
            raise Unauthenticated(
                f"the token's claim {self._name_claim} does not hold a name: text of 1 to {NAME_MAX_CHARS} "
                "printable characters"
            )
        grant = merged(self._grants_of(claims))
        permissions = grant or Grant(frozenset())
        subject = claims.get("sub", name)
        try:
            expires_at = float(claims["exp"]) + self._skew_s
        except (ValueError, TypeError, OverflowError):  # a number of 400 digits, or none
            expires_at = math.nan
        if not 0 < expires_at < LATEST_S:
            raise Unauthenticated("the token is not valid: its exp is not a time")
        return Identity.of(f"oidc:{name}", permissions, key=f"oidc:{subject}", expires_at=expires_at)

    def _grants_of(self, claims: Mapping[str, Any]) -> list[Grant]:
        found: Any = claims
        for part in self._roles_claim:
            found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
        values = cast("list[object]", found.split() if isinstance(found, str) else found)
        if not isinstance(found, str | list):
            return []
        return [grant for value in values if isinstance(value, str) and (grant := self._grants.get(value)) is not None]


def load_library() -> Any:
    """PyJWT, which only those need who use it. Raises BadRequest."""
    try:
        return importlib.import_module("jwt")
    except ImportError as error:
        raise BadRequest("oidc_issuer needs PyJWT and cryptography: pip install 'penstock-workflow[oidc]'") from error


def _algorithms_of(key: object) -> list[str]:
    """What a public key may be used for; nothing for what is none, or not for signatures."""
    if not isinstance(key, dict):
        return []
    jwk = cast("dict[str, object]", key)
    if jwk.get("use", "sig") != "sig":
        return []
    kind = jwk.get("kty")
    allowed: list[str] = [*_RSA] if kind == "RSA" else []
    if kind in ("EC", "OKP"):
        named = _BY_CURVE.get(str(jwk.get("crv")))
        allowed = [named] if named is not None else []
    alg = jwk.get("alg")
    return allowed if alg is None else [each for each in allowed if each == alg]


def _read_mapping(lines: Sequence[str]) -> dict[str, Grant]:
    """What values of the claim mean; by default the names of roles are roles. Raises BadRequest."""
    if not lines:
        return {role.value: Grant(frozenset({role})) for role in Role}
    found: dict[str, Grant] = {}
    for line in lines:
        value, _, roles = line.partition("=")
        try:
            found[value.strip()] = read_grant(roles.strip())
        except BadRequest as error:
            raise BadRequest(f"oidc_roles: {line!r}: {error.reason}") from error
    return found


def _cause(error: Exception) -> str:
    """In our words: what the library says may quote the token."""
    kinds = {
        "ExpiredSignatureError": "it has expired",
        "ImmatureSignatureError": "it is not valid yet",
        "InvalidAudienceError": "it is for another audience",
        "InvalidIssuerError": "it is from another issuer",
        "InvalidAlgorithmError": "its algorithm is not one of its key's",
        "InvalidSignatureError": "its signature is wrong",
        "MissingRequiredClaimError": "it lacks one of the claims exp, iss and aud",
    }
    return kinds.get(type(error).__name__, "it can't be read")
