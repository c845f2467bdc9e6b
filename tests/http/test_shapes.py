"""What is taken for a request like the one before (`Shape`) is read alike by the parser, whatever the bytes."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.http.limits import HttpLimits
from penstock.http.parser import RequestParser
from penstock.http.refusal import Refusal
from penstock.http.request import BodyBudget, ParsedRequest

LINES = [b"POST /jobs HTTP/1.1", b"POST /jobs/x-1 HTTP/1.1", b"POST /" + b"j" * 180 + b" HTTP/1.1"]
LENGTHS = [
    b"Content-Length: %d", b"content-length:%d", b"CONTENT-LENGTH: \t %d", b"Content-Length: 0%d",
    b"Content-Length: %d ", b"Content-Length : %d", b" Content-Length: %d", b"X: y\r\n Content-Length: %d",
    b"X-Content-Length: 3\r\nContent-Length: %d", b"Content-Length: %d\r\nContent-Length: 3",
    b"Content-Length: %d,3", b"Content-Length: +%d", b"X: Content-Length: 3\r\nContent-Length: %d",
]  # fmt: skip
OTHERS = [
    b"X-More: content-length: 7", b"Accept: */*", b"Authorization: Bearer a", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity", b"Connection: close", b"Connection: keep-alive", b"Connection: keep-alive, close",
    b"Expect: 100-continue", b"Upgrade: h2c", b"Host: other", b"Trailer: X", b"X: y\r\n folded", b"Content-Length: 3",
]  # fmt: skip
BODIES = [b"a", b"abc", b"abc" * 100, b"0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b""]


class Sent(NamedTuple):
    """What a client sends: one request, and another that may be like it."""

    length: bytes
    before: list[bytes]
    behind: list[bytes]
    first: bytes
    second: bytes
    line: bytes
    reported: int
    """So much more than there is."""
    at: int
    other: bytes
    """In place of as many bytes there."""
    more: bytes

    def head(self, line: bytes, size: int) -> bytes:
        return b"\r\n".join([line, b"Host: penstock", *self.before, self.length % size, *self.behind, b"", b""])

    @property
    def like_it(self) -> bytes:
        data = self.head(self.line, max(0, len(self.second) + self.reported)) + self.second
        return data[: self.at] + self.other + data[self.at + len(self.other) :] + self.more


sent = st.builds(
    Sent,
    st.sampled_from(LENGTHS[:3]) | st.sampled_from(LENGTHS),
    st.lists(st.sampled_from(OTHERS), max_size=2),
    st.lists(st.sampled_from(OTHERS[:3]) | st.sampled_from(OTHERS), max_size=2),
    st.sampled_from(BODIES),
    st.sampled_from(BODIES),
    st.sampled_from(LINES),
    st.sampled_from([0, 0, 0, -1, 1, 10]),
    st.integers(0, 400),
    st.just(b"") | st.just(b"") | st.binary(max_size=2) | st.sampled_from([b"\r", b"\n", b" ", b"0", b":"]),
    st.just(b"") | st.just(b"") | st.sampled_from([b"\r\n", b"POST", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"]),
)


def parser() -> RequestParser:
    return RequestParser(HttpLimits(), BodyBudget(10_000_000))


def read(reader: RequestParser, data: bytes) -> ParsedRequest | None:
    reader.receive(data)
    return reader.next_request()


def taken(given: Sent) -> bool:
    """Whether the second request is taken for one like the first; then it was read as such."""
    reader = parser()
    try:
        if read(reader, given.head(LINES[0], len(given.first)) + given.first) is None:
            return False
    except Refusal:
        return False
    data, shape = given.like_it, reader.shape_of_next()
    line_end = data.find(b"\r\n")
    body_at = 0 if shape is None else shape.body_at(data, line_end)
    if shape is None or body_at == 0 or data[:line_end] not in LINES:  # the application takes the lines it knows
        return False
    alone = parser()
    request = read(alone, data)
    assert request is not None
    assert (request.method, request.raw_path) == ("POST", data[:line_end].split(b" ")[1])
    assert (request.body, request.keep_alive, request.http_version) == (data[body_at:], True, "1.1")
    lengths = {b"content-length"}
    assert [pair for pair in request.headers if pair[0] not in lengths] == [
        pair for pair in shape.headers if pair[0] not in lengths
    ]
    assert alone.unread_bytes == 0
    return True


@settings(max_examples=500, deadline=None)
@given(sent)
@example(Sent(LENGTHS[0], [], [], b"a", b"abc", LINES[1], 0, 0, b"", b""))
def test_what_is_taken_is_read_alike(given: Sent) -> None:
    taken(given)


def test_usual_requests_are_taken() -> None:
    for length in LENGTHS[:3]:
        for body in (b"a", b"z" * 20_000):
            assert taken(Sent(length, OTHERS[:1], OTHERS[1:3], b"abc", body, LINES[1], 0, 0, b"", b""))
