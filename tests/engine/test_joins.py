"""Forks and joins through the database: branches of any length and kind, and what an END among them leaves."""

from __future__ import annotations

import random

import pytest
import trio

from penstock.errors import JobCancelled
from penstock.testing.definitions import definition, end, fork, timer
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import assign, choose, gateway, joining, parallel, task, user, wait


async def drain(driver: Driver, *types: str, worker: str = "w") -> int:
    """Complete every job there is, in random order; how many there were."""
    count = 0
    while jobs := await driver.poll(*types, worker=worker, n=100):
        for job in random.sample(jobs, len(jobs)):
            await driver.complete(job, {job.step_id: True})
            count += 1
    return count


@pytest.mark.parametrize("lengths", [(1, 1), (1, 5), (3, 2, 4), (2,) * 12])
async def test_branches_of_any_length_join_once(driver: Driver, lengths: tuple[int, ...]) -> None:
    instance = await driver.run(fork(*lengths))
    assert await drain(driver, "work") == sum(lengths)
    assert await driver.status(instance) == "COMPLETED"
    path = await driver.path(instance)
    assert path.count(("join", "COMPLETED")) == 1
    assert len(path) == sum(lengths) + 3
    assert len(await driver.variables(instance)) == sum(lengths)


async def test_the_second_steps_of_branches_are_waited_for(driver: Driver) -> None:
    """The trap of counting first steps: all of them are done, two branches are not."""
    instance = await driver.run(fork(1, 2, 2))
    for job in await driver.poll("work", n=3):
        await driver.complete(job)
    assert await driver.open_steps(instance) == ["branch-2-task-2", "branch-3-task-2"]
    assert ("join", "COMPLETED") not in await driver.path(instance)
    await drain(driver, "work")
    assert await driver.status(instance) == "COMPLETED"


async def test_loops_within_a_branch_and_over_the_block_join(driver: Driver) -> None:
    body = definition(
        gateway("fork", "a", "b"),
        task("a", "again"),
        choose("again", {"n % 3 != 0": "a", "true": "join"}),
        task("b", "join"),
        joining("join", "round"),
        choose("round", {"n < 9": "fork", "true": "end"}),
        end(),
    )
    instance = await driver.run(body, {"n": 0})
    n = 0
    while jobs := await driver.poll("a", "b"):
        for job in jobs:
            n += job.step_id == "a"
            await driver.complete(job, {"n": n})
    path = await driver.path(instance)
    assert path.count(("a", "COMPLETED")) == 9
    assert path.count(("b", "COMPLETED")) == path.count(("join", "COMPLETED")) == path.count(("fork", "COMPLETED")) == 3
    assert await driver.status(instance) == "COMPLETED"


async def test_a_block_of_automatic_steps_passes_at_the_start(driver: Driver) -> None:
    await driver.upload(
        parallel(assign("a", {"a": 1}, "join"), choose("b", {"a == 1": "join", "true": "join"}), name="auto")
    )
    view = await driver.start("auto", {"a": 0})
    assert view.status == "COMPLETED"
    assert await driver.variables(view.id) == {"a": 1}
    assert [step for step, _ in await driver.path(view.id)].count("join") == 1


async def test_every_kind_of_step_in_one_block(driver: Driver) -> None:
    body = definition(
        gateway("fork", "job", "ask", "sleep", "listen", "compute"),
        task("job", "join", retryCount=1),
        user("ask", "join", boundaryEvents=[timer("remind", "PT1H"), timer("escalate", "PT2H", interrupting=True)]),
        task("remind", "join"),
        task("escalate", "join"),
        wait("sleep", "join", duration="P30D"),
        wait("listen", "join"),
        assign("compute", {"x": "${n * 2}"}, "decide"),
        choose("decide", {"x > 10": "outside", "true": "join"}),
        joining("join", "outside"),
        task("outside", "last"),
        user("last"),
        end(),
    )
    instance = await driver.run(body, {"n": 6})
    assert (await driver.view(instance)).status == "WAITING"
    await driver.complete(await driver.one("outside"))  # `compute` left the block
    await driver.fail(await driver.one("job"))
    await driver.complete(await driver.one("job"))
    assert await driver.due(3601) == 1
    assert await driver.due(3601) == 1
    await driver.complete(await driver.one("remind"))
    await driver.complete(await driver.one("escalate"))
    await driver.signal(instance, "listen")
    assert await driver.open_steps(instance) == ["sleep", "last"]
    assert await driver.due(30 * 86_400) == 1
    path = await driver.path(instance)
    assert path.count(("join", "COMPLETED")) == 1
    assert sorted(await driver.open_steps(instance)) == ["last", "outside"]


async def test_end_in_a_branch_dequeues_the_other_branches_jobs(driver: Driver) -> None:
    instance = await driver.run(
        parallel(
            task("stop", "end"), task("queued", "join"), task("held", "join"), wait("parked", "join", duration="PT1H")
        )
    )
    held = await driver.one("held")
    await driver.complete(await driver.one("stop"))
    assert await driver.status(instance) == "COMPLETED"
    assert await driver.poll("queued", "held") == []
    assert await driver.due(3601) == 0
    with pytest.raises(JobCancelled):
        await driver.heartbeat(held)
    before = driver.snapshot()
    await driver.complete(held, {"late": True})
    assert driver.snapshot() == before
    assert {step for step, status in await driver.path(instance) if status == "SKIPPED"} == {"queued", "held", "parked"}


async def test_a_join_without_its_gateway_fails_only_the_instance(driver: Driver) -> None:
    """A definition that passes validation and fails at run time must not let a job circle for ever."""
    body = definition(
        task("x", "fork", boundaryEvents=[timer("a", interrupting=True)]),
        gateway("fork", "a", "b"),
        task("a", "join"),
        task("b", "join"),
        joining(),
        end(),
    )
    instance = await driver.run(body)
    await driver.due(3601)
    await driver.complete(await driver.one("a"), {"kept": 1})
    view = await driver.view(instance)
    assert view.status == "FAILED"
    assert (view.failure_reason or "").startswith("JoinWithoutGateway")
    assert await driver.poll("a") == []
    assert await driver.variables(instance) == {"kept": 1}


async def test_branches_that_leave_or_end_are_not_counted(driver: Driver) -> None:
    instance = await driver.run(
        definition(
            gateway("fork", "leaves", "ends", "arrives"),
            task("leaves", "outside"),
            task("ends", None),
            task("arrives", "join"),
            joining("join", "outside"),
            user("outside"),
            end(),
        )
    )
    await driver.complete(await driver.one("arrives"))
    await driver.complete(await driver.one("leaves"))
    assert ("join", "COMPLETED") not in await driver.path(instance)
    assert await driver.open_steps(instance) == ["ends", "outside"]
    await driver.complete(await driver.one("ends"))
    assert (await driver.path(instance)).count(("join", "COMPLETED")) == 1
    assert (await driver.view(instance)).current_step_ids == ["outside"]
    assert driver.rows("SELECT count(*) FROM token WHERE state = 2") == [(2,)]  # open twice, shown once


async def test_without_any_arrival_the_instance_stays_active_and_empty(driver: Driver) -> None:
    body = parallel(task("a", None, boundaryEvents=[timer("join", "P1D")]), task("b", None))
    instance = await driver.run(body)
    await drain(driver, "a", "b")
    view = await driver.view(instance)
    assert (view.status, view.current_step_ids) == ("ACTIVE", [])
    assert driver.rows("SELECT state FROM token") == [(6,)]
    assert (await driver.cancel(instance, "over")).status == "CANCELLED"


@pytest.mark.parametrize("workers", [1, 6])
async def test_many_instances_with_branches_at_once_in_two_engines(make_driver: MakeDriver, workers: int) -> None:
    engines = [make_driver(), make_driver()]
    await engines[0].upload(fork(2, 1, 3))
    instances = [(await engines[n % 2].start("fork")).id for n in range(30)]
    async with trio.open_nursery() as nursery:
        for n in range(workers):
            nursery.start_soon(lambda n=n: drain(engines[n % 2], "work", worker=f"w{n}"))
    assert await drain(engines[0], "work") == 0
    for instance in instances:
        path = await engines[0].path(instance)
        assert len(path) == 9
        assert path.count(("join", "COMPLETED")) == path.count(("end", "COMPLETED")) == 1


@pytest.mark.slow(reason="a thousand branches")
async def test_a_thousand_branches(driver: Driver) -> None:
    names = [f"b{n}" for n in range(1000)]
    body = definition(
        gateway("fork", *names), *(task(name, "join") | {"jobType": "work"} for name in names), joining(), end()
    )
    instance = await driver.run(body)
    assert await drain(driver, "work") == 1000
    assert (await driver.path(instance)).count(("join", "COMPLETED")) == 1
    assert await driver.status(instance) == "COMPLETED"
