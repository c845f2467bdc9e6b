"""Wrong input of every kind: a 4xx with the error object, never a 500, and nothing changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, service, step
from tests.rest.drivers import RestDriver

HUGE = 10**30
VALUES: list[tuple[str, bytes]] = [
    ("null", b"null"),
    ("true", b"true"),
    ("zero", b"0"),
    ("negative", b"-1"),
    ("int32", b"2147483648"),
    ("int64", b"9223372036854775808"),
    ("huge", b"1" + b"0" * 400),
    ("endless", b"1" * 5_000),
    ("decimal", b"1.5"),
    ("tiny", b"1e-400"),
    ("infinite", b"1e999"),
    ("nan", b"NaN"),
    ("empty text", b'""'),
    ("text", '"é😀"'.encode()),
    ("quote", b'"\'; DROP TABLE token; --"'),
    ("percent", b'"%s %(x)s {} {0} \\\\N"'),
    ("nul", b'"a\\u0000b"'),
    ("raw nul", b'"a\x00b"'),
    ("surrogate", b'"\\ud800"'),
    ("not utf8", b'"\xff"'),
    ("long", b'"' + b"x" * 5_000 + b'"'),
    ("array", b"[]"),
    ("nested", b"[" * 5_000 + b"]" * 5_000),
    ("object", b"{}"),
    ("odd keys", b'{"":{"\\u0000":1}}'),
    ("same keys", b'{"a":1,"a":2}'),
]
ROUTES: dict[str, tuple[str, list[str]]] = {
    "start": ("/v1/instances", ["definitionId", "definitionVersion", "variables", "businessKey", "instanceKey"]),
    "poll": ("/v1/jobs/poll", ["workerId", "jobTypes", "maxJobs", "leaseSeconds"]),  # waitSeconds: test_polls
    "complete": ("/v1/jobs/{job}/complete", ["workerId", "variables", "attempt"]),
    "fail": ("/v1/jobs/{job}/fail", ["workerId", "retryable", "errorMessage", "attempt", "retryAfterSeconds"]),
    "heartbeat": ("/v1/jobs/{job}/heartbeat", ["workerId", "attempt", "leaseSeconds", "checkpoint", "progress"]),
    "user task": ("/v1/instances/{id}/user-tasks/ask/complete", ["variables", "result", "completedBy", "workerId"]),
    "cancel": ("/v1/instances/{id}/cancel", ["reason"]),
    "batch start": ("/v1/instances/batch", ["items"]),
    "batch complete": ("/v1/jobs/complete", ["workerId", "results"]),
    "batch fail": ("/v1/jobs/fail", ["workerId", "results"]),
    "batch heartbeat": ("/v1/jobs/heartbeat", ["workerId", "jobs"]),
    "lost": ("/v1/jobs/lost", ["workerId"]),  # waitSeconds: test_polls
    "release": ("/v1/jobs/release", ["workerId", "jobs"]),
}
ITEMS = {
    "batch start": ["definitionId", "definitionVersion", "variables", "businessKey", "instanceKey", "idempotencyKey"],
    "batch complete": ["jobId", "attempt", "variables"],
    "batch fail": ["jobId", "attempt", "retryable", "errorMessage", "retryAfterSeconds"],
    "batch heartbeat": ["jobId", "attempt", "leaseSeconds", "checkpoint", "progress"],
    "release": ["jobId", "attempt"],
}


@pytest.fixture
def driver(rest_driver: RestDriver) -> RestDriver:
    """Only REST has what is tested here."""
    return rest_driver


def valid(route: str, name: str, job: str) -> dict[str, Any]:
    """A body that is right but for what the test changes. Nothing waits and nothing is retried."""
    item: dict[str, Any] = {"jobId": job}
    return {
        "start": {"definitionId": name},
        "poll": {"workerId": "other", "jobTypes": [f"{name}-none"]},
        "complete": {"workerId": "thief"},
        "fail": {"workerId": "thief", "retryable": True},
        "heartbeat": {"workerId": "thief"},
        "user task": {},
        "cancel": {},
        "batch start": {"items": [{"definitionId": name}]},
        "batch complete": {"workerId": "thief", "results": [item]},
        "batch fail": {"workerId": "thief", "results": [{**item, "retryable": True}]},
        "batch heartbeat": {"workerId": "thief", "jobs": [item]},
        "lost": {"workerId": "w"},
        "release": {"workerId": "thief", "jobs": [item]},
    }[route]


def with_value(body: dict[str, Any], field: str, value: bytes) -> bytes:
    """The body with raw bytes as one of its values."""
    return json.dumps({**body, field: "@@"}).encode().replace(b'"@@"', value)


@pytest.fixture
async def parked(driver: RestDriver, name: str) -> tuple[str, str]:
    """An instance with a leased job and an open user task: (instance id, job id)."""
    gateway = step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["work", "ask"], joinStep="join")
    await driver.upload(
        definition(
            gateway,
            service("work", "join", job_type=name),
            step("ask", "USER_TASK", nextStep="join"),
            step("join", "JOIN_GATEWAY", nextStep="end"),
            end(),
            definition_id=name,
        )
    )
    instance = await driver.start(name)
    (job,) = await driver.poll(name, worker="holder")
    return instance.id, job.id


@pytest.mark.parametrize("route", ROUTES)
async def test_no_value_of_any_field_is_a_500(
    driver: RestDriver, parked: tuple[str, str], name: str, route: str
) -> None:
    instance_id, job_id = parked
    path, fields = ROUTES[route]
    # An instance that has ended, so that what is right about these requests changes nothing either.
    ended = await driver.cancel((await driver.start(name)).id)
    target = path.format(id=ended.id, job=job_id)
    body = valid(route, name, job_id)
    bodies = [with_value(body, field, value) for field in fields for _, value in VALUES]
    if route in ITEMS:
        (listed,) = [field for field, value in body.items() if isinstance(value, list)]
        item = body[listed][0]
        bodies += [
            with_value(body, listed, b"[" + with_value(item, field, value) + b"]")
            for field in ITEMS[route]
            for _, value in VALUES
        ]
    bodies += [value for _, value in VALUES] + [b"", b"{", b"\xef\xbb\xbf{}", b"{}" * 2]
    before = await driver.instance(instance_id)
    for data in bodies:
        answer = await driver.http.post(target, content=data)
        assert answer.status_code < 500, (data[:200], answer.text)
        if not answer.is_success:
            found = answer.json()
            assert set(found) >= {"error", "reason", "message"}
            assert "SELECT" not in found["reason"]
            assert "Traceback" not in found["reason"]
    assert await driver.instance(instance_id) == before


PATHS = [
    "%00",
    "%FF",
    "%ED%A0%80",
    "..",
    "%2e%2e%2f",
    "'",
    "%25s",
    "x" * 3_000,
    "9" * 40,
    "-1",
    "1f-1-0",
    "%F0%9F%98%80",
    "0x1",
    "+1",
    "1_0",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_path_or_query_is_a_500(driver: RestDriver, method: str) -> None:
    targets = [
        template.replace("{}", hostile)
        for hostile in PATHS
        for template in (
            "/v1/definitions/{}",
            "/v1/definitions/{}/versions/1",
            "/v1/definitions/a/versions/{}",
            "/v1/instances/{}",
            "/v1/instances/{}/history",
            "/v1/instances/{}/audit",
            "/v1/instances/{}/signals",
            "/v1/instances/{}/cancel",
            "/v1/instances/{}/retry",
            "/v1/instances/{}/signals/{}",
            "/v1/instances/{}/user-tasks/{}/complete",
            "/v1/jobs/{}/complete",
            "/v1/jobs/{}/fail",
            "/v1/jobs/{}/heartbeat",
            "/v1/definitions?keyword={}",
            "/v1/definitions?page={}",
            "/v1/definitions?pageSize={}",
            "/v1/instances?status={}",
            "/v1/instances?definitionId={}",
            "/v1/instances?businessKey={}",
            "/v1/instances?page={}",
            "/v1/jobs?status={}",
            "/v1/jobs?status=FAILED&page={}",
            "/v1/instances/1f/audit?limit={}",
            "/v1/instances/1f/signals/a?buffer={}",
            "/{}",
        )
    ]
    for target in targets:
        answer = await driver.http.request(method, target, content=b'{"workerId":"w"}' if method == "POST" else b"")
        assert answer.status_code < 500, (target[:200], answer.text)
        if answer.is_error:
            assert set(answer.json()) >= {"error", "reason", "message"}


@pytest.mark.parametrize("route", ["/v1/instances", "/v1/instances/{id}/signals/ask"])
async def test_no_idempotency_key_is_a_500(driver: RestDriver, parked: tuple[str, str], name: str, route: str) -> None:
    target = route.format(id=parked[0])
    body = {"definitionId": name} if route == "/v1/instances" else {}
    for key in (b"x" * 5_000, b"\xff\xfe", "é".encode(), b"'", b"%s"):
        answer = await driver.http.post(target, json=body, headers=[(b"Idempotency-Key", key)])
        assert answer.status_code < 500, (key, answer.text)
