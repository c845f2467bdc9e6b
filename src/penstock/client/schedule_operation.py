"""The operations on schedules, as `operation` has the others."""

from __future__ import annotations

from penstock.client.operation import Deletion, Once, Operation
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec, ScheduleTime


class PutSchedule(Operation[Schedule], frozen=True):
    """Make a schedule, or change it."""

    id: str
    spec: ScheduleSpec


class GetSchedule(Operation[Schedule], frozen=True):
    """Read a schedule, its next times and its last runs."""

    id: str


class ListSchedules(Operation[Page[Schedule]], frozen=True):
    """List schedules by id."""

    cursor: str | None = None
    limit: int | None = None


class DeleteSchedule(Deletion, frozen=True):
    """Delete a schedule."""

    id: str


class PauseSchedule(Operation[Schedule], frozen=True):
    """Start nothing until it is resumed."""

    id: str
    note: str | None = None


class ResumeSchedule(Operation[Schedule], frozen=True):
    """Go on from now."""

    id: str


class TriggerSchedule(Once[ScheduleRun], frozen=True):
    """Start a run now. A second one starts another."""

    id: str
    overlap: str | None = None


class BackfillSchedule(Once[Schedule], frozen=True):
    """Start the times of a span of the past. A second one is a conflict while the first is under way."""

    id: str
    since: str
    until: str
    overlap: str | None = None


class PreviewSchedule(Operation[list[ScheduleTime]], frozen=True):
    """The next times of what would be put."""

    id: str
    spec: ScheduleSpec
    count: int = 10
