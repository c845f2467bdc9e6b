"""Who changed a schedule, and what they asked of it, stands in the audit trail."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from penstock.access.identity import Identity, set_identity
from penstock.api.permission import Permission
from penstock.engine.schedules import firings
from penstock.errors import Conflict, NotFound
from tests.engine.driver import Driver
from tests.engine.test_schedules import begun, last_full_hour


async def test_whoever_changes_a_schedule_is_in_the_audit_trail(driver: Driver) -> None:
    made = await begun(driver)
    hour = last_full_hour(driver)
    set_identity(Identity("ann", frozenset({Permission.OPERATE})))
    schedules = driver.engine.schedules
    await schedules.pause("nightly", "the bank is away")
    await schedules.trigger("nightly", None)
    await schedules.resume("nightly")
    await schedules.backfill("nightly", _iso(hour - timedelta(hours=2)), _iso(hour), None)
    with pytest.raises(Conflict):
        await schedules.backfill("nightly", _iso(hour), _iso(hour), None)
    await schedules.delete("nightly")
    for operation in (schedules.pause("nightly", None), schedules.resume("nightly"), schedules.delete("nightly")):
        with pytest.raises(NotFound):
            await operation
    found = driver.rows("SELECT kind, actor, detail FROM audit WHERE starts_with(kind, 'SCHEDULE') ORDER BY pos")
    assert found[0][:2] == ("SCHEDULE_CHANGED", None)
    assert found[0][2].startswith(f'nightly: {{"definitionId":"{made.definition_id}"')
    assert found[1:] == [
        ("SCHEDULE_PAUSED", "ann", "nightly: the bank is away"),
        ("SCHEDULE_TRIGGERED", "ann", "nightly: STARTED"),
        ("SCHEDULE_RESUMED", "ann", "nightly"),
        ("SCHEDULE_BACKFILLED", "ann", f"nightly: {_iso(hour - timedelta(hours=2))} to {_iso(hour)}"),
        ("SCHEDULE_DELETED", "ann", "nightly"),
    ]


async def test_a_trigger_is_no_part_of_a_full_look(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(driver)
    monkeypatch.setattr(firings, "STARTS_MAX", 0)  # others have taken them all
    assert (await driver.engine.schedules.trigger("nightly", None)).outcome == "STARTED"


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
