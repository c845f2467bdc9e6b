"""Instances that go on in another version: where they stand, with what was begun, and read as they were written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from penstock.errors import BadRequest, Conflict, LeaseLost, NotFound
from penstock.settings import DispatchMode
from penstock.testing.definitions import Json, definition, end, timer
from penstock.testing.invariants import find_broken
from penstock.wire.edits import MigrationRequest
from penstock.wire.model import Park
from penstock.wire.queue import QueuePolicy
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, completion, number, variables_of
from tests.shapes import call, choose, gateway, joining, task, user, wait


def line(*names: str, id: str = "line", **first: Any) -> Json:
    """Tasks in a row."""
    following = [*names[1:], "end"]
    steps = [task(name, after) for name, after in zip(names, following, strict=True)]
    return definition({**steps[0], **first}, *steps[1:], end(), id=id)


async def migrate(driver: Driver, instance: str, **fields: Any) -> Any:
    await driver.engine.migrations.migrate(instance, MigrationRequest(**fields))
    return await driver.view(instance)


async def reasons(driver: Driver, instance: str, **fields: Any) -> list[str]:
    """Of a dry run, which changes nothing; and the same of what is tried."""
    before = driver.snapshot()
    check = await driver.engine.migrations.check(instance, MigrationRequest(**fields))
    assert check.possible is not bool(check.reasons)
    if check.reasons:
        with pytest.raises(Conflict) as refused:
            await migrate(driver, instance, **fields)
        assert refused.value.reason == "; ".join(check.reasons)
    assert driver.snapshot() == before
    return check.reasons


async def test_a_leased_job_goes_on_in_the_new_version(driver: Driver) -> None:
    """Its engine knows the lease with the definition of before: whose numbers mean other steps now."""
    instance = await driver.run(line("one", "two"))
    job = await driver.one("one")
    await driver.upload(line("zero", "one", "three", "two"))
    assert await reasons(driver, instance) == []
    view = await migrate(driver, instance, note="three was forgotten")
    assert (view.definition_version, view.current_step_ids) == (2, ["one"])
    await driver.heartbeat(job)
    await driver.complete(job, {"a": 1}, attempt=job.attempt)
    assert await driver.open_steps(instance) == ["three"]
    for step in ("three", "two"):
        await driver.complete(await driver.one(step))
    assert await driver.path(instance) == [(step, "COMPLETED") for step in ("one", "three", "two", "end")]
    records = (await driver.engine.instances.audit(instance)).items
    [detail] = [record.detail for record in records if record.kind == "MIGRATED"]
    assert detail == "from version 1 to 2: three was forgotten"
    assert driver.rows("SELECT migrated FROM token") == []
    assert find_broken(driver.dsn) == []


async def test_another_engines_lease_of_the_old_version_counts(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    instance = await one.run(line("one", "two"))
    job = await one.one("one")
    await other.upload(line("zero", "one", "three"))
    await migrate(other, instance)
    [outcome] = await one.engine.jobs.complete_many([completion(job, attempt=job.attempt)])
    assert outcome.outcome == "ok"
    assert await one.open_steps(instance) == ["three"]
    assert one.rows("SELECT step, migrated FROM token") == [(2, None)]
    await one.complete(await one.one("three"))
    assert find_broken(one.dsn) == []


async def test_an_end_of_the_old_version_is_not_taken(driver: Driver) -> None:
    instance = await driver.run(line("one"))
    job = await driver.one("one")
    await driver.upload(line("one", "two"))
    await migrate(driver, instance)
    await driver.complete(job)
    assert await driver.open_steps(instance) == ["two"]
    assert find_broken(driver.dsn) == []


async def test_history_is_read_with_the_version_that_wrote_it(driver: Driver) -> None:
    instance = await driver.run(line("one", "two", "three"))
    await driver.complete(await driver.one("one"), {"a": 1})
    await driver.upload(line("zero", "deux", "two", "three"))
    await migrate(driver, instance, steps={"two": "deux"})
    job = await driver.one("deux", "two")
    assert (job.step_id, job.job_type) == ("deux", "deux")
    await driver.complete(job)
    await driver.upload(line("two", "three"))
    await migrate(driver, instance)
    assert await driver.path(instance) == [("one", "COMPLETED"), ("deux", "COMPLETED"), ("two", "RUNNING")]
    newest = (await driver.engine.diagnosis.history(instance, None, 10, output=True)).items
    assert [each.step_id for each in newest] == ["two", "deux", "one"]
    records = (await driver.engine.instances.audit(instance)).items
    assert [record.step_id for record in records if record.kind == "STEP_COMPLETED"] == ["one", "deux"]
    after = await driver.engine.diagnosis.variables_after(instance, newest[2].id)
    assert after.by == "one"
    assert driver.rows("SELECT step FROM penstock_steps WHERE number = %s ORDER BY pos", number(instance)) == [
        ("one",), ("deux",), ("two",)
    ]  # fmt: skip
    assert [v for (v,) in driver.rows("SELECT d.version FROM instance_version v JOIN definition d ON d.key ="
                                      " v.definition ORDER BY v.from_pos")] == [1, 2, 3]  # fmt: skip
    assert find_broken(driver.dsn) == []


async def test_the_way_it_took_is_shown_with_steps_of_now(driver: Driver) -> None:
    instance = await driver.run(line("one", "two", "three"))
    await driver.complete(await driver.one("one"))
    await driver.upload(line("zero", "one", "deux", "three"))
    await migrate(driver, instance, steps={"two": "deux"})
    await driver.complete(await driver.one("deux"))
    path = (await driver.engine.diagnosis.state(instance)).path
    assert [(edge.source, edge.target) for edge in path] == [("one", "deux"), ("deux", "three")]


async def test_a_job_that_waits_is_offered_as_the_new_type(driver: Driver) -> None:
    instance = await driver.run(line("one", "two"))
    await driver.upload(definition({**task("one", "two"), "jobType": "uno"}, task("two"), end(), id="line"))
    await migrate(driver, instance)
    assert await driver.poll("one") == []
    job = await driver.one("uno")
    await driver.complete(job)
    assert await driver.open_steps(instance) == ["two"]
    assert find_broken(driver.dsn) == []


async def test_the_last_holder_of_another_type_has_no_say(driver: Driver) -> None:
    instance = await driver.run(line("one", "two"))
    job = await driver.one("one")
    assert await driver.expire(31) == 1
    await driver.upload(definition({**task("one", "two"), "jobType": "uno"}, task("two"), end(), id="line"))
    await migrate(driver, instance)
    with pytest.raises(LeaseLost):
        await driver.complete(job)
    await driver.complete(await driver.one("uno"))
    assert find_broken(driver.dsn) == []


async def test_a_job_that_backs_off_or_is_parked_comes_back(driver: Driver) -> None:
    old = line("one", "two", retryCount=3, retryBackoff={"initial": "PT1H"})
    parked, backing_off = await driver.run(old), await driver.run(old)
    jobs = {job.instance_id: job for job in await driver.poll("one")}
    held = jobs[parked]
    await driver.engine.jobs.park(
        Park(job_id=held.id, attempt=held.attempt, worker_id=held.worker_id or "", signal="paid")
    )
    await driver.fail(jobs[backing_off])
    await driver.upload(line("zero", "uno", "two"))
    for instance in (parked, backing_off):
        await migrate(driver, instance, steps={"one": "uno"})
    await driver.signal(parked, "paid")
    await driver.due(3_601)
    found = {job.instance_id: (job.step_id, job.attempt) for job in await driver.poll("uno")}
    assert found == {parked: ("uno", 2), backing_off: ("uno", 2)}
    assert find_broken(driver.dsn) == []


async def test_a_failed_instance_is_retried_in_the_new_version(driver: Driver) -> None:
    body = definition(task("one", "which"), choose("which", {"n > 1": "two"}), task("two"), end(), id="line")
    instance = await driver.run(body, {"n": 0})
    await driver.complete(await driver.one("one"))
    assert await driver.status(instance) == "FAILED"
    repaired = definition(
        task("zero", "one"), task("one", "which"), choose("which", {"n > 1": "two", "true": "none"}), task("two"),
        task("none"), end(), id="line",
    )  # fmt: skip
    await driver.upload(repaired)
    assert await reasons(driver, instance) == []
    await migrate(driver, instance)
    assert await driver.status(instance) == "FAILED"
    why = (await driver.engine.diagnosis.state(instance)).why
    assert (why.code, why.step_id) == ("failed", "which")
    await driver.retry(instance)
    assert await driver.open_steps(instance) == ["none"]
    assert find_broken(driver.dsn) == []


async def test_a_dead_job_keeps_its_name(driver: Driver) -> None:
    instance = await driver.run(line("one", "two"))
    await driver.fail(await driver.one("one"), retryable=False)
    await driver.upload(line("zero", "uno", "two"))
    await migrate(driver, instance, steps={"one": "uno"})
    [dead] = (await driver.engine.jobs.failed(0, 10)).items
    assert (dead.step_id, dead.job_type) == ("one", "one")
    await driver.retry(instance)
    assert [job.step_id for job in await driver.poll("uno")] == ["uno"]
    assert find_broken(driver.dsn) == []


async def test_timers_go_on_end_and_begin(driver: Driver) -> None:
    """One whose time changed counts from the entry; one that has fired does not come back; a new one begins now."""
    steps = [task("kept"), task("changed"), task("fired"), end()]
    events = [timer("kept", "PT3H"), timer("changed", "PT4H"), timer("fired", "PT1H")]
    instance = await driver.run(definition(user("ask", boundaryEvents=events), *steps, id="timed"))
    await driver.due(3_601)
    assert await driver.open_steps(instance) == ["ask", "fired"]
    events = [timer("new", "PT1H"), timer("fired", "PT1H"), timer("changed", "PT2H"), timer("kept", "PT3H")]
    await driver.upload(definition(user("ask", boundaryEvents=events), task("new"), *steps, id="timed"))
    await migrate(driver, instance)
    left = driver.rows(
        "SELECT m.index::int, round(extract(epoch FROM m.fire_at - t.entered_at) / 3600)::int FROM timer m"
        " JOIN token t ON t.id = m.token_id AND t.seq = m.seq ORDER BY 1"
    )
    assert left == [(0, 2), (2, 2), (3, 3)]
    await driver.due(3_601)
    assert sorted(await driver.open_steps(instance)) == ["ask", "changed", "fired", "new"]
    await driver.finish_task(instance, "ask")
    assert find_broken(driver.dsn) == []


async def test_kept_signals_and_the_inbox_follow(driver: Driver) -> None:
    instance = await driver.run(definition(user("ask", "paid"), wait("paid"), end(), id="asked"))
    await driver.signal(instance, "paid", {"paid": 1}, buffer=True)
    new = definition(task("zero", "check"), user("check", "settled"), wait("settled"), end(), id="asked")
    await driver.upload(new)
    assert await reasons(driver, instance, steps={"ask": "check"}) == [
        "signals are kept for step 'paid': the version has no 'paid'; say which step it becomes"
    ]
    await migrate(driver, instance, steps={"ask": "check", "paid": "settled"})
    [open_task] = (
        await driver.engine.inbox.list_open("check", None, None, unclaimed=False, cursor=None, limit=10)
    ).items
    assert open_task.step_id == "check"
    assert [signal.step_id for signal in await driver.engine.tasks.buffered(instance)] == ["settled"]
    await driver.finish_task(instance, "check")
    assert (await driver.status(instance), await driver.variables(instance)) == ("COMPLETED", {"paid": 1})
    assert find_broken(driver.dsn) == []


async def test_a_call_waits_on_for_the_instance_it_made(driver: Driver) -> None:
    await driver.upload(definition(task("work"), end(), id="child"))
    old = definition(call("call", "child", "after"), task("after"), end(), id="caller")
    instance = await driver.run(old)
    new = definition(
        task("zero", "call"), call("call", "child", "after", output={"n": "${result.n}"}), task("after"), end(),
        id="caller",
    )  # fmt: skip
    await driver.upload(new)
    await migrate(driver, instance)
    await driver.complete(await driver.one("work"), {"n": 7})
    assert await driver.due() == 1
    assert (await driver.open_steps(instance), await driver.variables(instance)) == (["after"], {"n": 7})
    assert [branch.path for branch in (await driver.engine.runs.tree(instance)).branches] == ["/call"]
    assert find_broken(driver.dsn) == []


async def test_branches_have_to_be_in_the_block_still(driver: Driver) -> None:
    def block(*branches: Json, heads: tuple[str, ...] = ("a", "b")) -> Json:
        return definition(
            gateway("fork", *heads), *branches, joining("join", "after"), task("after"), end(), id="block"
        )

    instance = await driver.run(block(task("a", "a2"), task("a2", "join"), task("b", "join")))
    await driver.complete(await driver.one("a"))
    await driver.upload(
        definition(
            task("zero", "fork"), gateway("fork", "a", "b"), task("a", "join"), task("b", "join"),
            joining("join", "a2"), task("a2", "after"), task("after"), end(), id="block",
        )
    )  # fmt: skip
    assert await reasons(driver, instance) == ["step 'a2' is outside of the block of gateway 'fork' in the version"]
    await driver.upload(
        block(task("b", "join"), task("a", "a2"), task("a2", "join"), task("c", "join"), heads=("a", "b", "c"))
    )
    await migrate(driver, instance)
    for step in ("a2", "b", "after"):
        await driver.complete(await driver.one(step))
    assert await driver.status(instance) == "COMPLETED"
    other = (await driver.start("block")).id
    await driver.upload(line("a", "b", "c", id="block"))
    assert "it stands on step 'fork': the version has no 'fork'" in (await reasons(driver, other))[0]
    assert find_broken(driver.dsn) == []


async def test_what_stands_free_may_not_come_into_a_block(driver: Driver) -> None:
    instance = await driver.run(line("a", "b"))
    await driver.upload(
        definition(gateway("fork", "a", "b"), task("a", "join"), task("b", "join"), joining(), end(), id="line")
    )
    assert "inside the block of gateway 'fork'" in (await reasons(driver, instance))[0]


async def test_every_reason_is_reported(driver: Driver) -> None:
    body = definition(
        gateway("fork", "a", "b", "c"), task("a", "join"), task("b", "join"), user("c", "join"), joining(), end()
    )
    instance = await driver.run({**body, "id": "many"})
    await driver.one("b")
    await driver.upload(
        definition(
            gateway("fork", "x", "b", "c"), task("x", "join"), {**task("b", "join"), "jobType": "other"},
            task("c", "join"), joining(), end(), id="many",
        )
    )  # fmt: skip
    reported = await reasons(driver, instance)
    assert [reason.split(":")[0].split(",")[0] for reason in sorted(reported)] == [
        "it stands on step 'a'", "it stands on step 'c'", "step 'b' is under way as a job of type 'b'"
    ]  # fmt: skip


async def test_what_can_not_be_migrated_says_why(driver: Driver) -> None:
    instance = await driver.run(line("one"))
    assert await reasons(driver, instance) == ["it is of version 1 already"]
    with pytest.raises(NotFound, match="version 7"):
        await migrate(driver, instance, version=7)
    with pytest.raises(NotFound):
        await migrate(driver, "1f")
    await driver.upload(line("two"))
    with pytest.raises(BadRequest, match="steps: 'one' becomes 'three', which is not a step of 'line' version 2"):
        await migrate(driver, instance, steps={"one": "three"})
    await driver.cancel(instance)
    assert "CANCELLED" in (await reasons(driver, instance))[0]


async def test_of_a_migration_and_a_completion_both_count(driver: Driver) -> None:
    await driver.upload(line("one", "two"))
    await driver.upload(line("zero", "one", "three"))
    instances = [(await driver.start("line", definition_version=1)).id for _ in range(10)]
    jobs = await driver.poll("one", n=10)
    assert len(jobs) == 10
    refused: list[str] = []

    async def one(instance: str) -> None:
        try:
            await migrate(driver, instance)
        except Conflict as error:
            refused.append(error.reason)

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(driver.complete, job)
        for instance in instances:
            nursery.start_soon(one, instance)
    for instance in instances:  # where the completion was first, step 'two' is not in the new version
        assert await driver.open_steps(instance) in (["two"], ["three"])
    assert sum([await driver.open_steps(instance) == ["two"] for instance in instances]) == len(refused)
    assert find_broken(driver.dsn) == []


async def test_search_attributes_are_those_that_the_version_declares(driver: Driver) -> None:
    instance = await driver.run(line("one"), {"city": "Bern"})
    await driver.upload({**line("one", "two"), "searchAttributes": {"city": "STRING"}})
    await migrate(driver, instance)
    assert driver.rows("SELECT name, text FROM search_attribute") == [("city", "Bern")]
    assert find_broken(driver.dsn) == []


async def test_in_kafka_mode_the_job_has_another_topic(make_driver: MakeDriver) -> None:
    driver = make_driver(dispatch_mode=DispatchMode.KAFKA_OUTBOX)
    instance = await driver.run(line("one", "two"))
    await driver.upload(definition({**task("one", "two"), "jobType": "uno"}, task("two"), end(), id="line"))
    await migrate(driver, instance)
    rows = driver.rows(
        "SELECT j.name, o.attempt - t.attempt FROM dispatch_outbox o JOIN token t ON t.id = o.token_id"
        " JOIN job_type j ON j.id = o.job_type ORDER BY o.id"
    )
    assert rows == [("one", 0), ("uno", 1)], "the first is void: its attempt was passed over"
    assert find_broken(driver.dsn) == []


def test_a_request_has_a_version_and_steps() -> None:
    read = msgspec.json.decode(b'{"version": 3, "steps": {"a": "b"}, "dryRun": true}', type=MigrationRequest)
    assert (read.version, read.steps, read.dry_run, read.note) == (3, {"a": "b"}, True, None)


@pytest.mark.parametrize("flow_key", [None, "gold"])
async def test_jobs_that_wait_for_turns_wait_on(driver: Driver, flow_key: str | None) -> None:
    """In the queue with keys under the type of before, and of the new one, which is in no queue."""
    await driver.engine.queues.put("turns", QueuePolicy(["one"], concurrency=1))
    await driver.upload(line("one", "two"))
    first, second = [(await driver.start("line", flow_key=flow_key)).id for _ in range(2)]
    [held] = await driver.poll("one")
    await driver.upload(line("zero", "one", "three"))
    await migrate(driver, first)
    await migrate(driver, second)
    assert await driver.poll("one") == []
    await driver.complete(held)
    [job] = await driver.poll("one")
    assert {held.instance_id, job.instance_id} == {first, second}
    await driver.upload(definition({**task("one"), "jobType": "uno"}, end(), id="line"))
    assert "is under way as a job of type 'one'" in (await reasons(driver, job.instance_id))[0]
    third = (await driver.start("line", flow_key=flow_key, definition_version=1)).id
    await migrate(driver, third)
    assert [job.instance_id for job in await driver.poll("uno", "one")] == [third]
    assert find_broken(driver.dsn) == []


async def test_items_of_a_list_go_on(driver: Driver) -> None:
    each = {"items": "${lines}", "as": "line", "parallel": 1, "collect": "${result.n}", "into": "sums"}
    old = definition(task("count", forEach=each), end(), id="items")
    instance = await driver.run(old, {"lines": [1, 2]})
    await driver.upload(definition(task("zero", "sum"), task("sum", forEach=each), end(), id="items"))
    assert await reasons(driver, instance, steps={"count": "zero"}) == [
        "step 'count' is a forEach in one of the versions, and is none in the other"
    ]
    await migrate(driver, instance, steps={"count": "sum"})
    for n in (7, 8):
        await driver.complete(await driver.one("sum"), {"n": n})
    assert (await driver.status(instance), (await driver.variables(instance))["sums"]) == ("COMPLETED", [7, 8])
    assert find_broken(driver.dsn) == []


async def test_a_token_that_has_ended_gets_no_timers(driver: Driver) -> None:
    """It counts as standing on the first step, which in the version is a forEach with one."""
    old = definition(task("a", None, boundaryEvents=[timer("late", "PT1S")]), user("late"), end(), id="ended")
    instance = await driver.run(old)
    await driver.due(2)
    await driver.complete(await driver.one("a"))
    each = task("list", "late", forEach={"items": "${[]}"}, boundaryEvents=[timer("late", "PT1H", interrupting=True)])
    await driver.upload(definition(each, user("late"), end(), id="ended"))
    await migrate(driver, instance)
    assert driver.rows("SELECT index FROM timer") == []
    await driver.finish_task(instance, "late")
    assert await driver.status(instance) == "COMPLETED"


async def test_a_wait_for_a_message_keeps_its_name(driver: Driver) -> None:
    def waiting(name: str, *before: Json) -> Json:
        message = {"name": name, "correlationKey": "${order}"}
        return definition(*before, wait("paid", message=message), end(), id="message")

    instance = await driver.run(waiting("paid"), {"order": 7})
    await driver.upload(waiting("settled"))
    assert await reasons(driver, instance) == [
        "step 'paid' waits for the message 'paid', and would wait for the message 'settled'"
    ]
    await driver.upload(waiting("paid", task("zero", "paid")))
    await migrate(driver, instance)
    await driver.publish("paid", "7", {"sum": 3})
    await driver.due()
    assert await driver.status(instance) == "COMPLETED"
    assert find_broken(driver.dsn) == []


async def test_what_was_done_before_is_undone_in_the_new_version(driver: Driver) -> None:
    def booking(*before: Json, name: str = "book", **fields: Any) -> Json:
        undone = {**task(name, "pay"), "compensation": {"jobType": "undo"}, **fields}
        return definition(*before, undone, task("pay"), end(), id="booking")

    instance = await driver.run(booking())
    await driver.complete(await driver.one("book"), {"seat": 7})
    await driver.upload(booking(task("zero", "book"), compensation=None))
    assert await reasons(driver, instance) == ["step 'book' was completed, and the version can't undo it any more"]
    await driver.upload(booking(task("zero", "first"), task("first", "reserve"), name="reserve"))
    await migrate(driver, instance, steps={"book": "reserve"})
    await driver.upload(booking(task("zero", "book")))
    await migrate(driver, instance, steps={"reserve": "book"})
    await driver.engine.instances.cancel(instance, "not needed", compensate=True)
    job = await driver.one("undo")
    assert variables_of(job)["compensating"] == {"stepId": "book", "output": {"seat": 7}}
    await driver.complete(job)
    assert await driver.status(instance) == "CANCELLED"
    assert find_broken(driver.dsn) == []
