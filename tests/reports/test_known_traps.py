"""The known traps of engines like this one (docs/guarantees.md): each was seen in another implementation of it.

One test per trap, named after what is so here. Traps of the process and of gRPC: tests/runtime and tests/rpc.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from penstock.core.parsing.parsing import parse_definition
from penstock.errors import BadRequest, Conflict, LeaseLost, NotFound, PenstockError
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step, timer
from penstock.wire.model import Failure
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver, variables_of
from tests.waiting import wait_until

__all__ = ["driver", "make_driver"]


async def all_at_once(*calls: Callable[[], Awaitable[Any]]) -> list[str]:
    """What each call ended with: ok, or the code of its error."""
    results: list[str] = []

    async def run(call: Callable[[], Awaitable[Any]]) -> None:
        try:
            await call()
        except PenstockError as error:
            results.append(error.code)
        else:
            results.append("ok")

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(run, call)
    return results


async def test_more_operations_than_connections_do_not_deadlock_the_pool(make_driver: MakeDriver) -> None:
    """Many more operations of every kind at once than there are connections."""
    driver = make_driver()
    await driver.upload(fork(1, 1))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(driver.start, "fork")
        jobs = await driver.poll("work", n=200)
        assert len(jobs) == 200
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(driver.complete, job)
                nursery.start_soon(driver.view, job.instance_id)
    assert driver.rows("SELECT count(*) FROM instance WHERE status = 1") == [(100,)]


@pytest.mark.parametrize("body", [linear(2), fork(1, 1)], ids=["narrow", "wide"])
async def test_simultaneous_completions_start_the_next_step_once(make_driver: MakeDriver, body: Json) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(body)
    view = await one.start(str(body["id"]))
    job = (await one.poll("work", n=1))[0]
    results = await all_at_once(*(lambda d=each: d.complete(job, {"x": 1}) for each in (one, two) * 5))
    assert results == ["ok"] * 10
    steps = [step_id for step_id, _ in await one.path(view.id)]
    assert len(steps) == len(set(steps))
    assert one.rows("SELECT count(*) FROM history WHERE kind = 1 AND step > 0 OR kind = 1 AND worker IS NOT NULL") == [
        (1,)
    ]


async def test_complete_racing_fail_leaves_a_finished_job_finished(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(1, retry_count=5))
    for _ in range(20):
        view = await one.start("linear")
        job = await one.one("work")
        await all_at_once(partial(one.complete, job), partial(two.fail, job))
        status = (await one.view(view.id)).status
        left = await one.poll("work")
        assert (status, len(left)) in {("COMPLETED", 0), ("ACTIVE", 1)}
        for again in left:
            await one.complete(again)
        assert (await one.view(view.id)).status == "COMPLETED"


async def test_a_fail_leaves_a_completed_instance_completed(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    job = await driver.one("work")
    await driver.complete(job)
    await driver.fail(job, retryable=False)
    assert (await driver.view(view.id)).status == "COMPLETED"


async def test_only_the_holder_completes_or_fails_a_job(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    job = await driver.one("work", worker="holder")
    before = driver.snapshot()
    with pytest.raises(LeaseLost):
        await driver.complete(job, worker_id="thief")
    await driver.fail(job, worker_id="thief", retryable=False)
    assert driver.snapshot() == before


async def test_joins_count_arriving_branches(driver: Driver) -> None:
    """Multi-step branches, a branch with a loop, and a branch of transformations only."""
    gate = step("gate", "PARALLEL_GATEWAY", parallelNextSteps=["a1", "b", "c"], joinStep="join")
    await driver.upload(
        definition(
            gate,
            service("a1", "a2", job_type="a"),
            service("a2", "join", job_type="a"),
            service("b", "again", job_type="b"),
            step("again", "DECISION", conditionalNextSteps={"n < 3": "b", "true": "join"}),
            step("c", "TRANSFORMATION", transformations={"c": 1}, nextStep="join"),
            step("join", "JOIN_GATEWAY", nextStep="last"),
            service("last", "end", job_type="last"),
            end(),
        )
    )
    view = await driver.start("test", {"n": 0})
    for n in (1, 2, 3):
        await driver.complete(await driver.one("b"), {"n": n})
        assert await driver.poll("last") == []
    await driver.complete(await driver.one("a"))
    assert await driver.poll("last") == []
    await driver.complete(await driver.one("a"))
    await driver.complete(await driver.one("last"))
    assert (await driver.view(view.id)).status == "COMPLETED"
    assert (await driver.path(view.id)).count(("join", "COMPLETED")) == 1


async def test_end_in_one_branch_empties_the_queue(driver: Driver) -> None:
    gate = step("gate", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="join")
    await driver.upload(
        definition(
            gate,
            service("a", "end", job_type="a"),
            service("b", "join", job_type="b"),
            step("join", "JOIN_GATEWAY", nextStep="end"),
            end(),
        )
    )
    await driver.start("test")
    await driver.complete(await driver.one("a"))
    assert await driver.poll("b") == []


def timed(kind: str, *, interrupting: bool) -> Json:
    task = {"jobType": "x"} if kind == "SERVICE_TASK" else {}
    event = timer("late", "PT1H", interrupting=interrupting)
    return definition(
        step("x", kind, nextStep="end", boundaryEvents=[event], **task), service("late", "end", job_type="late"), end()
    )


def pass_an_hour(driver: Driver) -> None:
    """Until the timer of `timed` is due; then the engine's loop looks."""
    driver.clock.advance(3_600)
    driver.engine.timers.hint(0)


@pytest.mark.parametrize("interrupting", [True, False])
async def test_boundary_timers_end_with_their_step_and_instance(make_driver: MakeDriver, interrupting: bool) -> None:
    driver = make_driver(services=True)
    await driver.upload(timed("USER_TASK", interrupting=interrupting))
    done, cancelled, witness = [(await driver.start("test")).id for _ in range(3)]
    await driver.finish_task(done, "x")
    await driver.engine.instances.cancel(cancelled, None)
    pass_an_hour(driver)
    assert (await driver.one("late")).instance_id == witness  # the others' timers would have been due before it
    assert (await driver.view(done)).status == "COMPLETED"
    assert (await driver.view(cancelled)).status == "CANCELLED"
    assert await driver.poll("late") == []


async def test_a_crash_loses_no_due_timer(make_driver: MakeDriver) -> None:
    """The engine that takes the due timer dies before it acts; another one fires it."""
    dying, other = make_driver(1), make_driver(2)
    await dying.upload(timed("USER_TASK", interrupting=True))
    await dying.start("test")

    async def never(*_: object) -> bool:
        return False

    dying.engine.timers._fire = never  # type: ignore[method-assign]
    dying.clock.advance(3_600)
    assert await dying.engine.timers.fire_once() == 0
    await other.engine.definitions.get("test")  # in memory: else its items stand aside for a moment
    assert await other.engine.timers.fire_once() == 1
    assert len(await other.poll("late")) == 1


async def test_an_interrupted_user_task_cannot_be_completed(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.upload(timed("USER_TASK", interrupting=True))
    view = await driver.start("test")
    pass_an_hour(driver)
    await driver.one("late")
    with pytest.raises(NotFound):
        await driver.finish_task(view.id, "x")
    assert (await driver.view(view.id)).current_step_ids == ["late"]


async def test_jobs_of_cancelled_instances_are_not_handed_out(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    await driver.engine.instances.cancel(view.id, None)
    assert await driver.poll("work") == []


async def test_decision_and_transformation_entries_keep_their_order(driver: Driver) -> None:
    names = [f"s{number}" for number in range(20)]
    decide = step("d", "DECISION", conditionalNextSteps={f"n >= {19 - i}": name for i, name in enumerate(names)})
    chain = {f"t{i}": (1 if i == 0 else f"${{t{i - 1} * 2}}") for i in range(20)}
    await driver.upload(
        definition(
            step("t", "TRANSFORMATION", transformations=chain, nextStep="d"),
            decide,
            *(service(name, "end", job_type=name) for name in names),
            end(),
        )
    )
    for n in (0, 7, 19, 100):
        view = await driver.start("test", {"n": n})
        assert view.current_step_ids == [names[max(0, 19 - n)]]
        assert (await driver.variables(view.id))["t19"] == 2**19


async def test_a_definition_failing_at_run_time_does_not_circle(driver: Driver) -> None:
    """What can be seen at upload is refused there; the rest fails the instance, with a reason, at once."""
    for broken in (
        definition(step("d", "DECISION", conditionalNextSteps={"n >": "end"}), end()),
        definition(service("s", "end", boundaryEvents=[timer("end", "soon")]), end()),
        definition(step("g", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="a"), service("a", "end"),
                   service("b", "end"), end()),
    ):  # fmt: skip
        with pytest.raises(BadRequest):
            parse_definition(msgspec.json.encode(broken))
    await driver.upload(definition(service("s", conditionalNextSteps={"missing > 1": "end"}), end()))
    view = await driver.start("test")
    await driver.complete(await driver.one("work"))
    after = await driver.view(view.id)
    assert after.status == "FAILED"
    assert "missing" in (after.failure_reason or "")
    assert await driver.poll("work") == []


async def test_lease_expiry_counts_as_an_attempt(driver: Driver) -> None:
    await driver.upload(linear(1))
    view = await driver.start("linear")
    for _ in range(10):
        await driver.one("work")
        await driver.expire(31)
    after = await driver.view(view.id)
    assert (after.status, after.failure_reason) == ("FAILED", "lease expired 10 times")


async def test_chained_workflows_start_with_the_commit(driver: Driver) -> None:
    """Parent's end and child's start are one transaction: either both rows say so, or neither."""
    await driver.upload(linear(1, definition_id="next", job_type="next"))
    await driver.upload(linear(1) | {"autoStartNextWorkflow": True, "nextWorkflowId": "next"})
    await driver.start("linear")
    await driver.complete(await driver.one("work"))
    assert driver.rows("SELECT p.ended_at = c.started_at FROM instance p JOIN instance c ON c.parent_id = p.id") == [
        (True,)
    ]


async def test_integers_above_2_to_the_53_are_unchanged(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear", {"n": 2**53 + 1, "m": 10**40 + 1})
    assert variables_of(await driver.one("work")) == {"n": 2**53 + 1, "m": 10**40 + 1}


async def test_concurrent_uploads_of_one_id_all_succeed(make_driver: MakeDriver) -> None:
    one, two = make_driver(1), make_driver(2)
    results = await all_at_once(
        *(lambda d=each, n=n: d.upload(linear(n)) for n in (1, 2, 3) for each in (one, two) * 3)
    )
    assert results == ["ok"] * 18
    assert one.rows("SELECT version FROM definition ORDER BY 1") == [(1,), (2,), (3,)]


async def test_unknown_ids_are_not_found(driver: Driver) -> None:
    for id in ("", "nonsense", "00", "7fffffffffffffff", "8000000000000000", "f" * 100):
        for call in (driver.view, driver.engine.instances.history, driver.engine.instances.retry):
            with pytest.raises(NotFound):
                await call(id)
    with pytest.raises(NotFound):
        await driver.engine.jobs.fail(Failure(job_id="1-1-1", worker_id="w", retryable=True))


async def test_lease_seconds_are_honoured(driver: Driver) -> None:
    await driver.upload(linear(1))
    await driver.start("linear")
    job = await driver.one("work", lease=123)
    assert round((job.lock_expires_at - job.locked_at).total_seconds()) == 123  # pyright: ignore[reportOperatorIssue] - they are there


async def test_completions_racing_a_timer_and_a_cancel_advance_once(
    make_driver: MakeDriver,
) -> None:
    one, two = make_driver(1), make_driver(2)
    await one.upload(linear(2))
    for _ in range(20):
        view = await one.start("linear")
        job = await one.one("work")
        await all_at_once(
            partial(one.complete, job), partial(two.engine.instances.cancel, view.id, None), partial(two.complete, job)
        )
        after = await one.view(view.id)
        if after.status == "ACTIVE":  # a cancel always wins in the end
            raise AssertionError(after)
        assert after.status == "CANCELLED"
        with pytest.raises(Conflict):
            await one.engine.instances.cancel(view.id, None)
        assert await one.poll("work") == []


async def test_a_job_that_nobody_polls_for_is_still_there(driver: Driver) -> None:
    """The probe, not the hint, is what finds jobs: a lost wake-up loses nothing."""
    await driver.upload(linear(1))
    await driver.start("linear")

    async def there() -> bool:
        return len(await driver.poll("work")) == 1

    await wait_until(there)
