"""OpenTelemetry in an engine (`otel_enabled`): what makes spans and sends them away, from its start to its end.

Where spans go, how many are kept and how they are batched, the standard environment variables say
(``OTEL_EXPORTER_OTLP_*``, ``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_*``). They are sent by a thread of OpenTelemetry's own,
which drops what it has no room for: no call waits for a collector.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Final

import trio

from penstock import __version__
from penstock.log.throttle import throttle
from penstock.telemetry.spans import NAME, Spans

FLUSH_TIMEOUT_S: Final = 3.0
"""What is left at the end may take so long to leave."""


def is_installed() -> bool:
    """Return whether the extra `otel` is there."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


class Tracing:
    """The spans of one engine process."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        throttle("opentelemetry")
        about: dict[str, str] = {"service.version": __version__}
        if "OTEL_SERVICE_NAME" not in os.environ:
            about["service.name"] = NAME
        self._provider = TracerProvider(resource=Resource.create(about))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.spans = Spans(self._provider)

    async def finish(self) -> None:
        """Send what is left; no longer than `FLUSH_TIMEOUT_S`."""
        with trio.move_on_after(FLUSH_TIMEOUT_S):
            await trio.to_thread.run_sync(self._provider.shutdown, abandon_on_cancel=True)
