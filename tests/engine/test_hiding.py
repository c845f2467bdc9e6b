"""Variables that the console is not shown, by the names that a setting hides; programs get them."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import msgspec
import pytest

from penstock.engine.requests.hiding import Hiding
from penstock.rest.app import make_app
from penstock.testing.definitions import definition, end
from penstock.wire.drafts import ExpressionCheck
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import begin, continue_as_new
from tests.shapes import task, user

GIVEN = {"password": "hunter2", "card_number": [4, 2], "amount": 5}
MASKED = {"password": "***", "card_number": "***", "amount": 5}
SHAPE = definition(
    task("pay", "review"), user("review"), end(), id="hidden",
    metadata={"forms": {"review": {"summary": "'for ' + password"}}},
)  # fmt: skip


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    return make_driver(console_hide_variables=("password", "card*"))


async def asked(driver: Driver, path: str, body: object = None, **headers: str) -> Any:
    transport = httpx.ASGITransport(cast(Any, make_app(driver.engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        method = "GET" if body is None else "POST"
        answer = await client.request(method, path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_console_sees_a_mask_and_programs_see_values(driver: Driver) -> None:
    instance = await driver.run(SHAPE, GIVEN)
    await driver.complete(await driver.one("pay"), {"card_cvc": 7, "paid": True})
    path, console = f"/v1/instances/{instance}", {"X-Penstock-Console": "1"}
    all_given, all_masked = GIVEN | {"card_cvc": 7, "paid": True}, MASKED | {"card_cvc": "***", "paid": True}
    assert (await asked(driver, path))["variables"] == all_given
    assert (await asked(driver, path, **console))["variables"] == all_masked
    assert (await asked(driver, path, Cookie="penstock=pss_x"))["variables"] == all_masked
    listed = await asked(driver, "/v1/instances?limit=10", **console)
    assert [one["variables"] for one in listed["items"]] == [all_masked]
    await driver.upload({**SHAPE, "name": "another version"})
    assert (await asked(driver, f"{path}/migrate", {"version": 2}, **console))["variables"] == all_masked
    edited = await asked(driver, f"{path}/variables", {"set": {"password": "new"}}, **console)
    assert edited["variables"] == all_masked
    assert (await driver.variables(instance))["password"] == "new"


async def test_what_is_made_for_people_is_masked_for_everybody(driver: Driver) -> None:
    instance = await driver.run(SHAPE, GIVEN)
    await driver.complete(await driver.one("pay"), {"card_cvc": 7, "paid": True})
    history = (await asked(driver, f"/v1/instances/{instance}/history?order=newest&output=true"))["items"]
    assert [one["output"] for one in history if "output" in one] == [{"card_cvc": "***", "paid": True}]
    after = next(one["id"] for one in history if one["stepId"] == "pay")
    found = await asked(driver, f"/v1/instances/{instance}/variables?after={after}")
    assert found["variables"] == MASKED | {"card_cvc": "***", "paid": True}
    assert (await asked(driver, "/v1/tasks"))["items"][0].get("summary") is None
    check = ExpressionCheck("password", instance_id=instance)
    assert (await driver.engine.drafts.check_expression(check)).value is None
    check = ExpressionCheck("amount + 1", instance_id=instance)
    assert (await driver.engine.drafts.check_expression(check)).value == msgspec.Raw(b"6")


async def test_journals_show_the_console_no_more_than_instances_do(driver: Driver) -> None:
    await driver.upload(definition(end(), id="card-check"))
    run = await begin(driver)
    body = {"arguments": GIVEN, "continuation": 1}
    assert await continue_as_new(driver, run.run_lease, json.dumps(body))
    await driver.engine.children.start(run.run_lease, "/0", "card-check", json.dumps(GIVEN).encode(), "c-1")
    await driver.due()
    path = f"/v1/instances/{run.instance_id}/journal"
    for shown, headers in ((GIVEN, {}), (MASKED, {"X-Penstock-Console": "1"})):
        begun, child = (await asked(driver, path, **headers))["items"]
        assert begun["payload"] == {**body, "arguments": shown}
        assert (child["kind"], child["payload"]["result"]) == ("child", shown)


async def test_without_the_setting_nothing_is_masked(make_driver: MakeDriver) -> None:
    driver = make_driver()
    instance = await driver.run(SHAPE, GIVEN)
    found = await asked(driver, f"/v1/instances/{instance}", **{"X-Penstock-Console": "1"})
    assert found["variables"] == GIVEN


def test_a_pattern_is_a_whole_name() -> None:
    hiding = Hiding(["pin", "card*", "k?y"])
    names = ["pin", "pinned", "spin", "card", "card.no", "key", "keey", "Pin"]
    assert [name for name in names if hiding.hides(name)] == ["pin", "card", "card.no", "key"]
    text = json.dumps({"pin": 1, "a": 12345678901234567890.5}).encode()
    assert hiding.mask(b'{"a":1.50}') == b'{"a":1.50}', "what has nothing hidden keeps its spelling"
    assert json.loads(hiding.mask(text))["pin"] == "***"
    assert hiding.mask(b"[1]") == b"[1]"
