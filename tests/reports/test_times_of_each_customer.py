"""Boundary timers, back-offs and time limits were the same for all customers: only WAIT took an expression.

They are evaluated when the step begins: what is changed afterwards does not count.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.errors import Conflict
from penstock.testing.definitions import definition, end, service, step, timer
from penstock.wire.edits import MigrationRequest, VariablesEdit
from tests.engine.conftest import driver, make_driver
from tests.engine.driver import Driver
from tests.shapes import call, parallel, user, wait

__all__ = ["driver", "make_driver"]

SLA = "${customer.tier == 'gold' ? 'PT1H' : 'P2D'}"
LATE = service("late", "end", job_type="late")
FIRST, RETRY = "boundaryEvents[0].duration", "retryBackoff"


def edit(name: str, value: str) -> VariablesEdit:
    return VariablesEdit(set=msgspec.Raw(msgspec.json.encode({name: value})))


@pytest.mark.parametrize(
    "first",
    [
        service("a", "end"),
        user("a"),
        wait("a"),
        call("a", "child"),
        {**service("a", "end"), "forEach": {"items": "${[1]}"}},
    ],
    ids=["job", "task", "wait", "call", "each"],
)
async def test_a_boundary_timer_is_as_the_customer_has_it(driver: Driver, first: dict[str, Any]) -> None:
    await driver.upload(definition(user("u"), end(), definition_id="child"))
    body = definition({**first, "boundaryEvents": [timer("late", SLA, interrupting=True)]}, LATE, end())
    gold = await driver.run(body, {"customer": {"tier": "gold"}})
    plain = await driver.run(body, {"customer": {"tier": "plain"}})
    assert await driver.due(7200) == 1
    assert [await driver.open_steps(one) for one in (gold, plain)] == [["late"], ["a"]]


async def test_back_off_and_limit_are_as_they_were_when_the_step_began(driver: Driver) -> None:
    times = {"retryCount": 2, "retryBackoff": {"initial": "${pause}", "max": "${most}"}, "timeout": "${limit}"}
    given = {"pause": "PT1H", "most": 5400, "limit": 20}
    instance = await driver.run(parallel({**service("a", "join"), **times}, user("u", "join")), given)
    wanted = [(20.0, 3600.0, 5400.0)]
    assert driver.rows("SELECT timeout_s, backoff_s, backoff_max_s FROM token WHERE job_type IS NOT NULL") == wanted
    job = await driver.one("work")
    await driver.finish_task(instance, "u", {"pause": "PT1S", "most": 1})
    await driver.fail(job)
    assert await driver.due(3599) == 0
    assert await driver.due(1) == 1
    await driver.fail(await driver.one("work"))
    assert await driver.due(5399) == 0
    assert await driver.due(1) == 1


@pytest.mark.parametrize(
    ("more", "given", "reason"),
    [
        ({"boundaryEvents": [timer("late", "${t}")]}, "P1M", f"step 'a': `{FIRST}`: 'P1M' is in years"),
        ({"boundaryEvents": [timer("late", "${t}")]}, -1, f"step 'a': `{FIRST}` is negative"),
        ({"boundaryEvents": [timer("late", "${gone}")]}, 1, f"step 'a': `{FIRST}`: gone is not defined"),
        ({"timeout": "${t}"}, 0, "step 'a': `timeout` must be more than zero"),
        ({"timeout": "${t}"}, True, "step 'a': `timeout` must be a number of seconds or ISO 8601 text, not true"),
        ({"timeout": "${t}"}, 10**13, "step 'a': `timeout` is longer than 36500 days"),
        ({RETRY: {"initial": "${t}"}}, None, "step 'a': `retryBackoff.initial` must be a number of seconds"),
        ({RETRY: {"initial": "PT1M", "max": "${t}"}}, 59, "step 'a': `retryBackoff.max` is shorter than `initial`"),
        ({"compensation": {"jobType": "u", "timeout": "${t}"}}, [], "step 'a/compensation': `timeout` must be a"),
    ],
)  # fmt: skip
async def test_a_bad_value_fails_the_instance_and_names_the_field(
    driver: Driver, more: dict[str, Any], given: object, reason: str
) -> None:
    undo = step("undo", "COMPENSATE", nextStep="end") if "compensation" in more else service("undo", "end")
    late = [LATE] if "boundaryEvents" in more else []
    instance = await driver.run(definition({**service("a", "undo"), **more}, undo, *late, end()), {"t": given})
    if "compensation" in more:
        await driver.complete(await driver.one("work"))
    view = await driver.view(instance)
    assert view.status == "FAILED"
    assert reason in (view.failure_reason or "")
    assert driver.rows("SELECT count(*) FROM timer") == [(0,)]
    assert driver.rows("SELECT count(*) FROM ready") == [(0,)]


@pytest.mark.parametrize("failing", [False, True])
async def test_a_retry_evaluates_the_times_anew(driver: Driver, *, failing: bool) -> None:
    each = {"forEach": {"items": "${[1, 2]}"}, "boundaryEvents": [timer("late", "${t}")]}
    instance = await driver.run(definition({**service("a", "end"), **each}, LATE, end()), {"t": "PT1H"})
    await driver.fail(await driver.one("work"), retryable=False)
    await driver.engine.repair.edit_variables(instance, edit("t", "never" if failing else "PT1M"))
    await driver.retry(instance)
    view = await driver.view(instance)
    assert view.status == ("FAILED" if failing else "ACTIVE")
    assert ("boundaryEvents[0].duration" in (view.failure_reason or "")) is failing
    if failing:  # and it can be retried still
        await driver.engine.repair.edit_variables(instance, edit("t", "PT1M"))
        await driver.retry(instance)
    assert await driver.due(60) == 1
    assert (await driver.open_steps(instance)).count("late") == 1


async def test_an_item_has_times_of_its_own(driver: Driver) -> None:
    each = {"forEach": {"items": "${limits}", "as": "limit"}, "timeout": "${limit}"}
    await driver.run(definition({**service("a", "end"), **each}, end()), {"limits": [7, 9]})
    assert driver.rows("SELECT timeout_s FROM token WHERE item IS NOT NULL ORDER BY item") == [(7.0,), (9.0,)]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"boundaryEvents": [timer("late", "${1 +}")]}, "steps[0].boundaryEvents[0].duration"),
        ({"boundaryEvents": [timer("late", "soon")]}, "steps[0].boundaryEvents[0].duration"),
        ({"timeout": "${"}, "steps[0].timeout"),
        ({"retryBackoff": {"initial": "${nothing(}"}}, "steps[0].retryBackoff.initial"),
        ({"retryBackoff": {"initial": "PT1S", "max": "${)}"}}, "steps[0].retryBackoff.max"),
    ],
)
def test_what_can_not_be_read_is_refused_at_upload(more: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(json.dumps(definition({**service("a", "end"), **more}, LATE, end())).encode())
    assert path in [problem.path for problem in caught.value.problems]


async def test_a_migration_evaluates_what_is_new_and_keeps_the_rest(driver: Driver) -> None:
    limit: dict[str, Any] = {"timeout": "${limit}"}
    limit["boundaryEvents"] = [timer("late", "${old}", interrupting=True)]
    before = definition({**service("a", "end"), **limit}, LATE, end())
    instance = await driver.run(before, {"limit": 9, "old": 60, "new": 90, "none": "P1Y"})
    armed = driver.rows("SELECT fire_at FROM timer")
    after = json.loads(json.dumps(before))
    after["steps"][0]["boundaryEvents"].append(timer("late", "${none}"))
    await driver.upload(after)
    check = await driver.engine.migrations.check(instance, MigrationRequest())
    assert "step 'a': `boundaryEvents[1].duration`: 'P1Y' is in years" in check.reasons[0]
    after["steps"][0]["boundaryEvents"][1]["duration"] = "${new}"
    after["steps"][0]["timeout"] = "${limit + 1}"
    await driver.upload(after)
    await driver.engine.migrations.migrate(instance, MigrationRequest())
    assert driver.rows("SELECT timeout_s FROM token") == [(10.0,)]
    assert driver.rows("SELECT fire_at FROM timer WHERE index = 0") == armed
    assert await driver.due(89) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"timeout": "${t}"},
        {"retryBackoff": {"initial": "${t}"}},
        {"compensation": {"jobType": "u", "timeout": "${t}"}},
        {"boundaryEvents": [timer("end", "${t}")]},
    ],
    ids=["limit", "back-off", "handler", "timer"],
)
async def test_while_an_older_engine_lives_it_is_refused(driver: Driver, more: dict[str, Any]) -> None:
    body = definition({**service("a", "end"), **more}, end())
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, description, dispatch_mode, schema_version) "
        "VALUES (40, gen_random_uuid(), now() + interval '1 hour', 'old', 'poll', 20) RETURNING 1"
    )
    with pytest.raises(Conflict):
        await driver.upload(body)
