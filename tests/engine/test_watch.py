"""Watching instances: what has changed is told once, within a second, and costs nothing while nobody watches."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from penstock.engine.status import watch as module
from penstock.engine.status.watch import Changes, Watch
from penstock.errors import BadRequest, TooManyRequests
from penstock.testing.definitions import linear
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver()


async def begin(watch: Watch, *instances: str, newer_than: str | None = None, overview: str | None = None) -> str:
    """The tag of the first call, which tells of all."""
    found = await watch.wait(None, instances, newer_than, 0, overview)
    assert found is not None
    assert found.changed == list(instances)
    return found.tag


async def reported(
    watch: Watch, since: str, *instances: str, newer_than: str | None = None, overview: str | None = None
) -> Changes | None:
    """After one look."""
    found: list[Changes | None] = []

    async def wait() -> None:
        found.append(await watch.wait(since, instances, newer_than, 30, overview))

    with trio.move_on_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await watch.poll()
            await watch.poll_overviews()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    return found[0] if found else None


async def test_each_change_is_reported_once(driver: Driver) -> None:
    watch = driver.engine.watch
    one, other = await driver.run(linear(1, job_type="j")), (await driver.start("linear")).id
    tag = await begin(watch, one, other)
    assert await reported(watch, tag, one, other) is None
    job = await driver.one("j")
    changes = await reported(watch, tag, one, other)
    assert changes is not None
    assert changes.changed == [job.instance_id]
    assert await reported(watch, changes.tag, one, other) is None
    await driver.complete(job)
    again = await reported(watch, changes.tag, one, other)
    assert again is not None
    assert again.changed == [job.instance_id]
    # Whoever was not there meanwhile is told at once.
    late = await watch.wait(tag, [one, other], None, 0)
    assert late is not None
    assert late.changed == [job.instance_id]


async def test_what_happened_between_two_calls_is_reported(driver: Driver) -> None:
    watch = driver.engine.watch
    instance = await driver.run(linear(1, job_type="j"))
    tag = await begin(watch, instance)
    await driver.one("j")
    await watch.poll()  # nobody watches, others do
    changes = await reported(watch, tag, instance)
    assert changes is not None
    assert changes.changed == [instance]


async def test_newer_instances_are_reported(driver: Driver) -> None:
    watch = driver.engine.watch
    first = await driver.run(linear(1, job_type="j"))
    tag = await begin(watch, newer_than=first)
    assert await reported(watch, tag, newer_than=first) is None
    second = (await driver.start("linear")).id
    changes = await reported(watch, tag, newer_than=first)
    assert changes is not None
    assert changes.newer == 1
    assert await reported(watch, changes.tag, newer_than=second) is None
    third = [(await driver.start("linear")).id for _ in range(3)][-1]
    changes = await reported(watch, changes.tag, newer_than=first)
    assert changes is not None
    assert changes.newer == 4
    begun = await watch.wait(None, [], second, 0)
    assert begun is not None
    assert begun.newer == 3
    assert (await watch.wait(None, [], third, 0)) == msgspec.structs.replace(begun, newer=0)


async def test_one_call_tells_changes_and_the_overview(driver: Driver) -> None:
    watch, overview = driver.engine.watch, driver.engine.overview
    instance = await driver.run(linear(1, job_type="j"))
    first = await watch.wait(None, [instance], None, 0, "15m")
    assert first is not None
    assert first.overview is not None
    assert first.overview.open.count == 1
    overview.forget()
    assert await reported(watch, first.tag, instance, overview="15m") is None  # only its time is another one
    await driver.start("linear")
    overview.forget()
    changes = await reported(watch, first.tag, instance, overview="15m")
    assert changes is not None
    assert changes.changed == []
    assert changes.overview is not None
    assert changes.overview.open.count == 2
    await driver.complete(await driver.one("j"))
    change = await reported(watch, changes.tag, instance, overview="15m")  # the overview is not two seconds old
    assert change is not None
    assert (change.changed, change.overview) == ([instance], None)


async def test_a_newcomers_overview_is_told_to_others(driver: Driver) -> None:
    watch = driver.engine.watch
    tag = await begin(watch, overview="1h")
    await driver.run(linear(1))
    driver.engine.overview.forget()
    found: list[Changes | None] = []

    async def wait() -> None:
        found.append(await watch.wait(tag, [], None, 30, "1h"))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await begin(watch, overview="1h")
    (changes,) = found
    assert changes is not None
    assert changes.overview is not None
    assert await reported(watch, tag, overview="24h") is not None
    assert not watch._ranges
    with pytest.raises(BadRequest, match="range"):
        await watch.wait(None, [], None, 0, "2h")


async def test_another_engines_tag_begins_anew(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    instance = await one.run(linear(1))
    tag = await begin(one.engine.watch, instance)
    for since in (tag, "", "x", "-", tag.partition("-")[0] + "-x", tag + "9" * 30):
        found = await other.engine.watch.wait(since, [instance], None, 0)
        assert found is not None
        assert found.changed == [instance]


async def test_a_stop_answers_those_who_wait(driver: Driver) -> None:
    watch = driver.engine.watch
    instance = await driver.run(linear(1))
    tag = await begin(watch, instance)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.wait, tag, [instance], None, 30)
            await trio.testing.wait_all_tasks_blocked()
            driver.engine.drain()
    assert await watch.wait(tag, [instance], None, 30) is None


async def test_nobody_who_watches_costs_no_look(driver: Driver) -> None:
    """And one who goes away is forgotten."""
    watch = driver.engine.watch
    instance = await driver.run(linear(1))
    tag = await begin(watch, instance)
    with trio.move_on_after(0.01):
        await watch.wait(tag, [instance], None, 30)
    assert (watch._pending, len(watch._watched)) == (0, 0)
    async with trio.open_nursery() as nursery:
        watch._wanted = trio.Event()
        nursery.start_soon(watch.step)
        await trio.testing.wait_all_tasks_blocked()
        assert watch._scans == int(tag.partition("-")[2])
        nursery.cancel_scope.cancel()


async def test_what_is_watched_is_bounded(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = driver.engine.watch
    with pytest.raises(BadRequest, match="at most 200"):
        await watch.wait(None, ["1f"] * 201, None, 0)
    for wrong in ("x y", "", "-1"):
        with pytest.raises(BadRequest, match="is not an instance id"):
            await watch.wait(None, [wrong], None, 0)
    monkeypatch.setattr(module, "CALLS_MAX", 0)
    with pytest.raises(TooManyRequests):
        await watch.wait(None, ["1f"], None, 0)
    assert not watch._watched
