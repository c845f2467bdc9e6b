"""The gRPC calls about schedules: ``penstock.v1.Schedules``. Pure, as `exchange.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.grpc.unary import UnaryExchange
from penstock.client.grpc.values import int32
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
from penstock.wire import schedules_v1 as w
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec, ScheduleTime

_SERVICE = "/penstock.v1.Schedules/"


def _as_it_is(answer: Any) -> Any:
    return answer


def _nothing(_answer: object) -> None:
    return None


def _spec(spec: ScheduleSpec) -> ScheduleSpec:
    """Its variables are JSON text by now."""
    int32(spec.definition_version, "definition_version")
    return spec


def _put(operation: PutSchedule) -> UnaryExchange:
    request = w.PutScheduleRequest(operation.id, _spec(operation.spec))
    return UnaryExchange(f"{_SERVICE}PutSchedule", request, Schedule, _as_it_is)


def _get(operation: GetSchedule) -> UnaryExchange:
    return UnaryExchange(f"{_SERVICE}GetSchedule", w.GetScheduleRequest(operation.id), Schedule, _as_it_is)


def _list(operation: ListSchedules) -> UnaryExchange:
    def read(answer: w.ListSchedulesResponse) -> Page[Schedule]:
        return Page(items=answer.schedules, next=answer.next or None)

    request = w.ListSchedulesRequest(operation.cursor or "", int32(operation.limit, "limit"))
    return UnaryExchange(f"{_SERVICE}ListSchedules", request, w.ListSchedulesResponse, read)


def _delete(operation: DeleteSchedule) -> UnaryExchange:
    request = w.DeleteScheduleRequest(operation.id)
    return UnaryExchange(f"{_SERVICE}DeleteSchedule", request, w.DeleteScheduleResponse, _nothing)


def _pause(operation: PauseSchedule) -> UnaryExchange:
    request = w.PauseScheduleRequest(operation.id, operation.note or "")
    return UnaryExchange(f"{_SERVICE}PauseSchedule", request, Schedule, _as_it_is)


def _resume(operation: ResumeSchedule) -> UnaryExchange:
    return UnaryExchange(f"{_SERVICE}ResumeSchedule", w.ResumeScheduleRequest(operation.id), Schedule, _as_it_is)


def _trigger(operation: TriggerSchedule) -> UnaryExchange:
    request = w.TriggerScheduleRequest(operation.id, operation.overlap or "")
    return UnaryExchange(f"{_SERVICE}TriggerSchedule", request, ScheduleRun, _as_it_is)


def _backfill(operation: BackfillSchedule) -> UnaryExchange:
    request = w.BackfillScheduleRequest(operation.id, operation.since, operation.until, operation.overlap or "")
    return UnaryExchange(f"{_SERVICE}BackfillSchedule", request, Schedule, _as_it_is)


def _preview(operation: PreviewSchedule) -> UnaryExchange:
    def read(answer: w.PreviewScheduleResponse) -> list[ScheduleTime]:
        return answer.times

    request = w.PreviewScheduleRequest(operation.id, _spec(operation.spec), int32(operation.count, "count"))
    return UnaryExchange(f"{_SERVICE}PreviewSchedule", request, w.PreviewScheduleResponse, read)


SCHEDULE_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], UnaryExchange]] = {
    PutSchedule: _put,
    GetSchedule: _get,
    ListSchedules: _list,
    DeleteSchedule: _delete,
    PauseSchedule: _pause,
    ResumeSchedule: _resume,
    TriggerSchedule: _trigger,
    BackfillSchedule: _backfill,
    PreviewSchedule: _preview,
}
