"""Values that no output shows, and connection strings without what they must not show.

Relies on nothing. Must not grow a way to show a secret other than ``Secret.reveal``.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

__all__ = ["Secret", "dsn_has_password", "redact_dsn"]


class Secret:
    """A value that no repr, log line or error message shows. ``reveal()`` where it is used, and nowhere else."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


_DSN_IN_URL: Final = re.compile(r"^postgres(ql)?://")
_DSN_WORD: Final = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)")


def redact_dsn(dsn: str) -> str:
    """User, host, port and database of a connection string; what is not known to be harmless is left out."""
    if _DSN_IN_URL.match(dsn):
        try:
            parts = urllib.parse.urlsplit(dsn)
            host = parts.netloc.rpartition("@")[2]
            user = f"{parts.username}@" if parts.username else ""
        except ValueError:
            return "***"
        if (
            "@" in f"{parts.path}{parts.query}{parts.fragment}"
        ):  # the password holds a / ? or #, and the host ends there
            return "***"
        return f"postgresql://{user}{host}{parts.path}"
    shown = {"host", "hostaddr", "port", "dbname", "user"}
    return " ".join(f"{key}={value}" for key, value in _DSN_WORD.findall(dsn) if key in shown) or "***"


def dsn_has_password(dsn: str) -> bool:
    """Return whether a connection string holds a secret; one that can't be read may."""
    if _DSN_IN_URL.match(dsn):
        try:
            parts = urllib.parse.urlsplit(dsn)
        except ValueError:
            return True
        if "@" in f"{parts.path}{parts.query}{parts.fragment}":
            return True
        keys = {key for key, _ in urllib.parse.parse_qsl(parts.query, keep_blank_values=True)}
        return ":" in parts.netloc.rpartition("@")[0] or not keys.isdisjoint({"password", "sslpassword"})
    return any(key in ("password", "sslpassword") for key, _ in _DSN_WORD.findall(dsn))
