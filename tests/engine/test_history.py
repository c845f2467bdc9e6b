"""History: every entry, attempt, skip and reason; and the audit trail, which adds what history does not hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.errors import NotFound
from penstock.testing.definitions import definition, end, linear, timer
from penstock.wire.model import JobRef, UserTaskCompletion
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.shapes import assign, choose, gateway, joining, parallel, task, user, wait


async def test_history_has_an_item_per_execution_in_entry_order(driver: Driver) -> None:
    body = definition(
        assign("t", {"a": 1}, "d"),
        choose("d", {"a == 1": "fork"}),
        gateway("fork", "x", "u"),
        task("x", "join"),
        user("u", "join"),
        joining("join", "w"),
        wait("w"),
        end(),
    )
    instance = await driver.run(body)
    assert await driver.path(instance) == [
        ("t", "COMPLETED"),
        ("d", "COMPLETED"),
        ("fork", "COMPLETED"),
        ("x", "RUNNING"),
        ("u", "RUNNING"),
    ]
    await driver.finish_task(instance, "u")
    await driver.complete(await driver.one("x"))
    await driver.signal(instance, "w")
    items = await driver.history(instance)
    assert [item.step_id for item in items] == ["t", "d", "fork", "x", "u", "join", "w", "end"]
    assert [item.step_type for item in items] == [
        "TRANSFORMATION", "DECISION", "PARALLEL_GATEWAY", "SERVICE_TASK", "USER_TASK", "JOIN_GATEWAY", "WAIT", "END",
    ]  # fmt: skip
    assert {item.status for item in items} == {"COMPLETED"}
    assert {item.instance_id for item in items} == {instance}
    assert len({item.id for item in items}) == 8
    assert all(item.ended_at is not None and item.started_at <= item.ended_at for item in items)  # pyright: ignore[reportOptionalOperand] - a stand-in
    assert all(item.failure_reason is None for item in items)


async def test_decisions_and_transformations_stand_in_execution_order(driver: Driver) -> None:
    """The trap: entries of automatic steps in random order."""
    steps = [assign(f"s{n}", {f"v{n}": n}, f"s{n + 1}") for n in range(30)]
    body = definition(task("x", "s0"), *steps, end("s30"))
    instance = await driver.run(body)
    await driver.complete(await driver.one("x"))
    assert [step for step, _ in await driver.path(instance)] == ["x", *(f"s{n}" for n in range(31))]


async def test_an_items_id_is_the_jobs(driver: Driver) -> None:
    instance = await driver.run(linear(2))
    job = await driver.one("work")
    assert job.step_execution_id == job.id
    assert [item.id for item in await driver.history(instance)] == [job.id]
    await driver.complete(job)
    assert (await driver.history(instance))[0].id == job.id


async def test_attempts_are_reported_within_their_item(driver: Driver) -> None:
    instance = await driver.run(definition(task("x", retryCount=3), end()))
    await driver.fail(await driver.one("x", worker="ann"), "boom")
    await driver.one("x", worker="bob")
    await driver.expire(31)
    given_back = await driver.one("x", worker="cat")
    await driver.engine.jobs.release_many([JobRef(job_id=given_back.id, worker_id="cat")])
    running = await driver.one("x", worker="dan")
    (item,) = await driver.history(instance)
    assert (item.status, item.attempt_number, item.ended_at) == ("RUNNING", 1, None)
    attempts = item.attempts or []
    assert [(a.attempt, a.worker, a.status, a.reason) for a in attempts] == [
        (1, "ann", "FAILED", "boom"),
        (2, "bob", "LEASE_EXPIRED", None),
        (3, "cat", "RELEASED", None),
        (4, "dan", "RUNNING", None),
    ]
    assert all(a.started_at is not None for a in attempts)
    assert [a.ended_at is None for a in attempts] == [False, False, False, True]
    await driver.complete(running)
    (item, _) = await driver.history(instance)
    assert [(a.attempt, a.status) for a in item.attempts or []][-1] == (4, "COMPLETED")
    assert item.status == "COMPLETED"


async def test_a_job_nobody_claimed_has_no_attempts(driver: Driver) -> None:
    instance = await driver.run(linear(1))
    (item,) = await driver.history(instance)
    assert (item.status, item.attempts) == ("RUNNING", [])
    await driver.cancel(instance, "why")
    (item,) = await driver.history(instance)
    assert (item.status, item.failure_reason, item.attempts) == ("SKIPPED", "why", [])


async def test_a_job_in_back_off_is_running_and_says_why(driver: Driver) -> None:
    instance = await driver.run(definition(task("x", retryCount=3, retryBackoff={"initial": "PT1H"}), end()))
    await driver.fail(await driver.one("x"), "boom")
    (item,) = await driver.history(instance)
    assert item.status == "RUNNING"
    assert [(a.attempt, a.status, a.reason) for a in item.attempts or []] == [(1, "FAILED", "boom")]
    assert await driver.open_steps(instance) == ["x"]


async def test_an_interrupted_step_says_so_as_old_clients_know_it(driver: Driver) -> None:
    body = definition(user("u", "end", boundaryEvents=[timer("late", interrupting=True)]), user("late"), end())
    instance = await driver.run(body)
    await driver.due(3601)
    (item, late) = await driver.history(instance)
    assert (item.status, item.failure_reason) == ("FAILED", "interrupted by boundary timer")
    assert late.status == "RUNNING"


async def test_entries_are_counted_per_step(driver: Driver) -> None:
    body = definition(task("x", "d"), choose("d", {"n < 3": "x", "true": "end"}), end())
    instance = await driver.run(body, {"n": 0})
    for n in (1, 2, 3):
        await driver.complete(await driver.one("x"), {"n": n})
    items = await driver.history(instance)
    assert [(item.step_id, item.attempt_number) for item in items] == [
        ("x", 1), ("d", 1), ("x", 2), ("d", 2), ("x", 3), ("d", 3), ("end", 1),
    ]  # fmt: skip


async def test_the_fast_and_the_full_path_write_the_same_history(driver: Driver) -> None:
    seen = []
    for wide in (False, True):
        steps = [task("a", "b"), task("b", "u"), user("u", "c"), task("c"), end()]
        if wide:  # a step elsewhere that makes every step of the definition wide
            steps = [{**step, "boundaryEvents": [timer("end")]} if step["type"] != "END" else step for step in steps]
        instance = await driver.run(definition(*steps, definition_id=f"d{wide}"))
        await driver.complete(await driver.one("a"), {"a": 1})
        await driver.complete(await driver.one("b"))
        await driver.finish_task(instance, "u")
        await driver.complete(await driver.one("c"))
        items = await driver.history(instance)
        seen.append(
            [(i.step_id, i.status, i.attempt_number, [(a.attempt, a.worker) for a in i.attempts or []]) for i in items]
        )
    assert seen[0] == seen[1]
    assert len(seen[0]) == 5


async def test_the_history_of_an_unknown_instance_is_not_found(driver: Driver) -> None:
    for read in (driver.history, driver.engine.instances.audit):
        with pytest.raises(NotFound):
            await read("abc")


# -- audit


async def kinds(driver: Driver, instance: str) -> list[str]:
    return [record.kind for record in (await driver.engine.instances.audit(instance)).items]


async def test_the_audit_trail_tells_a_whole_life(driver: Driver) -> None:
    body = definition(
        task("x", "u", retryCount=2),
        user("u", "w", boundaryEvents=[timer("side", "PT1H")]),
        wait("w", "last"),
        task("last"),
        task("side", None),
        end(),
    )
    instance = await driver.run(body)
    await driver.fail(await driver.one("x", worker="ann"), "boom")
    await driver.one("x", worker="bob")
    await driver.expire(31)
    await driver.complete(await driver.one("x", worker="cat"))
    await driver.due(3601)
    await driver.engine.tasks.complete_user_task(
        UserTaskCompletion(instance_id=instance, step_id="u", completed_by="dan")
    )
    await driver.signal(instance, "w")
    await driver.fail(await driver.one("last"), "gone", retryable=False)
    await driver.retry(instance)
    await driver.cancel(instance, "enough")
    records = (await driver.engine.instances.audit(instance)).items
    # of one moment there may be several, in any order
    assert Counter(record.kind for record in records if record.kind != "JOB_DISPATCHED") == Counter(
        [
            "STARTED",
            "JOB_RETRIED",
            "LEASE_EXPIRED",
            "STEP_COMPLETED",
            "TIMER_FIRED",
            "STEP_COMPLETED",
            "USER_TASK_COMPLETED",
            "STEP_COMPLETED",
            "SIGNALLED",
            "STEP_SKIPPED",
            "STEP_FAILED",
            "RETRIED",
            "STEP_SKIPPED",
            "STEP_SKIPPED",
            "CANCELLED",
            "INSTANCE_CANCELLED",
        ]
    )
    assert [r.actor for r in records if r.kind == "JOB_DISPATCHED"] == ["ann", "bob", "cat", "w1"]
    assert [record.at for record in records] == sorted(record.at for record in records)


@pytest.mark.parametrize("ends_by", ["duration", "kept signal"])
async def test_what_ended_a_wait_is_in_the_audit(driver: Driver, ends_by: str) -> None:
    instance = await driver.run(definition(task("x", "w"), wait("w", "u", duration="PT1H"), user("u"), end()))
    if ends_by == "kept signal":
        await driver.signal(instance, "w", buffer=True)
    await driver.complete(await driver.one("x"))
    if ends_by == "duration":
        await driver.due(3601)
    assert await driver.open_steps(instance) == ["u"]
    cause = "TIMER_FIRED" if ends_by == "duration" else "SIGNALLED"
    records = (await driver.engine.instances.audit(instance)).items
    reported = [(record.kind, record.at) for record in records if record.kind == cause or record.step_id == "w"]
    assert [kind for kind, _ in reported] == ["SIGNAL_KEPT"] * (cause == "SIGNALLED") + [cause, "STEP_COMPLETED"]
    assert reported[-2][1] == reported[-1][1]


@pytest.mark.parametrize("audited", [True, False])
async def test_a_kept_signal_never_taken_is_in_the_audit(make_driver: MakeDriver, audited: bool) -> None:
    driver = make_driver(audit_log_enabled=audited)
    instance = await driver.run(definition(task("x", "w"), wait("w", "u"), user("u"), end()))
    await driver.signal(instance, "w", {"a": 1}, buffer=True)
    (signal,) = await driver.engine.tasks.buffered(instance)
    await driver.cancel(instance)
    records = [
        record for record in (await driver.engine.instances.audit(instance)).items if record.kind == "SIGNAL_KEPT"
    ]
    assert [(record.at, record.step_id) for record in records] == [(signal.received_at, "w")] * audited


async def test_a_chained_start_names_its_parent(driver: Driver) -> None:
    await driver.upload(linear(1, definition_id="second"))
    first: Any = definition(
        task("x"), end(), definition_id="first", autoStartNextWorkflow=True, nextWorkflowId="second"
    )
    parent = await driver.run(first)
    await driver.complete(await driver.one("x"))
    (child,) = (await driver.engine.instances.list(InstanceFilter(definition_id="second"), 0, 10)).items
    record = (await driver.engine.instances.audit(child.id)).items[0]
    assert (record.kind, record.actor) == ("CHAINED", parent)


async def test_uploads_are_audited_once_per_version(driver: Driver) -> None:
    for length in (1, 1, 2):
        await driver.upload(linear(length))
    assert driver.rows("SELECT kind, detail FROM audit ORDER BY pos") == [
        ("DEFINITION_UPLOADED", "linear version 1"),
        ("DEFINITION_UPLOADED", "linear version 2"),
    ]


async def test_without_the_audit_log_history_alone_is_written(make_driver: MakeDriver) -> None:
    driver = make_driver(audit_log_enabled=False)
    instance = await driver.run(definition(user("u", "w"), wait("w"), end()))
    await driver.finish_task(instance, "u")
    await driver.signal(instance, "w")
    assert driver.rows("SELECT * FROM audit") == []
    assert await kinds(driver, instance) == ["STARTED", *["STEP_COMPLETED"] * 3, "INSTANCE_COMPLETED"]


async def test_audit_records_are_written_with_their_change_or_not(driver: Driver) -> None:
    """In the transaction of the change: the same transaction id on both rows."""
    body = parallel(user("a", "join", boundaryEvents=[timer("join", "PT1H")]), user("b", "join"))
    instance = await driver.run(body)
    await driver.due(3601)
    await driver.finish_task(instance, "a")
    await driver.cancel(instance)
    rows = driver.rows(
        "SELECT a.kind, count(h.*) FROM audit a LEFT JOIN history h ON h.instance_id = a.instance_id"
        " AND h.xmin = a.xmin WHERE a.instance_id = %s GROUP BY a.kind ORDER BY 1",
        number(instance),
    )
    assert rows == [("CANCELLED", 1), ("TIMER_FIRED", 0), ("USER_TASK_COMPLETED", 1)]
    timer_deleted = driver.rows("SELECT count(*) FROM timer")
    assert timer_deleted == [(0,)]
