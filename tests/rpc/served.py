"""Both services on a real engine in this process, and clients that speak our own messages."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
import trio
from grpclib.const import Status

from penstock.access.gate import Gate
from penstock.engine.engine import Engine
from penstock.rpc.limits import RpcLimits
from penstock.rpc.problems import status_of
from penstock.rpc.rows import Rows
from penstock.rpc.server import GrpcServer
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.worker_service import WorkerService
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import decode_message, encode_message, package_at
from penstock.wire.model import Completion, HeartbeatOutcome, JobOutcome, PollRequest
from tests.rpc.raw import RawClient, client_on, framed

T = TypeVar("T", bound=msgspec.Struct)
WORKFLOW = "/workflow.v1.WorkflowEngine/"
WORKER = "/penstock.v1.Worker/"


class CallFailed(Exception):
    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status = status
        self.reason = reason


class Served:
    """A server on an engine. ``client`` is one connection that the block made; `connect` makes more."""

    def __init__(self, server: GrpcServer, engine: Engine, port: int) -> None:
        self.server = server
        self.engine = engine
        self.port = port
        self.client: RawClient

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> AsyncGenerator[RawClient, None]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with client_on(stream, **options) as client:
            yield client

    async def bytes(self, method: str, body: bytes, answer: type[T]) -> T:
        """One unary call with any bytes. Raises CallFailed."""
        path = method if method.startswith("/") else WORKFLOW + method
        found = await self.client.call(path, body)
        if found.status:
            raise CallFailed(Status(found.status), found.reason)
        return decode_message(found.messages[0], answer, package_at(path))

    async def call(self, method: str, request: msgspec.Struct, answer: type[T]) -> T:
        """One unary call. Raises CallFailed."""
        path = method if method.startswith("/") else WORKFLOW + method
        return await self.bytes(path, encode_message(request, package_at(path)), answer)

    async def poll(self, *types: str, worker: str = "w", n: int = 0, lease: int = 0) -> list[m.Job]:
        request = PollRequest(worker, list(types), n, lease)
        return (await self.call("PollJobs", request, m.PollJobsResponse)).jobs

    async def complete(self, job: str, variables: dict[str, Any] | None = None, *, worker: str = "w") -> None:
        body = b"" if variables is None else json.dumps(variables).encode()
        await self.call("CompleteJob", Completion(job, worker_id=worker, variables=body), m.CompleteJobResponse)


class Work:
    """One Work stream."""

    def __init__(self, client: RawClient, stream_id: int) -> None:
        self.client = client
        self.stream_id = stream_id
        self._read = 0
        self.jobs: list[w.Job] = []
        self.outcomes: list[JobOutcome] = []
        self.heartbeats: list[HeartbeatOutcome] = []
        self.losses: list[w.LeaseLoss] = []
        self.cancellations: list[w.Cancellation] = []
        self.credits: list[w.Credit] = []

    @classmethod
    async def open(cls, client: RawClient, worker: str = "w", *, lease: int = 0, **credit: int) -> Work:
        work = cls(client, await client.open(WORKER + "Work"))
        await work.send(worker_id=worker, lease_seconds=lease, credits=[w.Credit(*item) for item in credit.items()])
        return work

    async def send(self, *, end: bool = False, **fields: Any) -> None:
        await self.client.send(self.stream_id, framed(encode_message(w.WorkRequest(**fields))), end=end)

    async def grant(self, job_type: str, count: int) -> None:
        await self.send(credits=[w.Credit(job_type, count)])

    async def next(self) -> w.WorkResponse:
        """The next message. Fails when the stream ends instead."""
        found = await self.client.messages(self.stream_id, self._read + 1)
        assert len(found) > self._read, self.client.answers[self.stream_id]
        answer = decode_message(found[self._read], w.WorkResponse)
        self._read += 1
        self.jobs += answer.jobs
        self.outcomes += answer.outcomes
        self.heartbeats += answer.heartbeats
        self.losses += answer.lease_losses
        self.cancellations += answer.cancellations
        self.credits += answer.credits
        return answer

    async def wait_jobs(self, count: int) -> list[w.Job]:
        """The next ``count`` jobs, taken out of ``jobs``."""
        while len(self.jobs) < count:
            await self.next()
        taken, self.jobs = self.jobs[:count], self.jobs[count:]
        return taken

    async def wait_outcomes(self, count: int) -> list[JobOutcome]:
        while len(self.outcomes) < count:
            await self.next()
        taken, self.outcomes = self.outcomes[:count], self.outcomes[count:]
        return taken

    async def ended(self) -> tuple[Status, str]:
        """How the stream ended."""
        answer = await self.client.finished(self.stream_id)
        return Status(answer.status), answer.reason

    @property
    def has_ended(self) -> bool:
        return self.client.answers[self.stream_id].done.is_set()


@contextlib.asynccontextmanager
async def served(
    engine: Engine, limits: RpcLimits | None = None, gate: Gate | None = None
) -> AsyncGenerator[Served, None]:
    """Serve for the block; nothing may be left of the calls afterwards."""
    services = (
        WorkflowEngine(engine),
        WorkerService(engine),
        Rows(engine),
    )
    server = GrpcServer(services, status_of=status_of, limits=limits or RpcLimits(), gate=gate)
    sock = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [sock])
        run = Served(server, engine, sock.getsockname()[1])
        async with run.connect() as run.client:
            yield run
        nursery.cancel_scope.cancel()
    for batcher in engine.batchers():
        await batcher.wait_flushed()
    assert server.statistics().calls_running == 0
