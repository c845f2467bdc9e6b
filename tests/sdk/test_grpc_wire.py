"""The gRPC transport against a server that a test scripts: what breaks, what is sent again, what is raised."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest
import trio
import trustme
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame, SettingsFrame

from penstock.api import definitions, tasks
from penstock.api import instances as api
from penstock.client import (
    BadRequest,
    Client,
    ClientError,
    Completion,
    Conflict,
    ConnectionFailed,
    IdempotencyConflict,
    Instance,
    InternalError,
    LeaseLost,
    NotFound,
    NotImplementedByEngine,
    NotOverGrpc,
    PayloadTooLarge,
    SyncClient,
    TimedOut,
    TooManyRequests,
    Unavailable,
    traceparent,
)
from penstock.client import operation as calls
from penstock.client.builder import WorkflowBuilder, compensation
from penstock.client.call import RowCall
from penstock.client.grpc import GrpcTransport
from penstock.client.grpc.connection import GrpcLimits
from penstock.client.grpc.exchange import ADAPTED, WITHOUT_FORM, exchange_for
from penstock.testing.cancellation import CancelledAttempt, Operation, cancel_at_step, cancel_everywhere
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import DefinitionSummary, JobOutcome, Signal, StartResult, UserTaskCompletion
from tests.sdk.loops import Run, until
from tests.sdk.scripted_grpc import LAST_STREAM_ID, ScriptedCall, ScriptedGrpc, answer, drop, hang, refuse
from tests.sdk.test_contract import CALLS
from tests.sdk.virtual_time import StillTime

GET = "/workflow.v1.WorkflowEngine/GetInstance"
TASK = "/workflow.v1.WorkflowEngine/CompleteUserTask"
SIGNAL = "/workflow.v1.WorkflowEngine/SignalWait"
START = "/penstock.v1.Worker/StartInstances"
COMPLETE = "/penstock.v1.Worker/CompleteJobs"
FOUND = m.GetInstanceResponse(m.Instance(id="1f", definition_id="order", definition_version=3, status="ACTIVE"))
STARTED = w.StartInstancesResponse([StartResult(instance=Instance(id="1f", variables={"n": 1}, status="ACTIVE"))])
DONE = m.CompleteUserTaskResponse()


@pytest.fixture
def server() -> Iterator[ScriptedGrpc]:
    with ScriptedGrpc() as running:
        yield running


def test_a_call_carries_its_deadline_metadata_and_trace(still: StillTime, server: ScriptedGrpc) -> None:
    server.on(SIGNAL, answer(m.SignalWaitResponse()))
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def main() -> None:
        transport = GrpcTransport(server.url, metadata={"Authorization": "Bearer x"})
        async with Client(transport, exchange_timeout_s=7) as client:
            with traceparent(trace):
                await client.signal("1f", "wait", {"n": 1}, idempotency_key="k-1")
            await client.signal("1f", "wait")

    still.run(main)
    first, second = server.calls
    assert first.headers["authorization"] == second.headers["authorization"] == "Bearer x"
    assert (first.headers["traceparent"], "traceparent" in second.headers) == (trace, False)
    assert first.headers["idempotency-key"] == "k-1"
    assert len(second.headers["idempotency-key"]) == 32
    assert first.headers["grpc-timeout"] == "7000m"
    assert first.headers["content-type"] == "application/grpc"
    assert first.messages(Signal) == [Signal("1f", "wait", b'{"n":1}')]


def test_calls_at_once_share_one_connection(run: Run, server: ScriptedGrpc) -> None:
    server.on(GET, answer(FOUND))

    async def main() -> None:
        async with Client(server.url) as client, anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(client.get_instance, "1f")

    run(main)
    assert (len(server.calls), len(server.connections)) == (50, 1)


def test_no_more_calls_run_at_once_than_the_engine_allows(still: StillTime) -> None:
    waiting: list[ScriptedCall] = []

    def answer_by_three(call: ScriptedCall) -> None:
        if call.ended:
            waiting.append(call)
        if len(waiting) == 3:
            for each in waiting:
                each.send(FOUND)
                each.end()
            waiting.clear()

    with ScriptedGrpc(max_streams=3) as server:  # its h2 ends a connection on which there are more
        server.on(GET, answer(FOUND), answer_by_three)

        async def main() -> None:
            async with Client(server.url, timeout_s=5) as client:
                await client.get_instance("1f")  # the settings have come
                async with anyio.create_task_group() as tasks:
                    for _ in range(30):
                        tasks.start_soon(client.get_instance, "1f")

        still.run(main)
    assert (len(server.calls), len(server.connections)) == (31, 1)


def test_a_reset_call_leaves_its_connection_alive(still: StillTime, server: ScriptedGrpc) -> None:
    server.on(GET, hang, hang, answer(FOUND))

    async def when_asked(count: int, action: Callable[[], None]) -> None:
        """Once the server has that many whole requests."""

        def asked() -> bool:
            return sum(call.ended for call in server.calls) == count

        await anyio.to_thread.run_sync(server.wait, asked)
        action()

    async def main() -> None:
        async with Client(server.url) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(when_asked, 1, lambda: still.jump(0.1))
                with pytest.raises(TimedOut) as caught:
                    await client.call(RowCall(api.GET_INSTANCE, api.GetInstance("1f")), timeout_s=0.1)
            assert caught.value.maybe_applied  # pyright: ignore[reportPossiblyUnboundVariable] - the block ran
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.get_instance, "1f")
                await when_asked(2, tasks.cancel_scope.cancel)
            assert (await client.get_instance("1f")).id == "1f"
            resets = [ErrorCodes.CANCEL, ErrorCodes.CANCEL, None]
            await anyio.to_thread.run_sync(server.wait, lambda: [call.reset_with for call in server.calls] == resets)
        assert len(server.connections) == 1

    still.run(main)


def test_a_start_whose_answer_was_lost_repeats_its_key(run: Run, server: ScriptedGrpc) -> None:
    server.on(START, drop, refuse(14), answer(STARTED))

    async def main() -> None:
        async with Client(server.url) as client:
            started = await client.start_instance("order", {"n": 10**30})
            assert (started.id, started.status, started.variables) == ("1f", "ACTIVE", {"n": 1})

    run(main)
    keys = {call.messages(w.StartInstancesRequest)[0].items[0].idempotency_key for call in server.calls[1:]}
    assert (len(server.calls), len(server.connections), len(keys)) == (3, 2, 1)
    assert keys != {""}


def test_what_may_have_been_applied_is_not_repeated(run: Run, server: ScriptedGrpc) -> None:
    server.on(TASK, drop, answer(DONE))

    async def main() -> None:
        async with Client(server.url) as client:
            with pytest.raises(ConnectionFailed) as caught:
                await client.complete_user_task("1f", "approve")
            assert caught.value.maybe_applied

    run(main)
    assert len(server.calls) == 1


def _leave(call: ScriptedCall) -> None:
    if call.ended:
        call.goaway(0)  # this call was not looked at


def _refuse_stream(call: ScriptedCall) -> None:
    if call.ended:
        call.reset(ErrorCodes.REFUSED_STREAM)


@pytest.mark.parametrize(
    "first",
    [
        _refuse_stream,
        refuse(8, penstock_error="resource-exhausted"),
        _leave,
    ],
    ids=["refused stream", "queue full", "shutting down"],
)
def test_what_surely_was_not_applied_is_repeated_whatever_it_is(run: Run, server: ScriptedGrpc, first: object) -> None:
    server.on(TASK, first, answer(DONE))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in

    async def main() -> None:
        async with Client(server.url) as client:
            await client.complete_user_task("1f", "approve", {"ok": True}, completed_by="ann")

    run(main)
    assert len(server.calls) == 2
    request = UserTaskCompletion(completed_by="ann", variables=b'{"ok":true}', instance_id="1f", step_id="approve")
    assert server.calls[1].messages(UserTaskCompletion) == [request]


def test_a_leaving_engine_answers_old_calls_and_new_go_elsewhere(run: Run, server: ScriptedGrpc) -> None:
    def leave_first(call: ScriptedCall) -> None:
        if call.ended:
            call.goaway(LAST_STREAM_ID)

    server.on(GET, leave_first, answer(FOUND))

    async def main() -> None:
        transport = GrpcTransport(server.url)
        async with Client(transport) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.get_instance, "1f")
            await anyio.to_thread.run_sync(server.wait, lambda: server.calls and server.calls[0].ended)
            await until(lambda: transport.channel._connection.leaving)  # pyright: ignore[reportOptionalMemberAccess] - it is there
            assert (await client.get_instance("1f")).id == "1f"
            old = server.calls[0]

            def finish() -> None:
                old.send(FOUND)
                old.end()

            old.connection.act(finish)

    run(main)
    assert len({call.connection for call in server.calls}) == 2


def test_a_connection_that_was_closed_while_idle_is_not_used(run: Run, server: ScriptedGrpc) -> None:
    server.on(TASK, answer(DONE))

    async def main() -> None:
        transport = GrpcTransport(server.url)
        async with Client(transport) as client:
            await client.complete_user_task("1f", "approve")
            connection = transport.channel._connection
            assert connection is not None
            server.connections[0].drop()
            await until(connection._is_readable)  # the FIN has crossed the loopback
            await client.complete_user_task("1f", "approve")

    run(main)
    assert (len(server.calls), len(server.connections)) == (2, 2)


@pytest.mark.parametrize(
    "greeting",
    [b"", SettingsFrame(0).serialize() + GoAwayFrame(0).serialize(), b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    ids=["closed", "goaway", "http-1"],
)
def test_an_engine_that_turns_connections_away_is_asked_with_pauses(
    run: Run, server: ScriptedGrpc, greeting: bytes
) -> None:
    server.turns_away_with = greeting

    async def main() -> None:
        async with Client(server.url) as client:
            operation = RowCall(tasks.COMPLETE_USER_TASK, UserTaskCompletion("1f", "a"))
            with pytest.raises(ConnectionFailed) as caught:
                await client.transport.call(operation, timeout_s=5)
            assert not caught.value.maybe_applied
            assert len(server.connections) <= 2
            server.turns_away_with = None
            server.on(TASK, answer(DONE))
            await client.complete_user_task("1f", "approve")

    run(main)


def test_a_silent_port_is_given_up_in_connect_time(run: Run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"grpc://127.0.0.1:{mute.getsockname()[1]}"
            async with Client(GrpcTransport(url, limits=GrpcLimits(connect_timeout_s=0.2))) as client:
                with pytest.raises(ConnectionFailed, match=r"within 0\.2 s") as caught:
                    await client.transport.call(RowCall(api.GET_INSTANCE, api.GetInstance("1f")), timeout_s=10)
                assert not caught.value.maybe_applied

    run(main)


def test_a_silent_engine_is_pinged_and_given_up(still: StillTime, server: ScriptedGrpc) -> None:
    limits = GrpcLimits(keepalive_idle_s=0.1, keepalive_timeout_s=0.2)
    server.on(TASK, hang)

    async def time_passes(calls: int) -> None:
        await anyio.to_thread.run_sync(server.wait, lambda: len(server.calls) == calls and server.calls[-1].ended)
        while True:
            await still.turns()
            still.jump(0.1)

    async def main() -> None:
        transport = GrpcTransport(server.url, limits=limits)
        async with Client(transport) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.complete_user_task, "1f", "approve")
                await anyio.to_thread.run_sync(server.wait, lambda: server.calls and server.calls[0].ended)
                connection = transport.channel._connection
                assert connection is not None
                while server.pings < 3:  # it hangs, but answers its pings
                    await still.turns()
                    if not connection._pinged:
                        still.jump(0.1)
                while connection._pinged:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert connection.usable  # pyright: ignore[reportOptionalMemberAccess, reportPossiblyUnboundVariable] - it is there
            server.silent = True
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(time_passes, 2)
                with pytest.raises(ConnectionFailed, match="silent"):
                    await client.complete_user_task("1f", "approve")
                tasks.cancel_scope.cancel()
        assert len(server.connections) == 1

    still.run(main)


def test_messages_larger_than_every_window_go_both_ways(run: Run, server: ScriptedGrpc) -> None:
    text = "x" * 3_000_000

    def echo(call: ScriptedCall) -> None:
        if not call.ended:
            return
        (request,) = call.messages(w.StartInstancesRequest)
        body = w.StartInstancesResponse([StartResult(instance=Instance(id="1f", variables=request.items[0].variables))])
        pump(call, body)

    def pump(call: ScriptedCall, body: w.StartInstancesResponse) -> None:
        data = encode_message(body)
        data = b"\0" + len(data).to_bytes(4, "big") + data
        call.send()
        h2 = call.connection.h2
        while data:
            size = min(h2.local_flow_control_window(call.stream_id), h2.max_outbound_frame_size, len(data))
            if size:
                h2.send_data(call.stream_id, data[:size])
                data = data[size:]
            call.connection.flush()
            if not size:
                h2.receive_data(call.connection.sock.recv(65536))
        call.end()

    server.on(START, echo)

    async def main() -> None:
        async with Client(server.url) as client:
            assert (await client.start_instance("order", {"text": text})).variables == {"text": text}

    run(main)


def test_an_answer_over_the_limit_fails_its_call_only(run: Run, server: ScriptedGrpc) -> None:
    large = m.GetInstanceResponse(m.Instance(id="1f", failure_reason="x" * 2000))
    server.on(GET, answer(large), answer(FOUND))

    async def main() -> None:
        async with Client(GrpcTransport(server.url, limits=GrpcLimits(max_message_bytes=1000))) as client:
            with pytest.raises(PayloadTooLarge, match="max_message_bytes"):
                await client.get_instance("1f")
            assert (await client.get_instance("1f")).id == "1f"

    run(main)
    assert len(server.connections) == 1


def _compressed(call: ScriptedCall) -> None:
    if call.ended:
        call.send(FOUND, compressed=True)


def _no_status(call: ScriptedCall) -> None:
    if call.ended:
        headers = [(":status", "200"), ("content-type", "text/html")]
        call.connection.h2.send_headers(call.stream_id, headers, end_stream=True)


def _proxy(call: ScriptedCall) -> None:
    if call.ended:
        call.connection.h2.send_headers(call.stream_id, [(":status", "502")], end_stream=True)


def _cut(call: ScriptedCall) -> None:
    if call.ended:
        call.send()
        call.connection.h2.send_data(call.stream_id, b"\0\0\0\0\x09abc")
        call.end()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (refuse(3), BadRequest),
        (refuse(5), NotFound),
        (refuse(9), Conflict),
        (refuse(9, penstock_error="idempotency-conflict"), IdempotencyConflict),
        (refuse(10), LeaseLost),
        (refuse(8), TooManyRequests),
        (refuse(12), NotImplementedByEngine),
        (refuse(13), InternalError),
        (refuse(14), Unavailable),
        (refuse(4), TimedOut),
        (refuse(77), InternalError),
        (refuse(9, penstock_error="a-code-from-the-future"), InternalError),
        (answer(), InternalError),
        (answer(FOUND, FOUND), InternalError),
        (answer(b"\xff"), InternalError),
        (_compressed, InternalError),
        (_no_status, InternalError),
        (_proxy, Unavailable),
        (_cut, InternalError),
    ],
)
def test_every_condition_has_its_exception(
    still: StillTime, server: ScriptedGrpc, script: object, kind: type[ClientError]
) -> None:
    server.on(GET, script)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in

    async def main() -> None:
        async with Client(server.url, timeout_s=0.5) as client:
            with pytest.raises(ClientError) as caught:
                await client.get_instance("1f")
        assert type(caught.value) is kind

    still.run(main)


def test_tls_with_its_own_authority(run: Run) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(tls)
    tls.set_alpn_protocols(["h2"])
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with ScriptedGrpc(tls=tls) as server:
        server.on(GET, answer(FOUND))

        async def main() -> None:
            async with Client(GrpcTransport(server.url, ssl_context=trusting)) as client:
                assert (await client.get_instance("1f")).id == "1f"
            suspicious = GrpcTransport(server.url)
            with pytest.raises(ConnectionFailed, match="certificate") as caught:
                await suspicious.call(RowCall(api.GET_INSTANCE, api.GetInstance("1f")), timeout_s=20)
            assert not caught.value.maybe_applied

        run(main)


def test_tls_without_http2_is_reported(run: Run) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with ScriptedGrpc(tls=tls) as server:

        async def main() -> None:
            transport = GrpcTransport(server.url, ssl_context=trusting)
            with pytest.raises(ConnectionFailed, match="ALPN"):
                await transport.call(RowCall(api.GET_INSTANCE, api.GetInstance("1f")), timeout_s=20)

        run(main)


async def test_a_call_cancelled_at_any_point_leaves_a_usable_client(server: ScriptedGrpc) -> None:
    server.on(START, answer(STARTED))
    client: Client

    async def prepare() -> Operation[Instance]:
        nonlocal client
        client = Client(server.url)
        return lambda: client.start_instance("order", {"n": 1})

    async def check(_attempt: CancelledAttempt[Instance]) -> None:
        with trio.fail_after(10):
            assert (await client.start_instance("order")).id == "1f"
        await client.aclose()

    points = await cancel_everywhere(prepare, check, own_task_only=True)
    assert points.cancelled > 5


async def test_whoever_reads_for_all_may_be_cancelled(server: ScriptedGrpc) -> None:
    """The first of several waiting calls reads; cancelled at any point, another takes over."""
    server.on(GET, answer(FOUND))
    for point in range(1, 61):
        async with Client(server.url) as client:
            ended: list[str] = []
            await client.get_instance("1f")
            connection = server.connections[-1]
            connection.act(lambda connection=connection: connection.h2.ping(b"readable"))  # found by the next call

            async def ask(client: Client = client, ended: list[str] = ended) -> None:
                ended.append((await client.get_instance("1f")).id)

            async def ask_cancelled(point: int = point, client: Client = client) -> None:
                await cancel_at_step(point, lambda: client.get_instance("1f"), own_task_only=True)

            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask_cancelled)
                    for _ in range(3):
                        nursery.start_soon(ask)
            assert ended == ["1f"] * 3


async def test_a_call_begun_during_a_close_fails_as_others_do(server: ScriptedGrpc) -> None:
    server.on(GET, answer(FOUND))
    for steps in range(1, 13):
        client = Client(server.url)
        await client.get_instance("1f")
        ended: list[str] = []

        async def ask(client: Client = client, ended: list[str] = ended) -> None:
            try:
                ended.append((await client.get_instance("1f")).id)
            except ClientError:  # it was in flight
                ended.append("failed")

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await client.aclose()
        assert ended in (["1f"], ["failed"])
        await client.aclose()


def test_an_interrupted_blocking_client_cancels_and_can_be_closed(server: ScriptedGrpc) -> None:
    server.on(GET, hang)

    def interrupt() -> None:
        server.wait(lambda: server.calls)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with SyncClient(server.url) as client:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                client.wait_until_ended("1f")
            server.wait(lambda: server.calls[0].reset_with == ErrorCodes.CANCEL)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(server.calls) == 1


# ------------------------------------------------------------------------------------------------ what has a form


def upload(document: bytes) -> RowCall[definitions.UploadDefinition, DefinitionSummary]:
    return RowCall(definitions.UPLOAD_DEFINITION, definitions.UploadDefinition(document))


def has_form(operation: calls.Operation[Any]) -> bool:
    if isinstance(operation, RowCall):
        return operation.row.grpc is not None or operation.row.name in ADAPTED
    return not isinstance(operation, WITHOUT_FORM)


def test_every_operation_has_its_form_or_known_lack_of_one() -> None:
    for operation in CALLS:
        if operation.label == "UploadDefinition":
            operation = upload(b'{"id":"d"}')
        if not has_form(operation):
            with pytest.raises(NotOverGrpc, match=operation.label):
                exchange_for(operation)
        else:
            assert exchange_for(operation).path.startswith("/")


def test_a_cancel_says_that_it_compensates() -> None:
    request = exchange_for(RowCall(api.CANCEL_INSTANCE, api.CancelInstance("1", "r", compensate=True))).request
    assert request == m.CancelInstanceRequest("1", "r", compensate=True)


def test_a_cancel_by_force_is_known_to_have_none() -> None:
    with pytest.raises(NotOverGrpc, match="force"):
        exchange_for(RowCall(api.CANCEL_INSTANCE, api.CancelInstance("1", force=True)))


def test_an_ambiguous_definition_is_refused_with_every_reason() -> None:
    builder = WorkflowBuilder("d").service_task("a", "a", timeout="PT5S").wait("b", duration="PT1S")
    document = (
        builder.decision("c", {"z > 1": "a", "a > 1": "b"}).transformation("t", {"y": 1, "x": 2}).end().document()
    )
    with pytest.raises(NotOverGrpc) as caught:
        exchange_for(upload(msgspec.json.encode(document)))
    for part in ("steps[0] has timeout", "steps[1] has duration", "steps[2].conditionalNextSteps", "steps[3].transf"):
        assert part in caught.value.reason
    undone = WorkflowBuilder("d", compensate_failures=True).service_task("a", "a", compensation=compensation("b")).end()
    with pytest.raises(NotOverGrpc, match="has compensation, which has no field there; onFailure has no field"):
        exchange_for(upload(msgspec.json.encode(undone.document())))
    with pytest.raises(BadRequest, match="surprise"):
        exchange_for(upload(b'{"id":"d","surprise":1}'))


@pytest.mark.parametrize("value", [2**53 + 1, -(10**400), [{"deep": 2**63 + 1}]])
def test_a_number_that_a_struct_would_round_is_refused(value: object) -> None:
    with pytest.raises(NotOverGrpc, match="rounded"):
        exchange_for(RowCall(tasks.SIGNAL, Signal("1f", "s", {"n": value})))


def test_a_number_that_fits_a_struct_is_sent() -> None:
    made = exchange_for(RowCall(tasks.SIGNAL, Signal("1f", "s", {"n": 2**60, "m": [2**53, -1.5]})))
    assert made.request == Signal("1f", "s", b'{"n":1152921504606846976,"m":[9007199254740992,-1.5]}')


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("lease-lost", LeaseLost),
        ("not-found", NotFound),
        ("invalid", BadRequest),
        ("unavailable", Unavailable),
        ("", InternalError),
    ],
)
def test_the_outcome_of_a_single_report_is_an_exception(
    still: StillTime, server: ScriptedGrpc, outcome: str, kind: type[ClientError]
) -> None:
    server.on(
        COMPLETE, answer(w.CompleteJobsResponse([JobOutcome(job_id="j", attempt=1, outcome=outcome, reason="because")]))
    )

    async def main() -> None:
        async with Client(server.url, timeout_s=0.3) as client:
            with pytest.raises(kind, match="because"):
                await client.complete_job("j", "w", {"n": 10**30}, attempt=1)

    still.run(main)
    sent = server.calls[0].messages(w.CompleteJobsRequest)
    assert sent == [w.CompleteJobsRequest("w", [w.Completion("j", 1, b'{"n":1' + b"0" * 30 + b"}")])]


@pytest.mark.parametrize(
    "url", ["grpc://", "grpc://host/path", "grpc://ann:secret@host", "grpc://host?tls=1", "localhost:9090"]
)
def test_a_wrong_url_is_reported_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"grpc"):
        Client(url)


def test_metadata_that_can_not_be_sent_is_reported_at_once() -> None:
    for name, value in (("grpc-timeout", "1"), (":path", "x"), ("x", "ä"), ("x", "a\nb")):
        with pytest.raises(ValueError, match="metadata"):
            GrpcTransport("grpc://localhost", metadata={name: value})


def test_completions_keep_their_own_form() -> None:
    made = exchange_for(
        calls.CompleteJobs(worker_id="w", results=[Completion(job_id="a"), Completion(job_id="b", attempt=2)])
    )
    assert made.request == w.CompleteJobsRequest("w", [w.Completion("a"), w.Completion("b", 2)])


def test_calls_cancelled_by_asyncio_itself_leave_a_usable_client(server: ScriptedGrpc) -> None:
    """``asyncio.wait_for`` and the like know nothing of anyio's shields."""
    server.on(START, answer(STARTED))

    async def main() -> None:
        async with Client(server.url) as client:
            cancelled = 0
            for step in range(40):
                call = asyncio.create_task(client.start_instance("order", {"text": "x" * 100_000}))
                for _ in range(step):
                    await asyncio.sleep(0)
                cancelled += call.cancel()
                await asyncio.wait([call])
                async with asyncio.timeout(10):
                    assert (await client.start_instance("order")).id == "1f"
            assert cancelled > 5

    asyncio.run(main())
