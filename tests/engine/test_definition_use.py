"""What people see of a definition's use: its versions, where instances stand, whom a new version would not fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.core.parsing.parsing import parse_definition
from penstock.engine.requests import ids
from penstock.errors import BadRequest, NotFound
from penstock.store.rows import definition_use as store
from penstock.testing.definitions import definition, end, service
from penstock.wire.definition_use import DefinitionActivity, VersionCounts
from penstock.wire.repair import BulkRefusals, ChangedSteps, StepImpact
from tests.engine.driver import Driver
from tests.shapes import gateway, joining, task, user

FIRST = definition(task("pay", "ship"), task("ship", "tell"), user("tell"), end(), id="order")
SECOND = definition(task("pay", "ship"), task("ship", "tell", retryCount=7), user("tell"), end(), id="order")
FORKED = definition(gateway("fork", "a", "b"), task("a", "join"), user("b", "join"), joining(), end(), id="forked")


def parsed(body: dict[str, Any]) -> Any:
    return parse_definition(msgspec.json.encode(body))


async def test_versions_are_listed_newest_first(driver: Driver) -> None:
    for body in (FIRST, SECOND, definition(task("pay"), end(), id="order", name="Shorter")):
        await driver.upload(body)
    use = driver.engine.definition_use
    page = await use.versions("order", None, 2)
    assert [(one.version, one.name) for one in page.items] == [(3, "Shorter"), (2, "test")]
    page = await use.versions("order", page.next, 2)
    assert ([one.version for one in page.items], page.next) == ([1], None)
    with pytest.raises(NotFound):
        await use.versions("nothing", None, 2)
    with pytest.raises(BadRequest, match="cursor"):
        await use.versions("order", "x", 2)


async def test_instances_of_versions_are_counted_by_status(driver: Driver) -> None:
    use = driver.engine.definition_use
    await driver.upload(FORKED)
    first = [(await driver.start("forked")).id for _ in range(3)]
    await driver.upload(FORKED | {"name": "again"})
    await driver.start("forked")
    await driver.cancel(first[0])
    (newer,) = (await use.counts("forked", None, 1)).items
    page = await use.counts("forked", None, 20)
    assert page.items[0] == newer == VersionCounts(version=2, total=1, waiting=1)
    assert page.items[1:] == [VersionCounts(version=1, total=3, waiting=2, cancelled=1)]
    assert (await use.counts("forked", "2", 20)).items == page.items[1:]
    with pytest.raises(NotFound):
        await use.counts("nothing", None, 1)


async def test_each_definition_of_a_list_tells_what_goes_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    use = driver.engine.definition_use
    await driver.upload(FORKED)
    await driver.upload(FIRST)
    first = [(await driver.start("forked")).id for _ in range(3)]
    await driver.upload(FORKED | {"name": "again"})
    await driver.start("forked")
    await driver.cancel(first[0])
    await driver.fail(await driver.one("a"), "no", retryable=False)
    page = await use.activity(None, None, 1)
    [one] = page.items
    assert one == DefinitionActivity("forked", 2, 4, 1, one.counted_at)
    last = await use.activity(None, page.next, 1)
    [other] = last.items
    assert (other, last.next) == (DefinitionActivity("order", 0, 0, 0, other.counted_at), None)
    assert (await use.activity("fork", None, 50)).items == page.items
    monkeypatch.setattr("penstock.engine.instances.definition_use.RECENT_MAX", 2)
    assert [one.started_within_hour for one in (await use.activity(None, None, 50)).items] == [2, 0]
    monkeypatch.setattr("penstock.engine.instances.definition_use.RECENT", timedelta(0))
    assert [one.failed_of_these for one in (await use.activity(None, None, 50)).items] == [0, 0]


async def test_many_failures_of_one_definition_are_walked_once(driver: Driver) -> None:
    for number in range(5):
        await driver.upload(FIRST | {"id": f"order-{number}"})
    since, listed = ids.first_instance(datetime.now(UTC)), [f"order-{number}" for number in range(5)]
    async with driver.engine.database.connection() as connection, connection.transaction(force_rollback=True):
        await connection.fetch(
            "INSERT INTO abnormal_end (status, instance_id, definition)"
            " SELECT 2, $1::bigint + n, CASE WHEN n < 3 THEN d.key ELSE 0 END"
            " FROM generate_series(1, 1000) AS n, definition d WHERE d.id = 'order-1'",
            (since,),
        )
        found = await store.recent(connection, listed, since, most=1_000, versions=20)
        [(read,)] = await connection.fetch("SELECT pg_stat_get_xact_tuples_fetched('abnormal_end_pkey'::regclass)")
    assert [(one.id, one.failed) for one in found if one.failed] == [("order-1", 2)]
    assert read == 1_000, "not anew for each version of each definition"


async def test_beyond_ten_thousand_instances_a_sample_is_reported(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "COUNTED_MAX", 2)
    await driver.upload(FORKED)
    for _ in range(4):
        await driver.start("forked")
    (counted,) = (await driver.engine.definition_use.counts("forked", None, 1)).items
    assert counted == VersionCounts(version=1, total=4, waiting=4, total_is_estimate=True)  # all pages of a small table


async def test_what_stands_on_each_step_is_counted(driver: Driver) -> None:
    await driver.upload(FORKED)
    for _ in range(3):
        await driver.start("forked")
    await driver.complete(await driver.one("a"))
    found = await driver.engine.definition_use.tokens("forked", 0)
    assert {step.step_id: step.open for step in found.steps} == {"fork": 3, "a": 2, "b": 3}
    assert (found.instances, found.sampled) == (3, False)
    await driver.start("forked")
    assert (await driver.engine.definition_use.tokens("forked", 1)).instances == 3, "kept for a minute"
    with pytest.raises(NotFound):
        await driver.engine.definition_use.tokens("forked", 9)


async def test_versions_tell_their_open_instances_once_counted(driver: Driver) -> None:
    await driver.upload(FIRST)
    for _ in range(2):
        await driver.start("order")
    await driver.upload(SECOND)
    await driver.start("order")
    use = driver.engine.definition_use
    assert [one.open for one in (await use.versions("order", None, 10)).items] == [None, None]
    await use.tokens("order", 0)
    assert [(one.version, one.open) for one in (await use.versions("order", None, 10)).items] == [(2, 1), (1, 2)]


async def test_versions_tell_their_own_open_instances_only(driver: Driver) -> None:
    """Two definitions of two versions each: the keys of the one are version numbers of the other."""
    for body in (FORKED, FIRST, FORKED | {"name": "again"}, SECOND):
        await driver.upload(body)
    started = {("order", 1): 1, ("order", 2): 2, ("forked", 1): 3, ("forked", 2): 4}
    for (id, version), count in started.items():
        for _ in range(count):
            await driver.start(id, definition_version=version)
    use = driver.engine.definition_use
    await use.tokens("order", 0)
    found = {
        (id, one.version): one.open for id in ("order", "forked") for one in (await use.versions(id, None, 9)).items
    }
    assert found == started


async def test_a_step_tells_how_many_failed_there(driver: Driver) -> None:
    await driver.upload(FIRST)
    for _ in range(3):
        await driver.start("order")
    await driver.complete(await driver.one("pay"))
    for job in [await driver.one("ship"), await driver.one("pay")]:
        await driver.fail(job, retryable=False)
    steps = (await driver.engine.definition_use.tokens("order", 1)).steps
    assert [(step.step_id, step.open, step.failed) for step in steps] == [("pay", 1, 1), ("ship", 0, 1)]


async def test_variables_in_use_have_types_and_counts(driver: Driver) -> None:
    await driver.upload(FIRST)
    use = driver.engine.definition_use
    assert (await use.variables("order")).items == []
    given: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": "1"}, {"a": None, "c": {"d": []}}, {"a": True, "e": [1]}]
    for variables in given:
        await driver.start("order", variables)
    found = await use.variables("order")
    assert found.of == 4
    assert [(one.name, one.types, one.found_in) for one in found.items] == [
        ("a", ["boolean", "null", "number", "string"], 4),
        ("b", ["string"], 1), ("c", ["object"], 1), ("e", ["array"], 1),
    ]  # fmt: skip
    with pytest.raises(NotFound):
        await use.variables("nothing")


async def test_of_very_many_a_sample_is_counted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SAMPLED_ABOVE", -1)
    await driver.run(FORKED)
    found = await driver.engine.definition_use.tokens("forked", 0)
    assert found.sampled
    assert found.instances % 10 == 0


async def test_impact_says_whom_a_new_version_would_not_fit(driver: Driver) -> None:
    await driver.upload(FIRST)
    ids = [(await driver.start("order")).id for _ in range(3)]
    job = await driver.one("pay")
    await driver.complete(job)
    await driver.upload(SECOND)
    newest = (await driver.start("order")).id
    impact = driver.engine.impact
    after = definition(task("pay", "send"), task("send", "tell"), user("tell"), end(), id="order")
    found = await impact.of("order", 0, parsed(after))
    assert found.steps == ChangedSteps(added=["send"], changed=["pay"], removed=["ship"])
    assert [(one.version, one.open, one.at_changed, one.at_removed) for one in found.versions] == [
        (2, 1, 1, 0), (1, 3, 2, 1)
    ]  # fmt: skip
    gone = "it stands on step 'ship': the version has no 'ship'; say which step it becomes"
    assert found.versions[1].steps == [
        StepImpact(step_id="pay", open=2, change="CHANGED", reasons=[]),
        StepImpact(step_id="ship", open=1, change="REMOVED", reasons=[gone]),
    ]
    assert found.refusals is not None
    assert (found.refusals.checked, found.refusals.refused) == (4, 1)
    (refused,) = found.refusals.instances
    assert (refused.instance_id, refused.from_version, refused.to_version, refused.reasons) == (
        job.instance_id, 1, 3, [gone],
    )  # fmt: skip
    assert {job.instance_id, newest} < {*ids, newest}
    same = await impact.of("order", 0, parsed(SECOND))
    assert same.steps == ChangedSteps()
    assert [(one.version, one.at_changed) for one in same.versions] == [(2, 0), (1, 1)]
    with pytest.raises(BadRequest, match="id: is 'order'"):
        await impact.of("other", 0, parsed(after))
    with pytest.raises(BadRequest, match="version: can't be combined"):
        await impact.of("order", 1, parsed(after))
    with pytest.raises(NotFound):
        await impact.of("new", 0, parsed({**after, "id": "new"}))
    assert len((await driver.engine.definition_use.versions("order", None, 9)).items) == 2, "nothing is stored"


async def test_impact_knows_instances_that_are_undone(driver: Driver) -> None:
    """They wait on a step of no definition's, which each version that undoes anything has."""
    handled = task("pay", "ship", compensation={"jobType": "refund"})
    body = definition(handled, task("ship"), end(), id="order", onFailure="COMPENSATE")
    await driver.run(body)
    await driver.complete(await driver.one("pay"))
    await driver.fail(await driver.one("ship"), retryable=False)
    found = await driver.engine.impact.of("order", 0, parsed({**body, "name": "again"}))
    assert found.refusals == BulkRefusals(checked=1, refused=0, instances=[])
    [version] = found.versions
    assert (version.open, version.at_changed, version.at_removed) == (1, 0, 0)
    assert [(step.step_id, step.change) for step in version.steps] == [
        ("pay/compensation", "SAME"), ("/compensation", "SAME"),
    ]  # fmt: skip


async def test_impact_of_an_uploaded_version_leaves_its_own_out(driver: Driver) -> None:
    """Those that wait for people are tried as well as those at work."""
    waits = definition(task("pay", "tell"), user("tell"), end(), id="order")
    await driver.upload(waits)
    first, second = [(await driver.start("order")).id for _ in range(2)]
    for job in await driver.poll("pay", n=1):
        await driver.complete(job)
    await driver.upload(definition(service("pay", "end", job_type="pay-2"), end(), id="order"))
    await driver.start("order")
    found = await driver.engine.impact.of("order", 0)
    assert found == await driver.engine.impact.of("order", 2)
    assert found.steps == ChangedSteps(changed=["pay"], removed=["tell"])
    (version,) = found.versions
    assert (version.version, [(step.step_id, step.open, bool(step.reasons)) for step in version.steps]) == (
        1, [("pay", 1, False), ("tell", 1, True)],
    )  # fmt: skip
    assert found.refusals is not None
    assert (found.refusals.checked, [check.instance_id for check in found.refusals.instances]) == (2, [first])
    await driver.poll("pay", n=1)  # a worker has it now, as a job of the old type
    held = (await driver.engine.impact.of("order", 2)).refusals
    assert held is not None
    assert {check.instance_id for check in held.instances} == {first, second}
    backwards = await driver.engine.impact.of("order", 1)
    assert [one.version for one in backwards.versions] == [2]
