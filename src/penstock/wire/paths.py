"""How the path of a request is read: first parted at its slashes, then each part percent-decoded.

`PUT /v1/queues/eu%2Fmail` is about the queue `eu/mail`. Decoded as a whole, the path would have one part more.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

ENCODED_SLASH: Final = "\0"
"""Stands in a read path for a slash that was sent as ``%2F``. No sent path can hold it: NUL is refused."""

UNREADABLE: Final = ""
"""What a path with NUL or with bytes that are not UTF-8 is read as. No other path is: each begins with a slash."""


def read_path(raw: bytes) -> str:
    """Return the path with each part decoded, `ENCODED_SLASH` where a part holds a slash; or `UNREADABLE`."""
    if raw.isascii() and b"%" not in raw and b"\0" not in raw:
        return raw.decode()
    parts: list[str] = []
    for part in raw.split(b"/"):
        try:
            text = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            return UNREADABLE
        if "\0" in text:
            return UNREADABLE
        parts.append(text.replace("/", ENCODED_SLASH))
    return "/".join(parts)


def read_part(part: str) -> str:
    """Return a part of a read path as its sender meant it."""
    return part.replace(ENCODED_SLASH, "/")
