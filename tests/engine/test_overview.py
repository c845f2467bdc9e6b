"""The overview: what engines counted, whom they saw, and what it makes of that in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest

from penstock.engine.instances.causes import cause_of
from penstock.engine.queues.activity import DEPTHS_KEPT, LAGS_KEPT, WORKERS_MAX, Activity, Depth, OverdueHistory
from penstock.engine.queues.waiters import Waiter, Waiters
from penstock.engine.requests.answers import AnswerMemory
from penstock.engine.status import attention, overview
from penstock.errors import BadRequest
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.retention import Retention
from penstock.store.rows.activity import QueueFacts
from penstock.telemetry.metrics import Metrics
from penstock.testing.definitions import linear
from penstock.wire.attention import Attention
from penstock.wire.overview import OverviewView
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

HOUR = 3_600
DAY = 24 * HOUR


async def probe(driver: Driver, chores: Housekeeping, range_name: str = "15m") -> OverviewView:
    await chores.run_once()
    driver.engine.overview._kept.clear()
    return await driver.engine.overview.read(range_name)


def kinds(view: OverviewView) -> dict[str, Attention]:
    return {one.kind: one for one in view.attention}


async def test_all_engines_counts_are_added_up(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    await one.upload(linear(1, job_type="work"))
    for driver in (one, other, other):
        await driver.start("linear")
    await one.complete(await one.one("work"))
    await Housekeeping(other.engine).run_once()
    view = await probe(one, Housekeeping(one.engine))
    assert (view.started.in_range, view.completed.in_range, view.failed.in_range) == (3, 1, 0)
    assert view.started.per_second == round(3 / 900, 3)
    assert (sum(view.series.started), sum(view.series.completed)) == (3, 1)
    assert (len(view.series.started), view.series.step_seconds) == (90, 10)
    assert (view.open.count, view.open.exact) == (2, True)
    (queue,) = view.queues
    assert (queue.job_type, queue.waiting, queue.workers, queue.series) == ("work", 2, 1, [2])


async def test_a_queue_tells_its_leases_polls_and_rate(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    await one.upload(linear(1, job_type="work"))
    for _ in range(4):
        await one.start("linear")
    await one.complete(await one.one("work"))
    await one.one("work", worker="w-2")
    await other.one("work", worker="w-3")
    await Housekeeping(other.engine).run_once()
    (queue,) = (await probe(one, Housekeeping(one.engine))).queues
    assert (queue.job_type, queue.waiting, queue.waiting_exact, queue.locked) == ("work", 1, True, 2)
    assert queue.done_per_second == round(1 / 60, 2)
    polled_at = queue.last_poll_at
    assert polled_at is not None
    one.clock.advance(300)  # the workers are gone: when they were there is told for a day
    one.engine.polls.activity._seen.clear()
    view = await probe(one, Housekeeping(one.engine))
    (queue,) = await one.engine.overview.job_types()
    assert queue.last_poll_at is not None
    assert abs((queue.last_poll_at - polled_at).total_seconds()) < 30
    assert kinds(view)["no-worker"].detail == "1 job waits, the oldest for 5 min; the last poll was 5 min ago"


async def test_what_an_engine_leaves_out_is_nothing(make_driver: MakeDriver) -> None:
    driver = make_driver()
    with psycopg.connect(driver.dsn) as connection:
        connection.execute(
            "INSERT INTO sample VALUES"
            " (10, penstock_now() - interval '40 s', 0, '{}', '{}', '{\"old\": {\"polled\": 3.5}}'),"
            " (10, penstock_now(), 0, '{}', '{\"new\": 2}', '{\"new\": {}}'), (10, penstock_now(), 1, '{}', '{}', NULL)"
        )
    new, old = await driver.engine.overview.job_types()
    assert (new.job_type, new.workers, new.locked, new.done_per_second, new.last_poll_at) == ("new", 2, 0, 0, None)
    assert (old.job_type, old.workers, old.locked, old.done_per_second) == ("old", 0, 0, 0)
    assert old.last_poll_at is not None


async def test_durations_are_of_those_that_completed(make_driver: MakeDriver) -> None:
    driver = make_driver()
    chores = Housekeeping(driver.engine)
    none = (await probe(driver, chores)).durations
    assert (none.p50, none.p99) == (None, None)
    for seconds in (*[0.3] * 98, 50.0, 90_000.0):
        driver.engine.metrics.on_end("shop", "COMPLETED", seconds)
    driver.engine.metrics.on_end("shop", "FAILED", 1e6)
    found = (await probe(driver, chores)).durations
    assert found.p50 is not None
    assert found.p99 is not None
    assert 0.2 < found.p50 <= 0.5
    assert 30 < found.p99 <= 60
    assert (found.p50_at_most, found.p99_at_most) == (0.5, 60)
    driver.clock.advance(2 * HOUR)
    for _ in range(6):
        await chores.run_once()
    assert (await probe(driver, chores, "24h")).durations == found, "samples that were summed up have them, too"


async def test_a_worker_tells_what_it_did_within_a_quarter(make_driver: MakeDriver) -> None:
    driver = make_driver()
    chores = Housekeeping(driver.engine)
    await driver.upload(linear(1, job_type="work"))
    for _ in range(4):
        await driver.start("linear")
    for _ in range(2):
        await driver.complete(await driver.one("work", worker="busy"))
    await driver.fail(await driver.one("work", worker="busy"), retryable=False)
    await driver.one("work", worker="busy")
    await chores.run_once()
    (worker,) = (await driver.engine.overview.workers(None, 10)).items
    assert (worker.id, worker.leased, worker.done_last_15m, worker.failed_last_15m) == ("busy", 1, 2, 1)
    assert b'"doneLast15m":2' in msgspec.json.encode(worker)


def test_a_stream_is_seen_while_it_waits_and_works() -> None:
    clock = [0.0]
    waiters = Waiters(AnswerMemory(1_000_000), 1_000_000)
    activity = Activity(Metrics("test"), waiters, lambda: clock[0])
    slots = [Waiter("stream", (name,), 1, 30.0) for name in ("pack", "ship")]
    for slot in slots:
        waiters.park(slot)
    clock[0] = 10.0
    (note,) = activity.take_workers({"stream": 3})
    assert (note.worker, list(note.job_types), note.ago_s, note.leased) == ("stream", ["pack", "ship"], 0.0, 3)
    for slot in slots:
        waiters.unpark(slot)
    activity.observe_report("stream", "pack", failed=False)
    clock[0] = 20.0
    assert activity.workers() == {"pack": 1, "ship": 1}
    (note,) = activity.take_workers({})
    assert (note.ago_s, note.done, note.failed) == (0.0, 1, 0)
    assert activity.take_queues({"pack": 2})["pack"].done == 1
    clock[0] = 30.0
    assert activity.take_workers({}) == [], "nothing was heard of it"
    for minute in range(1, 16):
        clock[0] = 60.0 * minute
        activity.observe_report("stream", "pack", failed=minute % 2 == 0)
        activity.observe_poll("stream", ("pack",))
        (note,) = activity.take_workers({})
    assert (note.done, note.failed) == (8, 7), "that of the first minute is over"


def test_old_history_that_is_held_needs_somebody() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    held = OverdueHistory(3, 31, now - timedelta(days=61))
    (reported,) = attention.of_retention(held, 30, now)
    assert (reported.kind, reported.text) == ("retention", "3 instances keep old history")
    assert reported.detail.endswith("The oldest is 1f.")
    assert reported.query == {"startedBefore": "2025-12-30T00:00:00+00:00"}
    assert attention.of_retention(held, 31, now) == [], "they may have ended within the retention"
    assert attention.of_retention(held, None, now) == attention.of_retention(None, 30, now) == []


async def test_engines_tell_of_themselves_and_of_the_database(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    instance = (await driver.start("linear")).id
    await driver.one("work")
    report = driver.engine.polls.activity.report("1.2", 4, len(driver.engine.polls.leases))
    with psycopg.connect(driver.dsn) as connection:
        for number, version in ((7, 18), (8, 17)):
            connection.execute(
                """INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version, facts)
                VALUES (%s, gen_random_uuid(), penstock_now() + interval '1 min', 'polling', 'host', %s, %s)""",
                (number, version, msgspec.json.encode(report).decode()),
            )
    await Retention(driver.engine).run_once()
    found = await driver.engine.overview.engines()
    assert found.items[0].report == report
    assert (report.version, report.leased_jobs, report.parked_polls) == ("1.2", 1, 0)
    assert report.items_per_batch >= 1
    assert found.items[1].report is None, "an older engine says nothing; it may have another's facts"
    assert found.database.oldest_instance == instance
    assert found.database.partitions >= 1
    assert found.database.bytes > 1_000_000


async def test_an_engine_without_work_writes_nothing(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await Housekeeping(driver.engine).run_once()
    with psycopg.connect(driver.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM sample").fetchone() == (0,)


async def test_samples_become_sums_with_age_and_go_after_a_week(make_driver: MakeDriver) -> None:
    driver = make_driver()
    chores = Housekeeping(driver.engine)
    await driver.upload(linear(1, job_type="work"))
    driver.clock.stop()
    seen: dict[str, list[int]] = {}
    for _ in range(3):
        await driver.start("linear")
        await chores.run_once()
        driver.clock.advance(20)
    for name, later in (("15m", 0), ("24h", 2 * HOUR), ("7d", 2 * DAY)):
        driver.clock.advance(later)
        for _ in range(6):
            await chores.run_once()
        seen[name] = (await probe(driver, chores, name)).series.started
        assert sum(seen[name]) == 3, name
    with psycopg.connect(driver.dsn) as connection:
        spans = connection.execute("SELECT DISTINCT span_s FROM sample WHERE counts <> '{}'").fetchall()
        assert spans == [(600,)]
    driver.clock.advance(8 * DAY)
    for _ in range(6):
        await chores.run_once()
    with psycopg.connect(driver.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM sample WHERE counts <> '{}'").fetchone() == (0,)


async def test_a_queue_without_workers_is_reported_until_one_polls(make_driver: MakeDriver) -> None:
    driver = make_driver()
    chores = Housekeeping(driver.engine)
    await driver.upload(linear(1, job_type="work"))
    await driver.start("linear")
    assert kinds(await probe(driver, chores)) == {}, "a job may wait for a moment"
    driver.clock.advance(180)
    reported = kinds(await probe(driver, chores))["no-worker"]
    assert (reported.text, reported.job_type, reported.count) == ("No workers for work", "work", 1)
    assert reported.detail == "1 job waits, the oldest for 3 min"
    await driver.poll("other", "work", worker="w-9", n=0)
    assert "no-worker" not in kinds(await probe(driver, chores))


async def test_a_paused_queue_is_reported_while_jobs_wait(make_driver: MakeDriver) -> None:
    driver = make_driver()
    queues, chores = driver.engine.queues, Housekeeping(driver.engine)
    await queues.put("crm", QueuePolicy(["one", "two", "three"], paused=True))
    assert "queue-paused" not in kinds(await probe(driver, chores)), "it keeps nothing back"
    for name in ("one", "two", "two"):
        await driver.upload(linear(1, definition_id=name, job_type=name))
        await driver.start(name)
        driver.clock.advance(60)
    reported = [one for one in (await probe(driver, chores)).attention if one.kind == "queue-paused"]
    assert [(one.severity, one.text, one.count) for one in reported] == [("warning", "The queue crm is paused", 3)]
    assert (reported[0].detail, reported[0].job_type) == ("3 jobs wait, the oldest for 3 min", "one")
    await queues.pause("crm", paused=False)
    assert "queue-paused" not in kinds(await probe(driver, chores))


def test_a_paused_queue_is_not_said_to_fall_behind() -> None:
    measured = [{"slow": Depth(1_000 + 100 * number, 300.0)} for number in range(40)]
    facts = {"slow": QueueFacts(1, 0, 0, None)}
    for queue, expected in ((None, ["queue-grows"]), ("crm", [])):
        reported = attention.of_queues(measured, facts, {}, datetime.now(UTC), {"slow": queue}.get)
        assert [one.kind for one in reported] == expected


async def test_a_queue_that_grows_for_minutes_falls_behind(make_driver: MakeDriver) -> None:
    driver = make_driver()
    activity = driver.engine.polls.activity
    for number in range(DEPTHS_KEPT + 5):
        activity.observe_depths([("slow", 1_000 + 20 * number, 300.0), ("steady", 1_000, 300.0)])
    activity.observe_poll("w-1", ("slow", "steady"))
    with psycopg.connect(driver.dsn) as connection:
        connection.execute("""INSERT INTO sample VALUES (10, penstock_now(), 0, '{}', '{"slow": 1, "steady": 1}')""")
    reported = (await driver.engine.overview.read("15m")).attention
    assert [(one.kind, one.text) for one in reported] == [("queue-grows", "slow falls behind")]
    assert len(activity.depths) == DEPTHS_KEPT


async def test_an_engine_tells_its_own_troubles(make_driver: MakeDriver) -> None:
    driver = make_driver()
    activity = driver.engine.polls.activity
    activity.observe_lag(0.1)
    assert kinds(await probe(driver, Housekeeping(driver.engine))) == {}
    activity.observe_lag(1.25)
    activity.away = lambda: ["kafka"]
    reported = kinds(await probe(driver, Housekeeping(driver.engine)))
    assert reported["degraded"].text == "kafka is unavailable"
    assert reported["lag"].detail == "Its event loop was 1.2 s late within a minute"
    for _ in range(LAGS_KEPT):
        activity.observe_lag(0.0)
    activity.away = list
    assert kinds(await probe(driver, Housekeeping(driver.engine))) == {}


async def test_failures_of_one_cause_are_one_sentence(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, definition_id="shop", job_type="charge"))
    for number in range(5):
        await driver.start("shop")
        job = await driver.one("charge")
        reason = "card declined" if number == 0 else f"gateway: 503, request '{number}'"
        await driver.fail(job, reason, retryable=False)
    view = await probe(driver, Housekeeping(driver.engine))
    most, least = view.attention
    assert (most.text, most.count, least.count) == ("4 instances of shop v1 failed", 4, 1)
    assert most.query.pop("cause").startswith("gateway: 503")
    assert most.query == {"status": "FAILED", "definitionId": "shop"}
    assert view.failed.in_range == 5


async def test_what_stands_failed_needs_somebody_however_long(make_driver: MakeDriver) -> None:
    """It was told for as long as the range, a quarter of an hour as a rule."""
    driver = make_driver()
    await driver.upload(linear(1, definition_id="shop", job_type="charge"))
    started = await driver.start("shop")
    await driver.fail(await driver.one("charge"), "card declined", retryable=False)
    chores = Housekeeping(driver.engine)
    await chores.run_once()
    driver.clock.advance(8 * DAY)
    view = await probe(driver, chores)
    assert [(one.text, one.detail, one.exact) for one in view.attention] == [
        ("1 instance of shop v1 failed", "card declined", True)
    ]
    assert view.failed.in_range == 0
    assert (await driver.engine.failures.read(None, "7d")).items == []
    assert [one.count for one in (await driver.engine.failures.read(None, "all")).items] == [1]
    await driver.retry(started.id)
    assert "failures" not in kinds(await probe(driver, Housekeeping(driver.engine)))


async def test_no_more_failures_are_counted_than_it_bears(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    monkeypatch.setattr(overview, "FAILURES_MAX", 3)
    await driver.upload(linear(1, definition_id="shop", job_type="charge"))
    for reason in ("old", "gateway: 503", "gateway: 504", "gateway: 505"):
        await driver.start("shop")
        await driver.fail(await driver.one("charge"), reason, retryable=False)
    (reported,) = (await probe(driver, Housekeeping(driver.engine))).attention
    assert (reported.text, reported.detail) == ("3+ instances of shop v1 failed", "gateway: 505")
    assert (reported.count, reported.exact) == (3, False)


async def test_a_queue_that_is_full_for_long_is_reported(make_driver: MakeDriver) -> None:
    driver = make_driver()
    chores = Housekeeping(driver.engine)
    await driver.engine.queues.put("crm", QueuePolicy(["one", "two"], concurrency=1))
    for name in ("one", "two"):
        await driver.upload(linear(1, definition_id=name, job_type=name))
    await driver.start("one")
    await driver.one("one", worker="w-1", lease=3_600)
    for name in ("one", "two", "two"):
        await driver.start(name)

    async def probed() -> dict[str, Attention]:
        await driver.poll("one", "two", worker="w-1")
        await chores.run_once()
        return kinds(await probe(driver, chores))

    assert await probed() == {}, "limits are there to keep jobs back"
    driver.clock.advance(attention.FULL_AGE_S + 1)
    reported = (await probed())["queue-full"]
    assert (reported.severity, reported.text, reported.count, reported.job_type) == (
        "warning",
        "The queue crm is full",
        3,
        "one",
    )
    assert reported.detail == "3 jobs wait, the oldest for 5 min: in its queue 'crm' 1 job runs, of 1 at most"
    await driver.engine.queues.pause("crm", paused=True)
    assert set(await probed()) == {"queue-paused"}
    await driver.engine.queues.put("crm", QueuePolicy(["one", "two"], concurrency=9, paused=False))
    assert await probed() == {}


async def test_an_engine_that_left_is_reported_for_a_day(make_driver: MakeDriver) -> None:
    driver = make_driver()
    row: Mapping[str, object] = {"mode": "polling", "description": "host-7, 4711"}
    with psycopg.connect(driver.dsn) as connection:
        connection.execute(
            """INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version) VALUES
            (7, gen_random_uuid(), penstock_now() - interval '5 min', %(mode)s, %(description)s, 5),
            (8, gen_random_uuid(), penstock_now() - interval '2 days', %(mode)s, %(description)s, 5),
            (9, gen_random_uuid(), penstock_now() + interval '1 min', %(mode)s, %(description)s, 5)""",
            row,
        )
    view = await driver.engine.overview.read("15m")
    assert [one.text for one in view.attention] == ["Engine 7: Lost (last heartbeat 5 min ago)"]
    assert view.engines == 1
    engines = (await driver.engine.overview.engines()).items
    assert [(one.number, one.alive) for one in engines] == [(7, False), (9, True)]


async def test_workers_are_listed_by_name_and_forgotten_after_a_day(make_driver: MakeDriver) -> None:
    driver = make_driver()
    chores = Housekeeping(driver.engine)
    for name in ("w-2", "w-1", "w-3"):
        await driver.poll("pack", worker=name)
    await chores.run_once()
    first = await driver.engine.overview.workers(None, 2)
    rest = await driver.engine.overview.workers(first.next, 2)
    assert [one.id for one in (*first.items, *rest.items)] == ["w-1", "w-2", "w-3"]
    assert (first.items[0].job_types, first.items[0].engine, rest.next) == (["pack"], driver.engine.ids.number, None)
    assert [one.id for one in (await driver.engine.overview.workers(None, 10, "pack")).items] == ["w-1", "w-2", "w-3"]
    assert (await driver.engine.overview.workers(None, 10, "ship")).items == []
    driver.clock.advance(2 * DAY)
    for _ in range(6):
        await chores.run_once()
    assert (await driver.engine.overview.workers(None, 10)).items == []


async def test_a_worker_is_listed_once_whichever_engines_it_has_asked(make_driver: MakeDriver) -> None:
    """After a restart of its engine it was listed twice, for a day."""
    first, second = make_driver(), make_driver()
    for driver, job_type in ((first, "pack"), (second, "ship")):
        await driver.poll("pack", job_type, worker="w-1")
        await Housekeeping(driver.engine).run_once()
    (one,) = (await second.engine.overview.workers(None, 10)).items
    assert (one.id, set(one.job_types)) == ("w-1", {"pack", "ship"})
    first.rows("UPDATE worker_seen SET polled_at = polled_at - interval '1 hour', leased = 5, done = 9"
               " WHERE engine = %s RETURNING 1", first.engine.ids.number)  # fmt: skip
    (one,) = (await second.engine.overview.workers(None, 10, "ship")).items
    assert (one.engine, one.leased, one.done_last_15m) == (second.engine.ids.number, 0, 0)
    assert (await second.engine.overview.workers("w-1", 10)).items == []


async def test_workers_that_make_up_names_are_bounded(make_driver: MakeDriver) -> None:
    activity = make_driver().engine.polls.activity
    for number in range(WORKERS_MAX + 10):
        activity.observe_poll(f"w-{number}", ("t",))
    assert activity.workers() == {"t": WORKERS_MAX}
    assert len(activity.take_workers({})) == WORKERS_MAX


def test_a_worker_is_there_for_three_of_its_pauses() -> None:
    clock = [0.0]
    activity = Activity(Metrics("test"), Waiters(AnswerMemory(1_000_000), 1_000_000), lambda: clock[0])
    for start, end in ((0.0, 30.0), (30.1, 60.0), (60.1, 90.0)):  # long polls, one after the other
        clock[0] = start
        activity.observe_poll("eager", ("t",))
        clock[0] = end
        activity.observe_answered("eager")
    for start in (0.0, 25.0, 50.0, 75.0):
        clock[0] = start
        activity.observe_poll("busy", ("t",))
    gone = {}
    for second in range(90, 200):
        clock[0] = float(second)
        gone.setdefault(activity.workers().get("t", 0), second)
    assert gone == {2: 90, 1: 100, 0: 150}


async def test_a_range_that_there_is_not_is_refused(make_driver: MakeDriver) -> None:
    with pytest.raises(BadRequest, match="range: must be one of 15m, 1h, 24h, 7d"):
        await make_driver().engine.overview.read("2h")


def test_a_cause_is_its_reason_without_what_varies() -> None:
    assert cause_of("gateway: 503 at 12:04:11 for 'A-7'") == cause_of("gateway: 502 at 9:01:02 for 'B'")
    assert cause_of("card declined") != cause_of("card stolen")
