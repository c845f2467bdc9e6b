"""Lists read by key: whatever changes meanwhile, nothing is left out and nothing comes twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import psycopg
import pytest
import trio

from penstock.engine.instances.instance_filter import InstanceFilter, listed_by
from penstock.engine.instances.instances import FIRST_READ_BYTES, LARGE_READS_AT_ONCE, PIECE_BYTES
from penstock.engine.requests.ids import read_instance
from penstock.engine.requests.paging import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, page_bounds
from penstock.errors import BadRequest
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import instances as store
from penstock.testing.definitions import definition, end
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.shapes import task, user

STATUSES = (None, "ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED")


async def walk(
    driver: Driver, definition_id: str | None, status: str | None, business_key: str | None, limit: int
) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        wanted = InstanceFilter(definition_id=definition_id, status=status, business_key=business_key)
        part = await driver.engine.instances.list_slice(wanted, cursor, limit)
        assert len(part.items) <= limit
        found += [item.id for item in part.items]
        if part.next is None:
            return found
        cursor = part.next


async def many(driver: Driver) -> None:
    """Two versions of a definition and another one, instances in every status."""
    first = definition(task("x", "u"), user("u", "end"), end(), definition_id="a")
    await driver.upload(first)
    await driver.upload(definition(user("u", "end"), end(), definition_id="b"))
    for n in range(60):
        if n == 30:
            await driver.upload({**first, "name": "second"})
        view = await driver.start("ab"[n % 2], business_key=f"k{n % 3}")
        if n % 2 == 0:
            (job,) = await driver.poll("x")
            if n % 3 == 0:
                await driver.fail(job, retryable=False)
            elif n % 3 == 1:
                await driver.complete(job)
        if n % 7 == 0 and await driver.status(view.id) == "WAITING":
            await driver.finish_task(view.id, "u")
        if n % 5 == 0 and await driver.status(view.id) in ("ACTIVE", "WAITING"):
            await driver.cancel(view.id)


async def test_slices_hold_what_pages_hold(driver: Driver) -> None:
    await many(driver)
    seen = 0
    for definition_id, status, key in product((None, "a", "b", "none"), STATUSES, (None, "k1")):
        wanted = InstanceFilter(definition_id=definition_id, status=status, business_key=key)
        page = await driver.engine.instances.list(wanted, 0, 200)
        ids = [item.id for item in page.items]
        seen += bool(ids)
        for limit in (1, 7, 60):
            assert await walk(driver, definition_id, status, key, limit) == ids
    assert seen > 20


async def test_lists_that_ask_for_nothing_else_are_known_as_such(make_driver: MakeDriver) -> None:
    """All instances are estimated by the table's statistics, all that wait are found in the index of what is parked."""
    driver = make_driver(list_exact_total_limit=1)
    await driver.upload(definition(user("u", "end"), end(), definition_id="a"))
    for _ in range(3):
        await driver.start("a")
    with psycopg.connect(driver.dsn, autocommit=True) as eyes:
        eyes.execute("ANALYZE instance")
    page = await driver.engine.instances.find(InstanceFilter(), 0, 10)
    assert (len(page.items), page.total, page.total_is_estimate) == (3, 3, True)
    async with driver.engine.database.connection() as connection:
        waiting = await listed_by(connection, InstanceFilter(status="WAITING"))
    assert waiting == store.Listed(status="WAITING")


KEYS = ("a", "A", "ab", "a%b", "a_b", "a\\b", "á", "ä", "b", "Zebra", "zebra", "\U0010ffff", "\U0010ffffz", "ß", "a b")


async def test_business_keys_are_found_by_how_they_begin(driver: Driver) -> None:
    """Byte by byte, whatever the collation of the database; `%` and `_` are letters like others."""
    await driver.upload(definition(user("u", "end"), end(), definition_id="a"))
    for key in KEYS:
        await driver.start("a", business_key=key)
    for prefix in (*KEYS, "a\\", "Z", "%", "c"):
        for status in (None, "WAITING"):
            wanted = InstanceFilter(business_key_prefix=prefix, status=status)
            found = (await driver.engine.instances.list_slice(wanted, None, 200)).items
            assert [item.business_key for item in found] == [key for key in KEYS[::-1] if key.startswith(prefix)]
            assert (await driver.engine.instances.count(wanted)).count == len(found)
    with pytest.raises(BadRequest, match="businessKeyPrefix: can't be combined"):
        await driver.engine.instances.count(InstanceFilter(business_key="a", business_key_prefix="a"))


async def test_a_walk_meets_everything_that_stays_and_nothing_twice(driver: Driver) -> None:
    await many(driver)
    source = random.Random(1)
    before = await walk(driver, None, "WAITING", None, 60)
    found: list[str] = []
    gone: set[str] = set()
    cursor: str | None = None
    while True:
        part = await driver.engine.instances.list_slice(InstanceFilter(status="WAITING"), cursor, 3)
        found += [item.id for item in part.items]
        for id in (*(item.id for item in part.items), source.choice(before)):
            if id not in gone:
                await driver.cancel(id)
                gone.add(id)
        await driver.start("b")
        if part.next is None:
            break
        cursor = part.next
    assert len(found) == len(set(found))
    assert set(before) - gone <= set(found) <= set(before)
    assert set(found) | gone == set(before)


async def test_failed_jobs_and_definitions_are_listed_by_key(driver: Driver) -> None:
    await many(driver)
    jobs = driver.engine.jobs
    page = await jobs.failed(0, 200)
    assert len(page.items) == 10
    found = []
    cursor: str | None = None
    while True:
        part = await jobs.failed_slice(cursor, 4, "x")
        found += part.items
        for item in part.items:
            await driver.retry(item.instance_id)
        if part.next is None:
            break
        cursor = part.next
    assert found == page.items
    assert (await jobs.failed_slice(None, 4)).items == []
    first = await driver.engine.definitions.list_slice(None, None, 1)
    second = await driver.engine.definitions.list_slice(None, first.next, 1)
    assert [(item.id, item.version) for item in (*first.items, *second.items)] == [("a", 2), ("b", 1)]
    assert second.next is None
    assert (await driver.engine.definitions.list_slice("B", None, 0)).items == second.items


@pytest.mark.parametrize("cursor", ["x!", "-", "1f-2", "f" * 100])
async def test_a_cursor_that_no_list_gave_is_refused(driver: Driver, cursor: str) -> None:
    with pytest.raises(BadRequest, match="cursor"):
        await driver.engine.instances.list_slice(InstanceFilter(), cursor, 5)
    with pytest.raises(BadRequest, match="cursor"):
        await driver.engine.jobs.failed_slice(cursor, 5)


@pytest.mark.parametrize("at_one_moment", [False, True])
async def test_an_audit_trail_is_read_by_key_while_it_grows(driver: Driver, at_one_moment: bool) -> None:
    if at_one_moment:
        driver.clock.stop()
    instance = await driver.run(definition(task("x", "y", retryCount=9), task("y"), end()))
    for _ in range(4):
        await driver.fail(await driver.one("x"))
    read = driver.engine.instances.audit
    whole = (await read(instance)).items
    found = []
    cursor: str | None = None
    while True:
        part = await read(instance, 2, 0, cursor)
        found += part.items
        if part.next is None:
            break
        cursor = part.next
    assert found == whole
    assert len(found) == 1 + 2 * 4
    if at_one_moment:
        return
    assert cursor is not None
    await driver.fail(await driver.one("x"), retryable=False)
    until_the_end = (await read(instance, 100, 0, cursor)).items
    await driver.retry(instance)  # takes the end back
    await driver.complete(await driver.one("x"))
    after_all = (await read(instance, 100, 0, cursor)).items
    assert until_the_end[-1].kind == "INSTANCE_FAILED"
    assert after_all[: len(until_the_end) - 1] == until_the_end[:-1]
    assert [record.kind for record in after_all][-3:] == ["RETRIED", "JOB_DISPATCHED", "STEP_COMPLETED"]
    with pytest.raises(BadRequest, match="cursor"):
        await read(instance, 2, 0, "x")
    with pytest.raises(BadRequest, match="after"):
        await read(instance, 2, 3, "1-1-1")


# -- large variables


async def test_large_reads_are_served_one_at_a_time(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_driver()
    await driver.upload(definition(user("u", "end"), end(), definition_id="large"))
    ids = [(await driver.start("large", {"text": "x" * 2 * FIRST_READ_BYTES})).id for _ in range(6)]
    running, most = 0, 0
    view = store.view

    async def noted(connection: TrioConnection, wanted: Sequence[int], max_bytes: int | None = None) -> Any:
        nonlocal running, most
        large = max_bytes is not None and max_bytes > FIRST_READ_BYTES
        running += large
        most = max(most, running)
        try:
            return await view(connection, wanted, max_bytes)
        finally:
            running -= large

    monkeypatch.setattr(store, "view", noted)

    async def read_all() -> None:
        assert len([view async for piece in instances.read(list(map(read_instance, ids))) for view in piece]) == 6

    instances = driver.engine.instances
    async with trio.open_nursery() as nursery:
        for id in ids:
            nursery.start_soon(instances.get, id)
            nursery.start_soon(read_all)
    assert most == LARGE_READS_AT_ONCE


async def test_after_a_large_instance_postgresql_encodes_few_at_once(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    await driver.upload(definition(user("u", "end"), end(), definition_id="large"))
    sizes = [PIECE_BYTES] * 20 + [10] * 20
    ids = [(await driver.start("large", {"text": "x" * size})).id for size in sizes]
    asked: list[int] = []
    view = store.view

    async def noted(connection: TrioConnection, wanted: Sequence[int], max_bytes: int | None = None) -> Any:
        asked.append(len(wanted))
        return await view(connection, wanted, max_bytes)

    monkeypatch.setattr(store, "view", noted)
    found = [view async for piece in driver.engine.instances.read(list(map(read_instance, ids))) for view in piece]
    assert [(view.id, len(variables_of(view)["text"])) for view in found] == list(zip(ids, sizes, strict=True))
    assert sum(asked) <= len(sizes) + 3 * len(sizes)  # at first all of them; 16 for each large one before


def test_a_page_has_a_size_between_one_and_the_most() -> None:
    assert page_bounds(3, 10) == (10, 30)
    assert page_bounds(3, PAGE_SIZE_MAX + 1) == (PAGE_SIZE_MAX, 3 * PAGE_SIZE_MAX)
    assert page_bounds(1, 0) == (PAGE_SIZE_DEFAULT, PAGE_SIZE_DEFAULT)
