"""Chained workflows: started in the transaction that completes their parent, or not at all."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.engine.advance import advancer
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.testing.definitions import Json, definition, end, linear, timer
from penstock.wire.model import Instance
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, variables_of
from tests.shapes import assign, choose, parallel, task, user, wait


def chained(body: Json, name: str, following: str) -> Json:
    return {**body, "id": name, "name": name, "autoStartNextWorkflow": True, "nextWorkflowId": following}


FIRST = chained(definition(task("x"), end()), "first", "second")
SECOND = definition(task("y"), end(), definition_id="second")


async def children(driver: Driver, definition_id: str) -> list[Instance]:
    return (await driver.engine.instances.list(InstanceFilter(definition_id=definition_id), 0, 200)).items


async def test_the_child_has_its_parents_variables_and_id_without_key(driver: Driver) -> None:
    await driver.upload(SECOND)
    await driver.upload(FIRST)
    start = {"big": 10**999, "deep": {"a": [None, 1.5]}, "text": "ä\N{PILE OF POO}"}
    parent = await driver.start("first", start, business_key="order 7")
    await driver.complete(await driver.one("x"), {"more": -(10**30)})
    (child,) = await children(driver, "second")
    assert child.parent_instance_id == parent.id
    assert child.business_key is None
    assert variables_of(child) == {**start, "more": -(10**30)}
    assert variables_of(await driver.one("y")) == {**start, "more": -(10**30)}
    assert await driver.status(parent.id) == "COMPLETED"


async def test_the_child_is_of_the_latest_version(driver: Driver) -> None:
    await driver.upload(FIRST)
    instance = (await driver.start("first")).id
    await driver.upload(SECOND)
    await driver.upload(definition(task("z"), end(), definition_id="second"))
    await driver.complete(await driver.one("x"))
    (child,) = await children(driver, "second")
    assert (child.definition_version, child.current_step_ids) == (2, ["z"])
    assert child.parent_instance_id == instance


async def test_an_unknown_next_workflow_fails_the_instance_at_its_end(driver: Driver) -> None:
    await driver.upload(FIRST)
    instance = (await driver.start("first")).id
    await driver.complete(await driver.one("x"), {"a": 1})
    view = await driver.view(instance)
    assert (view.status, view.failure_reason) == ("FAILED", "NextWorkflowNotFound: second")
    assert await driver.path(instance) == [("x", "COMPLETED"), ("end", "COMPLETED")]
    assert await driver.variables(instance) == {"a": 1}
    await driver.upload(SECOND)
    assert (await driver.retry(instance)).status == "COMPLETED"
    (child,) = await children(driver, "second")
    assert variables_of(child) == {"a": 1}


async def test_a_chain_of_instantly_ending_workflows_is_one_transaction(driver: Driver) -> None:
    await driver.upload(definition(task("last"), end(), definition_id="w4"))
    for n in (3, 2):
        await driver.upload(chained(definition(assign("t", {f"w{n}": n}), end()), f"w{n}", f"w{n + 1}"))
    await driver.upload(chained(definition(task("x"), end()), "w1", "w2"))
    first = (await driver.start("w1")).id
    job = await driver.one("x")
    await driver.complete(job)
    (last,) = await children(driver, "w4")
    assert variables_of(last) == {"w2": 2, "w3": 3}
    ((parent,),) = [(view.parent_instance_id,) for view in await children(driver, "w2")]
    assert parent == first
    started = driver.rows("SELECT count(DISTINCT xmin::text) FROM instance WHERE parent_id IS NOT NULL AND id IN"
                          " (SELECT id FROM token)")  # fmt: skip
    assert started == [(1,)]
    assert driver.rows("SELECT count(*) FROM instance WHERE status = 1") == [(3,)]


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_workflow_that_ends_at_once_chains_at_once(driver: Driver, keyed: bool) -> None:
    await driver.upload(SECOND)
    await driver.upload(chained(definition(assign("t", {"a": 1}), end()), "first", "second"))
    for _ in range(2 if keyed else 1):
        view = await driver.start("first", {"b": 2}, idempotency_key="k" if keyed else None)
        assert view.status == "COMPLETED"
    (child,) = await children(driver, "second")
    assert variables_of(child) == {"a": 1, "b": 2}


async def test_a_child_failing_at_once_does_not_fail_its_parent(driver: Driver) -> None:
    await driver.upload(definition(choose("d", {"ghost": "end"}), end(), definition_id="second"))
    await driver.upload(FIRST)
    parent = (await driver.start("first")).id
    await driver.complete(await driver.one("x"))
    assert await driver.status(parent) == "COMPLETED"
    (child,) = await children(driver, "second")
    assert child.status == "FAILED"


async def test_a_child_with_timers_and_branches_begins_like_any_other(driver: Driver) -> None:
    await driver.upload(
        parallel(user("u", "join", boundaryEvents=[timer("join")]), wait("w", "join", duration="PT1H"), name="second")
    )
    await driver.upload(FIRST)
    await driver.start("first")
    await driver.complete(await driver.one("x"))
    (child,) = await children(driver, "second")
    assert (child.status, child.current_step_ids) == ("WAITING", ["u", "w"])
    assert driver.rows("SELECT count(*) FROM timer") == [(2,)]


@pytest.mark.parametrize("way", ["complete", "timer", "user task"])
async def test_every_way_to_the_end_chains(driver: Driver, way: str) -> None:
    await driver.upload(SECOND)
    first = {
        "complete": task("x"),
        "timer": user("x", "end", boundaryEvents=[timer("end", interrupting=True)]),
        "user task": user("x"),
    }[way]
    await driver.upload(chained(definition(first, end()), "first", "second"))
    parent = (await driver.start("first")).id
    if way == "complete":
        await driver.complete(await driver.one("x"))
    elif way == "timer":
        await driver.due(3601)
    else:
        await driver.finish_task(parent, "x")
    assert len(await children(driver, "second")) == 1


@pytest.mark.parametrize("way", ["cancel", "fail"])
async def test_what_does_not_complete_does_not_chain(driver: Driver, way: str) -> None:
    await driver.upload(SECOND)
    await driver.upload(FIRST)
    instance = (await driver.start("first")).id
    job = await driver.one("x")
    await driver.cancel(instance) if way == "cancel" else await driver.fail(job)
    assert await children(driver, "second") == []


async def test_repeated_completions_start_one_child(driver: Driver) -> None:
    await driver.upload(SECOND)
    await driver.upload(FIRST)
    await driver.start("first")
    job = await driver.one("x")
    for _ in range(3):
        await driver.complete(job)
    assert len(await children(driver, "second")) == 1


async def test_an_endless_chain_into_itself_fails_at_a_limit(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advancer, "STARTS_MAX", 10)
    await driver.upload(chained(definition(end()), "again", "again"))
    view = await driver.start("again")
    assert view.status == "COMPLETED"
    found = await children(driver, "again")
    assert [each.status for each in found] == ["FAILED"] + ["COMPLETED"] * 10
    assert "too many workflows in one chain" in (found[0].failure_reason or "")


async def test_a_workflow_may_chain_into_itself_with_work_in_between(driver: Driver) -> None:
    await driver.upload(chained(definition(task("x"), end()), "again", "again"))
    await driver.start("again", {"n": 0})
    for n in range(5):
        job = await driver.one("x")
        assert variables_of(job) == {"n": n}
        await driver.complete(job, {"n": n + 1})
    assert len(await children(driver, "again")) == 6


async def test_the_child_and_its_parents_end_commit_together(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap: chained in memory, before or after the commit. Here the commit fails once."""
    driver = make_driver()
    await driver.upload(SECOND)
    await driver.upload(FIRST)
    parent = (await driver.start("first")).id
    job = await driver.one("x")
    commit, fails = driver.engine.full_path.commit, [True]

    async def failing(*args: Any) -> None:
        if fails.pop() if fails else False:
            assert await children(driver, "second") == []
            assert await driver.status(parent) == "ACTIVE"
            raise psycopg.errors.DeadlockDetected("invented")
        await commit(*args)

    monkeypatch.setattr(driver.engine.full_path, "commit", failing)
    await driver.complete(job)
    assert await driver.status(parent) == "COMPLETED"
    assert len(await children(driver, "second")) == 1


async def test_linear_workflows_without_chaining_are_left_alone(driver: Driver) -> None:
    await driver.upload(linear(1) | {"nextWorkflowId": "second"})
    await driver.upload(SECOND)
    await driver.start("linear")
    await driver.complete(await driver.one("work"))
    assert await children(driver, "second") == []
