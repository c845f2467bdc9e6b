"""Batch calls: one bad item never fails its neighbours, and every outcome stands where its item stood."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.engine.requests.payload import ITEMS_MAX_COUNT
from penstock.wire.model import Completion, Failure, Heartbeat, JobOutcome, JobRef, Lease, StartRequest, StartResult
from tests.rest.scripted import NOON, Rest, ScriptedEngine, instance


async def all_ok(requests: list[Any]) -> list[JobOutcome]:
    return [JobOutcome(job_id=request.job_id, outcome="ok") for request in requests]


async def test_completions_are_passed_on_together(rest: Rest, engine: ScriptedEngine) -> None:
    async def answer(requests: list[Completion]) -> list[JobOutcome]:
        return [
            JobOutcome(job_id=requests[0].job_id, outcome="ok"),
            JobOutcome(job_id=requests[1].job_id, outcome="unavailable", reason="later"),
        ]

    engine.on("jobs.complete_many", answer)
    items = [{"jobId": "a", "attempt": 2, "variables": {"x": 1}}, {"jobId": "b"}]
    found = await rest.post("/v1/jobs/complete", {"workerId": "w", "results": items})
    assert engine.one("jobs.complete_many") == [
        Completion(job_id="a", worker_id="w", attempt=2, variables=b'{"x": 1}'),
        Completion(job_id="b", worker_id="w"),
    ]
    assert (found.status, found.json) == (
        200,
        {"results": [{"jobId": "a", "outcome": "ok"}, {"jobId": "b", "outcome": "unavailable", "reason": "later"}]},
    )


BAD_COMPLETIONS = [
    (b'{"jobId":"bad","variables":[1]}', "bad", "variables: must be a JSON object"),
    (b'{"jobId":"bad","variables":{"n":"\\u0000"}}', "bad", "variables.n: has a NUL character"),
    (b'{"jobId":"bad","variables":{"n":1e999}}', "bad", "variables: the number 1e999 is outside"),
    (b'{"jobId":"bad","variables":{"n":"\\ud800"}}', "bad", "body: not JSON, or with a lone surrogate"),
    (b'{"jobId":"bad","variables":{"n":"\xff"}}', "bad", "body: not UTF-8"),
    (b'{"jobId":"bad","variables":{"n":' + b"[" * 3_000 + b"]" * 3_000 + b"}}", "bad", "body: nested too deeply"),
    (b'{"variables":{"n":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_000 + b'},"jobId":"bad"}', "bad", "body: nested too"),
    (b'{"jobId":"bad","attempt":"x","n":' + b"7" * 5_000 + b"}", "bad", "attempt: expected int | null, got str"),
    (
        b'{"jobId":"bad","variables":{"n":' + b"7" * 5_000 + b"}}",
        "bad",
        "variables: has a whole number of more than 1000",
    ),
    (b"[" * 3_000 + b"]" * 3_000, "", "body: expected object, got array"),
    (b"7" * 5_000, "", "body: number out of range"),
    (b'{"jobId":"bad","attempt":"one"}', "bad", "attempt: expected int | null, got str"),
    (b'{"jobId":"","variables":{}}', "", "jobId: is required"),
    (b'{"jobId":7}', "", "jobId: expected str | null, got int"),
    (b"{}", "", "jobId: is required"),
    (b"null", "", "body: expected object, got null"),
    (b"[]", "", "body: expected object, got array"),
    (b'"x"', "", "body: expected object, got str"),
]


@pytest.mark.parametrize(("bad", "job_id", "reason"), BAD_COMPLETIONS)
async def test_a_bad_completion_is_invalid_and_its_neighbours_are_done(
    rest: Rest, engine: ScriptedEngine, bad: bytes, job_id: str, reason: str
) -> None:
    engine.on("jobs.complete_many", all_ok)
    neighbour = b'{"jobId":"a","variables":{"exact":12345678901234567890123,"d":1.5}}'
    body = b'{"workerId":"w","results":[' + neighbour + b"," + bad + b',{"jobId":"c"}]}'
    answer = await rest.post("/v1/jobs/complete", body)
    assert answer.status == 200
    first, second, third = answer.json["results"]
    assert (first, third) == ({"jobId": "a", "outcome": "ok"}, {"jobId": "c", "outcome": "ok"})
    assert (second["jobId"], second["outcome"]) == (job_id, "invalid")
    assert second["reason"].startswith(reason)
    passed = engine.one("jobs.complete_many")
    assert [request.job_id for request in passed] == ["a", "c"]
    assert b"12345678901234567890123" in passed[0].variables


async def test_too_large_variables_fail_their_item_only() -> None:
    engine = ScriptedEngine(variables_max_bytes=1_024)
    engine.on("jobs.complete_many", all_ok)
    items = [{"jobId": "a", "variables": {"x": "y" * 2_000}}, {"jobId": "b"}]
    answer = await Rest(engine).post("/v1/jobs/complete", {"workerId": "w", "results": items})
    assert [item["outcome"] for item in answer.json["results"]] == ["invalid", "ok"]


async def test_failures_keep_their_texts_whatever_is_in_them(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.fail_many", all_ok)
    body = (
        b'{"workerId":"w","results":[{"jobId":"a","retryable":true,"errorMessage":"x\\ud800"},'
        b'{"jobId":"b","retryable":false,"errorMessage":"\xff"},{"jobId":"c","retryable":1,"errorMessage":"x"},'
        b'{"jobId":"d","errorMessage":{"k":1},"attempt":4,"retryAfterSeconds":3}]}'
    )
    answer = await rest.post("/v1/jobs/fail", body)
    assert engine.one("jobs.fail_many") == [
        Failure(job_id="a", worker_id="w", retryable=True, error_message="x\ufffd"),
        Failure(job_id="b", worker_id="w", retryable=False, error_message="\ufffd"),
        Failure(
            job_id="d",
            worker_id="w",
            attempt=4,
            retryable=False,
            error_message='{"k": 1}',
            retry_after_s=3.0,
        ),
    ]
    assert [item["outcome"] for item in answer.json["results"]] == ["ok", "ok", "invalid", "ok"]
    assert answer.json["results"][2]["reason"] == "retryable: expected bool | null, got int"


@pytest.mark.parametrize("path", ["/v1/jobs/fail", "/v1/jobs/j/fail"])
async def test_an_error_text_is_kept_however_deep_it_is(rest: Rest, engine: ScriptedEngine, path: str) -> None:
    engine.on("jobs.fail_many", all_ok)
    message = b"[" * 3_000 + b'"' + b"\xff" + b'"' + b"]" * 3_000
    body = b'{"jobId":"j","retryable":true,"errorMessage":' + message + b',"workerId":"w"}'
    alone = path.endswith("j/fail")
    answer = await rest.post(path, body if alone else b'{"workerId":"w","results":[' + body + b"]}")
    assert answer.status == (204 if alone else 200)
    passed = engine.one("jobs.fail") if alone else engine.one("jobs.fail_many")[0]
    assert (passed.job_id, passed.retryable) == ("j", True)
    assert passed.error_message == "[" * 3_000 + '"\ufffd"' + "]" * (4_096 - 3_005)


async def test_several_bad_items_of_each_kind_leave_their_neighbours_alone(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("instances.start_batch", [StartResult(instance=instance())])
    deep = b'{"definitionId":"d","variables":{"n":' + b"[" * 5_000 + b"]" * 5_000 + b"}}"
    wide = b'{"definitionId":"d","variables":{"n":' + b"1" * 5_000 + b"}}"
    body = b'{"items":[' + deep + b"," + wide + b',{"definitionId":"d"},{"definitionId":3}]}'
    results = (await rest.post("/v1/instances/batch", body)).json["results"]
    assert [result.get("reason", "started")[:25] for result in results] == [
        "body: nested too deeply", "variables: has a whole nu", "started", "definitionId: expected st",
    ]  # fmt: skip


async def test_heartbeats_answer_with_the_new_end_or_an_outcome(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on(
        "jobs.heartbeat_many",
        [Lease(lock_expires_at=NOON), JobOutcome(job_id="c", outcome="lease-lost")],
    )
    items = [
        {"jobId": "a", "leaseSeconds": 60, "progress": {"p": 1}},
        {"jobId": "b", "leaseSeconds": "x"},
        {"jobId": "c"},
    ]
    answer = await rest.post("/v1/jobs/heartbeat", {"workerId": "w", "jobs": items})
    assert answer.json["results"] == [
        {"jobId": "a", "outcome": "ok", "lockExpiresAt": "2026-01-02T12:00:00Z"},
        {"jobId": "b", "outcome": "invalid", "reason": "leaseSeconds: expected int | float | null, got str"},
        {"jobId": "c", "outcome": "lease-lost"},
    ]
    assert engine.one("jobs.heartbeat_many") == [
        Heartbeat(job_id="a", worker_id="w", lease_seconds=60, progress=b'{"p": 1}'),
        Heartbeat(job_id="c", worker_id="w"),
    ]


async def test_releases_are_passed_on(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.release_many", all_ok)
    answer = await rest.post("/v1/jobs/release", {"workerId": "w", "jobs": [{"jobId": "a", "attempt": 1}, {}]})
    assert engine.one("jobs.release_many") == [JobRef(job_id="a", worker_id="w", attempt=1)]
    assert [item["outcome"] for item in answer.json["results"]] == ["ok", "invalid"]


async def test_bad_starts_are_answered_in_their_place(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on(
        "instances.start_batch",
        [StartResult(instance=instance()), StartResult(error="not-found", reason="definition 'x' is unknown")],
    )
    items: list[Any] = [
        {"definitionId": "d", "variables": {"a": 1}, "idempotencyKey": "k"},
        {"variables": {}},
        {"definitionId": "x", "idempotencyKey": ""},
        {"definitionId": "d", "businessKey": []},
        7,
    ]
    answer = await rest.post("/v1/instances/batch", {"items": items})
    results = answer.json["results"]
    assert answer.status == 200
    assert results[0]["instance"]["id"] == "1f"
    assert results[1:] == [
        {"error": "bad-request", "reason": "definitionId: is required"},
        {"error": "not-found", "reason": "definition 'x' is unknown"},
        {"error": "bad-request", "reason": "businessKey: expected str | null, got array"},
        {"error": "bad-request", "reason": "body: expected object, got int"},
    ]
    assert engine.one("instances.start_batch") == [
        StartRequest("d", 0, b'{"a": 1}', idempotency_key="k"),
        StartRequest("x", 0, b"{}"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/jobs/complete", b"", "body: is required"),
        ("/v1/jobs/complete", b"[]", "body: expected object, got array"),
        ("/v1/jobs/complete", b'{"workerId":"w"}', "results: is required"),
        ("/v1/jobs/complete", b'{"workerId":"w","results":null}', "results: is required"),
        ("/v1/jobs/complete", b'{"workerId":"w","results":{}}', "results: expected array | null, got object"),
        ("/v1/jobs/complete", b'{"results":[]}', "workerId: is required"),
        ("/v1/jobs/complete", b'{"workerId":1,"results":[]}', "workerId: expected str | null, got int"),
        ("/v1/jobs/complete", b'{"workerId":"w","results":[}', "body: not JSON: "),
        ("/v1/jobs/complete", b'{"workerId":"w","results":[{"jobId":"a"},{"jobId":}]}', "body: not JSON: "),
        (
            "/v1/jobs/complete",
            b'{"workerId":"w","results":[{"jobId":"a"},' + b"[" * 3_000 + b"]}",
            "results[1]: expected object, got array",
        ),
        ("/v1/jobs/fail", b'{"workerId":"w"}', "results: is required"),
        ("/v1/jobs/release", b'{"workerId":"w","results":[]}', "jobs: is required"),
        ("/v1/jobs/heartbeat", b'{"jobs":[{}]}', "workerId: is required"),
        ("/v1/instances/batch", b"{}", "items: is required"),
    ],
)
async def test_what_concerns_the_whole_batch_refuses_it(
    rest: Rest, engine: ScriptedEngine, path: str, body: bytes, reason: str
) -> None:
    status, code, found = (await rest.post(path, body)).error
    assert (status, code) == (400, "bad-request")
    assert found.startswith(reason)
    assert not engine.calls


async def test_an_empty_batch_has_no_results(rest: Rest, engine: ScriptedEngine) -> None:
    engine.on("jobs.complete_many", [])
    answer = await rest.post("/v1/jobs/complete", {"workerId": "w", "results": []})
    assert (answer.status, answer.body) == (200, b'{"results":[]}')


async def test_the_items_of_a_batch_are_bounded(rest: Rest, engine: ScriptedEngine) -> None:
    items: list[Any] = [{"jobId": "a"}] * (ITEMS_MAX_COUNT + 1)
    answer = await rest.post("/v1/jobs/complete", {"workerId": "w", "results": items})
    assert answer.error == (400, "bad-request", "results: has 10001 items, more than 10000")
    assert not engine.calls
