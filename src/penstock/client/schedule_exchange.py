"""The REST calls about schedules, as `exchange` has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.http_exchange import Exchange, given, list_reader, nothing, quoted, reader
from penstock.client.operation import Operation
from penstock.client.schedule_operation import (
    BackfillSchedule,
    DeleteSchedule,
    GetSchedule,
    ListSchedules,
    PauseSchedule,
    PreviewSchedule,
    PutSchedule,
    ResumeSchedule,
    TriggerSchedule,
)
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec, ScheduleTime

_read_schedule = reader(Schedule)
_read_schedules = reader(Page[Schedule])
_read_schedule_run = reader(ScheduleRun)
_read_times = list_reader("times", ScheduleTime)


def _schedule(id: str, act: str = "") -> str:
    return f"/v1/schedules/{quoted(id)}" + (f"/{act}" if act else "")


def _spec_body(spec: ScheduleSpec) -> dict[str, Any]:
    """Its variables are JSON text by now."""
    rest: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(spec, variables=None))
    return rest | given(variables=spec.variables)


def _put_schedule(operation: PutSchedule) -> Exchange:
    return Exchange("PUT", _schedule(operation.id), _read_schedule, _spec_body(operation.spec))


def _get_schedule(operation: GetSchedule) -> Exchange:
    return Exchange("GET", _schedule(operation.id), _read_schedule)


def _list_schedules(operation: ListSchedules) -> Exchange:
    query = {"cursor": operation.cursor, "limit": operation.limit}
    return Exchange("GET", "/v1/schedules", _read_schedules, query=query)


def _delete_schedule(operation: DeleteSchedule) -> Exchange:
    return Exchange("DELETE", _schedule(operation.id), nothing)


def _pause_schedule(operation: PauseSchedule) -> Exchange:
    return Exchange("POST", _schedule(operation.id, "pause"), _read_schedule, given(note=operation.note))


def _resume_schedule(operation: ResumeSchedule) -> Exchange:
    return Exchange("POST", _schedule(operation.id, "resume"), _read_schedule)


def _trigger_schedule(operation: TriggerSchedule) -> Exchange:
    return Exchange("POST", _schedule(operation.id, "trigger"), _read_schedule_run, given(overlap=operation.overlap))


def _backfill_schedule(operation: BackfillSchedule) -> Exchange:
    body = {"from": operation.since, "to": operation.until} | given(overlap=operation.overlap)
    return Exchange("POST", _schedule(operation.id, "backfill"), _read_schedule, body)


def _preview_schedule(operation: PreviewSchedule) -> Exchange:
    query = {"id": operation.id or None, "count": operation.count}
    return Exchange("POST", "/v1/schedules/preview", _read_times, _spec_body(operation.spec), query)


SCHEDULE_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    PutSchedule: _put_schedule,
    GetSchedule: _get_schedule,
    ListSchedules: _list_schedules,
    DeleteSchedule: _delete_schedule,
    PauseSchedule: _pause_schedule,
    ResumeSchedule: _resume_schedule,
    TriggerSchedule: _trigger_schedule,
    BackfillSchedule: _backfill_schedule,
    PreviewSchedule: _preview_schedule,
}
