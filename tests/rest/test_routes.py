"""Which requests reach which handler, and what all answers have in common."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from penstock.log.log import trace_id
from penstock.rest.app import RestApp
from penstock.rest.cors import Cors
from tests.rest.scripted import Rest, ScriptedEngine, instance

# -- paths and methods


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1"),
        ("GET", "/v1/instances/"),
        ("GET", "//v1/instances"),
        ("GET", "/v1//instances"),
        ("POST", "//v1/jobs/poll"),
        ("POST", "/v1/jobs/poll/"),
        ("POST", "/v1/jobs//complete"),
        ("POST", "/v1/jobs/a/b/complete"),
        ("POST", "/v1/jobs/a/dance"),
        ("GET", "/v2/instances"),
        ("POST", "/v1%2Fjobs/poll"),
        ("GET", "/v1/instances%2F1f"),
        ("DELETE", "/nowhere"),
        ("OPTIONS", "/nowhere"),
    ],
)
async def test_an_unknown_path_is_404_with_the_error_object(
    rest: Rest, engine: ScriptedEngine, method: str, path: str
) -> None:
    from penstock.errors import NotFound

    engine.on("instances.get", NotFound("unknown"))
    assert (await rest.send(method, path)).error[:2] == (404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/jobs/poll", "POST, OPTIONS"),
        ("PUT", "/v1/jobs/1f-1-0/complete", "POST, OPTIONS"),
        ("HEAD", "/v1/jobs/complete", "POST, OPTIONS"),
        ("DELETE", "/v1/instances", "GET, HEAD, POST, OPTIONS"),
        ("POST", "/v1/instances/1f", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/instances/1f/cancel", "POST, OPTIONS"),
        ("PATCH", "/v1/definitions", "GET, HEAD, POST, OPTIONS"),
        ("PROPFIND", "/v1/definitions/a/versions/1", "GET, HEAD, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_405_with_allow(rest: Rest, method: str, path: str, allow: str) -> None:
    answer = await rest.send(method, path)
    assert answer.error[:2] == (405, "method-not-allowed")
    assert answer.headers["allow"] == allow


async def test_options_tells_the_methods_of_a_path(rest: Rest) -> None:
    answer = await rest.send("OPTIONS", "/v1/instances")
    assert (answer.status, answer.headers) == (
        204,
        {"allow": "GET, HEAD, POST, OPTIONS", "x-content-type-options": "nosniff"},
    )


async def test_head_is_answered_like_get(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.get", instance())
    answer = await rest.send("HEAD", "/v1/instances/1f")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("path", ["LOS::loan", "LOS%3A%3Aloan", "LOS%3a%3aloan"])
async def test_ids_come_percent_encoded_or_not(rest: Rest, engine: ScriptedEngine, path: str) -> None:
    from penstock.errors import NotFound

    engine.on("definitions.get", NotFound("unknown"))
    await rest.get(f"/v1/definitions/{path}")
    assert engine.one("definitions.get") == "LOS::loan"


@pytest.mark.parametrize(
    ("path", "step_id"),
    [
        ("approve", "approve"),
        ("check%20it", "check it"),
        ("a%2Fb", "a/b"),
        ("%2Fa%2F%2Fb%2F", "/a//b/"),
        ("complete", "complete"),
        ("%C3%A9", "é"),
        ("100%25", "100%"),
    ],
)
async def test_a_step_id_in_the_path_may_be_anything(
    rest: Rest, engine: ScriptedEngine, path: str, step_id: str
) -> None:
    assert (await rest.post(f"/v1/instances/1f/user-tasks/{path}/complete", b"")).status == 204
    assert (await rest.post(f"/v1/instances/1f/signals/{path}", b"")).status == 204
    assert engine.one("tasks.complete_user_task").step_id == step_id
    assert engine.one("tasks.signal").step_id == step_id


# -- CORS


async def test_with_authentication_any_origin_may_call() -> None:
    engine = ScriptedEngine(authentication=True)
    rest = Rest(engine)
    engine.on("instances.get", instance())
    for answer in (
        await rest.get("/v1/instances/1f", Origin="https://a.example"),
        await rest.get("/nowhere", Origin="https://a.example"),
        await rest.post("/v1/jobs/j/complete", {"workerId": "w"}, Origin="https://a.example"),
        await rest.post("/v1/jobs/j/complete", {}, Origin="https://a.example"),
        await rest.post("/v1/instances/1f/signals/s", b"", Origin="https://a.example"),
    ):
        assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in (await rest.get("/v1/instances/1f")).headers


@pytest.mark.parametrize("path", ["/v1/jobs/poll", "/v1/instances/1f", "/nowhere"])
async def test_a_preflight_lists_methods_and_headers(path: str) -> None:
    rest = Rest(ScriptedEngine(authentication=True))  # without, only known origins may call: test_pages.py
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    answer = await rest.send("OPTIONS", path, headers=asked)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers == {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "GET, POST, PUT, DELETE, OPTIONS",
        "access-control-allow-headers": "Accept, Authorization, Content-Type, Idempotency-Key, traceparent",
        "access-control-max-age": "600",
        "x-content-type-options": "nosniff",
    }


async def test_origins_can_be_chosen() -> None:
    rest = Rest(ScriptedEngine(cors_origins=("https://a.example",), cors_headers=("X-Mine",)))
    asked = {"Access-Control-Request-Method": "POST"}
    ours = await rest.send("OPTIONS", "/v1/instances", headers={"Origin": "https://a.example", **asked})
    assert ours.headers["access-control-allow-origin"] == "https://a.example"
    assert ours.headers["access-control-allow-headers"] == "X-Mine"
    assert ours.headers["vary"] == "Origin"
    theirs = await rest.send("OPTIONS", "/v1/instances", headers={"Origin": "https://b.example", **asked})
    assert (theirs.status, theirs.headers["vary"]) == (403, "Origin")
    assert not [name for name in theirs.headers if name.startswith("access-control")]


def test_answers_without_a_known_origin_name_none() -> None:
    assert Cors(("*", "https://a.example"), ()).unasked == ((b"access-control-allow-origin", b"*"),)
    assert Cors(("https://a.example",), ()).unasked == ()
    assert Cors((), ()).unasked == ()


async def test_origins_can_be_none() -> None:
    answer = await Rest(ScriptedEngine(cors_origins=())).get("/healthz", Origin="https://a.example")
    assert "access-control-allow-origin" not in answer.headers


# -- metrics and traces


def counted(engine: ScriptedEngine) -> dict[tuple[str, str, str], float]:
    found = {}
    for family in engine.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "http_requests_duration_seconds_count":
                labels = sample.labels
                found[labels["method"], labels["path"], labels["status"]] = sample.value
    return found


async def test_requests_are_counted_by_the_pattern_of_their_route(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.get", instance())
    await rest.post("/v1/jobs/1f-1-0/complete", {"workerId": "w"})
    await rest.post("/v1/jobs/1f-2-0/complete", {"workerId": "w"})
    await rest.post("/v1/jobs/1f-1-0/complete", {})
    await rest.get("/v1/instances/1f")
    await rest.post("/v1/instances/1f/signals/any/step", b"")
    await rest.get("/made/up")
    await rest.send("PUT", "/v1/instances/1f")
    await rest.send("MKCOL", "/v1/instances/1f")
    assert counted(engine) == {
        ("POST", "/v1/jobs/{id}/complete", "204"): 2,
        ("POST", "/v1/jobs/{id}/complete", "400"): 1,
        ("GET", "/v1/instances/{id}", "200"): 1,
        ("POST", "/v1/instances/{id}/signals/{stepId}", "204"): 1,
        ("GET", "(unknown)", "404"): 1,
        ("PUT", "(unknown)", "405"): 1,
        ("OTHER", "(unknown)", "405"): 1,
    }


async def test_a_request_that_broke_off_is_counted_and_not_answered(engine: ScriptedEngine) -> None:
    app = RestApp(cast(Any, engine), lambda: ())
    for path in ("/v1/jobs/poll", "/v1/definitions"):
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive(messages: list[dict[str, Any]] = messages) -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: dict[str, Any]) -> None:
            raise AssertionError(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await app(scope, receive, send)
    assert counted(engine) == {("POST", "/v1/jobs/poll", "499"): 1, ("POST", "(unknown)", "499"): 1}
    assert not engine.calls


async def test_the_trace_of_a_request_is_that_of_its_task(rest: Rest, engine: ScriptedEngine) -> None:
    seen: list[str | None] = []

    async def note(*_: object) -> Any:
        seen.append(trace_id())
        return instance()

    engine.on("jobs.complete", note)
    engine.on("instances.get", note)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traceparent = f"00-{trace}-00f067aa0ba902b7-01"
    for header in ({"traceparent": traceparent}, {}, {"traceparent": "nonsense"}):
        await rest.post("/v1/jobs/j/complete", {"workerId": "w"}, **header)
        await rest.get("/v1/instances/1f", **header)
    assert seen == [trace, trace, None, None, None, None]


# -- lifespan


async def test_lifespan_is_answered(engine: ScriptedEngine) -> None:
    app = RestApp(cast(Any, engine), lambda: ())
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_other_protocols_are_refused(engine: ScriptedEngine) -> None:
    async def nothing(*_: object) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match="websocket"):
        await RestApp(cast(Any, engine), lambda: ())({"type": "websocket"}, nothing, nothing)
