"""Bytes to requests: llhttp (through httptools) behind a buffer that knows where each request ends. No I/O, no clock.

llhttp decides what is valid. Four things it can't do are done here, before or after it:

* It stops at an ``Upgrade`` offer and drops the body (``HttpParserUpgrade``). Java's HttpClient offers ``h2c`` on every
  request. RFC 9110 lets a server ignore the offer, so the ``Upgrade`` line is taken out of the head first. Without
  that line llhttp upgrades only for ``CONNECT``, which is refused.
* It never says where a request ended. So a head is fed whole, a body of known length by count, and a chunked body
  in pieces that end after each CRLFCRLF, the only place where a chunked message can end.
* It has no limits. They are checked on the raw bytes, before llhttp (and this process's memory) sees them.
* It takes some things that an origin server must refuse: HTTP/0.9, RTSP, two ``Host`` headers, codings that we lack.

The alternative that lost: letting llhttp run over the raw stream and catching ``HttpParserUpgrade``. It has already
thrown away ``Content-Length`` by then, and a later request's head can't be filtered before it is parsed.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

import httptools

from penstock.http.asgi import Headers
from penstock.http.limits import HttpLimits
from penstock.http.refusal import Refusal, bad_request, too_full
from penstock.http.request import BodyBudget, ParsedRequest, authority_of, origin_form

# Only what is a valid line: anything else stays in the head and llhttp refuses it.
_UPGRADE_LINE = re.compile(rb"\r\nupgrade:[\t\x20-\x7e\x80-\xff]*(?=\r\n)", re.IGNORECASE)
SHAPE_LINE_MAX_BYTES = 200
SHAPE_BODY_MAX_DIGITS = 5
# The line of the one length that a head has.
_LENGTH_LINE = re.compile(rb"\r\ncontent-length:[\t ]*([0-9]+)", re.IGNORECASE)
_CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")
# RFC 3986 host and port, with the colon alone too. Empty where a target has no authority.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]*)(?::[0-9]{0,5})?")
_HOSTS_KEPT = 1_000
_good_hosts: set[bytes] = set()
_VERSIONS = {b" HTTP/1.1": "1.1", b" HTTP/1.0": "1.0"}
# Headers that decide how a request is read. All others pass unseen.
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"expect", b"host"})
_END = b"\r\n\r\n"
# Request lines about which there is nothing to find out.
_PLAIN_LINE = re.compile(rb"POST (/[A-Za-z0-9/._~-]{0,1000}) HTTP/1\.1")
_KNOWN_MAX_COUNT, _KNOWN_MAX_BYTES = 4, 1_024
"""Of the headers that a connection keeps: some 3 kB each with what is read of them, 100 MB of 9,000 connections."""
# How often an incomplete head is looked at for being no HTTP at all (TLS, bare LF, garbage): answered at once then
# instead of after the header time-out. Bounded, for each look parses the head anew.
_EARLY_CHECKS = 8
# What chunked framing may cost beside the data: 6 bytes carry 1 in the worst honest case. Extensions and trailers
# beyond it only burn our time.
_CHUNK_OVERHEAD_FACTOR = 8


class _KnownHead(NamedTuple):
    """Headers that were found good under a POST which kept the connection, with a body of known length."""

    headers: Headers
    body_bytes: int


class HeadShape:
    """Headers that were found good, like `_KnownHead`, whatever the length is that they tell: all before its digits and
    all behind them, from the end of the request line to that of the head."""

    __slots__ = ("after", "after_bytes", "before", "before_bytes", "headers", "takes")

    def __init__(self, before: bytes, after: bytes, headers: Headers) -> None:
        self.before = before
        self.before_bytes = len(before)
        self.after = after
        self.after_bytes = len(after)
        self.headers = headers
        self.takes: bool | None = None
        """Whether the application takes such requests as bytes; None: it was not asked."""

    def body_at(self, data: bytes, line_end: int) -> int:
        """Where the body begins of bytes which are one whole request of this shape, after a request line that is not
        long; else 0. What such a request needs no look at is within all limits."""
        digits_at = line_end + self.before_bytes
        digits_end = data.find(b"\r", digits_at, digits_at + SHAPE_BODY_MAX_DIGITS + 1)
        body_at = digits_end + self.after_bytes
        if (
            digits_end > digits_at
            and 0 < line_end <= SHAPE_LINE_MAX_BYTES
            and data[line_end:digits_at] == self.before  # compiled, `startswith` in the middle takes five times as long
            and data[digits_end:body_at] == self.after
            and len(data) - body_at > 0
            and data[digits_at:digits_end] == b"%d" % (len(data) - body_at)
        ):
            return body_at
        return 0


class ParseProgress(enum.Enum):
    """How much of the next request is there."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class RequestParser:
    """The requests of one connection, one after the other.

    Feed with ``receive``; take with ``next_request`` until it gives None. After a ``Refusal`` the parser is dead.
    The bytes of a request's body stay counted in the budget until ``release``.

    A worker sends the same headers all day. Those of its last requests are kept as they came, and what was found out
    about them: a POST with the same bytes from its request line on, which is a plain one, is as good as they were, and
    llhttp does not see it.
    """

    def __init__(self, limits: HttpLimits, budget: BodyBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._llhttp: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._buffer = b""
        self._at = 0  # where the unread part of the buffer begins
        self._scanned = 0  # up to where no end of a head was found
        self._checks = _EARLY_CHECKS
        self._refusal: Refusal | None = None
        self._held_bytes = 0
        self._given_up = False
        self._known: dict[bytes, _KnownHead] = {}
        self._shape: HeadShape | None = None  # of the last headers that were read of such a request
        self._start_request()

    def _start_request(self) -> None:
        self._in_body = False
        self._is_known = False  # taken without llhttp
        self._header_block: bytes | None = None  # to be known, if all ends well
        self._complete = False
        self._keep_alive = False
        self._target = b""
        self._method = ""
        self._http_version = ""
        self._headers: Headers = []
        self._framing: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._missing_bytes = 0  # of a body with Content-Length
        self._chunked = False
        self._expects = False
        self._wire_bytes = 0  # of a chunked body, framing included
        self._tail = b""  # the last bytes of a chunked body that were fed

    # -- fed by the connection

    def receive(self, data: bytes) -> None:
        """Add bytes from the socket. Copies only when the last ones were not used up."""
        if self._at >= len(self._buffer):
            self._buffer = data
        else:
            self._buffer = self._buffer[self._at :] + data
            self._scanned = max(0, self._scanned - self._at)
        if self._at:
            self._at = 0

    def next_request(self) -> ParsedRequest | None:
        """Return the next whole request, or None until more bytes come. Raises Refusal."""
        if self._given_up:
            raise too_full()
        if not self._in_body and not self._read_head():
            return None
        if self._in_body:
            if self._chunked:
                self._read_chunked_body()
            else:
                self._read_counted_body()
        return self._take_request() if self._complete else None

    def release(self) -> None:
        """The last request is answered: its body no longer counts."""
        self._budget.has_come(self)
        self._budget.used_bytes -= self._held_bytes
        self._held_bytes = 0

    def give_up(self) -> None:
        """See `Arriving`."""
        self._given_up = True
        self.release()
        self._body = b""

    def close(self) -> None:
        """Give back the budget and break the reference cycle with llhttp. Idempotent."""
        self.release()
        self._llhttp = None
        self._buffer = b""

    @property
    def progress(self) -> ParseProgress:
        if self._in_body:
            return ParseProgress.BODY
        return ParseProgress.HEAD if len(self._buffer) > self._at else ParseProgress.NOTHING

    def shape_of_next(self) -> HeadShape | None:
        """How the next request looks if it is like the last, and nothing of it was received yet."""
        return None if self._in_body or self._at < len(self._buffer) else self._shape

    @property
    def unread_bytes(self) -> int:
        """Received, but of no request yet."""
        return len(self._buffer) - self._at

    @property
    def body_bytes(self) -> int:
        """Received of the body that is being read."""
        return len(self._body)

    def take_expectation(self) -> bool:
        """True once for a request that waits for ``100 Continue`` before it sends its body."""
        return self._in_body and self._framing.pop(b"expect", None) is not None and not self._body

    # -- the head

    def _read_head(self) -> bool:
        buffer, at = self._buffer, self._at
        if at < len(buffer) and buffer[at] in b"\r\n":  # RFC 9112 2.2: empty lines before a request are ignored
            at = len(buffer) - len(buffer[at:].lstrip(b"\r\n"))
            self._at = at
        if at >= len(buffer):
            return False
        end = buffer.find(_END, max(at, self._scanned - 3))
        if end < 0:
            self._check_partial_head(buffer[at:])
            self._scanned = len(buffer)
            return False
        end += 4
        head = buffer[at:end]
        self._at, self._scanned, self._checks = end, 0, _EARLY_CHECKS
        if self._take_known(head):
            return True
        version = self._check_raw_head(head)
        if b"\r\nupgrade" in head.lower():
            head = _UPGRADE_LINE.sub(b"", head)
        elif len(head) <= _KNOWN_MAX_BYTES and head.startswith(b"POST ") and version == "1.1":
            self._header_block = head[head.find(b"\r\n") :]
        self._feed(head)
        self._in_body = True
        self._http_version = version
        self._check_framing()
        return True

    def _take_known(self, head: bytes) -> bool:
        line_end = head.find(b"\r\n")
        known = self._known.get(head[line_end:])
        if known is None:
            return False
        line = _PLAIN_LINE.fullmatch(head, 0, line_end)
        limits = self._limits
        if line is None or line_end > limits.max_request_line_bytes or len(head) > limits.max_head_bytes:
            return False
        self._in_body = self._is_known = self._keep_alive = True
        self._target, self._http_version = line[1], "1.1"
        self._headers, self._missing_bytes = known.headers.copy(), known.body_bytes
        self._complete = not known.body_bytes
        return True

    def _check_partial_head(self, partial: bytes) -> None:
        limits = self._limits
        if partial.find(b"\r\n") < 0 and len(partial) > limits.max_request_line_bytes:
            raise Refusal(414, "uri-too-long", f"the request line is over {limits.max_request_line_bytes} bytes")
        if len(partial) > limits.max_head_bytes:
            raise Refusal(431, "headers-too-large", f"the headers are over {limits.max_head_bytes} bytes")
        if self._checks > 0:
            self._checks -= 1
            try:
                httptools.HttpRequestParser(object()).feed_data(partial)
            except httptools.HttpParserError as exc:
                raise bad_request(_reason(exc)) from None

    def _check_raw_head(self, head: bytes) -> str:
        """The limits, and what must be known before llhttp sees the head. Gives the HTTP version."""
        limits = self._limits
        line_end = head.find(b"\r\n")
        if line_end > limits.max_request_line_bytes:
            raise Refusal(414, "uri-too-long", f"the request line is over {limits.max_request_line_bytes} bytes")
        if len(head) > limits.max_head_bytes:
            raise Refusal(431, "headers-too-large", f"the headers are over {limits.max_head_bytes} bytes")
        lines = head.count(b"\r\n")
        if lines - 2 > limits.max_header_count:
            raise Refusal(431, "headers-too-large", f"there are more than {limits.max_header_count} headers")
        last_word = head[line_end - 9 : line_end] if line_end >= 9 else b""
        version = _VERSIONS.get(last_word)
        if version is None:
            if last_word.startswith(b" HTTP/"):
                raise Refusal(505, "version-not-supported", "this port speaks HTTP/1.1 and HTTP/1.0")
            raise bad_request("the request line does not end with an HTTP version")
        if head.count(b"\r") != lines:
            raise bad_request("a carriage return without a line feed")
        if head.count(b" ", 0, line_end) != 2:
            raise bad_request("the request line is not three words with one space between them")
        if head.startswith(b"CONNECT "):
            raise Refusal(501, "not-implemented", "this server is not a proxy: CONNECT is not served")
        return version

    def _check_framing(self) -> None:
        """How the body is delimited. llhttp has refused most of what is ambiguous; that its reading and ours agree is
        checked all the same, for a difference between the two is how requests are smuggled."""
        framing = self._framing
        length, coding = framing.get(b"content-length"), framing.get(b"transfer-encoding")
        host = framing.get(b"host")
        if host is not None and host not in _good_hosts:
            check_host(host)
        if self._http_version == "1.1":
            if host is None:
                raise bad_request("the Host header is missing")
            self._expects = b"expect" in framing
            if framing.get(b"expect", b"100-continue").lower() != b"100-continue":
                raise Refusal(417, "expectation-failed", "only 100-continue can be expected")
        else:
            framing.pop(b"expect", None)
        if coding is not None:
            self._check_coding(coding, length)
            self._chunked = True
        elif length is not None:
            if _CONTENT_LENGTH.fullmatch(length) is None:
                raise bad_request("Content-Length is not a number")
            self._missing_bytes = int(length)
            if self._missing_bytes > self._limits.max_body_bytes:
                raise self._body_too_large()
        if self._complete != (not self._chunked and self._missing_bytes == 0):
            raise bad_request("the length of the body is ambiguous")

    def _check_coding(self, coding: bytes, length: bytes | None) -> None:
        if length is not None:
            raise bad_request("a request can't have both Content-Length and Transfer-Encoding")
        if self._http_version == "1.0":
            raise bad_request("HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise Refusal(501, "not-implemented", "chunked is the only Transfer-Encoding that this server reads")

    # -- the body

    def _read_counted_body(self) -> None:
        if self._missing_bytes == 0:
            return
        piece = self._buffer[self._at : self._at + self._missing_bytes]
        if not piece:
            return
        self._at += len(piece)
        self._missing_bytes -= len(piece)
        if self._is_known:
            self.on_body(piece)
            if self._missing_bytes == 0:
                self._complete = True
                self._budget.has_come(self)
            return
        self._feed(piece)
        if self._complete != (self._missing_bytes == 0):
            raise bad_request("the length of the body is ambiguous")

    def _read_chunked_body(self) -> None:
        buffer = self._buffer
        while self._at < len(buffer) and not self._complete:
            end = self._end_of_piece(buffer, self._at)
            piece = buffer[self._at : end]
            self._at = end
            self._feed(piece)
            self._tail = (self._tail + piece[-3:])[-3:]
            self._wire_bytes += len(piece)
            data_bytes = len(self._body)
            if self._wire_bytes - data_bytes > self._limits.max_head_bytes + _CHUNK_OVERHEAD_FACTOR * data_bytes:
                raise bad_request("chunk extensions or trailers are too large")

    def _end_of_piece(self, buffer: bytes, at: int) -> int:
        """The first place after ``at`` that follows a CRLFCRLF, which may have begun in the piece before."""
        seam = self._tail + buffer[at : at + 3]
        found = seam.find(_END)
        if found >= 0:
            return at + found + 4 - len(self._tail)
        found = buffer.find(_END, at)
        return found + 4 if found >= 0 else len(buffer)

    def _body_too_large(self) -> Refusal:
        return Refusal(413, "payload-too-large", f"the body is over {self._limits.max_body_bytes} bytes")

    def _take_request(self) -> ParsedRequest:
        assert self._llhttp is not None
        raw_path, _, query = origin_form(self._target).partition(b"?")
        if self._header_block is not None and self._keep_alive and not self._chunked and not self._expects:
            if len(self._known) == _KNOWN_MAX_COUNT:
                self._known.clear()
            length = self._framing.get(b"content-length")
            self._known[self._header_block] = _KnownHead(self._headers.copy(), 0 if length is None else int(length))
            if length is not None:
                self._remember_shape(self._header_block, length)
        headers, authority = self._headers, authority_of(self._target)
        if authority:  # it counts, whatever `Host` says (RFC 9112, 3.2.2)
            check_host(authority)
            headers = [(b"host", authority), *(pair for pair in headers if pair[0] != b"host")]
        request = ParsedRequest(
            "POST" if self._is_known else self._llhttp.get_method().decode("ascii"),
            raw_path,
            query,
            self._http_version,
            headers,
            bytes(self._body),
            self._keep_alive,
        )
        self._start_request()
        return request

    def _remember_shape(self, block: bytes, length: bytes) -> None:
        found, limits = _LENGTH_LINE.search(block), self._limits
        if found is None or found[1] != length:
            return
        if (
            limits.max_request_line_bytes < SHAPE_LINE_MAX_BYTES
            or limits.max_head_bytes < SHAPE_LINE_MAX_BYTES + len(block) + SHAPE_BODY_MAX_DIGITS
            or limits.max_body_bytes < 10**SHAPE_BODY_MAX_DIGITS
        ):
            return
        before, after = block[: found.start(1)], block[found.end(1) :]
        known = self._shape
        if known is None or known.before != before or known.after != after:
            self._shape = HeadShape(before, after, self._headers.copy())

    # -- llhttp's callbacks

    def _feed(self, data: bytes) -> None:
        assert self._llhttp is not None, "a closed parser was used"
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise bad_request("an Upgrade can't be offered like this") from None
        except httptools.HttpParserError as exc:
            raise self._refusal or bad_request(_reason(exc)) from None

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # a trailer: nothing here has a use for it, and merging it into the headers is a known hole
        name = name.lower()
        value = value.rstrip(b" \t")
        self._headers.append((name, value))
        if name in _FRAMING:
            if name in self._framing:
                self._refuse(bad_request(f"{name.decode('ascii')} stands twice"))
            self._framing[name] = value

    def on_body(self, data: bytes) -> None:
        size = len(data)
        if len(self._body) + size > self._limits.max_body_bytes:
            self._refuse(self._body_too_large())
        self._held_bytes += size
        if not self._budget.take(self, size):
            self._refuse(too_full())
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body)
            self._body += data

    def on_message_complete(self) -> None:
        assert self._llhttp is not None
        self._complete = True
        self._budget.has_come(self)
        self._keep_alive = self._llhttp.should_keep_alive()  # forgotten when this returns

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal  # httptools hides what a callback raises behind its own error
        raise refusal


def check_host(host: bytes) -> None:
    if _HOST.fullmatch(host) is None:
        raise bad_request("the Host header is not a host and port")
    if len(_good_hosts) < _HOSTS_KEPT:  # others are looked at each time
        _good_hosts.add(host)


def _reason(error: httptools.HttpParserError) -> str:
    return f"the request is not valid HTTP: {error}"
