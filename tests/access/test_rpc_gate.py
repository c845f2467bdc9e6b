"""gRPC with authentication: the table of roles row by row, and calls that outlive their token."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest
import trio
from grpclib.const import Handler, Status
from h2.exceptions import H2Error

from penstock.access import gate as gate_module
from penstock.access import table
from penstock.access.gate import Gate
from penstock.access.roles import LEAST_ROLE, read_grant
from penstock.access.tokens import KnownToken, make_token
from penstock.api.permission import Permission
from penstock.rest.operations import OPERATIONS
from penstock.rpc.problems import status_of
from penstock.rpc.rows import Rows
from penstock.rpc.server import GrpcServer
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.worker_service import WorkerService
from penstock.runtime.rpc_server import RpcServer
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import linear
from penstock.wire import penstock_v1 as w
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import PollRequest
from tests.access.people import TOKENS, bearer, make_gate
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.rest.scripted import ScriptedEngine
from tests.rpc.raw import Answer, RawClient, client_on, framed
from tests.waiting import wait_until

__all__ = ["make_driver"]  # pytest finds the fixture here
POLL = "/workflow.v1.WorkflowEngine/PollJobs"
WORK = "/penstock.v1.Worker/Work"
Metadata = list[tuple[str, str]]


@asynccontextmanager
async def connected(server: GrpcServer) -> AsyncGenerator[RawClient, None]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [listener])
        stream = await trio.open_tcp_stream("127.0.0.1", listener.getsockname()[1])
        async with client_on(stream) as client:
            yield client
        nursery.cancel_scope.cancel()


async def opened(client: RawClient, path: str, metadata: Metadata) -> int:
    """As `RawClient.open`, which takes no name twice."""
    stream_id = client.h2.get_next_available_stream_id()
    client.answers[stream_id] = Answer()
    fixed = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"), ("te", "trailers")]
    client.h2.send_headers(stream_id, [*fixed, ("content-type", "application/grpc"), *metadata])
    await client.flush()
    return stream_id


async def call(client: RawClient, path: str, metadata: Metadata, body: bytes = b"") -> Answer:
    stream_id = await opened(client, path, metadata)
    with suppress(H2Error):  # refused before the message came
        await client.send(stream_id, framed(body), end=True)
    return await client.finished(stream_id)


def proof(role: str) -> Metadata:
    return [("authorization", bearer(role))]


class Everything:
    """Serves every path of the table, and counts who got through."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    def __mapping__(self) -> dict[str, Handler]:
        from penstock.rpc.methods import unary

        def serve(path: str) -> Handler:
            async def run(_request: PollRequest, _call: object) -> PollRequest:
                self.reached.append(path)
                return PollRequest()

            return unary(run, PollRequest, PollRequest)

        return {path: serve(path) for path in (*table.RPC, "/workflow.v1.WorkflowEngine/New")}


def test_every_rpc_has_a_row_and_every_row_an_rpc() -> None:
    engine = ScriptedEngine()
    engine.metrics = Metrics("test")
    assert RpcServer(engine, engine.settings, None, max_connections=1).server.paths == set(table.RPC)  # type: ignore[arg-type]  # scripted  # pyright: ignore[reportArgumentType] - a stand-in


def test_queues_schedules_and_batches_take_an_operator_to_be_changed() -> None:
    """Over REST and gRPC alike; to look takes a viewer."""
    flow = ("/v1/queues", "/v1/schedules", "/v1/batches", "/v1/instances/{id}/priority")
    services = ("/penstock.v1.Flow/", "/penstock.v1.Schedules/", "/penstock.v1.Batches/", "/penstock.v1.Repair/SetPrio")
    rest = {f"{row.method} {row.path}": row.needs for row in OPERATIONS if row.path.startswith(flow)}
    rpc = {path: needs for path, needs in table.RPC.items() if path.startswith(services)}
    reads = re.compile("GET |POST .*/preview$|/penstock.v1.[A-Za-z]+/(Get|List|Preview)")
    for needs in (rest, rpc):
        assert needs == {name: Permission.VIEW if reads.match(name) else Permission.OPERATE for name in needs}
    assert (len(rest), len(rpc)) == (21, 23)


async def test_each_rpc_takes_only_the_roles_of_its_row() -> None:
    everything = Everything()
    server = GrpcServer([everything], status_of=status_of, gate=make_gate())
    with trio.fail_after(60):
        async with connected(server) as client:
            for path, needed in table.RPC.items():
                unknown = await call(client, path, [])
                expected = Status.OK if needed is Permission.NONE else Status.UNAUTHENTICATED
                assert unknown.status == expected.value, path
                for role in TOKENS:
                    everything.reached.clear()
                    answer = await call(client, path, proof(role))
                    allowed = needed in {*read_grant(role).permissions, Permission.NONE}
                    assert everything.reached == [path] * allowed, (path, role)
                    expected = Status.OK if allowed else Status.PERMISSION_DENIED
                    assert answer.status == expected.value, (path, role)
                    if not allowed:
                        assert f"needs the role {LEAST_ROLE[needed]}" in answer.reason
            everything.reached.clear()
            answer = await call(client, "/workflow.v1.WorkflowEngine/New", proof("admin"))
            assert (answer.status, everything.reached) == (Status.PERMISSION_DENIED.value, [])


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Bearer wrong")],
        [("authorization", "{}")],
        [*proof("worker"), ("authorization", "Bearer wrong")],
        [("authorization", "Bearer wrong"), *proof("worker")],
        [*proof("worker"), *proof("worker")],
        [("x-forwarded-for", "10.0.0.1")],
        [("token", TOKENS["worker"].text)],
        [("authorization-bin", "QmVhcmVy")],
    ],
)
async def test_what_is_no_proof_is_refused(metadata: Metadata) -> None:
    gate = make_gate(trusted_networks=("10.0.0.0/8=admin",))
    server = GrpcServer([Everything()], status_of=status_of, gate=gate)
    with trio.fail_after(30):
        async with connected(server) as client:
            assert (await call(client, POLL, metadata)).status == Status.UNAUTHENTICATED.value


async def test_an_address_of_a_trusted_network_needs_no_token() -> None:
    gate = make_gate(trusted_networks=("127.0.0.1/32=worker",))
    server = GrpcServer([Everything()], status_of=status_of, gate=gate)
    with trio.fail_after(30):
        async with connected(server) as client:
            assert (await call(client, POLL, [])).status == Status.OK.value
            cancel = await call(client, "/workflow.v1.WorkflowEngine/CancelInstance", [])
            assert cancel.status == Status.PERMISSION_DENIED.value


# -- job types and streams, on a real engine


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(services=True, lease_min_seconds=1)


class Gated:
    def __init__(self, gate: Gate, client: RawClient) -> None:
        self.gate = gate
        self.client = client


@pytest.fixture
async def gated(driver: Driver) -> AsyncGenerator[Gated]:
    gate = make_gate(grants={"worker": "worker(work)"})
    services = [WorkflowEngine(driver.engine), WorkerService(driver.engine), Rows(driver.engine)]
    with trio.fail_after(60):
        async with connected(GrpcServer(services, status_of=status_of, gate=gate)) as client:
            yield Gated(gate, client)


async def test_a_worker_gets_and_settles_jobs_of_its_types_only(driver: Driver, gated: Gated) -> None:
    await driver.upload(linear(1, definition_id="mine", job_type="work"))
    await driver.upload(linear(1, definition_id="other", job_type="secret"))
    await driver.start("mine")
    await driver.start("other")
    for job_type, status in (("secret", Status.PERMISSION_DENIED), ("work", Status.OK)):
        request = encode_message(PollRequest("w", [job_type], 5))
        assert (await call(gated.client, POLL, proof("worker"), request)).status == status.value
    mixed = encode_message(PollRequest("w", ["work", "secret"], 5))
    assert (await call(gated.client, POLL, proof("worker"), mixed)).status == Status.PERMISSION_DENIED.value

    (held,) = await driver.poll("secret", worker="w")
    for method, request in (
        ("CompleteJobs", w.CompleteJobsRequest("w", [w.Completion(held.id, held.attempt)])),
        ("FailJobs", w.FailJobsRequest("w", [w.Failure(held.id, held.attempt)])),
        ("ReleaseJobs", w.ReleaseJobsRequest("w", [w.JobRef(held.id, held.attempt)])),
        ("HeartbeatJobs", w.HeartbeatJobsRequest("w", [w.Heartbeat(held.id, held.attempt)])),
    ):
        answer = await call(gated.client, f"/penstock.v1.Worker/{method}", proof("worker"), encode_message(request))
        assert answer.status == 0
        assert b"job type 'secret'" in answer.messages[0], method
    assert driver.rows("SELECT count(*) FROM token WHERE state = 1 AND claimed_by = 'w'") == [(2,)]


async def test_credit_for_another_job_type_ends_the_stream(driver: Driver, gated: Gated) -> None:
    stream_id = await opened(gated.client, WORK, proof("worker"))
    request = w.WorkRequest(worker_id="w", credits=[w.Credit("secret", 1)])
    await gated.client.send(stream_id, framed(encode_message(request)))
    answer = await gated.client.finished(stream_id)
    assert answer.status == Status.PERMISSION_DENIED.value


@pytest.mark.parametrize(("grant", "executor"), [("worker", True), ("executor", False)])
async def test_a_stream_is_for_who_may_do_its_work(gated: Gated, grant: str, executor: bool) -> None:
    made = make_token()
    gated.gate.replace_tokens([KnownToken("x", "x", made.digest, read_grant(grant), float("inf"))])
    stream_id = await opened(gated.client, WORK, [("authorization", f"Bearer {made.text}")])
    request = w.WorkRequest(worker_id="w", executor=executor)
    await gated.client.send(stream_id, framed(encode_message(request)))
    answer = await gated.client.finished(stream_id)
    needed = "executor" if executor else "worker"
    assert (answer.status, f"the role {needed}" in answer.reason) == (Status.PERMISSION_DENIED.value, True)


async def test_a_revoked_token_ends_its_stream_and_releases_its_jobs(driver: Driver, gated: Gated) -> None:
    made = make_token()
    gated.gate.replace_tokens([KnownToken("x", "x", made.digest, read_grant("worker"), float("inf"))])
    await driver.upload(linear(1))
    await driver.start("linear")
    stream_id = await opened(gated.client, WORK, [("authorization", f"Bearer {made.text}")])
    request = w.WorkRequest(worker_id="w", credits=[w.Credit("work", 1)])
    await gated.client.send(stream_id, framed(encode_message(request)))
    await gated.client.messages(stream_id, 1)
    gated.gate.replace_tokens([])
    answer = await gated.client.finished(stream_id)
    assert (answer.status, answer.reason) == (Status.UNAUTHENTICATED.value, "the token was revoked")

    async def is_back() -> bool:
        return driver.rows("SELECT count(*) FROM ready") == [(1,)]

    await wait_until(is_back)


async def test_a_stream_may_report_held_jobs_after_its_token_expired(
    driver: Driver, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_token()
    gated.gate.replace_tokens([KnownToken("x", "x", made.digest, read_grant("worker"), time.time() + 60)])
    await driver.upload(linear(1))
    await driver.start("linear")
    stream_id = await opened(gated.client, WORK, [("authorization", f"Bearer {made.text}")])
    request = w.WorkRequest(worker_id="w", credits=[w.Credit("work", 5)])
    await gated.client.send(stream_id, framed(encode_message(request)))
    (message,) = await gated.client.messages(stream_id, 1)
    (job,) = decode_message(message, w.WorkResponse).jobs
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(time=lambda: time.time() + 61))
    await gated.gate.watch_step()
    await driver.start("linear")  # not for this stream any more
    done = w.WorkRequest(completions=[w.Completion(job.id, job.attempt, b"{}")])
    await gated.client.send(stream_id, framed(encode_message(done)))
    answer = await gated.client.finished(stream_id)
    assert answer.status == Status.UNAUTHENTICATED.value
    outcomes = [decode_message(each, w.WorkResponse) for each in answer.messages]
    assert [len(each.jobs) for each in outcomes if each.jobs] == [1]
    assert [each.outcome for message in outcomes for each in message.outcomes] == ["ok"]
