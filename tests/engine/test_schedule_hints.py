"""What the answer to a put or a backfill says it will do, and that it is so."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.testing.definitions import linear
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.test_schedules import HOUR_S, begun, last_full_hour, settle, spec, started


@pytest.mark.parametrize(
    ("overlap", "begun_in_all", "says"),
    [
        (None, 1, "the first is started, and those that come while its run is open are skipped; overlap BUFFER_ALL"),
        ("BUFFER_ONE", 2, "the first is started, one waits for its end, and others are skipped meanwhile; "),
        ("CANCEL_OTHER", 1, "the last is started, and the others are skipped; "),
        ("BUFFER_ALL", 3, None),
        ("ALLOW", 3, None),
    ],
)
async def test_a_put_tells_what_catching_up_will_start(
    make_driver: MakeDriver, overlap: str | None, begun_in_all: int, says: str | None
) -> None:
    driver = make_driver()
    made = await begun(driver, catch_up="ALL", overlap=overlap)
    assert (made.hint is None) if says is None else (says in (made.hint or ""))
    driver.clock.advance(3 * HOUR_S)
    after = make_driver()  # the other one slept over three times
    await settle(after)
    while jobs := await after.poll("work"):
        for job in jobs:
            await after.complete(job)
        await settle(after)
    assert len(started(after)) == begun_in_all


async def test_hints_are_of_the_answer_alone(driver: Driver) -> None:
    assert (await begun(driver, catch_up="ALL")).hint is not None
    assert (await driver.engine.schedules.get("nightly")).hint is None
    assert (await driver.engine.schedules.put("nightly", spec())).hint is None


async def test_a_put_tells_that_its_definition_is_not_there(driver: Driver) -> None:
    made = await driver.engine.schedules.put("s", spec(definition_id="typo"))
    assert made.hint == "there is no definition 'typo' yet: until there is, its times are recorded as FAILED"
    await driver.upload(linear(1, definition_id="typo"))
    assert (await driver.engine.schedules.put("s", spec(definition_id="typo"))).hint is None


async def test_a_backfill_tells_how_many_times_it_has(driver: Driver) -> None:
    await begun(driver)
    hour = last_full_hour(driver)
    span = [(hour - timedelta(hours=hours)).isoformat() for hours in (2, 0)]
    first, last = (text.replace("+00:00", "Z") for text in span)
    asked = await driver.engine.schedules.backfill("nightly", *span, None)
    assert asked.hint == f"3 times, {first} to {last}, started all at once; those of its latest runs are left out"
    await settle(driver)
    assert len(started(driver)) == 3
    asked = await driver.engine.schedules.backfill("nightly", span[1], span[1], "BUFFER_ALL")
    assert (asked.hint or "").startswith(f"1 time, {last} to {last}, started one after the other; ")
