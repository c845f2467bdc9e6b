"""Signals: to open waits, kept for those to come, with idempotency keys, from several engines at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import trio

from penstock.engine.instances import tasks
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound, PenstockError
from penstock.testing.definitions import definition, end, timer
from penstock.wire.model import KeptSignal
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.shapes import choose, gateway, joining, task, user, wait

LATER = definition(task("x", "w", retryCount=1), wait("w", "next"), user("next"), end())
NOW = definition(wait("w", "next"), user("next"), end())


async def kept(driver: Driver, instance: str) -> list[KeptSignal]:
    return await driver.engine.tasks.buffered(instance)


def values(signals: list[KeptSignal]) -> list[Any]:
    return [msgspec.json.decode(signal.variables) for signal in signals]  # pyright: ignore[reportArgumentType] - a stand-in


async def test_a_signal_ends_the_wait_and_brings_variables(driver: Driver) -> None:
    instance = await driver.run(NOW, {"a": 1})
    await driver.signal(instance, "w", {"b": None})
    assert await driver.variables(instance) == {"a": 1, "b": None}
    assert await driver.path(instance) == [("w", "COMPLETED"), ("next", "RUNNING")]


@pytest.mark.parametrize("buffer", [False, True])
async def test_a_signal_without_variables(driver: Driver, buffer: bool) -> None:
    instance = await driver.run(LATER if buffer else NOW)
    await driver.signal(instance, "w", buffer=buffer)
    if buffer:
        await driver.complete(await driver.one("x"))
    assert await driver.open_steps(instance) == ["next"]
    assert await driver.variables(instance) == {}


async def test_a_signal_for_a_closed_wait_is_refused(driver: Driver) -> None:
    instance = await driver.run(LATER)
    before = driver.snapshot()
    with pytest.raises(Conflict):
        await driver.signal(instance, "w", {"a": 1})
    with pytest.raises(Conflict):
        await driver.signal(instance, "w", {"a": 1}, idempotency_key="k")
    assert driver.snapshot() == before


async def test_a_refused_signal_does_not_use_up_its_key(driver: Driver) -> None:
    instance = await driver.run(LATER)
    with pytest.raises(Conflict):
        await driver.signal(instance, "w", {"a": 1}, idempotency_key="k")
    await driver.complete(await driver.one("x"))
    await driver.signal(instance, "w", {"a": 1}, idempotency_key="k")
    assert await driver.open_steps(instance) == ["next"]


async def test_kept_signals_are_listed_and_taken_in_their_order(driver: Driver) -> None:
    body = definition(
        task("x", "w"), wait("w", "again"), choose("again", {"n < 2": "w", "true": "next"}), user("next"), end()
    )
    instance = await driver.run(body, {"n": 0})
    for n in (1, 2, 3):
        await driver.signal(instance, "w", {"n": n}, buffer=True)
    listed = await kept(driver, instance)
    assert values(listed) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert {signal.step_id for signal in listed} == {"w"}
    assert len({signal.id for signal in listed}) == 3
    await driver.complete(await driver.one("x"))
    assert await driver.path(instance) == [
        ("x", "COMPLETED"),
        ("w", "COMPLETED"),
        ("again", "COMPLETED"),
        ("w", "COMPLETED"),
        ("again", "COMPLETED"),
        ("next", "RUNNING"),
    ]
    assert values(await kept(driver, instance)) == [{"n": 3}]


async def test_a_keepable_signal_acts_at_once_on_an_open_wait(driver: Driver) -> None:
    instance = await driver.run(NOW)
    await driver.signal(instance, "w", {"a": 1}, buffer=True)
    assert await kept(driver, instance) == []
    assert await driver.open_steps(instance) == ["next"]


async def test_a_kept_signal_meets_waits_in_branches(driver: Driver) -> None:
    body = definition(
        task("x", "fork"), gateway("fork", "w", "w2"), wait("w", "join"), wait("w2", "join"), joining(), end()
    )
    instance = await driver.run(body)
    await driver.signal(instance, "w2", {"b": 1}, buffer=True)
    await driver.signal(instance, "w", {"a": 1}, buffer=True)
    await driver.complete(await driver.one("x"))
    assert await driver.status(instance) == "COMPLETED"
    assert await driver.variables(instance) == {"a": 1, "b": 1}


async def test_a_key_keeps_a_signal_once(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    instance = await engines[0].run(LATER)
    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(
                lambda n=n: engines[n % 2].signal(instance, "w", {"a": 1}, buffer=True, idempotency_key="k")
            )
    assert values(await kept(engines[0], instance)) == [{"a": 1}]
    with pytest.raises(IdempotencyConflict):
        await engines[1].signal(instance, "w", {"a": 2}, buffer=True, idempotency_key="k")
    await engines[0].signal(instance, "w", {"a": 2}, buffer=True, idempotency_key="k2")
    assert len(await kept(engines[0], instance)) == 2


async def test_signals_with_one_key_at_once_act_once(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    body = definition(wait("w", "w2"), wait("w2", "w"), end("never"))
    body["steps"][0]["boundaryEvents"] = [timer("never")]  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - a stand-in
    instance = await engines[0].run(body)
    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(lambda n=n: engines[n % 2].signal(instance, "w", {"a": 1, "b": 2}, idempotency_key="k"))
    assert await engines[0].open_steps(instance) == ["w2"]
    await engines[0].signal(instance, "w2")
    # the key is spent also for the next time that the wait is open; the order of keys in the body is no difference
    await engines[0].signal(instance, "w", {"b": 2, "a": 1}, idempotency_key="k")
    assert await engines[0].open_steps(instance) == ["w"]
    await engines[0].signal(instance, "w", {"b": 2, "a": 1}, idempotency_key="k2")
    assert await engines[0].open_steps(instance) == ["w2"]


async def test_keys_are_of_one_instance_and_one_step(driver: Driver) -> None:
    body = definition(wait("w", "w2"), wait("w2", "next"), user("next"), end())
    first, second = await driver.run(body), (await driver.start("test")).id
    for instance in (first, second):
        for step in ("w", "w2"):
            await driver.signal(instance, step, idempotency_key="k")
        assert await driver.open_steps(instance) == ["next"]


async def test_each_open_wait_takes_one_of_many_signals(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    instance = await engines[0].run(definition(gateway("fork", "w", "w"), wait("w", "join"), joining(), end()))
    answers: list[str] = []

    async def signal(driver: Driver, n: int) -> None:
        try:
            await driver.signal(instance, "w", {"n": n})
            answers.append("ok")
        except PenstockError as error:
            answers.append(error.code)

    async with trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(signal, engines[n % 2], n)
    assert sorted(answers) == ["conflict"] * 8 + ["ok"] * 2
    assert await engines[0].status(instance) == "COMPLETED"


async def test_only_so_many_signals_are_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SIGNALS_MAX", 3)
    instance = await driver.run(LATER)
    for n in range(3):
        await driver.signal(instance, "w", {"n": n}, buffer=True)
    with pytest.raises(Conflict, match="3 signals"):
        await driver.signal(instance, "w", {"n": 3}, buffer=True)
    await driver.complete(await driver.one("x"))
    await driver.signal(instance, "w", {"n": 3}, buffer=True)
    assert values(await kept(driver, instance)) == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_only_so_many_bytes_are_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SIGNALS_FULL_BYTES", 1_000)
    instance = await driver.run(LATER)
    for n in range(2):  # one may be of any size
        await driver.signal(instance, "w", {"n": n, "text": "x" * (900 + 1_000 * n)}, buffer=True)
    with pytest.raises(Conflict, match="1000 bytes"):
        await driver.signal(instance, "w", {"n": 2}, buffer=True)
    assert [value["n"] for value in values(await kept(driver, instance))] == [0, 1]
    await driver.complete(await driver.one("x"))
    assert [value["n"] for value in values(await kept(driver, instance))] == [1]
    assert await driver.open_steps(instance) == ["next"]


@pytest.mark.parametrize("ending", ["end", "narrow end", "cancel"])
async def test_kept_signals_go_with_their_instance(driver: Driver, ending: str) -> None:
    body = definition(task("x", "end", boundaryEvents=[timer("w", interrupting=True)]), wait("w"), end())
    if ending == "narrow end":
        body = definition(
            task("first", "x", conditionalNextSteps={"n == 0": "x", "true": "w"}), task("x"), wait("w"), end()
        )
    instance = await driver.run(body, {"n": 0})
    if ending == "narrow end":
        await driver.complete(await driver.one("first"))
    await driver.signal(instance, "w", {"a": 1}, buffer=True)
    if ending == "cancel":
        await driver.cancel(instance)
    else:
        await driver.complete(await driver.one("x"))
    assert driver.rows("SELECT * FROM buffered_signal") == []
    assert await kept(driver, instance) == []
    with pytest.raises(Conflict):
        await driver.signal(instance, "w", buffer=True)


async def test_kept_signals_survive_a_failure_and_its_retry(driver: Driver) -> None:
    """Whoever sent it was told that it is kept, and a repeat with its key would do nothing."""
    instance = await driver.run(LATER)
    await driver.signal(instance, "w", {"a": 1}, buffer=True, idempotency_key="k")
    await driver.fail(await driver.one("x"), retryable=False)
    assert values(await kept(driver, instance)) == [{"a": 1}]
    await driver.retry(instance)
    await driver.signal(instance, "w", {"a": 1}, buffer=True, idempotency_key="k")
    await driver.complete(await driver.one("x"))
    assert await driver.open_steps(instance) == ["next"]
    assert await driver.variables(instance) == {"a": 1}


async def test_a_signal_is_kept_only_for_a_wait(driver: Driver) -> None:
    instance = await driver.run(LATER)
    before = driver.snapshot()
    with pytest.raises(BadRequest):
        await driver.signal(instance, "next", buffer=True)
    with pytest.raises(Conflict):
        await driver.signal(instance, "nowhere", buffer=True)
    with pytest.raises(NotFound):
        await driver.signal("abc", "w", buffer=True)
    with pytest.raises(NotFound):
        await kept(driver, "abc")
    assert driver.snapshot() == before


async def test_a_signal_racing_with_its_waits_opening_is_kept(make_driver: MakeDriver) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(LATER)
    for _ in range(20):
        instance = (await engines[0].start("test")).id
        job = await engines[0].one("x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engines[0].complete, job)
            nursery.start_soon(lambda instance=instance: engines[1].signal(instance, "w", {"a": 1}, buffer=True))
        assert await engines[0].open_steps(instance) == ["next"]
        assert await kept(engines[0], instance) == []


async def test_old_keys_are_forgotten(driver: Driver) -> None:
    from penstock.store.rows import idempotency

    instance = await driver.run(NOW)
    await driver.signal(instance, "w", idempotency_key="k")
    for hours, rows in ((23, 1), (2, 0)):
        driver.clock.advance(hours * 3600)
        async with driver.engine.database.connection() as connection:
            await idempotency.purge(connection, driver.engine.settings.idempotency_retention_hours, 1_000)
        assert driver.rows("SELECT count(*) FROM idempotency") == [(rows,)]


@pytest.mark.slow(reason="thousands of kept signals")
async def test_more_kept_signals_than_one_advance_takes_fan_in(driver: Driver) -> None:
    """Two of its steps a signal: the instance failed, `more than 1000 automatic steps`."""
    body = definition(
        task("x", "w"), wait("w", "again"), choose("again", {"last": "next", "true": "w"}), user("next"), end()
    )
    count = 1_100
    instance = await driver.run(body, {"last": False})
    for _ in range(7):  # not all at once: the last would wait for the instance's row for as long as a call may
        async with trio.open_nursery() as nursery:
            for _ in range((count - 1) // 7):
                nursery.start_soon(lambda: driver.signal(instance, "w", {"n": 1}, buffer=True))
    await driver.signal(instance, "w", {"n": 2, "last": True}, buffer=True)
    await driver.complete(await driver.one("x"))
    assert await driver.status(instance) == "WAITING"
    # the wait is open: this one is accepted, and comes after those that are kept
    await driver.signal(instance, "w", {"n": 3}, idempotency_key="k")
    await driver.signal(instance, "w", {"n": 3}, idempotency_key="k")
    for _ in range(20):
        if await driver.open_steps(instance) == ["w"]:
            await driver.due()
    assert await driver.open_steps(instance) == ["next"]
    assert await driver.variables(instance) == {"n": 2, "last": True}
    assert values(await kept(driver, instance)) == [{"n": 3}]
    assert Counter(step for step, _ in await driver.path(instance)) == {"x": 1, "w": count, "again": count, "next": 1}


async def test_signals_of_one_wait_do_not_hide_those_of_another(driver: Driver) -> None:
    """Only the oldest kept signals of an instance are read as a rule."""
    body = definition(task("x", "w2"), wait("w", "next"), wait("w2", "w"), user("next"), end())
    instance = await driver.run(body)
    driver.rows(
        "INSERT INTO buffered_signal SELECT nextval('step_seq'), %s, 1, now(), '{}' FROM generate_series(1, 600)"
        " RETURNING 1",
        number(instance),
    )
    await driver.signal(instance, "w2", {"a": 1}, buffer=True)
    await driver.complete(await driver.one("x"))
    assert await driver.open_steps(instance) == ["next"]
    assert await driver.variables(instance) == {"a": 1}
    assert len(await kept(driver, instance)) == 599
