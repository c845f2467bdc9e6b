"""``penstock.v1.Schedules`` on a real engine: each call, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from grpclib.const import Status

from penstock.rpc.rows import without_empty
from penstock.testing.definitions import linear
from penstock.wire import schedules_v1 as w
from penstock.wire.schedule import Schedule, SchedulePreview, ScheduleRun, ScheduleSpec
from tests.engine.conftest import MakeDriver, make_driver
from tests.rpc.served import CallFailed, served

__all__ = ["make_driver"]  # pytest finds the fixture here

SERVICE = "/penstock.v1.Schedules/"


async def test_each_call_does_what_rest_does(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1))
    spec = ScheduleSpec("linear", cron=["0 2 * * *"], time_zone="Europe/Berlin", variables=b'{"a":1}', note="n")
    async with served(driver.engine) as run:
        made = await run.call(SERVICE + "PutSchedule", w.PutScheduleRequest("nightly", spec), Schedule)
        assert (made.id, made.cron, made.overlap, made.note) == ("nightly", ["0 2 * * *"], "SKIP", "n")
        assert len(made.next_times) == 10
        paused = await run.call(SERVICE + "PauseSchedule", w.PauseScheduleRequest("nightly", "why"), Schedule)
        assert (paused.paused, paused.pause_note) == (True, "why")
        resumed = await run.call(SERVICE + "ResumeSchedule", w.ResumeScheduleRequest("nightly"), Schedule)
        assert not resumed.paused
        begun = await run.call(SERVICE + "TriggerSchedule", w.TriggerScheduleRequest("nightly"), ScheduleRun)
        assert (begun.outcome, bool(begun.instance_id)) == ("STARTED", True)
        seen = await run.call(SERVICE + "GetSchedule", w.GetScheduleRequest("nightly"), Schedule)
        assert [each.instance_id for each in seen.runs] == [begun.instance_id]
        backfill = w.BackfillScheduleRequest("nightly", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z", "BUFFER_ALL")
        asked = await run.call(SERVICE + "BackfillSchedule", backfill, Schedule)
        assert asked.backfill_until == "2026-01-03T00:00:00Z"
        preview = w.PreviewScheduleRequest("nightly", spec, 3)
        times = (await run.call(SERVICE + "PreviewSchedule", preview, SchedulePreview)).times
        assert [time.at for time in times] == [time.fires_at for time in times]
        assert len(times) == 3
        listed = await run.call(SERVICE + "ListSchedules", w.ListSchedulesRequest(), w.ListSchedulesResponse)
        assert [each.id for each in listed.schedules] == ["nightly"]
        await run.call(SERVICE + "DeleteSchedule", w.DeleteScheduleRequest("nightly"), w.DeleteScheduleResponse)
        with pytest.raises(CallFailed) as gone:
            await run.call(SERVICE + "GetSchedule", w.GetScheduleRequest("nightly"), Schedule)
        assert gone.value.status is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (w.PutScheduleRequest("", ScheduleSpec("linear", every="PT1H")), "id: is required"),
        (w.PutScheduleRequest("n"), "spec: is required"),
        (w.PutScheduleRequest("n", ScheduleSpec("linear")), "cron: one of cron and every has to be given, not both"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    make_driver: MakeDriver, request_: w.PutScheduleRequest, says: str
) -> None:
    driver = make_driver()
    async with served(driver.engine) as run:
        with pytest.raises(CallFailed) as refused:
            await run.call(SERVICE + "PutSchedule", request_, Schedule)
    assert (refused.value.status, refused.value.reason) == (Status.INVALID_ARGUMENT, says)


NO_TEXT = {"definition_id", "definition_version", "cron", "pause_on_failure", "paused", "priority"}


def test_a_spec_loses_no_field_but_empty_ones() -> None:
    texts = set(ScheduleSpec.__struct_fields__) - NO_TEXT
    whole: dict[str, Any] = {"definition_version": 2, "cron": ["@daily"], "pause_on_failure": True, "paused": False}
    whole |= {"priority": 0, **dict.fromkeys(texts, "text")}
    assert without_empty(ScheduleSpec("x", **whole), "penstock.v1") == ScheduleSpec("x", **whole)
    empty: dict[str, Any] = {**dict.fromkeys(texts, ""), "variables": msgspec.Raw(b"")}
    assert without_empty(ScheduleSpec("x", **empty), "penstock.v1") == ScheduleSpec("x")
