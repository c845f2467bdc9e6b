"""``penstock.v1.Schedules``: what is started by the clock. The operations are those of REST."""

from __future__ import annotations

from typing import Final

import msgspec
from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.errors import BadRequest
from penstock.rpc.methods import unary
from penstock.rpc.reading import given, required
from penstock.wire import schedules_v1 as w
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec

LIST_DEFAULT: Final = 50
PREVIEW_DEFAULT: Final = 10
_PREFIX: Final = "/penstock.v1.Schedules/"


class Schedules:
    """Put, get, list, delete; pause, resume, trigger, backfill; preview."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "PutSchedule": unary(self.put, w.PutScheduleRequest, Schedule),
            "GetSchedule": unary(self.get, w.GetScheduleRequest, Schedule),
            "ListSchedules": unary(self.list, w.ListSchedulesRequest, w.ListSchedulesResponse),
            "DeleteSchedule": unary(self.delete, w.DeleteScheduleRequest, w.DeleteScheduleResponse),
            "PauseSchedule": unary(self.pause, w.PauseScheduleRequest, Schedule),
            "ResumeSchedule": unary(self.resume, w.ResumeScheduleRequest, Schedule),
            "TriggerSchedule": unary(self.trigger, w.TriggerScheduleRequest, ScheduleRun),
            "BackfillSchedule": unary(self.backfill, w.BackfillScheduleRequest, Schedule),
            "PreviewSchedule": unary(self.preview, w.PreviewScheduleRequest, w.PreviewScheduleResponse),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    async def put(self, request: w.PutScheduleRequest, _call: object) -> Schedule:
        """As it stands then."""
        return await self._engine.schedules.put(required(request.id, "id"), _spec(request.spec))

    async def get(self, request: w.GetScheduleRequest, _call: object) -> Schedule:
        """With its next times and its last runs."""
        return await self._engine.schedules.get(required(request.id, "id"))

    async def list(self, request: w.ListSchedulesRequest, _call: object) -> w.ListSchedulesResponse:
        """By id."""
        cursor = given(request.cursor, "cursor")
        found = await self._engine.schedules.list(cursor, request.limit or LIST_DEFAULT)
        return w.ListSchedulesResponse(list(found.items), next=found.next or "")

    async def delete(self, request: w.DeleteScheduleRequest, _call: object) -> w.DeleteScheduleResponse:
        """What it started goes on."""
        await self._engine.schedules.delete(required(request.id, "id"))
        return w.DeleteScheduleResponse()

    async def pause(self, request: w.PauseScheduleRequest, _call: object) -> Schedule:
        """What runs goes on."""
        return await self._engine.schedules.pause(required(request.id, "id"), request.note or None)

    async def resume(self, request: w.ResumeScheduleRequest, _call: object) -> Schedule:
        """From now on."""
        return await self._engine.schedules.resume(required(request.id, "id"))

    async def trigger(self, request: w.TriggerScheduleRequest, _call: object) -> ScheduleRun:
        """What became of it."""
        return await self._engine.schedules.trigger(required(request.id, "id"), request.overlap or None)

    async def backfill(self, request: w.BackfillScheduleRequest, _call: object) -> Schedule:
        """It goes on in the background."""
        begin, end = required(request.from_time, "from_time"), required(request.to_time, "to_time")
        return await self._engine.schedules.backfill(required(request.id, "id"), begin, end, request.overlap or None)

    async def preview(self, request: w.PreviewScheduleRequest, _call: object) -> w.PreviewScheduleResponse:
        """Nothing is stored."""
        found = await self._engine.schedules.preview(request.id, _spec(request.spec), request.count or PREVIEW_DEFAULT)
        return w.PreviewScheduleResponse(found.times)


def _spec(spec: ScheduleSpec | None) -> ScheduleSpec:
    """What is empty is not given."""
    if spec is None:
        raise BadRequest("spec: is required")
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__ if name != "definition_id"}
    empty = [name for name, value in fields.items() if isinstance(value, str | bytes | msgspec.Raw) and not value]
    return msgspec.structs.replace(spec, **dict.fromkeys(empty))
