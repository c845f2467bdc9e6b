"""Failed jobs tried again, jobs given up, and failed instances that go on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from trio.testing import MockClock

from penstock.core.advance.advance import advance as real_advance
from penstock.core.advance.event import RetryRequested
from penstock.engine.advance import advancer
from penstock.engine.advance.commands import CancelCommand, RetryCommand
from penstock.engine.advance.failed import INTERVAL_S, REASON_MAX_CHARS, FailedInstances
from penstock.errors import Conflict, LeaseLost, NotFound, PenstockError
from penstock.testing.definitions import definition, end, linear, timer
from penstock.wire.model import Failure
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number, variables_of
from tests.shapes import choose, gateway, joining, parallel, task, user, wait

BACKOFF = {"initial": "PT10S", "multiplier": 2, "max": "PT30S", "jitter": 0}


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    """On a clock that only the test moves."""
    driver = make_driver()
    driver.clock.stop()
    return driver


async def seconds_to_timer(driver: Driver) -> float:
    ((left,),) = driver.rows("SELECT extract(epoch FROM fire_at - penstock_now())::float8 FROM timer WHERE index = -1")
    return float(left)


# -- of an instance


async def test_a_failed_instance_stands_in_the_log(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    instance = await driver.run(linear(1))
    await driver.fail(await driver.one("work"), "no stock")
    (reported,) = [line for line in capsys.readouterr().out.splitlines() if "an instance failed" in line]
    assert f"instance={instance}" in reported
    assert "definition=linear" in reported
    assert "no stock" in reported


async def test_many_failed_instances_are_few_lines(mock_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    failed = FailedInstances()
    for _ in range(3):
        failed.notify(0x1F, "one", "r" * 1000)
        failed.notify(0x2F, "other", "")
    mock_clock.jump(INTERVAL_S)
    failed.notify(0x3F, "one", "")
    reported = [line.split("component=", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [sorted(line.split()[1:]) for line in reported] == [
        ["definition=one", "instance=1f", f"reason={'r' * REASON_MAX_CHARS}"],
        ["definition=other", "instance=2f", "reason="],
        ["definition=one", "instance=3f", "left_out=2", "reason="],
    ]


# -- of a job


async def test_a_back_off_is_bounded_and_keeps_the_job(driver: Driver) -> None:
    await driver.run(definition(task("x", retryCount=9, retryBackoff=BACKOFF), end()))
    for seconds in (10, 20, 30, 30):
        await driver.fail(await driver.one("x"))
        assert await seconds_to_timer(driver) == pytest.approx(seconds, abs=0.001)
        assert await driver.due(seconds - 2) == 0
        assert await driver.poll("x") == []
        assert await driver.due(3) == 1
    assert (await driver.one("x")).attempt == 5


async def test_a_worker_may_ask_for_its_own_pause(driver: Driver) -> None:
    await driver.run(definition(task("x", retryCount=9), end()))
    await driver.fail(await driver.one("x"), retry_after_s=3600)
    assert await seconds_to_timer(driver) == pytest.approx(3600, abs=0.001)
    assert await driver.due(3601) == 1
    await driver.fail(await driver.one("x"), retry_after_s=0)
    assert (await driver.one("x")).attempt == 3


@pytest.mark.parametrize("wish", [1e300, float("inf"), -1e300, float("-inf"), float("nan"), 10**400, -(10**400)])
async def test_no_wish_of_a_worker_ends_the_engine(driver: Driver, wish: float) -> None:
    instance = await driver.run(definition(task("x", retryCount=9), end()))
    job = await driver.one("x")
    await driver.engine.jobs.fail(Failure(job_id=job.id, worker_id="w1", retryable=True, retry_after_s=wish))
    assert driver.rows("SELECT failures FROM token") == [(1,)]
    assert await driver.open_steps(instance) == ["x"]
    failed = Failure(job_id=job.id, worker_id="w1", retryable=True, retry_after_s=wish, attempt=7)
    assert [item.outcome for item in await driver.engine.jobs.fail_many([failed])] == ["lease-lost"]


async def test_a_rearmed_retry_timer_does_not_fire_early(driver: Driver) -> None:
    """A look that saw the first back-off end, and comes to fire it when the second one has begun."""
    from penstock.engine.advance.commands import TimerCommand

    await driver.run(definition(task("x", retryCount=9, retryBackoff=BACKOFF), end()))
    await driver.fail(await driver.one("x"))
    driver.clock.advance(11)
    ((token, seq, index),) = driver.rows("SELECT token_id, seq, index FROM timer")
    assert await driver.due() == 1
    await driver.fail(await driver.one("x"))
    before = driver.snapshot()
    assert await driver.engine.full_path.submit(TimerCommand(token, (token, seq, index))) is False
    assert driver.snapshot() == before


async def test_a_job_failed_for_good_is_listed_with_its_reason(driver: Driver) -> None:
    await driver.upload(linear(2, retry_count=1))
    ids = []
    for n in range(5):
        await driver.start("linear")
        await driver.fail(await driver.one("work", worker=f"w{n}"), f"boom {n}")
        job = await driver.one("work", worker=f"w{n}")
        await driver.fail(job, f"boom {n}")
        ids.append(job.id)
    page = await driver.engine.jobs.failed(0, 3)
    assert [(dead.id, dead.reason, dead.worker_id) for dead in page.items] == [
        (ids[4], "boom 4", "w4"),
        (ids[3], "boom 3", "w3"),
        (ids[2], "boom 2", "w2"),
    ]
    assert [dead.id for dead in (await driver.engine.jobs.failed(1, 3)).items] == [ids[1], ids[0]]
    assert {(dead.job_type, dead.step_id) for dead in page.items} == {("work", "task-1")}


async def test_failed_jobs_are_counted_and_found_by_their_type(make_driver: MakeDriver) -> None:
    driver = make_driver(list_exact_total_limit=3)
    body = definition(task("one", "two"), task("two"), end(), definition_id="two-types")
    await driver.upload(body)
    ids: dict[str, list[str]] = {"one": [], "two": []}
    for n in range(5):
        await driver.start("two-types")
        if n < 3:
            await driver.complete(await driver.one("one"))
        wanted = "two" if n < 3 else "one"
        job = await driver.one(wanted)
        await driver.fail(job, retryable=False)
        ids[wanted].insert(0, job.id)
    failed = driver.engine.jobs.failed
    for job_type, expected in ids.items():
        page = await failed(0, 2, job_type)
        assert [dead.id for dead in page.items] == expected[:2]
        assert {dead.job_type for dead in page.items} == {job_type}
        assert (page.total, page.total_is_estimate) == (len(expected), False)
        assert [dead.id for dead in (await failed(1, 2, job_type)).items] == expected[2:]
    page = await failed(0, 10)
    assert [dead.id for dead in page.items] == ids["one"] + ids["two"]
    assert (page.total, page.total_is_estimate) == (4, True)
    assert ((await failed(0, 10, "three")).items, (await failed(0, 10, "three")).total) == ([], 0)
    await driver.retry(page.items[0].instance_id)
    assert [dead.id for dead in (await failed(0, 10, "one")).items] == ids["one"][1:]


async def test_instances_failed_without_a_job_are_no_dead_jobs(driver: Driver) -> None:
    await driver.run(definition(choose("d", {"ghost": "end"}), end()))
    assert (await driver.engine.jobs.failed(0, 10)).items == []


async def test_the_reason_of_the_last_failure_is_the_instances(driver: Driver) -> None:
    instance = await driver.run(linear(1, retry_count=1))
    await driver.fail(await driver.one("work"), "first")
    await driver.fail(await driver.one("work"), "second")
    view = await driver.view(instance)
    assert (view.status, view.failure_reason) == ("FAILED", "second")
    assert view.completed_at is not None


# -- of an instance


async def test_a_retried_instance_goes_on_where_it_failed(driver: Driver) -> None:
    instance = await driver.run(linear(3), {"a": 1})
    await driver.complete(await driver.one("work"), {"b": 2})
    dead = await driver.one("work")
    await driver.fail(dead, "broken")
    view = await driver.retry(instance)
    assert (view.status, view.current_step_ids, view.failure_reason) == ("ACTIVE", ["task-2"], None)
    assert view.completed_at is None
    job = await driver.one("work")
    assert (job.step_id, job.attempt, job.id == dead.id) == ("task-2", 1, False)
    assert variables_of(job) == {"a": 1, "b": 2}
    await driver.complete(job)
    await driver.complete(await driver.one("work"))
    assert await driver.path(instance) == [
        ("task-1", "COMPLETED"),
        ("task-2", "FAILED"),
        ("task-2", "COMPLETED"),
        ("task-3", "COMPLETED"),
        ("end", "COMPLETED"),
    ]
    assert [item.attempt_number for item in await driver.history(instance)] == [1, 1, 2, 1, 1]


async def test_everything_the_failure_closed_reopens_with_new_timers(driver: Driver) -> None:
    body = definition(
        gateway("fork", "a", "b", "c", "d"),
        task("a", "join"),
        task("b", "join", retryCount=2),
        user("c", "join", boundaryEvents=[timer("late", "PT1H", interrupting=True), timer("side", "PT2H")]),
        wait("d", "join", duration="PT3H"),
        task("late", "join"),
        task("side", None),
        joining("join", "last"),
        user("last"),
        end(),
    )
    instance = await driver.run(body)
    await driver.complete(await driver.one("a"))
    driver.clock.advance(1800)
    await driver.fail(await driver.one("b"), retryable=False)
    assert driver.rows("SELECT * FROM timer") == driver.rows("SELECT * FROM token") == []
    await driver.retry(instance)
    assert await driver.open_steps(instance) == ["b", "c", "d"]
    assert driver.rows("SELECT pending, arrived FROM token WHERE state = 3") == [(3, 1)]
    left = driver.rows("SELECT round(extract(epoch FROM fire_at - penstock_now()) / 60) FROM timer ORDER BY 1")
    assert left == [(60,), (120,), (180,)]
    job = await driver.one("b")
    assert job.retries_remaining == 2
    await driver.complete(job)
    await driver.finish_task(instance, "c")
    await driver.signal(instance, "d")
    assert (await driver.path(instance)).count(("join", "COMPLETED")) == 1
    assert await driver.open_steps(instance) == ["last"]


@pytest.mark.parametrize("ending", ["active", "completed", "cancelled", "unknown"])
async def test_only_a_failed_instance_is_retried(driver: Driver, ending: str) -> None:
    instance = await driver.run(linear(1))
    if ending == "completed":
        await driver.complete(await driver.one("work"))
    elif ending == "cancelled":
        await driver.cancel(instance)
    before = driver.snapshot()
    with pytest.raises(NotFound if ending == "unknown" else Conflict):
        await driver.retry("abc" if ending == "unknown" else instance)
    assert driver.snapshot() == before


async def test_results_of_before_the_failure_stay_refused_after_the_retry(driver: Driver) -> None:
    instance = await driver.run(parallel(task("a", "join"), task("b", "join")))
    old_a, old_b = await driver.one("a"), await driver.one("b")
    await driver.fail(old_b)
    await driver.retry(instance)
    before = driver.snapshot()
    for old in (old_a, old_b):
        await driver.fail(old)
        for refused in (driver.complete, driver.heartbeat):
            with pytest.raises(LeaseLost):
                await refused(old)
            with pytest.raises(LeaseLost):
                await refused(old, attempt=1)
    assert driver.snapshot() == before


async def test_a_retried_instance_can_end_in_every_way(driver: Driver) -> None:
    instance = await driver.run(linear(1))
    for n in range(3):
        await driver.fail(await driver.one("work"), f"boom {n}")
        assert (await driver.view(instance)).failure_reason == f"boom {n}"
        await driver.retry(instance)
    assert driver.rows("SELECT count(*) FROM abnormal_end") == [(0,)]
    other = (await driver.start("linear")).id
    await driver.complete(await driver.one("work"))
    assert await driver.status(instance) == "COMPLETED"
    await driver.fail(await driver.one("work"))
    await driver.retry(other)
    assert (await driver.cancel(other, "no")).status == "CANCELLED"
    with pytest.raises(Conflict):
        await driver.retry(other)


async def test_an_instance_with_a_key_takes_it_again(make_driver: MakeDriver) -> None:
    one, two = make_driver(), make_driver()
    await one.upload(linear(1))
    first = (await one.start("linear", instance_key="order-7")).id
    await one.fail(await one.one("work"))
    assert one.rows("SELECT * FROM instance_key") == []
    await one.retry(first)
    assert (await two.start("linear", instance_key="order-7")).id == first


async def test_a_key_that_another_instance_has_meanwhile_refuses_the_retry(driver: Driver) -> None:
    await driver.upload(linear(1))
    first = (await driver.start("linear", instance_key="order-7")).id
    await driver.fail(await driver.one("work"))
    second = (await driver.start("linear", instance_key="order-7")).id
    before = driver.snapshot()
    with pytest.raises(Conflict, match=second):
        await driver.retry(first)
    assert driver.snapshot() == before
    await driver.complete(await driver.one("work"))
    assert (await driver.retry(first)).status == "ACTIVE"


async def test_a_retry_that_fails_in_a_batch_takes_no_key(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await driver.upload(linear(1))
    failed = (await driver.start("linear", instance_key="order-7")).id
    await driver.fail(await driver.one("work"))
    other = (await driver.start("linear")).id

    def advance(*args: Any) -> Any:
        if any(isinstance(arg, RetryRequested) for arg in args):
            raise ZeroDivisionError
        return real_advance(*args)

    monkeypatch.setattr(advancer, "advance", advance)
    items = [RetryCommand(number(failed)), CancelCommand(number(other), None)]
    for item in items:
        driver.engine.full_path.submit_nowait(item)
    with pytest.raises(PenstockError, match="could not go on"):
        await items[0].wait_answer()
    await items[1].wait_answer()
    assert [await driver.status(instance) for instance in (failed, other)] == ["FAILED", "CANCELLED"]
    assert driver.rows("SELECT * FROM instance_key") == []


# -- of a step that is done, and can't be left


@pytest.mark.parametrize("kind", ["SERVICE_TASK", "USER_TASK", "WAIT", "timer"])
async def test_done_work_survives_a_wrong_condition_after_it(driver: Driver, kind: str) -> None:
    """`retry` makes the decision anew, on what is true then: no job, no second payment."""
    conditions = {"now() >= date(opens)": "second"}
    first = {
        "SERVICE_TASK": task("x", None, conditionalNextSteps=conditions),
        "USER_TASK": user("x", None, conditionalNextSteps=conditions),
        "WAIT": wait("x", "end", conditionalNextSteps=conditions),
        "timer": wait("x", "end", duration="PT1M", conditionalNextSteps=conditions),
    }[kind]
    opens = driver.clock.now() + timedelta(hours=1)
    instance = await driver.run(definition(first, task("second"), end()), {"opens": opens.isoformat()})
    match kind:
        case "SERVICE_TASK":
            job = await driver.one("x")
            await driver.complete(job, {"paid": 1})
            await driver.complete(job, {"paid": 1})  # a repeat is answered as before: the work is done
        case "USER_TASK":
            await driver.finish_task(instance, "x", {"paid": 1})
        case "WAIT":
            await driver.signal(instance, "x", {"paid": 1})
        case _:
            assert await driver.due(61) == 1
    failed = await driver.view(instance)
    assert failed.status == "FAILED"
    assert "DecisionNoBranchMatched" in (failed.failure_reason or "")
    (item,) = await driver.history(instance)
    assert (item.step_id, item.status, item.failure_reason) == ("x", "COMPLETED", None)
    assert (await driver.engine.jobs.failed(0, 20)).items == []
    assert (await driver.retry(instance)).status == "FAILED"
    driver.clock.advance(3600)
    assert (await driver.retry(instance)).current_step_ids == ["second"]
    assert await driver.poll("x") == []
    assert variables_of(await driver.one("second")).get("paid") == (None if kind == "timer" else 1)
    assert await driver.path(instance) == [("x", "COMPLETED"), ("second", "RUNNING")]


# -- the key of a job for the outside world


async def test_a_retried_instance_keeps_its_closed_jobs_keys(driver: Driver) -> None:
    """The payment was made, its report was lost, the instance failed: who retries it must not pay twice."""
    instance = await driver.run(
        definition(
            gateway("fork", "pay", "ship", "ask"),
            task("pay", "join"),
            task("ship", "join"),
            user("ask", "join"),
            joining("join", "after"),
            task("after"),
            end(),
        )
    )
    paid, shipped = await driver.one("pay"), await driver.one("ship")
    keys = {paid.step_id: paid.idempotency_key, shipped.step_id: shipped.idempotency_key}
    assert keys == {"pay": paid.id, "ship": shipped.id}
    for _ in range(3):
        await driver.fail(paid, retryable=False)
        await driver.retry(instance)
        jobs = await driver.poll("pay", "ship")
        assert {job.step_id: job.idempotency_key for job in jobs} == keys
        assert not {job.id for job in jobs} & {paid.id, shipped.id}
        paid, shipped = sorted(jobs, key=lambda job: job.step_id)
    await driver.complete(paid)
    await driver.complete(shipped)
    await driver.finish_task(instance, "ask")
    after = await driver.one("after")
    assert after.idempotency_key == after.id


async def test_a_step_that_is_entered_again_has_another_key(driver: Driver) -> None:
    instance = await driver.run(
        definition(task("x", "again"), choose("again", {"n < 3": "x", "true": "end"}), end()), {"n": 0}
    )
    seen = set()
    for n in range(1, 4):
        job = await driver.one("x")
        key = job.idempotency_key
        if n == 2:
            await driver.fail(job, retryable=False)
            await driver.retry(instance)
            job = await driver.one("x")
            assert (job.idempotency_key, job.id == key) == (key, False)
            assert await driver.expire(31) == 1
            job = await driver.one("x")
            assert job.idempotency_key == key
        seen.add(key)
        await driver.complete(job, {"n": n})
    assert len(seen) == 3
    assert await driver.status(instance) == "COMPLETED"


async def test_a_step_that_was_never_entered_has_no_key(driver: Driver) -> None:
    """Conditions fail the instance after the job: its work is done, and the next step is another one."""
    instance = await driver.run(
        definition(
            task("x", conditionalNextSteps={"ok": "y"}), task("y", conditionalNextSteps={"missing.too": "end"}), end()
        ),
        {"ok": 1},
    )
    x = await driver.one("x")
    await driver.complete(x)
    assert await driver.status(instance) == "FAILED"
    driver.rows("UPDATE instance SET vars = '{\"ok\": true}' RETURNING 1")
    await driver.retry(instance)
    y = await driver.one("y")
    assert y.idempotency_key == y.id != x.id
