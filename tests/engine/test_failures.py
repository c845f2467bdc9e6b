"""Failures by cause and place: lists, counts and groups, also of those that failed before causes were noted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.engine.instances.causes import cause_of
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.status import failures
from penstock.errors import BadRequest
from penstock.testing.definitions import definition, end, linear, service
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

REASONS = ("503 from bank 'north'", "504 from bank 'south'", 'no "paper" left', "odd")


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    """Of the definition `a` one failure for each reason at task-1 and one at task-2, of `b` one."""
    found = make_driver()
    await found.upload(linear(2, definition_id="a", job_type="a"))
    await found.upload(definition(service("first", "end", job_type="b"), end(), definition_id="b"))
    for reason in REASONS:
        await found.start("a")
        await found.fail(await found.one("a"), reason, retryable=False)
    await found.start("a", business_key="late")
    await found.complete(await found.one("a"))
    await found.fail(await found.one("a"), REASONS[0], retryable=False)
    await found.start("b")
    await found.fail(await found.one("b"), "505 from bank 'east'", retryable=False)
    await found.cancel((await found.start("b")).id)
    return found


async def count(driver: Driver, **wanted: Any) -> int:
    """How many match; the list has the same."""
    given = InstanceFilter(**wanted)
    counted = await driver.engine.instances.count(given)
    listed = await driver.engine.instances.find_slice(given, None, 100)
    paged = await driver.engine.instances.find(given, 0, 100)
    assert counted.exact
    assert counted.count == len(listed.items) == paged.total
    return counted.count


async def test_failures_are_found_by_cause_and_by_step(driver: Driver) -> None:
    failed: dict[str, Any] = {"status": "FAILED"}
    assert await count(driver, **failed) == 6
    assert await count(driver, **failed, cause="999 from bank 'x'") == 4
    assert await count(driver, **failed, cause="999 from bank 'x'", definition_id="a") == 3
    assert await count(driver, **failed, cause="999 from bank 'x'", definition_id="a", step_id="task-2") == 1
    assert await count(driver, **failed, cause="999 from bank 'x'", business_key="late") == 1
    assert await count(driver, **failed, cause='no "ink" left') == 1
    assert await count(driver, **failed, cause="nobody said that") == 0
    assert await count(driver, **failed, definition_id="a", step_id="task-1") == 4
    assert await count(driver, **failed, definition_id="a", step_id="task-2", business_key="late") == 1
    assert await count(driver, **failed, definition_id="none", step_id="task-2") == 0


async def test_lists_are_cut_by_version_and_by_time(driver: Driver) -> None:
    await driver.upload(linear(3, definition_id="a", job_type="a"))
    await driver.start("a")
    assert await count(driver, definition_id="a") == 6
    assert await count(driver, definition_id="a", definition_version=1) == 5
    assert await count(driver, definition_id="a", definition_version=2, status="ACTIVE") == 1
    assert await count(driver, definition_id="a", definition_version=9) == 0
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for status in (None, "FAILED", "CANCELLED", "ACTIVE"):
        every = await count(driver, status=status)
        assert every > 0
        assert await count(driver, status=status, started_after=now - hour) == every
        assert await count(driver, status=status, started_after=now + hour) == 0
        assert await count(driver, status=status, started_before=now + hour) == every
        assert await count(driver, status=status, started_before=now - hour) == 0
    assert await count(driver, started_before=datetime(2000, 1, 1, tzinfo=UTC)) == 0
    assert await count(driver, started_after=datetime(9999, 1, 1, tzinfo=UTC)) == 0


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"cause": "x"}, "cause: needs the status FAILED"),
        ({"cause": "x", "status": "ACTIVE"}, "cause: needs the status FAILED"),
        ({"step_id": "x", "definition_id": "a"}, "stepId: needs the status FAILED"),
        ({"step_id": "x", "status": "FAILED"}, "stepId: needs a definitionId"),
        ({"definition_version": 1}, "definitionVersion: needs a definitionId"),
        (
            {"definition_id": "a", "instance_key": "k", "definition_version": 1},
            "instanceKey: can only be combined with",
        ),
    ],
)
async def test_a_filter_without_an_index_is_refused(driver: Driver, wanted: dict[str, Any], said: str) -> None:
    for ask in (driver.engine.instances.count, lambda given: driver.engine.instances.find_slice(given, None, 1)):
        with pytest.raises(BadRequest, match=said):
            await ask(InstanceFilter(**wanted))


async def test_failures_are_grouped_by_cause(driver: Driver) -> None:
    found = await driver.engine.failures.read(None, "1h")
    assert found.exact
    groups = [(item.definition_id, item.step_id, item.cause, item.count) for item in found.items]
    assert sorted(groups) == sorted(
        [
            ("a", "task-1", cause_of(REASONS[0]), 2),
            ("a", "task-1", cause_of(REASONS[2]), 1),
            ("a", "task-1", "odd", 1),
            ("a", "task-2", cause_of(REASONS[0]), 1),
            ("b", "first", cause_of(REASONS[0]), 1),
        ]
    )
    assert groups[0] == ("a", "task-1", cause_of(REASONS[0]), 2)
    newest = found.items[0]
    assert (newest.text, newest.version) == (REASONS[1], 1)
    assert newest.first <= newest.last
    assert (await driver.view(newest.sample)).failure_reason == REASONS[1]
    assert {item.definition_id for item in (await driver.engine.failures.read("b", "7d")).items} == {"b"}
    assert (await driver.engine.failures.read("none", "7d")).items == []
    with pytest.raises(BadRequest, match="range"):
        await driver.engine.failures.read(None, "1y")


@pytest.mark.parametrize(("probed", "found"), [(6, 5), (5, 4), (1, 0)])
async def test_those_of_a_definition_are_looked_for_among_the_newest(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, probed: int, found: int
) -> None:
    """Of a rare one all that stand failed were read, of a million for 0.4 s in three processes."""
    monkeypatch.setattr(failures, "SCANNED_MAX", probed)
    answer = await driver.engine.failures.read("a", "all")
    assert (sum(item.count for item in answer.items), answer.exact) == (found, probed == 6)
    assert (await driver.engine.failures.read(None, "all")).exact


async def test_a_retry_takes_a_failure_from_its_cause(driver: Driver) -> None:
    failed = InstanceFilter(status="FAILED", cause=REASONS[2])
    (number,) = (await driver.engine.instances.find_slice(failed, None, 10)).items
    await driver.retry(f"{number:x}")
    assert (await driver.engine.instances.count(failed)).count == 0
    await driver.fail(await driver.one("a"), REASONS[2], retryable=False)
    assert (await driver.engine.instances.count(failed)).count == 1


async def test_failures_of_older_engines_get_their_cause(driver: Driver) -> None:
    driver.rows("UPDATE abnormal_end SET definition = NULL, step = NULL, cause = NULL RETURNING 1")
    wanted = InstanceFilter(status="FAILED", cause=REASONS[0])
    assert (await driver.engine.instances.count(wanted)).count == 0
    assert await driver.engine.failures.fill()
    assert (await driver.engine.instances.count(wanted)).count == 4
    causes = driver.rows(
        "SELECT e.cause = failure_cause(i.failure), e.definition = i.definition FROM abnormal_end e JOIN instance i"
        " ON i.id = e.instance_id WHERE e.status = 2"
    )
    assert causes == [(True, True)] * 6
    assert driver.rows("SELECT count(cause) FROM abnormal_end WHERE status = 3") == [(0,)]


async def test_causes_are_the_same_in_python_and_in_the_database(driver: Driver) -> None:
    """The one groups what the other finds."""
    texts = ["a1b22", "it's 'q' \"w\" 'open", "'" * 5, '"' * 5, "ü" * 300, "x" * 199 + "12", "a\n'b\nc'", "٣ eggs", ""]
    texts += ["ab1 'c" * 200, "x" * 150 + "1" + "y" * 100, "x" * 200 + "'a'", "'" + "x" * 300, "9 " * 5_000]
    for text in texts:
        ((same,),) = driver.rows("SELECT failure_words(%s) = %s", text, cause_of(text))
        assert same, text
