"""Issue 39, point 17: who paused, changed, uploaded or made a token stood in a table that nobody could read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.access.identity import Identity, set_identity
from penstock.core.parsing.parsing import parse_definition
from penstock.errors import BadRequest
from penstock.settings import Secret
from penstock.store.rows import audit
from penstock.testing.definitions import linear
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.edits import VariablesEdit
from penstock.wire.queue import QueuePolicy
from penstock.wire.repair_v1 import ListAuditRequest
from penstock.wire.schedule import ScheduleSpec
from tests.engine.conftest import MakeDriver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_encryption import KEYS

__all__ = ["make_driver"]


async def trail(driver: Driver, **wanted: Any) -> list[AuditTrailRecord]:
    return (await driver.engine.audit_trail.list(ListAuditRequest(limit=100, **wanted))).items


async def test_changes_are_listed_with_who_and_with_old_and_new_values(make_driver: MakeDriver) -> None:
    driver = make_driver()
    engine = driver.engine
    set_identity(Identity("token:ada", frozenset()))
    try:
        for name in ("One", "Two"):
            body = linear(1, definition_id="loan", job_type="work") | {"name": name}
            await engine.definitions.upload(parse_definition(msgspec.json.encode(body)))
        await engine.definitions.activate("loan", 1)
        await engine.queues.put("crm", QueuePolicy(["work"], concurrency=3))
        await engine.queues.put("crm", QueuePolicy(["work"], concurrency=5))
        await engine.queues.pause("crm", paused=True)
        await engine.schedules.put("nightly", ScheduleSpec(definition_id="loan", every="PT1H"))
        await engine.schedules.put("nightly", ScheduleSpec(definition_id="loan", every="PT2H"))
        await driver.cancel((await driver.start("loan")).id)
    finally:
        set_identity(None)
    found = await trail(driver)
    assert {one.actor for one in found} == {"token:ada"}
    assert [one.at for one in found] == sorted((one.at for one in found), reverse=True)
    last = {one.kind: one for one in reversed(found)}
    assert '"concurrency":5' in (last["QUEUE_CHANGED"].detail or "").replace(" ", "")
    assert '"concurrency":3' in (last["QUEUE_CHANGED"].old or "").replace(" ", "")
    assert "PT2H" in (last["SCHEDULE_CHANGED"].detail or "")
    assert "PT1H" in (last["SCHEDULE_CHANGED"].old or "")
    assert (last["DEFINITION_ACTIVATED"].detail, last["DEFINITION_ACTIVATED"].old) == ("loan version 1", "version 2")
    assert last["QUEUE_PAUSED"].detail == "crm"
    assert any(one.instance_id is not None for one in found)
    assert {"DEFINITION_UPLOADED", "QUEUE_PAUSED"} <= last.keys()
    assert [one.kind for one in await trail(driver, kind="QUEUE_PAUSED")] == ["QUEUE_PAUSED"]
    assert {one.kind for one in await trail(driver, contains="NIGHT")} == {"SCHEDULE_CHANGED"}
    assert await trail(driver, actor="token:eve") == []
    assert await trail(driver, until=found[-1].at) == []
    assert len(await trail(driver, since=found[-1].at)) == len(found)


async def test_pages_meet_every_record_once_also_where_few_match(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    for number in range(7):
        await driver.engine.queues.put(
            "a" if number == 6 else "b", QueuePolicy([f"t-{number}"], concurrency=number + 1)
        )
    monkeypatch.setattr(audit, "SCANNED_MAX", 3)
    cases: tuple[tuple[dict[str, Any], int], ...] = (({}, 7), ({"contains": "a:"}, 1), ({"contains": "nobody"}, 0))
    for wanted, count in cases:
        seen: list[AuditTrailRecord] = []
        cursor: str | None = None
        for _ in range(9):
            page = await driver.engine.audit_trail.list(ListAuditRequest(cursor=cursor, limit=2, **wanted))
            seen += page.items
            cursor = page.next
            if cursor is None:
                break
        assert cursor is None
        assert len(seen) == len({msgspec.json.encode(one) for one in seen}) == count
    for wrong in ("x", "-1", "9" * 30):
        with pytest.raises(BadRequest):
            await driver.engine.audit_trail.list(ListAuditRequest(cursor=wrong, limit=2))


async def test_job_types_of_queues_and_variables_of_schedules_are_reported(make_driver: MakeDriver) -> None:
    """Of the variables there are the names; those of secret ones are no secret."""
    driver = make_driver()
    engine = driver.engine
    for types in (["pay"], ["pay", "bill"], []):
        await engine.queues.put("crm", QueuePolicy(types, concurrency=3))
    found = await trail(driver, kind="QUEUE_CHANGED")
    assert [(one.old, one.detail) for one in found] == [
        ('{"concurrency":3,"jobTypes":["bill","pay"]}', 'crm: {"concurrency":3}'),
        ('{"concurrency":3,"jobTypes":["pay"]}', 'crm: {"concurrency":3,"jobTypes":["bill","pay"]}'),
        (None, 'crm: {"concurrency":3,"jobTypes":["pay"]}'),
    ]
    for given in (b'{"amount":1,"pin":4711}', b'{"amount":2,"pin":4711}', b'{"amount":2}', b'{"amount":2}'):
        spec = ScheduleSpec(definition_id="loan", every="PT1H", variables=msgspec.Raw(given))
        await engine.schedules.put("nightly", spec)
    details = [one.detail or "" for one in await trail(driver, kind="SCHEDULE_CHANGED")]
    reported = [detail.partition("}; variables: ")[2] for detail in details]
    assert reported == ["", "-pin", "amount", "amount, pin"]
    assert await trail(driver, contains="4711") == []


async def test_priority_and_variables_have_their_old_and_new_values(make_driver: MakeDriver) -> None:
    """But those that people's pages do not show, of which there are the names."""
    driver = make_driver(console_hide_variables=("pin*",))
    await driver.upload(linear(1, definition_id="loan", job_type="work"))
    id = (await driver.start("loan", {"amount": "25 EUR", "pin": 4711, "old": [1], "keep": 1})).id
    await driver.engine.repair.set_priority(id, 3)
    await driver.engine.repair.set_priority(id, 1)
    await driver.fail(await driver.one("work"), retryable=False)
    given = msgspec.Raw(b'{"amount":25,"pin":1,"new":"' + b"x" * 300 + b'"}')
    await driver.engine.repair.edit_variables(id, VariablesEdit(given, ["old", "none"], note="a typo"))
    priorities = await trail(driver, kind="PRIORITY_CHANGED")
    assert [(one.old, one.detail) for one in priorities] == [("3", "1"), ("none of its own", "3")]
    (edited,) = await trail(driver, kind="VARIABLES_EDITED")
    assert edited.old == 'old=[1], pin, amount="25 EUR"'
    assert edited.detail == f'amount=25, pin, new="{"x" * 199}…, -none, -old: a typo'
    assert (await trail(driver, contains="4711")) == []


async def test_of_encrypted_variables_the_audit_trail_has_the_names(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    await driver.upload(linear(1, definition_id="loan", job_type="work"))
    id = (await driver.start("loan", {"amount": "25 EUR"})).id
    await driver.fail(await driver.one("work"), retryable=False)
    await driver.engine.repair.edit_variables(id, VariablesEdit(msgspec.Raw(b'{"amount":26}')))
    assert driver.rows("SELECT detail, old FROM audit WHERE kind = 'VARIABLES_EDITED'") == [("amount", None)]
