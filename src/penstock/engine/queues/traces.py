"""Traces through the engine (`otel_enabled`): an instance's jobs go on with the trace that its start was part of.

What instances were started in is written with their start, remembered here for those that were met last, and read for
the others. All of it is a hint: what can't be read or written leaves a gap in a trace and stops no job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from penstock.engine.requests import ids
from penstock.log.log import RateLimitedLog, get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import DatabaseError, first_line
from penstock.store.db.statements import Statement
from penstock.store.rows import traces as store
from penstock.store.rows.full_path import Change
from penstock.telemetry.spans import INSTANCE, Span, Spans

REMEMBERED_MAX_ITEMS: Final = 10_000
"""Instances whose traces need not be read: 2 MB."""

_log = RateLimitedLog(get_logger("penstock.engine.traces"), interval_seconds=30)


class Traces:
    """Of one engine."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        self._known: dict[int, str | None] = {}  # the last ones; None for those that have no trace

    async def keep(self, connection: TrioConnection, started: Iterable[tuple[int, Span | None]]) -> None:
        """Before a transaction of its own that starts instances, in the spans of calls. A start that fails leaves a
        row, which goes with the partition of its time."""
        traces = self._kept(started)
        if not traces:
            return
        try:
            await connection.fetch(*store.keep(traces))
        except DatabaseError as error:
            if connection.closed:
                raise
            _log.warning("keep", "the traces of starts are not kept", error=first_line(error))

    def statements(self, started: Iterable[tuple[int, Span | None]]) -> list[Statement]:
        """As `keep`, to be written with the starts."""
        traces = self._kept(started)
        return [store.keep(traces)] if traces else []

    def inherited(self, changes: Iterable[Change]) -> list[Statement]:
        """To be written with changes: what instances start goes on with their traces."""
        parents = {
            change.created.id: change.created.parent_id
            for change in changes
            if change.created is not None and change.created.parent_id is not None
        }
        return [store.inherit(parents)] if parents else []

    def _kept(self, started: Iterable[tuple[int, Span | None]]) -> dict[int, str]:
        found: dict[int, str] = {}
        for instance, span in started:
            if span is not None and span.kept:
                found[instance] = span.traceparent
                span.record_event("instance is started", {INSTANCE: ids.show_instance(instance)})
                self._remember(instance, span.traceparent)
        return found

    async def of(self, connection: TrioConnection, instances: Sequence[int]) -> dict[int, str]:
        """The traces of instances, of those that have one."""
        unknown = sorted({id for id in instances if id not in self._known})
        read: dict[int, str] = {}
        if unknown:
            try:
                read = await store.find(connection, unknown)
            except DatabaseError as error:
                if connection.closed:
                    raise
                _log.warning("find", "traces can't be read", error=first_line(error))
                unknown = []
        found = {id: trace for id in instances if (trace := read.get(id) or self._known.get(id)) is not None}
        for id in unknown:
            self._remember(id, read.get(id))
        return found

    def _remember(self, instance: int, trace: str | None) -> None:
        if len(self._known) >= REMEMBERED_MAX_ITEMS:
            del self._known[next(iter(self._known))]
        self._known[instance] = trace

    def handed(
        self,
        how: str,
        trace: str,
        instance: int,
        job_id: str,
        job_type: str,
        step_id: str,
        attempt: int,
        since: datetime,
    ) -> str:
        """A job goes to a worker: a span since it was there to be had, whose traceparent goes with it."""
        attributes: dict[str, str | int] = {
            INSTANCE: ids.show_instance(instance),
            "penstock.job.id": job_id,
            "penstock.job.type": job_type,
            "penstock.step.id": step_id,
            "penstock.job.attempt": attempt,
        }
        span = self.spans.begin(f"{how} {job_type}", "PRODUCER", trace, attributes, started_at=since)
        span.end()
        return span.traceparent
