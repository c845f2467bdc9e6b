"""Workflows from upload to end as existing clients run them: over real sockets, on a real database.

Nothing here knows the transport; `drivers` does.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from penstock.testing.definitions import definition, end, fork, linear, service, step, timer
from tests.rest.drivers import Driver, JobView, Refused

WAIT_S = 90.0


async def one(driver: Driver, *job_types: str, worker: str = "w", lease_s: int = 30) -> JobView:
    """The next job; fails when none comes."""
    jobs = await driver.poll(*job_types, worker=worker, lease_s=lease_s, wait_s=WAIT_S)
    assert len(jobs) == 1, f"no job of {job_types}"
    return jobs[0]


async def refused(call: Any) -> str:
    """The code with which a call is refused."""
    with pytest.raises(Refused) as caught:
        await call
    return caught.value.code


async def path(driver: Driver, instance_id: str) -> list[tuple[str, str]]:
    return [(item.step_id, item.status) for item in await driver.history(instance_id)]


async def wait_status(driver: Driver, instance_id: str, status: str) -> None:
    with trio.fail_after(WAIT_S):
        while (await driver.instance(instance_id)).status != status:
            await trio.lowlevel.checkpoint()


# -- from upload to end


async def test_a_linear_workflow_runs_to_its_end(driver: Driver, name: str) -> None:
    assert await driver.upload(linear(2, definition_id=name, job_type=name, retry_count=3)) == 1
    started = await driver.start(name, {"order": 7, "kept": None}, business_key="b-1")
    assert (started.status, started.steps, started.version) == ("ACTIVE", ["task-1"], 1)
    assert (started.business_key, started.ended, started.failure) == ("b-1", False, None)

    job = await one(driver, name)
    assert (job.job_type, job.instance_id, job.step_id) == (name, started.id, "task-1")
    assert (job.retries_remaining, job.attempt) == (3, 1)
    assert job.variables == {"order": 7, "kept": None}
    await driver.complete(job.id, {"paid": True, "order": 8})
    job = await one(driver, name)
    assert (job.step_id, job.variables) == ("task-2", {"order": 8, "kept": None, "paid": True})
    assert (await driver.instance(started.id)).steps == ["task-2"]
    await driver.complete(job.id)

    done = await driver.instance(started.id)
    assert (done.status, done.steps, done.ended) == ("COMPLETED", [], True)
    assert done.variables == {"order": 8, "kept": None, "paid": True}
    history = await driver.history(started.id)
    assert [(item.step_id, item.step_type, item.status, item.attempt_number, item.ended) for item in history] == [
        ("task-1", "SERVICE_TASK", "COMPLETED", 1, True),
        ("task-2", "SERVICE_TASK", "COMPLETED", 1, True),
        ("end", "END", "COMPLETED", 1, True),
    ]
    assert history[1].id == job.step_execution_id


async def test_versions_follow_content_and_instances_stay_on_theirs(driver: Driver, name: str) -> None:
    first = linear(1, definition_id=name, job_type=name)
    assert [await driver.upload(first) for _ in range(2)] == [1, 1]
    old = await driver.start(name)
    second = linear(2, definition_id=name, job_type=name)
    assert await driver.upload(second) == 2
    new = await driver.start(name)
    pinned = await driver.start(name, version=1)
    assert [(item.version) for item in (old, new, pinned)] == [1, 2, 1]
    assert await driver.read_definition(name) == {**second, "version": 2}
    assert await driver.read_definition(name, 1) == {**first, "version": 1}
    assert await driver.list_definitions(name.upper()) == [(name, 2)]
    assert await refused(driver.start(name, version=3)) == "not-found"
    assert await refused(driver.read_definition(name, 3)) == "not-found"


async def test_uploads_at_once_never_clash(driver: Driver, name: str) -> None:
    versions: list[int] = []

    async def upload(tasks: int) -> None:
        versions.append(await driver.upload(linear(tasks, definition_id=name)))

    async with trio.open_nursery() as nursery:
        for tasks in (1, 2, 3, 4, 1, 2, 3, 4):
            nursery.start_soon(upload, tasks)
    latest = max(versions)
    assert set(versions) == set(range(1, latest + 1))
    assert latest >= 4
    assert (await driver.read_definition(name))["version"] in versions  # the one that was uploaded last


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "not valid!"},
        {"id": ""},
        {"name": None},
        {"steps": []},
        {"steps": [step("a", "NONSENSE")]},
        {"steps": [service("a", "nowhere"), end()]},
        {"steps": [service("a", "end"), service("lonely", "end"), end()]},
        {"steps": [service("a", "a")]},
        {"steps": [service("a", "end"), service("a", "end"), end()]},
        {"steps": [step("a", "WAIT"), end()]},
        {"steps": [step("d", "DECISION", conditionalNextSteps={"1 +": "end"}), end()]},
        {"steps": [service("a", "end", boundaryEvents=[timer("end", "P1M")]), end()]},
        {"autoStartNextWorkflow": True},
        {"surprise": 1},
    ],
)
async def test_a_definition_that_can_not_run_is_refused(driver: Driver, name: str, broken: dict[str, Any]) -> None:
    body = {**linear(1, definition_id=name), **broken}
    assert await refused(driver.upload(body)) == "bad-request"
    assert await refused(driver.read_definition(name)) == "not-found"


async def test_what_does_not_exist_is_not_found(driver: Driver, name: str) -> None:
    for id in ("1f", "nonsense", "7" * 100, "0"):
        assert await refused(driver.instance(id)) == "not-found"
        assert await refused(driver.history(id)) == "not-found"
        assert await refused(driver.cancel(id)) == "not-found"
        assert await refused(driver.complete_user_task(id, "a")) == "not-found"
        assert await refused(driver.signal(id, "a")) == "not-found"
    for id in ("1f-2-3", "1f", "nonsense", "a-b-c", "7" * 100):
        assert await refused(driver.complete(id)) == "not-found"
        assert await refused(driver.fail(id)) == "not-found"
    assert await refused(driver.start(name)) == "not-found"


# -- automatic steps


async def test_a_decision_takes_the_first_condition_that_holds(driver: Driver, name: str) -> None:
    """In the order of the upload; in sorted order of the expressions where the transport has no order."""
    conditions = {"amount > 100": "large", "amount > 10": "medium", "true": "small"}
    decide = step("decide", "DECISION", conditionalNextSteps=conditions)
    await driver.upload(definition(decide, end("large"), end("medium"), end("small"), definition_id=name))
    for amount, taken in ((500, "large" if driver.keeps_order else "medium"), (50, "medium"), (5, "small")):
        instance = await driver.start(name, {"amount": amount})
        assert instance.status == "COMPLETED"
        assert await path(driver, instance.id) == [("decide", "COMPLETED"), (taken, "COMPLETED")]


@pytest.mark.parametrize(
    ("condition", "variables", "reason"),
    [
        ("a == 1", {"a": 2}, "DecisionNoBranchMatched"),
        ("a", {"a": 2}, ""),
        ("missing > 1", {}, "missing"),
    ],
)
async def test_a_decision_that_can_not_be_made_fails_the_instance(
    driver: Driver, name: str, condition: str, variables: dict[str, Any], reason: str
) -> None:
    decide = step("decide", "DECISION", conditionalNextSteps={condition: "end"})
    await driver.upload(definition(decide, end(), definition_id=name))
    instance = await driver.start(name, variables)
    assert (instance.status, instance.steps, instance.ended) == ("FAILED", [], True)
    assert instance.failure
    assert reason in instance.failure
    assert await path(driver, instance.id) == [("decide", "FAILED")]


async def test_transformations_see_what_stands_above_them(driver: Driver, name: str) -> None:
    first, then = ("z", "a") if driver.keeps_order else ("a", "z")
    made = {first: "${n * 2}", then: f"${{{first} + 1}}", "text": "n", "list": [1, {"x": None}], "at": "${now()}"}
    await driver.upload(
        definition(step("shape", "TRANSFORMATION", transformations=made, nextStep="end"), end(), definition_id=name)
    )
    variables = (await driver.start(name, {"n": 21})).variables
    assert variables.pop("at").endswith("Z")
    assert variables == {"n": 21, first: 42, then: 43, "text": "n", "list": [1, {"x": None}]}


async def test_a_chained_workflow_starts_with_all_variables(driver: Driver, name: str) -> None:
    child = f"{name}::child"
    await driver.upload(
        {**linear(1, definition_id=name, job_type=name), "autoStartNextWorkflow": True, "nextWorkflowId": child}
    )
    await driver.upload(linear(1, definition_id=child, job_type=child))
    await driver.start(name, {"a": 1}, business_key="parent")
    await driver.complete((await one(driver, name)).id, {"b": 2})
    job = await one(driver, child)
    assert job.variables == {"a": 1, "b": 2}
    started = await driver.instance(job.instance_id)
    assert (started.definition_id, started.business_key) == (child, None)


async def test_a_job_has_one_key_for_all_its_attempts(driver: Driver, name: str) -> None:
    again = step("again", "DECISION", conditionalNextSteps={"n < 2": "work", "true": "end"})
    work = service("work", "again", job_type=name, retryCount=1)
    await driver.upload(definition(work, again, end(), definition_id=name))
    await driver.start(name)
    first = await one(driver, name)
    assert first.idempotency_key == first.id
    await driver.fail(first.id)
    second = await one(driver, name)
    assert second.idempotency_key == first.idempotency_key
    await driver.complete(second.id, {"n": 1})
    assert (await one(driver, name)).idempotency_key != first.idempotency_key  # the workflow came to the step again


# -- user tasks and waits


async def test_a_user_task_waits_for_its_completion(driver: Driver, name: str) -> None:
    ask = step("ask", "USER_TASK", nextStep="work")
    await driver.upload(definition(ask, service("work", "end", job_type=name), end(), definition_id=name))
    instance = await driver.start(name)
    assert (instance.status, instance.steps) == ("WAITING", ["ask"])
    assert await refused(driver.signal(instance.id, "ask")) == "bad-request"
    assert await refused(driver.complete_user_task(instance.id, "work")) == "bad-request"
    assert await refused(driver.complete_user_task(instance.id, "nowhere")) == "not-found"
    await driver.complete_user_task(instance.id, "ask", {"approved": True})
    assert (await driver.instance(instance.id)).status == "ACTIVE"
    assert await refused(driver.complete_user_task(instance.id, "ask", {"approved": False})) == "not-found"
    job = await one(driver, name)
    assert job.variables == {"approved": True}
    await driver.complete(job.id)
    assert await refused(driver.complete_user_task(instance.id, "ask")) == "conflict"
    assert await path(driver, instance.id) == [("ask", "COMPLETED"), ("work", "COMPLETED"), ("end", "COMPLETED")]


async def test_a_wait_goes_on_with_its_signal(driver: Driver, name: str) -> None:
    paid = step("paid/in full", "WAIT", nextStep="end")
    await driver.upload(definition(service("work", "paid/in full", job_type=name), paid, end(), definition_id=name))
    instance = await driver.start(name, {"a": 1})
    assert await refused(driver.signal(instance.id, "paid/in full")) == "conflict"
    assert await refused(driver.signal(instance.id, "nowhere")) == "conflict"
    assert await refused(driver.signal(instance.id, "work")) == "bad-request"
    await driver.complete((await one(driver, name)).id)
    assert (await driver.instance(instance.id)).status == "WAITING"
    await driver.signal(instance.id, "paid/in full", {"a": 2, "paid": 5})
    done = await driver.instance(instance.id)
    assert (done.status, done.variables) == ("COMPLETED", {"a": 2, "paid": 5})
    assert await refused(driver.signal(instance.id, "paid/in full")) == "conflict"


async def test_a_signal_needs_no_variables(driver: Driver, name: str) -> None:
    await driver.upload(definition(step("wait", "WAIT", nextStep="end"), end(), definition_id=name))
    instance = await driver.start(name)
    await driver.signal(instance.id, "wait")
    assert (await driver.instance(instance.id)).status == "COMPLETED"


# -- branches


async def test_a_join_goes_on_once_when_every_branch_has_arrived(driver: Driver, name: str) -> None:
    await driver.upload(fork(1, 2, definition_id=name, job_type=name))
    instance = await driver.start(name)
    assert sorted(instance.steps) == ["branch-1-task-1", "branch-2-task-1"]
    jobs = await driver.poll(name, max_jobs=10)
    assert len(jobs) == 2
    for job in jobs:
        await driver.complete(job.id, {job.step_id: True})
    assert (await driver.instance(instance.id)).steps == ["branch-2-task-2"]
    await driver.complete((await one(driver, name)).id)
    done = await driver.instance(instance.id)
    assert (done.status, done.variables) == ("COMPLETED", {"branch-1-task-1": True, "branch-2-task-1": True})
    steps = [step_id for step_id, _ in await path(driver, instance.id)]
    assert (steps.count("fork"), steps.count("join"), steps.count("end")) == (1, 1, 1)


async def test_an_end_closes_everything_that_is_open(driver: Driver, name: str) -> None:
    gateway = step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["quick", "slow", "ask"], joinStep="join")
    await driver.upload(
        definition(
            gateway,
            service("quick", "stop", job_type=f"{name}-quick"),
            service("slow", "join", job_type=f"{name}-slow"),
            step("ask", "USER_TASK", nextStep="join"),
            end("stop"),
            step("join", "JOIN_GATEWAY", nextStep="end"),
            end(),
            definition_id=name,
        )
    )
    instance = await driver.start(name)
    slow = await one(driver, f"{name}-slow")
    await driver.complete((await one(driver, f"{name}-quick")).id)
    done = await driver.instance(instance.id)
    assert (done.status, done.steps) == ("COMPLETED", [])
    found = dict(await path(driver, instance.id))
    assert (found["slow"], found["ask"], found["quick"]) == ("SKIPPED", "SKIPPED", "COMPLETED")
    await driver.complete(slow.id, {"late": True})  # success for old clients, and nothing changes
    assert await driver.instance(instance.id) == done


async def jobs_in_time(driver: Driver, name: str, instance_id: str) -> list[JobView]:
    """The instance's job; none when its timer was faster and it waits for somebody now."""
    jobs: list[JobView] = []
    while not jobs and (await driver.instance(instance_id)).status == "ACTIVE":
        jobs = await driver.poll(name)
    return jobs


async def test_an_interrupting_timer_closes_its_step(driver: Driver, name: str) -> None:
    for seconds in (0.2, 1, 5, 15):  # the longer ones on a machine too busy to hand the job out before
        escalation = timer("late", f"PT{seconds}S", interrupting=True)
        await driver.upload(
            definition(
                service("work", "end", job_type=name, boundaryEvents=[escalation]),
                step("late", "USER_TASK", nextStep="end"),
                end(),
                definition_id=name,
            )
        )
        instance = await driver.start(name)
        if jobs := await jobs_in_time(driver, name, instance.id):
            break
    (job,) = jobs
    await wait_status(driver, instance.id, "WAITING")
    assert (await driver.instance(instance.id)).steps == ["late"]
    interrupted = (await driver.history(instance.id))[0]
    assert (interrupted.status, interrupted.failure) == ("FAILED", "interrupted by boundary timer")
    await driver.complete(job.id, {"too": "late"})
    await driver.complete_user_task(instance.id, "late")
    done = await driver.instance(instance.id)
    assert (done.status, done.variables) == ("COMPLETED", {})


async def test_a_timer_of_a_finished_step_never_fires(driver: Driver, name: str) -> None:
    for seconds in (0.3, 1, 5):  # the longer ones on a machine too busy to finish the step before
        first = timer("late", f"PT{seconds}S", interrupting=True)
        second = timer("end", f"PT{seconds + 0.5}S", interrupting=True)
        await driver.upload(
            definition(
                service("work", "rest", job_type=name, boundaryEvents=[first]),
                step("rest", "WAIT", nextStep="end", boundaryEvents=[second]),
                step("late", "USER_TASK", nextStep="end"),
                end(),
                definition_id=name,
            )
        )
        instance = await driver.start(name)
        for job in await jobs_in_time(driver, name, instance.id):
            await driver.complete(job.id)
        if (await path(driver, instance.id))[0] == ("work", "COMPLETED"):
            break
    await wait_status(driver, instance.id, "COMPLETED")  # by the second timer, which is due after the first
    assert "late" not in dict(await path(driver, instance.id))


# -- failures, leases, fencing


async def test_a_failure_is_retried_while_retries_are_left(driver: Driver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=1))
    instance = await driver.start(name)
    job = await one(driver, name)
    await driver.fail(job.id, "first \x00 try")
    again = await one(driver, name)
    assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, 0)
    await driver.fail(again.id, "second try")
    failed = await driver.instance(instance.id)
    assert (failed.status, failed.steps) == ("FAILED", [])
    assert "second try" in (failed.failure or "")
    (item,) = await driver.history(instance.id)
    assert (item.status, item.attempt_number) == ("FAILED", 1)


async def test_a_failure_that_is_not_retryable_fails_the_instance(driver: Driver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=5))
    instance = await driver.start(name)
    await driver.fail((await one(driver, name)).id, "no such account", retryable=False)
    failed = await driver.instance(instance.id)
    assert failed.status == "FAILED"
    assert "no such account" in (failed.failure or "")
    assert await driver.poll(name) == []


async def test_a_job_is_completed_once_whoever_says_so_how_often(driver: Driver, name: str) -> None:
    await driver.upload(linear(2, definition_id=name, job_type=name))
    instance = await driver.start(name)
    job = await one(driver, name, worker="mine")
    assert await refused(driver.complete(job.id, {"thief": True}, worker="other")) == "lease-lost"
    await driver.fail(job.id, worker="other", retryable=False)  # success for old clients, and nothing changes
    assert (await driver.instance(instance.id)).status == "ACTIVE"

    async def complete() -> None:
        await driver.complete(job.id, {"done": 1}, worker="mine")

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(complete)
    await driver.complete(job.id, {"done": 2}, worker="mine")
    await driver.fail(job.id, worker="mine", retryable=False)
    now = await driver.instance(instance.id)
    assert (now.status, now.steps, now.variables) == ("ACTIVE", ["task-2"], {"done": 1})
    assert await path(driver, instance.id) == [("task-1", "COMPLETED"), ("task-2", "RUNNING")]


async def test_a_lease_ends_when_it_said(driver: Driver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name, retry_count=2))
    for lease_s in (1, 2, 4, 8):
        instance = await driver.start(name)
        asked_at = trio.current_time()
        job = await one(driver, name, worker="slow", lease_s=lease_s)
        early = await driver.poll(name, worker="next")
        if trio.current_time() - asked_at < lease_s:  # else it was too late to say: with a longer one
            break
        await driver.cancel(instance.id)
    assert early == []
    again = await one(driver, name, worker="next")
    assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, 2)
    assert await refused(driver.complete(job.id, worker="slow")) == "lease-lost"
    await driver.complete(again.id, worker="next")
    assert (await driver.instance(instance.id)).status == "COMPLETED"


async def test_a_cancelled_instance_is_quiet(driver: Driver, name: str) -> None:
    await driver.upload(fork(1, 1, definition_id=name, job_type=name))
    instance = await driver.start(name)
    held = await one(driver, name)
    cancelled = await driver.cancel(instance.id, "changed my mind")
    assert (cancelled.status, cancelled.failure) == ("CANCELLED", "changed my mind")
    assert (cancelled.steps, cancelled.ended) == ([], True)
    assert await driver.poll(name, max_jobs=10) == []
    assert await refused(driver.cancel(instance.id)) == "conflict"
    await driver.complete(held.id, {"late": True})
    await driver.fail(held.id, retryable=False)
    assert await driver.instance(instance.id) == cancelled
    assert {status for step_id, status in await path(driver, instance.id) if step_id != "fork"} == {"SKIPPED"}


# -- polls and lists


async def test_jobs_are_handed_out_oldest_first_within_the_limit(driver: Driver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    started = [(await driver.start(name)).id for _ in range(5)]
    first = await driver.poll(name, "unknown-type", max_jobs=2)
    rest = await driver.poll(name, max_jobs=1_000_000)
    assert [job.instance_id for job in [*first, *rest]] == started
    assert len(first) == 2
    assert await driver.poll(name, max_jobs=10) == []


async def test_a_waiting_poll_gets_the_job_when_it_is_born(driver: Driver, name: str) -> None:
    await driver.upload(linear(1, definition_id=name, job_type=name))
    found: list[JobView] = []

    async def wait() -> None:
        found.append(await one(driver, name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        instance = await driver.start(name)
    assert found[0].instance_id == instance.id


async def test_instances_are_listed_newest_first_by_definition_status_and_key(driver: Driver, name: str) -> None:
    await driver.upload(definition(step("wait", "WAIT", nextStep="end"), end(), definition_id=name))
    ids = [(await driver.start(name, business_key=f"{name}-{number % 2}")).id for number in range(5)]
    await driver.signal(ids[0], "wait")
    await driver.cancel(ids[1])

    async def listed(**filters: Any) -> tuple[list[str], int]:
        items, total = await driver.list_instances(definition_id=name, **filters)
        return [item.id for item in items], total

    assert await listed() == (ids[::-1], 5)
    assert await listed(page_size=2) == ([ids[4], ids[3]], 5)
    assert await listed(page_size=2, page=2) == ([ids[0]], 5)
    assert await listed(page=9) == ([], 5)
    assert await listed(status="WAITING") == ([ids[4], ids[3], ids[2]], 3)
    assert await listed(status="COMPLETED") == ([ids[0]], 1)
    assert await listed(business_key=f"{name}-1") == ([ids[3], ids[1]], 2)
    assert await refused(driver.list_instances(page=-1)) == "bad-request"


async def test_instances_are_listed_by_key(driver: Driver, name: str) -> None:
    await driver.upload(definition(step("wait", "WAIT", nextStep="end"), end(), definition_id=name))
    ids = [(await driver.start(name)).id for _ in range(5)]
    found, cursor = await driver.slice_instances(name, limit=2)
    assert [item.id for item in found] == [ids[4], ids[3]]
    assert cursor is not None
    await driver.cancel(ids[4])
    later = (await driver.start(name)).id
    found, following = await driver.slice_instances(name, cursor=cursor, limit=2)
    assert [item.id for item in found] == [ids[2], ids[1]]
    found, end_of_it = await driver.slice_instances(name, cursor=following)
    assert ([item.id for item in found], end_of_it) == ([ids[0]], None)
    found, end_of_it = await driver.slice_instances(name, limit=6)
    assert ([item.id for item in found], end_of_it) == ([later, *reversed(ids)], None)
    assert await driver.slice_instances(f"not-{name}", limit=1) == ([], None)
    assert await refused(driver.slice_instances(name, cursor="nonsense!")) == "bad-request"
