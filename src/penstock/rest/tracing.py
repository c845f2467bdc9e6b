"""Spans of REST calls: of those that come with a trace, and of those that start instances."""

from __future__ import annotations

from typing import Final

from penstock.telemetry.spans import Span, Spans, set_call

_STARTS: Final = frozenset({"/v1/instances", "/v1/instances/batch"})


class RestCalls:
    """Begins them."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, method: str, path: str, traceparent: bytes | None) -> Span | None:
        """The span of a call, which what it starts goes on with; None for one that is nobody's trace, as most are: a
        poll would be a trace every 20 s."""
        span = None
        if traceparent is not None or (method == "POST" and path in _STARTS):
            parent = None if traceparent is None else traceparent.decode("latin-1")
            span = self._spans.begin(method, "SERVER", parent, {"url.path": path}, own_trace=True)
        set_call(span)
        return span


def end_call(span: Span, method: str, pattern: str, status: int) -> None:
    """The call was answered, or nobody is there for the answer."""
    span.rename(f"{method} {pattern}")
    span.note({"http.request.method": method, "http.route": pattern, "http.response.status_code": status})
    if status >= 500:
        span.fail(str(status))
    span.end()
    set_call(None)
