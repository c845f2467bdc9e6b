"""gRPC servers under test: on real sockets, or on memory streams (then with Trio's mock clock)."""

from __future__ import annotations

import contextlib
import importlib
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from penstock.rpc.counts import RpcStatistics
from penstock.rpc.limits import RpcLimits
from penstock.rpc.problems import status_of
from penstock.rpc.server import GrpcServer
from tests.rpc.go_client import build
from tests.rpc.raw import RawClient, client_on
from tests.rpc.services import Engine
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Running:
    """A server that serves."""

    server: GrpcServer
    engine: Engine
    nursery: trio.Nursery
    port: int = 0
    calls: list[tuple[str, str, float]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncGenerator[RawClient, None]:
        """A raw client over TCP."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with client_on(stream, **options) as client:
            yield client

    @contextlib.asynccontextmanager
    async def memory_client(self, **options: Any) -> AsyncGenerator[RawClient, None]:
        """A raw client on a memory stream (``lockstep``: nothing is buffered between the two)."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.server.serve_stream, theirs, "memory")
        async with client_on(ours, **options) as client:
            yield client

    async def until(self, holds: Callable[[RpcStatistics], bool]) -> None:
        """Wait for a state of the server."""

        async def held() -> bool:
            return holds(self.server.statistics())

        await wait_until(held)

    async def until_quiet(self) -> None:
        """Wait until no connection, call or byte is held: what a leak would prevent."""
        await self.until(lambda now: (now.connections, now.calls_running, now.held_request_bytes) == (0, 0, 0))
        assert self.engine.running == 0
        assert not self.server._connections


@contextlib.asynccontextmanager
async def running(
    limits: RpcLimits | None = None, *, ssl_context: ssl.SSLContext | None = None, more: list[Any] | None = None
) -> AsyncGenerator[Running, None]:
    """A server on a port of its own and for memory streams. It is cut at the end, and must be without calls then."""
    engine = Engine()
    calls: list[tuple[str, str, float]] = []
    tls: Any = None if ssl_context is None else SimpleNamespace(context=ssl_context)
    server = GrpcServer(
        [*(more or []), engine], limits=limits, tls=tls, status_of=status_of,
        on_call=lambda *call: calls.append(call),
    )  # fmt: skip
    sock = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [sock])
        run = Running(server, engine, nursery, sock.getsockname()[1], calls)
        yield run
        nursery.cancel_scope.cancel()
    assert engine.running == 0


@pytest.fixture
async def run() -> AsyncIterator[Running]:
    """A server with the default limits."""
    with trio.fail_after(30):
        async with running() as server:
            yield server


@dataclass
class Google:
    """The messages and stubs that google.protobuf and grpcio make of the proto files."""

    workflow: ModuleType
    workflow_grpc: ModuleType
    penstock: ModuleType
    penstock_grpc: ModuleType
    schedules: ModuleType
    schedules_grpc: ModuleType
    updates: ModuleType
    updates_grpc: ModuleType
    repair: ModuleType
    repair_grpc: ModuleType
    batches: ModuleType
    batches_grpc: ModuleType
    runs: ModuleType
    runs_grpc: ModuleType


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    """Generated for this run, under flat names: a package called penstock would hide ours."""
    target = tmp_path_factory.mktemp("google")
    names = {
        "workflow/v1/engine.proto": "workflow_v1_engine",
        "penstock/v1/worker.proto": "penstock_v1_worker",
        "penstock/v1/schedules.proto": "penstock_v1_schedules",
        "penstock/v1/updates.proto": "penstock_v1_updates",
        "penstock/v1/repair.proto": "penstock_v1_repair",
        "penstock/v1/batches.proto": "penstock_v1_batches",
        "penstock/v1/runs.proto": "penstock_v1_runs",
    }
    for path, name in names.items():
        text = (ROOT / "proto" / path).read_text()
        for other, flat in names.items():
            text = text.replace(f'import "{other}"', f'import "{flat}.proto"')
        (target / f"{name}.proto").write_text(text)
    arguments = [f"-I{target}", f"--python_out={target}", f"--grpc_python_out={target}"]
    files = [f"{name}.proto" for name in names.values()]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments, *files], check=True)
    sys.path.insert(0, str(target))
    try:
        modules = [f"{name}_pb2{kind}" for name in names.values() for kind in ("", "_grpc")]
        yield Google(*(importlib.import_module(name) for name in modules))
    finally:
        sys.path.remove(str(target))


@pytest.fixture(scope="session")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go client, built in a temporary directory."""
    return build(tmp_path_factory.mktemp("go") / "client")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    where = tmp_path_factory.mktemp("tls")
    cert, key = where / "cert.pem", where / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", str(key), "-out", str(cert),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
async def run_small() -> AsyncIterator[Running]:
    """A server with windows of 64 KiB."""
    with trio.fail_after(30):
        async with running(RpcLimits(stream_window_bytes=65_535, connection_window_bytes=131_072)) as server:
            yield server
