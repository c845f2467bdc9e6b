"""Stands between a worker and an engine's gRPC port: reads each message, breaks streams, passes everything else on."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from typing import Any

import grpc
import msgspec

from penstock.wire import penstock_v1 as w
from penstock.wire.codec import decode_message
from sdks.conformance.recorder import Fault, Message, Recorder

STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
UNARY = {
    "CompleteJobs": "complete",
    "FailJobs": "fail",
    "HeartbeatJobs": "heartbeat",
    "ReleaseJobs": "release",
    "ParkJobs": "park",
}
NAMES = {"job_id": "jobId", "error_message": "errorMessage", "error_code": "errorCode", "stack_trace": "stackTrace"}


def _item(kind: str, item: Any) -> Message:
    reported = {NAMES.get(name, name): value for name, value in msgspec.structs.asdict(item).items()}
    for name in ("variables", "checkpoint", "progress"):
        if isinstance(reported.get(name), bytes | str | msgspec.Raw):
            reported[name] = json.loads(
                bytes(reported[name]) if not isinstance(reported[name], str) else reported[name] or "null"
            )
    if reported.get("retry_after_s"):
        reported["retryAfterSeconds"] = reported["retry_after_s"]
    return {"kind": kind, **reported}


def _results(message: Any) -> list[Message]:
    kinds = {
        "completions": "complete",
        "failures": "fail",
        "releases": "release",
        "parks": "park",
        "heartbeats": "heartbeat",
    }
    return [_item(kind, item) for field, kind in kinds.items() for item in getattr(message, field, ())]


def messages_of_work(body: bytes, *, first: bool) -> list[Message]:
    """What a message of a worker on the stream says."""
    message = decode_message(body, w.WorkRequest)
    opened: list[Message] = [{"kind": "ask"}, {"kind": "open", "workerId": message.worker_id}] if first else []
    grants = [{"kind": "poll", "jobs": each.jobs, "jobTypes": [each.job_type]} for each in message.credits]
    return [*opened, *grants, *_results(message)]


class _Cut(Exception):
    """The stream ends here."""


@contextlib.contextmanager
def serving(recorder: Recorder, engine_port: Callable[[], int]) -> Generator[int]:
    """The port of a proxy for the engine's gRPC port, until the end of the block."""
    proxy = _Proxy(recorder, engine_port)
    server = grpc.server(futures.ThreadPoolExecutor(32), options=OPTIONS)
    server.add_generic_rpc_handlers((proxy,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        recorder.down = True
        recorder.cut_all()
        server.stop(0)
        proxy.close()


class _Proxy(grpc.GenericRpcHandler):
    def __init__(self, recorder: Recorder, engine_port: Callable[[], int]) -> None:
        self._recorder = recorder
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{engine_port()}",
            options=[*OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300)],
        )

    def close(self) -> None:
        self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        metadata = [(k, v) for k, v in handler_call_details.invocation_metadata or () if k == "authorization"]
        if method.endswith("/Work"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: self._work(method, metadata, requests, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda body, context: self._unary(method, metadata, body, context))

    def _unary(self, method: str, metadata: Any, body: bytes, context: Any) -> bytes:
        kind = UNARY.get(method.rpartition("/")[2], method)
        messages: list[Message] = [{"kind": kind}]
        if kind in UNARY.values():
            messages = _results(decode_message(body, getattr(w, f"{method.rpartition('/')[2]}Request")))
        fault = self._recorder.record(messages)
        if self._recorder.down or (fault is not None and fault.do == "lose-request"):
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        if fault is not None and fault.do == "status":
            context.abort(STATUS[fault.status], "a fault of the test")
        if fault is not None and fault.do == "delay":
            time.sleep(fault.seconds)
        try:
            answer: bytes = self._channel.unary_unary(method)(body, metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
            raise
        if fault is not None and fault.do == "lose-answer":
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        return answer

    def _work(self, method: str, metadata: Any, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        if self._recorder.down:
            self._recorder.record([{"kind": "refused"}])
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        stream = _Stream(self._recorder, requests)
        upstream = self._channel.stream_stream(method)(stream.outgoing(), metadata=metadata)
        stream.cut_upstream = upstream.cancel
        context.add_callback(upstream.cancel)
        threading.Thread(target=stream.pump, daemon=True).start()
        self._recorder.cut.append(lambda: stream.end(grpc.StatusCode.UNAVAILABLE))
        try:
            for body in upstream:
                yield from stream.incoming(body)
        except _Cut:
            pass
        except grpc.RpcError as error:
            if stream.ended_with is None:
                context.abort(error.code(), error.details())
        if stream.ended_with is not None:
            upstream.cancel()
            context.abort(stream.ended_with, "cut")


class _Stream:
    """One Work stream through the proxy."""

    def __init__(self, recorder: Recorder, requests: Iterator[bytes]) -> None:
        self._recorder = recorder
        self._requests = requests
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lose_answer = False
        self._garbage = False
        self.ended_with: grpc.StatusCode | None = None
        self.cut_upstream: Callable[[], object] = lambda: None

    def outgoing(self) -> Iterator[bytes]:
        while (body := self._out.get()) is not None:
            yield body

    def pump(self) -> None:
        """Pass on what the worker sends, until it half-closes or goes away."""
        first = True
        try:
            for body in self._requests:
                fault = self._recorder.record(messages_of_work(body, first=first))
                first = False
                if fault is None or self._sent_after(fault):
                    self._out.put(body)
            self._out.put(None)
        except Exception:  # the worker is gone: grpc's error for it has no class of its own
            self.cut_upstream()

    def _sent_after(self, fault: Fault) -> bool:
        """Do the fault of a message of the worker. Return whether the message goes on."""
        if fault.do == "delay":
            time.sleep(fault.seconds)
        elif fault.do == "lose-answer":
            self._lose_answer = True
        elif fault.do == "garbage":
            self._garbage = True
        elif fault.do in ("status", "lose-request"):
            self.end(STATUS[fault.status if fault.do == "status" else 503])
            return False
        return True

    def incoming(self, body: bytes) -> Iterator[bytes]:
        """What becomes of a message of the engine."""
        message = decode_message(body, w.WorkResponse)
        if self._lose_answer and message.outcomes:
            self.end(grpc.StatusCode.UNAVAILABLE)
        if message.jobs:
            reported = ({"kind": "jobs", "jobId": job.id, "attempt": job.attempt} for job in message.jobs)
            fault = self._recorder.record(reported)
            if fault is not None and fault.do == "lose-answer":
                self.end(grpc.StatusCode.UNAVAILABLE)
        if self.ended_with is not None:
            raise _Cut
        if self._garbage:
            self._garbage = False
            yield b"\xff\xff\xff\xff garbage"
        yield body

    def end(self, status: grpc.StatusCode) -> None:
        """Break the stream with a status."""
        self.ended_with = self.ended_with or status
        self.cut_upstream()
