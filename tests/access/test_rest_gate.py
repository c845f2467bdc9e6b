"""REST with authentication: the table of roles row by row, what is a proof, and who is told what."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio

from penstock.access.gate import Gate
from penstock.access.identity import current_identity
from penstock.access.roles import LEAST_ROLE, read_grant
from penstock.access.tokens import KnownToken, make_token
from penstock.api.permission import Permission
from penstock.rest.operations import OPERATIONS
from penstock.settings import Settings
from tests.access.people import TOKENS, bearer, make_gate
from tests.rest.scripted import Rest, ScriptedEngine


def rest(**gate: Any) -> Rest:
    return Rest(ScriptedEngine(authentication=True), gate=make_gate(**gate))


@pytest.fixture(scope="module")
def one_for_all() -> Rest:
    """An application takes longer to make than to ask."""
    return rest()


@pytest.fixture
def api(one_for_all: Rest) -> Rest:
    """With the default settings; it has called nothing yet."""
    one_for_all.engine.calls.clear()
    return one_for_all


def path_of(pattern: str) -> str:
    return re.sub(r"\{number\}", "1", re.sub(r"\{\w*[iI]d\}", "1f-1-0", pattern))


@pytest.mark.parametrize(("method", "pattern", "needed"), [(row.method, row.path, row.needs) for row in OPERATIONS])
async def test_each_route_takes_only_the_roles_of_its_row(
    api: Rest, method: str, pattern: str, needed: Permission
) -> None:
    path = path_of(pattern)
    unknown = await api.send(method, path, b"{}")
    assert (unknown.status == 401) == (needed is not Permission.NONE)
    if unknown.status == 401:
        assert unknown.error[1] == "unauthenticated"
        assert unknown.headers["www-authenticate"] == 'Bearer realm="penstock"'
    for role in TOKENS:
        api.engine.calls.clear()
        answer = await api.send(method, path, b"{}", {"Authorization": bearer(role)})
        allowed = needed in {*read_grant(role).permissions, Permission.NONE, Permission.PROVED}
        assert (answer.status not in (401, 403)) == allowed, (role, answer)
        if not allowed:
            reason = f"this needs the role {LEAST_ROLE[needed]}, which token:{role} does not have"
            assert answer.error == (403, "forbidden", reason)
            assert not api.engine.calls


async def test_head_needs_what_get_needs() -> None:
    api = rest()
    assert (await api.send("HEAD", "/v1/definitions")).status == 401
    assert (await api.send("HEAD", "/v1/definitions", headers={"Authorization": bearer("worker")})).status == 403
    assert (await api.send("HEAD", "/healthz")).status == 200


@pytest.mark.parametrize("path", ["/", "/v1/nothing", "/V1/instances", "/v1/jobs/poll/", "/v1/instances/1f/nothing"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_nobody_unknown_learns_what_there_is(api: Rest, method: str, path: str) -> None:
    assert (await api.send(method, path)).status == 401
    assert (await api.send(method, path, headers={"Authorization": bearer("viewer")})).status in (404, 405)


async def test_a_preflight_needs_no_token_whatever_its_origin() -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    answer = await rest().send("OPTIONS", "/v1/instances", headers=asked)
    assert (answer.status, "Authorization" in answer.headers["access-control-allow-headers"]) == (204, True)
    refused = await rest().get("/v1/instances", Origin="https://a.example")
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "*")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic " + "dXNlcjpwYXNz",
        "Token {0}",
        "{0}",
        "Bearer {0} {0}",
        "Bearer {0}, Bearer {0}",
        "Bearer\t{0}",
        "Bearer {0}x",
        "Bearer a.b.c",
    ],
)
async def test_what_is_no_token_is_refused(api: Rest, value: str) -> None:
    answer = await api.get("/v1/definitions", Authorization=value.format(TOKENS["viewer"].text))
    assert answer.error[:2] == (401, "unauthenticated")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_name_of_the_scheme_has_no_case(api: Rest, scheme: str) -> None:
    value = f"{scheme}  {TOKENS['viewer'].text}"
    assert (await api.get("/v1/definitions", Authorization=value)).status == 200


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "api_key", "bearer"])
async def test_a_token_in_the_query_is_none(api: Rest, name: str) -> None:
    assert (await api.get(f"/v1/definitions?{name}={TOKENS['admin'].text}")).status == 401


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Client-IP", "True-Client-IP"])
async def test_only_the_sockets_address_is_in_a_network(name: str) -> None:
    api = rest(trusted_networks=("10.0.0.0/8=admin",))
    assert (await api.send("GET", "/v1/definitions", headers={name: "10.0.0.1"})).status == 401
    assert (await api.send("GET", "/v1/definitions", headers={name: "for=10.0.0.1"})).status == 401


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
async def test_the_method_is_the_requests_own(api: Rest, name: str) -> None:
    headers = {"Authorization": bearer("viewer"), name: "POST"}
    await api.send("GET", "/v1/instances", headers=headers)
    assert "instances.start" not in api.engine.calls
    answer = await api.send("POST", "/v1/instances", b"{}", {"Authorization": bearer("viewer"), name: "GET"})
    assert answer.status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/../v1/definitions",
        "/healthz/%2e%2e/v1/definitions",
        "//v1/definitions",
        "/v1/definitions;/healthz",
        "/healthz%2f..%2fv1%2fdefinitions",
        "/v1/jobs/%2e%2e/definitions",
        "/v1/definitions%00",
    ],
)
async def test_no_spelling_of_a_path_gets_around_the_table(api: Rest, path: str) -> None:
    assert (await api.get(path)).status in ((400,) if "%00" in path else (401, 404))
    assert not api.engine.calls


async def test_a_network_gives_a_role_that_a_wrong_token_removes() -> None:
    api = rest(trusted_networks=("127.0.0.0/8=viewer",))
    assert (await api.get("/v1/definitions")).status == 200
    assert (await api.get("/v1/me")).json == {"can": ["view"], "name": "network:127.0.0.0/8"}
    assert (await api.get("/v1/definitions", Authorization="Bearer wrong")).status == 401
    assert (await api.post("/v1/jobs/poll", {}, Authorization=bearer("worker"))).status == 400


@pytest.mark.parametrize(
    ("role", "can"),
    [
        ("viewer", ["view"]),
        ("clerk", ["view", "tasks"]),
        ("worker", ["work"]),
        ("operator", ["view", "operate", "tasks"]),
        ("admin", ["view", "operate", "model", "tasks", "work"]),
    ],
)
async def test_me_says_what_the_table_allows(role: str, can: list[str]) -> None:
    assert (await rest().get("/v1/me", Authorization=bearer(role))).json == {"can": can, "name": f"token:{role}"}


async def test_me_tells_a_workers_job_types() -> None:
    limited = rest(grants={"worker": "worker(ship|pack)"})
    me = (await limited.get("/v1/me", Authorization=bearer("worker"))).json
    assert me == {"can": ["work"], "name": "token:worker", "jobTypes": ["pack", "ship"]}


async def test_docs_open_in_a_browser_and_show_nothing_without_token() -> None:
    api = rest()
    assert (await api.get("/docs")).status == 200
    assert (await api.get("/openapi.json")).status == 401


async def test_without_authentication_everybody_may_do_everything() -> None:
    assert (await Rest(ScriptedEngine()).get("/v1/me")).json == {"can": ["view", "operate", "model", "tasks", "work"]}


async def test_callers_on_one_connection_are_distinguished() -> None:
    """One task serves all requests of a connection."""
    api, seen = rest(), []

    async def note(*_: object) -> None:
        identity = current_identity()
        seen.append(None if identity is None else identity.name)

    api.engine.on("engine.ready", note)
    api.engine.on("definitions.list", note)
    await api.get("/v1/definitions", Authorization=bearer("admin"))
    await api.get("/readyz")
    await api.get("/v1/definitions", Authorization=bearer("viewer"))
    assert seen == ["token:admin", None, "token:viewer"]


async def test_no_answer_may_be_kept_for_others() -> None:
    api = rest()
    for path in ("/v1/definitions", "/v1/me", "/healthz", "/nothing"):
        for headers in ({}, {"Authorization": bearer("viewer")}):
            assert (await api.send("GET", path, headers=headers)).headers["cache-control"] == "no-store"
    answer = await api.post("/v1/instances", {"definitionId": "a"}, Authorization=bearer("operator"))
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "operation", "body"),
    [
        ("/v1/jobs/poll", "jobs.poll", rb'{"workerId": "w", "jobTypes": ["a"], "waitSeconds": 60}'),
        ("/v1/instances", "instances.start", rb'{"definitionId": "a", "waitSeconds": 60}'),
        ("/v1/instances", "instances.start", rb'{"definitionId": "a", "wait\u0053econds": 60}'),
    ],
    ids=["poll", "start", "escaped"],
)
async def test_a_parked_call_ends_when_its_token_is_revoked(path: str, operation: str, body: bytes) -> None:
    gate, made = make_gate(), make_token()
    gate.replace_tokens([KnownToken("x", "x", made.digest, read_grant("worker+operator"), float("inf"))])
    api = Rest(ScriptedEngine(authentication=True), gate=gate)
    parked = trio.Event()

    async def park(_request: object) -> list[object]:
        parked.set()
        await trio.sleep_forever()
        raise AssertionError

    api.engine.on(operation, park)
    async with trio.open_nursery() as nursery:

        async def revoke() -> None:
            await parked.wait()
            gate.replace_tokens([])

        nursery.start_soon(revoke)
        answer = await api.send("POST", path, body, {"Authorization": f"Bearer {made.text}"})
    assert answer.error == (401, "unauthenticated", "the token was revoked")


async def test_readyz_says_that_an_engine_is_insecure() -> None:
    assert (await Rest(ScriptedEngine(insecure=True)).get("/readyz")).json == {"status": "ready", "insecure": True}
    assert (await Rest(ScriptedEngine()).get("/readyz")).json == {"status": "ready"}


async def test_a_gate_that_knows_nobody_lets_nobody_in() -> None:
    api = Rest(ScriptedEngine(), gate=Gate(Settings(authentication=True)))
    assert (await api.get("/v1/definitions", Authorization=bearer("admin"))).status == 401
