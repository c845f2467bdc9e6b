"""The gRPC client against Google's server (grpcio): another implementation of HTTP/2 and of gRPC's own conventions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import anyio
import anyio.to_thread
import grpc
import pytest

from penstock.api import instances as api
from penstock.client import Client, Conflict, StartRequest, TimedOut
from penstock.client.call import RowCall
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Instance, StartResult
from tests.sdk.loops import Run
from tests.sdk.virtual_time import StillTime

SERVER_MESSAGE_BYTES = 64 * 1024 * 1024


class Foreign:
    """Echoes the variables of starts; GetInstance says what a test wants."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.cancelled = threading.Event()
        self.server = grpc.server(
            futures.ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", SERVER_MESSAGE_BYTES)],
        )
        methods = {
            "penstock.v1.Worker": {"StartInstances": self._start},
            "workflow.v1.WorkflowEngine": {"GetInstance": self._get},
        }
        for service, handlers in methods.items():
            made = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()}
            self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, made),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def _start(self, body: bytes, _context: Any) -> bytes:
        items = decode_message(body, w.StartInstancesRequest).items
        results = [
            StartResult(instance=Instance(id=item.business_key or "", variables=item.variables)) for item in items
        ]
        return encode_message(w.StartInstancesResponse(results))

    def _get(self, body: bytes, context: Any) -> bytes:
        if decode_message(body, m.GetInstanceRequest).id == "hang":
            context.add_callback(self.cancelled.set)
            self.hangs.set()
            self.cancelled.wait(20)
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 50 % of it – später")
        raise AssertionError


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    running = Foreign()
    yield running
    running.cancelled.set()
    running.server.stop(None).wait()


def test_large_messages_at_once_in_both_directions(run: Run, foreign: Foreign) -> None:
    async def main() -> None:
        async with Client(foreign.url) as client:

            async def start(number: int) -> None:
                text = chr(97 + number) * 2_000_000
                request = StartRequest(definition_id="d", business_key=str(number), variables={"text": text})
                (result,) = await client.start_instances([request])
                started = result.unwrap()
                assert (started.id, started.variables) == (str(number), {"text": text})

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(start, number)

    run(main)


def test_statuses_and_their_texts(run: Run, foreign: Foreign) -> None:
    async def main() -> None:
        async with Client(foreign.url) as client:
            with pytest.raises(Conflict, match="not now: 50 % of it – später"):
                await client.get_instance("1f")

    run(main)


def test_a_deadline_ends_the_call_on_the_server(still: StillTime, foreign: Foreign) -> None:
    async def when_it_hangs() -> None:
        assert await anyio.to_thread.run_sync(foreign.hangs.wait, 10)
        still.jump(15)

    async def main() -> None:
        async with Client(foreign.url) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(when_it_hangs)
                with pytest.raises(TimedOut):
                    await client.call(RowCall(api.GET_INSTANCE, api.GetInstance("hang")), timeout_s=15)
            assert await anyio.to_thread.run_sync(foreign.cancelled.wait, 10)

    still.run(main)


def test_a_server_that_stops_and_another_in_its_place(run: Run, foreign: Foreign) -> None:
    async def main() -> None:
        async with Client(foreign.url) as client:
            request = StartRequest(definition_id="d", business_key="1")
            assert (await client.start_instances([request]))[0].unwrap().id == "1"
            stopped = foreign.server.stop(0.2)
            await anyio.to_thread.run_sync(stopped.wait)
            again = Foreign()
            try:
                client.transport.channel._port = again.port  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - a private part
                assert (await client.start_instances([request]))[0].unwrap().id == "1"
            finally:
                again.server.stop(None).wait()

    run(main)
