"""Errors with codes in the database: caught once, whatever comes twice or late, and known afterwards."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.parsing.parsing import parse_definition
from penstock.errors import BadRequest, Conflict, JobCancelled, PayloadTooLarge
from penstock.testing.definitions import Json, definition, end, service, step
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

CATCHING: Json = definition(
    service(
        "charge",
        "end",
        job_type="charge",
        retryCount=2,
        boundaryEvents=[{"type": "ERROR", "errorCodes": ["DECLINED"], "errorVariable": "error", "targetStepId": "ask"}],
    ),
    step("ask", "USER_TASK", nextStep="end"),
    end(),
    definition_id="catching",
)


async def history(driver: Driver, instance: str) -> list[tuple[Any, ...]]:
    return [(item.step_id, item.status, item.error_code) for item in await driver.history(instance)]


async def test_an_error_is_caught_once(driver: Driver) -> None:
    await driver.upload(CATCHING)
    instance = (await driver.start("catching")).id
    job = await driver.one("charge")
    await driver.fail(job, "no money", error_code="DECLINED", variables=b'{"limit":5}', attempt=job.attempt)
    await driver.fail(job, "no money", error_code="DECLINED", attempt=job.attempt)  # the same again
    await driver.fail(job)
    with pytest.raises(JobCancelled):
        await driver.complete(job, attempt=job.attempt)
    with pytest.raises(JobCancelled):
        await driver.heartbeat(job)
    view = await driver.view(instance)
    assert (view.status, view.current_step_ids, view.failure_code) == ("WAITING", ["ask"], None)
    error = {"code": "DECLINED", "message": "no money", "stepId": "charge", "data": {"limit": 5}}
    assert msgspec.json.decode(view.variables) == {"error": error}  # pyright: ignore[reportArgumentType] - a stand-in
    assert await history(driver, instance) == [("charge", "FAILED", "DECLINED"), ("ask", "RUNNING", None)]
    audit = await driver.engine.instances.audit(instance)
    assert "STEP_CAUGHT" in [record.kind for record in audit.items]


async def test_a_code_stays_with_its_instance_until_the_retry(driver: Driver) -> None:
    await driver.upload(CATCHING)
    instance = (await driver.start("catching")).id
    for _ in range(3):
        await driver.fail(await driver.one("charge"), error_code="TIMEOUT")
    assert (await driver.view(instance)).failure_code == "TIMEOUT"
    [item] = await driver.history(instance)
    assert (item.error_code, [attempt.error_code for attempt in item.attempts]) == ("TIMEOUT", ["TIMEOUT"] * 3)
    await driver.retry(instance)
    assert (await driver.view(instance)).failure_code is None


async def test_a_code_that_is_none_changes_nothing(driver: Driver) -> None:
    await driver.upload(CATCHING)
    instance = (await driver.start("catching")).id
    job = await driver.one("charge")
    for code in ("Penstock.Mine", "no code", "x" * 101):
        with pytest.raises(BadRequest, match="errorCode: "):
            await driver.fail(job, error_code=code)
    assert await history(driver, instance) == [("charge", "RUNNING", None)]


async def test_what_an_error_brings_counts_with_the_variables(make_driver: MakeDriver) -> None:
    driver = make_driver(instance_variables_max_bytes=300_000)
    await driver.upload(CATCHING)
    instance = (await driver.start("catching", {"text": "x" * 200_000})).id
    data = msgspec.json.encode({"text": "y" * 200_000})
    job = await driver.one("charge")
    driver.rows("UPDATE token SET unfolded = 64 RETURNING id")  # as after many deltas: sizes are looked at in folds
    with pytest.raises(PayloadTooLarge):
        await driver.fail(job, error_code="DECLINED", variables=data)
    await driver.fail(job, error_code="DECLINED")
    assert (await driver.view(instance)).current_step_ids == ["ask"]


async def test_codes_wait_until_all_engines_know_them(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 13) RETURNING 1"
    )
    with pytest.raises(Conflict, match="upgrade all engines first"):
        await driver.engine.definitions.upload(parse_definition(CATCHING))
    assert driver.rows("SELECT count(*) FROM definition") == [(0,)]


@pytest.mark.parametrize(
    ("condition", "is_new"),
    [
        ("len(groupBy(xs, #.k)) > 1", True),
        ("if a > 1 { true } else { false }", True),
        ("take (xs, 1) == ys", True),
        ("get > 1 and len(filter(xs, # > 1)) > 0", False),
    ],
)
async def test_newer_words_wait_until_all_engines_know_them(
    make_driver: MakeDriver, condition: str, is_new: bool
) -> None:
    driver = make_driver()
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'polling', 'old', 20) RETURNING 1"
    )
    choice = step("c", "DECISION", conditionalNextSteps={condition: "e", "true": "e"})
    upload = driver.engine.definitions.upload(parse_definition(definition(choice, end("e"))))
    if is_new:
        with pytest.raises(Conflict, match="upgrade all engines first"):
            await upload
    else:
        await upload
    assert driver.rows("SELECT count(*) FROM definition") == [(0 if is_new else 1,)]
