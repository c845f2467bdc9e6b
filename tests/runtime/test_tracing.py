"""A trace from the caller through engine and worker, over REST and gRPC: by an engine that exports to a collector."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from penstock.client import Client, use_opentelemetry
from penstock.testing.definitions import linear
from penstock.worker import JobContext, Worker
from tests.sdk.running_engine import RunningEngine

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.slow(reason="engine processes that export traces")
Found = dict[str, tuple[str, str]]
"""By name: span and parent."""


@contextmanager
def collector() -> Generator[tuple[str, list[Any]]]:
    """Where an engine may send its spans; its URL, and what came."""
    came: list[Any] = []

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request: Any = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    came.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collect) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", came
        finally:
            server.shutdown()
            thread.join()


async def buy(url: str, provider: TracerProvider, job_type: str, logged: list[Any]) -> str:
    """A caller and a worker; the trace of the caller."""
    worker = Worker(url)

    @worker.handler(job_type)
    async def handle(job: JobContext) -> None:
        logged.append(job.log.extra)

    tracer = provider.get_tracer("shop")
    async with Client(url) as client:
        await client.upload_definition(linear(1, definition_id=job_type, job_type=job_type))
        async with worker:
            with tracer.start_as_current_span("buy") as span:
                started = await client.start_instance(job_type, {"x": 1})
            ended = await client.wait_until_ended(started.id, timeout_s=120)
    assert ended.status == "COMPLETED"
    return f"{span.get_span_context().trace_id:032x}"


def test_a_trace_leads_from_caller_through_engine_to_worker(database_dsn: str, tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    logged: list[Any] = []
    with collector() as (url, came):
        settings = {"WE_OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        engine = RunningEngine(database_dsn, tmp_path / "log", **settings)
        try:
            engine.start()
            use_opentelemetry(provider)
            rest = anyio.run(buy, engine.url, provider, "by-rest", logged)
            grpc = anyio.run(buy, engine.grpc_url, provider, "by-grpc", logged)
            engine.stop()  # and with that the last spans are sent
        finally:
            use_opentelemetry(enabled=False)
            engine.close()
    ours: list[Any] = list(exporter.get_finished_spans())
    for trace, start, job_type in (
        (rest, "POST /v1/instances", "by-rest"),
        (grpc, "penstock.v1.Worker/StartInstances", "by-grpc"),
    ):
        found: Found = {
            span.name: (f"{span.context.span_id:016x}", f"{span.parent.span_id:016x}" if span.parent else "")
            for span in ours
            if f"{span.context.trace_id:032x}" == trace
        }
        found |= {
            span.name: (span.span_id.hex(), span.parent_span_id.hex()) for span in came if span.trace_id.hex() == trace
        }
        way = ["penstock.StartInstance", start, f"deliver {job_type}", f"process {job_type}"]
        assert {*way} <= {*found}, sorted(found)
        assert [found[name][1] for name in way[1:]] == [found[name][0] for name in way[:-1]]
    assert [fields["trace_id"] for fields in logged] == [rest, grpc]
