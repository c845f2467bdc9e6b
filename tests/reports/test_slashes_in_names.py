"""A path is parted at its slashes before it is decoded, so that a name may hold one.

Reported: queues and schedules with a slash in their names, made over gRPC or from a file, were 404 over REST, and
`POST /v1/schedules/zz%2Ftrigger` triggered the schedule `zz`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest

from penstock.errors import NotFound
from penstock.http import AsgiServer, HttpServer
from penstock.http.hypercorn_seam import HypercornServer
from penstock.rest.app import make_app
from penstock.rest.operations import OPERATIONS
from penstock.wire.paths import UNREADABLE, read_part, read_path
from tests.http.conftest import running
from tests.rest.scripted import Rest, ScriptedEngine


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        (b"/v1/queues/eu%2Fmail", ["", "v1", "queues", "eu/mail"]),
        (b"/v1/queues/eu%2fmail/pause", ["", "v1", "queues", "eu/mail", "pause"]),
        (b"/a%252Fb", ["", "a%2Fb"]),
        (b"/%2F", ["", "/"]),
        (b"/%C3%A9%20", ["", "é "]),
        (b"/100%", ["", "100%"]),
        (b"/%zz", ["", "%zz"]),
        (b"/plain", ["", "plain"]),
        (b"/a//b/./../%2e%2e", ["", "a", "", "b", ".", "..", ".."]),
        (b"/\xc3\xa9", ["", "é"]),
        (b"/\xc3\xa9%20", ["", "é "]),
    ],
)
def test_a_path_is_parted_first_and_decoded_then(raw: bytes, parts: list[str]) -> None:
    assert [read_part(part) for part in read_path(raw).split("/")] == parts


@pytest.mark.parametrize(
    "raw", [b"/a%00b", b"/%E2%82", b"/%FF", b"/%ED%A0%80", b"/%C0%AF", b"/\xff", b"/\xff%20", b"/a\0b"]
)
def test_nul_and_what_is_not_utf_8_is_unreadable(raw: bytes) -> None:
    assert read_path(raw) == UNREADABLE


SERVERS = pytest.mark.parametrize("server_type", [HttpServer, HypercornServer], ids=["native", "hypercorn"])


@asynccontextmanager
async def serving(server_type: type[AsgiServer]) -> AsyncGenerator[tuple[ScriptedEngine, httpx.AsyncClient]]:
    engine = ScriptedEngine()
    async with (
        running(server_type(), make_app(cast(Any, engine))) as served,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}") as client,
    ):
        yield engine, client


SLASHED = [
    ("GET", "/v1/schedules/{}", "schedules.get"),
    ("POST", "/v1/schedules/{}/trigger", "schedules.trigger"),
    ("DELETE", "/v1/schedules/{}", "schedules.delete"),
    ("GET", "/v1/queues/{}", "queues.get"),
    ("POST", "/v1/queues/{}/pause", "queues.pause"),
    ("DELETE", "/v1/queues/{}", "queues.delete"),
    ("GET", "/v1/definitions/{}", "definitions.get"),
    ("GET", "/v1/definitions/{}/versions/1", "definitions.get"),
]


@pytest.mark.parametrize(
    "name",
    [
        "eu/mail",
        "zz/trigger",
        "a/versions",
        "/",
        "//x//",
        "a%2Fb",
        "é/ü",
        "a b",
        "%",
        "a%2",
        "%252F",
        "a;b=c?d#e",
        "a.",
        "../x",
        " ",
        "a\r\nb",
        "😀",
        "e\u0301",
        "\u200e",
        "{a}",
        "*",
        "x" * 300,
    ],
)
@SERVERS
async def test_both_servers_find_what_has_a_slash_in_its_name(server_type: type[AsgiServer], name: str) -> None:
    async with serving(server_type) as (engine, client):
        for method, path, operation in SLASHED:
            engine.on(operation, NotFound("unknown"))
            await client.request(method, path.format(quote(name, safe="")))
            assert engine.calls[operation][-1][0] == name, (method, path)


@pytest.mark.parametrize("part", ["a%00b", "%E2%82", "%FF"])
@SERVERS
async def test_both_servers_refuse_a_path_that_is_no_text(server_type: type[AsgiServer], part: str) -> None:
    paths = {operation.path for operation in OPERATIONS if "{" in operation.path}
    assert len(paths) > 20
    async with serving(server_type) as (engine, client):
        for path in sorted(paths):
            for place in [piece for piece in path.split("/") if piece.startswith("{")]:
                answer = await client.get(path.replace(place, part).replace("{", "").replace("}", ""))
                assert (answer.status_code, answer.json()["error"]) == (400, "bad-request"), path
        assert not engine.calls


async def test_an_act_is_no_part_of_a_name() -> None:
    engine = ScriptedEngine()
    answer = await Rest(engine).post("/v1/schedules/zz%2Ftrigger", b"")
    assert (answer.status, engine.calls) == (405, {})


@pytest.mark.parametrize("step", ["a/b", "a\nb", "\n", "a%2Fb", "..", "é"])
async def test_a_step_is_found_by_each_text(step: str) -> None:
    engine = ScriptedEngine()
    engine.on("tasks.signal", NotFound("unknown"))
    await Rest(engine).post(f"/v1/instances/1f/signals/{quote(step, safe='')}", b"{}")
    assert engine.one("tasks.signal").step_id == step
