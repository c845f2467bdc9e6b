"""User tasks: parked until somebody completes them, once, and not after a timer took them."""

from __future__ import annotations

import pytest

from penstock.errors import BadRequest, Conflict, NotFound
from penstock.testing.definitions import definition, end, timer
from penstock.wire.model import UserTaskCompletion
from tests.engine.driver import Driver
from tests.shapes import gateway, joining, task, user

ASKED = definition(
    user("review", "next", jobType="a label", boundaryEvents=[timer("late", interrupting=True)]),
    user("next"),
    user("late"),
    end(),
)


async def test_a_user_task_makes_no_job(driver: Driver) -> None:
    instance = await driver.run(ASKED)
    assert await driver.poll("a label", "review") == []
    assert (await driver.status(instance), await driver.open_steps(instance)) == ("WAITING", ["review"])


async def test_who_completed_it_is_in_the_history_and_the_audit(driver: Driver) -> None:
    instance = await driver.run(ASKED)
    request = UserTaskCompletion(
        instance_id=instance, step_id="review", variables=b'{"ok":true}', completed_by="ann@example.org"
    )
    await driver.engine.tasks.complete_user_task(request)
    (done, _) = await driver.history(instance)
    assert (done.step_type, done.status, done.attempt_number) == ("USER_TASK", "COMPLETED", 1)
    record = next(r for r in (await driver.engine.instances.audit(instance)).items if r.kind == "USER_TASK_COMPLETED")
    assert (record.actor, record.step_id) == ("ann@example.org", "review")
    assert await driver.variables(instance) == {"ok": True}


async def test_an_interrupted_user_task_can_not_be_completed_any_more(driver: Driver) -> None:
    """The trap: both paths run."""
    instance = await driver.run(ASKED)
    assert await driver.due(3601) == 1
    before = driver.snapshot()
    with pytest.raises(NotFound):
        await driver.finish_task(instance, "review")
    assert driver.snapshot() == before
    assert await driver.open_steps(instance) == ["late"]


async def test_a_completed_user_task_is_not_interrupted_any_more(driver: Driver) -> None:
    instance = await driver.run(ASKED)
    await driver.finish_task(instance, "review")
    assert driver.rows("SELECT * FROM timer") == []
    assert await driver.due(3601) == 0
    assert await driver.open_steps(instance) == ["next"]


async def test_of_two_open_executions_the_oldest_is_completed(driver: Driver) -> None:
    body = definition(gateway("fork", "u", "u"), user("u", "join"), joining(), end())
    instance = await driver.run(body)
    first, second = driver.rows("SELECT seq FROM token WHERE state = 2 ORDER BY seq")
    await driver.finish_task(instance, "u")
    assert driver.rows("SELECT seq FROM token WHERE state = 2") == [second]
    await driver.finish_task(instance, "u")
    assert await driver.status(instance) == "COMPLETED"
    assert first < second


async def test_a_repeat_is_404_and_after_the_end_409(driver: Driver) -> None:
    instance = await driver.run(definition(user("u", "v"), user("v"), end()))
    await driver.finish_task(instance, "u", {"a": 1})
    before = driver.snapshot()
    with pytest.raises(NotFound):
        await driver.finish_task(instance, "u", {"a": 2})
    assert driver.snapshot() == before
    await driver.finish_task(instance, "v")
    before = driver.snapshot()
    for step in ("u", "v", "nowhere"):
        with pytest.raises(Conflict):
            await driver.finish_task(instance, step)
    assert driver.snapshot() == before
    assert await driver.variables(instance) == {"a": 1}


async def test_a_looped_user_task_is_completed_each_time(driver: Driver) -> None:
    body = definition(user("u", "end", conditionalNextSteps={"n < 3": "u", "true": "end"}), end())
    instance = await driver.run(body, {"n": 0})
    for n in (1, 2, 3):
        await driver.finish_task(instance, "u", {"n": n})
    items = await driver.history(instance)
    assert [(item.step_id, item.attempt_number) for item in items] == [("u", 1), ("u", 2), ("u", 3), ("end", 1)]


async def test_failing_conditions_of_a_user_task_fail_the_instance(driver: Driver) -> None:
    body = definition(user("u", None, conditionalNextSteps={"n > 3": "end"}), end())
    instance = await driver.run(body, {"n": 0})
    await driver.finish_task(instance, "u", {"n": 1})
    view = await driver.view(instance)
    assert view.status == "FAILED"
    assert "DecisionNoBranchMatched" in (view.failure_reason or "")


async def test_a_user_task_next_to_jobs_makes_the_instance_waiting(driver: Driver) -> None:
    body = definition(
        gateway("fork", "u", "t"), user("u", "join"), task("t", "join"), joining("join", "x"), task("x"), end()
    )
    instance = await driver.run(body)
    assert await driver.status(instance) == "WAITING"
    await driver.finish_task(instance, "u")
    assert await driver.status(instance) == "ACTIVE"
    await driver.complete(await driver.one("t"))
    await driver.complete(await driver.one("x"))
    assert await driver.status(instance) == "COMPLETED"


@pytest.mark.parametrize("step", ["x" * 257, "a\0b", "\ud800"])
async def test_a_step_id_that_none_can_have_is_refused(driver: Driver, step: str) -> None:
    instance = await driver.run(ASKED)
    with pytest.raises(BadRequest):
        await driver.finish_task(instance, step)
    with pytest.raises(BadRequest):
        await driver.signal(instance, step, idempotency_key="k")


@pytest.mark.parametrize("by", ["x" * 257, "a\0b", "\ud800"])
async def test_a_name_that_can_not_be_kept_is_refused(driver: Driver, by: str) -> None:
    instance = await driver.run(ASKED)
    before = driver.snapshot()
    with pytest.raises(BadRequest):
        await driver.engine.tasks.complete_user_task(
            UserTaskCompletion(instance_id=instance, step_id="review", completed_by=by)
        )
    assert driver.snapshot() == before
