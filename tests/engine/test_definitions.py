"""Definitions in an engine: parsed away from the loop, and kept within a number of bytes."""

from __future__ import annotations

import psycopg
import pytest
import trio
import trio.testing

from penstock.core.parsing.parsing import parse_definition
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.store.rows import definitions as store
from penstock.testing.definitions import Json, definition, end, service, step
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.engine.test_long_advances import no_turn
from tests.shapes import task, user
from tests.waiting import wait_until


def large(name: str, *before: Json, steps: int = 40) -> Json:
    tasks = [service(f"s{n}", f"s{n + 1}" if n + 1 < steps else "end") for n in range(steps)]
    return definition(*before, *tasks, end(), definition_id=name)


async def test_others_are_served_while_a_definition_is_parsed_again(make_driver: MakeDriver) -> None:
    """An engine that met 1.3 MB for the first time stood still for 20 s."""
    await make_driver().upload(large("large"))
    driver = make_driver()
    await driver.upload(definition(service("x", "end"), end(), definition_id="small"))
    started = trio.Event()

    async def start() -> None:
        await driver.start("large")
        started.set()

    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert driver.engine.definitions.cached(1) is None
        assert not started.is_set()
        assert (await driver.engine.definitions.get("small")).version == 1
    assert started.is_set()
    assert driver.engine.definitions.cached(1) is not None


async def test_a_crowd_of_uploads_holds_up_nobody_else(driver: Driver) -> None:
    body = large("large")
    read = []

    async def upload() -> None:
        await driver.engine.definitions.parse(lambda: read.append(1) or body, 10_000)

    async with trio.open_nursery() as nursery:
        async with no_turn():
            for _ in range(20):
                nursery.start_soon(upload)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await driver.upload(
                definition(step("t", "TRANSFORMATION", transformations={"x": 1}, nextStep="end"), end())
            )
        # the first of the crowd, and then this one
        view = await driver.start("test", {"n": 1})
        assert view.status == "COMPLETED"
    assert len(read) == 20


async def test_the_cache_is_bounded_in_bytes(make_driver: MakeDriver) -> None:
    driver = make_driver(definition_cache_max_bytes=1_048_576)
    size = parse_definition(large("d0")).memory_bytes
    count = 3 * 1_048_576 // size
    for n in range(count):
        await driver.upload(large(f"d{n}"))
    kept = [key for key in range(1, count + 1) if driver.engine.definitions.cached(key)]
    assert kept == list(range(count + 1 - 1_048_576 // size, count + 1))
    assert (await driver.start("d0")).status == "ACTIVE"
    assert driver.engine.definitions.cached(1) is not None
    for _ in range(3):
        await driver.upload(large("d0"))  # the same again is counted once
    assert driver.engine.definitions._cached_bytes <= 1_048_576


async def test_a_definition_larger_than_the_cache_is_usable(make_driver: MakeDriver) -> None:
    driver = make_driver(definition_cache_max_bytes=1_048_576)
    await driver.upload(large("huge", steps=1_000))
    await driver.upload(large("large"))
    for name in ("huge", "large", "huge"):
        assert (await driver.start(name)).status == "ACTIVE"


async def test_a_definition_is_parsed_for_an_instance_without_a_lock(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_driver()
    await first.upload(large("large", user("u", "s0")))
    instance = (await first.start("large")).id
    driver = make_driver()
    await driver.upload(definition(user("u", "end"), end(), definition_id="small"))
    small = (await driver.start("small")).id
    asked = _noted(monkeypatch, "by_key")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, no_turn():
            nursery.start_soon(driver.finish_task, instance, "u")
            await asked.wait()
            await wait_until(lambda: _is_free(driver, instance))
            await driver.finish_task(small, "u")
            assert driver.engine.definitions.cached(1) is None
    assert (await driver.view(instance)).current_step_ids == ["s0"]


async def test_a_chained_definition_is_parsed_without_a_lock(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_driver()
    await first.upload(large("following"))
    chained = {"autoStartNextWorkflow": True, "nextWorkflowId": "following"}
    await first.upload(
        {**definition(task("x"), end(), definition_id="chain"), **chained}
    )  # which looks at what follows
    driver = make_driver()
    instance = (await driver.start("chain")).id
    asked = _noted(monkeypatch, "find")
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, no_turn():
            nursery.start_soon(driver.complete, await driver.one("x"))
            await asked.wait()
            await wait_until(lambda: _is_free(driver, instance))
            assert not driver.engine.full_path.long.statistics().idle  # it waits there for its turn to be evaluated
            assert driver.engine.definitions.cached(1) is None
    (child,) = (await driver.engine.instances.list(InstanceFilter(definition_id="following"), 0, 10)).items
    assert (child.parent_instance_id, child.current_step_ids) == (instance, ["s0"])


async def test_a_chain_larger_than_the_definition_cache_ends(make_driver: MakeDriver) -> None:
    driver = make_driver(definition_cache_max_bytes=1_048_576)
    names = [f"d{n}" for n in range(4)]
    for name, following in zip(names, [*names[1:], None], strict=True):
        first = step("d", "DECISION", conditionalNextSteps={"n == 0": "s0", "true": "end"})
        body = large(name, first, steps=400)
        await driver.upload({**body, "autoStartNextWorkflow": following is not None, "nextWorkflowId": following or ""})
    with trio.fail_after(30):
        assert (await driver.start("d0", {"n": 1})).status == "COMPLETED"
    (last,) = (await driver.engine.instances.list(InstanceFilter(definition_id="d3"), 0, 10)).items
    assert last.status == "COMPLETED"


def _noted(monkeypatch: pytest.MonkeyPatch, name: str) -> trio.Event:
    """Set once a definition has been asked for in this way."""
    ask, event = getattr(store, name), trio.Event()

    async def noted(*args: object) -> object:
        found = await ask(*args)
        event.set()
        return found

    monkeypatch.setattr(store, name, noted)
    return event


async def _is_free(driver: Driver, instance: str) -> bool:
    """Whether nobody has locked the instance."""

    def probe() -> bool:
        with psycopg.connect(driver.dsn) as connection:
            sql = "SELECT id FROM token WHERE instance_id = %s FOR UPDATE SKIP LOCKED"
            return connection.execute(sql, (number(instance),)).fetchall() != []

    return await trio.to_thread.run_sync(probe)
