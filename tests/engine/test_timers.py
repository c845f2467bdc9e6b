"""Boundary timers, durable sleeps and retry back-offs, fired by the engine's own loop."""

from __future__ import annotations

import psycopg
import pytest
import trio
import trio.testing

from penstock.core.advance import advance
from penstock.engine.advance import timers
from penstock.errors import PenstockError
from penstock.store.db import arrays
from penstock.store.db.statements import SQL
from penstock.store.rows.starts import Line, line_columns
from penstock.testing.definitions import Json, definition, end, linear, service, step, timer
from penstock.wire.start import Throttle
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.waiting import wait_until

TRIES_MAX = 20


@pytest.fixture
async def timed(make_driver: MakeDriver) -> Driver:
    """An engine whose timers run."""
    return make_driver(services=True)


def review(*timers: Json, kind: str = "USER_TASK") -> Json:
    task = {"jobType": "review"} if kind == "SERVICE_TASK" else {}
    return definition(
        step("review", kind, nextStep="end", boundaryEvents=list(timers), **task),
        service("escalate", "end", job_type="escalate"),
        end(),
    )


def pass_time(driver: Driver, seconds: float) -> None:
    """In the database, and have the loop look: so nothing is due before the test is ready for it."""
    driver.clock.advance(seconds)
    driver.engine.timers.hint(0)


@pytest.mark.parametrize("kind", ["USER_TASK", "SERVICE_TASK", "WAIT"])
async def test_an_interrupting_timer_closes_its_step_for_its_target(timed: Driver, kind: str) -> None:
    await timed.upload(review(timer("escalate", "PT1H", interrupting=True), kind=kind))
    view = await timed.start("test")
    job = await timed.one("review") if kind == "SERVICE_TASK" else None
    pass_time(timed, 3_600)
    escalation = await timed.one("escalate")
    items = await timed.engine.instances.history(view.id)
    assert (items[0].status, items[0].failure_reason) == ("FAILED", "interrupted by boundary timer")
    before = timed.snapshot()
    if job is not None:
        await timed.complete(job)  # without attempt: success, and nothing changes
        assert timed.snapshot() == before
    assert timed.rows("SELECT count(*) FROM timer") == [(0,)]
    await timed.complete(escalation)
    assert (await timed.view(view.id)).status == "COMPLETED"


async def test_a_timer_fires_within_100_ms_of_its_time(timed: Driver) -> None:
    """Planned for its very time; and of some that fire one is seen to, as the machine may be busy with others."""
    await timed.upload(review(timer("escalate", "PT0.5S", interrupting=True)))
    armed_s: list[float] = []
    timed.engine.events.armed.listen(armed_s.append)
    took_s: list[float] = []
    while len(took_s) < TRIES_MAX and not any(took < 0.6 for took in took_s):
        view = await timed.start("test")
        await timed.complete(await timed.one("escalate"))
        items = await timed.engine.instances.history(view.id)
        ended_at, started_at = items[0].ended_at, items[0].started_at
        assert ended_at is not None
        assert started_at is not None
        took_s.append((ended_at - started_at).total_seconds())
    assert armed_s == [pytest.approx(0.5)] * len(took_s)
    assert min(took_s) >= 0.5
    assert min(took_s) < 0.6, took_s


async def test_a_non_interrupting_timer_fires_once_beside_its_step(timed: Driver) -> None:
    await timed.upload(review(timer("escalate", "PT0.1S")))
    view = await timed.start("test")
    job = await timed.one("escalate")
    assert sorted((await timed.view(view.id)).current_step_ids) == ["escalate", "review"]
    assert timed.rows("SELECT count(*) FROM timer") == [(0,)]
    await timed.complete(job)  # reaches END, which closes the review
    assert (await timed.view(view.id)).status == "COMPLETED"
    assert ("review", "SKIPPED") in await timed.path(view.id)


async def test_a_completed_step_disarms_its_timers(timed: Driver) -> None:
    await timed.upload(review(timer("escalate", "PT1H"), timer("escalate", "PT1H", interrupting=True)))
    view = await timed.start("test")
    assert timed.rows("SELECT count(*) FROM timer") == [(2,)]
    await timed.finish_task(view.id, "review")
    assert timed.rows("SELECT count(*) FROM timer") == [(0,)]
    assert (await timed.view(view.id)).status == "COMPLETED"


async def test_a_cancelled_instance_has_no_timers(timed: Driver) -> None:
    await timed.upload(review(timer("escalate", "PT1H", interrupting=True)))
    view = await timed.start("test")
    await timed.engine.instances.cancel(view.id, None)
    assert timed.rows("SELECT count(*) FROM timer") == [(0,)]


async def test_a_wait_with_a_duration_goes_on_by_itself(timed: Driver) -> None:
    await timed.upload(definition(step("nap", "WAIT", duration="PT0.2S", nextStep="s"), service("s", "end"), end()))
    view = await timed.start("test")
    assert view.status == "WAITING"
    await timed.complete(await timed.one("work"))
    assert (await timed.view(view.id)).status == "COMPLETED"


async def test_a_wait_until_an_expression_says_so(timed: Driver) -> None:
    await timed.upload(definition(step("nap", "WAIT", until="${when}", nextStep="s"), service("s", "end"), end()))
    view = await timed.start("test", {"when": "2020-01-01T00:00:00Z"})
    await timed.one("work")
    broken = await timed.start("test", {"when": "yesterday"})
    assert broken.status == "FAILED"
    assert view.status == "WAITING"


async def test_a_retry_waits_for_its_back_off(timed: Driver) -> None:
    task = service("s", "end", retryCount=2, retryBackoff={"initial": "PT1H", "multiplier": 2, "max": "PT2H"})
    await timed.upload(definition(task, end()))
    await timed.start("test")
    await timed.fail(await timed.one("work"))
    assert await timed.poll("work") == []
    pass_time(timed, 3_600 * 1.5)  # more than any jitter
    job = await timed.one("work")
    assert (job.attempt, job.retries_remaining) == (2, 1)


async def test_sleeping_for_a_later_timer_misses_no_earlier_one(timed: Driver) -> None:
    await timed.upload(review(timer("escalate", "PT1H", interrupting=True)))
    await timed.start("test")
    await timed.upload(
        definition(
            step("nap", "WAIT", duration="PT0.1S", nextStep="s"), service("s", "end"), end(), definition_id="short"
        )
    )
    await timed.start("short")

    async def there() -> bool:
        return len(await timed.poll("work")) == 1

    await wait_until(there)


async def test_unfireable_timers_hide_no_others_and_are_retried(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(timers, "DUE_MAX", 2)
    await driver.upload(definition(step("sleep", "WAIT", duration="PT1S", nextStep="end"), end()))
    instances = [number((await driver.start("test")).id) for _ in range(6)]
    broken = set(instances[:3])
    tried: list[int] = []

    async def fire(instance: int, timer: tuple[int, int, int], give_up: str | None) -> bool | None:
        tried.append(instance)
        if instance in broken:
            raise PenstockError("it can not be advanced")
        return await driver.engine.fire(instance, timer, give_up)

    loop = timers.Timers(driver.engine.database, fire, driver.engine.quarantine, failure_limit=10)
    driver.clock.advance(2)
    while loop._next_at <= trio.current_time():
        await loop.fire_once()
    assert sorted(tried) == instances  # each once
    assert driver.rows("SELECT DISTINCT instance_id FROM timer ORDER BY 1") == [(id,) for id in sorted(broken)]
    pauses: list[float] = []
    for _ in range(3):
        tried.clear()
        before = trio.current_time()
        while not tried:
            mock_clock.jump(1)
            await loop.fire_once()
        assert sorted(tried) == sorted(broken)
        pauses.append(trio.current_time() - before)
    assert pauses == [timers.RETRY_FIRST_S * factor for factor in (1, 2, 4)]
    broken.clear()
    mock_clock.jump(timers.RETRY_MAX_S)
    assert await loop.fire_once() == 3
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    await loop.fire_once()
    assert not loop._refused


@pytest.mark.parametrize("kind", ["SERVICE_TASK", "WAIT"])
async def test_a_timer_that_fails_again_and_again_fails_its_instance(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock, kind: str
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(advance, "timer_fired", broken)
    await driver.upload(review(timer("escalate", "PT1S"), kind=kind))
    view = await driver.start("test")
    driver.clock.advance(2)
    for tries in range(driver.engine.settings.background_failure_limit):
        assert await driver.due() == 0
        assert await driver.due() == 0, "not before its pause is over"
        assert driver.rows("SELECT count(*) FROM timer") == [(1,)], tries
        mock_clock.jump(timers.RETRY_MAX_S)
    assert await driver.due() == 1
    found = await driver.view(view.id)
    assert (found.status, found.failure_reason) == (
        "FAILED",
        "a timer of the step failed 5 times: the instance could not go on: the engine's log has the reason",
    )
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    assert await driver.poll("review") == []


async def test_how_often_a_timer_failed_outlives_the_engine_that_tried(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each restart began to count anew: an engine that was restarted often tried for ever."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(advance, "timer_fired", broken)
    driver = make_driver()
    await driver.upload(review(timer("escalate", "PT1S")))
    view = await driver.start("test")
    driver.clock.advance(2)
    for failures in range(1, driver.engine.settings.background_failure_limit + 1):
        assert await driver.due() == 0
        assert driver.rows("SELECT failures FROM timer") == [(failures,)]
        driver = make_driver()
        await driver.engine.definitions.get("test")
    assert await driver.due() == 1
    found = await driver.view(view.id)
    assert (found.status, found.failure_reason) == ("FAILED", "a timer of the step failed 5 times")


async def test_a_held_throttle_key_keeps_no_timer_waiting(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a start whose engine hangs; nor do the key's starts that are due, however many, hide others."""
    monkeypatch.setattr(timers, "DUE_MAX", 2)
    driver.clock.stop()
    await driver.upload(linear(1))
    held = Throttle(key="held", limit=1, period="PT1M", on_excess="DELAY")
    for _ in range(4):
        await driver.start("linear", throttle=held)
    later = await driver.start("linear", delay="PT3M")
    driver.clock.advance(600)
    with psycopg.connect(driver.dsn) as other:
        other.execute("SELECT FROM start_window WHERE key = 'held' FOR UPDATE")
        asked_at = trio.current_time()
        assert await driver.due() == 1
        assert (await driver.view(later.id)).current_step_ids == ["task-1"]
        await driver.engine.timers.wait_due()
        assert trio.current_time() < asked_at + timers.SCAN_INTERVAL_MAX_S
    assert [await driver.due(0 if n == 0 else 60) for n in range(4)] == [1, 1, 1, 0]


HOLDING = {
    "held": "UPDATE start_window SET until = until WHERE key = 'held' AND kind = 2",
    "made anew": "INSERT INTO start_window (definition_id, kind, key, until, instance_id)"
    " VALUES ('linear', 2, 'held', '-infinity', 0)",
}
"""What a start whose engine hangs has done; the window of one may have been purged before."""


@pytest.mark.parametrize("holding", HOLDING)
async def test_a_held_throttle_key_keeps_no_other_key_waiting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, holding: str
) -> None:
    """However many starts of it are due, and before the others."""
    monkeypatch.setattr(timers, "DUE_MAX", 2)
    driver.clock.stop()
    await driver.upload(linear(1))
    keys = ["held", "a", "b"]
    made = {
        key: [
            await driver.start("linear", throttle=Throttle(key=key, limit=1, period="PT1M", on_excess="DELAY"))
            for _ in range(4)
        ]
        for key in keys
    }
    driver.clock.advance(600)
    with psycopg.connect(driver.dsn) as other:
        if holding == "made anew":
            other.execute("DELETE FROM start_window WHERE key = 'held'")
            other.commit()
        other.execute(HOLDING[holding].encode())
        for due in (0, 60, 60):
            assert await driver.due(due) == 2
    begun = [[view.id for view in made[key] if (await driver.view(view.id)).current_step_ids] for key in keys]
    assert begun == [[view.id for view in made[key][: 1 if key == "held" else 4]] for key in keys]
    assert [await driver.due(0 if n == 0 else 60) for n in range(4)] == [1, 1, 1, 0]


async def test_looks_at_held_keys_alone_pause(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many keys are held: nothing can be done about them but wait."""
    monkeypatch.setattr(timers, "DUE_MAX", 2)
    monkeypatch.setattr(timers, "LINES_SCANS_MAX", 3)
    driver.clock.stop()
    await driver.upload(linear(1))
    for n in range(12):
        await driver.start("linear", throttle=Throttle(key=f"{n // 2}", limit=1, period="PT1M", on_excess="DELAY"))
    driver.clock.advance(600)
    with psycopg.connect(driver.dsn) as other:
        other.execute("SELECT FROM start_window FOR UPDATE")
        asked_at = trio.current_time()
        assert await driver.due() == 0
        await driver.engine.timers.wait_due()
        assert trio.current_time() >= asked_at + timers.LINES_LOCKED_S


async def test_a_look_puts_off_so_many_starts_at_most(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other timers are not kept waiting by those that are left, and the next look goes on at once."""
    monkeypatch.setattr(timers, "DUE_MAX", 2)
    monkeypatch.setattr(timers, "LINES_SCANS_MAX", 3)
    monkeypatch.setattr(timers, "SCAN_INTERVAL_MAX_S", 3_600.0)
    monkeypatch.setattr(timers, "LINES_LOCKED_S", 3_600.0)
    driver.clock.stop()
    await driver.upload(linear(1))
    for n in range(6):
        rule = Throttle(key=str(n), limit=1, period="PT1H", on_excess="DELAY")
        for _ in range(3):
            await driver.start("linear", throttle=rule)
        driver.clock.advance(3 * 3_600)
    later = await driver.start("linear", delay="PT1H")
    driver.clock.advance(4 * 3_600)
    reported = "SELECT count(*) FROM timer WHERE (throttle ->> 4)::boolean"
    assert await driver.due() == 1
    assert (await driver.view(later.id)).current_step_ids == ["task-1"]
    assert driver.rows(reported) == [(6,)], "two of each of three keys"
    with trio.fail_after(20):
        await driver.engine.timers.wait_due()
    assert [await driver.due() for _ in range(5)] == [0, 2, 2, 2, 0]
    assert await driver.due(3_600) == 2


async def test_a_start_cancelled_as_its_line_moves_leaves_nothing(driver: Driver) -> None:
    """The cancel waits for who puts the line's starts off, before it looks for their timers."""
    driver.clock.stop()
    await driver.upload(linear(1))
    rule = Throttle(key="k", limit=1, period="PT1M", on_excess="DELAY")
    made = [await driver.start("linear", throttle=rule) for _ in range(4)]
    driver.clock.advance(600)
    late = tuple(map(arrays.ints, zip(*driver.rows("SELECT token_id, seq FROM timer"), strict=True)))
    async with driver.engine.database.connection() as connection, trio.open_nursery() as nursery:
        line = line_columns([Line("linear", "k")])
        await connection.roundtrip([(SQL["begin"], ()), (SQL["hold_lines"], line), (SQL["space_out"], late)])
        nursery.start_soon(driver.cancel, made[3].id)

        async def waits() -> bool:
            return driver.waiting_for_locks() == 1

        await wait_until(waits)
        await connection.fetch(SQL["commit"])
    assert await driver.status(made[3].id) == "CANCELLED"
    assert driver.rows("SELECT token_id FROM timer ORDER BY 1") == [(number(view.id),) for view in made[1:3]]
