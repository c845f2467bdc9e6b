from __future__ import annotations
import trio
from penstock.testing.definitions import *
from tests.engine.driver import Driver

async def test_starts_and_completions_of_the_wide_lane_do_not_disturb_each_other(driver: Driver) -> None:
    await driver.upload(definition(step("first","TRANSFORMATION",transformations={"a":1},nextStep="work"), service("work","d"), step("d","DECISION",conditionalNextSteps={"true":"end"}), end(), definition_id="w"))
    async def one():
        for _ in range(10):
            i = await driver.start("w")
            for j in await driver.poll("work"):
                await driver.complete(j)
    async with trio.open_nursery() as n:
        for _ in range(10): n.start_soon(one)
