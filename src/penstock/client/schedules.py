"""The client's calls about schedules: what is started by the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from penstock.client.caller import Caller, every_item
from penstock.client.encoding import optional_object
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


class ScheduleCalls(Caller):
    """Make schedules, look at them, act on them."""

    async def put_schedule(self, schedule_id: str, spec: ScheduleSpec) -> Schedule:
        """Make a schedule, or change it from now on. Idempotent.

        Raises:
            BadRequest: names the field and the reason.
            Conflict: engines live that are too old for schedules.
        """
        return await self.call(PutSchedule(id=schedule_id, spec=_encoded(spec)))

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """A schedule with its next 10 times and its last 20 runs. Raises ``NotFound``."""
        return await self.call(GetSchedule(id=schedule_id))

    async def list_schedules(self, *, cursor: str | None = None, limit: int | None = None) -> Page[Schedule]:
        """Schedules by id, without their runs; go on with ``cursor=page.next`` until that is None."""
        return await self.call(ListSchedules(cursor=cursor, limit=limit))

    def iterate_schedules(self) -> AsyncIterator[Schedule]:
        """Read all schedules by id, as you go."""
        return every_item(lambda cursor: self.list_schedules(cursor=cursor))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule; what it started goes on. Raises ``NotFound``."""
        await self.call(DeleteSchedule(id=schedule_id))

    async def pause_schedule(self, schedule_id: str, note: str | None = None) -> Schedule:
        """Start nothing until it is resumed. Raises ``NotFound``."""
        return await self.call(PauseSchedule(id=schedule_id, note=note))

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        """Go on from now: what passed meanwhile is not caught up. Raises ``NotFound``."""
        return await self.call(ResumeSchedule(id=schedule_id))

    async def trigger_schedule(self, schedule_id: str, *, overlap: str | None = None) -> ScheduleRun:
        """Start a run now, and say what became of it: while the last one is open ``overlap`` may skip or buffer it.

        Raises:
            NotFound: no such schedule.
        """
        return await self.call(TriggerSchedule(id=schedule_id, overlap=overlap))

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
        return await self.call(BackfillSchedule(id=schedule_id, since=begin, until=end, overlap=overlap))

    async def preview_schedule(
        self, spec: ScheduleSpec, *, schedule_id: str = "", count: int = 10
    ) -> list[ScheduleTime]:
        """The next times of what would be put; nothing is stored. Raises ``BadRequest``."""
        return await self.call(PreviewSchedule(id=schedule_id, spec=_encoded(spec), count=count))


def _encoded(spec: ScheduleSpec) -> ScheduleSpec:
    return msgspec.structs.replace(spec, variables=optional_object(spec.variables))
