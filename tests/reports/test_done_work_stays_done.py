"""Work that is done stays done where the engine can't map its result: it is undone where it has to be, never redone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.engine.advance.context_loader import ContextLoader
from penstock.errors import Conflict
from penstock.settings.secret import Secret
from penstock.testing.definitions import Json, definition, end
from penstock.wire.edits import MigrationRequest, StepSkip, TokenMove, VariablesEdit
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver, variables_of
from tests.engine.test_calls import settle
from tests.engine.test_encryption import KEYS
from tests.shapes import call, task, user

__all__ = ["driver", "make_driver"]

HOTEL = definition(task("book"), end(), definition_id="hotel")
UNDO = {"jobType": "cancel"}
BROKEN, REPAIRED = "${result.n / by}", "${result.n / 2}"


class Shape(NamedTuple):
    """Steps whose result is mapped: with an expression that fails while `by` is 0, and its result once it is 2."""

    step: Callable[[str], Json]
    gives: Json
    jobs: int = 1


def each(expression: str, **fields: Any) -> Json:
    return {"items": "${rooms}", "as": "room", "parallel": 1, "collect": expression, "into": "all", **fields}


def of_call(expression: str) -> Json:
    return call("trip", "hotel", "pay", input={"to": "x"}, output={"half": expression}, compensation=UNDO)


def of_tasks(expression: str) -> Json:
    return task("book", "pay", forEach=each(expression), compensation=UNDO)


def of_calls(expression: str) -> Json:
    return call("trip", "hotel", "pay", input={"to": "x"}, forEach=each(expression), compensation=UNDO)


def until(expression: str) -> Json:
    fields = {
        "items": "${rooms}",
        "as": "room",
        "parallel": 1,
        "until": f"{expression} >= 1000".replace("} >=", " >=") + "}",
    }
    return task("book", "pay", forEach=fields, compensation=UNDO)


def until_calls(expression: str) -> Json:
    fields = {
        "items": "${rooms}",
        "as": "room",
        "parallel": 1,
        "until": f"{expression} >= 1000".replace("} >=", " >=") + "}",
    }
    return call("trip", "hotel", "pay", input={"to": "x"}, forEach=fields, compensation=UNDO)


def until_and_collect(expression: str) -> Json:
    fields = {
        "items": "${rooms}",
        "as": "room",
        "parallel": 2,
        "collect": expression,
        "into": "all",
        "until": "${len(rooms) > 5}",
    }
    return task("book", "pay", forEach=fields, compensation=UNDO)


SHAPES = {
    "until of calls": Shape(until_calls, {}, 2),
    "until and collect, side by side": Shape(until_and_collect, {"all": [4, 4]}, 2),
    "output of a call": Shape(of_call, {"half": 4}),
    "collect of tasks": Shape(of_tasks, {"all": [4, 4]}, 2),
    "collect of calls": Shape(of_calls, {"all": [4, 4]}, 2),
    "until of tasks": Shape(until, {}, 2),
}


def trip(step: Json, **fields: Any) -> Json:
    return definition(step, task("pay"), end(), definition_id="trip", **fields)


async def begun(driver: Driver, step: Json, **fields: Any) -> str:
    await driver.upload(HOTEL)
    return await driver.run(trip(step, **fields), {"by": 0, "rooms": [1, 2]})


async def book(driver: Driver, n: int = 8) -> Job:
    """Somebody books, and is answered that it counts."""
    job = await driver.one("book")
    await driver.complete(job, {"n": n})
    await settle(driver)
    return job


async def booked(driver: Driver, step: Json, **fields: Any) -> str:
    instance = await begun(driver, step, **fields)
    await book(driver)
    return instance


async def nobody_books(driver: Driver) -> None:
    await settle(driver)
    assert await driver.poll("book") == []


async def let_by_be_two(driver: Driver, instance: str) -> None:
    await driver.engine.repair.edit_variables(instance, VariablesEdit(set=msgspec.Raw(b'{"by":2}')))


async def to_a_corrected_version(driver: Driver, instance: str, step: Json) -> None:
    await driver.upload(trip(step))
    await driver.engine.migrations.migrate(instance, MigrationRequest(version=2))


@pytest.mark.parametrize("repaired_by", ["an edit", "a migration"])
@pytest.mark.parametrize("name", SHAPES)
async def test_a_retry_maps_again_and_books_nothing(make_driver: MakeDriver, name: str, repaired_by: str) -> None:
    driver, shape = make_driver(), SHAPES[name]
    instance = await booked(driver, shape.step(BROKEN))
    assert await driver.status(instance) == "FAILED"
    for _ in range(2):
        await driver.retry(instance)
        await nobody_books(driver)
        assert await driver.status(instance) == "FAILED"
    if repaired_by == "an edit":
        await let_by_be_two(driver, instance)
    else:
        await to_a_corrected_version(driver, instance, shape.step(REPAIRED))
    await driver.retry(instance)
    for _ in range(shape.jobs - 1):
        await book(driver)
    await nobody_books(driver)
    assert await driver.open_steps(instance) == ["pay"]
    found = await driver.variables(instance)
    assert {key: found[key] for key in shape.gives} == shape.gives
    assert driver.rows("SELECT count(*) FROM item_output") == [(shape.jobs if "forEach" in shape.step("") else 1,)]
    await driver.complete(await driver.one("pay"))
    assert await driver.status(instance) == "COMPLETED"


@pytest.mark.parametrize("keys", [{}, {"encryption_keys": Secret(KEYS["k1"])}], ids=["clear", "encrypted"])
@pytest.mark.parametrize("name", SHAPES)
async def test_what_was_done_is_undone_with_its_raw_result(
    make_driver: MakeDriver, name: str, keys: dict[str, Any]
) -> None:
    driver = make_driver(**keys)
    instance = await booked(driver, SHAPES[name].step(BROKEN), onFailure="COMPENSATE")
    handler = await driver.one("cancel")
    assert variables_of(handler)["compensating"]["output"]["n"] == 8
    await driver.complete(handler)
    view = await driver.view(instance)
    assert (view.status, view.failure_reason is not None) == ("FAILED", True)
    assert await driver.poll("cancel") == []


@pytest.mark.parametrize("name", SHAPES)
async def test_no_boundary_takes_the_error_of_a_mapping(make_driver: MakeDriver, name: str) -> None:
    driver = make_driver()
    step = SHAPES[name].step(BROKEN) | {"boundaryEvents": [{"type": "ERROR", "targetStepId": "pay"}]}
    if "forEach" in step and "collect" in step["forEach"]:
        step["forEach"] |= {"onError": "COLLECT"}
    instance = await booked(driver, step)
    assert await driver.status(instance) == "FAILED"
    closed = [(step, status) for step, status in await driver.path(instance) if status == "COMPLETED"]
    assert closed == [(str(step["id"]), "COMPLETED")]
    [(failed,)] = driver.rows("SELECT step FROM abnormal_end")
    assert failed == step["id"]


async def test_what_a_retry_mapped_is_what_its_handler_sees(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver, of_call(BROKEN))
    await let_by_be_two(driver, instance)
    await driver.retry(instance)
    await driver.cancel(instance, compensate=True)
    assert variables_of(await driver.one("cancel"))["compensating"] == {"stepId": "trip", "output": {"half": 4}}


@pytest.mark.parametrize("name", ["output of a call", "collect of tasks"])
async def test_a_raw_result_goes_once_it_is_mapped(make_driver: MakeDriver, name: str) -> None:
    driver = make_driver()
    step = SHAPES[name].step(BROKEN)
    del step["compensation"]
    instance = await booked(driver, step)
    assert driver.rows("SELECT count(*) FROM item_output") == [(1,)]
    await let_by_be_two(driver, instance)
    await driver.retry(instance)
    assert driver.rows("SELECT count(*) FROM item_output") == [(0,)]


@pytest.mark.parametrize(
    "step",
    [
        of_call("${result.text}") | {"output": {"a": "${result.text}", "b": "${result.text + result.text}"}},
        of_tasks("${result.text + result.text + result.text}"),
        of_calls("${result.text + result.text + result.text}"),
    ],
    ids=["output", "collect of tasks", "collect of calls"],
)
async def test_too_large_a_value_is_no_reason_to_book_again(make_driver: MakeDriver, step: Json) -> None:
    driver = make_driver(instance_variables_max_bytes=2_000)
    instance = await begun(driver, step, onFailure="COMPENSATE")
    await driver.complete(await driver.one("book"), {"text": "x" * 900})
    await settle(driver)
    assert variables_of(await driver.one("cancel"))["compensating"]["output"]["text"] == "x" * 900
    await nobody_books(driver)
    assert await driver.status(instance) == "ACTIVE"


async def test_a_persons_item_is_done_once_too(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, user("book", "pay", forEach=each(BROKEN)))
    await driver.finish_task(instance, "book", {"n": 8})
    assert await driver.status(instance) == "FAILED"
    await let_by_be_two(driver, instance)
    await driver.retry(instance)
    await driver.finish_task(instance, "book", {"n": 6})
    assert (await driver.variables(instance))["all"] == [4, 3]
    assert await driver.open_steps(instance) == ["pay"]


async def test_of_items_that_end_together_the_others_are_done_too(make_driver: MakeDriver) -> None:
    driver = make_driver()
    step = task("book", "pay", forEach=each("${result.n / result.by}", parallel=3), compensation=UNDO)
    await driver.upload(trip(step))
    instance = (await driver.start("trip", {"rooms": [1, 2, 3]})).id
    jobs = await driver.poll("book", n=3)
    await driver.complete(jobs[0], {"n": 8, "by": 2})
    await driver.complete(jobs[1], {"n": 8, "by": 0})
    await driver.upload(trip(task("book", "pay", forEach=each("${result.n}", parallel=3), compensation=UNDO)))
    await driver.engine.migrations.migrate(instance, MigrationRequest(version=2))
    await driver.retry(instance)
    assert len(await driver.poll("book")) == 1, "the one that was not done"
    assert await driver.open_steps(instance) == ["book"]


async def skip(driver: Driver, instance: str) -> None:
    await driver.engine.repair.skip(instance, StepSkip("trip", msgspec.Raw(b'{"half":1}')))


async def move(driver: Driver, instance: str) -> None:
    await driver.engine.repair.move(instance, TokenMove("trip", "pay"))


@pytest.mark.parametrize("repair_by_hand", [skip, move])
async def test_a_skip_and_a_move_leave_it_unmapped(
    make_driver: MakeDriver, repair_by_hand: Callable[[Driver, str], Awaitable[None]]
) -> None:
    driver = make_driver()
    instance = await booked(driver, of_call(BROKEN))
    await repair_by_hand(driver, instance)
    assert await driver.open_steps(instance) == ["pay"]
    await driver.cancel(instance, compensate=True)
    assert variables_of(await driver.one("cancel"))["compensating"]["output"]["n"] == 8


async def to_it_again(driver: Driver, instance: str) -> None:
    await driver.engine.repair.move(instance, TokenMove("trip", "trip"))


async def test_a_move_to_the_call_itself_calls_anew(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await booked(driver, of_call(BROKEN))
    await to_it_again(driver, instance)
    assert len(await driver.poll("book")) == 1


def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an engine that keeps no raw results leaves it."""

    async def never(_: ContextLoader) -> bool:
        return False

    monkeypatch.setattr(ContextLoader, "may_keep_raw", never)


@pytest.mark.parametrize("name", ["output of a call", "collect of calls"])
async def test_of_an_older_failure_the_child_says_what_it_gave(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    driver, shape = make_driver(), SHAPES[name]
    with monkeypatch.context() as older:
        as_before(older)
        instance = await booked(driver, shape.step(BROKEN))
    assert "COMPLETED" not in dict(await driver.path(instance)).values()
    await let_by_be_two(driver, instance)
    await driver.retry(instance)
    await settle(driver)
    for _ in range(shape.jobs - 1):
        await book(driver)
    await nobody_books(driver)
    assert await driver.open_steps(instance) == ["pay"]
    found = await driver.variables(instance)
    assert {key: found[key] for key in shape.gives} == shape.gives


@pytest.mark.parametrize("name", ["collect of tasks", "until of tasks"])
async def test_of_an_older_failure_a_retry_asks_first(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    driver = make_driver()
    with monkeypatch.context() as older:
        as_before(older)
        instance = await booked(driver, SHAPES[name].step(BROKEN))
    with pytest.raises(Conflict, match=r"step 'book': item 0 was done before .* `\"again\": true` does the work again"):
        await driver.retry(instance)
    assert await driver.status(instance) == "FAILED"
    await driver.engine.instances.retry(instance, again=True)
    assert len(await driver.poll("book")) == 1


async def test_a_worker_that_failed_is_retried_without_a_question(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await begun(driver, of_tasks(BROKEN))
    await driver.fail(await driver.one("book"), "no room", retryable=False)
    await driver.retry(instance)
    assert len(await driver.poll("book")) == 1
