"""Schedules that come from a file as an engine starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadRequest
from penstock.runtime.schedules_file import apply_schedules
from tests.engine.conftest import MakeDriver, make_driver

__all__ = ["make_driver"]  # pytest finds the fixture here

FILE = """
nightly:
  definitionId: report
  cron: ["0 2 * * *"]
  timeZone: Europe/Berlin
  variables: {kind: daily}
hourly:
  definitionId: sync
  every: PT1H
  anchor: 2026-05-04T00:10:00Z
"""


async def test_each_is_put_and_others_stay(make_driver: MakeDriver, tmp_path: Path) -> None:
    driver = make_driver()
    schedules = driver.engine.schedules
    file = tmp_path / "schedules.yaml"
    file.write_text(FILE)
    assert await apply_schedules(schedules, str(file)) == 2
    await schedules.pause("nightly", "by hand")
    before = driver.rows("SELECT name, spec, done_until FROM schedule ORDER BY name")
    file.write_text(FILE.replace("hourly", "other"))
    assert await apply_schedules(schedules, str(file)) == 2
    shown = [(one.id, one.paused) for one in (await schedules.list(None, 10)).items]
    assert shown == [("hourly", False), ("nightly", True), ("other", False)]
    assert driver.rows("SELECT name, spec, done_until FROM schedule WHERE name <> 'other' ORDER BY name") == before
    assert driver.rows("SELECT spec->>'anchor' FROM schedule WHERE name = 'hourly'") == [("2026-05-04T00:10:00Z",)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "must map ids of schedules to what they say"),
        ("a: [", "can't be read: "),
        ("a: {definitionId: x, every: PT1H, timezone: UTC}", "a: timezone is not a field of a schedule"),
        ("a: {definitionId: x, every: 5}", "a: "),
        ("a: {definitionId: x, every: PT0S}", "every: "),
    ],
)
async def test_a_file_that_makes_no_sense_is_refused(
    make_driver: MakeDriver, tmp_path: Path, text: str, says: str
) -> None:
    driver = make_driver()
    file = tmp_path / "schedules.yaml"
    file.write_text(text)
    with pytest.raises(BadRequest) as refused:
        await apply_schedules(driver.engine.schedules, str(file))
    assert says in refused.value.reason
    assert driver.rows("SELECT count(*) FROM schedule") == [(0,)]
