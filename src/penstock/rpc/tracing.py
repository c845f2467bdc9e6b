"""Spans of gRPC calls: of those that come with a trace, and of those that start instances."""

from __future__ import annotations

from typing import Final

from grpclib.const import Status

from penstock.telemetry.spans import Span, Spans, set_call

_START: Final = "/Start"
_AT_FAULT: Final = (Status.UNKNOWN, Status.INTERNAL, Status.UNAVAILABLE, Status.DATA_LOSS, Status.DEADLINE_EXCEEDED)


def begin_call(spans: Spans, path: str, traceparent: str | None) -> Span | None:
    """The span of a unary call, which what it starts goes on with; None for one that is nobody's trace."""
    if traceparent is None and _START not in path:
        return None
    service, _, name = path.strip("/").partition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    span = spans.begin(f"{service}/{name}", "SERVER", traceparent, attributes, own_trace=True)
    set_call(span)
    return span


def end_call(span: Span, status: Status) -> None:
    """The call has ended."""
    span.note({"rpc.grpc.status_code": int(status.value)})
    if status in _AT_FAULT:
        span.fail(status.name)
    span.end()
    set_call(None)
