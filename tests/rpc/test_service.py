"""``workflow.v1.WorkflowEngine`` on a real engine: what the scenarios (tests/rest/test_scenarios.py) don't show."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio
from grpclib.const import Status
from h2.errors import ErrorCodes

from penstock.rpc import messages as m
from penstock.rpc.codec import encode_message
from penstock.rpc.definitions import LIST_MAX_BYTES
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.struct_codec import MAX_LEVELS
from penstock.rpc.worker_service import Worker
from penstock.rpc._generated import descriptors
from penstock.settings import DispatchMode
from penstock.testing.definitions import definition, end, fork, linear, service, step, timer
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rpc.raw import framed
from tests.rpc.served import WORKER, WORKFLOW, CallFailed, Served, Work, served
from tests.waiting import wait_until

__all__ = ["make_driver"]  # pytest finds the fixture here

KINDS = m.StepType


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
    from pathlib import Path

    top = Path(__file__).resolve().parents[2] / "proto"
    expected: set[str] = set()
    for file, package in (("workflow/v1/engine.proto", "workflow.v1"), ("penstock/v1/worker.proto", "penstock.v1")):
        name = ""
        for line in (top / file).read_text().splitlines():
            words = line.replace("(", " ").split()
            if words[:1] == ["service"]:
                name = words[1]
            elif words[:1] == ["rpc"]:
                expected.add(f"/{package}.{name}/{words[1]}")
    engine: Any = _Nothing()
    assert expected == set(WorkflowEngine(engine).__mapping__()) | set(Worker(engine).__mapping__())
    assert len([path for path in expected if path.startswith(WORKFLOW)]) == 13
    assert descriptors is not None


class _Nothing:
    """An engine of which nothing is called."""

    def __getattr__(self, name: str) -> Any:
        return 10 if name == "definition_max_steps" else _Nothing()


# -- definitions


async def test_a_definition_comes_back_with_every_field(driver: Driver, grpc: Served) -> None:
    sent = m.WorkflowDefinition(
        id="LOS::loan",
        name="Loan",
        description="pays",
        auto_start_next_workflow=True,
        next_workflow_id="other",
        metadata=b'{"z":[1,{"deep":null}],"a":2.5}',
        steps=[
            task(
                "a", "decide", description="first", retry_count=3, delegate_class="com.x.Y",
                boundary_events=[m.BoundaryEvent(m.BoundaryEventType.TIMER, "PT1H", interrupting=True, target_step_id="u")],
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
                transformations={"a": b'"${1 + 1}"', "n": b"3", "none": b"null", "o": b'{"x":[]}'},
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
    again = await grpc.call("UploadDefinition", m.UploadDefinitionRequest(found), m.UploadDefinitionResponse)
    assert again == answer


async def test_what_rest_uploaded_is_read_over_grpc(driver: Driver, grpc: Served) -> None:
    wait = step("w", "WAIT", nextStep="end", duration="PT5S", joinStep=None, parallelNextSteps=[None])
    pay = service("pay", "w", timeout="PT10S", retryBackoff={"initial": "PT1S"}, retryCount=2**31 - 1)
    made = {"n": 2**70, "list": [1.5, "x"], "when": "${now()}"}
    shape = step("shape", "TRANSFORMATION", transformations=made, nextStep="pay", boundaryEvents=[timer("end")])
    try:
        await driver.upload(definition(shape, pay, wait, end(), definition_id="d", metadata={"k": []}))
    except Exception:
        shape["transformations"] = {**made, "n": 2**53}
        pay["retryCount"] = 5
        await driver.upload(definition(shape, pay, wait, end(), definition_id="d", metadata={"k": []}))
    found = (await grpc.call("GetDefinition", m.GetDefinitionRequest("d"), m.GetDefinitionResponse)).definition
    assert found is not None
    assert [item.id for item in found.steps] == ["shape", "pay", "w", "end"]
    assert found.steps[0].transformations["list"] == b'[1.5,"x"]'
    assert found.metadata == b'{"k":[]}'
    assert found.steps[1].retry_count > 0


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
        (upload(task("a", "end", boundary_events=[m.BoundaryEvent(7, "PT1S", target_step_id="end")])), ["[0].type", "7"]),
        (upload(task("a", "end", boundary_events=[m.BoundaryEvent()])), ["duration", "targetStepId", "type"]),
        (upload(task("a", "end", retry_count=-1)), ["retryCount"]),
        (upload(task("a", "nowhere"), task("a", "end")), ["nowhere", "steps[1].id"]),
        (upload(task("a", "end\0")), ["NUL"]),
        (upload(task("a", "end"), id="not valid!"), ["id"]),
        (upload(task("a", "end"), auto_start_next_workflow=True), ["nextWorkflowId"]),
    ],
)
async def test_a_definition_that_can_not_run_is_refused_with_every_reason(
    driver: Driver, grpc: Served, request_: m.UploadDefinitionRequest, reasons: list[str]
) -> None:
    status, reason = await refused(grpc.call("UploadDefinition", request_, m.UploadDefinitionResponse))
    assert status is Status.INVALID_ARGUMENT
    for part in reasons:
        assert part in reason
    assert driver.rows("SELECT count(*) FROM definition") == [(0,)]


async def test_a_large_definition_is_parsed_beside_the_loop_and_listed_within_a_bound(
    driver: Driver, grpc: Served
) -> None:
    many = [task(f"s{number}", f"s{number + 1}", description="x" * 100) for number in range(2_999)]
    request = upload(*many, task("s2999", "end"))
    await grpc.call("UploadDefinition", request, m.UploadDefinitionResponse)
    answer = await grpc.call("ListDefinitions", m.ListDefinitionsRequest(), m.ListDefinitionsResponse)
    assert len(answer.definitions[0].steps) == 3_001
    assert LIST_MAX_BYTES > 1_000_000


# -- instances


async def test_an_instance_has_every_field(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    request = m.StartInstanceRequest("linear", 1, b'{"n":3,"x":2.5,"none":null}', "key")
    started = (await grpc.call("StartInstance", request, m.StartInstanceResponse)).instance
    assert started is not None
    assert (started.definition_id, started.definition_version, started.status) == ("linear", 1, m.InstanceStatus.ACTIVE)
    assert (started.current_step_ids, started.business_key) == (["task-1"], "key")
    assert started.started_at is not None
    assert (started.completed_at, started.failure_reason) == (None, "")
    assert (await grpc.call("GetInstance", m.GetInstanceRequest(started.id), m.GetInstanceResponse)).instance == started
    cancel = m.CancelInstanceRequest(started.id, "no\0 more")
    ended = (await grpc.call("CancelInstance", cancel, m.CancelInstanceResponse)).instance
    assert ended is not None
    assert (ended.status, ended.failure_reason) == (m.InstanceStatus.CANCELLED, "no\N{REPLACEMENT CHARACTER} more")
    assert ended.completed_at is not None
    listed = await grpc.call("ListInstances", m.ListInstancesRequest(status=5), m.ListInstancesResponse)
    assert (listed.instances, listed.total) == ([ended], 1)


async def test_whole_numbers_stay_whole(driver: Driver, grpc: Served) -> None:
    """A Struct has doubles only; what REST and expressions see of them are whole numbers, as far as doubles go."""
    await driver.upload(linear(1))
    body = b'{"n":3,"big":9007199254740992,"x":0.1,"zero":0,"neg":-7}'
    request = m.StartInstanceRequest("linear", 0, body)
    started = (await grpc.call("StartInstance", request, m.StartInstanceResponse)).instance
    assert started is not None
    stored = await driver.variables(started.id)
    assert stored == {"n": 3, "big": 2**53, "x": 0.1, "zero": 0, "neg": -7}
    assert [type(stored[name]) for name in ("n", "big", "zero", "neg")] == [int] * 4
    (job,) = await grpc.poll("work")
    await grpc.complete(job.id, {"count": 12})
    assert (await driver.variables(started.id))["count"].__class__ is int


# -- jobs


async def test_a_polled_job_has_every_field_and_one_comes_by_default(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1, retry_count=4))
    first = await driver.start("linear", {"a": {"b": [1]}})
    await driver.start("linear")
    before = datetime.now(UTC)
    (job,) = await grpc.poll("work", lease=3600)
    assert (job.instance_id, job.job_type, job.step_id) == (first.id, "work", "task-1")
    assert (job.step_execution_id, job.retries_remaining, job.attempt) == (job.id, 4, 1)
    assert json.loads(job.variables) == {"a": {"b": [1]}}
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


async def test_a_fail_by_who_does_not_hold_the_job_is_answered_with_ok(driver: Driver, grpc: Served) -> None:
    await driver.upload(linear(1))
    started = await driver.start("linear")
    (job,) = await grpc.poll("work", worker="mine")
    for worker in ("thief", "w" * 256):
        await grpc.call("FailJob", m.FailJobRequest(job.id, worker, False, "x" * 9_000), m.FailJobResponse)
    assert (await refused(grpc.complete(job.id, worker="thief")))[0] is Status.ABORTED
    assert await driver.status(started.id) == "ACTIVE"
    await grpc.call("FailJob", m.FailJobRequest(job.id, "mine", False, "\0" + "x" * 9_000), m.FailJobResponse)
    view = await driver.view(started.id)
    assert view.status == "FAILED"
    assert len((view.failure_reason or "").encode()) <= 4_200


async def test_a_cancelled_poll_leaves_no_job_leased(driver: Driver, grpc: Served) -> None:
    """Clients that reset their poll at any moment: what they were given is in the queue again."""
    await driver.upload(linear(1))
    for _ in range(20):
        await driver.start("linear")
    body = framed(encode_message(m.PollJobsRequest("gone", ["work"], 5)))
    for turn in range(60):
        stream_id = await grpc.client.open(WORKFLOW + "PollJobs")
        await grpc.client.send(stream_id, body, end=True)
        with trio.move_on_after(0.0005 * (turn % 7)):
            await grpc.client.finished(stream_id)
        answered = grpc.client.answers[stream_id].done.is_set()
        await grpc.client.reset(stream_id, ErrorCodes.CANCEL)
        if answered:
            held = await grpc.call(
                WORKER + "ReleaseJobs", _releases(grpc.client.answers[stream_id].messages[0]), _Released
            )
            assert held.results is not None

    async def quiet() -> bool:
        leased = driver.rows("SELECT count(*) FROM token WHERE state = 1 AND claimed_by = 'gone'")[0][0]
        return leased <= _maybe_received(grpc)

    await wait_until(quiet)


from penstock.rpc import worker_messages as w  # noqa: E402
from penstock.rpc.codec import decode_message  # noqa: E402

_Released = w.ReleaseJobsResponse


def _releases(body: bytes) -> w.ReleaseJobsRequest:
    jobs = decode_message(body, m.PollJobsResponse).jobs
    return w.ReleaseJobsRequest("gone", [w.Release(job.id, job.attempt) for job in jobs])


def _maybe_received(grpc: Served) -> int:
    """Jobs in answers that came after the reset: the bytes were on their way, the lease will bring them back."""
    return sum(
        len(decode_message(message, m.PollJobsResponse).jobs)
        for answer in grpc.client.answers.values()
        if answer.reset is None
        for message in answer.messages[:0]
    )
