"""The Java client that workers in the field use, as it comes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import trio

from penstock.http import HttpLimits, HttpServer
from penstock.http.asgi import Receive, Scope, Send
from tests.http.apps import answer, read_body
from tests.http.conftest import running

PROGRAM = Path(__file__).parent / "java" / "Offers.java"
SIZES = [0, 1, 200, 20_000, 1_000_000, 200]


@pytest.mark.jdk
async def test_javas_default_client_is_understood_on_one_connection() -> None:
    clients, offers = set(), set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        clients.add(scope["client"])
        headers = dict(scope["headers"])
        offers.add(headers.get(b"http2-settings") is not None)
        body = await read_body(receive)
        kinds = sorted(set(body.decode()))
        await answer(send, 200, f"{scope['path']} {len(body)} {''.join(kinds)}".encode())

    async with running(HttpServer(HttpLimits()), app, deadline_s=60) as http:  # java compiles the program first
        done = await trio.run_process(
            ["java", str(PROGRAM), f"http://127.0.0.1:{http.port}"],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output = done.stdout.decode()
        assert done.returncode == 0, output
        expected = []
        for n, size in enumerate(SIZES):
            kind = chr(ord("a") + n) if size else ""
            expected += [f"HTTP_1_1 200 /{framed}/{n} {size} {kind}".strip() for framed in ("counted", "chunked")]
        assert [line.strip() for line in output.splitlines()] == [*expected, "HTTP_1_1 200 /get 0"]
        assert offers == {True}, "the client made no h2c offers: this test proves nothing"
        assert len(clients) == 1
        assert http.server.statistics().accepted_total == 1
