"""Unary calls: answers, statuses, deadlines, cancellation, and what is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from grpclib.const import Cardinality, Handler

from penstock import errors
from penstock.rpc.call import ServerCall
from penstock.rpc.methods import unary
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Completion, Failure, PollRequest, StartRequest
from tests.rpc.conftest import Running, running
from tests.rpc.services import COMPLETE, FAIL, POLL, START


async def test_a_call_is_answered_with_its_message_and_status_ok(run: Running) -> None:
    async with run.client() as client:
        answer = await client.call(POLL, encode_message(PollRequest("w1", ["charge"], 2)))
    jobs = decode_message(answer.messages[0], m.PollJobsResponse).jobs
    assert answer.status == 0
    assert [(job.job_type, json.loads(job.variables)) for job in jobs] == [("charge", {"worker": "w1", "n": 3})] * 2  # pyright: ignore[reportArgumentType] - text in the engine


async def test_many_calls_run_at_once_on_one_connection(run: Running) -> None:
    async with run.client() as client, trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(client.call, COMPLETE, encode_message(Completion("wait"), m.PACKAGE))
        await run.until(lambda now: now.calls_running == 200)
        run.engine.release.set()
    assert len(run.engine.seen) == 200


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        ("BadRequest", 3), ("NotFound", 5), ("Conflict", 9), ("LeaseLost", 10), ("JobCancelled", 9),
        ("IdempotencyConflict", 9), ("DispatchModeConflict", 9), ("UnsupportedFormat", 3), ("PayloadTooLarge", 3),
        ("TooManyRequests", 8), ("Unavailable", 14), ("PenstockError", 13),
        ("group", 10),
    ],
)  # fmt: skip
async def test_an_operating_error_is_its_status_with_its_reason(run: Running, raised: str, status: int) -> None:
    async with run.client() as client:
        answer = await client.call(FAIL, encode_message(Failure(error_message=f"{raised}:so it is"), m.PACKAGE))
    assert (answer.status, answer.reason, answer.messages) == (status, "so it is", [])


def test_every_error_has_a_status() -> None:
    from penstock.rpc.problems import STATUS_BY_CODE

    def codes(kind: type[errors.PenstockError]) -> set[str]:
        return {kind.code}.union(*(codes(sub) for sub in kind.__subclasses__() if sub.__module__ == errors.__name__))

    assert set(STATUS_BY_CODE) == codes(errors.PenstockError)


async def test_a_bug_is_internal_without_its_text_and_is_logged(run: Running, caplog: pytest.LogCaptureFixture) -> None:
    async with run.client() as client:
        answer = await client.call(FAIL, encode_message(Failure(error_message="bug:secret SQL"), m.PACKAGE))
        assert (answer.status, answer.reason) == (13, "internal error")
        assert (await client.call(COMPLETE, b"")).status == 0  # the connection lives
    assert "secret SQL" in caplog.text


async def test_a_reason_may_hold_any_text(run: Running) -> None:
    reason = "grün\n100 % \x00 ☃"
    async with run.client() as client:
        answer = await client.call(FAIL, encode_message(Failure(error_message=f"NotFound:{reason}"), m.PACKAGE))
    from urllib.parse import unquote

    assert unquote(answer.reason) == reason


async def test_a_long_reason_is_cut(run: Running) -> None:
    async with run.client() as client:
        answer = await client.call(FAIL, encode_message(Failure(error_message="NotFound:" + "x" * 10_000), m.PACKAGE))
    assert answer.reason == "x" * 4096


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/workflow.v1.WorkflowEngine/Nothing", {}, 12),
        (COMPLETE, {"grpc_encoding": "gzip"}, 12),
        (COMPLETE, {"grpc_timeout": "soon"}, 3),
        (COMPLETE, {"grpc_timeout": "999999999S"}, 3),
        (COMPLETE, {"grpc_timeout": "-1S"}, 3),
        (COMPLETE, {"grpc_timeout": "99999999H"}, 0),
        (COMPLETE, {"grpc_encoding": "identity"}, 0),
        (COMPLETE, {"content_type": "application/grpc+proto"}, 0),
        (COMPLETE, {"content_type": "application/grpc;charset=utf-8"}, 0),
    ],
)
async def test_request_headers_decide(run: Running, path: str, headers: dict[str, Any], status: int) -> None:
    async with run.client() as client:
        answer = await client.call(path, **headers)
    assert answer.status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "application/json"}, "415"),
        ({"__method": "GET"}, "405"),
        ({"content_type": "application/grpc+json"}, "415"),
    ],
)
async def test_what_is_no_grpc_gets_an_http_status(run: Running, headers: dict[str, Any], status: str) -> None:
    async with run.client() as client:
        answer = await client.call(COMPLETE, **headers)
        assert answer.headers[":status"] == status
        assert (await client.call(COMPLETE)).status == 0


async def test_a_handler_reads_headers_and_metadata(run: Running) -> None:
    async with run.client() as client:
        request = encode_message(StartRequest(business_key="header:traceparent"), m.PACKAGE)
        answer = await client.call(START, request, traceparent="00-abc")
        found = decode_message(answer.messages[0], m.StartInstanceResponse).instance
        bad = await client.call(START, encode_message(StartRequest(business_key="metadata"), m.PACKAGE), x_bin="A")
    assert found is not None
    assert found.business_key == "00-abc"
    assert bad.status == 3


async def test_the_deadline_cancels_the_handler(autojump_clock: trio.testing.MockClock, run: Running) -> None:
    async with run.memory_client() as client:
        began = trio.current_time()
        answer = await client.call(COMPLETE, encode_message(Completion("forever"), m.PACKAGE), grpc_timeout="1500m")
        assert (answer.status, trio.current_time() - began) == (4, 1.5)
    assert run.engine.cancelled == 1


async def test_a_deadline_in_the_past_is_exceeded(run: Running) -> None:
    async with run.client() as client:
        answer = await client.call(COMPLETE, encode_message(Completion("forever"), m.PACKAGE), grpc_timeout="0n")
    assert answer.status == 4


async def test_a_reset_cancels_the_handler_and_leaves_the_connection(run: Running) -> None:
    async with run.client() as client:
        stream_id = await client.open(COMPLETE)
        from tests.rpc.raw import framed

        await client.send(stream_id, framed(encode_message(Completion("forever"), m.PACKAGE)), end=True)
        await run.until(lambda _: run.engine.running == 1)
        await client.reset(stream_id)
        await run.until(lambda now: now.calls_running == 0)
        assert run.engine.cancelled == 1
        assert (await client.call(COMPLETE)).status == 0


async def test_a_dropped_connection_cancels_its_handlers(run: Running) -> None:
    async with run.client() as client, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(client.call, COMPLETE, encode_message(Completion("forever"), m.PACKAGE))
        await run.until(lambda _: run.engine.running == 5)
        await trio.aclose_forcefully(client.stream)
        await run.until_quiet()
        nursery.cancel_scope.cancel()
    assert run.engine.cancelled == 5


async def test_metrics_see_every_call_under_bounded_names(run: Running) -> None:
    async with run.client() as client:
        await client.call(COMPLETE)
        await client.call(FAIL, encode_message(Failure(error_message="LeaseLost:x"), m.PACKAGE))
        await client.call("/any/thing")
        await client.call("/other/thing")
        await client.call(COMPLETE, b"\xff")
        await run.until(lambda _: len(run.calls) == 5)  # they are told behind their answers
    reported = [(path, code) for path, code, _ in run.calls]
    assert reported == [
        (COMPLETE, "OK"), (FAIL, "ABORTED"), ("unknown", "UNIMPLEMENTED"), ("unknown", "UNIMPLEMENTED"),
        (COMPLETE, "INVALID_ARGUMENT"),
    ]  # fmt: skip
    assert all(0 <= seconds < 5 for _, _, seconds in run.calls)
    assert run.server.statistics().counts.calls == 5


class Odd:
    """Handlers that do what a handler should not, or rarely does."""

    def __mapping__(self) -> dict[str, Handler]:
        kinds = Completion, m.CompleteJobResponse
        return {
            "/t.T/Silent": Handler(self._silent, Cardinality.UNARY_UNARY, *kinds),
            "/t.T/Twice": Handler(self._twice, Cardinality.UNARY_UNARY, *kinds),
            "/t.T/HeadersFirst": Handler(self._headers_first, Cardinality.UNARY_STREAM, *kinds),
            "/t.T/Deadline": unary(self._deadline, m.CancelInstanceRequest, m.CancelInstanceRequest),
        }

    async def _silent(self, call: ServerCall[Any, Any]) -> None:
        await call.recv_message()

    async def _twice(self, call: ServerCall[Any, Any]) -> None:
        await call.send_message(m.CompleteJobResponse())
        await call.send_message(m.CompleteJobResponse())

    async def _headers_first(self, call: ServerCall[Any, Any]) -> None:
        await call.send_initial_metadata()
        await trio.sleep_forever()

    async def _deadline(self, _request: object, call: ServerCall[Any, Any]) -> m.CancelInstanceRequest:
        return m.CancelInstanceRequest(str(call.deadline - trio.current_time()), str(call.peer))


async def test_no_answer_or_two_are_an_internal_error() -> None:
    async with running(more=[Odd()]) as run, run.client() as client:
        assert (await client.call("/t.T/Silent")).status == 13
        assert (await client.call("/t.T/Twice")).status == 13
        assert (await client.call(COMPLETE)).status == 0


async def test_a_stream_may_send_its_headers_before_anything_else() -> None:
    async with running(more=[Odd()]) as run, run.client() as client:
        stream_id = await client.open("/t.T/HeadersFirst", end=True)
        await client.answers[stream_id].changes.wait()
        assert client.answers[stream_id].headers == {":status": "200", "content-type": "application/grpc"}
        assert not client.answers[stream_id].done.is_set()


async def test_a_handler_sees_its_deadline_and_its_peer(autojump_clock: trio.testing.MockClock) -> None:
    async with running(more=[Odd()]) as run, run.memory_client() as client:
        answer = await client.call("/t.T/Deadline", grpc_timeout="90S")
        seen = decode_message(answer.messages[0], m.CancelInstanceRequest)
        assert (float(seen.id), seen.reason) == (90.0, "memory")
        without = await client.call("/t.T/Deadline")
        assert float(decode_message(without.messages[0], m.CancelInstanceRequest).id) == float("inf")
