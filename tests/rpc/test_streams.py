"""The bidirectional stream: order, half-close, cancellation, and memory that flow control bounds."""

from __future__ import annotations

import trio
import trio.testing

from penstock.rpc.call import ServerCall
from penstock.rpc.limits import RpcLimits
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Failure, StartRequest
from tests.rpc.conftest import Running, running
from tests.rpc.raw import framed
from tests.rpc.services import COMPLETE, FAIL, START, WORK


def completion(n: int) -> bytes:
    return framed(encode_message(w.WorkRequest(completions=[w.Completion(job_id=f"j{n}", attempt=1)])))


async def test_answers_keep_the_requests_order_until_the_half_close(run: Running) -> None:
    async with run.client() as client:
        stream_id = await client.open(WORK)
        for n in range(50):
            await client.send(stream_id, completion(n))
        await client.send(stream_id, b"", end=True)
        answer = await client.finished(stream_id)
    ids = [decode_message(message, w.WorkResponse).outcomes[0].job_id for message in answer.messages]
    assert ids == [f"j{n}" for n in range(50)]
    assert answer.status == 0


async def test_messages_may_be_cut_anywhere(run: Running) -> None:
    data = b"".join(completion(n) for n in range(20))
    async with run.client() as client:
        stream_id = await client.open(WORK)
        for at in range(0, len(data), 3):
            await client.send(stream_id, data[at : at + 3])
        await client.send(stream_id, b"", end=True)
        answer = await client.finished(stream_id)
    assert len(answer.messages) == 20


async def test_a_reset_cancels_the_stream(run: Running) -> None:
    async with run.client() as client:
        stream_id = await client.open(WORK)
        await client.send(stream_id, completion(1))
        await client.messages(stream_id, 1)
        await client.reset(stream_id)
        await run.until(lambda now: now.calls_running == 0)
    await run.until_quiet()


async def test_a_bad_message_ends_the_stream_with_invalid_argument(run: Running) -> None:
    async with run.client() as client:
        stream_id = await client.open(WORK)
        await client.send(stream_id, completion(1))
        await client.send(stream_id, framed(b"\x22\x05abc"))
        answer = await client.finished(stream_id)
        assert (len(answer.messages), answer.status) == (1, 3)
        assert (await client.call(COMPLETE)).status == 0


async def test_a_client_that_does_not_read_makes_the_handler_wait() -> None:
    with trio.fail_after(30):
        async with running() as run, run.client(reads=False) as client:
            stream_id = await client.open(WORK)
            # 1,000 jobs of 200 bytes are four windows; then the handler waits within one message.
            many = framed(encode_message(w.WorkRequest(credits=[w.Credit("t", 1_000)])))
            await client.send(stream_id, many)
            await run.until(lambda _: run.engine.started == 1)
            while client.h2.inbound_flow_control_window > 0:
                await client.changed.wait()
            refused = encode_message(Failure(error_message="NotFound:x"), m.PACKAGE)
            assert (await client.call(FAIL, refused)).status == 5  # answers without data are not held up
            [connection] = run.server._connections
            assert len(connection._out) < 1024
            assert run.server.statistics().calls_running == 1
            # It reads again: all arrives.
            client.reads = True
            client.h2.acknowledge_received_data(65_535, stream_id)
            await client.flush()
            [message] = await client.messages(stream_id, 1)
            assert len(decode_message(message, w.WorkResponse).jobs) == 1_000


async def test_a_client_that_never_reads_is_told_resource_exhausted(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        running(RpcLimits(stalled_send_s=30.0, keepalive_idle_s=1e6)) as run,
        run.memory_client(reads=False) as client,
    ):
        began = trio.current_time()
        stream_id = await client.open(WORK)
        await client.send(stream_id, framed(encode_message(w.WorkRequest(credits=[w.Credit("t", 1_000)]))))
        answer = await client.finished(stream_id)
        assert (answer.status, trio.current_time() - began) == (8, 30.0)
    await run.until_quiet()


async def test_a_client_faster_than_the_handler_is_held_back(run_small: Running) -> None:
    """The window closes; what is held is bounded by it; all of it is worked off once the handler reads."""
    run = run_small
    async with run.client() as client, trio.open_nursery() as nursery:
        stream_id = await client.open(WORK)
        first = framed(encode_message(w.WorkRequest(worker_id="wait")))
        await client.send(stream_id, first)
        await run.until(lambda _: run.engine.running == 1)
        big = framed(encode_message(w.WorkRequest(completions=[w.Completion("j", 1, b"x" * 30_000)])))

        async def flood() -> None:
            for _ in range(20):
                await client.send(stream_id, big)
            await client.send(stream_id, b"", end=True)

        nursery.start_soon(flood)
        await run.until(lambda _: client.h2.local_flow_control_window(stream_id) == 0)
        await trio.testing.wait_all_tasks_blocked(0.05)
        held = run.server.statistics().held_request_bytes
        assert 60_000 < held < 131_072
        assert run.engine.started == 0
        run.engine.release.set()
        answer = await client.finished(stream_id)
        assert (len(answer.messages), answer.status) == (21, 0)
    await run.until_quiet()


async def test_a_message_larger_than_the_window_comes_through(run_small: Running) -> None:
    variables = b'{"text":"' + b"x" * 900_000 + b'"}'
    async with run_small.client(window=1_000_000) as client:
        answer = await client.call(START, encode_message(StartRequest(variables=variables), m.PACKAGE))
    found = decode_message(answer.messages[0], m.StartInstanceResponse).instance
    assert found is not None
    assert found.variables == variables


async def test_the_connection_window_is_given_back_by_all_calls(run_small: Running) -> None:
    """Refused, failed, reset and finished calls in turn, each with data: the connection never stalls."""
    body = framed(encode_message(StartRequest(business_key="k" * 20_000), m.PACKAGE))
    async with run_small.client() as client:
        for n in range(60):
            path = "/no/such" if n % 4 == 0 else START
            stream_id = await client.open(path)
            if n % 4 == 1:
                await client.send(stream_id, body[:-1], end=True)  # cut off
            elif n % 4 == 2:
                await client.send(stream_id, body[:15_000])
                await client.reset(stream_id)
                continue
            else:
                try:
                    await client.send(stream_id, body, end=True)
                except Exception:  # reset by the server meanwhile
                    assert n % 4 == 0
            await client.finished(stream_id)
        assert (await client.call(START, encode_message(StartRequest(business_key="k"), m.PACKAGE))).status == 0
    await run_small.until_quiet()


async def test_all_servers_bytes_together_are_bounded() -> None:
    limits = RpcLimits(held_request_bytes=100_000)
    with trio.fail_after(30):
        async with running(limits) as run, run.client() as client:
            held = []
            for _ in range(3):
                stream_id = await client.open(START)
                await client.send(stream_id, framed(b"\0" * 60_000)[:40_000])  # incomplete
                held.append(stream_id)
            answer = await client.finished(held[-1])
            assert (answer.status, client.answers[held[0]].done.is_set()) == (8, False)
            await run.until(lambda now: now.held_request_bytes == 80_000)
        await run.until_quiet()


async def test_a_stream_with_a_cut_answer_takes_no_more() -> None:
    """Half a message followed by another would be read as nonsense."""
    from grpclib.const import Handler

    from penstock.rpc.methods import both_stream

    seen: list[str] = []
    sending = trio.CancelScope()

    class Impatient:
        def __mapping__(self) -> dict[str, Handler]:
            return {"/t.T/Impatient": both_stream(self.serve, w.WorkRequest, w.WorkResponse)}

        async def serve(self, call: ServerCall[w.WorkRequest, w.WorkResponse]) -> None:
            async for _ in call:
                with sending:
                    await call.send_message(w.WorkResponse(jobs=[w.Job(variables=b"x" * 200_000)]))  # pyright: ignore[reportArgumentType] - text in the engine
                try:
                    await call.send_message(w.WorkResponse())
                except trio.BrokenResourceError as error:
                    seen.append(str(error))
                    return

    with trio.fail_after(20):
        async with running(more=[Impatient()]) as run, run.client(reads=False) as client:
            stream_id = await client.open("/t.T/Impatient")
            await client.send(stream_id, framed(b""))
            while client.h2.inbound_flow_control_window > 0:
                await client.changed.wait()
            sending.cancel()  # in the middle of the message
            assert (await client.finished(stream_id)).messages == []
    assert seen == ["an earlier answer was sent in part only"]


async def test_two_tasks_cannot_send_on_one_call_at_once() -> None:
    from grpclib.const import Handler

    from penstock.rpc.methods import both_stream

    class Hasty:
        def __mapping__(self) -> dict[str, Handler]:
            return {"/t.T/Hasty": both_stream(self.serve, w.WorkRequest, w.WorkResponse)}

        async def serve(self, call: ServerCall[w.WorkRequest, w.WorkResponse]) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(call.send_message, w.WorkResponse())

    with trio.fail_after(20):
        async with running(more=[Hasty()]) as run, run.client() as client:
            stream_id = await client.open("/t.T/Hasty", end=True)
            assert (await client.finished(stream_id)).status == 13
