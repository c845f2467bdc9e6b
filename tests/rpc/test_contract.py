"""contract.md, 3, against a running engine process with google.protobuf's messages and grpcio's stubs."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import grpc
import psycopg
import pytest

from penstock.testing.definitions import linear
from penstock.wire import runs_v1
from penstock.wire.codec import decode_message, encode_message
from tests.rpc.conftest import Google
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

__all__ = ["start_engine"]  # pytest finds the fixture here
TIMEOUT_S = 60.0
ANSWERS = {"Register": runs_v1.RegisterWorkflowsResponse, "Start": runs_v1.StartRunResponse}
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


class Client:
    """The services of an engine; remembers which fields of which messages were ever filled in an answer."""

    def __init__(self, google: Google, engine: EngineProcess, channel: grpc.Channel) -> None:
        self.m, self.p = google.workflow, google.penstock
        self.engine = engine
        self.channel = channel
        self.workflow = google.workflow_grpc.WorkflowEngineStub(channel)
        self.worker = google.penstock_grpc.WorkerStub(channel)
        self.flow = google.penstock_grpc.FlowStub(channel)
        self.filled: set[tuple[str, str]] = set()

    def call(self, method: str, request: Any) -> Any:
        stubs = (self.workflow, self.worker, self.flow)
        stub = next(stub for stub in stubs if hasattr(stub, method))
        return self.saw(getattr(stub, method)(request, timeout=TIMEOUT_S))

    def ask(self, method: str, request: Any) -> Any:
        """A call of `penstock.v1.Runs`, with our own messages."""
        call = self.channel.unary_unary(
            f"/penstock.v1.Runs/{method}",
            request_serializer=encode_message,
            response_deserializer=lambda body: decode_message(body, ANSWERS[method]),
        )
        return call(request, timeout=TIMEOUT_S)

    def status(self, method: str, request: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as failed:
            self.call(method, request)
        code: grpc.StatusCode = failed.value.code()
        return code

    def saw(self, message: Any) -> Any:
        """Note what is filled in it, all the way down. The message."""
        for field, value in message.ListFields():
            self.filled.add((message.DESCRIPTOR.full_name, field.name))
            kind = field.message_type
            if kind is None or kind.GetOptions().map_entry or kind.full_name.startswith("google."):
                continue
            for inner in value if hasattr(value, "append") else [value]:
                self.saw(inner)
        return message

    def upload(self, *steps: Any, id: str = "d", **fields: Any) -> Any:
        last = self.step("end", "END")
        body = self.m.WorkflowDefinition(id=id, name=id, steps=[*steps, last], **fields)
        return self.call("UploadDefinition", self.m.UploadDefinitionRequest(definition=body))

    def step(self, id: str, kind: str, **fields: Any) -> Any:
        return self.m.WorkflowStep(id=id, name=id, type=f"STEP_TYPE_{kind}", **fields)

    def task(self, id: str = "a", job_type: str = "t", **fields: Any) -> Any:
        return self.step(id, "SERVICE_TASK", job_type=job_type, **{"next_step": "end", **fields})

    def start(self, id: str = "d", variables: dict[str, Any] | None = None, **fields: Any) -> Any:
        request = self.m.StartInstanceRequest(definition_id=id, **fields)
        request.variables.update(variables or {})
        return self.call("StartInstance", request).instance

    def poll(self, job_type: str = "t", **fields: Any) -> list[Any]:
        request = self.m.PollJobsRequest(worker_id="w", job_types=[job_type], **fields)
        return list(self.call("PollJobs", request).jobs)


@pytest.fixture
def client(start_engine: StartEngine, google: Google) -> Generator[Client]:
    engine = start_engine(lease_min_seconds=1).wait_ready()
    with grpc.insecure_channel(f"127.0.0.1:{engine.grpc_port}") as channel:
        yield Client(google, engine, channel)


def fields_of_answers(*files: Any) -> set[tuple[str, str]]:
    """Every field of every message that an answer of a service in these files can hold."""
    found: set[tuple[str, str]] = set()

    def walk(message: Any) -> None:
        if message.full_name.startswith("google.") or any(name == message.full_name for name, _ in found):
            return
        for field in message.fields:
            found.add((message.full_name, field.name))
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                walk(field.message_type)

    for file in files:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                walk(method.output_type)
    return found


def see_definitions(client: Client) -> None:
    m = client.m
    timer = m.BoundaryEvent(
        type="BOUNDARY_EVENT_TYPE_TIMER", duration="PT1H", interrupting=True, target_step_id="other"
    )
    decision = client.step("d", "DECISION", conditional_next_steps={"true": "fork"})
    fork = client.step("fork", "PARALLEL_GATEWAY", parallel_next_steps=["b", "c"], join_step="join")
    shape = client.step("s", "TRANSFORMATION", next_step="end")
    shape.transformations["x"].number_value = 3
    uploaded = client.upload(
        client.task(description="first", retry_count=2, delegate_class="x.Y", boundary_events=[timer], next_step="d"),
        client.step("other", "USER_TASK", next_step="w"), client.step("w", "WAIT", next_step="d", buffer=True),
        decision, fork, client.task("b", next_step="join"),
        client.task("c", next_step="join"), client.step("join", "JOIN_GATEWAY", next_step="s"), shape,
        id="all", description="all of it", auto_start_next_workflow=True, next_workflow_id="d", metadata={"k": [1]},
    )  # fmt: skip
    assert abs(uploaded.uploaded_at.ToDatetime(UTC).timestamp() - datetime.now(UTC).timestamp()) < 60
    client.call("GetDefinition", m.GetDefinitionRequest(id="all"))
    client.call("ListDefinitions", m.ListDefinitionsRequest())


def see_instances(client: Client) -> None:
    m = client.m
    client.upload(client.task(retry_count=3))
    started = client.start(variables={"n": 3}, business_key="key", instance_key="own")
    (job,) = client.poll()
    client.call("CompleteJob", m.CompleteJobRequest(job_id=job.id, worker_id="w"))
    client.start()
    (job,) = client.poll()
    client.call("FailJob", m.FailJobRequest(job_id=job.id, worker_id="w", error_message="no"))
    client.call("GetInstance", m.GetInstanceRequest(id=started.id))
    for id in (started.id, job.instance_id):
        client.call("GetInstanceHistory", m.GetInstanceHistoryRequest(id=id))
    client.call("CancelInstance", m.CancelInstanceRequest(id=client.start().id, reason="why"))
    client.call("ListInstances", m.ListInstancesRequest())
    client.call("ListInstances", m.ListInstancesRequest(limit=1))
    client.call("ListDefinitions", m.ListDefinitionsRequest(limit=1))


def see_batches(client: Client) -> None:
    p = client.p
    fails = client.step("f", "DECISION", conditional_next_steps={"1 == 2": "end"})
    client.upload(fails, id="fails")
    ok = {"idempotency_key": "k", "business_key": "b", "variables": b'{"n":1}', "definition_id": "d"}
    ok["instance_key"] = "i"
    for name, fields in (("gives", {"output": {"x": 1}}), ("errs", {"errorCode": "NO"})):  # workflow.v1 has neither
        body = {"id": name, "name": name, "steps": [{"id": "end", "name": "end", "type": "END", **fields}]}
        assert client.engine.call("POST", "/v1/definitions", body)[0] == 201
    items = [p.StartItem(**ok), p.StartItem(), *(p.StartItem(definition_id=id) for id in ("fails", "gives", "errs"))]
    client.call("StartInstances", p.StartInstancesRequest(items=items))
    waits = {"id": "w", "name": "w", "type": "WAIT", "nextStep": "end", "message": {"name": "m", "correlationKey": "k"}}
    body = {"id": "waits", "name": "waits", "steps": [waits, {"id": "end", "name": "end", "type": "END"}]}
    assert client.engine.call("POST", "/v1/definitions", body)[0] == 201
    client.call("StartInstances", p.StartInstancesRequest(items=[p.StartItem(definition_id="waits")]))
    messages = [p.Message(name="m", correlation_key=key, variables=b'{"n":1}') for key in ("k", "early", "")]
    client.call("PublishMessages", p.PublishMessagesRequest(messages=messages))
    put_off = p.StartItem(definition_id="waits", debounce=p.Debounce(key="k", wait="PT1H"))
    client.call("StartInstances", p.StartInstancesRequest(items=[put_off, put_off]))
    (job,) = client.poll(max_jobs=10)
    gone = {"job_id": "1-2-3", "attempt": 1}
    held = {"job_id": job.id, "attempt": job.attempt}
    beats = [p.Heartbeat(**held, checkpoint=b"1"), p.Heartbeat(**held, progress=b"{")]
    client.call("HeartbeatJobs", p.HeartbeatJobsRequest(worker_id="w", heartbeats=beats))
    client.call("ReleaseJobs", p.ReleaseJobsRequest(worker_id="w", releases=[p.Release(**gone)]))
    parks = [p.Park(**gone, signal="s"), p.Park(**held)]
    client.call("ParkJobs", p.ParkJobsRequest(worker_id="w", parks=parks))
    failure = p.Failure(**held, retryable=True)
    client.call("FailJobs", p.FailJobsRequest(worker_id="w", failures=[failure, p.Failure(**gone)]))
    (job,) = client.poll(max_jobs=10)
    broken = p.Completion(job_id=job.id, attempt=job.attempt, variables=b"[]")
    client.call("CompleteJobs", p.CompleteJobsRequest(worker_id="w", completions=[broken]))
    client.call("CancelInstance", client.m.CancelInstanceRequest(id=job.instance_id))


def see_queues(client: Client) -> None:
    p = client.p
    client.upload(client.task("a", "limited"), id="limited")
    rate = p.QueueRate(limit=100, burst=50, window=True)
    settings = p.QueueSettings(
        job_types=["limited"], paused=True, concurrency=5, concurrency_per_key=2, rate=rate, rate_per_key=rate,
        weights=[p.QueueWeight(flow_key="gold", weight=2)], runs=9,
    )  # fmt: skip
    client.call("PutQueue", p.PutQueueRequest(name="limited", settings=settings))
    unfair = p.QueueSettings(job_types=["unfair"], unfair=True)
    client.call("PutQueue", p.PutQueueRequest(name="unfair", settings=unfair))
    settings.paused = False
    client.call("PutQueue", p.PutQueueRequest(name="limited", settings=settings))
    items = [p.StartItem(definition_id="limited", flow_key="gold", priority=number) for number in range(4)]
    items[0].instance_key = "golden"
    for _ in range(2):  # the second answer shows the instance that has the key
        client.call("StartInstances", p.StartInstancesRequest(items=items))
    assert len(client.poll("limited", max_jobs=10)) == 2
    client.call("GetQueue", p.GetQueueRequest(name="limited"))
    client.call("ListQueues", p.ListQueuesRequest(limit=1))
    client.call("PauseQueue", p.PauseQueueRequest(name="limited"))
    client.call("ResumeQueue", p.ResumeQueueRequest(name="limited"))
    client.call("DeleteQueue", p.DeleteQueueRequest(name="unfair"))


class Stream:
    """A Work stream: what is put is sent."""

    def __init__(
        self,
        client: Client,
        job_type: str,
        jobs: int,
        lease_seconds: int = 60,
        *,
        executor: bool = False,
        rules: int = 0,
    ) -> None:
        self._client = client
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        credit = client.p.Credit(job_type=job_type, jobs=jobs)
        self.put(worker_id="s", lease_seconds=lease_seconds, credits=[credit], executor=executor, rules=rules)
        self._answers = client.worker.Work(iter(self._outgoing.get, None), timeout=TIMEOUT_S)

    def put(self, **fields: Any) -> None:
        self._outgoing.put(self._client.p.WorkRequest(**fields))

    def next(self) -> Any:
        return self._client.saw(next(self._answers))

    def until(self, field: str) -> Any:
        """The first of ``field`` in an answer to come."""
        while not (found := getattr(self.next(), field)):
            pass
        return found[0]

    def gather(self, **counts: int) -> dict[str, list[Any]]:
        """So many of each field, in however many answers they come."""
        found: dict[str, list[Any]] = {field: [] for field in counts}
        while any(len(found[field]) < count for field, count in counts.items()):
            answer = self.next()
            for field in counts:
                found[field] += getattr(answer, field)
        return found

    def end(self) -> grpc.StatusCode:
        self._outgoing.put(None)
        list(self._answers)
        code: grpc.StatusCode = self._answers.code()
        return code


def see_streams(client: Client) -> None:
    p = client.p
    client.upload(client.task("a", "s", retry_count=1), id="streamed")
    first, second = client.start("streamed", {"x": 1}, business_key="b"), client.start("streamed")
    stream = Stream(client, "s", 2)
    job = stream.until("jobs")
    held = {"job_id": job.id, "attempt": job.attempt}
    stream.put(heartbeats=[p.Heartbeat(**held, checkpoint=b"7"), p.Heartbeat(**held, checkpoint=b"{")])
    stream.until("heartbeats")
    stream.put(completions=[p.Completion(job_id="1-2-3", variables=b"[]")], credits=[p.Credit(job_type="s", jobs=-1)])
    stream.until("credits")
    stream.put(credits=[p.Credit(job_type="s", jobs=3), p.Credit(job_type="s", jobs=-1)])
    stream.until("credits")  # now some is left
    client.call("CancelInstance", client.m.CancelInstanceRequest(id=second.id))
    stream.until("cancellations")
    stream.put(releases=[p.Release(**held)])
    assert stream.until("jobs").checkpoint == b"7"
    assert stream.end() is grpc.StatusCode.OK
    short = Stream(client, "s", 1, lease_seconds=1)
    assert short.until("jobs").instance_id == first.id
    short.until("lease_losses")
    short.end()


def see_executors(client: Client) -> None:
    p = client.p
    client.ask("Register", runs_v1.RegisterWorkflowsRequest("", [runs_v1.CodeWorkflow("order", 1)]))
    id = client.ask("Start", runs_v1.StartRunRequest("", "order", 1, b'{"n": 7}', "o-1")).instance_id
    stream = Stream(client, "code:order@1", 1, executor=True, rules=1)
    run = stream.until("runs")
    assert (run.instance_id, run.arguments) == (id, b'{"n": 7}')
    held = {"job_id": run.job_id, "attempt": run.attempt}
    gone = {"job_id": run.job_id, "attempt": 9}
    reported = {"name": "s", "payload": "1", "digest": 5, "took_ms": 3, "mark": "m", "rules": 1}
    record = p.RunRecord(kind=1, path="/0", attempt=1, **reported)
    stream.put(appends=[p.RunAppend(**held, records=[record]), p.RunAppend(**held)])
    first, refused = stream.gather(appended=2)["appended"]
    assert "1 to 5,000" in refused.reason
    assert client.engine.call("POST", f"/v1/instances/{id}/messages", {"name": "go", "payload": 1})[0] < 300
    assert stream.until("mail").count == 1
    stream.put(appends=[p.RunAppend(**held, after=first.positions[0], records=[record])])
    assert stream.until("appended").reread
    stream.put(run_parks=[p.RunPark(**held), p.RunPark(**gone)], finishes=[p.RunFinish(**held), p.RunFinish(**gone)])
    found = stream.gather(parked=2, finished=2)
    assert [found[kind][0].unread for kind in found] == [True, True]
    stream.put(reads=[p.RunRead(**held, after=after) for after in ("", "z")] + [p.RunRead(**held, marks=True)])
    assert [each.name for each in stream.gather(pages=3)["pages"][0].records] == ["s", "go", "s"]
    child = {"path": "/1", "workflow": "order", "version": 1, "key": f"{id}/1", "arguments": b'{"n": 1}'}
    children = [p.RunChild(**held, **child), p.RunChild(**held, path="/2", cancel=True), p.RunChild(**gone)]
    stream.put(children=children, extends=[p.RunExtend(**held), p.RunExtend(**held, branches=b"{")])
    assert [each.mail for each in stream.gather(children=3, extended=2)["extended"]] == [1, 0]
    stream.put(run_parks=[p.RunPark(**held, give_back=True)], credits=[p.Credit(job_type="code:order@1", jobs=2)])
    again = stream.gather(runs=2)["runs"]  # it, and the child
    [taken] = [each for each in again if each.instance_id == id]
    assert (taken.attempt, taken.key, len(taken.page.records)) == (2, "o-1", 3)
    stream.put(run_parks=[p.RunPark(job_id=taken.job_id, attempt=2, blocked_on="other code")])
    assert stream.until("parked").pause_ms == 5_000
    same = p.StartInstancesRequest(items=[p.StartItem(definition_id="order", instance_key="o-1")])
    blocked = client.call("StartInstances", same).results[0].instance
    assert (blocked.id, blocked.blocked, blocked.blocked_reason) == (id, True, "other code")
    assert stream.end() is grpc.StatusCode.OK


def test_every_field_of_every_answer_is_filled(client: Client, google: Google) -> None:
    """Of workflow.v1 and penstock.v1, message by message: a field that no scenario ever fills would be a lost one."""
    for see in (see_definitions, see_instances, see_batches, see_queues, see_streams, see_executors):
        see(client)
    # Only an instance that another one started has a parent, and StartInstances answers with none of those.
    unseen = {("penstock.v1.Instance", "parent_instance_id")}
    # Only executors of durable workflows make runs open, and there are none of them over gRPC.
    unseen |= {("penstock.v1.GetQueueResponse", "open_runs")}
    # Only with traces (tests/runtime/test_tracing.py).
    unseen |= {("workflow.v1.Job", "traceparent"), ("penstock.v1.Job", "traceparent")}
    # A journal of a megabyte, one that is full, and a process that ended three times (tests/durable/test_remote.py).
    unseen |= {("penstock.v1.RunPage", "more"), ("penstock.v1.RunAppended", "full"), ("penstock.v1.Run", "expiries")}
    expected = fields_of_answers(google.workflow, google.penstock) - unseen
    assert expected - client.filled == set()
    assert client.engine.stop() == 0


def test_numbers_are_doubles_here_and_whole_in_rest(client: Client) -> None:
    client.upload(client.task())
    sent = {"n": 3, "zero": -0.0, "x": 2.5, "big": 2**53, "huge": 1e300, "tiny": 5e-324, "list": [1, [2.0]]}
    started = client.start(variables=sent)
    assert dict(started.variables) == sent
    shown = client.engine.call("GET", f"/v1/instances/{started.id}")[1]["variables"]
    assert float(shown.pop("huge")) == sent.pop("huge")  # 301 digits
    assert shown == sent
    assert [type(shown[name]) for name in ("n", "x", "big")] == [int, float, int]
    body = {"definitionId": "d", "variables": {"odd": 2**53 + 1, "beyond": 10**400, "nil": None}}
    id = client.engine.call("POST", "/v1/instances", body)[1]["id"]
    found = client.call("GetInstance", client.m.GetInstanceRequest(id=id)).instance.variables
    assert dict(found) == {"odd": 2.0**53, "beyond": str(10**400), "nil": None}
    for value in (math.nan, math.inf, -math.inf):
        request = client.m.StartInstanceRequest(definition_id="d")
        request.variables["x"] = value
        assert client.status("StartInstance", request) is INVALID
    request = client.m.StartInstanceRequest(definition_id="d")
    request.variables.fields["unset"].SetInParent()  # a Value with nothing in it
    assert dict(client.call("StartInstance", request).instance.variables) == {"unset": None}


def test_pages_versions_and_times(client: Client) -> None:
    m = client.m
    client.upload(client.task())
    assert client.upload(client.task(description="2")).version == 2
    ids = [client.start(definition_version=version).id for version in (1, 0, 0)]
    found = [client.call("GetInstance", m.GetInstanceRequest(id=id)).instance for id in ids]
    assert [item.definition_version for item in found] == [1, 2, 2]
    stamps = [item.started_at.ToDatetime(UTC) for item in found]
    assert stamps == sorted(stamps)
    assert abs((stamps[0] - datetime.now(UTC)).total_seconds()) < 60
    assert not found[0].HasField("completed_at")
    for version in (3, -1):
        assert client.status(
            "StartInstance", m.StartInstanceRequest(definition_id="d", definition_version=version)
        ) is (grpc.StatusCode.NOT_FOUND)
    for page, size, expected in (
        (0, 2, ids[:0:-1]),
        (1, 2, ids[:1]),
        (2, 2, []),
        (0, 0, ids[::-1]),
        (0, 10_000, ids[::-1]),
    ):
        answer = client.call("ListInstances", m.ListInstancesRequest(page=page, page_size=size))
        assert ([item.id for item in answer.instances], answer.total) == (expected, 3)
    one = client.call("ListInstances", m.ListInstancesRequest(status="INSTANCE_STATUS_WAITING"))
    assert (list(one.instances), one.total) == ([], 0)


def test_a_reserved_field_of_an_old_client_is_ignored(client: Client) -> None:
    """`user_task_id`, number 1, as a text and as a number."""
    client.upload(client.step("u", "USER_TASK", next_step="end"))
    send = client.channel.unary_unary("/workflow.v1.WorkflowEngine/CompleteUserTask")
    for old in (b"\x0a\x03old", b"\x08\x2a"):
        id = client.start().id
        request = client.m.CompleteUserTaskRequest(instance_id=id, user_task_step_id="u")
        assert send(old + request.SerializeToString(), timeout=TIMEOUT_S) == b""
        assert client.call("GetInstance", client.m.GetInstanceRequest(id=id)).instance.status == 3


@pytest.mark.slow(reason="starts an engine process")
def test_an_answer_is_never_larger_than_clients_take(client: Client) -> None:
    """4 MiB unless told otherwise: what does not fit goes back to the queue, and no job is lost to it."""
    client.upload(client.task())
    for _ in range(3):  # one by one beyond what Struct and JSON have in common: small numbers
        body = {"definitionId": "d", "variables": {"x": [0] * 150_000}}
        assert client.engine.call("POST", "/v1/instances", body)[0] == 201
        body = {"definitionId": "d", "variables": {"x": "y" * 1_500_000}}
        assert client.engine.call("POST", "/v1/instances", body)[0] == 201
    found: set[str] = set()
    polls = 0
    while len(found) < 6:
        jobs = client.poll(max_jobs=10, lease_seconds=3_600)
        polls += 1
        assert found.isdisjoint(job.id for job in jobs)
        found |= {job.id for job in jobs}
        assert polls < 100
    for id in found:
        client.call("CompleteJob", client.m.CompleteJobRequest(job_id=id, worker_id="w"))


@pytest.mark.slow(reason="starts an engine process")
def test_a_stream_takes_large_jobs_one_by_one(client: Client) -> None:
    client.upload(client.task())
    large = {"definitionId": "d", "variables": {"x": "y" * 3_900_000}}
    small = {"definitionId": "d", "variables": {"x": "y" * 400_000}}
    for body in (small, small, large, small, large):
        assert client.engine.call("POST", "/v1/instances", body)[0] == 201
    stream = Stream(client, "t", 5)
    jobs = 0
    while jobs < 5:
        stream.put(completions=[client.p.Completion(job_id="f" * 200) for _ in range(2_000)])
        answer = stream.next()
        jobs += len(answer.jobs)
        assert answer.ByteSize() < 4 * 1024 * 1024
    assert stream.end() is grpc.StatusCode.OK


@pytest.mark.slow(reason="starts an engine process")
def test_a_full_queue_is_resource_exhausted(start_engine: StartEngine, google: Google, database_dsn: str) -> None:
    engine = start_engine(batch_queue_max_items=100).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    with grpc.insecure_channel(f"127.0.0.1:{engine.grpc_port}") as channel:
        client = Client(google, engine, channel)
        client.start("linear")
        request = client.m.StartInstanceRequest(definition_id="linear")
        with psycopg.connect(database_dsn) as blocker:
            blocker.execute("LOCK TABLE token IN EXCLUSIVE MODE")
            calls = [client.workflow.StartInstance.future(request, timeout=TIMEOUT_S) for _ in range(400)]
            wait_until(lambda: any(call.done() for call in calls))
        codes = [call.code() for call in calls]
    assert set(codes) == {grpc.StatusCode.OK, EXHAUSTED}
    with psycopg.connect(database_dsn) as eyes:
        assert eyes.execute("SELECT count(*) FROM instance").fetchall() == [(1 + codes.count(grpc.StatusCode.OK),)]
    assert engine.stop() == 0


@pytest.mark.slow(reason="starts an engine process")
def test_the_limits_of_the_settings_hold(start_engine: StartEngine, google: Google) -> None:
    engine = start_engine(grpc_max_streams=2, grpc_max_message_bytes=20_000, grpc_max_connections=2).wait_ready()
    address = f"127.0.0.1:{engine.grpc_port}"
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, own) as channel:
        client = Client(google, engine, channel)
        client.upload(client.task())
        client.start(variables={"x": "y" * 19_000})
        large = client.m.StartInstanceRequest(definition_id="d")
        large.variables["x"] = "y" * 20_000
        assert client.status("StartInstance", large) is INVALID
        # Two streams are all that may run at once: the third call waits for one of them to end.
        streams = [Stream(client, "none", 1) for _ in range(2)]
        third = client.workflow.ListDefinitions.future(client.m.ListDefinitionsRequest(), timeout=TIMEOUT_S)
        for stream in streams:
            stream.put(credits=[client.p.Credit(job_type="none", jobs=-1)])
            stream.until("credits")
        assert not third.done()
        assert streams[0].end() is grpc.StatusCode.OK
        assert third.result().total == 1
        streams[1].end()
        # One more connection is taken, a third waits until one of these two leaves, as both have called.
        with grpc.insecure_channel(address, own) as second, grpc.insecure_channel(address, own) as last:
            method = "/workflow.v1.WorkflowEngine/ListDefinitions"
            assert second.unary_unary(method)(b"", timeout=TIMEOUT_S)
            list_definitions = last.unary_unary(method)
            with pytest.raises(grpc.RpcError) as failed:
                list_definitions(b"", timeout=3)
            assert failed.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
            second.close()
            assert list_definitions(b"", timeout=3 * TIMEOUT_S, wait_for_ready=True)
    assert engine.stop() == 0


@pytest.mark.slow(reason="an idle stream of several seconds")
def test_an_idle_stream_is_kept_alive_by_its_clients_pings(start_engine: StartEngine, google: Google) -> None:
    engine = start_engine().wait_ready()
    pings = [
        ("grpc.keepalive_time_ms", 1_000), ("grpc.keepalive_timeout_ms", 6_000),
        ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
    ]  # fmt: skip
    with grpc.insecure_channel(f"127.0.0.1:{engine.grpc_port}", pings) as channel:
        client = Client(google, engine, channel)
        client.upload(client.task())
        stream = Stream(client, "t", 1)
        began = time.monotonic()
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append)
        wait_until(lambda: time.monotonic() - began > 8)  # seven pings, the first two to be answered by now
        client.start()
        stream.until("jobs")
        assert stream.end() is grpc.StatusCode.OK
    assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states
    assert engine.stop() == 0
