"""Instances that people repair: steps skipped, tokens moved, retries from another step; once, and no join broken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from penstock.engine.repair.repair_commands import MoveCommand, SkipCommand
from penstock.errors import BadRequest, Conflict, LeaseLost, NotFound
from penstock.testing.definitions import definition, end, timer
from penstock.testing.invariants import find_broken
from penstock.wire.edits import StepSkip, TokenMove
from penstock.wire.model import Park
from tests.engine.driver import Driver, number
from tests.shapes import assign, call, choose, gateway, joining, task, user, wait

LINE = definition(task("one", "two"), task("two", "three"), task("three"), end(), id="line")
CHOICE = definition(
    task("one", "which"), choose("which", {"n > 1": "many", "n == 1": "single"}), task("many"), task("single"), end(),
    id="choice",
)  # fmt: skip
BLOCK = definition(
    task("before", "fork"), gateway("fork", "a", "b"), task("a", "a2"), task("a2", "join"), task("b", "join"),
    joining("join", "after"), task("after"), end(), id="block",
)  # fmt: skip


async def skip(driver: Driver, instance: str, step: str, given: dict[str, Any] | None = None, **fields: Any) -> None:
    raw = msgspec.Raw(msgspec.json.encode(given or {}))
    await driver.engine.repair.skip(instance, StepSkip(step_id=step, variables=raw, **fields))


async def move(driver: Driver, instance: str, step: str, to: str, **fields: Any) -> None:
    await driver.engine.repair.move(instance, TokenMove(step_id=step, to_step_id=to, **fields))


async def audited(driver: Driver, instance: str, kind: str) -> list[tuple[str | None, str | None]]:
    records = (await driver.engine.instances.audit(instance)).items
    return [(record.step_id, record.detail) for record in records if record.kind == kind]


async def test_a_leased_job_is_skipped_and_its_holder_refused(driver: Driver) -> None:
    instance = await driver.run(LINE)
    job = await driver.one("one")
    await skip(driver, instance, "one", {"a": 1}, note="done by hand")
    for late in (driver.complete(job), driver.heartbeat(job), driver.complete(job, attempt=job.attempt)):
        with pytest.raises(LeaseLost):
            await late
    assert await driver.open_steps(instance) == ["two"]
    assert await driver.variables(instance) == {"a": 1}
    assert await driver.path(instance) == [("one", "SKIPPED"), ("two", "RUNNING")]
    assert await audited(driver, instance, "SKIPPED") == [("one", "done by hand")]
    lost = await driver.engine.polls.losses.wait("w1", 0)
    assert [(each.instance, each.attempt) for each in lost] == [(number(instance), job.attempt)]
    await driver.complete(await driver.one("two"))
    assert find_broken(driver.dsn) == []


async def test_of_a_skip_and_a_completion_one_wins(driver: Driver) -> None:
    instance = await driver.run(LINE)
    job = await driver.one("one")
    outcomes: list[str] = []

    async def complete() -> None:
        try:
            await driver.complete(job, {"by": "worker"})
            outcomes.append("worker")
        except LeaseLost:
            pass

    async def skipped() -> None:
        try:
            await skip(driver, instance, "one", {"by": "hand"})
            outcomes.append("hand")
        except Conflict:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(complete)
        nursery.start_soon(skipped)
    assert len(outcomes) == 1
    assert await driver.variables(instance) == {"by": outcomes[0]}
    assert await driver.open_steps(instance) == ["two"]
    assert find_broken(driver.dsn) == []


@pytest.mark.parametrize("how", ["queued", "backing off", "parked", "asked", "waiting"])
async def test_a_step_is_skipped_however_it_waits(driver: Driver, how: str) -> None:
    first: Any = {
        "asked": user("one", "two", boundaryEvents=[timer("three", "PT1H")]),
        "waiting": wait("one", "two", duration="PT1H"),
    }.get(how, task("one", "two", retryCount=3, retryBackoff={"initial": "PT1H"}))
    instance = await driver.run(definition(first, task("two", "three"), task("three"), end(), id="waits"))
    if how in ("backing off", "parked"):
        job = await driver.one("one")
        if how == "parked":
            park = Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", signal="paid")
            await driver.engine.jobs.park(park)
        else:
            await driver.fail(job)
    await skip(driver, instance, "one")
    assert await driver.open_steps(instance) == ["two"]
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    assert [job.step_id for job in await driver.poll("one", "two")] == ["two"]
    assert find_broken(driver.dsn) == []


async def test_a_failed_instance_goes_on_behind_the_skipped_step(driver: Driver) -> None:
    instance = await driver.run(LINE)
    await driver.fail(await driver.one("one"), retryable=False)
    await skip(driver, instance, "one", {"a": 1})
    assert await driver.path(instance) == [("one", "FAILED"), ("one", "SKIPPED"), ("two", "RUNNING")]
    assert (await driver.status(instance), await driver.variables(instance)) == ("ACTIVE", {"a": 1})
    assert driver.rows("SELECT count(*) FROM abnormal_end") == [(0,)]
    for step in ("two", "three"):
        await driver.complete(await driver.one(step))
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_a_result_makes_conditions_hold_that_did_not(driver: Driver) -> None:
    body = definition(task("one", None, conditionalNextSteps={"n > 1": "many"}), task("many"), end(), id="conditions")
    instance = await driver.run(body, {"n": 0})
    await driver.complete(await driver.one("one"))
    assert await driver.status(instance) == "FAILED"
    await skip(driver, instance, "one", {"n": 2})
    assert await driver.open_steps(instance) == ["many"]
    assert find_broken(driver.dsn) == []


async def test_a_transformation_that_fails_is_skipped_a_decision_is_not(driver: Driver) -> None:
    body = definition(assign("sum", {"x": "${a + 1}"}, "which"), choose("which", {"x > y": "one"}), task("one"), end())
    instance = await driver.run(body)
    await skip(driver, instance, "sum", {"x": 2})
    view = await driver.view(instance)
    assert view.status == "FAILED"
    with pytest.raises(Conflict, match=r"'which' is a DECISION.*move it"):
        await skip(driver, instance, "which")
    await move(driver, instance, "which", "one")
    assert await driver.open_steps(instance) == ["one"]
    assert find_broken(driver.dsn) == []


async def test_a_skipped_call_abandons_what_it_started(driver: Driver) -> None:
    await driver.upload(definition(task("work"), end(), id="child"))
    caller = await driver.run(definition(call("call", "child", "after"), task("after"), end(), id="caller"))
    [(child,)] = driver.rows("SELECT id FROM called")
    await skip(driver, caller, "call", {"tracking": 7})
    assert await driver.due() == 1
    assert driver.rows("SELECT status FROM instance WHERE id = %s", child) == [(3,)]
    assert await driver.open_steps(caller) == ["after"]
    assert await driver.due() == 0
    assert find_broken(driver.dsn) == []


async def test_a_failed_child_that_is_skipped_on_tells_nobody(driver: Driver) -> None:
    """Its caller hears of the end that it comes to, not of the failure before; one that was left is not repaired."""
    await driver.upload(definition(task("work"), end(), id="child"))
    caller = await driver.run(definition(call("call", "child", "after"), task("after"), end(), id="caller"))
    [(id,)] = driver.rows("SELECT id FROM called")
    child = f"{id:x}"
    await driver.fail(await driver.one("work"), retryable=False)
    await skip(driver, child, "work")
    assert await driver.due() == 1
    assert (await driver.status(child), await driver.open_steps(caller)) == ("COMPLETED", ["after"])
    other = await driver.start("caller")
    [(id,)] = driver.rows("SELECT id FROM called WHERE caller = %s", number(other.id))
    await driver.fail(await driver.one("work"), retryable=False)
    assert await driver.due() == 1
    with pytest.raises(Conflict, match="does not wait for it any more"):
        await skip(driver, f"{id:x}", "work")
    assert find_broken(driver.dsn) == []


async def test_a_token_moves_and_its_job_is_lost(driver: Driver) -> None:
    instance = await driver.run(LINE)
    job = await driver.one("one")
    await move(driver, instance, "one", "three", note="two is not needed")
    with pytest.raises(LeaseLost):
        await driver.complete(job)
    assert await audited(driver, instance, "MOVED") == [("one", "to 'three': two is not needed")]
    await driver.complete(await driver.one("three"))
    assert await driver.path(instance) == [("one", "SKIPPED"), ("three", "COMPLETED"), ("end", "COMPLETED")]
    assert find_broken(driver.dsn) == []


async def test_a_token_moves_onto_its_own_step_and_begins_anew(driver: Driver) -> None:
    body = definition(user("ask", boundaryEvents=[timer("late", "PT1H")]), task("late"), end(), id="asked")
    instance = await driver.run(body)
    await move(driver, instance, "ask", "ask")
    [(first, second)] = driver.rows(
        "SELECT min(seq), max(seq) FROM (SELECT seq FROM history UNION SELECT seq FROM token) s"
    )
    assert first < second
    assert driver.rows("SELECT seq FROM timer") == [(second,)] == driver.rows("SELECT seq FROM open_task")
    await driver.finish_task(instance, "ask")
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_a_parked_poll_gets_the_job_that_a_move_made(driver: Driver) -> None:
    instance = await driver.run(LINE)
    got: list[Any] = []

    async def poll() -> None:
        got.append(await driver.one("three"))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            await move(driver, instance, "one", "three")
    assert [job.step_id for job in got] == ["three"]
    await driver.complete(got[0])
    assert find_broken(driver.dsn) == []


async def test_a_retry_from_another_step_does_work_again(driver: Driver) -> None:
    instance = await driver.run(LINE)
    for step in ("one", "two"):
        await driver.complete(await driver.one(step))
    with pytest.raises(Conflict, match="only a FAILED instance"):
        await driver.engine.repair.retry_from(instance, "one", None, None)
    await driver.fail(await driver.one("three"), retryable=False)
    with pytest.raises(BadRequest, match="fromStepId: 'zero' is not a step of 'line' version 1"):
        await driver.engine.repair.retry_from(instance, "zero", None, None)
    view = await driver.engine.repair.retry_from(instance, "two", None, "the file was wrong")
    assert (view.status, view.current_step_ids) == ("ACTIVE", ["two"])
    assert await audited(driver, instance, "RETRIED") == [("three", "from 'two': the file was wrong")]
    for step in ("two", "three"):
        await driver.complete(await driver.one(step))
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_a_retry_from_elsewhere_keeps_the_other_branches(driver: Driver) -> None:
    instance = await driver.run(BLOCK)
    await driver.complete(await driver.one("before"))
    await driver.complete(await driver.one("a"))
    await driver.fail(await driver.one("a2"), retryable=False)
    with pytest.raises(Conflict, match=r"outside of the block of gateway 'fork'.*1 more under way"):
        await driver.engine.repair.retry_from(instance, "before", None, None)
    await driver.engine.repair.retry_from(instance, "a", None, None)
    assert sorted(await driver.open_steps(instance)) == ["a", "b"]
    for step in ("a", "a2", "b", "after"):
        await driver.complete(await driver.one(step))
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_moves_that_would_break_a_join_are_refused(driver: Driver) -> None:
    instance = await driver.run(BLOCK)
    with pytest.raises(Conflict, match=r"inside the block of gateway 'fork'.*move it to 'fork'"):
        await move(driver, instance, "before", "a2")
    with pytest.raises(Conflict, match="'join' is a join"):
        await move(driver, instance, "before", "join")
    await move(driver, instance, "before", "fork")
    before = driver.snapshot()
    with pytest.raises(Conflict, match=r"outside of the block.*1 more under way, 0 arrived.*move 'fork' itself"):
        await move(driver, instance, "a", "after")
    assert driver.snapshot() == before
    await move(driver, instance, "b", "join")
    with pytest.raises(Conflict, match="0 more under way, 1 arrived"):
        await move(driver, instance, "a", "after")
    await move(driver, instance, "a", "a2")
    await driver.complete(await driver.one("a2"))
    assert await driver.open_steps(instance) == ["after"]
    assert find_broken(driver.dsn) == []


async def test_a_gateway_moves_with_all_its_branches(driver: Driver) -> None:
    instance = await driver.run(BLOCK)
    await move(driver, instance, "before", "fork")
    job = await driver.one("a")
    await move(driver, instance, "fork", "after")
    with pytest.raises(LeaseLost):
        await driver.complete(job)
    assert await driver.open_steps(instance) == ["after"]
    assert driver.rows("SELECT id = instance_id FROM token") == [(True,)]
    await driver.complete(await driver.one("after"))
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_a_branch_moved_to_an_end_ends_the_instance(driver: Driver) -> None:
    instance = await driver.run(BLOCK)
    await move(driver, instance, "before", "fork")
    await move(driver, instance, "a", "end")
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_what_can_not_be_mended_says_why(driver: Driver) -> None:
    instance = await driver.run(CHOICE, {"n": 2})
    with pytest.raises(BadRequest, match="stepId: 'zero' is not a step of 'choice' version 1"):
        await skip(driver, instance, "zero")
    with pytest.raises(Conflict, match="'many' is not open"):
        await skip(driver, instance, "many")
    with pytest.raises(BadRequest, match="executionId"):
        await skip(driver, instance, "one", execution_id="x")
    with pytest.raises(Conflict, match="not open with this execution"):
        await skip(driver, instance, "one", execution_id=f"{instance}-1-1")
    with pytest.raises(BadRequest, match="toStepId"):
        await move(driver, instance, "one", "zero")
    with pytest.raises(BadRequest, match="note"):
        await move(driver, instance, "one", "many", note="x" * 5_000)
    with pytest.raises(NotFound):
        await skip(driver, "1f", "one")
    await driver.cancel(instance)
    with pytest.raises(Conflict, match="CANCELLED"):
        await skip(driver, instance, "one")
    assert driver.rows("SELECT count(*) FROM audit WHERE kind IN ('SKIPPED', 'MOVED')") == [(0,)]


async def test_the_named_execution_is_the_one_that_is_skipped(driver: Driver) -> None:
    body = definition(gateway("fork", "one", "one"), task("one", "join"), joining(), end(), id="twice")
    instance = await driver.run(body)
    first, second = [item for item in await driver.history(instance) if item.status == "RUNNING"]
    await skip(driver, instance, "one", execution_id=second.id)
    [job] = await driver.poll("one")
    assert job.id == first.id
    assert find_broken(driver.dsn) == []


async def test_what_was_entered_since_is_left_alone(driver: Driver) -> None:
    """As an operation on many does it again after a crash."""
    instance = number(await driver.run(LINE))
    [(now,)] = driver.rows("SELECT penstock_now()")
    await driver.engine.full_path.submit(MoveCommand(instance, "one", "one", entered_until=now))
    for again in (
        MoveCommand(instance, "one", "one", entered_until=now),
        SkipCommand(instance, "one", b"{}", entered_until=now),
    ):
        with pytest.raises(Conflict, match="entered again meanwhile"):
            await driver.engine.full_path.submit(again)
    assert driver.rows("SELECT count(*) FROM history") == [(1,)]
