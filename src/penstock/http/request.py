"""A request that has arrived whole, and the memory that bodies may take until they are answered."""

from __future__ import annotations

import re
from typing import Final, Protocol

import msgspec

from penstock.http.asgi import Headers
from penstock.http.refusal import bad_request


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """One whole request. Header names are lower case; ``raw_path`` is as sent, without query."""

    method: str
    raw_path: bytes
    query: bytes
    http_version: str
    headers: Headers
    body: bytes
    keep_alive: bool


class Arriving(Protocol):
    """A body of which a part has come."""

    def give_up(self) -> None:
        """Give back what it holds, and refuse the request when more of it comes. Not a checkpoint."""
        ...


class BodyBudget:
    """Bytes of request bodies in memory, over all connections of one server.

    When they are used up, the body that has been on its way for longest gives way: else a few slow clients, who need
    prove nothing before their requests are whole, would keep everybody else out.
    """

    __slots__ = ("_arriving", "max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._arriving: dict[Arriving, None] = {}

    def take(self, body: Arriving, count: int) -> bool:
        """Count bytes that have come; whether there is room for them. They stay counted."""
        self.used_bytes += count
        self._arriving.setdefault(body)
        while self.used_bytes > self.max_bytes:
            oldest = next(iter(self._arriving))
            if oldest is body:
                return False
            del self._arriving[oldest]
            oldest.give_up()
        return True

    def fits(self, count: int) -> bool:
        """Return whether there is room for so many bytes, without anybody giving way."""
        return self.used_bytes + count <= self.max_bytes

    def has_come(self, body: Arriving) -> None:
        """It is whole, or over."""
        self._arriving.pop(body, None)


def origin_form(target: bytes) -> bytes:
    """``/path?query`` of a target in origin or absolute form; ``*`` stays."""
    if b"#" in target:
        raise bad_request("a request target has no fragment")
    if target.startswith(b"/") or target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise bad_request("the request target is not a path")
    slash = rest.find(b"/")
    if slash >= 0:
        return rest[slash:]
    question = rest.find(b"?")
    return b"/" + rest[question:] if question >= 0 else b"/"


def authority_of(target: bytes) -> bytes:
    """Which host a target in absolute form names, with its port; nothing of others."""
    if target.startswith(b"/"):
        return b""
    return target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]


_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,6})[ \t]*\r\n", re.IGNORECASE)


def is_whole_request(begun: bytes) -> bool:
    """Return whether a request can be served: its head is there, and its body where its length is known; or what can be
    no head's beginning."""
    if not begun[:1].isalpha():
        return bool(begun)
    end = begun.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = _LENGTH.search(begun, 0, end + 2)
    return length is None or len(begun) - end - 4 >= int(length[1]) or b"\r\nexpect:" in begun[:end].lower()
