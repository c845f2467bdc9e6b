"""W3C trace context: the ``traceparent`` that goes with calls, given by hand or by OpenTelemetry.

::

    with traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
        await client.start_instance("order", {...})

Holds a context variable, so concurrent tasks have their own. Both transports read it; the engine carries it into its
logs. With ``use_opentelemetry()`` each call is a span, a handler runs in one, and the header follows from them.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from penstock.telemetry.spans import INSTANCE, Span, Spans
from penstock.user_text import text_of
from penstock.wire.model import Job

_CURRENT: ContextVar[str | None] = ContextVar("penstock_traceparent", default=None)
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


class _InUse:
    """What `use_opentelemetry` has set."""

    spans: Spans | None = None


@contextmanager
def traceparent(value: str | None) -> Generator[None]:
    """Send this ``traceparent`` with every call made inside the block; None sends none.

    Raises:
        ValueError: it does not have the form of the W3C's header.
    """
    if value is not None and _FORM.fullmatch(value) is None:
        raise ValueError(f"not a traceparent: {value!r}")
    token = _CURRENT.set(value)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_traceparent() -> str | None:
    """Return the ``traceparent`` of the current task; None when there is none."""
    value = _CURRENT.get()
    return Spans.current() if value is None and _InUse.spans is not None else value


def use_opentelemetry(tracer_provider: Any = None, *, enabled: bool = True) -> None:
    """Let clients and workers of this process make spans from now on (extra ``otel``): a CLIENT span for each call that
    has a span around it or starts instances, and a CONSUMER span around each handler, below the trace that its instance
    was started in. ``tracer_provider``: None takes the process's. ``enabled=False`` ends it.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    _InUse.spans = Spans(tracer_provider) if enabled else None


@contextmanager
def calling(name: str, *, begins: bool) -> Generator[None]:
    """A call is made inside. ``begins``: it is worth a trace of its own when there is none."""
    spans = _InUse.spans
    if spans is None or not (begins or spans.current() is not None):
        yield
        return
    span = spans.begin(f"penstock.{name}", "CLIENT", _CURRENT.get())
    with span.active(), traceparent(span.traceparent):
        try:
            yield
        except Exception as error:
            span.fail(f"{type(error).__name__}: {text_of(error)}")
            raise


@contextmanager
def handling(job: Job) -> Generator[Span | None]:
    """The handler of a job runs inside; the span, which the caller tells what became of it."""
    spans = _InUse.spans
    if spans is None:
        yield None
        return
    attributes: dict[str, str | int] = {
        INSTANCE: job.instance_id,
        "penstock.job.id": job.id,
        "penstock.job.type": job.job_type,
        "penstock.step.id": job.step_id,
        "penstock.definition.id": job.definition_id,
        "penstock.job.attempt": job.attempt or 0,
    }
    span = spans.begin(f"process {job.job_type}", "CONSUMER", job.traceparent, attributes, own_trace=True)
    with span.active():
        try:
            yield span
        except Exception as error:
            span.fail(f"{type(error).__name__}: {text_of(error)}")
            raise
