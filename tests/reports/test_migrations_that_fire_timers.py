"""Migrating to a version with a shorter boundary timer fired it at once, and neither impact nor dry run said so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import BadRequest
from penstock.testing.definitions import definition, end, service, timer
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.edits import MigrationRequest
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_bulk import finish
from tests.shapes import user

__all__ = ["driver", "make_driver"]

MINUTE, HOUR = 60, 3_600


def waits(duration: str, other: str = "P9D") -> dict[str, Any]:
    events = [timer("late", duration, interrupting=True), timer("mail", other)]
    return definition(
        user("ask", boundaryEvents=events), service("late", "end", job_type="late"), service("mail", None), end()
    )


@pytest.mark.parametrize(
    ("rule", "due", "fires_after"),
    [(None, 1, 0), ("FROM_ENTRY", 1, 0), ("KEEP_DEADLINE", 0, 70 * HOUR), ("FROM_NOW", 0, HOUR)],
)
async def test_the_request_says_when_a_shorter_timer_fires(
    driver: Driver, rule: Any, due: int, fires_after: int
) -> None:
    instance = await driver.run(waits("PT72H"))
    assert await driver.due(2 * HOUR) == 0
    await driver.upload(waits("PT1H"))
    request = MigrationRequest(timers=rule)
    assert (await driver.engine.migrations.check(instance, request)).timers_due == due
    await driver.engine.migrations.migrate(instance, request)
    if fires_after:
        assert await driver.due(fires_after - MINUTE) == 0
    assert await driver.due(MINUTE) == 1
    assert await driver.open_steps(instance) == ["late"]


async def test_impact_and_bulk_count_the_timers_that_would_be_due(driver: Driver) -> None:
    instances = [await driver.run(waits("PT72H")) for _ in range(3)]
    await driver.due(2 * HOUR)
    new = await driver.start("test")
    shorter = await driver.upload(waits("PT1H"))
    assert shorter.content
    impact = await driver.engine.impact.of("test", 0)
    assert impact.refusals is not None
    assert (impact.refusals.checked, impact.refusals.refused, impact.refusals.timers_due) == (4, 0, 3)
    wanted = BulkRequest(action="migrate", filter=BulkFilter(definition_id="test"))
    for rule, due in ((None, 3), ("FROM_ENTRY", 3), ("KEEP_DEADLINE", 0), ("FROM_NOW", 0)):
        preview = await driver.engine.bulk.preview(msgspec.structs.replace(wanted, timers=rule))
        assert preview.refusals is not None
        assert (preview.refusals.checked, preview.refusals.timers_due) == (4, due)
    made = await driver.engine.bulk.create(msgspec.structs.replace(wanted, timers="FROM_NOW"))
    await finish(driver, made.id)
    assert await driver.due(HOUR - MINUTE) == 0
    assert await driver.due(MINUTE) == 4
    assert [await driver.open_steps(one) for one in (*instances, new.id)] == [["late"]] * 4


async def test_what_is_due_anyway_or_as_it_was_is_not_counted(driver: Driver) -> None:
    instance = await driver.run(waits("PT1H", other="PT1H"))
    driver.clock.advance(2 * HOUR)
    await driver.upload(waits("PT30M", other="PT1H"))
    check = await driver.engine.migrations.check(instance, MigrationRequest())
    assert (check.possible, check.timers_due) == (True, 0)


@pytest.mark.parametrize("rule", ["from_now", "NOW", "", " "])
async def test_another_word_is_refused(driver: Driver, rule: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"timers": rule}), type=MigrationRequest)
    if rule:
        wanted = BulkRequest(action="migrate", filter=BulkFilter(definition_id="test"), timers=rule)
        with pytest.raises(BadRequest, match="timers: must be one of FROM_ENTRY, KEEP_DEADLINE, FROM_NOW"):
            await driver.engine.bulk.preview(wanted)
