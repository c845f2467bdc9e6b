"""What a definition says of its starts holds for all callers: docs/starts.md."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.instances.batches import BatchStart
from penstock.engine.starts.start_item import StartItem
from penstock.engine.starts.starts import STARTS_PER_KEY
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, Throttled
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import TryAgain
from penstock.testing.definitions import linear
from penstock.wire.model import StartRequest
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.start import Dedupe
from tests.engine.driver import Driver, variables_of
from tests.engine.test_start_rules import PAGE, old_engine

[BODY] = re.findall(r"## For all callers.*?```json\n(.*?)```", PAGE, re.DOTALL)
SYNC: dict[str, Any] = msgspec.json.decode(BODY)


def line(start: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return linear(1, definition_id="line") | {"start": start} | fields


async def test_one_of_those_that_come_close_together_begins(driver: Driver) -> None:
    driver.clock.stop()
    await driver.upload(SYNC)
    first = await driver.start("sync", {"customer": {"id": 7}, "a": 1})
    again = await driver.start("sync", {"customer": {"id": 7}, "b": 2})
    other = await driver.start("sync", {"customer": {"id": 8}}, idempotency_key="k")
    assert (again.id, again.deduplicated, other.deduplicated) == (first.id, True, None)
    assert await driver.start("sync", {"customer": {"id": 8}}, idempotency_key="k") == other
    with pytest.raises(IdempotencyConflict):
        await driver.start("sync", {"customer": {"id": 9}}, idempotency_key="k")
    await driver.due(30)
    jobs = await driver.poll("sync")
    given = [variables_of(job) for job in jobs]  # both began at one time: in either order
    assert sorted(given, key=len, reverse=True) == [
        {"customer": {"id": 7}, "a": 1, "b": 2},
        {"customer": {"id": 8}},
    ]


async def test_a_limit_holds_for_all_and_in_batches(driver: Driver) -> None:
    driver.clock.stop()
    await driver.upload(line({"throttle": {"key": "all", "limit": 2, "period": "PT1M"}}))
    items = [StartRequest(definition_id="line", variables=b"{}") for _ in range(3)]
    results = await driver.engine.instances.start_batch(items)
    assert [result.error for result in results] == [None, None, "throttled"]
    made = await driver.engine.batches.create(BatchStart(items))
    await driver.engine.batches.step()
    assert (await driver.engine.batches.get(made.id)).refused == 3
    with pytest.raises(BadRequest, match="throttle: the definition says it"):
        await driver.engine.instances.start(
            msgspec.json.decode(b'{"definitionId": "line", "throttle": {"key": "mine", "limit": 9}}', type=StartRequest)
        )
    with pytest.raises(Throttled):
        await driver.start("line", dedupe=Dedupe("once", "PT1H"))


async def test_many_at_once_have_one_window(driver: Driver) -> None:
    await driver.upload(line({"dedupe": {"key": "${order}", "window": "PT1H"}}))
    count = STARTS_PER_KEY + 20
    items = [StartRequest(definition_id="line", variables=b'{"order": "4711"}') for _ in range(count)]
    results = await driver.engine.instances.start_batch(items)
    assert len({result.instance and result.instance.id for result in results}) == 1
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_what_has_a_key_changes_queues_at_a_later_try(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try has loaded it, and then failed at another one of the batch."""
    await driver.upload(line({"dedupe": {"key": "${order}", "window": "PT1H"}}))
    await driver.upload(linear(1, definition_id="other"))
    definitions, starts = driver.engine.definitions, driver.engine.starts
    find, apply = definitions.find, starts._full.apply
    failed, commit_queues = list[str](), list[str]()

    async def fail_once(connection: TrioConnection, id: str, version: int) -> LoadedDefinition | None:
        if not failed:
            failed.append(id)
            raise TryAgain("once")
        return await find(connection, id, version)

    async def noted(
        commit_queue: GroupCommitQueue[StartItem], connection: TrioConnection, items: list[StartItem]
    ) -> None:
        commit_queues.append(commit_queue.name)
        await apply(commit_queue, connection, items)

    monkeypatch.setattr(definitions, "find", fail_once)
    monkeypatch.setattr(starts._full, "apply", noted)
    requests = [
        StartRequest(definition_id="line", variables=b'{"order": 1}'),
        StartRequest(definition_id="other", definition_version=1, variables=b"{}"),
    ]
    results = await driver.engine.instances.start_batch(requests)
    assert [result.error for result in results] == [None, None]
    assert (failed, commit_queues) == (["other"], ["keyed start"])


async def test_it_begins_when_its_variables_say(driver: Driver) -> None:
    driver.clock.stop()
    await driver.upload(line({"startAt": "${appointment}"}))
    at = driver.clock.now()
    made = await driver.start("line", {"appointment": at.replace(year=at.year + 1).isoformat()})
    assert (made.start_at, made.current_step_ids) == (at.replace(year=at.year + 1), [])
    for given, reason in (
        ({}, "start: `.*appointment.*`: "),
        ({"appointment": 7}, "start.startAt: must give text, not 7"),
        ({"appointment": "noon"}, "startAt: "),
    ):
        with pytest.raises(BadRequest, match=f"^{reason}"):
            await driver.start("line", given)
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_what_others_start_begins_at_once(driver: Driver) -> None:
    await driver.upload(line({"delay": "PT1H"}))
    await driver.engine.schedules.put("nightly", ScheduleSpec("line", every="P1D"))
    run = await driver.engine.schedules.trigger("nightly", None)
    assert await driver.open_steps(run.instance_id or "") == ["task-1"]
    assert (await driver.start("line")).current_step_ids == []


async def test_older_engines_are_asked_first(driver: Driver) -> None:
    old_engine(driver)
    with pytest.raises(Conflict):
        await driver.upload(line({"delay": "PT1H"}))
