"""Every step type through the engine: forks and joins, decisions, transformations, tasks, waits, chains."""

from __future__ import annotations

import pytest

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, NotFound
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step, timer
from tests.engine.driver import Driver


async def test_a_join_fires_once_when_every_branch_has_arrived(driver: Driver) -> None:
    await driver.upload(fork(2, 1, 3))
    instance = await driver.start("fork")
    seen = 0
    while jobs := await driver.poll("work"):
        for job in jobs:
            assert (await driver.view(instance.id)).status == "ACTIVE"
            await driver.complete(job, {job.step_id: True})
            seen += 1
    assert seen == 6
    assert (await driver.view(instance.id)).status == "COMPLETED"
    path = await driver.path(instance.id)
    assert path.count(("join", "COMPLETED")) == path.count(("fork", "COMPLETED")) == 1
    assert len(await driver.variables(instance.id)) == 6


def branching(*steps: Json, heads: list[str]) -> Json:
    return definition(
        step("gate", "PARALLEL_GATEWAY", parallelNextSteps=heads, joinStep="join"),
        *steps,
        step("join", "JOIN_GATEWAY", nextStep="after"),
        service("after", "end", job_type="after"),
        end(),
    )


async def test_a_branchs_dead_end_takes_it_out_of_the_count(driver: Driver) -> None:
    await driver.upload(branching(service("a", "join", job_type="a"), service("b", job_type="b"), heads=["a", "b"]))
    instance = await driver.start("test")
    await driver.complete(await driver.one("a"))
    assert await driver.poll("after") == []
    await driver.complete(await driver.one("b"))
    await driver.complete(await driver.one("after"))
    assert (await driver.view(instance.id)).status == "COMPLETED"


async def test_a_branch_outside_the_block_continues_beside_the_join(driver: Driver) -> None:
    leaving = service("b", "after", job_type="b")
    await driver.upload(branching(service("a", "join", job_type="a"), leaving, heads=["a", "b"]))
    instance = await driver.start("test")
    await driver.complete(await driver.one("b"))
    assert len(await driver.poll("after", worker="w9")) == 1
    await driver.complete(await driver.one("a"))
    assert len(await driver.poll("after", worker="w8")) == 1
    assert (await driver.path(instance.id)).count(("join", "COMPLETED")) == 1


async def test_end_in_one_branch_closes_everything_else(driver: Driver) -> None:
    waiting = step("b", "USER_TASK", nextStep="join", boundaryEvents=[timer("after", interrupting=True)])
    await driver.upload(branching(service("a", "end", job_type="a"), waiting, heads=["a", "b"]))
    instance = await driver.start("test")
    assert (await driver.view(instance.id)).status == "WAITING"
    await driver.complete(await driver.one("a"))
    view = await driver.view(instance.id)
    assert (view.status, view.current_step_ids) == ("COMPLETED", [])
    assert ("b", "SKIPPED") in await driver.path(instance.id)
    for table in ("token", "ready", "timer"):
        assert driver.rows(f"SELECT count(*) FROM {table}") == [(0,)]


async def test_decisions_take_the_first_true_condition_in_order(driver: Driver) -> None:
    decide = step("d", "DECISION", conditionalNextSteps={"n > 10": "big", "n > 5": "middle", "true": "small"})
    await driver.upload(
        definition(decide, *(service(name, "end", job_type=name) for name in ("big", "middle", "small")), end())
    )
    for n, expected in ((20, "big"), (7, "middle"), (1, "small")):
        assert (await driver.start("test", {"n": n})).current_step_ids == [expected]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [("n", "true or false"), ("n > 100", "DecisionNoBranchMatched"), ("missing > 1", "missing")],
)
async def test_a_decision_that_cannot_decide_fails_the_instance(driver: Driver, condition: str, reason: str) -> None:
    await driver.upload(definition(step("d", "DECISION", conditionalNextSteps={condition: "end"}), end()))
    view = await driver.start("test", {"n": 1})
    assert view.status == "FAILED"
    assert reason in (view.failure_reason or "")
    assert await driver.path(view.id) == [("d", "FAILED")]


async def test_transformations_see_earlier_ones_and_later_steps_see_them(driver: Driver) -> None:
    change = step(
        "t",
        "TRANSFORMATION",
        transformations={"a": "${n + 1}", "b": "${a * 2}", "c": {"k": [1]}, "d": "plain"},
        nextStep="s",
    )
    await driver.upload(definition(change, service("s", "end"), end()))
    await driver.start("test", {"n": 1})
    job = await driver.one("work")
    from tests.engine.driver import variables_of

    assert variables_of(job) == {"n": 1, "a": 2, "b": 4, "c": {"k": [1]}, "d": "plain"}


async def test_conditions_on_a_task_win_over_its_next_step(driver: Driver) -> None:
    task = service("s", "wrong", conditionalNextSteps={"ok": "right", "!ok": "wrong"})
    await driver.upload(
        definition(task, service("right", "end", job_type="right"), service("wrong", "end", job_type="wrong"), end())
    )
    await driver.start("test", {"ok": False})
    await driver.complete(await driver.one("work"), {"ok": True})
    assert len(await driver.poll("right")) == 1


async def test_a_user_task_parks_until_it_is_completed_once(driver: Driver) -> None:
    await driver.upload(definition(step("u", "USER_TASK", nextStep="s"), service("s", "end"), end()))
    view = await driver.start("test")
    assert (view.status, view.current_step_ids) == ("WAITING", ["u"])
    await driver.finish_task(view.id, "u", {"by": "ann"})
    assert (await driver.view(view.id)).status == "ACTIVE"
    before = driver.snapshot()
    with pytest.raises(NotFound):
        await driver.finish_task(view.id, "u", {"by": "bob"})
    with pytest.raises(BadRequest):
        await driver.finish_task(view.id, "s")
    with pytest.raises(NotFound):
        await driver.finish_task(view.id, "nowhere")
    with pytest.raises(NotFound):
        await driver.finish_task("ffff", "u")
    assert driver.snapshot() == before
    await driver.complete(await driver.one("work"))
    with pytest.raises(Conflict):
        await driver.finish_task(view.id, "u")
    assert await driver.variables(view.id) == {"by": "ann"}


async def test_a_wait_goes_on_when_it_is_signalled(driver: Driver) -> None:
    await driver.upload(
        definition(service("s", "w"), step("w", "WAIT", nextStep="after"), service("after", "end"), end())
    )
    view = await driver.start("test")
    with pytest.raises(Conflict):
        await driver.signal(view.id, "w")
    with pytest.raises(BadRequest):
        await driver.signal(view.id, "s")
    with pytest.raises(Conflict):
        await driver.signal(view.id, "nowhere")
    await driver.complete(await driver.one("work"))
    assert (await driver.view(view.id)).status == "WAITING"
    await driver.signal(view.id, "w", {"paid": True}, idempotency_key="k")
    await driver.signal(view.id, "w", {"paid": True}, idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await driver.signal(view.id, "w", {"paid": False}, idempotency_key="k")
    assert await driver.variables(view.id) == {"paid": True}
    assert (await driver.view(view.id)).current_step_ids == ["after"]


async def test_a_buffered_signal_is_kept_until_the_wait_opens(driver: Driver) -> None:
    await driver.upload(
        definition(service("s", "w"), step("w", "WAIT", nextStep="after"), service("after", "end"), end())
    )
    view = await driver.start("test")
    await driver.signal(view.id, "w", {"paid": 1}, buffer=True)
    assert [kept.step_id for kept in await driver.engine.tasks.buffered(view.id)] == ["w"]
    await driver.complete(await driver.one("work"))
    assert (await driver.view(view.id)).current_step_ids == ["after"]
    assert await driver.variables(view.id) == {"paid": 1}
    assert await driver.engine.tasks.buffered(view.id) == []


async def test_a_chain_starts_with_its_parents_variables_and_transaction(driver: Driver) -> None:
    await driver.upload(linear(1, definition_id="second"))
    first = linear(1, definition_id="first", job_type="first") | {
        "autoStartNextWorkflow": True,
        "nextWorkflowId": "second",
    }
    await driver.upload(first)
    parent = await driver.start("first", {"a": 1}, business_key="b")
    await driver.complete(await driver.one("first"), {"b": 2})
    child = (await driver.engine.instances.list(InstanceFilter(definition_id="second"), 0, 10)).items[0]
    assert child.parent_instance_id == parent.id
    assert child.business_key is None
    assert await driver.variables(child.id) == {"a": 1, "b": 2}
    assert (await driver.view(parent.id)).status == "COMPLETED"


async def test_a_chain_to_nowhere_fails_the_parent(driver: Driver) -> None:
    lonely = linear(1) | {"autoStartNextWorkflow": True, "nextWorkflowId": "nowhere"}
    await driver.upload(lonely)
    view = await driver.start("linear")
    await driver.complete(await driver.one("work"))
    after = await driver.view(view.id)
    assert (after.status, after.failure_reason) == ("FAILED", "NextWorkflowNotFound: nowhere")


async def test_retries_are_counted_and_the_last_failure_fails_the_instance(driver: Driver) -> None:
    await driver.upload(linear(1, retry_count=2))
    view = await driver.start("linear")
    for left in (2, 1, 0):
        job = await driver.one("work")
        assert job.retries_remaining == left
        await driver.fail(job, f"boom {left}")
    after = await driver.view(view.id)
    assert (after.status, after.failure_reason) == ("FAILED", "boom 0")
    item = (await driver.engine.instances.history(view.id))[0]
    assert [attempt.status for attempt in item.attempts or []] == ["FAILED", "FAILED", "FAILED"]
    assert [dead.id for dead in (await driver.engine.jobs.failed(0, 10)).items] == [item.id]


async def test_a_failure_that_is_not_retryable_ends_it_at_once(driver: Driver) -> None:
    await driver.upload(linear(1, retry_count=5))
    view = await driver.start("linear")
    await driver.fail(await driver.one("work"), "no use", retryable=False)
    assert (await driver.view(view.id)).status == "FAILED"


async def test_a_retried_instance_has_its_branches_as_before(driver: Driver) -> None:
    await driver.upload(
        branching(service("a", "join", job_type="a"), service("b", "join", job_type="b"), heads=["a", "b"])
    )
    view = await driver.start("test")
    await driver.complete(await driver.one("a"))
    await driver.fail(await driver.one("b"), "broken")
    assert (await driver.view(view.id)).status == "FAILED"
    again = await driver.engine.instances.retry(view.id)
    assert (again.status, again.current_step_ids, again.failure_reason) == ("ACTIVE", ["b"], None)
    await driver.complete(await driver.one("b"))
    await driver.complete(await driver.one("after"))
    assert (await driver.view(view.id)).status == "COMPLETED"
    assert (await driver.path(view.id)).count(("join", "COMPLETED")) == 1
    with pytest.raises(Conflict):
        await driver.engine.instances.retry(view.id)


async def test_cancel_closes_all_and_is_refused_twice(driver: Driver) -> None:
    await driver.upload(fork(1, 1))
    view = await driver.start("fork")
    await driver.one("work")
    after = await driver.engine.instances.cancel(view.id, "because")
    assert (after.status, after.failure_reason, after.current_step_ids) == ("CANCELLED", "because", [])
    assert await driver.poll("work") == []
    with pytest.raises(Conflict):
        await driver.engine.instances.cancel(view.id, None)
    with pytest.raises(NotFound):
        await driver.engine.instances.cancel("abc", None)
    assert driver.rows("SELECT count(*) FROM token") == [(0,)]


async def test_a_dead_end_leaves_an_active_instance_without_steps(driver: Driver) -> None:
    await driver.upload(definition(service("a", conditionalNextSteps={"x": "b", "!x": "end"}), service("b"), end()))
    view = await driver.start("test", {"x": True})
    await driver.complete(await driver.one("work"))
    await driver.complete(await driver.one("work"))
    after = await driver.view(view.id)
    assert (after.status, after.current_step_ids) == ("ACTIVE", [])


async def test_loops_enter_a_step_again_and_history_counts_the_entries(driver: Driver) -> None:
    again = step("d", "DECISION", conditionalNextSteps={"n < 3": "s", "true": "end"})
    await driver.upload(definition(service("s", "d"), again, end()))
    view = await driver.start("test", {"n": 0})
    for n in (1, 2, 3):
        await driver.complete(await driver.one("work"), {"n": n})
    items = [item for item in await driver.engine.instances.history(view.id) if item.step_id == "s"]
    assert [item.attempt_number for item in items] == [1, 2, 3]
    assert (await driver.view(view.id)).status == "COMPLETED"
