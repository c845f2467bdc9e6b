"""A bulk operation whose engine is known to be dead is taken over at once; an engine that says nothing is told of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.engine.repair.bulk import DEAD_MAX, LEASE_S
from penstock.engine.status.attention import of_engines
from penstock.store.rows import bulk as store
from penstock.store.rows.activity import KnownEngine
from penstock.store.rows.engines import NUMBER_LEASE_S
from penstock.testing.definitions import linear
from penstock.wire.bulk import BulkFilter, BulkRequest
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver

__all__ = ["driver", "make_driver"]

DEAD, OTHER = "11111111", "22222222"


async def begun_by_another(driver: Driver, number: int = 7, tag: str = DEAD) -> str:
    """An operation that the engine of this number works on, whose lease has just begun."""
    driver.rows(
        "INSERT INTO engine VALUES (%s, %s, penstock_now() + interval '30 s', 'direct', 'host', 21) RETURNING 1",
        number, f"{tag}-0000-4000-8000-000000000000",
    )  # fmt: skip
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    made = await driver.engine.bulk.create(BulkRequest(action="cancel", filter=BulkFilter(definition_id="linear")))
    async with driver.engine.database.connection() as connection:
        assert await store.claim(connection, number, LEASE_S) is not None
    return made.id


async def test_what_a_dead_engine_worked_on_goes_on_at_once(driver: Driver) -> None:
    driver.clock.stop()
    id = await begun_by_another(driver)
    async with driver.engine.database.connection() as connection:
        assert await store.claim(connection, 0, LEASE_S) is None
    driver.engine.bulk.on_dead([OTHER, DEAD])
    await driver.engine.bulk.step()
    view = await driver.engine.bulk.get(id)
    assert (view.state, view.done) == ("DONE", 3)


@pytest.mark.parametrize("others", [[], [OTHER], [OTHER] * 2 * DEAD_MAX], ids=["none", "another", "many times"])
async def test_what_a_living_engine_works_on_is_left_to_it(driver: Driver, others: list[str]) -> None:
    id = await begun_by_another(driver)
    driver.engine.bulk.on_dead(others)
    async with driver.engine.database.connection() as connection:
        assert await store.claim(connection, 0, LEASE_S, others[:5]) is None
        assert await store.hold(connection, int(id), 7, LEASE_S)


async def test_a_new_engine_with_that_number_keeps_its_work(driver: Driver) -> None:
    await begun_by_another(driver, tag=OTHER)
    async with driver.engine.database.connection() as connection:
        assert await store.claim(connection, 0, LEASE_S, [DEAD]) is None


async def test_who_was_taken_for_dead_and_lives_writes_no_page(driver: Driver) -> None:
    id = await begun_by_another(driver)
    async with driver.engine.database.connection() as connection:
        assert await store.claim(connection, 0, LEASE_S, [DEAD]) is not None
        assert not await store.hold(connection, int(id), 7, LEASE_S)


@pytest.mark.parametrize(
    ("age_s", "kind"), [(0, None), (9.9, None), (10, "engine-silent"), (29.9, "engine-silent"), (30, "engine-gone")]
)
def test_an_engine_that_says_nothing_is_reported(age_s: float, kind: str | None) -> None:
    now = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
    engine = KnownEngine(3, "direct", "host", 21, NUMBER_LEASE_S - age_s, None)
    reported = of_engines([engine], now)
    assert [one.kind for one in reported] == ([] if kind is None else [kind])
    if kind == "engine-silent":
        since = now - timedelta(seconds=age_s)
        assert reported[0].text == f"Engine 3: No heartbeat since {since:%H:%M:%S} UTC"
