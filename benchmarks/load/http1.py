"""HTTP/1.1 as the load generator needs it: requests built by hand once, answers read with as little work as possible.

One request in flight per connection, no pipelining, no chunked answers: the engine's hot routes send a Content-Length.
"""

from __future__ import annotations

HEAD_END = b"\r\n\r\n"


class UnexpectedAnswer(Exception):
    """The answer is no HTTP/1.1 with a known length."""


def encode_head(method: str, path: str, host: str, body_bytes: int) -> bytes:
    """Request line and headers, with the empty line that ends them."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {body_bytes}\r\n\r\n"
    ).encode()


def encode_request(method: str, path: str, host: str, body: bytes) -> bytes:
    """A whole request."""
    return encode_head(method, path, host, len(body)) + body


def read_head(data: bytes | bytearray) -> tuple[int, int, int] | None:
    """Status, where the body begins, and how long it is; None while the head is incomplete."""
    end = data.find(HEAD_END)
    if end < 0:
        return None
    status = int(data[9:12])
    if status == 204:
        return status, end + 4, 0
    head = data[:end].lower()
    at = head.find(b"content-length:")
    if at < 0:
        raise UnexpectedAnswer(f"an answer without Content-Length: {bytes(data[:200])!r}")
    line_end = head.find(b"\r", at)
    return status, end + 4, int(head[at + 15 : line_end if line_end > 0 else end])
