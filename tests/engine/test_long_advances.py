"""Advances that take long: bounded, done in a thread before the locks, and others are served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.engine.advance import long_path
from penstock.engine.advance.advancer import Ahead, Case
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import TooManyRequests, Unavailable
from penstock.loop.offload import run_long
from penstock.store.db.connection import TrioConnection
from penstock.testing.definitions import Json, definition, end, service, step
from penstock.wire.model import StartRequest
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.waiting import wait_until

LONG = "${count(1..9000, # > n)}"
"""More than an advance may do on the loop, less than a tenth of what it may do at all."""


def heavy(times: int = 1_000, name: str = "heavy") -> dict[str, Any]:
    """A loop of two automatic steps: as much as the other limits let through took 36 to 161 s."""
    return definition(
        step("t", "TRANSFORMATION", transformations={f"x{i}": LONG for i in range(times)}, nextStep="d"),
        step("d", "DECISION", conditionalNextSteps={"n < 0": "end", "true": "t"}),
        end(),
        definition_id=name,
    )


def long_once(*more: Json, following: str = "end", name: str = "long") -> dict[str, Any]:
    return definition(
        step("t", "TRANSFORMATION", transformations={"x": LONG, "at": "${now()}"}, nextStep=following),
        *more,
        end(),
        definition_id=name,
    )


@asynccontextmanager
async def no_turn() -> AsyncGenerator[None]:
    """What is done in a thread waits."""
    go = threading.Event()
    begun = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def hold() -> None:
        token.run_sync_soon(begun.set)
        go.wait(30)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_long, hold)
        await begun.wait()
        try:
            yield
        finally:
            go.set()


async def test_a_start_computing_for_a_minute_fails_its_instance(driver: Driver) -> None:
    await driver.upload(heavy())
    view = await driver.start("heavy", {"n": 1})
    assert view.status == "FAILED"
    assert "steps of work in one advance" in (view.failure_reason or "")
    assert (await driver.view(view.id)).failure_reason == view.failure_reason
    assert (await driver.retry(view.id)).failure_reason == view.failure_reason


async def test_the_verdict_is_the_same_each_time(make_driver: MakeDriver) -> None:
    """It is counted, not timed: here in a small budget, by two engines, while one of them is busy."""
    reasons = set()
    for _ in range(2):
        driver = make_driver(advance_max_work_steps=1_000_000)
        await driver.upload(heavy())
        for _ in range(3):
            view = await driver.start("heavy", {"n": 1})
            items = await driver.history(view.id)
            reasons.add((view.failure_reason, len(items)))
    assert len(reasons) == 1


async def test_others_are_served_while_one_is_evaluated(driver: Driver) -> None:
    await driver.upload(long_once())
    await driver.upload(
        definition(
            service("x", "d", job_type="x"),
            step("d", "DECISION", conditionalNextSteps={"n > 0": "end"}),
            end(),
            definition_id="short",
        )
    )
    async with trio.open_nursery() as nursery, no_turn():
        for _ in range(3):
            nursery.start_soon(driver.start, "long", {"n": 1})
        await wait_until(lambda: waiting(driver, 3))
        short = await driver.start("short", {"n": 1})
        await driver.complete(await driver.one("x"))
        assert (await driver.view(short.id)).status == "COMPLETED"

        async def nothing_is_locked() -> bool:  # for long: a vacuum may just look at the table
            return driver.rows("SELECT count(*) FROM pg_locks WHERE relation = 'token'::regclass") == [(0,)]

        await wait_until(nothing_is_locked)
        assert driver.rows("SELECT count(*) FROM instance") == [(1,)]
    assert driver.rows("SELECT status FROM instance GROUP BY 1") == [(1,)]


async def waiting(driver: Driver, count: int) -> bool:
    """Whether so many items are with the long group-commit queues."""
    queued = [commit_queue.statistics() for commit_queue in (driver.engine.full_path.long, driver.engine.starts.long)]
    return sum(each.waiting + (each.batch_age_s is not None) for each in queued) == count


async def test_more_than_may_wait_are_refused(make_driver: MakeDriver) -> None:
    driver = make_driver(long_queue_max_items=1)
    await driver.upload(long_once())
    refused: list[TooManyRequests] = []

    async def start() -> None:
        try:
            await driver.start("long", {"n": 1})
        except TooManyRequests as error:
            refused.append(error)

    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(start)
        await wait_until(lambda: evaluating(driver))
        for _ in range(3):
            nursery.start_soon(start)
        await wait_until(lambda: reached(refused, 2))
    assert driver.rows("SELECT count(*) FROM instance") == [(2,)]


async def evaluating(driver: Driver) -> bool:
    found = driver.engine.starts.long.statistics()
    return found.waiting == 0 and found.batch_age_s is not None


async def reached(found: list[Any], count: int) -> bool:
    return len(found) == count


def forked() -> Json:
    """Branch a ends in something long on what branch b may change meanwhile."""
    return definition(
        step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="join"),
        service("a", "t", job_type="a"),
        step("t", "TRANSFORMATION", transformations={"x": LONG, "seen": "${n}"}, nextStep="join"),
        service("b", "b2", job_type="b"),
        service("b2", "join", job_type="b2"),
        step("join", "JOIN_GATEWAY", nextStep="end"),
        end(),
    )


async def test_what_was_evaluated_on_old_variables_is_evaluated_again(driver: Driver) -> None:
    await driver.run(forked(), {"n": 1})
    a, b = await driver.one("a"), await driver.one("b")
    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(driver.complete, a, {"from_a": 1})
        await wait_until(lambda: waiting(driver, 1))
        await driver.complete(b, {"n": 8_000})
    assert await driver.variables(a.instance_id) == {"n": 8_000, "from_a": 1, "x": 1_000, "seen": 8_000}


async def test_an_ever_changing_instance_is_evaluated_under_its_lock(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = definition(
        step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="join"),
        service("a", "t", job_type="a"),
        step("t", "TRANSFORMATION", transformations={"x": LONG, "seen": "${n}"}, nextStep="join"),
        step("b", "SERVICE_TASK", jobType="b", conditionalNextSteps={"n < 0": "join", "true": "b"}),
        step("join", "JOIN_GATEWAY", nextStep="end"),
        end(),
    )
    await driver.run(loop, {"n": 0})
    a = await driver.one("a")
    advancer = driver.engine.transactions.advancer
    evaluate = advancer.ahead
    held: list[bool] = []

    async def interfered(case: Case, connection: TrioConnection | None = None) -> Ahead:
        found = await evaluate(case, connection)
        held.append(connection is not None)
        if connection is None:
            await driver.complete(await driver.one("b"), {"n": len(held)})
        return found

    monkeypatch.setattr(advancer, "ahead", interfered)
    await driver.complete(a)
    assert held == [False] * (long_path.TRIES_MAX + 1) + [True]
    assert (await driver.variables(a.instance_id))["seen"] == long_path.TRIES_MAX + 1


async def test_a_job_completed_by_another_meanwhile_is_judged_again(driver: Driver) -> None:
    await driver.run(definition(service("a", "t", job_type="a"), *long_once()["steps"]), {"n": 1})
    job = await driver.one("a")
    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(driver.complete, job, {"by": 1})
        await wait_until(lambda: waiting(driver, 1))
        await driver.cancel(job.instance_id, "enough")
    assert (await driver.status(job.instance_id), (await driver.variables(job.instance_id))) == ("CANCELLED", {"n": 1})


async def test_a_poison_timer_fails_its_instance_whichever_engine_fires_it(make_driver: MakeDriver) -> None:
    """It fired, computed, lost its session, and fired again, also after kill -9."""
    driver = make_driver()
    body = heavy(name="poison")
    body["steps"].insert(0, step("sleep", "WAIT", duration="PT1S", nextStep="t"))
    await driver.upload(body)
    view = await driver.start("poison", {"n": 1})
    driver.clock.advance(5)
    other = make_driver()
    await other.engine.definitions.get("poison")  # parsed in a thread, too
    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(driver.due)
        await wait_until(lambda: waiting(driver, 1))
        nursery.start_soon(other.due)  # after a restart, and before the first one has come to an end
        await wait_until(lambda: waiting(other, 1))
        other.engine.timers._refused.clear()
        assert await other.engine.timers.fire_once() == 0  # and with a later look, beside the one that waits
        assert await waiting(other, 1)
    found = await other.view(view.id)
    assert found.status == "FAILED"
    assert "steps of work" in (found.failure_reason or "")
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    assert await other.due(600) == 0


async def test_a_key_starts_once_however_long_it_takes(driver: Driver) -> None:
    await driver.upload(long_once(service("s", "end", job_type="s"), following="s"))
    request = StartRequest(definition_id="long", variables=b'{"n":1}', idempotency_key="k", instance_key="i")
    views = []

    async def start() -> None:
        views.append(await driver.engine.instances.start(request))

    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(start)
        nursery.start_soon(start)
        await wait_until(lambda: waiting(driver, 2))
    assert views[0] == views[1]
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_chained_workflows_share_the_budget(driver: Driver) -> None:
    """A hundred of them in one transaction had one each."""
    body = long_once(name="again") | {"autoStartNextWorkflow": True, "nextWorkflowId": "again"}
    await driver.upload(body)
    first = await driver.start("again", {"n": 1})
    assert first.status == "COMPLETED"
    reasons = driver.rows("SELECT count(*) FROM instance WHERE failure LIKE %s", "%steps of work%")
    assert reasons == [(1,)]
    assert 20 < driver.rows("SELECT count(*) FROM instance")[0][0] < 40


async def test_large_variables_are_not_read_on_the_loop(driver: Driver) -> None:
    await driver.upload(
        definition(step("d", "DECISION", conditionalNextSteps={"n == 1": "end"}), end(), definition_id="short")
    )
    variables = {"n": 1, "much": list(range(100_000))}
    async with trio.open_nursery() as nursery, no_turn():
        nursery.start_soon(driver.start, "short", variables)
        await wait_until(lambda: waiting(driver, 1))
    assert driver.rows("SELECT status FROM instance") == [(1,)]


async def test_a_job_is_handed_over_at_birth_after_something_long(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True)
    await driver.upload(long_once(service("s", "end", job_type="s"), following="s"))
    async with trio.open_nursery() as nursery:
        jobs = []

        async def poll() -> None:
            jobs.append(await driver.one("s", wait=60))

        nursery.start_soon(poll)
        await wait_until(lambda: reached([1] * len(driver.engine.polls.waiters), 1))
        await driver.start("long", {"n": 1})
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]
    await driver.complete(jobs[0])


async def test_a_new_version_of_what_is_chained_is_evaluated_anew(driver: Driver) -> None:
    """The record of the old one must not be taken for it."""
    child = definition(
        step("c", "TRANSFORMATION", transformations={"v": "${1}"}, nextStep="end"), end(), definition_id="child"
    )
    await driver.upload(child)
    await driver.upload(long_once() | {"autoStartNextWorkflow": True, "nextWorkflowId": "child"})
    advancer = driver.engine.transactions.advancer
    evaluate = advancer.ahead
    changed: list[bool] = []

    async def overtaken(case: Case, connection: TrioConnection | None = None) -> Ahead:
        found = await evaluate(case, connection)
        if not changed:
            changed.append(True)
            newer = step("c", "TRANSFORMATION", transformations={"v": "${2}"}, nextStep="end")
            await driver.upload(definition(newer, end(), definition_id="child"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advancer, "ahead", overtaken)
        first = await driver.start("long", {"n": 1})
    assert first.status == "COMPLETED"
    page = await driver.engine.instances.list(InstanceFilter(definition_id="child"), 0, 0)
    assert [(view.definition_version, msgspec.json.decode(view.variables)["v"]) for view in page.items] == [(2, 2)]  # pyright: ignore[reportArgumentType] - text in the engine


async def test_a_long_evaluation_waits_for_an_absent_database(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await driver.upload(long_once() | {"autoStartNextWorkflow": True, "nextWorkflowId": "nowhere"})
    find = driver.engine.definitions.find
    failures = [psycopg.OperationalError("away"), Unavailable("away")]

    async def away(connection: TrioConnection, id: str, version: int, **where: bool) -> LoadedDefinition | None:
        if id == "nowhere" and failures:
            raise failures.pop()
        return await find(connection, id, version, **where)

    monkeypatch.setattr(driver.engine.definitions, "find", away)
    view = await driver.start("long", {"n": 1})
    assert (view.status, view.failure_reason) == ("FAILED", "NextWorkflowNotFound: nowhere")
    assert not failures


async def test_what_waits_holds_no_large_variables(driver: Driver) -> None:
    """A thousand items may wait, and an instance may have 64 MB of them."""
    await driver.upload(long_once(service("s", "end", job_type="s"), following="s"))
    async with trio.open_nursery() as nursery, no_turn():
        for _ in range(3):
            nursery.start_soon(driver.start, "long", {"n": 1, "much": "x" * 300_000})
        await wait_until(lambda: waiting(driver, 3))
        assert [item.case for item in driver.engine.starts.long._queue] == [None, None]
    assert driver.rows("SELECT count(*) FROM instance") == [(3,)]
