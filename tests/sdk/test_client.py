"""The client against answers that a test scripts: what is sent, what is read, what is repeated, what is raised."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from pydantic import BaseModel

from penstock.api import instances as api
from penstock.client import (
    BadRequest,
    Client,
    ClientError,
    Conflict,
    ConnectionFailed,
    DispatchModeConflict,
    Failure,
    IdempotencyConflict,
    InternalError,
    JobCancelled,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    Problem,
    StartRequest,
    SyncClient,
    TimedOut,
    TooManyRequests,
    Unavailable,
    validate_definition,
)
from penstock.client.builder import WorkflowBuilder
from penstock.client.call import RowCall
from penstock.client.operation import StartInstance
from tests.sdk.loops import Run
from tests.sdk.scripted_engine import Answer, Cut, Drop, Hang, Request, ScriptedEngine, refused
from tests.sdk.scripted_grpc import ScriptedGrpc
from tests.sdk.virtual_time import StillTime

INSTANCE = {
    "id": "1f",
    "definitionId": "order",
    "definitionVersion": 3,
    "status": "ACTIVE",
    "currentStepIds": ["pay"],
    "variables": {"n": 10**30},
    "startedAt": "2026-01-02T03:04:05.678Z",
}
SECOND_TRY = 2


def instance(**changes: object) -> Answer:
    return Answer(200, INSTANCE | changes)


def test_start_sends_the_contracts_request_and_reads_a_typed_instance(run: Run, scripted: ScriptedEngine) -> None:
    scripted.on("POST", "/v1/instances", Answer(201, INSTANCE))

    async def main() -> None:
        async with Client(scripted.url) as client:
            started = await client.start_instance("order", {"n": 10**30}, version=3, business_key="b")
        assert (started.id, started.definition_version, started.current_step_ids) == ("1f", 3, ["pay"])
        assert started.variables == {"n": 10**30}
        assert started.started_at is not None
        assert started.started_at.isoformat() == "2026-01-02T03:04:05.678000+00:00"
        assert not started.ended

    run(main)
    (request,) = scripted.requests
    assert request.body == {
        "definitionId": "order",
        "definitionVersion": 3,
        "variables": {"n": 10**30},
        "businessKey": "b",
    }
    assert uuid.UUID(request.headers["Idempotency-Key"])


@pytest.mark.parametrize("first", [Drop(), Cut(), refused(503, "unavailable")])
def test_a_start_whose_answer_was_lost_repeats_its_key(
    run: Run, scripted: ScriptedEngine, first: Drop | Cut | Answer
) -> None:
    scripted.on("POST", "/v1/instances", first, Answer(201, INSTANCE))

    async def main() -> None:
        async with Client(scripted.url) as client:
            assert (await client.start_instance("order")).id == "1f"

    run(main)
    keys = [request.headers["Idempotency-Key"] for request in scripted.requests]
    assert len(keys) == SECOND_TRY
    assert len(set(keys)) == 1


def test_a_user_task_completion_without_an_answer_is_not_repeated(run: Run, scripted: ScriptedEngine) -> None:
    path = "/v1/instances/1f/user-tasks/approve/complete"
    scripted.on("POST", path, Drop(), Answer(204))

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(ConnectionFailed) as caught:
                await client.complete_user_task("1f", "approve", {"ok": True}, completed_by="ann")
        assert caught.value.maybe_applied

    run(main)
    (request,) = scripted.requests
    assert request.body == {"variables": {"ok": True}, "completedBy": "ann"}


@pytest.mark.parametrize(("status", "code"), [(429, "resource-exhausted"), (408, "request-timeout")])
def test_what_surely_was_not_applied_is_repeated_whatever_it_is(
    run: Run, scripted: ScriptedEngine, status: int, code: str
) -> None:
    path = "/v1/instances/1f/user-tasks/approve/complete"
    scripted.on("POST", path, refused(status, code), Answer(204))

    async def main() -> None:
        async with Client(scripted.url) as client:
            await client.complete_user_task("1f", "approve")

    run(main)
    assert len(scripted.requests) == SECOND_TRY


def test_the_pause_that_an_engine_asks_for_is_kept(still: StillTime, scripted: ScriptedEngine) -> None:
    body = {"error": "resource-exhausted", "reason": "full"}
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    scripted.on("GET", "/v1/instances/1f", Answer(429, body, headers={"Retry-After": "0.4"}), instance())

    async def main() -> None:
        async with Client(scripted.url) as client:
            began = anyio.current_time()
            await client.get_instance("1f")
            assert anyio.current_time() - began >= 0.4
            for value, least_s in (("3600", 3600), (later, 3000), ("soon", None), ("nan", None)):
                scripted.on("GET", "/v1/instances/1f", Answer(429, body, headers={"Retry-After": value}))
                with pytest.raises(TooManyRequests) as caught:  # no time is left for that pause: told at once
                    await client.call(
                        RowCall(api.GET_INSTANCE, api.GetInstance("1f")), timeout_s=10 if least_s else 0.05
                    )
                asked = caught.value.retry_after_s
                assert asked is None if least_s is None else asked is not None and least_s <= asked <= 3600

    still.run(main)


def test_a_pause_beyond_the_calls_time_leaves_its_error(
    still: StillTime, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.on("GET", "/v1/instances/1f", refused(429, "resource-exhausted"))
    monkeypatch.setattr(anyio, "sleep", lambda seconds: still.sleep(seconds + 30))

    async def main() -> None:
        async with Client(scripted.url, timeout_s=10) as client:
            with pytest.raises(TooManyRequests):
                await client.get_instance("1f")

    still.run(main)
    assert len(scripted.requests) == 1


def test_a_fail_is_repeated_only_with_an_attempt(run: Run, scripted: ScriptedEngine) -> None:
    scripted.on("POST", "/v1/jobs/j/fail", Drop(), Answer(204))

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(ConnectionFailed):
                await client.fail_job("j", "w", "broken")
            scripted.on("POST", "/v1/jobs/j/fail", Drop(), Answer(204))
            await client.fail_job("j", "w", "broken", attempt=4, retry_after_s=1.5, retryable=False)

    run(main)
    assert scripted.requests[-1].body == {
        "workerId": "w",
        "attempt": 4,
        "retryable": False,
        "errorMessage": "broken",
        "retryAfterSeconds": 1.5,
    }


async def jump_once_seen(still: StillTime, scripted: ScriptedEngine, seconds: float) -> None:
    """Let so much time pass once the engine has a request."""
    await anyio.to_thread.run_sync(lambda: scripted.wait_seen("/v1/instances/1f"))
    still.jump(seconds)


def test_an_engine_that_stays_silent_is_given_up_in_time(still: StillTime, scripted: ScriptedEngine) -> None:
    scripted.on("GET", "/v1/instances/1f", Hang())

    async def main() -> None:
        async with Client(scripted.url, timeout_s=0.3) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(jump_once_seen, still, scripted, 0.3)
            with pytest.raises(TimedOut, match="/v1/instances/1f"):
                await client.get_instance("1f")

    still.run(main)


def test_a_hanging_exchange_is_repeated_within_the_calls_time(still: StillTime, scripted: ScriptedEngine) -> None:
    scripted.on("GET", "/v1/instances/1f", Hang(), instance())

    async def main() -> None:
        async with Client(scripted.url, exchange_timeout_s=0.2) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(jump_once_seen, still, scripted, 0.2)
            assert (await client.get_instance("1f")).id == "1f"

    still.run(main)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_port_without_an_engine_is_a_harmless_connection_failure(still: StillTime, scheme: str) -> None:
    async def main() -> None:
        async with Client(f"{scheme}://127.0.0.1:1", timeout_s=0.2) as client:
            assert not await client.is_ready()
            with pytest.raises(ConnectionFailed) as caught:
                await client.get_instance("1f")
        assert not caught.value.maybe_applied

    still.run(main)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refused(400, "bad-request"), BadRequest),
        (refused(404, "not-found"), NotFound),
        (refused(409, "conflict"), Conflict),
        (refused(409, "lease-lost"), LeaseLost),
        (refused(409, "cancelled"), JobCancelled),
        (refused(409, "idempotency-conflict"), IdempotencyConflict),
        (refused(413, "payload-too-large"), PayloadTooLarge),
        (refused(500, "internal-error"), InternalError),
        (refused(429, "a-code-from-the-future"), TooManyRequests),
        (refused(408, "request-timeout"), Unavailable),
        (refused(418, "a-code-from-the-future"), BadRequest),
        (Answer(502, b"<html>bad gateway</html>", "text/html"), Unavailable),
        (Answer(410, {"error": "gone", "dispatch_mode": "kafka_outbox", "hint": "because"}), DispatchModeConflict),
        (Answer(200, b"not JSON"), InternalError),
    ],
)
def test_every_condition_has_its_exception(
    still: StillTime, scripted: ScriptedEngine, answer: Answer, kind: type[ClientError]
) -> None:
    scripted.on("GET", "/v1/instances/1f", answer)

    async def main() -> None:
        async with Client(scripted.url, timeout_s=0.5) as client:
            with pytest.raises(ClientError) as caught:
                await client.get_instance("1f")
        assert type(caught.value) is kind
        assert caught.value.status == answer.status
        if isinstance(answer.body, dict):
            assert (caught.value.code, caught.value.reason) == (answer.body["error"], "because")

    still.run(main)


def test_a_refused_definition_lists_every_problem(run: Run, scripted: ScriptedEngine, tmp_path: Path) -> None:
    problems = [{"path": "$.steps[0].id", "reason": "required"}, {"path": "$.name", "reason": "required"}]
    scripted.on("POST", "/v1/definitions", Answer(400, {"error": "bad-request", "reason": "2", "problems": problems}))

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(BadRequest) as caught:
                await client.upload_definition({"steps": []}, validate=False)
        assert caught.value.problems == [Problem("$.steps[0].id", "required"), Problem("$.name", "required")]

    run(main)


@pytest.mark.parametrize("steps", [1, 1000])
def test_a_definition_is_refused_with_all_problems_before_any_call(
    run: Run, scripted: ScriptedEngine, steps: int
) -> None:
    flow = WorkflowBuilder("d")
    for number in range(steps):
        flow.service_task(f"s{number}", "job type", then="nowhere")
    flow.decision("s0", {"n >": "s0"})

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(BadRequest) as caught:
                await client.upload_definition(flow)
        found = {(problem.path, problem.reason) for problem in caught.value.problems}
        assert len(found) >= min(3 * steps, 20)
        assert all(reason for _path, reason in found)
        assert caught.value.status is None

    run(main)
    assert scripted.requests == []


def test_the_validator_can_be_run_by_itself(tmp_path: Path) -> None:
    good = WorkflowBuilder("d").service_task("a", "a").end()
    file = tmp_path / "flow.json"
    file.write_bytes(msgspec.json.encode(good.document()))
    for form in (good, good.document(), file, str(file), file.read_bytes()):
        validate_definition(form)
    with pytest.raises(BadRequest) as caught:
        validate_definition(b'{"id": 7}')
    assert {problem.path for problem in caught.value.problems} >= {"id", "steps"}
    with pytest.raises(PayloadTooLarge):
        validate_definition(b'{"id": "' + b"x" * 5_000_000 + b'"}')


@pytest.mark.parametrize("kind", ["path", "text path", "bytes", "dict", "struct"])
def test_a_definition_is_uploaded_with_its_order_of_keys(
    run: Run, scripted: ScriptedEngine, tmp_path: Path, kind: str
) -> None:
    class Document(msgspec.Struct):
        id: str
        decisions: dict[str, str]

    content = b'{"id":"d","decisions":{"z > 1":"a","a > 1":"b"}}'
    file = tmp_path / "definition.json"
    file.write_bytes(content)
    given = {
        "path": file,
        "text path": str(file),
        "bytes": content,
        "dict": {"id": "d", "decisions": {"z > 1": "a", "a > 1": "b"}},
        "struct": Document("d", {"z > 1": "a", "a > 1": "b"}),
    }[kind]
    summary = {"id": "d", "version": 2, "name": "D", "uploadedAt": "2026-01-02T03:04:05Z"}
    scripted.on("POST", "/v1/definitions", Answer(201, summary))

    async def main() -> None:
        async with Client(scripted.url) as client:
            uploaded = await client.upload_definition(given, validate=False)
        assert (uploaded.id, uploaded.version, uploaded.name) == ("d", 2, "D")

    run(main)
    assert scripted.requests[0].content == content


def test_a_port_that_speaks_something_else_is_reported(still: StillTime) -> None:
    with ScriptedGrpc() as other, ScriptedEngine() as rest:

        async def main() -> None:
            async with Client(other.url.replace("grpc://", "http://"), timeout_s=0.3) as client:
                with pytest.raises(ConnectionFailed, match="does this port speak REST"):
                    await client.get_instance("1f")
            async with Client(rest.url.replace("http://", "grpc://"), timeout_s=0.3) as client:
                with pytest.raises(ConnectionFailed, match="does this port speak gRPC"):
                    await client.get_instance("1f")

        still.run(main)


def test_ids_are_percent_encoded_in_paths(run: Run, scripted: ScriptedEngine) -> None:
    scripted.on("GET", "/v1/definitions/LOS%3A%3Aloan/versions/2", Answer(200, {"id": "LOS::loan", "version": 2}))

    async def main() -> None:
        async with Client(scripted.url) as client:
            assert await client.get_definition("LOS::loan", 2) == {"id": "LOS::loan", "version": 2}

    run(main)


def test_a_number_beyond_json_is_refused_before_sending(run: Run, scripted: ScriptedEngine) -> None:
    @dataclass
    class Reading:
        values: list[float | None]

    class Model(BaseModel):
        reading: float

    async def main() -> None:
        async with Client(scripted.url) as client:
            for variables in (
                {"a": [None, {"b": float("nan")}]},
                Reading([1.0, None, float("inf")]),
                Model(reading=float("nan")),
                {"a": "\ud800"},
                {"a": object()},
                [1, 2],
            ):
                with pytest.raises(BadRequest):
                    await client.start_instance("order", variables)

    run(main)
    assert scripted.requests == []


def test_variables_may_be_models_and_null_stays_a_value(run: Run, scripted: ScriptedEngine) -> None:
    class Order(BaseModel):
        order_id: int
        note: str | None = None

    scripted.on("POST", "/v1/instances/1f/signals/wait", Answer(204))

    async def main() -> None:
        async with Client(scripted.url) as client:
            await client.signal("1f", "wait", Order(order_id=10**25))

    run(main)
    assert scripted.requests[0].body == {"order_id": 10**25, "note": None}
    assert scripted.requests[0].headers["Idempotency-Key"]


def test_a_batch_start_repeats_the_unavailable_and_keeps_order(run: Run, scripted: ScriptedEngine) -> None:
    away = {"error": "unavailable", "reason": "the database is away"}
    scripted.on(
        "POST",
        "/v1/instances/batch",
        Answer(200, {"results": [away, {"error": "not-found", "reason": "no x"}, {"instance": INSTANCE}]}),
        Answer(200, {"results": [{"instance": INSTANCE | {"id": "2f"}}]}),
    )

    async def main() -> None:
        async with Client(scripted.url) as client:
            requests = [StartRequest(definition_id=name, variables={"n": 1}) for name in ("a", "x", "b")]
            first, second, third = await client.start_instances(requests)
        assert (first.unwrap().id, third.unwrap().id) == ("2f", "1f")
        with pytest.raises(NotFound, match="no x"):
            second.unwrap()

    run(main)
    sent, again = (request.body["items"] for request in scripted.requests)
    assert [item["definitionId"] for item in sent] == ["a", "x", "b"]
    assert again == [sent[0]]
    assert len({item["idempotencyKey"] for item in sent}) == len(sent)


@pytest.mark.parametrize(("trouble", "kind"), [(Drop(), ConnectionFailed), (Hang(), TimedOut)])
def test_an_item_of_a_lost_batch_start_is_unavailable(
    run: Run, scripted: ScriptedEngine, trouble: Drop | Hang, kind: type[Unavailable]
) -> None:
    """As one start: who repeats what was `Unavailable` goes on."""
    scripted.on("POST", "/v1/instances/batch", trouble)

    async def main() -> None:
        async with Client(scripted.url, timeout_s=0.3) as client:
            (lost,) = await client.start_instances([StartRequest(definition_id="a")])
        with pytest.raises(Unavailable) as caught:
            lost.unwrap()
        assert type(caught.value) is kind
        assert caught.value.maybe_applied

    run(main)


def test_a_long_batch_of_starts_goes_out_in_parts(run: Run, scripted: ScriptedEngine) -> None:
    def start(request: Request) -> Answer:
        return Answer(200, {"results": [{"instance": INSTANCE} for _ in request.body["items"]]})

    scripted.on("POST", "/v1/instances/batch", start)

    async def main() -> None:
        async with Client(scripted.url) as client:
            results = await client.start_instances([StartRequest(definition_id="a")] * 450)
        assert all(result.unwrap().id == "1f" for result in results)

    run(main)
    assert [len(request.body["items"]) for request in scripted.requests] == [200, 200, 50]


def test_a_cancel_whose_answer_was_lost_is_settled_by_looking(run: Run, scripted: ScriptedEngine) -> None:
    scripted.on("POST", "/v1/instances/1f/cancel", Drop())
    scripted.on("GET", "/v1/instances/1f", instance(status="CANCELLED"))

    async def main() -> None:
        async with Client(scripted.url) as client:
            assert (await client.cancel_instance("1f", reason="no stock")).status == "CANCELLED"
            scripted.on("GET", "/v1/instances/1f", instance(status="COMPLETED"))
            with pytest.raises(Conflict, match="COMPLETED"):
                await client.cancel_instance("1f")
            scripted.on("GET", "/v1/instances/1f", instance())
            with pytest.raises(ConnectionFailed):
                await client.cancel_instance("1f")

    run(main)
    assert len(scripted.seen("/v1/instances/1f/cancel")) == 3
    assert scripted.requests[0].body == {"reason": "no stock"}


def test_waiting_for_the_end_tells_of_every_change(still: StillTime, scripted: ScriptedEngine) -> None:
    later = instance(currentStepIds=["ship"])
    scripted.on("GET", "/v1/instances/1f", instance(), instance(), later, instance(status="FAILED", currentStepIds=[]))
    steps: list[list[str]] = []

    async def main() -> None:
        async with Client(scripted.url) as client:
            ended = await client.wait_until_ended("1f", on_change=lambda seen: steps.append(seen.current_step_ids))
            assert ended.status == "FAILED"
            scripted.on("GET", "/v1/instances/1f", instance())
            with pytest.raises(TimedOut, match="still ACTIVE"):
                await client.wait_until_ended("1f", timeout_s=0.1)

    still.run(main)
    assert steps == [["pay"], ["ship"], []]


def test_waiting_for_an_end_keeps_its_time_without_an_engine(run: Run) -> None:
    async def main() -> None:
        async with Client("http://127.0.0.1:1") as client:
            with anyio.fail_after(10), pytest.raises(ConnectionFailed):
                await client.wait_until_ended("1f", timeout_s=0.1)

    run(main)


def test_listing_goes_on_as_long_as_there_is_a_next(run: Run, scripted: ScriptedEngine) -> None:
    """Also after a slice that is short, or empty: a search may have been cut off in time."""
    first = [INSTANCE | {"id": str(number)} for number in range(200)]
    second = [INSTANCE | {"id": str(number)} for number in range(200, 230)]
    scripted.on(
        "GET",
        "/v1/instances",
        Answer(200, {"items": first, "next": "c7"}),
        Answer(200, {"items": [], "next": "b 8"}),
        Answer(200, {"items": second}),
    )

    async def main() -> None:
        async with Client(scripted.url) as client:
            ids = [found.id async for found in client.iterate_instances(status="ACTIVE")]
        assert ids == [str(number) for number in range(230)]

    run(main)
    assert [request.query for request in scripted.requests] == [
        "status=ACTIVE&limit=200",
        "status=ACTIVE&cursor=c7&limit=200",
        "status=ACTIVE&cursor=b+8&limit=200",
    ]


def test_a_poll_has_the_time_that_the_engine_holds_it(still: StillTime, scripted: ScriptedEngine) -> None:
    job = {
        "id": "1-0-1",
        "jobType": "pay",
        "instanceId": "1",
        "stepId": "p",
        "stepExecutionId": "1-0-1",
        "retriesRemaining": 2,
        "variables": {"n": 2**64},
        "lockExpiresAt": "2026-01-02T03:04:05Z",
        "status": "LOCKED",
        "workerId": "w",
        "lockedAt": "2026-01-02T03:04:05Z",
        "createdAt": "2026-01-02T03:04:05Z",
        "attempt": 7,
        "somethingNew": True,
    }

    held = threading.Event()

    def hold(_request: Request) -> Answer:
        held.wait(10)
        return Answer(200, {"jobs": [job]})

    scripted.on("POST", "/v1/jobs/poll", hold)

    async def answer_late() -> None:
        await anyio.to_thread.run_sync(lambda: scripted.wait_seen("/v1/jobs/poll"))
        still.jump(1.2)  # of 1.3
        await still.turns()  # whoever minds has been woken
        held.set()

    async def main() -> None:
        async with Client(scripted.url, timeout_s=0.3) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(answer_late)
            (polled,) = await client.poll_jobs("w", ["pay"], max_jobs=5, lease_s=60, wait_s=1)
        assert (polled.id, polled.attempt, polled.variables) == ("1-0-1", 7, {"n": 2**64})  # pyright: ignore[reportPossiblyUnboundVariable] - bound by the block before

    still.run(main)
    assert scripted.requests[0].body == {
        "workerId": "w",
        "jobTypes": ["pay"],
        "maxJobs": 5,
        "leaseSeconds": 60,
        "waitSeconds": 1,
    }


def test_batch_reports_carry_each_item_and_bring_its_outcome(run: Run, scripted: ScriptedEngine) -> None:
    outcomes = [{"jobId": "a", "outcome": "ok"}, {"jobId": "b", "outcome": "invalid", "reason": "NUL"}]
    scripted.on("POST", "/v1/jobs/fail", Answer(200, {"results": outcomes}))

    async def main() -> None:
        async with Client(scripted.url) as client:
            first, second = await client.fail_jobs(
                "w",
                [
                    Failure(job_id="a", attempt=1, retryable=True, error_message="x"),
                    Failure(job_id="b", attempt=2, retryable=False, error_message="y"),
                ],
            )
        assert (first.outcome, second.outcome, second.reason) == ("ok", "invalid", "NUL")

    run(main)
    assert scripted.requests[0].body == {
        "workerId": "w",
        "results": [
            {"jobId": "a", "attempt": 1, "retryable": True, "errorMessage": "x"},
            {"jobId": "b", "attempt": 2, "retryable": False, "errorMessage": "y"},
        ],
    }


def test_a_heartbeat_leaves_out_what_was_not_given(run: Run, scripted: ScriptedEngine) -> None:
    scripted.on("POST", "/v1/jobs/j/heartbeat", Answer(200, {"lockExpiresAt": "2026-01-02T03:04:05Z"}))

    async def main() -> None:
        async with Client(scripted.url) as client:
            lease = await client.heartbeat_job("j", "w", attempt=1, checkpoint={"page": 3})
            assert lease.lock_expires_at.year == 2026

    run(main)
    assert scripted.requests[0].body == {"workerId": "w", "attempt": 1, "checkpoint": {"page": 3}}


def test_the_client_stays_usable_after_a_call_was_cancelled(run: Run, scripted: ScriptedEngine) -> None:
    scripted.on("GET", "/v1/instances/1f", Hang(), instance())

    async def main() -> None:
        async with Client(scripted.url) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.get_instance, "1f")
                await anyio.to_thread.run_sync(lambda: scripted.wait_seen("/v1/instances/1f"))
                tasks.cancel_scope.cancel()
            assert (await client.get_instance("1f")).id == "1f"

    run(main)


def test_readiness_is_waited_for(still: StillTime, scripted: ScriptedEngine) -> None:
    not_ready = Answer(503, b"starting", "text/plain")
    scripted.on("GET", "/readyz", not_ready, not_ready, Answer(200, b""))

    async def main() -> None:
        async with Client(scripted.url) as client:
            assert not await client.is_ready()
            await client.wait_until_ready(timeout_s=120)
            scripted.on("GET", "/readyz", not_ready)
            with pytest.raises(Unavailable, match="starting"):
                await client.wait_until_ready(timeout_s=0.2)

    still.run(main)


def test_additions_are_sent_only_when_asked_for(run: Run, scripted: ScriptedEngine) -> None:
    failed = {"id": "j", "jobType": "t", "instanceId": "1f", "stepId": "s", "failedAt": "2026-01-02T03:04:05Z"}
    scripted.on("POST", "/v1/instances", Answer(201, INSTANCE | {"instanceKey": "k", "progress": {"pay": 0.5}}))
    scripted.on("POST", "/v1/instances/1f/signals/wait", Answer(204))
    scripted.on("POST", "/v1/instances/1f/retry", instance())
    scripted.on("GET", "/v1/jobs", Answer(200, {"items": [failed], "page": 0, "pageSize": 20}))

    async def main() -> None:
        async with Client(scripted.url) as client:
            started = await client.start_instance("order", instance_key="k")
            assert (started.instance_key, started.progress) == ("k", {"pay": 0.5})
            await client.signal("1f", "wait", buffer=True)
            assert (await client.retry_instance("1f")).status == "ACTIVE"
            page = await client.list_failed_jobs()
            assert ([job.id for job in page.items], page.total) == (["j"], None)

    run(main)
    start, signal, _retry, jobs = scripted.requests
    assert start.body == {"definitionId": "order", "instanceKey": "k"}
    assert (signal.query, signal.content) == ("buffer=true", b"")
    assert jobs.query == "status=FAILED&page=0&pageSize=20"


def test_the_blocking_client_has_every_method_and_the_same_errors(scripted: ScriptedEngine) -> None:
    scripted.on("GET", "/v1/instances/1f", instance())
    scripted.on("GET", "/v1/instances/2f", refused(404, "not-found", "no instance 2f"))
    with SyncClient(scripted.url) as client:
        assert client.get_instance("1f").definition_id == "order"
        with pytest.raises(NotFound, match="no instance 2f"):
            client.get_instance("2f")
    own = {"call", "aclose"}
    public = {name for name in dir(Client) if not name.startswith("_")} - own
    assert public <= set(dir(SyncClient))


@pytest.mark.parametrize("key", [" k ", "k\t", "a\nb", "a\r\nX: y", "a\0", "a\x01b", "\x7f", "\ud800"])
def test_a_key_that_no_header_holds_is_refused_at_once(run: Run, scripted: ScriptedEngine, key: str) -> None:
    """It was sent again and again, for half a minute, as if the connection had broken."""

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(BadRequest, match="can't be the value of a header"):
                await client.start_instance("order", idempotency_key=key)

    run(main)
    assert scripted.requests == []


def test_an_empty_key_is_none_as_to_an_engine(run: Run, scripted: ScriptedEngine) -> None:
    """It was taken for one, so that starts were repeated under it that the engine did each time."""
    scripted.on("POST", "/v1/instances", Drop(), Answer(201, INSTANCE))
    scripted.on("POST", "/v1/instances/1f/signals/wait", Answer(204))
    scripted.on("POST", "/v1/instances/batch", Answer(200, {"results": [{"instance": INSTANCE}]}))
    request = StartRequest(definition_id="order", idempotency_key="")

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(ConnectionFailed):
                await client.call(StartInstance(request=request))
            await client.start_instances([request])
            await client.signal("1f", "wait", idempotency_key="", signal_id="")

    run(main)
    start, batch, signal = scripted.requests
    assert "Idempotency-Key" not in start.headers
    assert uuid.UUID(batch.body["items"][0]["idempotencyKey"])
    assert uuid.UUID(signal.headers["Idempotency-Key"])
    assert signal.query == ""


@pytest.mark.parametrize("first", [Drop(), refused(503, "unavailable")])
def test_what_is_gone_after_a_lost_answer_was_deleted(run: Run, scripted: ScriptedEngine, first: Drop | Answer) -> None:
    scripted.on("DELETE", "/v1/queues/q", first, refused(404, "not-found"))
    scripted.on("DELETE", "/v1/schedules/s", first, refused(404, "not-found"))

    async def main() -> None:
        async with Client(scripted.url) as client:
            await client.delete_queue("q")
            await client.delete_schedule("s")
            for delete in (client.delete_queue("q"), client.delete_schedule("s")):
                with pytest.raises(NotFound):
                    await delete

    run(main)
    assert len(scripted.requests) == 2 * (SECOND_TRY + 1)


def test_what_was_never_there_is_not_found(run: Run, scripted: ScriptedEngine) -> None:
    """What the engine turned away was surely not done."""
    scripted.on("DELETE", "/v1/queues/q", refused(429, "resource-exhausted"), refused(404, "not-found"))

    async def main() -> None:
        async with Client(scripted.url) as client:
            with pytest.raises(NotFound):
                await client.delete_queue("q")

    run(main)
    assert len(scripted.requests) == SECOND_TRY


def test_a_wrong_url_is_reported_at_once() -> None:
    for url in ("http://localhost:abc", "http://\udcff"):
        with pytest.raises(ValueError, match="Invalid"):
            Client(url)
    with pytest.raises(ValueError, match="localhost:8080"):
        Client("localhost:8080")
