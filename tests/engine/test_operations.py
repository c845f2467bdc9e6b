"""Every operation on every kind of open and closed step: what is legal, and that the refused ones change no row."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import pytest

from penstock.errors import BadRequest, Conflict, JobCancelled, LeaseLost, NotFound
from penstock.testing.definitions import definition, end, timer
from penstock.wire.model import Completion, Failure, Heartbeat
from tests.engine.driver import Driver
from tests.shapes import joining, task, user, wait
from tests.shares import mostly_slow

BODY = definition(
    {
        "id": "fork",
        "name": "fork",
        "type": "PARALLEL_GATEWAY",
        "joinStep": "join",
        "parallelNextSteps": ["x", "u", "w"],
    },
    task("x", "join", retryCount=5, retryBackoff={"initial": "PT1H"}),
    user("u", "join", boundaryEvents=[timer("late", "PT2H", interrupting=True)]),
    wait("w", "join"),
    user("late", "join", conditionalNextSteps={"true": "join", "false": "u2"}),
    wait("u2", "join"),
    joining("join", "end"),
    end(),
    definition_id="all",
)


class Case:
    """An instance in one state, and the id of the job that it had."""

    def __init__(self, driver: Driver, instance: str, job: str) -> None:
        self.driver = driver
        self.instance = instance
        self.job = job


async def begin(driver: Driver) -> str:
    """With a key that it keeps, and a signal that came early."""
    await driver.upload(BODY)
    instance = (await driver.start("all", instance_key=uuid.uuid4().hex, keep_instance_key=True)).id
    await driver.signal(instance, "u2", signal_id="before")
    return instance


async def ready(driver: Driver) -> Case:
    instance = await begin(driver)
    token = driver.rows("SELECT instance_id, id, seq FROM token WHERE state = 0")[0]
    return Case(driver, instance, "-".join(f"{part:x}" for part in token))


async def locked(driver: Driver) -> Case:
    instance = await begin(driver)
    return Case(driver, instance, (await driver.one("x", worker="me")).id)


async def expired(driver: Driver) -> Case:
    case = await locked(driver)
    assert await driver.expire(31) == 1
    return case


async def locked_by_another(driver: Driver) -> Case:
    case = await expired(driver)
    await driver.one("x", worker="other")
    return case


async def in_back_off(driver: Driver) -> Case:
    case = await locked(driver)
    await driver.engine.jobs.fail(Failure(job_id=case.job, worker_id="me", retryable=True, error_message="boom"))
    return case


async def completed(driver: Driver) -> Case:
    case = await locked(driver)
    await driver.engine.jobs.complete(Completion(job_id=case.job, worker_id="me"))
    return case


async def cancelled(driver: Driver) -> Case:
    case = await locked(driver)
    await driver.cancel(case.instance, "enough")
    return case


async def failed(driver: Driver) -> Case:
    case = await locked(driver)
    await driver.engine.jobs.fail(Failure(job_id=case.job, worker_id="me", retryable=False, error_message="boom"))
    return case


async def ended(driver: Driver) -> Case:
    case = await completed(driver)
    await driver.finish_task(case.instance, "u")
    await driver.signal(case.instance, "w")
    assert await driver.status(case.instance) == "COMPLETED"
    return case


STATES: dict[str, Callable[[Driver], Awaitable[Case]]] = {
    "ready": ready,
    "locked": locked,
    "expired": expired,
    "locked by another": locked_by_another,
    "in back-off": in_back_off,
    "completed": completed,
    "cancelled": cancelled,
    "failed": failed,
    "ended": ended,
}


async def complete(case: Case) -> None:
    await case.driver.engine.jobs.complete(Completion(job_id=case.job, worker_id="me", variables=b'{"a":1}'))


async def complete_attempt(case: Case) -> None:
    await case.driver.engine.jobs.complete(Completion(job_id=case.job, worker_id="me", attempt=1))


async def fail(case: Case) -> None:
    await case.driver.engine.jobs.fail(Failure(job_id=case.job, worker_id="me", retryable=True))


async def fail_attempt(case: Case) -> None:
    await case.driver.engine.jobs.fail(Failure(job_id=case.job, worker_id="me", retryable=True, attempt=1))


async def heartbeat(case: Case) -> None:
    await case.driver.engine.jobs.heartbeat(Heartbeat(job_id=case.job, worker_id="me"))


async def finish_user_task(case: Case) -> None:
    await case.driver.finish_task(case.instance, "u", {"a": 1})


async def finish_unopened_task(case: Case) -> None:
    await case.driver.finish_task(case.instance, "late")


async def finish_wrong_type(case: Case) -> None:
    await case.driver.finish_task(case.instance, "w")


async def finish_unknown(case: Case) -> None:
    await case.driver.finish_task(case.instance, "nowhere")


async def signal(case: Case) -> None:
    await case.driver.signal(case.instance, "w", {"a": 1})


async def key_of(case: Case) -> str:
    return (await case.driver.view(case.instance)).instance_key or ""


async def signal_by_key(case: Case) -> None:
    await case.driver.signal_by_key("all", await key_of(case), "w", {"a": 1}, signal_id="s")


async def signal_again(case: Case) -> None:
    await case.driver.signal_by_key("all", await key_of(case), "u2", signal_id="before")


async def signal_early(case: Case) -> None:
    await case.driver.signal(case.instance, "u2", {"a": 1}, signal_id="early")


async def start_again(case: Case) -> None:
    view = await case.driver.start("all", instance_key=await key_of(case), keep_instance_key=True)
    assert view.id == case.instance


async def signal_wrong_type(case: Case) -> None:
    await case.driver.signal(case.instance, "x")


async def signal_unknown(case: Case) -> None:
    await case.driver.signal(case.instance, "nowhere")


async def cancel(case: Case) -> None:
    await case.driver.cancel(case.instance)


async def retry(case: Case) -> None:
    await case.driver.retry(case.instance)


DONE = "done"  # and some row changed
NOTHING = "nothing"  # answered with success, no row changed
OPEN = ("ready", "locked", "expired", "locked by another", "in back-off", "completed")
TERMINAL = ("cancelled", "failed", "ended")


def all_of(open_answer: object, terminal_answer: object) -> dict[str, object]:
    return {**dict.fromkeys(OPEN, open_answer), **dict.fromkeys(TERMINAL, terminal_answer)}


TABLE: dict[Callable[[Case], Awaitable[None]], dict[str, object]] = {
    complete: {
        "ready": LeaseLost,
        "locked": DONE,
        "expired": DONE,
        "locked by another": LeaseLost,
        "in back-off": LeaseLost,
        "completed": NOTHING,
        "cancelled": NOTHING,
        "failed": NOTHING,
        "ended": NOTHING,
    },
    complete_attempt: {
        "ready": LeaseLost,
        "locked": DONE,
        "expired": DONE,
        "locked by another": LeaseLost,
        "in back-off": LeaseLost,
        "completed": NOTHING,
        "cancelled": JobCancelled,
        "failed": JobCancelled,
        "ended": NOTHING,
    },
    fail: {
        "ready": NOTHING,
        "locked": DONE,
        "expired": DONE,
        "locked by another": NOTHING,
        "in back-off": NOTHING,
        "completed": NOTHING,
        "cancelled": NOTHING,
        "failed": NOTHING,
        "ended": NOTHING,
    },
    fail_attempt: {
        "ready": LeaseLost,
        "locked": DONE,
        "expired": DONE,
        "locked by another": LeaseLost,
        "in back-off": NOTHING,
        "completed": NOTHING,
        "cancelled": JobCancelled,
        "failed": JobCancelled,
        "ended": NOTHING,
    },
    heartbeat: {
        "ready": LeaseLost,
        "locked": DONE,
        "expired": DONE,
        "locked by another": LeaseLost,
        "in back-off": LeaseLost,
        "completed": LeaseLost,
        "cancelled": JobCancelled,
        "failed": JobCancelled,
        "ended": LeaseLost,
    },
    finish_user_task: all_of(DONE, Conflict),
    finish_unopened_task: all_of(NotFound, Conflict),
    finish_wrong_type: all_of(BadRequest, Conflict),
    finish_unknown: all_of(NotFound, Conflict),
    signal: all_of(DONE, Conflict),
    signal_by_key: all_of(DONE, Conflict),
    signal_early: all_of(DONE, Conflict),
    signal_again: all_of(NOTHING, NOTHING),
    start_again: all_of(NOTHING, NOTHING),
    signal_wrong_type: all_of(BadRequest, Conflict),
    signal_unknown: all_of(Conflict, Conflict),
    cancel: all_of(DONE, Conflict),
    retry: {**all_of(Conflict, Conflict), "failed": DONE},
}


@pytest.mark.parametrize("state", mostly_slow(STATES, quick=["locked", "ended"], reason="each operation in each state"))
async def test_an_operation_does_its_work_or_changes_nothing(driver: Driver, state: str) -> None:
    for operation, answers in TABLE.items():
        case = await STATES[state](driver)
        before = driver.snapshot()
        try:
            await operation(case)
        except (BadRequest, NotFound, Conflict) as error:
            answer: object = type(error)
        else:
            answer = DONE if driver.snapshot() != before else NOTHING
        assert answer == answers[state], f"{operation.__name__} when {state}"
        if answer is not DONE:
            assert driver.snapshot() == before, f"{operation.__name__} when {state}"
        if await driver.status(case.instance) in ("ACTIVE", "WAITING"):
            await driver.cancel(case.instance)


NO_IDS = ["1", "7fffffffffffffff", "", "-1", "xyz", "g", "00", "1" * 100, "\N{DIGIT ONE}\0", "\ud800", "１"]


async def test_an_unknown_id_is_not_found(driver: Driver) -> None:
    for operation in TABLE:
        for instance in NO_IDS:
            with pytest.raises(NotFound):
                await operation(Case(driver, instance, f"{instance}-1-1"))


async def test_a_user_task_is_no_job(driver: Driver) -> None:
    instance = await driver.run(definition(user("u"), end()))
    (row,) = await driver.history(instance)
    before = driver.snapshot()
    for operation in (complete, complete_attempt, fail, fail_attempt, heartbeat):
        with pytest.raises(NotFound):
            await operation(Case(driver, instance, row.id))
    assert driver.snapshot() == before
