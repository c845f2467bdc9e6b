"""Rows of the table of routes for schedules. The table is `operations`; this is a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.access.roles import Permission
from penstock.engine.schedules.schedules import SchedulePreview
from penstock.rest.operation import INTEGER, SLICE, Kind, Parameter, RestOperation, struct
from penstock.rest.schedules import BackfillBody, PauseBody, ScheduleRoutes, TriggerBody
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec, ScheduleTime

KINDS_OF_SCHEDULES: Final[Sequence[Kind]] = (
    ScheduleSpec, Schedule, Page[Schedule], ScheduleRun, ScheduleTime, SchedulePreview, PauseBody, TriggerBody,
    BackfillBody,
)  # fmt: skip
OF_SCHEDULES: Final[Sequence[RestOperation]] = (
    RestOperation(
        "PUT", "/v1/schedules/{id}", ScheduleRoutes.put, Permission.OPERATE,
        "putSchedule", "schedules", "Make a schedule, or change it from now on (addition)",
        "Idempotent. Where the times are the same as before, none is lost. `paused` left out: as it is.",
        body=struct(ScheduleSpec), answer=struct(Schedule), errors=(400, 409, 413, 422),
    ),
    RestOperation(
        "GET", "/v1/schedules", ScheduleRoutes.list, Permission.VIEW,
        "listSchedules", "schedules", "List schedules by id (addition)",
        "Each with its next time and its last run.",
        parameters=SLICE, answer=struct(Page[Schedule]), errors=(400,),
    ),
    RestOperation(
        "GET", "/v1/schedules/{id}", ScheduleRoutes.get, Permission.VIEW,
        "getSchedule", "schedules", "Read a schedule, its next 10 times and its last 20 runs (addition)",
        answer=struct(Schedule), errors=(404,),
    ),
    RestOperation(
        "DELETE", "/v1/schedules/{id}", ScheduleRoutes.delete, Permission.OPERATE,
        "deleteSchedule", "schedules", "Delete a schedule (addition)", "What it started goes on.",
        status=204, errors=(404,),
    ),
    RestOperation(
        "POST", "/v1/schedules/{id}/pause", ScheduleRoutes.pause, Permission.OPERATE,
        "pauseSchedule", "schedules", "Start nothing until it is resumed (addition)", "What runs goes on.",
        body=struct(PauseBody), body_required=False, answer=struct(Schedule), errors=(400, 404),
    ),
    RestOperation(
        "POST", "/v1/schedules/{id}/resume", ScheduleRoutes.resume, Permission.OPERATE,
        "resumeSchedule", "schedules", "Go on from now (addition)", "What passed meanwhile is not caught up.",
        answer=struct(Schedule), errors=(404,),
    ),
    RestOperation(
        "POST", "/v1/schedules/{id}/trigger", ScheduleRoutes.trigger, Permission.OPERATE,
        "triggerSchedule", "schedules", "Start a run now (addition)",
        "Also of a paused one. What became of it: while the last run is open `overlap` may skip or buffer it.",
        body=struct(TriggerBody), body_required=False, answer=struct(ScheduleRun), errors=(400, 404, 503),
    ),
    RestOperation(
        "POST", "/v1/schedules/{id}/backfill", ScheduleRoutes.backfill, Permission.OPERATE,
        "backfillSchedule", "schedules", "Start the times of a span of the past (addition)",
        "In the background, up to 10,000 of them; those of its latest runs are left out.",
        body=struct(BackfillBody), status=202, answer=struct(Schedule), errors=(400, 404, 409),
    ),
    RestOperation(
        "POST", "/v1/schedules/preview", ScheduleRoutes.preview, Permission.VIEW,
        "previewSchedule", "schedules", "Tell the next times of what would be put (addition)",
        "Nothing is stored.",
        parameters=(
            Parameter("id", "query", "Of the schedule: its jitter goes by it."),
            Parameter("count", "query", "1 to 100, clamped; by default 10.", INTEGER),
        ),
        body=struct(ScheduleSpec), answer=struct(SchedulePreview), errors=(400,),
    ),
)  # fmt: skip
