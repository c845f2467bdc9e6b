"""Traces in the engine: the one that an instance was started in goes with its jobs, and into what it starts."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.runtime.retention import Retention
from penstock.telemetry.spans import Spans, set_call
from penstock.testing.definitions import definition, end, linear
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.shapes import call, user

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = CALLER[:-1] + "0"


class Recorded:
    """Spans, and what became of them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = Spans(provider)

    def of(self, kind: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind.name == kind]

    @contextmanager
    def calling(self, parent: str) -> Generator[str]:
        """Inside a call is served that came with this trace; the traceparent of its span."""
        span = self.spans.begin("POST", "SERVER", parent)
        set_call(span)
        try:
            yield span.traceparent
        finally:
            set_call(None)
            span.end()


def parts(traceparent: str | None) -> tuple[str, str]:
    """Trace and span."""
    assert traceparent is not None
    _, trace, span, _ = traceparent.split("-")
    return trace, span


def span_id(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"


def kept(driver: Driver) -> dict[int, str]:
    return dict(driver.rows("SELECT instance_id, traceparent FROM trace_context"))


async def test_each_job_goes_on_with_the_trace_of_the_start(make_driver: MakeDriver) -> None:
    recorded = Recorded()
    here, there = make_driver(spans=recorded.spans), make_driver(spans=recorded.spans)
    await here.upload(linear(2))
    with recorded.calling(CALLER) as began:
        instance = await here.start("linear", {"x": 1})
    assert kept(here) == {number(instance.id): began}

    first = await there.one("work")  # this engine has to read it
    await there.complete(first)
    second = await here.one("work")

    delivered = recorded.of("PRODUCER")
    assert [parts(job.traceparent)[0] for job in (first, second)] == [parts(CALLER)[0]] * 2
    assert [span_id(span) for span in delivered] == [parts(job.traceparent)[1] for job in (first, second)]
    assert {f"{span.parent.span_id:016x}" for span in delivered if span.parent} == {parts(began)[1]}
    attributes: Any = delivered[1].attributes
    assert dict(attributes) == {
        "penstock.instance.id": instance.id,
        "penstock.job.id": second.id,
        "penstock.job.type": "work",
        "penstock.step.id": second.step_id,
        "penstock.job.attempt": 1,
    }
    (served,) = recorded.of("SERVER")
    assert [(event.name, dict(event.attributes or {})) for event in served.events] == [
        ("instance is started", {"penstock.instance.id": instance.id})
    ]


async def test_keyed_starts_and_called_instances_belong_to_the_trace(make_driver: MakeDriver) -> None:
    recorded = Recorded()
    driver = make_driver(spans=recorded.spans)
    await driver.upload(linear(1, definition_id="child", job_type="child"))
    await driver.upload(definition(call("call", "child"), end(), definition_id="caller"))
    with recorded.calling(CALLER) as began:
        parent = await driver.start("caller", idempotency_key="once")
    child = await driver.one("child")
    assert kept(driver) == {number(parent.id): began, number(child.instance_id): began}
    assert parts(child.traceparent)[0] == parts(CALLER)[0]


async def test_no_row_is_written_without_a_trace_that_is_kept(make_driver: MakeDriver) -> None:
    recorded = Recorded()
    on, off = make_driver(spans=recorded.spans), make_driver()
    await on.upload(linear(1))
    await on.start("linear")  # nobody's trace
    with recorded.calling(UNSAMPLED):
        await on.start("linear")
        await off.start("linear")
    with recorded.calling(CALLER):
        await off.start("linear")
    assert kept(on) == {}
    assert [(await driver.one("work")).traceparent for driver in (on, on, off, off)] == [None] * 4
    assert recorded.of("PRODUCER") == []


async def test_the_trace_goes_with_its_instance(make_driver: MakeDriver) -> None:
    recorded = Recorded()
    driver = make_driver(spans=recorded.spans, retention_days=10, partition_days=7)
    await Retention(driver.engine).run_once()
    await driver.upload(definition(user("ask"), end(), definition_id="asked"))
    with recorded.calling(CALLER):
        ended = await driver.start("asked")
        stays = await driver.start("asked")
    await driver.cancel(ended.id)
    driver.clock.advance(30 * 86_400)
    await Retention(driver.engine).run_once()
    assert [*kept(driver)] == [number(stays.id)]
