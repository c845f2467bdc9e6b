"""People who look at much keep two connections of an engine busy, no more; who comes later is told so."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.requests import read_pool as module
from penstock.errors import Unavailable
from penstock.testing.definitions import linear
from tests.engine.conftest import MakeDriver


async def test_all_looks_together_take_two_connections(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    engine = driver.engine
    instance = await driver.run(linear(1, job_type="j"))
    monkeypatch.setattr(module, "TURN_WAIT_S", 0.01)
    async with engine.read_pool.connection(), engine.read_pool.connection():
        for ask in (
            lambda: engine.diagnosis.state(instance),
            lambda: engine.overview.read("15m"),
            lambda: engine.failures.read(None, "15m"),
            lambda: engine.definition_use.tokens("linear", 0),
            lambda: engine.open_work.timers(None, None, 10),
            lambda: engine.instances.count(InstanceFilter()),
        ):
            with pytest.raises(Unavailable, match="busy with other lists"):
                await ask()
        await driver.complete(await driver.one("j"))  # nobody who works waits for them
        assert await driver.status(instance) == "COMPLETED"
    assert (await engine.diagnosis.state(instance)).why.code == "completed"


async def test_who_waits_for_a_turn_has_the_next(make_driver: MakeDriver) -> None:
    engine = make_driver().engine
    with trio.fail_after(30):
        async with engine.read_pool.connection() as held, trio.open_nursery() as nursery:
            async with engine.read_pool.connection():
                nursery.start_soon(engine.overview.read, "15m")
                await trio.testing.wait_all_tasks_blocked()
            assert not held.closed


async def test_who_goes_away_while_waiting_leaves_nothing(make_driver: MakeDriver) -> None:
    engine = make_driver().engine
    async with engine.read_pool.connection(), engine.read_pool.connection():
        with trio.move_on_after(0.01) as scope:
            await engine.overview.read("15m")
        assert scope.cancelled_caught
    for _ in range(3):
        async with engine.read_pool.connection(), engine.read_pool.connection():
            pass
    assert (await engine.overview.read("15m")).open.count == 0
