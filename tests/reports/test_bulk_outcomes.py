"""Issue 39, point 15: a bulk operation told "5 done" and not what became of the five, and counts before an act ended at
10,000."""

from __future__ import annotations

import pytest
import typer

from penstock.cli import bulk as commands
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.repair import bulk
from penstock.errors import BadRequest
from penstock.testing.definitions import linear
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.repair import BulkOutcome
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_bulk import fail_some, finish

__all__ = ["make_driver"]

NO_TEXTS = ("definition_version", "started_after", "started_before")
"""Of a filter's fields."""


async def listed(driver: Driver, bulk_id: str, status: str | None) -> set[str]:
    open_only = status == "OPEN"
    wanted = InstanceFilter(bulk_id=bulk_id, open=open_only, status=None if open_only else status)
    found = await driver.engine.instances.find_slice(wanted, None, 10)
    return {f"{number:x}" for number in found.items}


async def test_it_tells_what_became_of_the_instances(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    failed = await fail_some(driver, 4)
    made = await driver.engine.bulk.create(BulkRequest(action="retry", filter=BulkFilter(status="FAILED")))
    await finish(driver, made.id)
    assert (await driver.engine.bulk.get(made.id)).outcome == BulkOutcome(running=4)
    first, second = await driver.one("work"), await driver.one("work")
    await driver.complete(first)
    await driver.fail(second, "no paper again", retryable=False)
    open_ones = [id for id in failed if await driver.status(id) == "ACTIVE"]
    await driver.cancel(open_ones[0])
    assert (await driver.engine.bulk.get(made.id)).outcome == BulkOutcome(1, 1, 1, 1)
    assert await listed(driver, made.id, None) == set(failed)
    assert await listed(driver, made.id, "COMPLETED") == {first.instance_id}
    assert await listed(driver, made.id, "FAILED") == {second.instance_id}
    assert await listed(driver, made.id, "CANCELLED") == {open_ones[0]}
    assert await listed(driver, made.id, "OPEN") == {open_ones[1]}
    assert await listed(driver, "999", None) == set()
    view = await driver.engine.bulk.get(made.id)
    assert commands._became(view) == [
        "since then: 1 completed, 1 failed again, 1 still running, 1 cancelled",
        f"  penstock instance list --bulk {made.id} --status FAILED",
        f"  penstock instance list --bulk {made.id} --open",
    ]
    for wrong in (
        InstanceFilter(bulk_id="x"),
        InstanceFilter(bulk_id=made.id, flow_key="a"),
        InstanceFilter(open=True),
    ):
        with pytest.raises(BadRequest):
            await driver.engine.instances.find_slice(wrong, None, 10)


async def test_what_an_act_would_meet_is_counted_exactly(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SUMMARIES_MAX", 2)
    monkeypatch.setattr(bulk, "PAGE_MAX", 1)
    monkeypatch.setattr(bulk, "COUNTED_AT_ONCE", 3)
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    for _ in range(9):
        await driver.start("linear")
    request = BulkRequest(action="cancel", filter=BulkFilter(definition_id="linear"), dry_run=True)
    found = await driver.engine.bulk.preview(request)
    assert (found.count, found.exact) == (9, True)
    monkeypatch.setattr(bulk, "COUNT_MAX", 5)
    found = await driver.engine.bulk.preview(request)
    assert (found.count, found.exact) == (5, False)


@pytest.mark.parametrize("name", ["failed-step", "cause", "error-contains"])
def test_filters_of_failures_imply_the_status(name: str) -> None:
    given = [f"{name}=pay", "definition=loan"]
    found = commands._filter(given, "--filter")
    assert found is not None
    assert (found.status, found.definition_id) == ("FAILED", "loan")
    found = commands._filter([*given, "status=failed"], "--filter")
    assert found is not None
    assert found.status == "FAILED"
    with pytest.raises(typer.BadParameter, match="failed-steps"):
        commands._filter(["failed-steps=pay"], "--filter")


@pytest.mark.parametrize("name", [field for field in BulkFilter.__struct_fields__ if field not in NO_TEXTS])
async def test_a_filter_that_is_empty_never_means_all(make_driver: MakeDriver, name: str) -> None:
    """As of a script's variable that is not set."""
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    await fail_some(driver, 2)
    given = {"status": "FAILED", "definition_id": "linear", name: ""}
    request = BulkRequest(action="retry", filter=BulkFilter(**given))  # type: ignore[arg-type]  # its fields of texts
    try:
        found = await driver.engine.bulk.preview(request)
    except BadRequest:
        return
    assert (found.count, found.exact) == (0, True)
