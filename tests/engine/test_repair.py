"""Variables that people change: of instances that wait or have failed, whole, once, and told in the audit trail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.engine.advance.commands import FoldCommand
from penstock.errors import BadRequest, Conflict, NotFound, PayloadTooLarge
from penstock.testing.definitions import definition, end
from penstock.testing.invariants import find_broken
from penstock.wire.edits import VariablesEdit
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import gateway, joining, task, user

ASKED = definition(user("ask", "work"), task("work"), end(), id="asked")
LINE = definition(task("one", "two"), task("two"), end(), id="line")


async def edit(driver: Driver, instance: str, given: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    raw = msgspec.Raw(msgspec.json.encode(given or {}))
    view = await driver.engine.repair.edit_variables(instance, VariablesEdit(set=raw, **fields))
    return read(view.variables)


def read(variables: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(variables)
    return found


async def test_a_waiting_instances_variables_are_set_and_removed(driver: Driver) -> None:
    instance = await driver.run(ASKED, {"a": 1, "b": {"deep": True}, "c": 3})
    assert await edit(driver, instance, {"a": 2, "d": None}, remove=["c", "never there"]) == {
        "a": 2, "b": {"deep": True}, "d": None
    }  # fmt: skip
    await driver.finish_task(instance, "ask", {"e": 5})
    job = await driver.one("work")
    assert read(job.variables) == {"a": 2, "b": {"deep": True}, "d": None, "e": 5}
    assert find_broken(driver.dsn) == []


async def test_what_was_written_before_is_under_the_edit(driver: Driver) -> None:
    """Outputs, folded and not, are in what is edited, and never come back."""
    body = definition(
        gateway("fork", "u", "t"), user("u", "join"), task("t", "t2"), task("t2", "join"), joining(), end()
    )
    instance = await driver.run(body, {"a": 1})
    await driver.complete(await driver.one("t"), {"b": 2, "x": 1})
    driver.engine.full_path.submit_nowait(FoldCommand(int(instance, 16), lambda: None))
    await driver.engine.full_path.wait_flushed()
    job = await driver.one("t2")
    assert await edit(driver, instance, {"a": "new"}, remove=["b"]) == {"a": "new", "x": 1}
    await driver.complete(job, {"x": 2})
    assert await driver.variables(instance) == {"a": "new", "x": 2}
    assert await edit(driver, instance, {}, remove=["a"]) == {"x": 2}
    assert await edit(driver, instance, {"a": 3}) == {"a": 3, "x": 2}
    assert find_broken(driver.dsn) == []


async def test_a_failed_instance_goes_on_with_what_was_edited(driver: Driver) -> None:
    instance = await driver.run(LINE, {"amount": "x"})
    await driver.complete(await driver.one("one"), {"seen": 1})
    await driver.fail(await driver.one("two"), retryable=False)
    assert await edit(driver, instance, {"amount": 3}, note="was a typo") == {"amount": 3, "seen": 1}
    with pytest.raises(BadRequest, match="note"):
        await driver.engine.instances.retry(instance, "x" * 5_000)
    await driver.engine.instances.retry(instance, "the amount was wrong")
    records = (await driver.engine.instances.audit(instance)).items
    assert [record.detail for record in records if record.kind == "RETRIED"] == ["the amount was wrong"]
    assert read((await driver.one("two")).variables) == {"amount": 3, "seen": 1}
    audit = (await driver.engine.instances.audit(instance)).items
    assert [record.detail for record in audit if record.kind == "VARIABLES_EDITED"] == ["amount=3: was a typo"]


async def test_what_is_under_way_or_over_is_not_edited(driver: Driver) -> None:
    instance = await driver.run(LINE)
    with pytest.raises(Conflict, match="ACTIVE"):
        await edit(driver, instance, {"a": 1})
    await driver.cancel(instance)
    with pytest.raises(Conflict, match="CANCELLED"):
        await edit(driver, instance, {"a": 1})
    with pytest.raises(NotFound):
        await edit(driver, "1f", {"a": 1})
    assert driver.rows("SELECT count(*) FROM variables_edit") == [(0,)]


async def test_an_edit_that_says_nothing_sensible_is_refused(make_driver: MakeDriver) -> None:
    driver = make_driver(instance_variables_max_bytes=70_000)
    instance = await driver.run(ASKED, {"a": 1})
    before = driver.snapshot()
    bad: list[dict[str, Any]] = [
        {},
        {"given": {}},
        {"given": {"a": 1}, "remove": ["a"]},
        {"given": {"a": 1}, "if_version": "-1"},
        {"remove": ["x"] * 3 + [str(n) for n in range(1_001)]},
        {"remove": ["nul \0"]},
        {"given": {"a": 1}, "note": "n" * 5_000},
    ]
    for fields in bad:
        with pytest.raises(BadRequest):
            await edit(driver, instance, **fields)
    with pytest.raises(PayloadTooLarge, match="70000"):
        await edit(driver, instance, {"big": [str(n) for n in range(20_000)]})
    assert driver.snapshot() == before


async def test_of_two_editors_the_second_is_reported(driver: Driver) -> None:
    instance = await driver.run(ASKED, {"a": 1})
    assert await edit(driver, instance, {"a": 2}, if_version="0") == {"a": 2}
    with pytest.raises(Conflict, match="ifVersion"):
        await edit(driver, instance, {"a": 3}, if_version="0")
    assert await driver.variables(instance) == {"a": 2}
