"""Spans of OpenTelemetry, and the W3C ``traceparent`` that hands a trace on: over REST and gRPC as a header, with a job
as its field, in Kafka as a header of the record.

A leaf: the engine, the client and the worker use it. OpenTelemetry (extra ``otel``) is imported where spans are asked
for; whoever asks for none pays for none.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Literal

NAME: Final = "penstock"
Kind = Literal["SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
Attributes = Mapping[str, str | int]

INSTANCE: Final = "penstock.instance.id"
"""The attribute that log lines call ``instance``."""
_call: ContextVar[Span | None] = ContextVar("penstock_span", default=None)


class Span:
    """One that has begun. ``traceparent`` is what goes to others."""

    def __init__(self, made: Any) -> None:
        self._made = made

    @property
    def traceparent(self) -> str:
        return _shown(self._made.get_span_context())

    @property
    def kept(self) -> bool:
        """Return whether it is to be exported, by the decision that its sampler made."""
        return bool(self._made.is_recording())

    def note(self, attributes: Attributes) -> None:
        """Attributes that are known by now."""
        self._made.set_attributes(dict(attributes))

    def record_event(self, event: str, attributes: Attributes) -> None:
        """Something that happened in it."""
        self._made.add_event(event, dict(attributes))

    def rename(self, name: str) -> None:
        self._made.update_name(name)

    def fail(self, reason: str) -> None:
        """What it stands for went wrong."""
        from opentelemetry.trace import Status, StatusCode

        self._made.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        """Once."""
        self._made.end()

    @contextmanager
    def active(self) -> Generator[None]:
        """Inside it is the current span of OpenTelemetry: what begins there is below it. Ends it."""
        from opentelemetry import trace

        with trace.use_span(self._made, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield


class Spans:
    """Makes them.

    Args:
        provider: an OpenTelemetry ``TracerProvider``; None takes the one of the process, whenever it is set.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise ImportError("traces need OpenTelemetry: pip install 'penstock-workflow[otel]'") from error
        self._tracer: Any = trace.get_tracer(NAME, tracer_provider=provider)

    def begin(
        self,
        name: str,
        kind: Kind,
        parent: str | None = None,
        attributes: Attributes | None = None,
        *,
        started_at: datetime | None = None,
        own_trace: bool = False,
    ) -> Span:
        """Begin one below ``parent``, a traceparent; without one below the current span, or with ``own_trace`` as the
        first of a trace."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        found = None if parent is None else _context_of(parent)
        context = Context() if found is None and (own_trace or parent is not None) else found
        made: Any = self._tracer.start_span(
            name,
            context,
            kind=trace.SpanKind[kind],
            attributes=dict(attributes or {}),
            start_time=None if started_at is None else int(started_at.timestamp() * 1e9),
        )
        return Span(made)

    @staticmethod
    def current() -> str | None:
        """OpenTelemetry's current span, as a traceparent."""
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        return _shown(context) if context.is_valid else None


def set_call(span: Span | None) -> None:
    """The span of the call that this task serves; one task serves many calls, one after the other."""
    _call.set(span)


def current_call() -> Span | None:
    """The span of the call that is served."""
    return _call.get()


def _shown(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context_of(traceparent: str) -> Any:
    """None for what is no traceparent."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    return context if trace.get_current_span(context).get_span_context().is_valid else None
