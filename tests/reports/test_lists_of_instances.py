"""Issue 39, point 20: instances at a step could not be listed, and a list had one order."""

from __future__ import annotations

import datetime as dt
from itertools import product
from typing import Any

import psycopg
import pytest

from penstock.engine.instances.instance_filter import BY_CHANGE, BY_END, BY_KEY, NEWEST, OLDEST, InstanceFilter
from penstock.engine.requests.ids import read_instance
from penstock.errors import BadRequest
from penstock.store.rows import instances as store
from penstock.testing.definitions import definition, end
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.shapes import gateway, joining, task, user

__all__ = ["make_driver"]


async def gives_up(*_: Any, **__: Any) -> list[int]:
    raise psycopg.errors.QueryCanceled


async def listed(driver: Driver, limit: int = 100, **wanted: Any) -> list[str]:
    """All of them, read in slices."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        part = await driver.engine.instances.list_slice(InstanceFilter(**wanted), cursor, limit)
        assert len(part.items) <= limit
        found += [item.id for item in part.items]
        cursor = part.next
        if cursor is None:
            return found


async def shops(driver: Driver) -> dict[str, list[str]]:
    """Two versions, in which the step has different numbers; a branch; a waiting and an ended one."""
    first = definition(task("pay", "ask"), user("ask", "end"), end(), definition_id="shop")
    second = definition(user("check", "pay"), task("pay", "ask"), user("ask", "end"), end(), definition_id="shop")
    both = definition(
        gateway("fork", "pay", "ask"), task("pay", "join"), user("ask", "join"), joining(), end(), definition_id="both",
    )  # fmt: skip
    await driver.upload(first)
    found = {"pay": [(await driver.start("shop", business_key=f"k{n}")).id for n in (2, 0)]}
    done = await driver.start("shop", business_key="k1")
    (job,) = [job for job in await driver.poll("pay") if job.instance_id == done.id]
    await driver.complete(job)
    found["ask"] = [done.id]
    await driver.upload(second)
    found["check"] = [(await driver.start("shop", business_key="k3")).id]
    moved = await driver.start("shop")
    await driver.finish_task(moved.id, "check")
    found["pay"].append(moved.id)
    await driver.upload(both)
    found["both"] = [(await driver.start("both")).id]
    return found


@pytest.mark.parametrize("walked", [False, True])
async def test_open_instances_at_a_step_are_listed(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, walked: bool
) -> None:
    """In every version by its own number, also on a branch; the same where there is only time for a walk."""
    driver = make_driver()
    made = await shops(driver)
    if walked:
        monkeypatch.setattr(store, "find_ids", gives_up)
    for name, status in (("pay", "ACTIVE"), ("ask", "WAITING"), ("check", "WAITING")):
        for given in (None, status):
            wanted: dict[str, Any] = {"definition_id": "shop", "current_step_id": name, "status": given}
            assert await listed(driver, **wanted) == made[name][::-1]
            assert await listed(driver, 1, order=OLDEST, **wanted) == made[name]
            assert (await driver.engine.instances.count(InstanceFilter(**wanted))).count == len(made[name])
    for name in ("pay", "ask"):
        assert await listed(driver, definition_id="both", current_step_id=name) == made["both"]
    assert await listed(driver, definition_id="shop", current_step_id="pay", status="WAITING") == []
    assert await listed(driver, definition_id="shop", current_step_id="pay", definition_version=1) == made["pay"][1::-1]
    for nothing in ("end", "nobody"):
        assert await listed(driver, definition_id="shop", current_step_id=nothing) == []
    await driver.cancel(made["ask"][0])
    assert await listed(driver, definition_id="shop", current_step_id="ask") == []


@pytest.mark.parametrize("walked", [False, True])
async def test_a_list_has_three_orders_each_with_the_same_instances(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, walked: bool
) -> None:
    driver = make_driver()
    await driver.upload(definition(task("x", "u"), user("u", "end"), end(), definition_id="a"))
    await driver.upload(definition(user("u", "end"), end(), definition_id="b"))
    keys: dict[str, str | None] = {}
    for n in range(40):
        key = None if n % 9 == 0 else f"{'zaZä%'[n % 5]}{n * 7 % 11}"
        keys[(await driver.start("ab"[n % 2], business_key=key)).id] = key
    for n, job in enumerate(await driver.poll("x", n=20)):
        await (driver.fail(job, retryable=False) if n % 2 else driver.complete(job))
    if walked:
        monkeypatch.setattr(store, "find_ids", gives_up)
        monkeypatch.setattr(store, "WALK_PIECE_ROWS", 3)
        monkeypatch.setattr(store, "KEY_PIECE_ROWS", 3)
        monkeypatch.setattr(store, "WALK_S", 0)
    statuses = (None, "ACTIVE", "WAITING", "COMPLETED", "FAILED")
    for definition_id, status, prefix in product((None, "a", "b"), statuses, (None, "a")):
        wanted: dict[str, Any] = {"definition_id": definition_id, "status": status, "business_key_prefix": prefix}
        newest = await listed(driver, order=NEWEST, **wanted)
        assert newest == sorted(newest, reverse=True)
        assert await listed(driver, 7, order=OLDEST, **wanted) == newest[::-1]
        by_key = sorted((key.encode(), id) for id in newest if (key := keys[id]) is not None)
        assert await listed(driver, 3, order=BY_KEY, **wanted) == [id for _, id in by_key]
    assert len(await listed(driver, order=BY_KEY)) == sum(key is not None for key in keys.values())


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"current_step_id": "pay"}, "needs a definitionId"),
        ({"current_step_id": "pay", "definition_id": "a", "status": "FAILED"}, "stands on no step"),
        (
            {"current_step_id": "pay", "definition_id": "a", "attributes": {"x": "1"}},
            "currentStepId: can only be combined",
        ),
        ({"order": "started"}, "order: must be one of newest, oldest, businessKey, ended, changed"),
        ({"order": BY_END, "instance_key": "x", "definition_id": "a"}, "instanceKey: can only be combined"),
        ({"order": BY_KEY, "status": "FAILED", "cause": "no paper"}, "order: businessKey can only be combined with"),
        ({"order": BY_KEY, "instance_key": "x", "definition_id": "a"}, "instanceKey: can only be combined"),
    ],
)
async def test_what_no_index_gives_is_refused(make_driver: MakeDriver, wanted: dict[str, Any], reason: str) -> None:
    instances = make_driver().engine.instances
    with pytest.raises(BadRequest, match=reason):
        await instances.find_slice(InstanceFilter(**wanted), None, 10)


async def test_newest_first_is_the_order_without_one(make_driver: MakeDriver) -> None:
    """The console names it, also where an instance is found by its key."""
    driver = make_driver()
    await driver.upload(definition(user("u"), end(), definition_id="a"))
    id = (await driver.start("a", instance_key="k")).id
    for order in (None, NEWEST):
        assert await listed(driver, definition_id="a", instance_key="k", order=order) == [id]
        with pytest.raises(BadRequest, match="needs a definitionId"):
            await listed(driver, instance_key="k", order=order)


async def test_a_cursor_is_of_its_own_order(make_driver: MakeDriver) -> None:
    instances = make_driver().engine.instances
    for cursor in ("x", ".AA==", "1.!", "1.%00", "1.AA==", "1.gICA"):
        with pytest.raises(BadRequest, match="cursor"):
            await instances.find_slice(InstanceFilter(order=BY_KEY), cursor, 10)
    for cursor in ("x", "1", "1-x", "1-2-3", "-1-2", f"{2**53}-1", f"1-{2**63}", "1f"):
        with pytest.raises(BadRequest, match="cursor"):
            await instances.find_slice(InstanceFilter(order=BY_END), cursor, 10)
    for order in (OLDEST, BY_KEY, BY_END, BY_CHANGE):
        with pytest.raises(BadRequest, match="order: pages are newest first"):
            await instances.find(InstanceFilter(order=order), 0, 10)


def put_times(driver: Driver, ended: dict[str, int], entered: dict[str, int], claimed: dict[str, int]) -> None:
    """Minutes of one day to come; of an instance that has ended only the first counts."""
    base = dt.datetime(2040, 1, 31, tzinfo=dt.UTC)
    with psycopg.connect(driver.dsn, autocommit=True) as connection:
        for statement, times in (
            ("UPDATE instance SET ended_at = %s WHERE id = %s", ended),
            ("UPDATE token SET entered_at = %s WHERE instance_id = %s", entered),
            ("UPDATE token SET claimed_at = %s WHERE instance_id = %s", claimed),
        ):
            for id, minute in times.items():
                done = connection.execute(statement, (base + dt.timedelta(minutes=minute), read_instance(id)))
                assert done.rowcount > 0


@pytest.mark.parametrize("walked", [False, True])
async def test_what_ended_or_changed_last_stands_first(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, walked: bool
) -> None:
    """Equal times, too, with every size of a slice; by status and definition."""
    driver = make_driver()
    await driver.upload(definition(task("x", "u"), user("u"), end(), definition_id="a"))
    await driver.upload(definition(task("x"), end(), definition_id="b"))
    ids = [(await driver.start("ab"[n % 2])).id for n in range(12)]
    jobs = {job.instance_id: job for job in await driver.poll("x", n=10)}
    for id in ids[1:8:2]:
        await driver.complete(jobs[id])  # of b: they have ended
    for id in ids[0:2:2]:
        await driver.fail(jobs[id], retryable=False)
    await driver.complete(jobs[ids[2]])  # waits for somebody
    ended = {ids[0]: 5, ids[1]: 9, ids[3]: 1, ids[5]: 5, ids[7]: 7}
    entered = {ids[4]: 2, ids[6]: 2, ids[8]: 8, ids[9]: 3, ids[10]: 11, ids[11]: 0}
    claimed = {ids[2]: 6, ids[4]: 10, ids[6]: 4, ids[8]: 8, ids[9]: 3}
    put_times(driver, ended, entered, claimed)
    if walked:
        monkeypatch.setattr(store, "find_ids", gives_up)
        monkeypatch.setattr(store, "WALK_PIECE_ROWS", 3)
    ended_ids = [ids[n] for n in (1, 7, 5, 0, 3)]
    changed_ids = [ids[n] for n in (10, 4, 1, 8, 7, 2, 5, 0, 6, 9, 3, 11)]
    for limit in (1, 2, 5, 100):
        assert await listed(driver, limit, order=BY_END) == ended_ids
        assert await listed(driver, limit, order=BY_CHANGE) == changed_ids
    of_b = [id for id in changed_ids if ids.index(id) % 2]
    assert await listed(driver, 2, order=BY_CHANGE, definition_id="b") == of_b
    assert await listed(driver, 2, order=BY_END, status="COMPLETED") == [id for id in ended_ids if id != ids[0]]
    assert await listed(driver, 2, order=BY_CHANGE, definition_id="a", current_step_id="u") == [ids[2]]
    assert await listed(driver, order=BY_CHANGE, definition_id="nobody") == []
    shown = await driver.engine.instances.summaries([read_instance(id) for id in changed_ids])
    at = [one.changed_at for one in shown]
    assert None not in at
    assert at == sorted(at, key=str, reverse=True)


async def test_more_than_can_be_sorted_is_said_so(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The narrower list is sorted."""
    driver = make_driver()
    await driver.upload(definition(user("u"), end(), definition_id="a"))
    await driver.upload(definition(user("u"), end(), definition_id="b"))
    ids = [(await driver.start("aab"[n])).id for n in range(3)]
    monkeypatch.setattr("penstock.engine.instances.instances.COUNT_MAX", 2)
    for order in (BY_END, BY_CHANGE):
        with pytest.raises(BadRequest, match=f"order: {order} sorts at most 2 instances, .* Narrow the list"):
            await listed(driver, order=order)
    assert await listed(driver, order=BY_CHANGE, definition_id="a") == ids[1::-1]
