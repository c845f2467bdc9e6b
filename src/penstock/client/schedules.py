"""The client's calls about schedules: what is started by the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from penstock.api import schedules as api
from penstock.client.call import RowCall
from penstock.client.caller import Caller, every_item
from penstock.client.encoding import optional_object
from penstock.wire import schedules_v1 as w
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec, ScheduleTime


class ScheduleCalls(Caller):
    """Make schedules, look at them, act on them."""

    async def put_schedule(self, schedule_id: str, spec: ScheduleSpec) -> Schedule:
        """Make a schedule, or change it from now on. Idempotent.

        Raises:
            BadRequest: names the field and the reason.
            Conflict: engines live that are too old for schedules.
        """
        return await self.call(RowCall(api.PUT_SCHEDULE, w.PutScheduleRequest(schedule_id, _encoded(spec))))

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """Return a schedule with its next 10 times and its last 20 runs. Raises ``NotFound``."""
        return await self.call(RowCall(api.GET_SCHEDULE, w.GetScheduleRequest(schedule_id)))

    async def list_schedules(self, *, cursor: str | None = None, limit: int | None = None) -> Page[Schedule]:
        """List schedules by id, without their runs; go on with ``cursor=page.next`` until that is None."""
        return await self.call(RowCall(api.LIST_SCHEDULES, w.ListSchedulesRequest(cursor, limit)))

    def iterate_schedules(self) -> AsyncIterator[Schedule]:
        """Read all schedules by id, as you go."""
        return every_item(lambda cursor: self.list_schedules(cursor=cursor))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; what it started goes on. Raises ``NotFound``."""
        await self.call(RowCall(api.DELETE_SCHEDULE, w.DeleteScheduleRequest(schedule_id)))

    async def pause_schedule(self, schedule_id: str, note: str | None = None) -> Schedule:
        """Pause a schedule: it starts nothing until it is resumed. Raises ``NotFound``."""
        return await self.call(RowCall(api.PAUSE_SCHEDULE, w.PauseScheduleRequest(schedule_id, note)))

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Resume a schedule from now on: what passed meanwhile is not caught up. Raises ``NotFound``."""
        return await self.call(RowCall(api.RESUME_SCHEDULE, w.ResumeScheduleRequest(schedule_id)))

    async def trigger_schedule(self, schedule_id: str, *, overlap: str | None = None) -> ScheduleRun:
        """Start a run now, and say what became of it: while the last one is open ``overlap`` may skip or buffer it.

        Raises:
            NotFound: no such schedule.
        """
        return await self.call(RowCall(api.TRIGGER_SCHEDULE, w.TriggerScheduleRequest(schedule_id, overlap)))

    async def backfill_schedule(
        self, schedule_id: str, since: datetime, until: datetime, *, overlap: str | None = None
    ) -> Schedule:
        """Start the times of a span of the past, both ends counted: all at once, or with ``BUFFER_ALL`` one after the
        other. Goes on in the background.

        Raises:
            BadRequest: the span is not past, or has no time or too many.
            Conflict: another backfill is under way.
        """
        begin, end = (at.astimezone(UTC).isoformat() for at in (since, until))
        return await self.call(
            RowCall(api.BACKFILL_SCHEDULE, w.BackfillScheduleRequest(schedule_id, begin, end, overlap))
        )

    async def preview_schedule(
        self, spec: ScheduleSpec, *, schedule_id: str = "", count: int = 10
    ) -> list[ScheduleTime]:
        """Compute the next times of a schedule; nothing is stored. Raises ``BadRequest``."""
        request = w.PreviewScheduleRequest(schedule_id, _encoded(spec), count)
        return (await self.call(RowCall(api.PREVIEW_SCHEDULE, request))).times


def _encoded(spec: ScheduleSpec) -> ScheduleSpec:
    return msgspec.structs.replace(spec, variables=optional_object(spec.variables))
