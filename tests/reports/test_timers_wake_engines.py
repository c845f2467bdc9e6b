"""39.4: whatever writes a due time tells who waits for it, here and in other engines: no look is needed to find it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest
import trio

from penstock.core.rules.state import InstanceStatus
from penstock.engine.advance.timers import Timers
from penstock.engine.queues.journal_items import RunEnd
from penstock.engine.runs.code import CodeWorkflow
from penstock.engine.schedules.schedules import Schedules
from penstock.testing.definitions import Json, definition, end, linear, timer
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Debounce, Throttle
from tests.durable.served import serving
from tests.engine import runs
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_calls import settle
from tests.shapes import assign, call, gateway, joining, task, user, wait
from tests.waiting import wait_until

__all__ = ["driver", "make_driver"]

Quiet = Callable[[], Awaitable[None]]
AN_HOUR_S: Final = 3_600.0
LIMIT: Final = [timer("late", "PT2S")]
PAUSE: Final[dict[str, Any]] = {"retryCount": 3, "retryBackoff": {"initial": "PT2S"}}
LATE: Final = task("late")
AFTER: Final[dict[str, Any]] = {"autoStartNextWorkflow": True, "nextWorkflowId": "after"}
CHILD_DIES: Final = definition(task("work"), end(), definition_id="child")
CALLS: Final = definition(call("calls", "child"), end(), definition_id="parent")
AUDIT: Final = CodeWorkflow("audit")


async def a_time_limit_of_the_first_step(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(definition(task("work", boundaryEvents=LIMIT), LATE, end(), definition_id="d"))
    await quiet()
    await driver.start("d")


async def a_time_limit_of_the_next_step(driver: Driver, quiet: Quiet) -> None:
    await driver.run(definition(task("work", "more"), task("more", boundaryEvents=LIMIT), LATE, end()))
    job = await driver.one("work")
    await quiet()
    await driver.complete(job)


async def a_time_limit_of_a_persons_step_behind_a_join(driver: Driver, quiet: Quiet) -> None:
    asked = user("ask", boundaryEvents=LIMIT)
    branches = [task("b", "join"), task("c", "join"), joining("join", "ask"), asked, LATE, end()]
    await driver.run(definition(gateway("fork", "b", "c"), *branches))
    jobs = [await driver.one("b"), await driver.one("c")]
    await driver.complete(jobs[0])
    await quiet()
    await driver.complete(jobs[1])


async def a_wait(driver: Driver, quiet: Quiet) -> None:
    instance = await driver.run(definition(user("ask", "hold"), wait("hold", duration="PT2S"), end()))
    await quiet()
    await driver.finish_task(instance, "ask")


async def a_wait_that_an_expression_says(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(definition(wait("hold", until="${date(at)}"), end(), definition_id="d"))
    await quiet()
    at = driver.rows("SELECT penstock_now() + interval '2 s'")[0][0]
    await driver.start("d", {"at": at.isoformat()})


async def a_pause_before_a_retry(driver: Driver, quiet: Quiet) -> None:
    await driver.run(definition(task("work", **PAUSE), end()))
    job = await driver.one("work")
    await quiet()
    await driver.fail(job)


async def a_pause_of_an_item(driver: Driver, quiet: Quiet) -> None:
    each = {"items": "${[1, 2]}", "collect": "${result}", "into": "all"}
    await driver.run(definition(task("work", forEach=each, **PAUSE), end()))
    job = await driver.one("work")
    await quiet()
    await driver.fail(job)


async def a_pause_of_a_compensation(driver: Driver, quiet: Quiet) -> None:
    undone = {"jobType": "undo", **PAUSE}
    instance = await driver.run(definition(task("work", "more", compensation=undone), task("more"), end()))
    await driver.complete(await driver.one("work"))
    await driver.cancel(instance, compensate=True)
    job = await driver.one("undo")
    await quiet()
    await driver.fail(job)


async def a_delayed_start(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(linear(1))
    await quiet()
    await driver.start("linear", delay="PT2S")


async def a_start_at_a_time(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(linear(1))
    await quiet()
    await driver.start("linear", start_at=driver.rows("SELECT penstock_now() + interval '2 s'")[0][0].isoformat())


async def a_debounced_start(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(linear(1))
    await quiet()
    await driver.start("linear", debounce=Debounce("k", "PT2S"))


async def a_debounced_start_that_is_brought_forward(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(linear(1))
    await driver.start("linear", debounce=Debounce("k", "PT1H"))
    await quiet()
    await driver.start("linear", debounce=Debounce("k", "PT1S"))


async def a_throttled_start(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(linear(1))
    rule = Throttle("k", 1, "PT2S", on_excess="DELAY")
    await driver.start("linear", throttle=rule)
    await quiet()
    await driver.start("linear", throttle=rule)


async def started_call(driver: Driver) -> str:
    await driver.upload(CHILD_DIES)
    parent = await driver.run(CALLS)
    await settle(driver)
    return parent


async def the_end_of_a_call(driver: Driver, quiet: Quiet) -> None:
    await started_call(driver)
    job = await driver.one("work")
    await quiet()
    await driver.complete(job)


async def the_failure_of_a_call(driver: Driver, quiet: Quiet) -> None:
    await started_call(driver)
    job = await driver.one("work")
    await quiet()
    await driver.fail(job, retryable=False)


async def the_cancel_of_a_caller(driver: Driver, quiet: Quiet) -> None:
    parent = await started_call(driver)
    await quiet()
    await driver.cancel(parent)


async def the_retry_of_a_caller(driver: Driver, quiet: Quiet) -> None:
    parent = await started_call(driver)
    await driver.fail(await driver.one("work"), retryable=False)
    await settle(driver)
    assert await driver.status(parent) == "FAILED"
    await quiet()
    await driver.retry(parent)


async def a_message_that_was_kept(driver: Driver, quiet: Quiet) -> None:
    waiting = wait("hold", message={"name": "paid", "correlationKey": "${order}"})
    await driver.upload(definition(waiting, end(), definition_id="d"))
    await driver.publish("paid", "7", ttl="PT1H")
    await quiet()
    await driver.start("d", {"order": "7"})


async def a_retry_at_a_step_with_a_time_limit(driver: Driver, quiet: Quiet) -> None:
    instance = await driver.run(definition(task("work", boundaryEvents=LIMIT), LATE, end()))
    await driver.fail(await driver.one("work"), retryable=False)
    await quiet()
    await driver.retry(instance)


async def a_skip_to_a_wait(driver: Driver, quiet: Quiet) -> None:
    instance = await driver.run(definition(task("work", "hold"), wait("hold", duration="PT2S"), end()))
    await quiet()
    await driver.engine.repair.skip(instance, StepSkip(step_id="work"))


async def a_move_to_a_wait(driver: Driver, quiet: Quiet) -> None:
    instance = await driver.run(definition(task("work", "hold"), wait("hold", duration="PT2S"), end()))
    await quiet()
    await driver.engine.repair.move(instance, TokenMove("work", "hold"))


async def a_migration_that_brings_a_time_limit(driver: Driver, quiet: Quiet) -> None:
    instance = await driver.run(definition(task("work"), end(), definition_id="d"))
    await driver.upload(definition(task("work", boundaryEvents=LIMIT), LATE, end(), definition_id="d"))
    await quiet()
    await driver.engine.migrations.migrate(instance, MigrationRequest())


async def scheduled(driver: Driver, body: Json) -> None:
    await driver.upload(body)
    await driver.engine.schedules.put(
        "s", ScheduleSpec(definition_id=str(body["id"]), every="PT1S", overlap="CANCEL_OTHER")
    )
    await next_time(driver)


async def next_time(driver: Driver) -> None:
    driver.clock.advance(1)
    with trio.fail_after(60):
        while await driver.engine.schedules.fire_once():
            pass


async def a_run_in_another_ones_place_that_had_called(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(CHILD_DIES)
    await scheduled(driver, CALLS)
    await settle(driver)
    await quiet()
    await next_time(driver)


async def the_end_of_a_scheduled_run(driver: Driver, quiet: Quiet) -> None:
    await driver.upload(CHILD_DIES)
    await driver.engine.schedules.put("s", ScheduleSpec(definition_id="child", every="PT1S", overlap="BUFFER_ONE"))
    await next_time(driver)
    await next_time(driver)
    job = await driver.one("work")
    await quiet()
    await driver.complete(job)


async def a_sleep_of_a_run(driver: Driver, quiet: Quiet) -> None:
    run = await runs.begin(driver)
    await quiet()
    ((at,),) = driver.rows("SELECT extract(epoch FROM penstock_now())::float8 + 2")
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=at)


async def a_run_that_is_blocked(driver: Driver, quiet: Quiet) -> None:
    run = await runs.begin(driver)
    await quiet()
    await driver.engine.journal.block(run.run_lease, "no code")


async def a_run_that_ends_its_executors(driver: Driver, quiet: Quiet) -> None:
    run = await runs.begin(driver)
    for _ in range(2):
        await driver.expire(60)
        [run] = await runs.take(driver)
    await quiet()
    driver.clock.advance(60)
    await driver.engine.leases.expire([(run.run_lease.instance, run.run_lease.seq, run.run_lease.attempt)])


async def begun_child(driver: Driver) -> tuple[Any, Any]:
    await driver.engine.code.register(AUDIT)
    run = await runs.begin(driver)
    await driver.engine.children.start(run.run_lease, "/0", AUDIT, msgspec.json.encode({}), "c-1")
    [child] = await driver.engine.code.take(runs.HOLDER, [AUDIT], 1, wait_s=5)
    return run, child


async def the_end_of_a_runs_child(driver: Driver, quiet: Quiet) -> None:
    _, child = await begun_child(driver)
    await quiet()
    assert await runs.finish(driver, child.run_lease)


async def the_end_of_a_run_with_a_child(driver: Driver, quiet: Quiet) -> None:
    run, _ = await begun_child(driver)
    await quiet()
    assert await driver.engine.journal.finish(run.run_lease, RunEnd(InstanceStatus.FAILED, failure="no"), mail=0)


async def a_chain_into_a_wait(driver: Driver, quiet: Quiet) -> None:
    after = definition(assign("set", {"a": "1"}, "hold"), wait("hold", duration="PT2S"), end(), definition_id="after")
    await driver.upload(after)
    await driver.run(definition(task("work"), end(), definition_id="first", **AFTER))
    job = await driver.one("work")
    await quiet()
    await driver.complete(job)


CASES: Final = (
    a_time_limit_of_the_first_step, a_time_limit_of_the_next_step, a_time_limit_of_a_persons_step_behind_a_join,
    a_wait, a_wait_that_an_expression_says, a_pause_before_a_retry, a_pause_of_an_item, a_pause_of_a_compensation,
    a_delayed_start, a_start_at_a_time, a_debounced_start, a_debounced_start_that_is_brought_forward,
    a_throttled_start, the_end_of_a_call, the_failure_of_a_call, the_cancel_of_a_caller, the_retry_of_a_caller,
    a_message_that_was_kept, a_retry_at_a_step_with_a_time_limit, a_skip_to_a_wait, a_move_to_a_wait,
    a_migration_that_brings_a_time_limit, a_run_in_another_ones_place_that_had_called, the_end_of_a_scheduled_run,
    a_sleep_of_a_run, a_run_that_is_blocked, a_run_that_ends_its_executors, the_end_of_a_runs_child,
    the_end_of_a_run_with_a_child, a_chain_into_a_wait,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_who_writes_a_due_time_says_so(driver: Driver, case: Callable[[Driver, Quiet], Awaitable[None]]) -> None:
    """By what this engine waits for, and by what it tells the others. The database's clock stands still, so both can be
    compared with the row."""
    reported_s: list[float] = []
    driver.engine.events.armed.listen(reported_s.append)
    driver.clock.stop()

    async def quiet() -> None:
        await settle(driver)
        driver.engine.timers._next_at = trio.current_time() + AN_HOUR_S
        reported_s.clear()

    await case(driver, quiet)
    ((left_s,),) = driver.rows("SELECT extract(epoch FROM min(fire_at) - penstock_now())::float8 FROM timer")
    assert left_s is not None
    assert driver.engine.timers._next_at - trio.current_time() <= left_s + 0.001
    assert min(reported_s) <= left_s + 0.001


async def test_due_times_of_an_engine_that_died_are_looked_for(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have written one and have died before it told: that was found by the next look, up to 5 s later."""
    for module in ("advance.timers", "schedules.schedules"):
        monkeypatch.setattr(f"penstock.engine.{module}.SCAN_INTERVAL_MAX_S", AN_HOUR_S)
    probed: set[str] = set()

    def observe(kind: type[Timers | Schedules]) -> None:
        fire_once = kind.fire_once

        async def probe(self: Any) -> int:
            fired = await fire_once(self)
            probed.add(kind.__name__)
            return fired

        monkeypatch.setattr(kind, "fire_once", probe)

    async def both() -> bool:
        return probed == {"Timers", "Schedules"}

    observe(Timers)
    observe(Schedules)
    async with serving(database_dsn) as served:
        await wait_until(both)
        probed.clear()
        served.engine.events.engine_lost()
        await wait_until(both, lambda: f"only {probed} looked again")
