"""HTTP/1.1 as the load generator needs it: requests built by hand once, answers read with as little work as possible.

One request in flight per connection, no pipelining. Our engine's answers tell their length; those of others may come
in chunks, without trailers.
"""

from __future__ import annotations

HEAD_END = b"\r\n\r\n"
CHUNKED = -1
USER_AGENT = "Go-http-client/1.1"


class UnexpectedAnswer(Exception):
    """The answer is no HTTP/1.1 with a known length."""


def encode_head(method: str, path: str, host: str, body_bytes: int) -> bytes:
    """Request line and headers, with the empty line that ends them: those of Go's client, in its order; it keeps the
    connection without a word."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nContent-Length: {body_bytes}\r\n"
        f"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    ).encode()


def encode_request(method: str, path: str, host: str, body: bytes) -> bytes:
    """A whole request."""
    return encode_head(method, path, host, len(body)) + body


def read_head(data: bytes | bytearray) -> tuple[int, int, int] | None:
    """Status, where the body begins, and how long it is, `CHUNKED` for chunks; None while the head is incomplete."""
    end = data.find(HEAD_END)
    if end < 0:
        return None
    status = int(data[9:12])
    if status == 204:
        return status, end + 4, 0
    head = data[:end].lower()
    at = head.find(b"content-length:")
    if at < 0 and b"\r\ntransfer-encoding: chunked" in head:
        return status, end + 4, CHUNKED
    if at < 0:
        raise UnexpectedAnswer(f"an answer without Content-Length: {bytes(data[:200])!r}")
    line_end = head.find(b"\r", at)
    return status, end + 4, int(head[at + 15 : line_end if line_end > 0 else end])


def read_chunks(data: bytes | bytearray, start: int) -> tuple[bytes, int] | None:
    """The body in chunks that begins there, and where it ends; None while it is incomplete."""
    parts: list[bytes] = []
    while (line_end := data.find(b"\r\n", start)) >= 0:
        size = int(bytes(data[start:line_end]).partition(b";")[0], 16)
        start = line_end + 2 + size + 2
        if len(data) < start:
            return None
        if not size:
            return b"".join(parts), start
        parts.append(bytes(data[line_end + 2 : start - 2]))
    return None
