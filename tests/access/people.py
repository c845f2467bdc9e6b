"""A gate with a token for each role, and the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.access.gate import Gate
from penstock.access.tokens import NewToken, make_token
from penstock.settings import Settings

TOKENS: Mapping[str, NewToken] = {role: make_token() for role in ("viewer", "clerk", "worker", "operator", "admin")}


def lines(**grants: str) -> tuple[str, ...]:
    """Entries of the setting: by name, for the role of that name unless another grant is given."""
    wanted = {role: role for role in TOKENS} | grants
    return tuple(f"{name}={wanted[name]}=sha256:{TOKENS[name].digest.hex()}" for name in TOKENS)


def make_gate(*, grants: Mapping[str, str] | None = None, **settings: Any) -> Gate:
    return Gate(Settings(authentication=True, api_tokens=lines(**(grants or {})), **settings))


def bearer(role: str) -> str:
    return f"Bearer {TOKENS[role].text}"
