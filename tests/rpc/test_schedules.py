"""``penstock.v1.Schedules`` on a real engine: each call, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from grpclib.const import Status

from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.schedules.declared import InCode
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


async def test_what_code_has_is_listed_and_put_again(make_driver: MakeDriver) -> None:
    driver = make_driver()
    for name in ("remind", "report"):
        workflow = CodeWorkflow(name, 2, "shop")
        await driver.engine.code.register(workflow, anew=True)
        spec = ScheduleSpec(cron=["0 8 * * mon"])
        await driver.engine.declarations.register(workflow, InCode(msgspec.json.encode(spec), "", b""))
    other = ScheduleSpec("shop:remind", cron=["0 9 * * mon"])
    await driver.engine.schedules.put("shop:remind", other)
    async with served(driver.engine) as run:
        asked = w.ListDeclarationsRequest(limit=1)
        first = await run.call(SERVICE + "ListDeclarations", asked, w.ListDeclarationsResponse)
        asked = w.ListDeclarationsRequest(first.next, 1)
        second = await run.call(SERVICE + "ListDeclarations", asked, w.ListDeclarationsResponse)
        found = first.declarations + second.declarations
        assert [(each.kind, each.id, each.state, each.workflow, each.version) for each in found] == [
            ("schedule", "shop:remind", "CHANGED", "shop:remind", 2),
            ("schedule", "shop:report", "AS_IN_CODE", "shop:report", 2),
        ]
        assert second.next == ""
        assert found[0].seen_at is not None
        assert msgspec.json.decode(found[0].body)["cron"] == ["0 8 * * mon"]
        apply = w.ApplyDeclarationRequest("schedule", "shop:remind")
        put = await run.call(SERVICE + "ApplyDeclaration", apply, w.CodeDeclaration)
        assert put.state == "AS_IN_CODE"
        await driver.engine.declarations.register(CodeWorkflow("remind", 3, "shop"), InCode())
        with pytest.raises(CallFailed) as gone:
            await run.call(SERVICE + "ApplyDeclaration", apply, w.CodeDeclaration)
        assert gone.value.status is Status.FAILED_PRECONDITION
        for kind, says in (("timer", "kind: must be schedule or queue"), ("", "kind: is required")):
            with pytest.raises(CallFailed) as refused:
                await run.call(SERVICE + "ApplyDeclaration", w.ApplyDeclarationRequest(kind, "n"), w.CodeDeclaration)
            assert (refused.value.status, refused.value.reason) == (Status.INVALID_ARGUMENT, says)
        listed = await run.call(SERVICE + "ListDeclarations", w.ListDeclarationsRequest(), w.ListDeclarationsResponse)
        assert [(each.state, each.body == b"") for each in listed.declarations] == [
            ("NOT_IN_CODE", True), ("AS_IN_CODE", False),
        ]  # fmt: skip


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
