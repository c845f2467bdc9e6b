"""Instances and signals by their caller's own keys: whatever comes early, late or twice has one effect."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound
from penstock.store.rows import idempotency, retention
from penstock.testing.definitions import definition, end
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, variables_of
from tests.shapes import task, user, wait

JOB = definition(task("x"), end(), definition_id="job")
LATER = definition(task("x", "w"), wait("w", "next"), user("next"), end(), definition_id="later")


async def begin(driver: Driver, key: str = "k", *, keep: bool = True, of: str = "job", **fields: Any) -> str:
    return (await driver.start(of, instance_key=key, keep_instance_key=keep, **fields)).id


async def finish(driver: Driver, instance: str, how: str) -> None:
    match how:
        case "COMPLETED":
            await driver.complete(await driver.one("x"))
        case "FAILED":
            await driver.fail(await driver.one("x"), retryable=False)
        case _:
            await driver.cancel(instance)
    assert await driver.status(instance) == how


# -- starts


@pytest.mark.parametrize("how", ["COMPLETED", "FAILED", "CANCELLED"])
async def test_a_key_that_is_kept_starts_one_instance_for_ever(driver: Driver, how: str) -> None:
    await driver.upload(JOB)
    first = await begin(driver)
    assert await begin(driver) == first
    await finish(driver, first, how)
    before = driver.snapshot()
    again = await driver.start("job", {"n": 2}, instance_key="k", keep_instance_key=True)
    assert (again.id, again.status, again.instance_key) == (first, how, "k")
    assert await begin(driver, keep=False) == first
    assert driver.snapshot() == before
    assert await begin(driver, "other") != first


async def test_an_unkept_key_is_free_after_the_end(driver: Driver) -> None:
    await driver.upload(JOB)
    first = await begin(driver, keep=False)
    await finish(driver, first, "COMPLETED")
    second = await begin(driver, keep=False)
    assert second != first
    await finish(driver, second, "FAILED")
    third = await begin(driver)
    with pytest.raises(Conflict, match="same instance key"):
        await driver.retry(second)
    await finish(driver, third, "CANCELLED")
    with pytest.raises(Conflict, match="same instance key"):
        await driver.retry(second)


async def test_a_failed_instance_is_retried_with_its_kept_key(driver: Driver) -> None:
    await driver.upload(JOB)
    first = await begin(driver)
    await finish(driver, first, "FAILED")
    await driver.retry(first)
    assert await begin(driver) == first
    await finish(driver, first, "COMPLETED")
    assert await begin(driver) == first


async def test_of_many_starts_at_once_one_makes_the_instance(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(JOB)
    found: set[str] = set()

    async def start(n: int) -> None:
        found.add(await begin(engines[n % 2], idempotency_key=f"i{n}" if n % 3 else None))

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(start, n)
    assert len(found) == 1
    assert engines[0].rows("SELECT count(*) FROM instance") == [(1,)]


@pytest.mark.parametrize("idempotency_key", [None, "i"])
async def test_a_key_can_be_kept_for_an_open_instance(driver: Driver, idempotency_key: str | None) -> None:
    """Who was told that the start happened must not find it undone by the end of the instance."""
    await driver.upload(JOB)
    first = await begin(driver, keep=False)
    assert await begin(driver, idempotency_key=idempotency_key) == first
    await finish(driver, first, "COMPLETED")
    assert await begin(driver, keep=False) == first


async def test_an_end_and_a_keeping_start_at_once_agree(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(JOB)
    for n in range(20):
        first = await begin(engines[0], f"k{n}", keep=False)
        job = await engines[0].one("x")
        found: list[str] = []

        async def start(n: int = n, found: list[str] = found) -> None:
            found.append(await begin(engines[1], f"k{n}"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(engines[0].complete, job)
            nursery.start_soon(start)
        assert await begin(engines[0], f"k{n}") == found[0]  # the old one, kept, or a new one
        if found != [first]:
            await engines[0].complete(await engines[0].one("x"))


async def test_retention_removes_the_key_with_its_instance(driver: Driver) -> None:
    driver.clock.stop()
    await driver.upload(LATER)
    first = await begin(driver, of="later")
    await driver.signal_by_key("later", "k", "w", {"a": 1}, signal_id="s")
    await driver.cancel(first)
    driver.clock.advance(3 * 86_400)
    now = driver.clock.now()
    everything = retention.Partition("p", now - timedelta(days=10), now + timedelta(days=1))
    async with driver.engine.database.connection() as connection:
        retired = await retention.retired(connection, everything, 2, 0)
        assert await retention.remove_instances(connection, retired) == [number(first)]
    for table in ("instance", "instance_key", "signal_id"):
        assert driver.rows(f"SELECT * FROM {table}") == []
    assert await begin(driver, of="later") != first


async def test_to_keep_a_key_there_has_to_be_one(driver: Driver) -> None:
    await driver.upload(JOB)
    with pytest.raises(BadRequest, match="keepInstanceKey"):
        await driver.start("job", keep_instance_key=True)


async def test_an_instance_is_found_by_its_key(driver: Driver) -> None:
    await driver.upload(JOB)
    await driver.upload(LATER)
    ids = [await begin(driver, key, keep=keep, business_key="b") for key, keep in (("k1", True), ("k2", False))]
    other = await begin(driver, "k1", of="later")

    async def found(
        definition_id: str, key: str, status: str | None = None, business_key: str | None = None
    ) -> list[str]:
        instances = driver.engine.instances
        wanted = InstanceFilter(definition_id=definition_id, status=status, business_key=business_key, instance_key=key)
        page = await instances.list(wanted, 0, 0)
        assert page.total == len(page.items)
        part = await instances.list_slice(wanted, None, 5)
        assert (part.items, part.next) == (page.items, None)
        if page.items:
            assert (await instances.list(wanted, 1, 1)).items == []
            of_key = InstanceFilter(definition_id=definition_id, instance_key=key)
            assert (await instances.list_slice(of_key, page.items[0].id, 5)).items == []
        return [item.id for item in page.items]

    assert await found("job", "k1") == [ids[0]]
    assert await found("later", "k1") == [other]
    assert await found("job", "k2", "ACTIVE", "b") == [ids[1]]
    assert await found("job", "k2", "FAILED") == []
    assert await found("job", "k2", None, "c") == []
    assert await found("nothing", "k1") == []
    for _ in ids:
        await driver.complete(await driver.one("x"))
    assert await found("job", "k1", "COMPLETED") == [ids[0]]
    assert await found("job", "k2") == []
    with pytest.raises(BadRequest, match="definitionId"):
        await driver.engine.instances.list(InstanceFilter(instance_key="k1"), 0, 0)


# -- signals


async def test_an_early_repeated_signal_by_key_acts_once(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(LATER)
    instance = await begin(engines[0], of="later")
    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(
                lambda n=n: engines[n % 2].signal_by_key("later", "k", "w", {"a": 1, "b": 2}, signal_id="s")
            )
    assert len(await engines[0].engine.tasks.buffered(instance)) == 1
    await engines[0].complete(await engines[0].one("x"))
    assert await engines[0].open_steps(instance) == ["next"]
    before = engines[0].snapshot()
    await engines[0].signal_by_key("later", "k", "w", {"b": 2, "a": 1}, signal_id="s")
    await engines[0].signal(instance, "w", {"b": 2, "a": 1}, signal_id="s")
    assert engines[0].snapshot() == before
    await engines[0].finish_task(instance, "next")
    await engines[1].signal_by_key("later", "k", "w", {"a": 1, "b": 2}, signal_id="s")
    assert variables_of(await engines[0].view(instance)) == {"a": 1, "b": 2}
    with pytest.raises(Conflict):
        await engines[0].signal_by_key("later", "k", "w", {"a": 1}, signal_id="s2")


async def test_the_id_of_a_signal_outlives_idempotency_keys(driver: Driver) -> None:
    await driver.upload(LATER)
    instance = await begin(driver, of="later")
    await driver.signal_by_key("later", "k", "w", {"a": 1}, signal_id="s", idempotency_key="i")
    driver.clock.advance(25 * 3600)
    async with driver.engine.database.connection() as connection:
        assert await idempotency.purge(connection, 24, 1_000) > 0
    await driver.signal_by_key("later", "k", "w", {"a": 1}, signal_id="s")
    assert len(await driver.engine.tasks.buffered(instance)) == 1


async def test_the_id_of_a_signal_is_of_one_signal(driver: Driver) -> None:
    await driver.upload(LATER)
    instance = await begin(driver, of="later")
    await driver.signal_by_key("later", "k", "w", {"a": 1}, signal_id="s")
    before = driver.snapshot()
    with pytest.raises(IdempotencyConflict, match="signalId"):
        await driver.signal_by_key("later", "k", "w", {"a": 2}, signal_id="s")
    with pytest.raises(IdempotencyConflict, match="signalId"):
        await driver.signal(instance, "next", {"a": 1}, signal_id="s")
    with pytest.raises(BadRequest, match="USER_TASK"):
        await driver.signal_by_key("later", "k", "next", signal_id="s2")
    with pytest.raises(NotFound, match="instance key 'no'"):
        await driver.signal_by_key("later", "no", "w", signal_id="s")
    with pytest.raises(NotFound):
        await driver.signal_by_key("job", "k", "w", signal_id="s")
    with pytest.raises(BadRequest, match="signalId"):
        await driver.signal_by_key("later", "k", "w", signal_id="x" * 257)
    assert driver.snapshot() == before
    other = await begin(driver, "k2", of="later")
    await driver.signal_by_key("later", "k2", "w", {"a": 2}, signal_id="s")
    assert len(await driver.engine.tasks.buffered(other)) == 1


async def test_a_refused_signal_does_not_use_up_its_id(driver: Driver) -> None:
    await driver.upload(LATER)
    instance = await begin(driver, of="later")
    await driver.fail(await driver.one("x"), retryable=False)
    with pytest.raises(Conflict):
        await driver.signal_by_key("later", "k", "w", {"a": 1}, signal_id="s")
    await driver.retry(instance)
    await driver.signal_by_key("later", "k", "w", {"a": 1}, signal_id="s")
    await driver.complete(await driver.one("x"))
    assert await driver.open_steps(instance) == ["next"]


async def test_signals_by_key_without_an_id_are_as_others(driver: Driver) -> None:
    await driver.upload(LATER)
    instance = await begin(driver, of="later", keep=False)
    with pytest.raises(Conflict):
        await driver.signal_by_key("later", "k", "w", {"a": 1})
    await driver.signal_by_key("later", "k", "w", {"a": 1}, buffer=True)
    await driver.complete(await driver.one("x"))
    assert await driver.open_steps(instance) == ["next"]


# -- waits that keep what comes early


async def test_a_wait_may_say_that_early_signals_are_kept(driver: Driver) -> None:
    body = definition(task("x", "w"), wait("w", "w2", buffer=True), wait("w2", "next"), user("next"), end())
    instance = await driver.run(body)
    await driver.signal(instance, "w", {"a": 1})
    with pytest.raises(Conflict):
        await driver.signal(instance, "w2", {"a": 1})
    await driver.complete(await driver.one("x"))
    assert await driver.open_steps(instance) == ["w2"]
    assert await driver.variables(instance) == {"a": 1}
    kinds = [record.kind for record in (await driver.engine.instances.audit(instance)).items]
    assert [kind for kind in kinds if kind.startswith("SIGN")] == ["SIGNAL_KEPT", "SIGNALLED"]
