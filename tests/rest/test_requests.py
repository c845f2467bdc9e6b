"""How leniently bodies are read, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.wire.drafts import DraftCheck, ExpressionVerdict, VariableRead
from penstock.wire.model import Completion, Failure, Heartbeat, Lease, PollRequest, StartRequest
from tests.rest.scripted import NOON, Rest, ScriptedEngine, instance, job

# -- poll


async def test_a_poll_is_passed_on_and_its_jobs_are_listed(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.poll", [job(variables=msgspec.Raw(b'{"big":123456789012345678901234567890}'))])
    answer = await rest.post(
        "/v1/jobs/poll", {"workerId": "w", "jobTypes": ["charge"], "maxJobs": 5, "leaseSeconds": 60}
    )
    assert answer.status == 200
    assert engine.one("jobs.poll") == PollRequest("w", ["charge"], 5, 60, 0)
    assert answer.json == {
        "jobs": [
            {
                "id": "1f-1-0",
                "jobType": "charge",
                "instanceId": "1f",
                "stepId": "pay",
                "stepExecutionId": "1f-1-0",
                "retriesRemaining": 3,
                "variables": {"big": 123456789012345678901234567890},
                "lockExpiresAt": "2026-01-02T12:00:00Z",
                "status": "LOCKED",
                "workerId": "w",
                "lockedAt": "2026-01-02T12:00:00Z",
                "createdAt": "2026-01-02T12:00:00Z",
                "attempt": 1,
                "idempotencyKey": "1f-1-0",
                "definitionId": "orders",
                "definitionVersion": 2,
                "businessKey": "order-7",
            }
        ]
    }


async def test_a_poll_without_jobs_answers_an_empty_list(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.poll", [])
    answer = await rest.post("/v1/jobs/poll", {"workerId": "w", "jobTypes": ["charge"]})
    assert (answer.status, answer.body) == (200, b'{"jobs":[]}')


@pytest.mark.parametrize(
    ("fields", "max_jobs", "lease_seconds"),
    [
        ({}, 0, 0),
        ({"maxJobs": None, "leaseSeconds": None, "waitSeconds": None}, 0, 0),
        ({"maxJobs": -3, "leaseSeconds": -1, "waitSeconds": -1}, 0, 0),
        ({"maxJobs": 10**30, "leaseSeconds": 10**30}, 10**30, 10**30),
        ({"maxJobs": 2.0, "leaseSeconds": 0.5}, 2, 1),
        ({"unknown": {"deeply": [1]}, "MaxJobs": 7}, 0, 0),
    ],
)
async def test_numbers_of_a_poll_are_never_refused(
    rest: Rest, engine: ScriptedEngine, fields: dict[str, Any], max_jobs: int, lease_seconds: int
) -> None:
    engine.on("jobs.poll", [])
    answer = await rest.post("/v1/jobs/poll", {"workerId": "w", "jobTypes": ["a"], **fields})
    assert answer.status == 200
    request = engine.one("jobs.poll")
    assert (request.max_jobs, request.lease_seconds, request.wait_seconds) == (max_jobs, lease_seconds, 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "body: is required"),
        (b"  \n", "body: is required"),
        (b"[]", "body: expected object, got array"),
        (b"null", "body: expected object, got null"),
        (b'{"workerId":"w"', "body: not JSON: Input data was truncated"),
        (b'{"workerId":1,"jobTypes":["a"]}', "workerId: expected str | null, got int"),
        (b'{"workerId":"w","jobTypes":"a"}', "jobTypes: expected array | null, got str"),
        (b'{"workerId":"w","jobTypes":["a",null]}', "jobTypes[1]: expected str, got null"),
        (b'{"workerId":"w","jobTypes":["a"],"maxJobs":"10"}', "maxJobs: expected int | float | null, got str"),
        (b'{"workerId":"w","jobTypes":["a"],"maxJobs":true}', "maxJobs: expected int | float | null, got bool"),
        (b'{"workerId":"w"}', "jobTypes: needs at least one job type"),
        (b'{"workerId":"w","jobTypes":[]}', "jobTypes: needs at least one job type"),
        (b'{"workerId":null,"jobTypes":["a"]}', "workerId: is required"),
        (b'{"workerId":"","jobTypes":["a"]}', "workerId: is required"),
        (b'{"workerId":"\xff","jobTypes":["a"]}', "body: not UTF-8"),
        (b'{"x":"\xff","workerId":"w","jobTypes":["a"]}', "body: not UTF-8"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body: nested too deeply"),
    ],
)
async def test_an_unreadable_poll_is_refused_with_the_field(
    rest: Rest, engine: ScriptedEngine, body: bytes, reason: str
) -> None:
    assert (await rest.post("/v1/jobs/poll", body)).error == (400, "bad-request", reason)
    assert not engine.calls


async def test_a_body_in_chunks_is_read_whole(rest: Rest, engine: ScriptedEngine) -> None:
    parts = [b'{"workerId":"w","vari', b"", b'ables":{"a":', b"1}}"]
    assert (await rest.send("POST", "/v1/jobs/1f-1-0/complete", parts)).status == 204
    assert engine.one("jobs.complete").variables == b'{"a":1}'


# -- complete


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({}, None),
        ({"variables": None}, None),
        ({"variables": {}}, b"{}"),
        ({"variables": {"total": 9007199254740993, "text": "é"}}, b'{"total": 9007199254740993, "text": "\\u00e9"}'),
    ],
)
async def test_a_completion_keeps_its_variables_as_they_came(
    rest: Rest, engine: ScriptedEngine, given: dict[str, Any], variables: bytes | None
) -> None:
    answer = await rest.post("/v1/jobs/1f-1-0/complete", {"workerId": "w", **given})
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert "content-type" not in answer.headers
    assert engine.one("jobs.complete") == Completion(job_id="1f-1-0", worker_id="w", variables=variables)


@pytest.mark.parametrize(
    ("given", "attempt"),
    [({"attempt": 3}, 3), ({"attempt": None}, None), ({"attempt": 2**40}, 2**40), ({"attempt": -9}, -9)],
)
async def test_an_attempt_is_passed_on_as_it_came(
    rest: Rest, engine: ScriptedEngine, given: dict[str, Any], attempt: int | None
) -> None:
    await rest.post("/v1/jobs/j/complete", {"workerId": "w", **given})
    await rest.post("/v1/jobs/j/fail", {"workerId": "w", **given})
    assert engine.one("jobs.complete").attempt == attempt
    assert engine.one("jobs.fail").attempt == attempt


@pytest.mark.parametrize(
    ("variables", "status", "reason"),
    [
        (b"[1]", 400, "variables: must be a JSON object"),
        (b'"x"', 400, "variables: must be a JSON object"),
        (b'{"a":"\\u0000"}', 400, "variables.a: has a NUL character"),
        (b'{"a":1e999}', 400, "variables: the number 1e999 is outside what an IEEE double can hold"),
        (b'{"a":' + b"9" * 1_001 + b"}", 400, "variables.a: has a whole number of more than 1000 digits"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", 400, "variables: nested more than 100 levels deep"),
        (b'{"a":"' + b"x" * 4_194_304 + b'"}', 413, "variables: has 4194312 bytes, more than 4194304"),
    ],
)
async def test_variables_that_can_not_be_kept_are_refused(
    rest: Rest, engine: ScriptedEngine, variables: bytes, status: int, reason: str
) -> None:
    answer = await rest.post("/v1/jobs/j/complete", b'{"workerId":"w","variables":' + variables + b"}")
    assert answer.error == (status, "bad-request" if status == 400 else "payload-too-large", reason)
    assert not engine.calls


async def test_a_lone_surrogate_is_refused(rest: Rest, engine: ScriptedEngine) -> None:
    answer = await rest.post("/v1/jobs/j/complete", b'{"workerId":"w","variables":{"a":"\\ud800"}}')
    assert answer.error[:2] == (400, "bad-request")
    assert answer.json["reason"].startswith("body: not JSON, or with a lone surrogate: ")
    assert not engine.calls


async def test_too_large_a_body_is_413_whole_or_in_chunks() -> None:
    engine = ScriptedEngine(max_body_bytes=1_024)
    rest = Rest(engine)
    for path in ("/v1/jobs/poll", "/v1/definitions"):
        for body in (b" " * 1_025, [b" " * 1_000, b" " * 25, b"never read"]):
            answer = await rest.send("POST", path, body)
            assert answer.error == (413, "payload-too-large", "the body has more than 1024 bytes")
    assert not engine.calls


# -- fail


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b'"it broke"', "it broke"),
        (b"null", ""),
        (b'"a\\u0000b"', "a\ufffdb"),
        (b'"a\\ud800"', "a\ufffd"),
        (b'"\\udc00 in words \\ud83d\\ude00"', "\ufffd in words 😀"),
        (b'"a\x00b\nc"', "a\ufffdb\nc"),
        (b'"caf\xe9"', "caf\ufffd"),
        (b'{"code":7,"texts":["\xc3\xa9"]}', '{"code": 7, "texts": ["é"]}'),
        (b"42", "42"),
        (b"1e999", "Infinity"),
        (b'"' + "é".encode() * 5_000 + b'"', "é" * 2_048),
    ],
)
async def test_an_error_text_is_never_a_reason_to_refuse(
    rest: Rest, engine: ScriptedEngine, message: bytes, text: str
) -> None:
    answer = await rest.post("/v1/jobs/j/fail", b'{"workerId":"w","retryable":true,"errorMessage":' + message + b"}")
    assert answer.status == 204
    assert engine.one("jobs.fail") == Failure(job_id="j", worker_id="w", retryable=True, error_message=text)


@pytest.mark.parametrize(
    "body",
    [
        b'{"workerId":"\\ud800","retryable":true,"errorMessage":"\\ud800"}',
        b'{"workerId":"\xff","retryable":true,"errorMessage":"x"}',
        b'{"workerId":7,"retryable":true,"errorMessage":"\\ud800"}',
        b'{"workerId":"w","retryable":"yes","errorMessage":"\\ud800"}',
        b'{"workerId":"w","retryable":true,"errorMessage":"\\ud800"',
        b'["errorMessage"]',
    ],
)
async def test_a_bad_error_text_hides_nothing_else_that_is_wrong(
    rest: Rest, engine: ScriptedEngine, body: bytes
) -> None:
    assert (await rest.post("/v1/jobs/j/fail", body)).error[:2] == (400, "bad-request")
    assert not engine.calls


@pytest.mark.parametrize(
    ("given", "retryable"), [({}, False), ({"retryable": None}, False), ({"retryable": True}, True)]
)
async def test_a_failure_is_retryable_only_when_it_says_so(
    rest: Rest, engine: ScriptedEngine, given: dict[str, Any], retryable: bool
) -> None:
    await rest.post("/v1/jobs/j/fail", {"workerId": "w", **given})
    assert engine.one("jobs.fail").retryable is retryable


@pytest.mark.parametrize("given", [None, 1.5, -1, 10**400])
async def test_a_retry_delay_is_passed_on_as_it_came(rest: Rest, engine: ScriptedEngine, given: Any) -> None:
    await rest.post("/v1/jobs/j/fail", {"workerId": "w", "retryable": True, "retryAfterSeconds": given})
    assert engine.one("jobs.fail").retry_after_s == given


@pytest.mark.parametrize("action", ["complete", "fail", "heartbeat"])
async def test_every_call_about_a_job_needs_a_worker(rest: Rest, engine: ScriptedEngine, action: str) -> None:
    assert (await rest.post(f"/v1/jobs/j/{action}", {})).error == (400, "bad-request", "workerId: is required")
    assert (await rest.post(f"/v1/jobs/j/{action}", b"")).error == (400, "bad-request", "body: is required")
    assert not engine.calls


# -- heartbeat


async def test_a_heartbeat_brings_checkpoint_and_progress(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.heartbeat", Lease(lock_expires_at=NOON))
    body = {"workerId": "w", "attempt": 2, "leaseSeconds": 90, "checkpoint": [1, {"a": 2}], "progress": 0.5}
    answer = await rest.post("/v1/jobs/j/heartbeat", body)
    assert (answer.status, answer.json) == (200, {"lockExpiresAt": "2026-01-02T12:00:00Z"})
    assert engine.one("jobs.heartbeat") == Heartbeat(
        job_id="j", worker_id="w", attempt=2, lease_seconds=90, checkpoint=b'[1, {"a": 2}]', progress=b"0.5"
    )


async def test_a_checkpoint_has_a_limit_of_its_own(rest: Rest, engine: ScriptedEngine) -> None:
    answer = await rest.post("/v1/jobs/j/heartbeat", {"workerId": "w", "checkpoint": "x" * 262_143})
    assert answer.error == (413, "payload-too-large", "checkpoint: has 262145 bytes, more than 262144")
    assert not engine.calls


# -- start


async def test_a_start_is_passed_on_with_its_key(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.start", instance(business_key="b"))
    body = {
        "definitionId": "LOS::loan",
        "definitionVersion": 3,
        "variables": {"a": 1},
        "businessKey": "b",
        "instanceKey": "i",
        "idempotencyKey": "in the body it means nothing",
    }
    answer = await rest.post("/v1/instances", body, Idempotency_Key="k-1 é")
    assert answer.status == 201
    assert answer.json == {
        "id": "1f",
        "definitionId": "orders",
        "definitionVersion": 2,
        "status": "ACTIVE",
        "currentStepIds": ["pay"],
        "variables": {"n": 1},
        "startedAt": "2026-01-02T12:00:00Z",
        "businessKey": "b",
    }
    assert engine.one("instances.start") == StartRequest(
        definition_id="LOS::loan",
        definition_version=3,
        variables=b'{"a": 1}',
        business_key="b",
        instance_key="i",
        idempotency_key="k-1 é",
    )


@pytest.mark.parametrize(
    "extra",
    [{}, {"variables": None, "businessKey": None, "definitionVersion": None, "instanceKey": None}, {"other": 1}],
)
async def test_a_start_needs_no_more_than_a_definition(
    rest: Rest, engine: ScriptedEngine, extra: dict[str, Any]
) -> None:
    engine.on("instances.start", instance())
    assert (await rest.post("/v1/instances", {"definitionId": "d", **extra}, Idempotency_Key="")).status == 201
    assert engine.one("instances.start") == StartRequest("d", 0, b"{}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "definitionId: is required"),
        ({"definitionId": ""}, "definitionId: is required"),
        ({"definitionId": 5}, "definitionId: expected str | null, got int"),
        ({"definitionId": "d", "definitionVersion": "1"}, "definitionVersion: expected int | null, got str"),
        ({"definitionId": "d", "variables": []}, "variables: must be a JSON object"),
        ({"definitionId": "d", "businessKey": 5}, "businessKey: expected str | null, got int"),
    ],
)
async def test_an_unreadable_start_is_refused_with_the_field(
    rest: Rest, engine: ScriptedEngine, body: dict[str, Any], reason: str
) -> None:
    assert (await rest.post("/v1/instances", body)).error == (400, "bad-request", reason)
    assert not engine.calls


# -- drafts


async def test_where_a_draft_reads_is_asked_for(rest: Rest, engine: ScriptedEngine) -> None:
    read = VariableRead(path="steps[0].until", name="due", start=2, end=5)
    engine.on("drafts.validate", DraftCheck(valid=True, problems=[], hints=[], identifiers=["due"], reads=[read]))
    answer = await rest.post("/v1/definitions/validate?reads=true", {"id": "d"})
    assert answer.json["reads"] == [{"path": "steps[0].until", "name": "due", "from": 2, "to": 5}]
    assert engine.one("drafts.validate") == (b'{"id": "d"}', {"with_reads": True})
    assert (await rest.post("/v1/definitions/validate?reads=perhaps", {})).error == (
        400,
        "bad-request",
        "reads: must be true or false",
    )


async def test_an_expression_is_tried_with_the_variables_of_the_body(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("drafts.check_expression", ExpressionVerdict(ok=True, identifiers=["a"], value=msgspec.Raw(b"2")))
    body = {"expression": "a + 1", "kind": "value", "variables": {"a": 1}}
    answer = await rest.post("/v1/expressions/check", body)
    assert (answer.status, answer.json["value"]) == (200, 2)
    asked = engine.one("drafts.check_expression")
    assert (asked.expression, bytes(asked.variables), asked.instance_id) == ("a + 1", b'{"a": 1}', None)
