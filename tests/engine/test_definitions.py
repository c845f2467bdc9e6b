"""Definitions in an engine: parsed away from the loop, and kept within a number of bytes."""

from __future__ import annotations

import trio
import trio.testing

from penstock.core.parsing import parse_definition
from penstock.testing.definitions import Json, definition, end, service, step
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_long_advances import no_turn


def large(name: str, steps: int = 40) -> Json:
    tasks = [service(f"s{n}", f"s{n + 1}" if n + 1 < steps else "end") for n in range(steps)]
    return definition(*tasks, end(), definition_id=name)


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
        await driver.engine.definitions.parse(lambda: read.append(1) or parse_definition(body), 10_000)

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


async def test_one_that_is_larger_than_the_cache_is_used_all_the_same(make_driver: MakeDriver) -> None:
    driver = make_driver(definition_cache_max_bytes=1_048_576)
    await driver.upload(large("huge", steps=1_000))
    await driver.upload(large("large"))
    for name in ("huge", "large", "huge"):
        assert (await driver.start(name)).status == "ACTIVE"
