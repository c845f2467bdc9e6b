"""``workflow.v1.WorkflowEngine`` on a real engine: what the scenarios (tests/rest/test_scenarios.py) don't show."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import trio
from grpclib.const import Status
from h2.errors import ErrorCodes

from penstock.errors import NotFound
from penstock.log.log import trace_id
from penstock.rpc import call, definitions
from penstock.rpc.definitions import LIST_MAX_BYTES
from penstock.rpc.rows import Rows
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.worker_service import WorkerService
from penstock.settings import DispatchMode
from penstock.store.db import database
from penstock.testing.definitions import definition, end, fork, linear, service, step, timer
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion, Failure, PollRequest, Signal, StartRequest, UserTaskCompletion
from penstock.wire.protobuf import write_varint
from penstock.wire.struct_codec import MAX_LEVELS
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rpc.raw import framed
from tests.rpc.served import WORKER, WORKFLOW, CallFailed, Served, Work, served
from tests.waiting import wait_until

__all__ = ["make_driver"]  # pytest finds the fixture here

KINDS = m.StepType
FILES = (
    ("workflow/v1/engine.proto", "workflow.v1"),
    ("penstock/v1/worker.proto", "penstock.v1"),
    ("penstock/v1/schedules.proto", "penstock.v1"),
    ("penstock/v1/updates.proto", "penstock.v1"),
    ("penstock/v1/repair.proto", "penstock.v1"),
    ("penstock/v1/batches.proto", "penstock.v1"),
    ("penstock/v1/runs.proto", "penstock.v1"),
)


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(services=True)


@pytest.fixture
async def grpc(driver: Driver) -> AsyncGenerator[Served]:
    with trio.fail_after(60):
        async with served(driver.engine) as run:
            yield run


async def refused(call: Any) -> tuple[Status, str]:
    with pytest.raises(CallFailed) as failed:
        await call
    return failed.value.status, failed.value.reason


def task(id: str, after: str, **fields: Any) -> m.WorkflowStep:
    return m.WorkflowStep(id=id, name=id, type=KINDS.SERVICE_TASK, next_step=after, job_type="work", **fields)


def upload(*steps: m.WorkflowStep, id: str = "d", **fields: Any) -> m.UploadDefinitionRequest:
    last = m.WorkflowStep(id="end", name="end", type=KINDS.END)
    return m.UploadDefinitionRequest(m.WorkflowDefinition(id=id, name=id, steps=[*steps, last], **fields))


# -- the interface


def test_every_method_of_the_proto_files_is_served() -> None:
    """Read from the files themselves, so that one that is added there is missed here."""
    top = Path(__file__).resolve().parents[2] / "proto"
    expected: set[str] = set()
    for file, package in FILES:
        name = ""
        for line in (top / file).read_text().splitlines():
            words = line.replace("(", " ").split()
            if words[:1] == ["service"]:
                name = words[1]
            elif words[:1] == ["rpc"]:
                expected.add(f"/{package}.{name}/{words[1]}")
    engine: Any = _Nothing()
    services = (
        WorkflowEngine(engine),
        WorkerService(engine),
        Rows(engine),
    )
    assert expected == {path for service in services for path in service.__mapping__()}
    assert len([path for path in expected if path.startswith(WORKFLOW)]) == 13


class _Nothing:
    """An engine of which nothing is called."""

    def __getattr__(self, name: str) -> Any:
        return _Nothing()


# -- definitions


async def test_a_definition_comes_back_with_every_field(driver: Driver, grpc: Served) -> None:
    sent = m.WorkflowDefinition(
        id="LOS::loan",
        name="Loan",
        description="pays",
        auto_start_next_workflow=True,
        next_workflow_id="other",
        metadata=b'{"a":2.5,"z":[1,{"deep":null,"in":1}]}',
        steps=[
            task(
                "a", "decide", description="first", retry_count=3, delegate_class="com.x.Y",
                boundary_events=[m.BoundaryEvent(m.BoundaryEventType.TIMER, "PT1H", True, "u")],
            ),
            m.WorkflowStep(id="u", name="u", type=KINDS.USER_TASK, next_step="decide", job_type="label"),
            m.WorkflowStep(
                id="decide", name="d", type=KINDS.DECISION, conditional_next_steps={"1 == 1": "fork", "true": "end"}
            ),
            m.WorkflowStep(
                id="fork", name="f", type=KINDS.PARALLEL_GATEWAY, parallel_next_steps=["b", "w"], join_step="join"
            ),
            task("b", "join"),
            m.WorkflowStep(id="w", name="w", type=KINDS.WAIT, next_step="join"),
            m.WorkflowStep(id="join", name="j", type=KINDS.JOIN_GATEWAY, next_step="t"),
            m.WorkflowStep(
                id="t", name="t", type=KINDS.TRANSFORMATION, next_step="end",
                transformations={"a": b'"${1 + 1}"', "n": b"3", "none": b"null", "o": b'{"b":1,"x":[]}'},
            ),
            m.WorkflowStep(id="end", name="end", type=KINDS.END),
        ],
    )  # fmt: skip
    answer = await grpc.call("UploadDefinition", m.UploadDefinitionRequest(sent), m.UploadDefinitionResponse)
    assert (answer.id, answer.version) == ("LOS::loan", 1)
    assert answer.uploaded_at is not None
    assert abs(answer.uploaded_at - datetime.now(UTC)) < timedelta(minutes=1)
    found = (await grpc.call("GetDefinition", m.GetDefinitionRequest("LOS::loan"), m.GetDefinitionResponse)).definition
    assert found == msgspec.structs.replace(sent, version=1)
    listed = await grpc.call("ListDefinitions", m.ListDefinitionsRequest("LOAN"), m.ListDefinitionsResponse)
    assert (listed.definitions, listed.total) == ([found], 1)
    # Go's library writes maps in another order each time.
    found.metadata = b'{"z":[1,{"in":1,"deep":null}],"a":2.5}'  # pyright: ignore[reportOptionalMemberAccess] - it is there
    found.steps[7].transformations = dict(reversed(found.steps[7].transformations.items()))  # pyright: ignore[reportOptionalMemberAccess] - it is there
    found.steps[7].transformations["o"] = b'{"x":[],"b":1}'  # pyright: ignore[reportOptionalMemberAccess] - it is there
    again = await grpc.call("UploadDefinition", m.UploadDefinitionRequest(found), m.UploadDefinitionResponse)
    assert again == answer


async def test_what_rest_uploaded_is_read_over_grpc(driver: Driver, grpc: Served) -> None:
    wait = step("w", "WAIT", nextStep="end", duration="PT5S", joinStep=None, parallelNextSteps=[None])
    pay = service("pay", "w", timeout="PT10S", retryBackoff={"initial": "PT1S"}, retryCount=5)
    made = {"n": 2**70, "list": [1.5, "x"], "when": "${now()}"}
    shape = step("shape", "TRANSFORMATION", transformations=made, nextStep="pay", boundaryEvents=[timer("end")])
    await driver.upload(definition(shape, pay, wait, end(), definition_id="d", metadata={"k": []}))
    found = (await grpc.call("GetDefinition", m.GetDefinitionRequest("d"), m.GetDefinitionResponse)).definition
    assert found is not None
    assert [item.id for item in found.steps] == ["shape", "pay", "w", "end"]
    assert found.steps[0].transformations["list"] == b'[1.5,"x"]'
    assert found.metadata == b'{"k":[]}'
    assert found.steps[1].retry_count == 5


async def test_maps_are_taken_in_sorted_order(driver: Driver, grpc: Served) -> None:
    entries = {f"v{number}": b'"${%d}"' % number for number in range(9, -1, -1)}
    conditions = {"n > 2": "b", "n > 10": "a", "true": "c"}
    steps = [
        m.WorkflowStep(id="t", name="t", type=KINDS.TRANSFORMATION, transformations=entries, next_step="d"),
        m.WorkflowStep(id="d", name="d", type=KINDS.DECISION, conditional_next_steps=conditions),
        *(m.WorkflowStep(id=id, name=id, type=KINDS.END) for id in "abc"),
    ]
    request = m.UploadDefinitionRequest(m.WorkflowDefinition(id="d", name="d", steps=steps))
    await grpc.call("UploadDefinition", request, m.UploadDefinitionResponse)
    stored = (await driver.engine.definitions.get("d")).definition
    assert [name for name, _ in stored.steps[0].transformations] == sorted(entries)
    assert [expression.source for expression, _ in stored.steps[1].conditions] == ["n > 10", "n > 2", "true"]


@pytest.mark.parametrize(
    ("request_", "reasons"),
    [
        (m.UploadDefinitionRequest(), ["definition"]),
        (m.UploadDefinitionRequest(m.WorkflowDefinition()), ["id", "name", "steps"]),
        (upload(m.WorkflowStep(id="a", name="a", type=99)), ["steps[0].type", "99"]),
        (upload(m.WorkflowStep(id="a", name="a")), ["steps[0].type", "required"]),
        (
            upload(task("a", "end", boundary_events=[m.BoundaryEvent(7, "PT1S", target_step_id="end")])),
            ["[0].type", "7"],
        ),
        (upload(task("a", "end", boundary_events=[m.BoundaryEvent()])), ["duration", "targetStepId", "type"]),
        (upload(task("a", "end", retry_count=-1)), ["retryCount"]),
        (upload(task("a", "nowhere"), task("a", "end")), ["nowhere", "steps[1].id"]),
        (upload(task("a", "end\0")), ["NUL"]),
        (upload(task("a", "end"), id="not valid!"), ["id"]),
        (upload(task("a", "end"), auto_start_next_workflow=True), ["nextWorkflowId"]),
    ],
)
async def test_an_invalid_definition_is_refused_with_every_reason(
    driver: Driver, grpc: Served, request_: m.UploadDefinitionRequest, reasons: list[str]
) -> None:
    status, reason = await refused(grpc.call("UploadDefinition", request_, m.UploadDefinitionResponse))
    assert status is Status.INVALID_ARGUMENT
    for part in reasons:
        assert part in reason
    assert driver.rows("SELECT count(*) FROM definition") == [(0,)]


async def test_a_large_definition_is_parsed_aside_and_listed_bounded(driver: Driver, grpc: Served) -> None:
    many = [task(f"s{number}", f"s{number + 1}", description="x" * 100) for number in range(2_999)]
    request = upload(*many, task("s2999", "end"))
    await grpc.call("UploadDefinition", request, m.UploadDefinitionResponse)
    answer = await grpc.call("ListDefinitions", m.ListDefinitionsRequest(), m.ListDefinitionsResponse)
    assert len(answer.definitions[0].steps) == 3_001
    assert LIST_MAX_BYTES > 1_000_000


async def test_large_answers_are_made_beside_the_loop_and_counted(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of large definitions took the loop for 0.5 s."""
    here: dict[str, bool] = {}  # by what is made: whether on the loop
    held: dict[str, int] = {}
    loop = threading.get_ident()

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(value: Any, *more: Any) -> Any:
            here[type(value).__name__] = threading.get_ident() == loop
            held[type(value).__name__] = grpc.server._answer_memory.used_bytes
            return make(value, *more)

        return made

    monkeypatch.setattr(call, "encode_message", noted(call.encode_message))
    monkeypatch.setattr(definitions, "message_of", noted(definitions.message_of))
    many = [task(f"s{number}", f"s{number + 1}", description="x" * 100) for number in range(300)]
    await grpc.call("UploadDefinition", upload(*many, task("s300", "end")), m.UploadDefinitionResponse)
    await grpc.call("GetDefinition", m.GetDefinitionRequest("d"), m.GetDefinitionResponse)
    await grpc.call("ListDefinitions", m.ListDefinitionsRequest(), m.ListDefinitionsResponse)
    await driver.upload(linear(1))
    start = StartRequest("linear", 1, b'{"text":"%b"}' % (b"x" * 100_000))
    started = (await grpc.call("StartInstance", start, m.StartInstanceResponse)).instance
    assert started is not None
    await grpc.call("GetInstance", m.GetInstanceRequest(started.id), m.GetInstanceResponse)
    await grpc.call("PollJobs", PollRequest("w", ["work"]), m.PollJobsResponse)
    assert here == {
        "UploadDefinitionResponse": True,
        "LoadedDefinition": False,
        "GetDefinitionResponse": False,
        "ListDefinitionsResponse": False,
        "StartInstanceResponse": False,
        "GetInstanceResponse": False,
        "PollJobsResponse": False,
    }
    assert held.pop("UploadDefinitionResponse") == 0
    assert min(held.values()) >= 30_000, held


# -- instances


async def test_an_instance_has_every_field(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    request = StartRequest("linear", 1, b'{"n":3,"x":2.5,"none":null}', "key")
    started = (await grpc.call("StartInstance", request, m.StartInstanceResponse)).instance
    assert started is not None
    assert (started.definition_id, started.definition_version, started.status) == ("linear", 1, "ACTIVE")
    assert (started.current_step_ids, started.business_key) == (["task-1"], "key")
    assert started.started_at is not None
    assert (started.completed_at, started.failure_reason) == (None, None)
    assert (await grpc.call("GetInstance", m.GetInstanceRequest(started.id), m.GetInstanceResponse)).instance == started
    cancel = m.CancelInstanceRequest(started.id, "no\0 more")
    ended = (await grpc.call("CancelInstance", cancel, m.CancelInstanceResponse)).instance
    assert ended is not None
    assert (ended.status, ended.failure_reason) == ("CANCELLED", "no\N{REPLACEMENT CHARACTER} more")
    assert ended.completed_at is not None
    listed = await grpc.call("ListInstances", m.ListInstancesRequest(status=5), m.ListInstancesResponse)
    assert (listed.instances, listed.total) == ([ended], 1)


async def test_the_callers_trace_is_in_the_log_of_its_call(
    driver: Driver, grpc: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    async def get(id: str, wait_s: float = 0) -> None:
        seen.append(trace_id())
        raise NotFound(id)

    monkeypatch.setattr(driver.engine.instances, "get", get)
    body = encode_message(m.GetInstanceRequest("1f"))
    trace = "0af7651916cd43dd8448eb211c80319c"
    await grpc.client.call(WORKFLOW + "GetInstance", body, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    await grpc.client.call(WORKFLOW + "GetInstance", body)
    assert seen == [trace, None]


async def test_whole_numbers_stay_whole(driver: Driver, grpc: Served) -> None:
    """A Struct has doubles only; what REST and expressions see of them are whole numbers, as far as doubles go."""
    await driver.upload(linear(1))
    body = b'{"n":3,"big":9007199254740992,"x":0.1,"zero":0,"neg":-7}'
    request = StartRequest("linear", 0, body)
    started = (await grpc.call("StartInstance", request, m.StartInstanceResponse)).instance
    assert started is not None
    stored = await driver.variables(started.id)
    assert stored == {"n": 3, "big": 2**53, "x": 0.1, "zero": 0, "neg": -7}
    assert [type(stored[name]) for name in ("n", "big", "zero", "neg")] == [int] * 4
    (job,) = await grpc.poll("work")
    await grpc.complete(job.id, {"count": 12})
    assert (await driver.variables(started.id))["count"].__class__ is int


# -- jobs


async def test_a_poll_gives_one_job_with_every_field(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1, retry_count=4))
    first = await driver.start("linear", {"a": {"b": [1]}})
    await driver.start("linear")
    before = datetime.now(UTC)
    (job,) = await grpc.poll("work", lease=3600)
    assert (job.instance_id, job.job_type, job.step_id) == (first.id, "work", "task-1")
    assert (job.step_execution_id, job.retries_remaining, job.attempt) == (job.id, 4, 1)
    assert json.loads(job.variables) == {"a": {"b": [1]}}  # pyright: ignore[reportArgumentType] - a stand-in
    assert job.lock_expires_at is not None
    assert abs((job.lock_expires_at - before).total_seconds() - 3600) < 60
    assert await grpc.poll("unknown") == []
    assert len(await grpc.poll("unknown", "work", n=1_000_000, lease=-5)) == 1


async def test_a_poll_in_kafka_mode_is_a_failed_precondition(make_driver: MakeDriver) -> None:
    driver = make_driver(dispatch_mode=DispatchMode.KAFKA_OUTBOX, kafka_seed_brokers=("127.0.0.1:1",))
    async with served(driver.engine) as grpc:
        assert (await refused(grpc.poll("work")))[0] is Status.FAILED_PRECONDITION
        work = await Work.open(grpc.client, work=1)
        assert (await work.ended())[0] is Status.FAILED_PRECONDITION
        work = await Work.open(grpc.client)  # results are taken in both modes
        await work.send(end=True)
        assert (await work.ended())[0] is Status.OK


async def test_a_fail_by_a_non_holder_is_answered_ok(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    started = await driver.start("linear")
    (job,) = await grpc.poll("work", worker="mine")
    for worker in ("thief", "w" * 256):
        await grpc.call(
            "FailJob", Failure(job.id, worker_id=worker, retryable=False, error_message="x" * 9_000), m.FailJobResponse
        )
    assert (await refused(grpc.complete(job.id, worker="thief")))[0] is Status.ABORTED
    assert await driver.status(started.id) == "ACTIVE"
    await grpc.call(
        "FailJob",
        Failure(job.id, worker_id="mine", retryable=False, error_message="\0" + "x" * 9_000),
        m.FailJobResponse,
    )
    view = await driver.view(started.id)
    assert view.status == "FAILED"
    assert len((view.failure_reason or "").encode()) <= 4_200


@pytest.fixture
def patient_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement waits for locks as long as it has to: by default it is refused after `LOCK_WAIT_MS`."""
    monkeypatch.setattr(database, "SESSION_SETTINGS", database.SESSION_SETTINGS + b"; SET lock_timeout = 0")


@pytest.mark.usefixtures("patient_sessions")
async def test_a_poll_cancelled_during_its_claim_releases_the_jobs(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    with psycopg.connect(driver.dsn) as blocker:
        blocker.execute("LOCK TABLE token IN EXCLUSIVE MODE")  # the claim has to wait for this
        stream_id = await grpc.client.open(WORKFLOW + "PollJobs")
        await grpc.client.send(stream_id, framed(encode_message(PollRequest("gone", ["work"], 3))), end=True)

        async def claiming() -> bool:
            return driver.waiting_for_locks() > 0

        await wait_until(claiming)
        await grpc.client.reset(stream_id, ErrorCodes.CANCEL)

        async def gone() -> bool:
            return grpc.server.statistics().calls_running == 0

        await wait_until(gone)

    async def back() -> bool:
        return driver.rows("SELECT count(*) FROM token WHERE state = 0 AND attempt = 1") == [(3,)]

    await wait_until(back)
    assert [job.attempt for job in await grpc.poll("work", n=5)] == [2, 2, 2]


# -- hostile input


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetDefinition", m.GetDefinitionRequest()),
        ("ListDefinitions", m.ListDefinitionsRequest(page=-1)),
        ("ListDefinitions", m.ListDefinitionsRequest("a\0")),
        ("StartInstance", StartRequest()),
        ("StartInstance", StartRequest("linear", business_key="k\0")),
        ("StartInstance", StartRequest("linear", business_key="k" * 100_000)),
        ("StartInstance", StartRequest("linear", variables=b'{"a\\u0000":1}')),
        ("GetInstance", m.GetInstanceRequest()),
        ("GetInstanceHistory", m.GetInstanceHistoryRequest()),
        ("CancelInstance", m.CancelInstanceRequest()),
        ("ListInstances", m.ListInstancesRequest(status=77)),
        ("ListInstances", m.ListInstancesRequest(status=-1)),
        ("ListInstances", m.ListInstancesRequest(page=-1)),
        ("ListInstances", m.ListInstancesRequest("d\0")),
        ("PollJobs", PollRequest()),
        ("PollJobs", PollRequest("w")),
        ("PollJobs", PollRequest("", ["work"])),
        ("PollJobs", PollRequest("w\0", ["work"])),
        ("PollJobs", PollRequest("w", ["work\0"])),
        ("PollJobs", PollRequest("w", [str(number) for number in range(1001)])),
        ("CompleteJob", Completion()),
        ("CompleteJob", Completion("1f-1-1")),
        ("CompleteJob", Completion("", worker_id="w")),
        ("CompleteJob", Completion("1f-1-1", worker_id="w" * 257)),
        ("FailJob", Failure()),
        ("FailJob", Failure("1f-1-1", worker_id="w\0")),
        ("CompleteUserTask", UserTaskCompletion()),
        ("CompleteUserTask", UserTaskCompletion(instance_id="1f")),
        ("CompleteUserTask", UserTaskCompletion(completed_by="by\0", variables=b"", instance_id="1f", step_id="s")),
        ("SignalWait", Signal()),
        ("SignalWait", Signal("1f")),
    ],
)
async def test_missing_or_impossible_arguments_are_invalid(grpc: Served, method: str, request_: msgspec.Struct) -> None:
    status, reason = await refused(grpc.call(method, request_, m.CompleteJobResponse))
    assert status is Status.INVALID_ARGUMENT, reason
    assert reason


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetDefinition", m.GetDefinitionRequest("no\0thing")),
        ("GetDefinition", m.GetDefinitionRequest("d" * 10_000)),
        ("GetDefinition", m.GetDefinitionRequest("d", -(2**31))),
        ("StartInstance", StartRequest("nothing", -1)),
        ("GetInstance", m.GetInstanceRequest("\0")),
        ("GetInstanceHistory", m.GetInstanceHistoryRequest("1F")),
        ("CancelInstance", m.CancelInstanceRequest("ffffffffffffffff")),
        ("CompleteJob", Completion("1-2-3-4", worker_id="w")),
        ("FailJob", Failure("1-2-3", worker_id="w", error_message="\0")),
        ("CompleteUserTask", UserTaskCompletion(completed_by="", variables=b"", instance_id="1f", step_id="s")),
        ("SignalWait", Signal("1f", "s")),
    ],
)
async def test_what_does_not_exist_is_not_found(grpc: Served, method: str, request_: msgspec.Struct) -> None:
    assert (await refused(grpc.call(method, request_, m.CompleteJobResponse)))[0] is Status.NOT_FOUND


async def test_an_over_deep_struct_is_invalid_and_harmless(driver: Driver, grpc: Served) -> None:
    """As bytes, because our own encoder would not make it: an object in an object, and so on."""
    await driver.upload(linear(1))
    for levels in (MAX_LEVELS + 1, 5_000, 100_000):
        size, heads = 0, [b""]  # from the inside out: what stands before the value of each level
        for _ in range(levels):
            value = b"\x0a\x01a\x12" + write_varint(size)
            entry = b"\x0a" + write_varint(len(value) + size) + value
            size += len(entry)
            heads[-1], of_value = entry, b"\x2a" + write_varint(size)
            size += len(of_value)
            heads += [of_value, b""]
            if size > 1_000_000:
                break
        struct = b"".join(reversed(heads[:-2]))
        body = b"\x0a\x06linear\x1a" + write_varint(len(struct)) + struct
        status, _ = await refused(grpc.bytes("StartInstance", body, m.StartInstanceResponse))
        assert status is Status.INVALID_ARGUMENT
    await driver.start("linear")


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x0b" * 500, b"\x0a\x80" * 50],
)
async def test_no_bytes_at_any_method_do_more_than_fail(grpc: Served, body: bytes) -> None:
    paths = {**WorkflowEngine(grpc.engine).__mapping__(), **WorkerService(grpc.engine).__mapping__()}
    for path in [*paths, *(path for path in Rows(grpc.engine).__mapping__() if path.startswith(WORKER))]:
        with pytest.raises(CallFailed) as failed:
            await grpc.bytes(path, body, m.CompleteJobResponse)
        assert failed.value.status is Status.INVALID_ARGUMENT, path


async def test_many_tiny_items_are_refused_before_they_cost_much(grpc: Served) -> None:
    """Two bytes are an empty step: a message within the size limit could stop the engine for half a minute."""
    steps = b"\x3a\x00" * 1_000_000
    began_s = time.process_time()  # of the server, too: it is in this process
    for method, body in (
        ("UploadDefinition", b"\x0a" + write_varint(len(steps)) + steps),
        ("PollJobs", b"\x12\x00" * 1_000_000),
        (WORKER + "CompleteJobs", b"\x12\x00" * 1_000_000),
    ):
        status, reason = await refused(grpc.bytes(method, body, m.CompleteJobResponse))
        assert (status, "items" in reason) == (Status.INVALID_ARGUMENT, True)
    assert time.process_time() - began_s < 10


async def test_a_status_of_every_kind_of_conflict(driver: Driver, grpc: Served) -> None:
    await driver.upload(fork(1, 1))
    view = await driver.start("fork")
    await driver.cancel(view.id)
    again = grpc.call("CancelInstance", m.CancelInstanceRequest(view.id), m.CancelInstanceResponse)
    assert (await refused(again))[0] is Status.FAILED_PRECONDITION
    signal = Signal(view.id, "fork")
    assert (await refused(grpc.call("SignalWait", signal, m.SignalWaitResponse)))[0] is Status.FAILED_PRECONDITION
    large = StartRequest("fork", variables=json.dumps({"x": "y" * 4_194_304}).encode())
    assert (await refused(grpc.call("StartInstance", large, m.StartInstanceResponse)))[0] is Status.INVALID_ARGUMENT


async def test_a_database_that_is_away_is_unavailable(make_driver: MakeDriver) -> None:
    driver = make_driver(dsn="host=127.0.0.1 port=1 user=x dbname=x", outage_wait_seconds=0.2)
    async with served(driver.engine) as grpc:
        complete = Completion("1f-1-1", worker_id="w")
        start, read = StartRequest("d"), m.GetInstanceRequest("1f")
        for method, request in (("CompleteJob", complete), ("StartInstance", start), ("GetInstance", read)):
            status, reason = await refused(grpc.call(method, request, m.CompleteJobResponse))
            assert status is Status.UNAVAILABLE, (method, reason)
