"""Calls that begin without a task: answered together by the batch they wait for, and ended as cancelled tasks are."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from grpclib.const import Handler
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame

from penstock.engine.group_commit.item import Item
from penstock.errors import BadRequest
from penstock.loop.poller import HAVE_EPOLL, PolledStream
from penstock.loop.taskless import need_task
from penstock.rpc import taskless as module
from penstock.rpc.call import ServerCall
from penstock.rpc.limits import RpcLimits
from penstock.rpc.methods import taskless, unary
from penstock.rpc.transport import RpcConnection
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion
from tests.rpc.conftest import Running, running
from tests.rpc.raw import Answer, RawClient, framed

PATH = "/workflow.v1.Batches/Complete"
seen: ContextVar[str] = ContextVar("seen", default="")


class Batches:
    """Completions wait for an item each, as a group-commit queue's do."""

    def __init__(self) -> None:
        self.items: list[Item[str]] = []
        self.ended: list[str] = []
        """How handlers ended."""
        self.gone: list[bool] = []
        """Whether their clients had left when their batch was applied."""
        self.after = ""

    def __mapping__(self) -> dict[str, Handler]:
        return {PATH: unary(self._complete, Completion, m.CompleteJobResponse)}

    @taskless
    async def _complete(self, request: Completion, call: ServerCall[Any, Any]) -> m.CompleteJobResponse:
        seen.set(request.job_id)
        if request.job_id == "bug":
            raise RuntimeError("a fault")
        if request.job_id == "sleeps":
            await trio.lowlevel.checkpoint()  # without a word before
        item: Item[str] = Item()
        self.items.append(item)
        end = "cancelled"
        try:
            await item.wait_answer()
            self.gone.append(call.is_gone)
            if request.job_id == "task":
                await need_task()
                await trio.sleep(5)
                self.after = seen.get()
            end = "answered"
        finally:
            self.ended.append(end)
        return m.CompleteJobResponse()

    def answer(self) -> None:
        items, self.items = self.items, []
        for item in items:
            item.answer("")

    def refuse(self) -> None:
        for item in self.items:
            item.refuse(BadRequest("no"))


@contextlib.asynccontextmanager
async def batches(limits: RpcLimits | None = None) -> AsyncGenerator[tuple[Running, Batches], None]:
    service = Batches()
    async with running(limits, more=[service]) as run:
        yield run, service


async def opened(client: RawClient, job: str = "", timeout: str = "") -> int:
    stream_id = await (client.open(PATH, grpc_timeout=timeout) if timeout else client.open(PATH))
    await client.send(stream_id, framed(encode_message(Completion(job), m.PACKAGE)), end=True)
    return stream_id


async def finished(client: RawClient, stream_ids: list[int]) -> list[Answer]:
    return [await client.finished(stream_id) for stream_id in stream_ids]


async def waiting(run: Running, service: Batches, count: int) -> None:
    await run.until(lambda now: len(service.items) == count)


async def test_calls_of_a_batch_need_no_task_and_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sends: list[int] = []
    send = PolledStream.send_nowait

    def counted(self: PolledStream, data: bytes | bytearray) -> int:
        sends.append(len(data))
        return send(self, data)

    monkeypatch.setattr(PolledStream, "send_nowait", counted)
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            assert (await client.call("/none/There")).status == 12
            before = trio.lowlevel.current_statistics().tasks_living
            streams = [await opened(client) for _ in range(20)]
            await waiting(run, service, 20)
            assert trio.lowlevel.current_statistics().tasks_living <= before
            sends.clear()
            service.answer()
            assert [answer.status for answer in await finished(client, streams)] == [0] * 20
            assert len(sends) == (1 if HAVE_EPOLL else 0)
            assert [status for path, status, _ in run.calls if path == PATH] == ["OK"] * 20
            for job, refused in (("", 3), ("bug", 13), ("sleeps", 13)):
                stream_id = await opened(client, job)
                if not job:
                    await waiting(run, service, 1)
                    service.refuse()
                assert (await client.finished(stream_id)).status == refused
        await run.until_quiet()
    assert service.ended == ["answered"] * 20 + ["cancelled"]


async def test_a_call_like_the_last_one_needs_no_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it came whole")

    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            first = [await opened(client) for _ in range(2)]
            monkeypatch.setattr("penstock.rpc.server.MessageBuffer", refuse)
            body = framed(encode_message(Completion("bug"), m.PACKAGE))
            second = await client.open(PATH, body=body)
            streams = [*first, *[await client.open(PATH, body=framed(b"")) for _ in range(8)]]
            await waiting(run, service, 10)
            service.answer()
            assert [answer.status for answer in await finished(client, streams)] == [0] * 10
            assert (await client.finished(second)).status == 13


async def test_a_request_in_pieces_begins_when_it_is_whole() -> None:
    data = framed(encode_message(Completion("x" * 100), m.PACKAGE))
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            before = trio.lowlevel.current_statistics().tasks_living
            stream_id = await client.open(PATH)
            for part in (data[:3], data[3:50], data[50:]):
                await client.send(stream_id, part)
                await client.ping()
                await run.until(lambda now: now.calls_running == 1)
            assert not service.items
            while trio.lowlevel.current_statistics().tasks_living > before:  # none for the call; others may just end
                await trio.lowlevel.checkpoint()
            await client.send(stream_id, b"", end=True)
            await waiting(run, service, 1)
            service.answer()
            assert (await client.finished(stream_id)).status == 0
            torn, cut = await client.open(PATH), await client.open(PATH)
            await client.send(torn, b"\1\0\0\0\0")
            assert (await client.finished(torn)).status == 12
            await client.send(cut, data[:3])
            await client.reset(cut)
            await run.until(lambda now: now.calls_running == 0)
        await run.until_quiet()


async def test_a_reset_ends_its_call_and_no_other() -> None:
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            first, second, third = [await opened(client) for _ in range(3)]
            await waiting(run, service, 3)
            await client.reset(second)
            await run.until(lambda now: service.ended == ["cancelled"])
            service.answer()
            assert [answer.status for answer in await finished(client, [first, third])] == [0, 0]
        await run.until_quiet()
    assert service.ended == ["cancelled", "answered", "answered"]
    assert [status for _, status, _ in run.calls] == ["CANCELLED", "OK", "OK"]


async def test_data_behind_a_whole_request_resets_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    body = framed(encode_message(Completion("task"), m.PACKAGE))
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            first = [await client.open(PATH, body=body) for _ in range(2)]  # from then on they come whole
            await waiting(run, service, 2)
            service.answer()
            await client.stream.send_all(DataFrame(first[1], b"x").serialize())  # while its task runs
            assert (await client.finished(first[1])).reset == ErrorCodes.STREAM_CLOSED
            await client.lock.acquire()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.open, PATH, body=body))
                await trio.testing.wait_all_tasks_blocked()
                late = max(client.answers)
                await client.stream.send_all(client.h2.data_to_send() + DataFrame(late, b"x").serialize())
                client.lock.release()
            assert (await client.finished(late)).reset == ErrorCodes.STREAM_CLOSED
            await client.reset(first[0])
        await run.until_quiet()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_lost_connection_ends_its_calls() -> None:
    with trio.fail_after(30):
        async with batches() as (run, service):
            async with run.client() as client:
                for _ in range(3):
                    await opened(client)
                await waiting(run, service, 3)
                await client.open(PATH)
                await run.until(lambda now: now.calls_running == 4)
            await run.until_quiet()
            service.answer()
    assert service.ended == ["cancelled"] * 3


@pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
async def test_a_client_that_leaves_is_known_before_its_answer() -> None:
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as stays, run.client() as leaves:
            for client in (stays, leaves):
                await opened(client)
            await waiting(run, service, 2)
            left: Any = leaves.stream
            left.socket.shutdown(socket.SHUT_WR)
            service.answer()  # before the loop has looked
            await run.until(lambda now: now.calls_running == 0)
    assert service.gone == [False, True]


async def test_a_cancelled_server_ends_its_calls() -> None:
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            await opened(client)
            await waiting(run, service, 1)
    assert service.ended == ["cancelled"]


async def test_a_deadline_is_kept_to_the_moment(autojump_clock: trio.testing.MockClock) -> None:
    async with batches(RpcLimits(request_s=3.0)) as (run, service), run.memory_client() as client:
        began = trio.current_time()
        late, soon = await opened(client, timeout="2S"), await opened(client, timeout="500m")
        silent, hasty = await client.open(PATH), await client.open(PATH, grpc_timeout="1S")
        found = {}
        for stream_id in (soon, hasty, late, silent):
            answer = await client.finished(stream_id)
            found[stream_id] = (answer.status, trio.current_time() - began)
        assert found == {soon: (4, 0.5), hasty: (4, 1.0), late: (4, 2.0), silent: (4, 3.0)}
        assert service.ended == ["cancelled"] * 2
        answered = await opened(client, timeout="1S")
        await trio.sleep(0.9)
        service.answer()
        assert (await client.finished(answered)).status == 0


async def test_what_needs_a_task_goes_on_in_its_own_context(autojump_clock: trio.testing.MockClock) -> None:
    async with batches() as (run, service), run.memory_client() as client:
        for end in ("answered", "reset", "timed out"):
            stream_id = await opened(client, "task", "2S" if end == "timed out" else "")
            await trio.sleep(1)
            service.answer()
            await trio.sleep(0.5)
            if end == "reset":
                await client.reset(stream_id)
                await trio.sleep(0.1)
                continue
            assert (await client.finished(stream_id)).status == (4 if end == "timed out" else 0)
        assert (service.ended, service.after) == (["answered", "cancelled", "cancelled"], "task")
        assert run.server.statistics().calls_running == 0


async def test_a_window_opened_before_a_task_begins_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer fits no window, so the call asks for a task; the client opens the window before that one runs."""
    start_task = RpcConnection.start_task

    def start_and_open(self: RpcConnection, run: Any, *args: Any) -> None:
        start_task(self, run, *args)
        client.h2.increment_flow_control_window(100, stream_id)
        self._take(client.h2.data_to_send())

    monkeypatch.setattr(RpcConnection, "start_task", start_and_open)
    with trio.fail_after(30):
        async with batches(RpcLimits(stalled_send_s=1.0)) as (run, service), run.client(window=0) as client:
            stream_id = await opened(client)
            await waiting(run, service, 1)
            service.answer()
            assert (await client.finished(stream_id)).status == 0
        await run.until_quiet()


async def test_a_drain_tells_those_that_still_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with batches() as (run, service), run.memory_client() as client:
        whole, cut = await opened(client), await client.open(PATH)
        await trio.sleep(1)
        await run.server.drain(5.0)
        assert [answer.status for answer in await finished(client, [whole, cut])] == [14, 14]
    assert service.ended == ["cancelled"]


async def test_ended_calls_with_a_deadline_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FINISHED_KEPT", 20)
    with trio.fail_after(30):
        async with batches() as (run, service), run.client() as client:
            for _ in range(100):
                stream_id = await opened(client, timeout="1H")
                await waiting(run, service, 1)
                service.answer()
                assert (await client.finished(stream_id)).status == 0
                assert len(run.server.taskless._deadlines) <= 21 + 2
