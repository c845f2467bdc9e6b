"""Schedules on a real database: fired exactly once, whoever looks, and whatever happens meanwhile."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio

from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.settings.secret import Secret
from penstock.testing.definitions import definition, end, linear
from penstock.wire.schedule import Schedule, ScheduleSpec
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.engine.test_encryption import KEYS
from tests.shapes import assign, task
from tests.waiting import wait_until

LINE = linear(1, definition_id="report")
HOUR_S = 3_600.0
DUE = "SELECT FROM timer WHERE fire_at <= penstock_now()"
ORPHANS = "SELECT count(*) FROM schedule_run r LEFT JOIN schedule s ON s.id = r.schedule WHERE s.id IS NULL"


def spec(**fields: Any) -> ScheduleSpec:
    given: dict[str, Any] = {"definition_id": "report", "every": "PT1H", **fields}
    return ScheduleSpec(**given)


async def begun(driver: Driver, **fields: Any) -> Schedule:
    """A schedule `nightly` every full hour, at a time that is 30 minutes past; the clock stands still."""
    now = driver.clock.now()
    driver.clock.advance((30 - now.minute) * 60 - now.second - now.microsecond / 1e6)
    driver.clock.stop()
    await driver.upload(LINE)
    made = await driver.engine.schedules.put("nightly", spec(**fields))
    await settle(driver)
    return made


async def settle(driver: Driver) -> None:
    """Until nothing is due any more, neither timers nor schedules."""
    with trio.fail_after(60):
        while await driver.engine.schedules.fire_once() or driver.rows(
            "SELECT FROM timer WHERE fire_at <= penstock_now()"
        ):
            await driver.due()


async def later(driver: Driver, seconds: float) -> None:
    driver.clock.advance(seconds)
    await settle(driver)


async def outcomes(driver: Driver) -> list[str]:
    """What became of its times, the first first."""
    shown = await driver.engine.schedules.get("nightly")
    return [run.outcome for run in reversed(shown.runs)]


def started(driver: Driver) -> list[datetime]:
    return [at for (at,) in driver.rows("SELECT at FROM scheduled ORDER BY at")]


def last_full_hour(driver: Driver) -> datetime:
    return driver.clock.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0)


async def test_a_due_time_starts_one_instance_that_knows_it(driver: Driver) -> None:
    made = await begun(driver, variables=b'{"kind":"daily"}', business_key="B7")
    hour = last_full_hour(driver) + timedelta(hours=1)
    assert datetime.fromisoformat(made.next_times[0]) == hour
    assert started(driver) == []
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    about = {"id": "nightly", "at": hour.isoformat().replace("+00:00", "Z")}
    assert variables_of(job) == {"kind": "daily", "schedule": about}
    view = await driver.view(job.instance_id)
    assert (view.schedule_id, view.scheduled_at, view.business_key) == ("nightly", hour, "B7")
    shown = await driver.engine.schedules.get("nightly")
    assert [(run.at, run.outcome, run.instance_id) for run in shown.runs] == [(hour, "STARTED", job.instance_id)]
    assert shown.last_instance_id == job.instance_id
    assert datetime.fromisoformat(shown.next_times[0]) == hour + timedelta(hours=1)
    audit = await driver.engine.instances.audit(job.instance_id)
    assert audit.items[0].actor == "schedule:nightly"


async def test_jobs_have_the_schedules_priority_and_flow_key(driver: Driver) -> None:
    made = await begun(driver, priority=2, flow_key="reports")
    assert (made.priority, made.flow_key) == (2, "reports")
    await later(driver, HOUR_S)
    assert driver.rows("SELECT priority, flow_key FROM ready_flow") == [(2, "reports")]
    assert driver.rows("SELECT name FROM job_type WHERE keyed") == [("work",)]
    await driver.complete(await driver.one("work"))
    times = made.next_times
    assert (await driver.engine.schedules.put("nightly", spec(priority=3))).next_times[0] == times[1], "no time of it"
    with pytest.raises(BadRequest, match="priority"):
        await driver.engine.schedules.put("nightly", spec(priority=10))


async def test_next_times_are_reckoned_anew_at_a_start(make_driver: MakeDriver) -> None:
    """As what is known of a time zone may be another than when they were written, or newer."""
    driver = make_driver()
    await begun(driver, overlap="ALLOW")
    hour = last_full_hour(driver) + timedelta(hours=1)
    reported = driver.rows("UPDATE schedule SET fire_at = fire_at + interval '1 h' RETURNING fire_at")
    assert reported == [(hour + timedelta(hours=1),)], "an hour late, by what was known before"
    await settle(driver)
    assert driver.rows("SELECT fire_at FROM schedule") == reported, "who has looked does not look again"
    after = make_driver()
    await settle(after)
    assert driver.rows("SELECT fire_at FROM schedule") == [(hour,)]
    assert started(driver) == []
    await later(after, HOUR_S)
    assert started(driver) == [hour]


async def test_variables_that_are_called_schedule_stay_as_they_are(driver: Driver) -> None:
    await begun(driver, variables=b'{"schedule":1}')
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    assert variables_of(job) == {"schedule": 1}


@pytest.mark.parametrize(("catch_up", "count"), [("LAST", 1), ("ALL", 3), ("NONE", 0)])
async def test_an_engine_that_slept_over_three_times_catches_up(
    make_driver: MakeDriver, catch_up: str, count: int
) -> None:
    driver = make_driver()
    await begun(driver, overlap="ALLOW", catch_up=catch_up)
    hour = last_full_hour(driver)
    driver.clock.advance(3 * HOUR_S)
    after = make_driver()  # the other one sleeps
    await settle(after)
    expected = [hour + timedelta(hours=n) for n in (1, 2, 3)]
    assert started(after) == expected[3 - count :]
    shown = await after.engine.schedules.get("nightly")
    assert [run.outcome for run in reversed(shown.runs)] == ["MISSED"] * (3 - count) + ["STARTED"] * count
    assert shown.missed == 3 - count
    await later(after, HOUR_S / 2)
    assert len(started(after)) == count + 1, "on time"


async def test_two_engines_fire_each_time_once(make_driver: MakeDriver) -> None:
    one, two = make_driver(), make_driver()
    await begun(one)
    for number in range(20):
        await one.engine.schedules.put(f"other-{number}", spec(overlap="ALLOW"))
    await settle(one)
    for _ in range(5):
        one.clock.advance(HOUR_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle, one)
            nursery.start_soon(settle, two)
    times = one.rows("SELECT schedule, count(*), count(DISTINCT at) FROM scheduled GROUP BY 1 ORDER BY 1")
    assert times == [("nightly", 1, 1), *((f"other-{n}", 5, 5) for n in sorted(range(20), key=str))]


async def test_a_clock_that_is_set_back_fires_nothing_twice(driver: Driver) -> None:
    await begun(driver, overlap="ALLOW")
    await later(driver, HOUR_S)
    await later(driver, -3 * HOUR_S)
    await driver.engine.schedules.put("nightly", spec(overlap="ALLOW", cron=["30 * * * *"], every=None))
    for _ in range(3):
        await later(driver, HOUR_S / 2)
    assert len(started(driver)) == 1
    await later(driver, 3 * HOUR_S)
    assert len(started(driver)) == 2


async def test_times_wait_for_the_end_of_an_open_run(driver: Driver) -> None:
    await begun(driver, overlap="BUFFER_ALL")
    for _ in range(3):
        await later(driver, HOUR_S)
    assert await outcomes(driver) == ["STARTED", "BUFFERED", "BUFFERED"]
    for left in (2, 1, 0):
        assert (await driver.engine.schedules.get("nightly")).buffered == left
        [job] = await driver.poll("work")
        await driver.complete(job)
        await settle(driver)
    assert await outcomes(driver) == ["STARTED", "STARTED", "STARTED"]
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]


async def test_an_end_wakes_the_schedule_before_its_next_look(driver: Driver) -> None:
    await begun(driver, overlap="BUFFER_ONE")
    await later(driver, HOUR_S)
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    await driver.complete(job)
    assert driver.rows("SELECT index::int FROM timer") == [(-12,)]
    [(before,)] = driver.rows("SELECT fire_at > penstock_now() FROM schedule")
    assert before, "it would have been looked at anyway"
    await driver.due()
    assert driver.rows("SELECT fire_at <= penstock_now() FROM schedule") == [(True,)]
    await settle(driver)
    assert len(await driver.poll("work")) == 1


async def test_an_end_that_nobody_told_is_seen_later(driver: Driver) -> None:
    """As when an operator deleted rows."""
    await begun(driver, overlap="BUFFER_ONE")
    await later(driver, HOUR_S)
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    await driver.complete(job)
    driver.rows("DELETE FROM timer RETURNING 1")
    await later(driver, 11)
    assert len(await driver.poll("work")) == 1


async def test_runs_are_left_out_while_the_last_one_is_open(driver: Driver) -> None:
    await begun(driver)
    for _ in range(2):
        await later(driver, HOUR_S)
    assert await outcomes(driver) == ["STARTED", "SKIPPED"]
    [job] = await driver.poll("work")
    assert driver.rows("SELECT watched FROM token") == [(False,)], "nobody wants to know"
    await driver.complete(job)
    await later(driver, HOUR_S)
    assert await outcomes(driver) == ["STARTED", "SKIPPED", "STARTED"]


async def test_a_later_run_takes_the_place_of_an_open_one(driver: Driver) -> None:
    await begun(driver, overlap="CANCEL_OTHER")
    await later(driver, HOUR_S)
    [(first,)] = driver.rows("SELECT id FROM instance")
    await later(driver, HOUR_S)
    ends = driver.rows("SELECT id, status FROM instance ORDER BY id")
    assert ends[0] == (first, 3)
    assert [status for _, status in ends] == [3, 0]
    reason = driver.rows("SELECT reason FROM history WHERE instance_id = %s AND reason IS NOT NULL", first)
    audit = driver.rows("SELECT detail FROM audit WHERE instance_id = %s", first)
    assert "a later run of its schedule took its place" in str(reason + audit)


async def test_a_failed_run_pauses_its_schedule_with_the_reason(driver: Driver) -> None:
    await begun(driver, pause_on_failure=True)
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    await driver.fail(job, retryable=False)
    await settle(driver)
    shown = await driver.engine.schedules.get("nightly")
    assert (shown.paused, shown.pause_note) == (True, f"its run {job.instance_id} failed")
    await later(driver, 3 * HOUR_S)
    assert len(started(driver)) == 1
    await driver.engine.schedules.resume("nightly")
    await settle(driver)
    assert len(started(driver)) == 1, "what passed meanwhile is not caught up"
    await later(driver, HOUR_S)
    assert len(started(driver)) == 2


async def test_a_run_that_is_retried_tells_its_end_again(driver: Driver) -> None:
    await begun(driver, overlap="BUFFER_ONE", pause_on_failure=True)
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    await driver.fail(job, retryable=False)
    await settle(driver)
    await driver.engine.schedules.resume("nightly")
    await driver.retry(job.instance_id)
    await settle(driver)
    await later(driver, HOUR_S)
    assert await outcomes(driver) == ["STARTED", "BUFFERED"]
    [again] = await driver.poll("work")
    await driver.complete(again)
    await settle(driver)
    assert await outcomes(driver) == ["STARTED", "STARTED"]


async def test_what_cannot_be_started_is_recorded_with_its_reason(driver: Driver) -> None:
    await begun(driver, definition_id="gone", definition_version=3)
    await later(driver, HOUR_S)
    shown = await driver.engine.schedules.get("nightly")
    [run] = shown.runs
    assert (run.outcome, run.instance_id, run.reason) == ("FAILED", None, "definition 'gone' version 3 is unknown")
    assert not shown.paused
    await driver.engine.schedules.put("nightly", spec(definition_id="gone", pause_on_failure=True))
    await later(driver, HOUR_S)
    shown = await driver.engine.schedules.get("nightly")
    assert shown.paused
    assert shown.pause_note == "a run could not be started: definition 'gone' is unknown"


async def test_a_trigger_starts_now_and_says_what_became_of_it(driver: Driver) -> None:
    await begun(driver)
    run = await driver.engine.schedules.trigger("nightly", None)
    assert run.outcome == "STARTED"
    assert run.instance_id is not None
    assert (await driver.view(run.instance_id)).schedule_id == "nightly"
    driver.clock.advance(1)
    assert (await driver.engine.schedules.trigger("nightly", None)).outcome == "SKIPPED"
    driver.clock.advance(1)
    assert (await driver.engine.schedules.trigger("nightly", "ALLOW")).outcome == "STARTED"
    await driver.engine.schedules.pause("nightly", "holidays")
    driver.clock.advance(1)
    assert (await driver.engine.schedules.trigger("nightly", "ALLOW")).outcome == "STARTED"
    assert (await driver.engine.schedules.get("nightly")).pause_note == "holidays"


async def test_a_trigger_waits_for_who_holds_its_schedule(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await begun(driver)
    async with driver.engine.database.connection() as other:
        await other.fetch("BEGIN")
        await other.fetch("SELECT id FROM schedule FOR UPDATE")
        runs: list[Any] = []

        async def trigger() -> None:
            runs.append(await driver.engine.schedules.trigger("nightly", None))

        async def is_lock_waiting() -> bool:
            return driver.engine.firings.statistics().lock_waiting > 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trigger)
            await wait_until(is_lock_waiting)
            assert runs == []
            await other.rollback()
    assert [run.outcome for run in runs] == ["STARTED"]


async def test_a_backfill_starts_the_times_of_a_span(driver: Driver) -> None:
    await begun(driver, overlap="SKIP")
    hour = last_full_hour(driver)
    await later(driver, HOUR_S)
    span = ((hour - timedelta(hours=5)).isoformat(), hour.isoformat())
    with pytest.raises(BadRequest, match="to: must be in the past"):
        await driver.engine.schedules.backfill("nightly", span[0], (hour + timedelta(hours=9)).isoformat(), None)
    shown = await driver.engine.schedules.backfill("nightly", *span, None)
    assert shown.backfill_until is not None
    with pytest.raises(Conflict, match="a backfill of schedule 'nightly' is under way"):
        await driver.engine.schedules.backfill("nightly", *span, None)
    await settle(driver)
    assert started(driver) == [hour + timedelta(hours=n) for n in range(-5, 2)]
    assert (await driver.engine.schedules.get("nightly")).backfill_until is None
    await driver.engine.schedules.backfill("nightly", *span, None)
    await settle(driver)
    assert len(started(driver)) == 7, "those of its latest runs are left out"


async def test_a_backfill_may_go_one_after_the_other(driver: Driver) -> None:
    await begun(driver)
    hour = last_full_hour(driver)
    await driver.engine.schedules.backfill(
        "nightly", (hour - timedelta(hours=2)).isoformat(), hour.isoformat(), "BUFFER_ALL"
    )
    for count in (1, 2, 3):
        await settle(driver)
        assert len(started(driver)) == count
        [job] = await driver.poll("work")
        await driver.complete(job)
    await settle(driver)
    assert (await driver.engine.schedules.get("nightly")).backfill_until is None


async def test_a_schedule_starts_a_workflow_written_as_code(driver: Driver) -> None:
    workflow = CodeWorkflow("nightly_report")
    await driver.engine.code.register(workflow)
    await begun(driver, definition_id="nightly_report", variables=b'{"day":"monday"}', overlap="BUFFER_ONE")
    await later(driver, HOUR_S)
    [taken] = await driver.engine.code.take(driver.engine.code.holder("", 1), [workflow], 5, wait_s=20)
    arguments = msgspec.json.decode(taken.arguments)
    assert arguments["day"] == "monday"
    assert arguments["schedule"]["id"] == "nightly"


async def test_the_same_put_again_changes_nothing_and_loses_nothing(driver: Driver) -> None:
    """As an engine does with its file at each start."""
    await begun(driver)
    driver.clock.advance(HOUR_S)
    before = driver.rows("SELECT name, spec, variables, done_until, paused FROM schedule")
    await driver.engine.schedules.put("nightly", spec())
    assert driver.rows("SELECT name, spec, variables, done_until, paused FROM schedule") == before
    await settle(driver)
    assert len(started(driver)) == 1
    await driver.engine.schedules.pause("nightly", None)
    assert (await driver.engine.schedules.put("nightly", spec())).paused
    assert not (await driver.engine.schedules.put("nightly", spec(paused=False))).paused


async def test_changed_times_count_from_now_on(driver: Driver) -> None:
    await begun(driver)
    driver.clock.advance(HOUR_S)
    await driver.engine.schedules.put("nightly", spec(every="PT2H"))
    await settle(driver)
    assert started(driver) == []


async def test_schedules_are_listed_by_name_and_gone_when_deleted(driver: Driver) -> None:
    await begun(driver)
    for name in ("b", "a", "c"):
        await driver.engine.schedules.put(name, spec())
    page = await driver.engine.schedules.list(None, 2)
    assert [one.id for one in page.items] == ["a", "b"]
    rest = await driver.engine.schedules.list(page.next, 10)
    assert ([one.id for one in rest.items], rest.next) == (["c", "nightly"], None)
    assert [one.runs for one in page.items] == [[], []]
    await later(driver, HOUR_S)
    await driver.engine.schedules.trigger("b", "ALLOW")
    page = await driver.engine.schedules.list(None, 10)
    assert [[run.outcome for run in one.runs] for one in page.items] == [["STARTED"]] * 4, "the last of each"
    assert page.items[1].runs[0].instance_id == page.items[1].last_instance_id
    await driver.engine.schedules.delete("a")
    for operation in (driver.engine.schedules.get("a"), driver.engine.schedules.delete("a")):
        with pytest.raises(NotFound, match="schedule 'a' is unknown"):
            await operation
    assert driver.rows(
        "SELECT count(*) FROM schedule_run r LEFT JOIN schedule s ON s.id = r.schedule WHERE s.id IS NULL"
    ) == [(0,)]
    assert len(started(driver)) == 5, "what it started goes on"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"definition_id": ""}, "definitionId: is required"),
        ({"every": None}, "cron: one of cron and every has to be given, not both"),
        ({"overlap": "LATER"}, "overlap: must be one of SKIP, BUFFER_ONE, BUFFER_ALL, ALLOW, CANCEL_OTHER"),
        ({"catch_up": "SOME"}, "catchUp: must be one of LAST, ALL, NONE"),
        ({"catch_up_window": "long"}, "catchUpWindow: 'long' is not an ISO 8601 duration such as PT30S"),
        ({"variables": b"[]"}, "variables: "),
        ({"note": "x" * 5000}, "note: has 5000 characters, more than 4096"),
        ({"definition_version": -1}, "definitionVersion: must be 0 for the latest version, or one of its versions"),
    ],
)  # fmt: skip
async def test_a_schedule_that_makes_no_sense_is_refused(driver: Driver, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await driver.engine.schedules.put("nightly", spec(**fields))
    assert refused.value.reason.startswith(says)
    assert driver.rows("SELECT count(*) FROM schedule") == [(0,)]


async def test_a_preview_says_when_it_would_fire(driver: Driver) -> None:
    given = spec(every=None, cron=["0 2 * * *"], time_zone="Europe/Berlin", jitter="PT5M")
    shown = await driver.engine.schedules.preview("nightly", given, 3)
    assert len(shown.times) == 3
    for time in shown.times:
        assert time.at is not None
        assert time.fires_at is not None
        assert timedelta() <= time.fires_at - time.at < timedelta(minutes=5)
    assert driver.rows("SELECT count(*) FROM schedule") == [(0,)]


async def test_variables_of_a_schedule_are_encrypted_at_rest(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    await begun(driver, variables=b'{"secret":"abc"}')
    assert "abc" not in str(driver.rows("SELECT spec, variables FROM schedule"))
    shown = await driver.engine.schedules.get("nightly")
    assert msgspec.json.encode(shown.variables) == b'{"secret":"abc"}'
    await later(driver, HOUR_S)
    [job] = await driver.poll("work")
    assert variables_of(job)["secret"] == "abc"


async def test_a_schedule_that_cannot_be_read_holds_up_no_other(make_driver: MakeDriver) -> None:
    keeper = make_driver(encryption_keys=Secret(KEYS["k1"]))
    await begun(keeper, variables=b'{"secret":"abc"}')
    blind = make_driver(encryption_keys=Secret(KEYS["k2"]))
    await blind.engine.schedules.put("open", spec())
    blind.clock.advance(HOUR_S)
    await blind.engine.schedules.fire_once()
    assert [row.service for row in blind.engine.quarantine.listing()] == ["schedules"]
    assert blind.rows("SELECT schedule FROM scheduled") == [("open",)]
    await settle(keeper)
    assert len(started(keeper)) == 2


async def test_instances_whose_first_step_takes_long_are_started(make_driver: MakeDriver) -> None:
    driver = make_driver()
    steps = definition(
        assign("work", {"n": "${len(filter(1..15000, # % 2 == 0))}"}, "wait"),
        task("wait"),
        end(),
        definition_id="slow",
    )
    await driver.upload(steps)
    await begun(driver, definition_id="slow")
    await later(driver, HOUR_S)
    [job] = await driver.poll("wait")
    assert variables_of(job)["n"] == 7_500


async def test_only_the_last_hundred_runs_are_kept(driver: Driver) -> None:
    await begun(driver, every="PT1M", overlap="ALLOW", catch_up="ALL")
    await later(driver, 150 * 60)
    assert driver.rows("SELECT count(*) FROM schedule_run") == [(100,)]
    assert len(started(driver)) == 150


COPY = """
INSERT INTO schedule (name, spec, variables, definition_id, done_until, fire_at)
SELECT s.name || '-' || k, s.spec, s.variables, s.definition_id, s.done_until, s.fire_at
FROM schedule s, generate_series(2, %s) AS k RETURNING 1"""
MANY = int(os.environ.get("SCHEDULES", "300"))
"""`SCHEDULES=10000 pytest tests/engine/test_schedules.py -k many`; `penstock bench` has the time of 10,000."""


async def test_many_that_are_due_at_once_start_one_each(make_driver: MakeDriver) -> None:
    one, two = make_driver(), make_driver()
    await begun(one)
    one.rows(COPY, MANY)
    one.clock.advance(HOUR_S)
    async with trio.open_nursery() as nursery:
        for driver in (one, two):
            nursery.start_soon(settle, driver)
    await settle(one)
    assert one.rows("SELECT count(*), count(DISTINCT schedule) FROM scheduled") == [(MANY, MANY)]
    assert one.rows("SELECT count(*) FROM instance") == [(MANY,)]
