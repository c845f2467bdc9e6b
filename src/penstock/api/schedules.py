"""The operations on schedules: what is started by the clock."""

from __future__ import annotations

from typing import Final

from penstock.api.operation import SLICE, Body, DeclaredOperation, Grpc, Repeat, Rest, items_in, nothing_in
from penstock.api.permission import Permission
from penstock.wire import schedules_v1 as w
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, SchedulePreview, ScheduleRun

_PATH: Final = "/v1/schedules/{id}"
_SERVICE: Final = "/penstock.v1.Schedules/"
_SPEC: Final = Body(field="spec", noun="a schedule")

PUT_SCHEDULE: Final = DeclaredOperation(
    name="putSchedule",
    summary="Create or change a schedule (addition)",
    description=(
        "You may repeat it. If the times are the same as before, none is lost. If you leave `paused` out it stays"
        " as it is. The answer has a `hint` where the schedule may surprise you: `catchUp` `ALL` together with an"
        " `overlap` that skips, or a definition that does not exist yet. 409: engines live that are too old for "
        "schedules."
    ),
    tag="schedules",
    request=w.PutScheduleRequest,
    answer=Schedule,
    needs=Permission.OPERATE,
    rest=Rest("PUT", _PATH, body=_SPEC),
    grpc=Grpc(_SERVICE + "PutSchedule"),
    errors=(400, 409, 413, 422),
)
LIST_SCHEDULES: Final = DeclaredOperation(
    name="listSchedules",
    summary="List schedules by id (addition)",
    description="Each with its next time and its last run.",
    tag="schedules",
    request=w.ListSchedulesRequest,
    answer=Page[Schedule],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/schedules", SLICE),
    grpc=items_in(_SERVICE + "ListSchedules", w.ListSchedulesResponse, "schedules"),
    errors=(400,),
)
GET_SCHEDULE: Final = DeclaredOperation(
    name="getSchedule",
    summary="Read a schedule, its next 10 times and its last 20 runs (addition)",
    tag="schedules",
    request=w.GetScheduleRequest,
    answer=Schedule,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH),
    grpc=Grpc(_SERVICE + "GetSchedule"),
    errors=(404,),
)
DELETE_SCHEDULE: Final = DeclaredOperation(
    name="deleteSchedule",
    summary="Delete a schedule (addition)",
    description="Instances that it started go on.",
    tag="schedules",
    request=w.DeleteScheduleRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("DELETE", _PATH, status=204),
    grpc=nothing_in(_SERVICE + "DeleteSchedule", w.DeleteScheduleResponse),
    errors=(404,),
    repeat=Repeat.UNTIL_GONE,
)
PAUSE_SCHEDULE: Final = DeclaredOperation(
    name="pauseSchedule",
    summary="Pause a schedule (addition)",
    description="Nothing is started until it is resumed. Running instances go on.",
    tag="schedules",
    request=w.PauseScheduleRequest,
    answer=Schedule,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _PATH + "/pause",
        body=Body(name="PauseBody", text="``note``: why, shown with the schedule.", required=False),
    ),
    grpc=Grpc(_SERVICE + "PauseSchedule"),
    errors=(400, 404),
)
RESUME_SCHEDULE: Final = DeclaredOperation(
    name="resumeSchedule",
    summary="Resume a schedule (addition)",
    description="It goes on from now. Times that passed meanwhile are not caught up.",
    tag="schedules",
    request=w.ResumeScheduleRequest,
    answer=Schedule,
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/resume"),
    grpc=Grpc(_SERVICE + "ResumeSchedule"),
    errors=(404,),
)
TRIGGER_SCHEDULE: Final = DeclaredOperation(
    name="triggerSchedule",
    summary="Start a run now (addition)",
    description=(
        "Also of a paused schedule. `outcome` says what happened: while the last run is open `overlap` may skip "
        "or buffer the new one. 503: another transaction locks the schedule for long."
    ),
    tag="schedules",
    request=w.TriggerScheduleRequest,
    answer=ScheduleRun,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _PATH + "/trigger",
        body=Body(name="TriggerBody", text="``overlap``: in place of the schedule's own.", required=False),
    ),
    grpc=Grpc(_SERVICE + "TriggerSchedule"),
    errors=(400, 404, 503),
    repeat=Repeat.IF_NOT_APPLIED,
)
BACKFILL_SCHEDULE: Final = DeclaredOperation(
    name="backfillSchedule",
    summary="Start the times of a past period (addition)",
    description=(
        "In the background, up to 10,000 of them, all at once or (`BUFFER_ALL`) one after the other. Times of its"
        " latest runs are left out. `hint` of the answer says how many there are. 409: another backfill is "
        "running."
    ),
    tag="schedules",
    request=w.BackfillScheduleRequest,
    answer=Schedule,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _PATH + "/backfill",
        body=Body(
            name="BackfillBody",
            text="A span of the past, both ends counted. ``overlap``: ALLOW (the default), or BUFFER_ALL: one after the"
            " other.",
        ),
        status=202,
        names={"from_time": "from", "to_time": "to"},
    ),
    grpc=Grpc(_SERVICE + "BackfillSchedule"),
    errors=(400, 404, 409),
    required=("from_time", "to_time"),
    repeat=Repeat.IF_NOT_APPLIED,
)
PREVIEW_SCHEDULE: Final = DeclaredOperation(
    name="previewSchedule",
    summary="Compute the next times of a schedule (addition)",
    description=(
        "Nothing is stored. The jitter follows from `id`. If `startAt` is yet to come, the times begin there."
    ),
    tag="schedules",
    request=w.PreviewScheduleRequest,
    answer=SchedulePreview,
    needs=Permission.VIEW,
    rest=Rest(
        "POST",
        "/v1/schedules/preview",
        {"id": "Of the schedule: its jitter goes by it.", "count": "1 to 100, clamped; by default 10."},
        _SPEC,
    ),
    grpc=Grpc(_SERVICE + "PreviewSchedule"),
    errors=(400,),
)
