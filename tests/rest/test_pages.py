"""Web pages of other origins, and names bent to this machine: what a browser sends for them gets no answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.access.people import bearer, make_gate
from tests.rest.scripted import Answer, Rest, ScriptedEngine

ELSEWHERE = "https://evil.example"
OURS = "http://localhost:8080"
LISTED = ("https://modeller.example", "http://localhost:5173")


async def ask(engine: ScriptedEngine, method: str = "POST", gate: Any = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Rest(engine, gate=gate).send(method, "/v1/instances", b'{"definitionId":"a"}', named)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ELSEWHERE},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:8080.evil.example"},
        {"Origin": "http://evil.example#localhost:8080"},
        {"Origin": "http://user@localhost:8080"},
        {"Origin": "localhost:8080"},
        {"Origin": ELSEWHERE, "Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": ELSEWHERE, "Content_Type": "text/plain"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
async def test_without_authentication_a_foreign_page_gets_403(method: str, headers: dict[str, str]) -> None:
    engine = ScriptedEngine()
    answer = await ask(engine, method, Host="localhost:8080", **headers)
    assert answer.error[:2] == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    assert not engine.calls


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Origin": OURS},
        {"Origin": OURS.upper()},
        {"Origin": "https://localhost:8080"},
        {"Origin": LISTED[0], "Sec_Fetch_Site": "cross-site"},
        {"Origin": LISTED[1], "Sec_Fetch_Site": "same-site"},
    ],
)
async def test_own_and_listed_pages_get_through_and_programs_too(headers: dict[str, str]) -> None:
    engine = ScriptedEngine(cors_origins=LISTED)
    assert (await ask(engine, Host="localhost:8080", **headers)).status == 201


@pytest.mark.parametrize(
    ("origin", "host"), [("http://a.example", "a.example:80"), ("https://a.example", "a.example:443")]
)
async def test_a_port_that_goes_without_saying_is_the_same(origin: str, host: str) -> None:
    engine = ScriptedEngine(insecure=True, bind="0.0.0.0")
    assert (await ask(engine, Host=host, Origin=origin)).status == 201


async def test_any_origin_may_read_only_where_that_was_configured() -> None:
    engine = ScriptedEngine(cors_origins=("*",))
    assert (await ask(engine, "GET", Origin=ELSEWHERE)).headers["access-control-allow-origin"] == "*"
    assert (await ask(engine, "POST", Origin=ELSEWHERE)).status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "LocalHost:1", "127.0.0.1:8080", "[::1]", "[::1]:8080"]
)
async def test_on_loopback_only_this_machines_names_are_answered(host: str) -> None:
    engine = ScriptedEngine()
    for _ in range(2):
        assert (await ask(engine, Host=host)).status == 201


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.",
        "127.1",
        "2130706433",
        "[::]",
        "",
        ":80",
    ],
)
@pytest.mark.parametrize("authentication", [False, True])
async def test_on_loopback_the_engine_answers_to_no_other_name(host: str, authentication: bool) -> None:
    engine = ScriptedEngine(authentication=authentication)
    gate = make_gate() if authentication else None
    answer = await ask(engine, gate=gate, Host=host, Origin=f"http://{host}", Authorization=bearer("admin"))
    assert answer.error[:2] == (403, "forbidden")
    assert not engine.calls


async def test_more_names_can_be_allowed_and_only_those_work() -> None:
    listed = ScriptedEngine(allowed_hosts=("wf.example", "[fd00::1]"))
    assert [(await ask(listed, Host=host)).status for host in ("wf.example:1", "[fd00::1]:1", "localhost", "x")] == [
        201, 201, 201, 403,
    ]  # fmt: skip
    public = {"insecure": True, "bind": "0.0.0.0"}
    assert (await ask(ScriptedEngine(**public), Host="anything.example")).status == 201
    named = ScriptedEngine(**public, allowed_hosts=("wf.example",))
    assert [(await ask(named, Host=host)).status for host in ("wf.example", "localhost")] == [201, 403]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_come_by_address_where_others_reach_the_engine(path: str) -> None:
    public = {"insecure": True, "bind": "0.0.0.0", "allowed_hosts": ("wf.example",)}
    for settings, host, status in (
        (public, "10.1.2.3:8080", 200),
        ({}, "evil.example", 403),  # bent to this machine
    ):
        answer = await Rest(ScriptedEngine(**settings)).send("GET", path, headers={"Host": host})
        assert answer.status == status
    foreign = {"Host": "10.1.2.3:8080", "Origin": ELSEWHERE}
    assert (await Rest(ScriptedEngine(**public)).send("GET", path, headers=foreign)).status == 403


async def test_with_authentication_any_origin_may_call_with_a_token() -> None:
    engine = ScriptedEngine(authentication=True)
    answer = await ask(engine, gate=make_gate(), Origin=ELSEWHERE, Authorization=bearer("operator"))
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (201, "*")


@pytest.mark.parametrize("headers", [{"Origin": ELSEWHERE}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}])
async def test_browser_proofs_for_any_page_count_for_own_pages(headers: dict[str, str]) -> None:
    gate = make_gate(trusted_networks=("127.0.0.0/8=operator",))
    engine = ScriptedEngine(authentication=True)
    assert (await ask(engine, gate=gate, Host="localhost:8080", **headers)).status == 401
    assert (await ask(engine, gate=gate, Host="localhost:8080", Origin=OURS)).status == 201
    assert (await ask(engine, gate=gate)).status == 201
