"""A request target in absolute form passes by no rule that looks at ``Host``: its host is the one that counts."""

from __future__ import annotations

import pytest

from penstock.http.asgi import Receive, Scope, Send
from tests.http.apps import answer, read_body
from tests.http.conftest import Serve, in_memory, serve_either

__all__ = ["serve_either"]


async def print_host(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    assert scope["raw_path"][:1] == b"/"
    await answer(send, 200, b"|".join(value for name, value in scope["headers"] if name == b"host"))


@pytest.mark.parametrize(
    ("target", "status", "host"),
    [
        ("/x", 200, b"a.example"),
        ("http://a.example/x", 200, b"a.example"),
        ("http://b.example/x", 200, b"b.example"),
        ("HTTP://b.example:81", 200, b"b.example:81"),
        ("http://b.example?x", 200, b"b.example"),
        ("http://b@a.example/x", 400, None),
    ],
)
async def test_the_host_of_the_target_counts(serve_either: Serve, target: str, status: int, host: bytes | None) -> None:
    async with serve_either(print_host) as http, http.client() as client:
        for _ in range(2):  # the second has the headers of the first
            reported = await client.ask(f"GET {target} HTTP/1.1\r\nhost: a.example\r\n\r\n".encode())
            assert reported.status == status
            if host is None:
                return
            assert reported.body == host


async def test_a_head_that_is_known_has_its_own_host_again() -> None:
    async with in_memory(print_host) as (_server, client, _ended):
        rest = "HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n\r\n{}"
        for target, host in [("http://b.example/x", b"b.example"), ("/x", b"a.example"), ("http://c/x", b"c")]:
            assert (await client.ask(f"POST {target} {rest}".encode())).body == host
