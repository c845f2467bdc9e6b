"""CANCEL_OTHER: the run that another one takes the place of ends in the transaction that starts that one."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import trio

from penstock.engine.advance import timers
from penstock.engine.advance.context_loader import ContextLoader
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import Conflict
from penstock.testing.definitions import Json, definition, end
from penstock.wire.schedule import ScheduleSpec
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_calls import settle
from tests.shapes import call, gateway, joining, task, user, wait

__all__ = ["driver", "make_driver"]

OPEN = "SELECT count(*) FROM instance i JOIN scheduled s ON s.instance_id = i.id WHERE i.status = 0"
SHAPES: dict[str, Json] = {
    "a job": definition(task("work"), end(), definition_id="report"),
    "branches": definition(
        gateway("fork", "work", "ask", "hold"), task("work", "join"), user("ask", "join"), wait("hold", "join"),
        joining(), end(), definition_id="report",
    ),
    "items": definition(
        task("work", forEach={"items": "${[1, 2, 3]}", "collect": "${result}", "into": "all"}), end(),
        definition_id="report",
    ),
}  # fmt: skip


@pytest.fixture
def only_when_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine looks for timers that are due when it is told of one, never because so much time has passed."""
    monkeypatch.setattr(timers, "SCAN_INTERVAL_MAX_S", 3_600.0)


async def scheduled(driver: Driver, body: Json, **fields: Any) -> str:
    """The first run of a schedule."""
    driver.clock.stop()
    await driver.upload(body)
    await driver.engine.schedules.put("s", ScheduleSpec(definition_id="report", every="PT1S", overlap="CANCEL_OTHER"))
    await driver.engine.schedules.fire_once()
    return await next_run(driver)


async def next_run(driver: Driver) -> str:
    """Let the next time come, and look once. No timer is fired."""
    driver.clock.advance(1)
    with trio.fail_after(60):
        while not await driver.engine.schedules.fire_once():
            await trio.sleep(0.01)
    [(last,)] = driver.rows("SELECT last_instance FROM schedule")
    return f"{last:x}"


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_old_run_ends_as_the_new_one_begins(driver: Driver, shape: str) -> None:
    old = await scheduled(driver, SHAPES[shape])
    leased = await driver.one("work")
    new = await next_run(driver)
    assert new != old
    assert driver.rows(OPEN) == [(1,)]
    view = await driver.view(old)
    assert (view.status, view.failure_reason) == ("CANCELLED", "a later run of its schedule took its place")
    assert {job.instance_id for job in await driver.poll("work")} == {new}
    with pytest.raises(Conflict):
        await driver.complete(leased, attempt=leased.attempt)
    kinds = [record.kind for record in (await driver.engine.instances.audit(old)).items]
    assert kinds.count("CANCELLED") == 1


async def test_six_runs_a_second_apart_are_never_two(make_driver: MakeDriver) -> None:
    driver, other = make_driver(1), make_driver(2)
    await scheduled(driver, SHAPES["branches"])
    for turn in range(6):
        await next_run(other if turn % 2 else driver)
        assert driver.rows(OPEN) == [(1,)]
    assert driver.rows("SELECT count(*) FROM ready") == [(1,)]


@pytest.mark.parametrize(
    "count", [8, pytest.param(1_000, marks=pytest.mark.slow(reason="2,000 instances are started, 1,000 cancelled"))]
)
@pytest.mark.usefixtures("only_when_woken")
async def test_what_the_old_run_has_called_is_cancelled_at_once(driver: Driver, count: int) -> None:
    """Never are two runs open, nor a job of the old run's children given to anybody."""
    await driver.upload(definition(task("pack"), end(), definition_id="child"))
    each = {"items": f"${{{[*range(count)]}}}", "parallel": count}
    await scheduled(driver, definition(call("ship", "child", forEach=each), end(), definition_id="report"))
    await settle(driver)
    await next_run(driver)
    assert driver.rows(OPEN) == [(1,)]
    with trio.fail_after(60):
        await driver.engine.timers.wait_due()
    await settle(driver)
    children = "SELECT count(*) FILTER (WHERE status = 0), count(*) FILTER (WHERE status = 3) FROM instance i"
    assert driver.rows(f"{children} JOIN called c ON c.id = i.id") == [(count, count)]
    assert driver.rows("SELECT count(*) FROM ready") == [(count,)]


async def test_a_look_waits_for_who_holds_the_old_run(driver: Driver, nursery: trio.Nursery) -> None:
    old = await scheduled(driver, SHAPES["a job"])
    probed: list[str] = []

    async def probe() -> None:
        probed.append(await next_run(driver))

    with psycopg.connect(driver.dsn) as holder:
        holder.execute("SELECT FROM token FOR UPDATE")
        nursery.start_soon(probe)
        with trio.fail_after(60):
            while not driver.engine.schedules._firings.statistics().lock_waiting:
                await trio.sleep(0.01)
        assert driver.rows(OPEN) == [(1,)]
        assert await driver.status(old) == "ACTIVE"
    with trio.fail_after(60):
        while not probed:
            await trio.sleep(0.01)
    assert driver.rows(OPEN) == [(1,)]
    assert await driver.status(old) == "CANCELLED"


@pytest.mark.usefixtures("only_when_woken")
async def test_a_run_of_code_is_reported_at_once(driver: Driver) -> None:
    workflow = CodeWorkflow("report")
    await driver.engine.code.register(workflow)
    driver.clock.stop()
    spec = ScheduleSpec(definition_id=workflow.definition_id, every="PT1S", overlap="CANCEL_OTHER")
    await driver.engine.schedules.put("s", spec)
    await driver.engine.schedules.fire_once()
    await next_run(driver)
    await driver.engine.timers.fire_once()
    await next_run(driver)
    with trio.fail_after(60):
        await driver.engine.timers.wait_due()


@pytest.mark.usefixtures("only_when_woken")
async def test_a_caller_told_again_hears_of_it_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: ContextLoader) -> bool:
        return False

    await driver.upload(definition(task("pack"), end(), definition_id="child"))
    with monkeypatch.context() as older:
        older.setattr(ContextLoader, "may_keep_raw", never)
        body = definition(call("ship", "child", output={"n": "${result.n / by}"}), end(), definition_id="parent")
        parent = await driver.run(body, {"by": 0})
        await driver.complete(await driver.one("pack"), {"n": 8})
        await settle(driver)
    await driver.retry(parent)
    await driver.due()
    assert driver.rows("SELECT index FROM timer WHERE fire_at <= penstock_now()") == [(-4,)]
    with trio.fail_after(60):
        await driver.engine.timers.wait_due()
    await settle(driver)
