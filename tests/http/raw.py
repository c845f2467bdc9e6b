"""A client that sends exactly the bytes it is told, and takes answers apart by hand, so that both sides of a test are
not the same parser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import trio


@dataclass(frozen=True)
class Answer:
    status: int
    version: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name} stands {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> None:
        data = await self.stream.receive_some(65_536)
        if not data:
            raise EOFError(f"closed with {self._buffer[:200]!r} unread")
        self._buffer += data

    async def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            await self._more()
        part, _, self._buffer = self._buffer.partition(end)
        return part

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        part, self._buffer = self._buffer[:count], self._buffer[count:]
        return part

    async def _to_end(self) -> bytes:
        while True:
            try:
                await self._more()
            except EOFError:
                part, self._buffer = self._buffer, b""
                return part

    async def read(self, *, method: str = "GET") -> Answer:
        """The next answer, to a request with this method."""
        head = (await self._until(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        answer = Answer(int(status), version, headers, b"")
        if method == "HEAD" or answer.status in (100, 204, 304):
            body = b""
        elif answer.header("transfer-encoding") == "chunked":
            assert answer.header("content-length") is None
            body = await self._read_chunks()
        elif (length := answer.header("content-length")) is not None:
            body = await self._exactly(int(length))
        else:
            assert answer.header("connection") == "close"
            body = await self._to_end()
        return Answer(answer.status, version, headers, body)

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int(await self._until(b"\r\n"), 16):
            body += await self._exactly(size)
            assert await self._exactly(2) == b"\r\n"
        assert await self._exactly(2) == b"\r\n"
        return body

    async def ask(self, data: bytes, *, method: str = "GET") -> Answer:
        await self.send(data)
        return await self.read(method=method)

    async def reads_end(self) -> bool:
        """True when the server has closed and nothing was left to read. Waits for it."""
        try:
            await self._more()
        except EOFError:
            return True
        except trio.BrokenResourceError:
            return not self._buffer
        return False


def post(path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: penstock", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: penstock", *headers]).encode() + b"\r\n\r\n"


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = ()) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: penstock", "Transfer-Encoding: chunked", *headers]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + framed + b"0\r\n\r\n"


def h2c_offer(path: str, body: bytes) -> bytes:
    """What Java's HttpClient sends."""
    return post(
        path,
        body,
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "Upgrade: h2c",
    )
