"""Compensation in the database: what handlers see, and what holds after failures, cancels, crashes and children."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from penstock.errors import Conflict
from penstock.settings.secret import Secret
from penstock.store.rows import retention
from penstock.testing.definitions import Json, definition, end
from penstock.wire.edits import StepSkip, TokenMove
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, completion, number, selected, variables_of
from tests.engine.test_calls import child_of, settle
from tests.engine.test_encryption import KEYS
from tests.engine.test_polls import parked
from tests.shapes import call, compensate, gateway, joining, task

TRAVEL = definition(
    task("flight", "hotel", compensation={"jobType": "cancel-flight", "retryCount": 1}),
    task("hotel", "card", compensation={"jobType": "cancel-hotel"}),
    task("card"),
    end(),
    definition_id="travel",
    onFailure="COMPENSATE",
)


async def booked(driver: Driver, body: Json = TRAVEL, **variables: object) -> str:
    """An instance of the travel whose flight and hotel are booked."""
    instance = await driver.run(body, dict(variables))
    await driver.complete(await driver.one("flight"), {"seat": "1A"})
    await driver.complete(await driver.one("hotel"), {"room": 7})
    return instance


async def undo(driver: Driver, job_type: str) -> dict[str, Any]:
    """Let the handler of this type do its job; what it sees."""
    job = await driver.one(job_type)
    await driver.complete(job)
    return variables_of(job)


async def test_a_failed_instance_is_undone_and_then_fails(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver, trip=1)
    await driver.fail(await driver.one("card"), "declined", retryable=False, error_code="DECLINED")
    view = await driver.view(instance)
    assert (view.status, view.current_step_ids) == ("ACTIVE", ["hotel/compensation"])
    seen = await undo(driver, "cancel-hotel")
    assert seen == {"trip": 1, "seat": "1A", "room": 7, "compensating": {"stepId": "hotel", "output": {"room": 7}}}
    assert (await undo(driver, "cancel-flight"))["compensating"] == {"stepId": "flight", "output": {"seat": "1A"}}
    view = await driver.view(instance)
    assert (view.status, view.failure_reason, view.failure_code) == ("FAILED", "declined", "DECLINED")
    assert [(item.step_id, item.status) for item in await driver.history(instance)] == [
        ("flight", "COMPLETED"),
        ("hotel", "COMPLETED"),
        ("card", "FAILED"),
        ("/compensation", "COMPLETED"),
        ("hotel/compensation", "COMPLETED"),
        ("flight/compensation", "COMPLETED"),
    ]
    [(step, job_type)] = driver.rows("SELECT e.step, j.name FROM abnormal_end e JOIN job_type j ON j.id = e.job_type")
    assert (step, job_type) == ("card", "card")
    with pytest.raises(Conflict, match="nothing is left to retry"):
        await driver.retry(instance)
    assert await driver.variables(instance) == {"trip": 1, "seat": "1A", "room": 7}


async def test_a_handler_that_fails_is_tried_again_where_it_was(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver)
    await driver.fail(await driver.one("card"), "declined", retryable=False)
    job = await driver.one("cancel-hotel")
    await driver.fail(job, "no line")
    view = await driver.view(instance)
    assert (view.status, view.failure_reason) == ("FAILED", "compensation of step 'hotel' failed: no line")
    await driver.retry(instance)
    again = await driver.one("cancel-hotel")
    assert again.idempotency_key == job.idempotency_key
    assert variables_of(again)["compensating"] == {"stepId": "hotel", "output": {"room": 7}}
    await driver.complete(again)
    await driver.fail(await driver.one("cancel-flight"), "busy")
    await driver.complete(await driver.one("cancel-flight"))
    assert (await driver.view(instance)).failure_reason == "declined"


async def test_a_cancel_undoes_if_asked_to_and_only_once(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver)
    card = await driver.one("card")
    assert (await driver.cancel(instance, "changed my mind", compensate=True)).status == "ACTIVE"
    with pytest.raises(Conflict, match="being compensated already"):
        await driver.cancel(instance, compensate=True)
    with pytest.raises(Conflict):
        await driver.complete(card)
    await undo(driver, "cancel-hotel")
    await undo(driver, "cancel-flight")
    view = await driver.view(instance)
    assert (view.status, view.failure_reason) == ("CANCELLED", "changed my mind")


async def test_a_cancel_in_the_middle_ends_at_once(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver)
    await driver.cancel(instance, compensate=True)
    await driver.cancel(instance, "now")
    assert await driver.status(instance) == "CANCELLED"
    assert await driver.poll("cancel-hotel", "cancel-flight") == []


async def test_branches_that_end_in_one_batch_are_all_undone(make_driver: MakeDriver) -> None:
    """Three completions of one instance, decided together, and the COMPENSATE behind their join."""
    driver = make_driver()
    heads = ["a", "b", "c"]
    body = definition(
        gateway("fork", *heads),
        *(task(head, "join", compensation={"jobType": "undo"}) for head in heads),
        joining("join", "undo"),
        compensate("undo"),
        end(),
    )
    instance = await driver.run(body)
    jobs = [await driver.one(head) for head in heads]
    await driver.engine.jobs.complete_many([completion(job, {job.job_type: 1}) for job in jobs])
    seen: list[str] = []
    while await driver.status(instance) == "ACTIVE":
        seen.append(variables_of(job := await driver.one("undo"))["compensating"]["stepId"])
        await driver.complete(job)
    done = driver.rows("SELECT step::int FROM history WHERE step BETWEEN 1 AND 3 ORDER BY pos DESC")
    assert seen == [heads[step - 1] for (step,) in done]


async def test_large_variables_and_encrypted_ones_reach_handlers(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    instance = await booked(driver, large="x" * 9_000)
    await driver.fail(await driver.one("card"), retryable=False)
    seen = await undo(driver, "cancel-hotel")
    assert (seen["compensating"], len(seen["large"])) == ({"stepId": "hotel", "output": {"room": 7}}, 9_000)
    assert (await undo(driver, "cancel-flight"))["compensating"] == {"stepId": "flight", "output": {"seat": "1A"}}
    assert await driver.status(instance) == "FAILED"


async def test_a_handler_that_is_awaited_sees_what_it_undoes(make_driver: MakeDriver) -> None:
    """Dispatched directly: its job never was in the queue."""
    driver = make_driver()
    await booked(driver)
    card = await driver.one("card")
    seen: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def poll() -> None:
            seen.append(variables_of(await driver.one("cancel-hotel", worker="parked"))["compensating"])

        nursery.start_soon(poll)
        await parked(driver, 1)
        await driver.fail(card, retryable=False)
    assert seen == [{"stepId": "hotel", "output": {"room": 7}}]
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_a_child_that_completed_is_undone_by_its_calls_handler(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(TRAVEL)
    parent = definition(
        call("travel", "travel", "party", output={"seat": "${result.seat}"}, compensation={"jobType": "undo-travel"}),
        task("party"),
        end(),
        definition_id="wedding",
        onFailure="COMPENSATE",
    )
    instance = await driver.run(parent)
    await driver.complete(await driver.one("flight"), {"seat": "1A"})
    await driver.complete(await driver.one("hotel"))
    await driver.complete(await driver.one("card"))
    await settle(driver)
    await driver.fail(await driver.one("party"), "rain", retryable=False)
    assert (await undo(driver, "undo-travel"))["compensating"] == {"stepId": "travel", "output": {"seat": "1A"}}
    assert (await driver.view(instance)).failure_reason == "rain"


async def test_a_retry_replaces_a_child_that_undid_itself(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(TRAVEL)
    instance = await driver.run(definition(call("travel", "travel"), end(), definition_id="wedding"))
    child = child_of(driver, instance)
    await driver.complete(await driver.one("flight"), {"seat": "1A"})
    await driver.fail(await driver.one("hotel"), "full", retryable=False)
    await settle(driver)
    assert await driver.status(instance) == "ACTIVE"
    await undo(driver, "cancel-flight")
    await settle(driver)
    assert (await driver.status(child), await driver.status(instance)) == ("FAILED", "FAILED")
    await driver.retry(instance)
    await settle(driver)
    assert child_of(driver, instance) != child
    assert await driver.open_steps(instance) == ["travel"]


@pytest.mark.parametrize("undone", [True, False])
async def test_a_child_whose_call_is_closed_undoes_itself(make_driver: MakeDriver, undone: bool) -> None:
    driver = make_driver()
    await driver.upload(TRAVEL if undone else {key: TRAVEL[key] for key in TRAVEL if key != "onFailure"})
    instance = await driver.run(definition(call("travel", "travel"), end(), definition_id="wedding"))
    child = child_of(driver, instance)
    await driver.complete(await driver.one("flight"))
    await driver.cancel(instance)
    await settle(driver)
    assert await driver.status(instance) == "CANCELLED"
    if undone:
        assert await driver.open_steps(child) == ["flight/compensation"]
        await undo(driver, "cancel-flight")
    assert await driver.status(child) == "CANCELLED"


async def test_what_is_known_of_compensation_goes_with_the_instance(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver)
    await driver.fail(await driver.one("card"), retryable=False)
    await undo(driver, "cancel-hotel")
    await undo(driver, "cancel-flight")
    async with driver.engine.database.connection() as connection:
        assert await retention.remove_instances(connection, [selected(driver, instance)]) == [number(instance)]
    assert driver.rows("SELECT FROM compensation") == driver.rows("SELECT FROM undoing") == []


async def test_hidden_steps_have_their_names_in_views(driver: Driver) -> None:
    content = msgspec.json.encode(TRAVEL).decode()
    found = driver.rows("SELECT penstock_step_id(%s, n) FROM generate_series(0, 6) n", content)
    names = ["flight", "hotel", "card", "end", "flight/compensation", "hotel/compensation", "/compensation"]
    assert [name for (name,) in found] == names


async def test_items_are_undone_each_for_itself(make_driver: MakeDriver) -> None:
    """Also those of a step that did not come to its end: one of its items failed."""
    driver = make_driver()
    each = {"items": "${seats}", "as": "seat"}
    body = definition(
        task("book", "end", forEach=each, compensation={"jobType": "free"}), end(), onFailure="COMPENSATE"
    )
    instance = await driver.run(body, {"seats": ["1A", "1B", "1C"]})
    jobs = {variables_of(job)["seat"]: job for job in await driver.poll("book")}
    await driver.complete(jobs["1B"], {"booking": "b"})
    await driver.complete(jobs["1A"], {"booking": "a"})
    await driver.fail(jobs["1C"], "taken", retryable=False)
    reported = [(await undo(driver, "free"))["compensating"] for _ in range(2)]
    assert reported == [
        {"stepId": "book", "output": {"booking": "a"}, "item": 0},
        {"stepId": "book", "output": {"booking": "b"}, "item": 1},
    ]
    assert (await driver.view(instance)).failure_reason == "taken"


async def test_a_handler_may_be_skipped_but_not_moved(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver)
    await driver.fail(await driver.one("card"), "declined", retryable=False)
    repair = driver.engine.repair
    with pytest.raises(Conflict, match="compensates step 'hotel': it can be skipped, but not moved"):
        await repair.move(instance, TokenMove("hotel/compensation", "card"))
    with pytest.raises(Conflict, match="compensates before it ends"):
        await repair.move(instance, TokenMove("/compensation", "card"))
    await repair.skip(instance, StepSkip("hotel/compensation", note="by phone"))
    await undo(driver, "cancel-flight")
    assert (await driver.view(instance)).failure_reason == "declined"
