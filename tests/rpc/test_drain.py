"""The drain: nothing that was begun is broken, nothing new begins, and it ends when the last call ends."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from penstock.rpc.limits import RpcLimits
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion
from tests.rpc.conftest import Running, running
from tests.rpc.raw import Answer, RawClient, framed
from tests.rpc.services import COMPLETE, WORK

WAIT = encode_message(Completion("wait"), m.PACKAGE)
LAST_STREAM_ID = 2**31 - 1


async def test_calls_in_flight_are_answered_then_the_connection_is_closed(run: Running) -> None:
    async with run.client() as client, trio.open_nursery() as nursery:
        answers: list[Answer] = []

        async def call() -> None:
            answers.append(await client.call(COMPLETE, WAIT))

        for _ in range(10):
            nursery.start_soon(call)
        await run.until(lambda _: run.engine.running == 10)
        nursery.start_soon(run.server.drain, 20.0)
        while len(client.goaways) < 2:
            await client.changed.wait()
        assert [event.last_stream_id for event in client.goaways] == [LAST_STREAM_ID, 19]
        assert not answers
        run.engine.release.set()
        await client.closed.wait()
    assert [answer.status for answer in answers] == [0] * 10


async def test_an_idle_connection_is_closed_at_once(run: Running) -> None:
    async with run.client() as client:
        await client.call(COMPLETE)
        with trio.fail_after(10):
            await run.server.drain(20.0)
        assert run.server.statistics().connections == 0


async def test_a_call_sent_before_the_drain_is_answered(run: Running) -> None:
    """It is on its way while the first GOAWAY goes the other way."""
    async with run.client() as client, trio.open_nursery() as nursery:
        await client.call(COMPLETE)
        async with client.lock:  # holds the answer to the ping back, as a slow network does
            nursery.start_soon(run.server.drain, 20.0)
            while not client.goaways:
                await client.changed.wait()
            assert client.goaways[0].last_stream_id == LAST_STREAM_ID
            ack = client.h2.data_to_send()
            stream_id = client.h2.get_next_available_stream_id()
            headers = [(":method", "POST"), (":path", COMPLETE), (":scheme", "http"), (":authority", "t")]
            from tests.rpc.raw import Answer

            client.answers[stream_id] = Answer()
            client.h2.send_headers(stream_id, [*headers, ("content-type", "application/grpc")])
            client.h2.send_data(stream_id, framed(b""), end_stream=True)
            await client.stream.send_all(client.h2.data_to_send() + ack)
        assert (await client.finished(stream_id)).status == 0


async def test_a_call_after_the_drain_is_refused_as_not_begun(run: Running) -> None:
    async with run.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, COMPLETE, WAIT)
        await run.until(lambda _: run.engine.running == 1)
        nursery.start_soon(run.server.drain, 20.0)
        while len(client.goaways) < 2:
            await client.changed.wait()
        late = await client.call(COMPLETE)
        assert late.reset == 7
        run.engine.release.set()


async def test_new_connections_are_refused(run: Running) -> None:
    async with run.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, COMPLETE, WAIT)
        await run.until(lambda _: run.engine.running == 1)
        nursery.start_soon(run.server.drain, 20.0)
        await run.until(lambda now: now.draining)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", run.port)
        run.engine.release.set()


async def test_after_the_grace_calls_are_cancelled_and_told_unavailable(autojump_clock: trio.testing.MockClock) -> None:
    async with running() as run, run.memory_client() as client, trio.open_nursery() as nursery:
        answers: list[Answer] = []

        async def call(path: str, body: bytes) -> None:
            stream_id = await client.open(path)
            await client.send(stream_id, framed(body), end=path == COMPLETE)
            answers.append(await client.finished(stream_id))

        nursery.start_soon(call, COMPLETE, encode_message(Completion("forever"), m.PACKAGE))
        nursery.start_soon(call, WORK, encode_message(w.WorkRequest()))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await run.server.drain(25.0)
        assert trio.current_time() - began == 25.0
        await client.closed.wait()
        assert [(answer.status, answer.reason) for answer in answers] == [(14, "the server is shutting down")] * 2
        assert run.engine.cancelled == 1


async def test_a_handler_that_ignores_cancellation_is_cut_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    from grpclib.const import Cardinality, Handler

    ended = trio.Event()

    async def stubborn(call: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        ended.set()

    class Stubborn:
        def __mapping__(self) -> dict[str, Handler]:
            return {"/t.T/Stubborn": Handler(stubborn, Cardinality.UNARY_UNARY, Completion, m.CompleteJobResponse)}

    async with running(RpcLimits(abort_s=2.0), more=[Stubborn()]) as run, run.memory_client() as client:
        stream_id = await client.open("/t.T/Stubborn", end=True)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await run.server.drain(3.0)
        assert trio.current_time() - began == 5.0
        assert not client.answers[stream_id].trailers
        await ended.wait()


async def test_a_client_silent_on_ping_delays_the_drain_briefly(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(RpcLimits(drain_ping_s=1.0, linger_s=0.5)) as run:
        ours, theirs = trio.testing.memory_stream_pair()
        run.nursery.start_soon(run.server.serve_stream, theirs, "mute")
        await ours.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await run.server.drain(20.0)
        assert trio.current_time() - began == 1.5


async def test_serve_returns_after_the_drain_which_others_wait_for() -> None:
    with trio.fail_after(20):
        async with running() as run, run.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call, COMPLETE, WAIT)
            await run.until(lambda _: run.engine.running == 1)
            ended: list[int] = []

            async def drain(number: int) -> None:
                await run.server.drain(20.0)
                ended.append(number)

            nursery.start_soon(drain, 1)
            nursery.start_soon(drain, 2)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not ended
            run.engine.release.set()
        assert sorted(ended) == [1, 2]


async def test_a_client_that_says_goaway_still_gets_its_answers(run: Running) -> None:
    """As Java's ``channel.shutdown()``: GOAWAY, then it waits for the calls in flight."""
    async with run.client() as client, trio.open_nursery() as nursery:
        stream_id = await client.open(WORK)
        await client.send(stream_id, framed(encode_message(w.WorkRequest())))
        await client.messages(stream_id, 1)
        goaway = b"\0\0\x08\7\0\0\0\0\0" + b"\0\0\0\0" + b"\0\0\0\0"
        await client.stream.send_all(goaway)
        await client.ping()
        await client.send(stream_id, framed(encode_message(w.WorkRequest())))
        assert len(await client.messages(stream_id, 2)) == 2
        await client.send(stream_id, b"", end=True)
        assert (await client.finished(stream_id)).status == 0
        await client.closed.wait()  # the server closes once the last call has ended
        nursery.cancel_scope.cancel()


async def test_calls_under_load_are_never_broken_by_a_drain() -> None:
    """Thirty clients call without pause; every call that the server let begin is answered."""
    with trio.fail_after(30):
        async with running() as run:
            unanswered: list[Answer] = []
            answered = 0

            async def hammer(client: RawClient) -> None:
                nonlocal answered
                while len(client.goaways) < 2 and not client.closed.is_set():
                    stream_id = client.h2.get_next_available_stream_id()
                    answer = await client.call(COMPLETE, encode_message(Completion("3 ms"), m.PACKAGE))
                    if not answer.trailers:
                        # refused, or told by the last GOAWAY, which it met on its way: not begun, it may go elsewhere
                        begun = answer.reset != 7 and stream_id <= (client.goaways[-1].last_stream_id or 0)
                        unanswered.extend([answer] if begun else [])
                        return
                    answered += 1

            async def connection() -> None:
                async with run.client() as client, trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(hammer, client)

            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(connection)
                await run.until(lambda now: now.counts.calls > 200)
                await run.server.drain(10.0)
            assert answered > 200
            assert unanswered == []


async def test_the_sockets_given_are_closed_by_the_end() -> None:
    from penstock.rpc.server import GrpcServer

    sock = socket.create_server(("127.0.0.1", 0))
    server = GrpcServer([])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [sock])
        await server.drain(1.0)
    assert sock.fileno() == -1
