"""Uploading a former text rolls back: what new starts use is the active version, chosen by an upload or by hand."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from penstock.core.parsing.parsing import parse_definition
from penstock.errors import Conflict, NotFound
from penstock.testing.definitions import Json, definition, end
from penstock.wire.model import DefinitionSummary
from penstock.wire.schedule import ScheduleSpec
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver
from tests.engine.test_calls import child_of
from tests.shapes import call, task

__all__ = ["driver", "make_driver"]


def loan(job_type: str) -> Json:
    """A version whose instances are told by their job."""
    return definition(task(job_type), end(), definition_id="loan")


async def upload(driver: Driver, body: Json) -> DefinitionSummary:
    return await driver.engine.definitions.upload(parse_definition(msgspec.json.encode(body)))


async def version_of(driver: Driver, instance: str) -> int:
    return (await driver.view(instance)).definition_version


async def plain(driver: Driver) -> str:
    return (await driver.start("loan")).id


async def with_an_idempotency_key(driver: Driver) -> str:
    return (await driver.start("loan", idempotency_key="k")).id


async def by_a_call(driver: Driver) -> str:
    await driver.upload(definition(call("ask", "loan"), end(), definition_id="caller"))
    return child_of(driver, (await driver.start("caller")).id)


async def by_a_chain(driver: Driver) -> str:
    first = definition(task("first"), end(), definition_id="first", nextWorkflowId="loan", autoStartNextWorkflow=True)
    instance = await driver.run(first)
    await driver.complete(await driver.one("first"))
    [(id,)] = driver.rows("SELECT id FROM instance WHERE parent_id = %s", int(instance, 16))
    return f"{id:x}"


async def by_a_schedule(driver: Driver) -> str:
    await driver.engine.schedules.put("nightly", ScheduleSpec(definition_id="loan", every="PT1H"))
    run = await driver.engine.schedules.trigger("nightly", None)
    assert run.instance_id is not None
    return run.instance_id


STARTS: list[Callable[[Driver], Awaitable[str]]] = [
    plain,
    with_an_idempotency_key,
    by_a_call,
    by_a_chain,
    by_a_schedule,
]


async def by_upload(driver: Driver) -> DefinitionSummary:
    return await upload(driver, loan("one"))


async def by_hand(driver: Driver) -> DefinitionSummary:
    return await driver.engine.definitions.activate("loan", 1)


@pytest.mark.parametrize("rolled_back", [by_upload, by_hand])
@pytest.mark.parametrize("start", STARTS)
async def test_new_starts_use_the_version_that_was_rolled_back_to(
    make_driver: MakeDriver,
    start: Callable[[Driver], Awaitable[str]],
    rolled_back: Callable[[Driver], Awaitable[DefinitionSummary]],
) -> None:
    driver, other = make_driver(1), make_driver(2)
    assert (await upload(driver, loan("one"))).active is True
    before = await plain(driver)
    assert (await upload(driver, loan("two"))).active is True
    assert await version_of(driver, await plain(driver)) == await version_of(other, await plain(other)) == 2
    made = await rolled_back(driver)
    assert (made.version, made.active) == (1, True)
    assert await version_of(driver, before) == 1
    assert await version_of(other, await start(other)) == 1, "another engine remembers the newest"
    assert await version_of(driver, await plain(driver)) == 1


async def test_the_next_upload_is_what_new_starts_use(driver: Driver) -> None:
    for job_type, expected in (("one", 1), ("two", 2), ("one", 1), ("three", 3), ("two", 2), ("three", 3)):
        made = await upload(driver, loan(job_type))
        assert (made.version, made.active) == (expected, True)
        assert await version_of(driver, await plain(driver)) == expected
    assert driver.rows("SELECT count(*) FROM active_version") == [(0,)], "the newest needs no row"


async def test_a_former_text_in_another_spelling_is_the_same(driver: Driver) -> None:
    """Fields in another order, other white space, an empty description."""
    await upload(driver, loan("one"))
    await upload(driver, loan("two"))
    body = loan("one")
    turned = json.dumps(dict(reversed(list(body.items()))), indent=3).encode()
    for text, expected in (
        (turned, 1),
        (json.dumps(loan("two"), indent=1).encode(), 2),
        (json.dumps(body | {"description": ""}).encode(), 1),
    ):
        made = await driver.engine.definitions.upload(parse_definition(text))
        assert (made.version, made.active) == (expected, True)
        assert await version_of(driver, await plain(driver)) == expected


async def test_lists_and_reads_say_which_is_active(driver: Driver) -> None:
    for job_type in ("one", "two", "three"):
        await upload(driver, loan(job_type))
    await driver.engine.definitions.activate("loan", 2)
    assert (await driver.engine.definitions.get("loan")).version == 2
    for page in (
        await driver.engine.definitions.list(None, 0, 20),
        await driver.engine.definitions.list_slice(None, None, 20),
    ):
        assert [(item.id, item.version) for item in page.items] == [("loan", 2)]
    versions = await driver.engine.definition_use.versions("loan", None, 10)
    assert [(item.version, item.active) for item in versions.items] == [(3, False), (2, True), (1, False)]
    records = driver.rows("SELECT detail FROM audit WHERE kind = 'DEFINITION_ACTIVATED'")
    assert records == [("loan version 2",)]
    await driver.engine.definitions.activate("loan", 2)
    assert driver.rows("SELECT count(*) FROM audit WHERE kind = 'DEFINITION_ACTIVATED'") == [(1,)]


@pytest.mark.parametrize(
    ("id", "version"), [("loan", 2), ("unknown", 1), ("loan", 2**31), ("loan", 0), ("loan", -1), ("loan", 2**63)]
)
async def test_what_is_not_there_can_not_be_activated(driver: Driver, id: str, version: int) -> None:
    await upload(driver, loan("one"))
    with pytest.raises(NotFound, match=f"'{id}' version {version} is unknown"):
        await driver.engine.definitions.activate(id, version)


async def test_while_an_older_engine_lives_the_answer_says_no(driver: Driver) -> None:
    await upload(driver, loan("one"))
    await upload(driver, loan("two"))
    driver.rows(
        "INSERT INTO engine VALUES (77, gen_random_uuid(), penstock_now() + interval '1 h', 'direct', 'an older one',"
        " 20) RETURNING 1"
    )
    made = await upload(driver, loan("one"))
    assert (made.version, made.active) == (1, False)
    assert await version_of(driver, await plain(driver)) == 2
    with pytest.raises(Conflict, match="an older one"):
        await driver.engine.definitions.activate("loan", 1)
    driver.rows("DELETE FROM engine RETURNING 1")
    assert (await upload(driver, loan("one"))).active is True


async def test_a_repeated_upload_of_code_activates_nothing(driver: Driver) -> None:
    for job_type in ("code:a@1", "code:a@2", "code:a@1"):
        body = parse_definition(msgspec.json.encode(definition(task(job_type), end(), definition_id="run")))
        made = await driver.engine.definitions.upload(body, code=True)
    assert (made.version, made.active) == (1, None)
    assert (await driver.engine.definitions.get("run")).version == 2
    with pytest.raises(Conflict, match="its executors choose its version"):
        await driver.engine.definitions.activate("run", 1)
