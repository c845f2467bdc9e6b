"""The head of an answer, as bytes: status line, the application's headers, and the ones that HTTP/1.1 is about.

Pure but for the clock behind ``Date`` (RFC 9110 6.6.1 wants one; made once a second, 2.5 µs each otherwise).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from penstock.http.asgi import Headers, Pairs
from penstock.http.refusal import Refusal, error_object

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
# Neither carries a body (RFC 9110 6.4.1), and a 204 no Content-Length either (8.6).
_BODILESS = frozenset({204, 304})
# Set here whatever the application says.
_OURS = frozenset({b"transfer-encoding", b"date", b"keep-alive"})
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
HEADS_MAX_ITEMS = 256
"""Heads that are kept: some hold what was asked for, as an origin does."""
_EMPTY = b"content-length: 0\r\n"


class Head(NamedTuple):
    """An encoded head and how the body that follows is delimited."""

    data: bytes
    bodiless: bool
    """Nothing follows, whatever the application gives as the body."""
    chunked: bool
    declared_bytes: int | None
    """The body's length as told to the client; None when it is chunked or ends with the connection."""
    close: bool


class DateHeader:
    """``date: …`` of the current second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: " + formatdate(second, usegmt=True).encode("ascii") + b"\r\n"
        return self._line


class Heads:
    """Heads of whole answers to anything but HEAD. Most answers of a second have one of a few: made once for each."""

    __slots__ = ("_date", "_found", "_line", "_until", "_whole")

    def __init__(self, date: DateHeader) -> None:
        self._date = date
        self._line = b""
        self._found: dict[tuple[int, Pairs, str, bool], tuple[bytes, bytes | None, bool]] = {}
        self._whole: dict[tuple[int, Pairs], tuple[bytes, bytes | None, bool]] = {}
        self._until = 0.0

    def whole(self, status: int, headers: Pairs, body: bytes | None, now: float) -> tuple[bytes, bool]:
        """As `encode`, of an answer over HTTP/1.1 after which the connection stays, with its body; ``now`` is any clock
        that runs as fast as ours, in seconds."""
        if now >= self._until:
            self._whole.clear()
            self._until = now + 1 - time.time() % 1
        found = self._whole.get((status, headers))
        if found is None:
            self.encode(status, headers, body, "1.1", keep_alive=True)
            found = self._found.get((status, headers, "1.1", True))
            if found is None or len(self._whole) >= HEADS_MAX_ITEMS:
                head, close = self.encode(status, headers, body, "1.1", keep_alive=True)
                return head if body is None else head + body, close
            self._whole[status, headers] = found
        before, after, close = found
        if body is None or after is None:
            return self.encode(status, headers, body, "1.1", keep_alive=True)[0] if after else before, close
        return b"%bcontent-length: %d\r\n%b%b" % (before, len(body), after, body), close

    def encode(
        self, status: int, headers: Pairs, body: bytes | None, http_version: str, *, keep_alive: bool
    ) -> tuple[bytes, bool]:
        """The head, and whether the connection ends with the answer; a status without a body gets none. Raises as
        `encode_head`."""
        line = self._date.line()
        if line is not self._line:
            self._line = line
            self._found.clear()
        key = (status, headers, http_version, keep_alive)
        found = self._found.get(key)
        if found is None:
            head = encode_head(
                status, list(headers), line, method="", http_version=http_version, keep_alive=keep_alive, body_bytes=0
            )
            before, length, rest = head.data.partition(_EMPTY)
            found = before, rest if length else None, head.close
            if len(self._found) < HEADS_MAX_ITEMS:
                self._found[key] = found
        before, after, close = found
        if after is None:
            return before, close
        return b"%bcontent-length: %d\r\n%b" % (before, 0 if body is None else len(body), after), close


def encode_refusal(refusal: Refusal, headers: Sequence[tuple[bytes, bytes]], date_line: bytes) -> bytes:
    """Return a whole answer, the last of its connection."""
    body = error_object(refusal.code, refusal.reason)
    head = encode_head(
        refusal.status,
        [(b"content-type", b"application/json"), *headers],
        date_line,
        method="GET",
        http_version="1.1",
        keep_alive=False,
        body_bytes=len(body),
    )
    return head.data + body


def encode_head(
    status: int,
    headers: Headers,
    date_line: bytes,
    *,
    method: str,
    http_version: str,
    keep_alive: bool,
    body_bytes: int | None,
) -> Head:
    """Encode the head. ``body_bytes`` is the length of the whole body when it is known, None for a streamed one.

    A length that the application declares wins over ``body_bytes`` for HEAD and streams; for a whole body it must be
    the same. Raises ValueError for what can't be sent: a status below 200, CR or LF in a header, a bad length.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"{status} is not a final status")
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, date_line]
    declared, wants_close = _copy_headers(headers, lines)
    keep_alive = keep_alive and not wants_close
    bodiless = status in _BODILESS
    chunked = False
    if not bodiless:
        if declared is None:
            declared = body_bytes
        elif body_bytes is not None and declared != body_bytes and method != "HEAD":
            raise ValueError(f"content-length is {declared}, the body has {body_bytes} bytes")
        if declared is not None:
            lines.append(b"content-length: %d\r\n" % declared)
        elif http_version == "1.1":
            chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            keep_alive = False  # HTTP/1.0 has no other end of a body of unknown length
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    elif http_version == "1.0":
        lines.append(b"connection: keep-alive\r\n")
    lines.append(b"\r\n")
    data = b"".join(lines)
    # One look over the bytes instead of one per header: a line break that we did not write splits the answer in two.
    if data.count(b"\n") != len(lines) or data.count(b"\r") != len(lines) or b"\0" in data:
        raise ValueError("a header of the answer holds a line break or NUL")
    return Head(data, bodiless or method == "HEAD", chunked, declared, not keep_alive)


def _copy_headers(headers: Headers, lines: list[bytes]) -> tuple[int | None, bool]:
    """Add the application's headers to the lines, except those about the connection, which are decided here. Gives
    the length that it declares and whether it wants the connection closed."""
    declared: int | None = None
    close = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length":
            declared = int(value)
        elif lower == b"connection":
            close = b"close" in value.lower()
        elif lower not in _OURS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return declared, close
