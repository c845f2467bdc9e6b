"""What programs registered and none serves any more can be deleted: durable workflows, and their queues."""

from __future__ import annotations

import pytest

from penstock.engine.runs import code
from penstock.engine.runs.code import CodeWorkflow
from penstock.errors import Conflict, NotFound
from penstock.testing.definitions import linear
from penstock.wire.model import StartRequest
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import HOLDER, ORDER, finish, start, take

__all__ = ["make_driver"]


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver()


async def ids(driver: Driver) -> list[str]:
    return [each.id for each in (await driver.engine.definitions.list(None, 0, 200)).items]


async def test_a_workflow_is_gone_and_comes_back_with_its_program(driver: Driver, make_driver: MakeDriver) -> None:
    engine, other = driver.engine, make_driver().engine
    await engine.code.register(ORDER)
    await engine.code.register(CodeWorkflow("order", 2))
    await other.code.register(ORDER)
    await engine.code.delete("order")
    assert await ids(driver) == []
    for version in (0, 1, 2):
        with pytest.raises(NotFound, match="'order'"):
            await engine.instances.start(StartRequest("order", definition_version=version))
        with pytest.raises(NotFound):
            await engine.definitions.get("order", version)
    with pytest.raises(NotFound):
        await engine.code.delete("order")
    kinds = [
        row[0] for row in driver.rows("SELECT kind FROM audit WHERE detail = 'order' OR starts_with(detail, 'order ')")
    ]
    assert kinds == ["DEFINITION_UPLOADED", "DEFINITION_UPLOADED", "DEFINITION_DELETED"]
    assert await other.code.register(ORDER, anew=True) == 1, "its program, connected to another engine"
    assert await ids(driver) == ["order"]
    assert await engine.code.register(CodeWorkflow("order", 2)) == 2
    assert await start(driver)


async def test_a_run_that_has_ended_is_shown_as_before_and_its_id_is_free_for_a_graph(driver: Driver) -> None:
    engine = driver.engine
    instance = await start(driver)
    [run] = await take(driver)
    assert await finish(driver, run.run_lease, 5)
    engine.polls.activity._seen.clear()  # the executor went half a minute ago
    await engine.code.delete("order")
    before = await engine.instances.get(instance)
    assert (before.definition_id, before.status, before.ended) == ("order", "COMPLETED", True)
    await driver.upload(linear(1, definition_id="order"))
    assert (await engine.definitions.get("order")).version == 2
    assert (await engine.instances.get(instance)).definition_version == 1
    with pytest.raises(Conflict, match="is the id of a definition"):
        await engine.code.register(ORDER, anew=True)
    with pytest.raises(Conflict, match="is not a durable workflow"):
        await engine.code.delete("order")


async def test_what_is_served_or_has_open_runs_or_is_a_graph_stays(driver: Driver) -> None:
    engine = driver.engine
    await driver.upload(linear(1, definition_id="graph"))
    for id, why in (("graph", "is not a durable workflow"), ("order", "are open")):
        if id == "order":
            await start(driver)
        with pytest.raises(Conflict, match=why):
            await engine.code.delete(id)
    assert await ids(driver) == ["graph", "order"]
    assert len(await take(driver, HOLDER)) == 1
    with pytest.raises(Conflict, match="a program serves 'order'"):
        await engine.code.delete("order")


async def test_deleting_makes_room_in_the_limits_of_an_app(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "APP_VERSIONS_MAX", 1)
    engine = driver.engine
    await engine.code.register(CodeWorkflow("order", app="shop"))
    with pytest.raises(Conflict, match="one more"):
        await engine.code.register(CodeWorkflow("pay", app="shop"))
    await engine.code.delete("shop:order")
    await engine.code.register(CodeWorkflow("pay", app="shop"))
    assert await ids(driver) == ["shop:pay"]


async def test_a_queue_that_a_program_made_is_deleted_like_others(driver: Driver) -> None:
    engine = driver.engine
    await engine.code.register(ORDER)
    await engine.queues.join("made", ORDER.job_type)
    await engine.queues.delete("made")
    assert (await engine.queues.list(None, 10)).items == []
    await engine.queues.put("placed", QueuePolicy(job_types=[ORDER.job_type]))
    await engine.queues.join("made", ORDER.job_type)
    assert (await engine.queues.get("placed")).policy.job_types == [ORDER.job_type]
    kinds = {row[0] for row in driver.rows("SELECT kind FROM audit WHERE kind = 'QUEUE_DELETED'")}
    assert kinds == {"QUEUE_DELETED"}
