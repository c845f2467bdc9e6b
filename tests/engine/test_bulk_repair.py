"""Many instances repaired at once: skipped, moved, retried from elsewhere, migrated; each once, as often a page
comes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import BadRequest, NotFound
from penstock.testing.definitions import definition, end
from penstock.testing.invariants import find_broken
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.repair import BulkView
from tests.engine.driver import Driver
from tests.shapes import task, user

LINE = definition(task("one", "two"), task("two"), end(), id="line")
LATER = definition(task("zero", "one"), task("one", "three"), task("three"), end(), id="line")
OPEN = BulkFilter(definition_id="line", status="ACTIVE")


async def done(driver: Driver, **fields: Any) -> BulkView:
    """Do it, and all of it once more: as after a crash in the middle of a page."""
    made = await driver.engine.bulk.create(BulkRequest(**fields))
    below = driver.rows("SELECT below FROM bulk_operation WHERE id = %s", int(made.id))[0][0]
    await driver.engine.bulk.step()
    first = await driver.engine.bulk.get(made.id)
    again = "UPDATE bulk_operation SET stage = 'RUNNING', ended_at = NULL, below = %s WHERE id = %s RETURNING 1"
    driver.rows(again, below, int(made.id))
    await driver.engine.bulk.step()
    both = await driver.engine.bulk.get(made.id)
    assert (both.state, both.done) == ("DONE", first.done), "nothing was done twice"
    return first


async def started(driver: Driver, count: int = 3) -> list[str]:
    await driver.upload(LINE)
    return [(await driver.start("line", business_key=f"k{n}")).id for n in range(count)]


async def test_many_steps_are_skipped_with_a_result(driver: Driver) -> None:
    instances = await started(driver)
    found = await done(
        driver, action="skip", filter=OPEN, step_id="one", variables=msgspec.Raw(b'{"a":1}'), note="by hand"
    )
    assert (found.done, found.skipped, found.failed) == (3, 0, 0)
    for instance in instances:
        assert (await driver.open_steps(instance), await driver.variables(instance)) == (["two"], {"a": 1})
    noted = f"bulk-{found.id}: by hand"
    assert driver.rows("SELECT count(*) FROM audit WHERE kind = 'SKIPPED' AND detail = %s", noted) == [(3,)]
    assert find_broken(driver.dsn) == []


async def test_many_tokens_move_where_they_began(driver: Driver) -> None:
    """Back to the same step: a second time would begin it a second time."""
    instances = await started(driver)
    await done(driver, action="move", ids=instances[:2], step_id="one", to_step_id="one")
    assert driver.rows("SELECT count(*) FROM history") == [(2,)]
    found = await done(driver, action="move", ids=instances, step_id="one", to_step_id="nowhere")
    assert (found.done, found.failed) == (0, 3)
    assert "toStepId: 'nowhere' is not a step of 'line' version 1" in found.errors[0]
    assert find_broken(driver.dsn) == []


async def test_many_variables_are_changed_once(driver: Driver) -> None:
    """What somebody writes after the operation stays, also when its page comes again."""
    instances = await started(driver)
    for job in await driver.poll("one"):
        await driver.fail(job, retryable=False)
    failed = BulkFilter(definition_id="line", status="FAILED")
    found = await done(driver, action="edit", filter=failed, variables=msgspec.Raw(b'{"rate":2}'), remove=["old"])
    assert (found.done, found.skipped, found.failed) == (3, 0, 0)
    assert found.details is not None
    assert found.details.remove == ["old"]
    assert [await driver.variables(instance) for instance in instances] == [{"rate": 2}] * 3
    assert driver.rows("SELECT count(*), count(DISTINCT bulk) FROM variables_edit") == [(3, 1)]
    noted = driver.rows("SELECT detail, count(*) FROM audit WHERE kind = 'VARIABLES_EDITED' GROUP BY 1")
    assert noted == [(f"rate=2, -old: bulk-{found.id}", 3)]
    assert find_broken(driver.dsn) == []


async def test_variables_that_are_null_are_none(driver: Driver) -> None:
    """Written as they came they would make a list of an instance's variables."""
    instances = await started(driver, 2)
    null = msgspec.Raw(b"null")
    await done(driver, action="skip", filter=OPEN, step_id="one", variables=null)
    for job in await driver.poll("two"):
        await driver.fail(job, retryable=False)
    failed = BulkFilter(definition_id="line", status="FAILED")
    await done(driver, action="edit", filter=failed, variables=msgspec.Raw(b'{"a":1,"b":2}'))
    await done(driver, action="edit", filter=failed, variables=null, remove=["a"])
    assert [await driver.variables(instance) for instance in instances] == [{"b": 2}] * 2
    assert driver.rows("SELECT DISTINCT output FROM bulk_operation WHERE output = 'null'") == []
    assert find_broken(driver.dsn) == []


async def test_many_failures_go_on_elsewhere(driver: Driver) -> None:
    instances = await started(driver)
    for job in await driver.poll("one"):
        await driver.fail(job, retryable=False)
    failed = BulkFilter(definition_id="line", status="FAILED")
    found = await done(driver, action="retry", filter=failed, from_step_id="two")
    assert found.done == 3
    assert found.details is not None
    assert found.details.from_step_id == "two"
    assert [await driver.open_steps(instance) for instance in instances] == [["two"]] * 3
    assert find_broken(driver.dsn) == []


async def test_many_are_migrated_and_those_that_can_not_say_why(driver: Driver) -> None:
    instances = await started(driver)
    jobs = {job.instance_id: job for job in await driver.poll("one")}
    await driver.complete(jobs[instances[0]])
    await driver.upload(LATER)
    before = driver.snapshot()
    preview = await driver.engine.bulk.preview(BulkRequest(action="migrate", filter=OPEN, dry_run=True))
    assert preview.refusals is not None
    assert (preview.count, preview.refusals.checked, preview.refusals.refused) == (3, 3, 1)
    [refused] = preview.refusals.instances
    assert (refused.instance_id, refused.from_version, refused.to_version) == (instances[0], 1, 2)
    assert refused.reasons == ["it stands on step 'two': the version has no 'two'; say which step it becomes"]
    assert driver.snapshot() == before
    found = await done(driver, action="migrate", filter=OPEN, note="line 2")
    assert (found.done, found.skipped, found.failed) == (2, 0, 1)
    assert found.errors == [f"{instances[0]}: {refused.reasons[0]}"]
    assert [(await driver.view(instance)).definition_version for instance in instances] == [1, 2, 2]
    found = await done(driver, action="migrate", filter=OPEN, steps={"two": "three"})
    assert (found.done, found.skipped) == (1, 2)
    assert find_broken(driver.dsn) == []


async def test_an_upload_meanwhile_is_not_what_was_meant(driver: Driver) -> None:
    instances = await started(driver, 1)
    await driver.upload(LATER)
    made = await driver.engine.bulk.create(BulkRequest(action="migrate", filter=OPEN))
    await driver.upload(definition(user("one"), end(), id="line"))
    await driver.engine.bulk.step()
    assert (await driver.engine.bulk.get(made.id)).done == 1
    assert (await driver.view(instances[0])).definition_version == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"action": "skip"}, "stepId: is required for the action skip"),
        ({"action": "move", "step_id": "one"}, "toStepId: is required for the action move"),
        ({"action": "cancel", "step_id": "one"}, "stepId: does not belong to the action cancel"),
        ({"action": "retry", "variables": msgspec.Raw(b"{}")}, "variables: does not belong to the action retry"),
        ({"action": "skip", "step_id": "one", "version": 2}, "version: does not belong to the action skip"),
        ({"action": "migrate", "steps": {"one": "nowhere"}}, "steps: 'one' becomes 'nowhere'"),
        ({"action": "begin"}, "action: must be one of retry, cancel, signal, skip, move, migrate"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(driver: Driver, fields: dict[str, Any], says: str) -> None:
    await started(driver, 1)
    with pytest.raises(BadRequest, match=says):
        await driver.engine.bulk.create(BulkRequest(filter=OPEN, **fields))
    assert driver.rows("SELECT count(*) FROM bulk_operation") == [(0,)]


async def test_a_migration_says_where_to(driver: Driver) -> None:
    instances = await started(driver, 1)
    with pytest.raises(BadRequest, match=r"filter\.definitionId: is required"):
        await driver.engine.bulk.create(BulkRequest(action="migrate", ids=instances))
    with pytest.raises(NotFound, match="version 7"):
        await driver.engine.bulk.create(BulkRequest(action="migrate", filter=OPEN, version=7))
