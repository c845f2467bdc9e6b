"""Definitions, instances, tasks, health: what is asked of the engine and how its answers look."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from penstock.core.parsing.parsing import parse_definition
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.instances.views import LEFT_OUT, InstanceSummary, Whereabouts
from penstock.errors import NotFound, Unavailable
from penstock.store.rows.definitions import DefinitionRow
from penstock.wire.model import (
    Attempt,
    AuditRecord,
    DefinitionSummary,
    FailedJob,
    KeptMessage,
    KeptSignal,
    MessageReceiver,
    PublishedMessage,
    Signal,
    StepExecution,
    UserTaskCompletion,
)
from penstock.wire.open_work import OpenJobView
from penstock.wire.page import Page
from tests.rest.scripted import NOON, Rest, ScriptedEngine, instance

DEFINITION = {
    "id": "LOS::loan",
    "name": "Loan",
    "steps": [
        {"id": "z", "name": "Z", "type": "SERVICE_TASK", "nextStep": "a", "jobType": "check"},
        {"id": "a", "name": "A", "type": "END"},
    ],
    "metadata": {"z": 1, "a": {"big": 123456789012345678901234567890}},
}
SUMMARY = DefinitionSummary(id="LOS::loan", version=1, name="Loan", uploaded_at=NOON)
NOON_TEXT = "2026-01-02T12:00:00Z"

# -- definitions


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "text/plain", "application/octet-stream", "nonsense", "text/html; x=xml"]
)
async def test_a_definition_is_read_as_json_whatever_its_content_type(
    rest: Rest, engine: ScriptedEngine, content_type: str | None
) -> None:
    engine.on("definitions.upload", SUMMARY)
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await rest.send("POST", "/v1/definitions", msgspec.json.encode(DEFINITION), headers)
    assert (answer.status, answer.json) == (
        201,
        {"id": "LOS::loan", "version": 1, "name": "Loan", "uploadedAt": NOON_TEXT},
    )
    assert engine.one("definitions.upload").id == "LOS::loan"


@pytest.mark.parametrize(
    "content_type", ["application/xml", "text/xml; charset=utf-8", "application/bpmn+xml", "Application/XML"]
)
async def test_an_xml_content_type_is_refused(rest: Rest, engine: ScriptedEngine, content_type: str) -> None:
    body = msgspec.json.encode(DEFINITION)
    answer = await rest.send("POST", "/v1/definitions", body, {"Content-Type": content_type})
    assert answer.error[:2] == (415, "unsupported-format")
    assert not engine.calls


async def test_a_large_definition_is_parsed_beside_the_event_loop(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("definitions.upload", SUMMARY)
    large = {**DEFINITION, "metadata": {"text": "x" * 100_000}}
    assert (await rest.post("/v1/definitions", large)).status == 201
    assert engine.one("definitions.upload").metadata == large["metadata"]
    broken = {**large, "steps": []}
    assert (await rest.post("/v1/definitions", broken)).error[:2] == (400, "bad-request")


async def test_the_steps_of_a_definition_are_bounded_by_the_setting() -> None:
    rest = Rest(ScriptedEngine(definition_max_steps=1))
    status, _, reason = (await rest.post("/v1/definitions", DEFINITION)).error
    assert status == 400
    assert "steps: has 2 steps, more than 1" in reason


@pytest.mark.parametrize("target", ["/v1/definitions/LOS::loan", "/v1/definitions/LOS::loan/versions/7"])
async def test_a_definition_comes_back_as_it_was_with_its_version(
    rest: Rest, engine: ScriptedEngine, target: str
) -> None:
    definition = parse_definition(msgspec.json.encode(DEFINITION))
    row = DefinitionRow(1, definition.id, 7, definition.name, None, definition.content, NOON)
    engine.on("definitions.get", LoadedDefinition(row, definition, {"check": 1}))
    answer = await rest.get(target)
    assert answer.status == 200
    assert answer.json == {**DEFINITION, "version": 7}
    assert list(answer.json["metadata"]) == ["z", "a"]
    assert parse_definition(answer.body) == definition
    assert engine.one("definitions.get") == ("LOS::loan" if "versions" not in target else ("LOS::loan", 7))


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.0", "99999999999", "%D9%A1", "+1"])
async def test_a_version_that_can_not_be_is_404(rest: Rest, engine: ScriptedEngine, number: str) -> None:
    assert (await rest.get(f"/v1/definitions/d/versions/{number}")).error[:2] == (404, "not-found")
    assert not engine.calls


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("", (None, 0, 0)),
        ("?keyword=&page=&pageSize=", (None, 0, 0)),
        ("?keyword=Lo%C3%A4n%20x&page=3&pageSize=50", ("Loän x", 3, 50)),
        ("?keyword=a+b&pageSize=100000&other=1", ("a b", 0, 100_000)),
        ("?page=-1&pageSize=-5", (None, -1, -5)),
    ],
)
async def test_definitions_are_listed_by_page(
    rest: Rest, engine: ScriptedEngine, query: str, asked: tuple[Any, ...]
) -> None:
    engine.on("definitions.list", Page(items=[], page=0, page_size=20, total=0))
    answer = await rest.get(f"/v1/definitions{query}")
    assert (answer.status, answer.json) == (200, {"items": [], "page": 0, "pageSize": 20, "total": 0})
    assert engine.one("definitions.list") == asked


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("page=x", "page: must be a whole number"),
        ("page=1.5", "page: must be a whole number"),
        ("pageSize=%D9%A1", "pageSize: must be a whole number"),
        ("keyword=a%00b", "keyword: has a NUL character"),
        ("keyword=" + "x" * 300, "keyword: has 300 characters, more than 256"),
    ],
)
async def test_a_query_that_can_not_be_read_is_refused(
    rest: Rest, engine: ScriptedEngine, query: str, reason: str
) -> None:
    assert (await rest.get(f"/v1/definitions?{query}")).error == (400, "bad-request", reason)
    assert not engine.calls


@pytest.mark.parametrize(
    ("path", "query", "called", "asked"),
    [
        ("/v1/definitions", "keyword=x&limit=7", "definitions.list_slice", ("x", None, 7)),
        ("/v1/definitions", "cursor=LOS%3A%3Aloan", "definitions.list_slice", (None, "LOS::loan", 0)),
        (
            "/v1/instances",
            "status=FAILED&cursor=1f&limit=9",
            "instances.find_slice",
            (InstanceFilter(status="FAILED"), "1f", 9),
        ),
        ("/v1/jobs", "status=FAILED&limit=9&jobType=a", "jobs.failed_slice", (None, 9, "a")),
    ],
)
async def test_lists_are_read_by_key_too(
    rest: Rest, engine: ScriptedEngine, path: str, query: str, called: str, asked: tuple[Any, ...]
) -> None:
    engine.on_list(total=0)
    engine.on(called, Page(items=[], next="1e"))
    answer = await rest.get(f"{path}?{query}")
    assert (answer.status, answer.json) == (200, {"items": [], "next": "1e"})
    assert engine.one(called) == asked
    engine.on(called, Page(items=[]))
    assert (await rest.get(f"{path}?{query}")).json == {"items": []}
    for given in ("page=0", "pageSize=5"):
        name = given.partition("=")[0]
        reason = f"{name}: can't be combined with `cursor` or `limit`"
        assert (await rest.get(f"{path}?{query}&{given}")).error == (400, "bad-request", reason)


# -- instances


async def test_an_instance_leaves_out_what_it_has_not(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on(
        "instances.get",
        instance(
            status="FAILED",
            current_step_ids=[],
            completed_at=NOON,
            failure_reason="boom",
            parent_instance_id="2a",
            progress={"pay": msgspec.Raw(b"[0.5]")},
        ),
    )
    answer = await rest.get("/v1/instances/1f")
    assert answer.json == {
        "id": "1f",
        "definitionId": "orders",
        "definitionVersion": 2,
        "status": "FAILED",
        "currentStepIds": [],
        "variables": {"n": 1},
        "startedAt": NOON_TEXT,
        "completedAt": NOON_TEXT,
        "failureReason": "boom",
        "parentInstanceId": "2a",
        "progress": {"pay": [0.5]},
    }
    assert engine.one("instances.get") == ("1f", 0)


INSTANCE_SUMMARY: dict[str, Any] = {
    "id": "1f", "definition_id": "orders", "definition_version": 2, "status": "ACTIVE", "current_step_ids": ["pay"],
    "started_at": NOON,
}  # fmt: skip


async def test_an_instance_is_found_by_its_key(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on_list(total=0)
    assert (await rest.get("/v1/instances?definitionId=d&instanceKey=k%2F1")).json["total"] == 0
    assert engine.one("instances.find") == (InstanceFilter(definition_id="d", instance_key="k/1"), 0, 0)


async def test_instances_are_listed_by_filters(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on_list([instance()], total=1)
    answer = await rest.get(
        "/v1/instances?definitionId=LOS%3A%3Aloan&status=WAITING&businessKey=b%2F1&page=2&pageSize=5"
    )
    assert engine.one("instances.find") == (
        InstanceFilter(definition_id="LOS::loan", status="WAITING", business_key="b/1"),
        2,
        5,
    )
    assert answer.json["total"] == 1
    assert "totalIsEstimate" not in answer.json
    engine.on_list(total=20_000, estimate=True)
    assert (await rest.get("/v1/instances")).json == {"items": [], "total": 20_000, "totalIsEstimate": True}


@pytest.mark.parametrize("sizes", [[1, 2], [0, 3], [2, 1, 1], [1, 1, 1]])
async def test_a_list_read_in_pieces_is_one_answer(rest: Rest, engine: ScriptedEngine, sizes: list[int]) -> None:
    ids = iter("abcdefgh")
    pieces = [[instance(id=next(ids)) for _ in range(size)] for size in sizes]
    engine.on_list(*pieces, total=9)
    answer = await rest.get("/v1/instances")
    assert "content-length" not in answer.headers
    assert answer.headers["content-type"] == "application/json"
    assert [item["id"] for item in answer.json["items"]] == list("abcdefgh")[: sum(sizes)]
    assert answer.json["total"] == 9


async def test_a_summary_has_no_variables(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.find", Page(items=[1], total=1))
    where = [Whereabouts(step_id="pay", state="READY", since=NOON)]
    engine.on("instances.summaries", [InstanceSummary(**INSTANCE_SUMMARY, variables=LEFT_OUT, where=where)])
    (item,) = (await rest.get("/v1/instances?view=summary")).json["items"]
    assert "variables" not in item
    assert item["currentStepIds"] == ["pay"]
    assert item["where"] == [{"stepId": "pay", "state": "READY", "since": "2026-01-02T12:00:00Z"}]
    assert engine.one("instances.summaries") == [1]
    assert (await rest.get("/v1/instances?view=some")).error == (400, "bad-request", "view: must be full or summary")


async def test_history_and_audit_are_lists_in_an_object(rest: Rest, engine: ScriptedEngine) -> None:
    item = StepExecution(
        id="1f-1-0",
        instance_id="1f",
        step_id="pay",
        step_type="SERVICE_TASK",
        attempt_number=1,
        status="RUNNING",
        started_at=NOON,
        attempts=[Attempt(attempt=1, status="FAILED", started_at=NOON, ended_at=NOON, worker="w", reason="x")],
    )
    engine.on("instances.history", [item])
    engine.on("instances.audit", Page(items=[AuditRecord(at=NOON, kind="STARTED")]))
    assert (await rest.get("/v1/instances/1f/history")).json["items"] == [
        {
            "id": "1f-1-0",
            "instanceId": "1f",
            "stepId": "pay",
            "stepType": "SERVICE_TASK",
            "attemptNumber": 1,
            "status": "RUNNING",
            "startedAt": NOON_TEXT,
            "attempts": [
                {
                    "attempt": 1,
                    "status": "FAILED",
                    "startedAt": NOON_TEXT,
                    "endedAt": NOON_TEXT,
                    "worker": "w",
                    "reason": "x",
                }
            ],
        }
    ]
    assert (await rest.get("/v1/instances/1f/audit?limit=5")).json == {"items": [{"at": NOON_TEXT, "kind": "STARTED"}]}
    assert engine.one("instances.audit") == ("1f", 5, 0, None)
    engine.on("instances.audit", Page(items=[], next="1-2-3"))
    assert (await rest.get("/v1/instances/1f/audit?cursor=1-1-1")).json == {"items": [], "next": "1-2-3"}
    assert engine.calls["instances.audit"][-1] == ("1f", 1000, 0, "1-1-1")
    engine.on("instances.history", [])
    assert (await rest.get("/v1/instances/1f/history")).body == b'{"items":[]}'


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"", None), (b" ", None), (b"null", None), (b"{}", None), (b'{"reason":null}', None), (b'{"reason":"no"}', "no")],
)
async def test_cancel_takes_a_reason_or_nothing(
    rest: Rest, engine: ScriptedEngine, body: bytes, reason: str | None
) -> None:
    engine.on("instances.cancel", instance(status="CANCELLED", failure_reason=reason))
    answer = await rest.post("/v1/instances/1f/cancel", body)
    assert (answer.status, answer.json["status"]) == (200, "CANCELLED")
    assert engine.one("instances.cancel") == ("1f", reason, {"force": False, "compensate": False})


async def test_cancel_refuses_a_body_that_it_can_not_read(rest: Rest, engine: ScriptedEngine) -> None:
    answer = await rest.post("/v1/instances/1f/cancel", {"reason": 5})
    assert answer.error == (400, "bad-request", "reason: expected str | null, got int")
    assert not engine.calls


async def test_retry_needs_no_body(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.retry", instance())
    answer = await rest.post("/v1/instances/1f/retry", b"")
    assert (answer.status, answer.json["status"]) == (200, "ACTIVE")
    assert engine.one("instances.retry") == ("1f", None, {"again": False})
    engine.calls.clear()
    await rest.send("POST", "/v1/instances/1f/retry", b'{"note": "the bank is back"}')
    assert engine.one("instances.retry") == ("1f", "the bank is back", {"again": False})


# -- user tasks and signals


@pytest.mark.parametrize(
    ("body", "variables", "completed_by"),
    [
        (b"", None, None),
        (b"{}", None, None),
        (b'{"variables":{"a":1},"completedBy":"ann"}', b'{"a":1}', "ann"),
        (b'{"result":{"a":1},"workerId":"bob"}', b'{"a":1}', "bob"),
        (b'{"variables":{"a":1},"result":{"a":2},"completedBy":"ann","workerId":"bob"}', b'{"a":1}', "ann"),
        (b'{"variables":null,"result":{"a":2},"completedBy":null}', b'{"a":2}', None),
    ],
)
async def test_a_user_task_is_completed_with_variables_or_result(
    rest: Rest, engine: ScriptedEngine, body: bytes, variables: bytes | None, completed_by: str | None
) -> None:
    answer = await rest.post("/v1/instances/1f/user-tasks/approve/complete", body)
    assert (answer.status, answer.body, answer.headers) == (204, b"", {"x-content-type-options": "nosniff"})
    assert engine.one("tasks.complete_user_task") == UserTaskCompletion(
        instance_id="1f", step_id="approve", variables=variables, completed_by=completed_by
    )


async def test_a_user_task_names_the_field_that_is_wrong(rest: Rest, engine: ScriptedEngine) -> None:
    path = "/v1/instances/1f/user-tasks/approve/complete"
    assert (await rest.post(path, {"result": [1]})).error == (400, "bad-request", "result: must be a JSON object")
    assert (await rest.post(path, {"variables": 1})).error == (400, "bad-request", "variables: must be a JSON object")
    assert not engine.calls


@pytest.mark.parametrize(
    ("query", "buffer"),
    [("", False), ("?buffer=true", True), ("?buffer=1", True), ("?buffer=False", False), ("?buffer=", False)],
)
async def test_the_body_of_a_signal_is_the_variable_map(
    rest: Rest, engine: ScriptedEngine, query: str, buffer: bool
) -> None:
    answer = await rest.post(f"/v1/instances/1f/signals/paid{query}", {"amount": 5}, Idempotency_Key="k")
    assert (answer.status, answer.body, answer.headers) == (204, b"", {"x-content-type-options": "nosniff"})
    assert engine.one("tasks.signal") == Signal(
        instance_id="1f", step_id="paid", variables=b'{"amount": 5}', idempotency_key="k", buffer=buffer
    )


@pytest.mark.parametrize(
    ("path", "key", "step"),
    [
        ("/v1/definitions/LOS%3A%3Aloan/keys/k/signals/paid", "k", "paid"),
        ("/v1/definitions/LOS::loan/keys/a%2Fsignals%2Fb/signals/x%2Fy", "a/signals/b", "x/y"),
        ("/v1/definitions/LOS::loan/keys/a/b/signals/x/y", "a/b", "x/y"),
        ("/v1/definitions/LOS::loan/keys/k%C3%A4%20%25/signals/x", "kä %", "x"),
    ],
)
async def test_a_signal_by_key_names_definition_key_and_step(
    rest: Rest, engine: ScriptedEngine, path: str, key: str, step: str
) -> None:
    answer = await rest.post(f"{path}?signalId=p%201", {"amount": 5})
    assert (answer.status, answer.body) == (204, b"")
    signal = Signal(instance_id="", step_id=step, variables=b'{"amount": 5}', signal_id="p 1")
    assert engine.one("tasks.signal_by_key") == ("LOS::loan", key, signal)


async def test_a_signal_may_be_empty(rest: Rest, engine: ScriptedEngine) -> None:
    assert (await rest.post("/v1/instances/1f/signals/paid", b"\n")).status == 204
    assert engine.one("tasks.signal") == Signal(instance_id="1f", step_id="paid")


@pytest.mark.parametrize(
    ("target", "body", "reason"),
    [
        ("", b"[]", "body: must be a JSON object"),
        ("", b"{", "body: not JSON: Input data was truncated"),
        ("", b'{"a":"\\u0000"}', "body.a: has a NUL character"),
        ("?buffer=maybe", b"", "buffer: must be true or false"),
    ],
)
async def test_a_signal_that_can_not_be_read_is_refused(
    rest: Rest, engine: ScriptedEngine, target: str, body: bytes, reason: str
) -> None:
    answer = await rest.post(f"/v1/instances/1f/signals/paid{target}", body)
    assert answer.error == (400, "bad-request", reason)
    assert not engine.calls


async def test_kept_signals_are_listed(rest: Rest, engine: ScriptedEngine) -> None:
    kept = KeptSignal(id="7", step_id="paid", received_at=NOON, variables=msgspec.Raw(b'{"a":1}'))  # pyright: ignore[reportArgumentType] - a stand-in
    engine.on("tasks.buffered", [kept])
    answer = await rest.get("/v1/instances/1f/signals")
    assert answer.json == {"items": [{"id": "7", "stepId": "paid", "receivedAt": NOON_TEXT, "variables": {"a": 1}}]}


async def test_a_message_is_published(rest: Rest, engine: ScriptedEngine) -> None:
    received = MessageReceiver(instance_id="1f", step_id="paid")
    engine.on("messages.publish", PublishedMessage(delivered=[received], kept=False))
    body = {
        "name": "paid",
        "correlationKey": "7",
        "variables": {"a": 1},
        "ttl": "PT1H",
        "messageId": "m",
        "deliver": "ONE",
    }
    answer = await rest.post("/v1/messages", json.dumps(body).encode())
    assert (answer.status, answer.json) == (200, {"delivered": [{"instanceId": "1f", "stepId": "paid"}], "kept": False})
    asked = engine.one("messages.publish")
    assert (asked.name, asked.correlation_key, asked.variables) == ("paid", "7", b'{"a": 1}')
    assert (asked.ttl, asked.message_id, asked.deliver) == ("PT1H", "m", "ONE")


async def test_kept_messages_are_listed(rest: Rest, engine: ScriptedEngine) -> None:
    kept = KeptMessage(
        id="7", name="paid", correlation_key="8", published_at=NOON, expires_at=NOON, size_bytes=2, taken=False
    )
    engine.on("messages.listing", Page(items=[kept], next="7"))
    answer = await rest.get("/v1/messages?name=paid&correlationKey=8&limit=1&cursor=6")
    assert engine.one("messages.listing") == ("paid", "8", "6", 1)
    shown = {"publishedAt": NOON_TEXT, "expiresAt": NOON_TEXT, "sizeBytes": 2, "taken": False}
    assert answer.json == {"items": [{"id": "7", "name": "paid", "correlationKey": "8", **shown}], "next": "7"}


async def test_failed_jobs_are_listed(rest: Rest, engine: ScriptedEngine) -> None:
    dead = FailedJob(id="1f-1-0", job_type="charge", instance_id="1f", step_id="pay", failed_at=NOON, reason="boom")
    engine.on("jobs.failed", Page(items=[dead], page=1, page_size=5, total=6))
    answer = await rest.get("/v1/jobs?status=FAILED&page=1&pageSize=5&jobType=a%2Fb")
    assert engine.one("jobs.failed") == (1, 5, "a/b")
    assert answer.json == {
        "items": [
            {
                "id": "1f-1-0",
                "jobType": "charge",
                "instanceId": "1f",
                "stepId": "pay",
                "failedAt": NOON_TEXT,
                "reason": "boom",
            }
        ],
        "page": 1,
        "pageSize": 5,
        "total": 6,
    }
    assert (await rest.get("/v1/jobs?page=1&pageSize=5&jobType=a%2Fb")).json == answer.json  # unless one says which


async def test_open_jobs_are_listed_by_state(rest: Rest, engine: ScriptedEngine) -> None:
    job = OpenJobView("1f-1-0", "charge", "1f", "pay", "shop", 2, NOON)
    engine.on("open_work.jobs", Page(items=[job], next="7-8"))
    answer = await rest.get("/v1/jobs?status=WAITING&jobType=charge&limit=5&cursor=1-2")
    assert engine.one("open_work.jobs") == ("WAITING", "charge", "1-2", 5)
    assert answer.json == {
        "items": [
            {"id": "1f-1-0", "jobType": "charge", "instanceId": "1f", "stepId": "pay", "definitionId": "shop",
             "version": 2, "since": NOON_TEXT}
        ],
        "next": "7-8",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/v1/instances?businessKey", "/v1/definitions?keyword", "/v1/jobs?status=FAILED&jobType"]
)
async def test_a_query_that_is_no_utf_8_is_refused(rest: Rest, engine: ScriptedEngine, path: str) -> None:
    status, code, reason = (await rest.get(f"{path}=a%ff")).error
    assert (status, code) == (400, "bad-request")
    assert reason.endswith(": not UTF-8")
    assert not engine.calls


async def test_a_percent_sign_may_be_searched_for(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on_list(total=0)
    assert (await rest.get("/v1/instances?businessKey=a%25ff%C3%A4")).status == 200
    assert engine.one("instances.find")[0].business_key == "a%ffä"


async def test_instances_are_found_by_the_longest_business_key(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on_list(total=0)
    assert (await rest.get(f"/v1/instances?businessKey={'k' * 512}")).status == 200
    assert engine.one("instances.find")[0].business_key == "k" * 512
    assert (await rest.get(f"/v1/instances?businessKey={'k' * 513}")).error[:2] == (400, "bad-request")


async def test_an_unknown_instance_is_404_everywhere(rest: Rest, engine: ScriptedEngine) -> None:
    for operation in ("get", "history", "audit", "cancel", "retry"):
        engine.on(f"instances.{operation}", NotFound("unknown"))
    engine.on("tasks.buffered", NotFound("unknown"))
    for path in ("", "/history", "/audit", "/signals"):
        assert (await rest.get(f"/v1/instances/zz{path}")).error == (404, "not-found", "unknown")
    for path in ("/cancel", "/retry"):
        assert (await rest.post(f"/v1/instances/zz{path}", b"")).error == (404, "not-found", "unknown")


# -- health


async def test_healthz_is_200_with_an_empty_body(rest: Rest, engine: ScriptedEngine) -> None:
    answer = await rest.get("/healthz")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "text/plain"
    assert not engine.calls


@pytest.mark.parametrize("path", ["/healthz", "/v1/instances", "/nothing", "//nothing", "/docs"])
async def test_no_browser_guesses_what_an_answer_is(rest: Rest, path: str) -> None:
    assert (await rest.get(path)).headers["x-content-type-options"] == "nosniff"
    assert (await rest.post("/v1/jobs/poll", {})).headers["x-content-type-options"] == "nosniff"


async def test_healthz_is_answered_without_the_framework(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rest.app, "_routed")
    assert (await rest.get("/healthz")).status == 200


async def test_readyz_says_what_is_away(engine: ScriptedEngine) -> None:
    away: list[str] = []
    rest = Rest(engine, degraded=lambda: away)
    answer = await rest.get("/readyz")
    assert (answer.status, answer.json) == (200, {"status": "ready"})
    away.append("kafka")
    assert (await rest.get("/readyz")).json == {"status": "ready", "degraded": ["kafka"]}


async def test_readyz_says_how_many_rows_wait_aside(engine: ScriptedEngine, rest: Rest) -> None:
    for key in range(2):
        engine.quarantine.quarantine_row("timers", key, f"row {key}", ValueError("a secret of the row"))
    engine.quarantine.quarantine_row("outbox", 7, "row 7", ValueError("no"))
    assert (await rest.get("/readyz")).json == {"status": "ready", "rowsAside": {"timers": 2, "outbox": 1}}
    for key in range(2):
        engine.quarantine.forget("timers", key)
    engine.quarantine.forget("outbox", 7)
    assert (await rest.get("/readyz")).json == {"status": "ready"}


async def test_readyz_is_503_with_the_reason(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("engine.ready", Unavailable("the engine is shutting down"))
    assert (await rest.get("/readyz")).error == (503, "unavailable", "the engine is shutting down")


async def test_readyz_waits_two_seconds_for_the_database_and_no_longer(
    rest: Rest, engine: ScriptedEngine, autojump_clock: trio.testing.MockClock
) -> None:
    engine.on("engine.ready", trio.sleep_forever)
    answer = await rest.get("/readyz")
    assert answer.error == (503, "unavailable", "the database did not answer within 2 s")
    assert trio.current_time() == pytest.approx(2)


def test_what_a_job_shows_is_read_by_clients():
    job = OpenJobView("1f-1-0", "charge", "1f", "pay", "shop", 2, NOON, progress=msgspec.Raw(b'{"done":3}'))
    page = msgspec.json.decode(msgspec.json.encode(Page(items=[job])), type=Page[OpenJobView])
    assert page.items[0].progress == {"done": 3}
