"""Messages: before, with and after the wait for them, in every order of publisher, wait and crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from penstock.core.rules.correlation import RECEIVERS_MAX
from penstock.engine.advance.call_commands import MessageCommand
from penstock.errors import BadRequest, Conflict, IdempotencyConflict, PenstockError, TooManyRequests
from penstock.settings.secret import Secret
from penstock.testing.definitions import Json, definition, end, timer
from penstock.testing.invariants import assert_invariants
from penstock.wire.model import MessageReceiver, PublishedMessage
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.engine.test_encryption import KEYS
from tests.shapes import task, wait
from tests.waiting import wait_until

ORDER = definition(
    wait("w", "after", message={"name": "paid", "correlationKey": "${order}"}),
    task("after"),
    end(),
    definition_id="order",
)
MESSAGES = "SELECT name, key, taken FROM message ORDER BY id"
WAITS = "SELECT name, key, message IS NOT NULL FROM subscription ORDER BY seq"


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    driver = make_driver()
    await driver.upload(ORDER)
    return driver


async def waiting(driver: Driver, order: object = 7, business_key: str | None = None) -> str:
    return (await driver.start("order", {"order": order}, business_key=business_key)).id


def to(*instances: str, kept: bool = False) -> PublishedMessage:
    return PublishedMessage(delivered=[MessageReceiver(instance_id=one, step_id="w") for one in instances], kept=kept)


def hold_deliveries(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on what is published stands written and goes nowhere, as if its engine had died; until it is undone."""

    def full(item: MessageCommand) -> None:
        raise TooManyRequests("full")

    monkeypatch.setattr(driver.engine.full_path, "submit_nowait", full)
    return monkeypatch.undo


async def test_a_message_goes_where_its_name_and_key_are(driver: Driver) -> None:
    instance, other = await waiting(driver, "7"), await waiting(driver, "8")
    assert driver.rows(WAITS) == [("paid", "7", False), ("paid", "8", False)]
    assert await driver.publish("paid", "7", {"sum": 3}) == to(instance)
    assert await driver.variables(instance) == {"order": "7", "sum": 3}
    assert await driver.open_steps(instance) == ["after"]
    assert await driver.open_steps(other) == ["w"]
    assert driver.rows(WAITS) == [("paid", "8", False)]
    assert driver.rows(MESSAGES) == []
    assert await driver.publish("sent", "8") == to(kept=True)
    assert await driver.open_steps(other) == ["w"]


async def test_an_early_message_waits_for_its_wait(driver: Driver) -> None:
    assert await driver.publish("paid", "7", {"sum": 1}) == to(kept=True)
    assert await driver.publish("paid", "7", {"sum": 2}) == to(kept=True)
    assert driver.rows(MESSAGES) == [("paid", "7", False), ("paid", "7", False)]
    first, second = await waiting(driver), await waiting(driver)
    assert driver.rows(MESSAGES) == [("paid", "7", True), ("paid", "7", True)]
    await driver.due()
    assert [(await driver.variables(one))["sum"] for one in (first, second)] == [1, 2]
    assert driver.rows(MESSAGES) == driver.rows(WAITS) == []


async def test_one_message_goes_to_the_wait_that_is_oldest(driver: Driver) -> None:
    first, second = await waiting(driver), await waiting(driver)
    assert await driver.publish("paid", "7") == to(first)
    assert await driver.publish("paid", "7") == to(second)


async def test_a_message_for_all_goes_to_all_that_wait_now(driver: Driver) -> None:
    instances = [await waiting(driver) for _ in range(3)]
    assert await driver.publish("paid", "7", {"sum": 1}, deliver="ALL") == to(*instances)
    assert [await driver.variables(one) for one in instances] == [{"order": 7, "sum": 1}] * 3
    late = await waiting(driver)
    await driver.due(6)
    assert await driver.open_steps(late) == ["w"]
    assert driver.rows(MESSAGES) == []
    await driver.cancel(late)
    assert await driver.publish("paid", "7", deliver="ALL") == to()


async def test_more_waits_than_one_message_goes_to_refuse_it(driver: Driver) -> None:
    driver.rows(
        "INSERT INTO subscription SELECT n, n, 1, 'paid', '9', NULL FROM generate_series(1, %s) n RETURNING 1",
        RECEIVERS_MAX + 1,
    )
    with pytest.raises(Conflict, match="more than 1000 steps wait"):
        await driver.publish("paid", "9", deliver="ALL", message_id="m")
    assert driver.rows("SELECT id FROM message_id") == []
    driver.rows("DELETE FROM subscription RETURNING 1")


async def test_now_or_never_keeps_nothing(driver: Driver) -> None:
    assert await driver.publish("paid", "7", ttl="PT0S") == to()
    instance = await waiting(driver)
    await driver.due(6)
    assert await driver.open_steps(instance) == ["w"]
    assert await driver.publish("paid", "7", ttl="PT0S") == to(instance)


async def test_an_expired_message_is_never_received(driver: Driver) -> None:
    driver.clock.stop()
    await driver.publish("paid", "7", ttl="PT1M")
    await driver.publish("paid", "8", ttl="PT2M")
    driver.clock.advance(61)
    late, timely = await waiting(driver, 7), await waiting(driver, 8)
    await driver.due()
    assert await driver.open_steps(late) == ["w"]
    assert await driver.open_steps(timely) == ["after"]
    assert driver.rows(MESSAGES) == [("paid", "7", False)]
    async with driver.engine.database.connection() as connection:
        await driver.engine.messages.chores(connection)
    assert driver.rows(MESSAGES) == []


async def test_a_message_with_an_id_is_published_once(driver: Driver) -> None:
    instance, other = await waiting(driver), await waiting(driver)
    assert await driver.publish("paid", "7", {"sum": 3}, message_id="m1") == to(instance)
    assert await driver.publish("paid", "7", {"sum": 3}, message_id="m1") == to(instance)
    assert await driver.open_steps(other) == ["w"]
    with pytest.raises(IdempotencyConflict):
        await driver.publish("paid", "7", {"sum": 4}, message_id="m1")
    assert await driver.publish("paid", "8", {"a": 1, "b": 2}, message_id="m2") == to(kept=True)
    assert await driver.publish("paid", "8", {"b": 2, "a": 1}, message_id="m2") == to(kept=True)
    assert driver.rows(MESSAGES) == [("paid", "8", False)]


async def test_ids_are_forgotten_when_their_time_is_over(make_driver: MakeDriver) -> None:
    driver = make_driver(idempotency_retention_hours=1)
    driver.clock.stop()
    await driver.publish("paid", "7", message_id="short", ttl="PT1M")
    await driver.publish("paid", "7", message_id="long", ttl="PT2H")
    driver.clock.advance(3_700)
    async with driver.engine.database.connection() as connection:
        await driver.engine.messages.chores(connection)
    assert driver.rows("SELECT id FROM message_id") == [("long",)]


async def test_messages_with_one_id_at_once_are_one(make_driver: MakeDriver) -> None:
    drivers = [make_driver(), make_driver()]
    await drivers[0].upload(ORDER)
    instances = [await waiting(drivers[0]) for _ in range(3)]
    answers: list[PublishedMessage] = []

    async def publish(driver: Driver) -> None:
        answers.append(await driver.publish("paid", "7", message_id="m"))

    async with trio.open_nursery() as nursery:
        for place in range(20):
            nursery.start_soon(publish, drivers[place % 2])
    assert {tuple(one.instance_id for one in answer.delivered) for answer in answers} == {(instances[0],)}
    assert [await drivers[0].open_steps(one) for one in instances] == [["after"], ["w"], ["w"]]


async def test_what_its_engine_did_not_bring_comes_by_a_timer(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await waiting(driver)
    go_on = hold_deliveries(driver, monkeypatch)
    assert await driver.publish("paid", "7", {"sum": 3}) == to(kept=True)
    assert driver.rows(MESSAGES) == [("paid", "7", True)]
    assert_invariants(driver.dsn)
    go_on()
    await driver.due()
    assert await driver.open_steps(instance) == ["w"]
    await driver.due(6)
    assert await driver.variables(instance) == {"order": 7, "sum": 3}
    await driver.due(6)
    assert await driver.path(instance) == [("w", "COMPLETED"), ("after", "RUNNING")]


async def test_a_closed_wait_leaves_its_message_to_the_next(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await waiting(driver), await waiting(driver)
    go_on = hold_deliveries(driver, monkeypatch)
    await driver.publish("paid", "7", {"sum": 3})
    go_on()
    await driver.cancel(first)
    assert driver.rows(WAITS) == [("paid", "7", True)]
    await driver.due()
    assert await driver.variables(second) == {"order": 7, "sum": 3}


async def test_a_message_whose_only_wait_is_closed_is_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await waiting(driver)
    go_on = hold_deliveries(driver, monkeypatch)
    await driver.publish("paid", "7", {"sum": 3})
    await driver.publish("paid", "7", ttl="PT0S", message_id="never")
    go_on()
    await driver.cancel(first)
    assert driver.rows(MESSAGES) == [("paid", "7", False)]
    second = await waiting(driver)
    await driver.due()
    assert await driver.variables(second) == {"order": 7, "sum": 3}


async def test_a_message_for_now_dies_with_its_wait(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await waiting(driver, 7), await waiting(driver, 8)
    go_on = hold_deliveries(driver, monkeypatch)
    await driver.publish("paid", "7", ttl="PT0S")
    await driver.publish("paid", "8", deliver="ALL")
    go_on()
    await driver.cancel(first)
    await driver.cancel(second)
    assert driver.rows(MESSAGES) == []


async def test_publishers_and_waits_at_once_all_meet(make_driver: MakeDriver) -> None:
    drivers = [make_driver(services=True), make_driver(services=True)]
    await drivers[0].upload(ORDER)
    await drivers[1].engine.definitions.get("order")
    instances: list[str] = []

    async def begin(driver: Driver, order: int) -> None:
        instances.append(await waiting(driver, order))

    async def publish(driver: Driver, order: int) -> None:
        await driver.publish("paid", str(order), {"sum": order})

    async with trio.open_nursery() as nursery:
        for place in range(60):
            nursery.start_soon(begin, drivers[place % 2], place % 7)
            nursery.start_soon(publish, drivers[(place + 1) % 2], place % 7)

    async def all_met() -> bool:
        return drivers[0].rows(MESSAGES) == drivers[0].rows(WAITS) == []

    await wait_until(all_met)
    for instance in instances:
        values = await drivers[0].variables(instance)
        assert values["sum"] == values["order"]


async def test_a_message_is_not_lost_where_its_instance_is_held(make_driver: MakeDriver) -> None:
    driver = make_driver(services=True, outage_wait_seconds=0.5)
    await driver.upload(ORDER)
    instance = await waiting(driver)
    async with driver.engine.database.connection() as connection, connection.transaction():
        await connection.execute(b"SELECT FROM token WHERE id = $1 FOR UPDATE", (number(instance),))
        assert await driver.publish("paid", "7", {"sum": 3}) == to(kept=True)

    async def arrived() -> bool:
        return await driver.open_steps(instance) == ["after"]

    await wait_until(arrived)


async def test_a_timer_of_its_own_ends_the_wait_as_ever(driver: Driver) -> None:
    both: Json = wait(
        "w", message={"name": "paid", "correlationKey": "7"}, boundaryEvents=[timer("late", interrupting=True)]
    )
    await driver.upload(definition(both, end("late"), end(), definition_id="timed"))
    instance = (await driver.start("timed")).id
    await driver.due(3_601)
    assert await driver.status(instance) == "COMPLETED"
    assert driver.rows(WAITS) == []
    assert await driver.publish("paid", "7") == to(kept=True)


async def test_a_wait_for_a_message_can_be_signalled_too(driver: Driver) -> None:
    instance = await waiting(driver)
    await driver.signal(instance, "w", {"by": "hand"})
    assert await driver.open_steps(instance) == ["after"]
    assert driver.rows(WAITS) == []


async def test_messages_are_sealed_where_there_are_keys(make_driver: MakeDriver) -> None:
    driver = make_driver(encryption_keys=Secret(KEYS["k1"]))
    await driver.upload(ORDER)
    await driver.publish("paid", "7", {"card": "s3kr1t"})
    assert "s3kr1t" not in str(driver.rows("SELECT body::text FROM message"))
    instance = await waiting(driver)
    await driver.due()
    assert (await driver.variables(instance))["card"] == "s3kr1t"


async def test_what_is_kept_is_bounded_in_items_and_bytes(make_driver: MakeDriver) -> None:
    driver = make_driver(messages_kept_max_items=2, messages_kept_max_bytes=1_048_576)
    await driver.upload(ORDER)
    await driver.publish("paid", "1", {"text": "x" * 1_000_000})
    with pytest.raises(TooManyRequests, match="messages_kept_max_bytes"):
        await driver.publish("paid", "2", {"text": "x" * 100_000}, message_id="again")
    await driver.publish("paid", "2")
    with pytest.raises(TooManyRequests, match="messages_kept_max_items"):
        await driver.publish("paid", "3")
    instance = await waiting(driver, 4)
    assert await driver.publish("paid", "4") == to(instance)  # is not kept
    await waiting(driver, 2)
    await driver.due()
    async with driver.engine.database.connection() as connection:
        await driver.engine.messages.chores(connection)
    assert await driver.publish("paid", "2", message_id="again") == to(kept=True)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": ""}, "name: is required"),
        ({"key": ""}, "correlationKey: is required"),
        ({"key": "k" * 257}, "correlationKey: has 257 characters"),
        ({"name": "a\0"}, "name: has a NUL"),
        ({"message_id": ""}, "messageId: must not be empty"),
        ({"ttl": "1 day"}, "ttl: "),
        ({"ttl": "P1D", "deliver": "ALL"}, "ttl: a message for all"),
        ({"deliver": "SOME"}, "deliver: must be ONE or ALL"),
    ],
)
async def test_what_is_no_message_is_refused(driver: Driver, fields: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"name": "paid", "key": "7", **fields}
    with pytest.raises(BadRequest, match=reason):
        await driver.publish(given.pop("name"), given.pop("key"), **given)
    assert driver.rows(MESSAGES) == []


async def test_where_it_stands_is_reported_with_the_message(driver: Driver) -> None:
    instance = await waiting(driver)
    found = await driver.engine.diagnosis.state(instance)
    assert (found.why.code, found.why.text) == ("waits-for-message", "w waits for the message 'paid' '7'")


async def test_kept_messages_are_listed_oldest_first(driver: Driver) -> None:
    for key in ("7", "8", "7"):
        await driver.publish("paid", key, {"n": key})
    listing = driver.engine.messages.listing
    page = await listing(None, None, None, 2)
    assert [(one.name, one.correlation_key, one.size_bytes, one.taken) for one in page.items] == [
        ("paid", "7", 9, False),
        ("paid", "8", 9, False),
    ]
    rest = await listing(None, None, page.next, 2)
    assert ([one.correlation_key for one in rest.items], rest.next) == (["7"], None)
    assert len((await listing("paid", "7", None, 0)).items) == 2
    assert (await listing("sent", None, None, 0)).items == []
    with pytest.raises(BadRequest):
        await listing(None, None, "no cursor", 0)


async def test_a_definition_with_a_message_needs_engines_that_know_it(driver: Driver) -> None:
    assert driver.rows("SELECT value FROM setting WHERE name = 'schema_version_needed'") == [("18",)]


async def test_what_is_refused_leaves_the_other_messages_of_its_batch(make_driver: MakeDriver) -> None:
    driver = make_driver(messages_kept_max_items=1)
    refused: list[PenstockError] = []

    async def publish(key: str) -> None:
        try:
            await driver.publish("paid", key, message_id=key)
        except TooManyRequests as error:
            refused.append(error)

    await driver.publish("paid", "first")
    await driver.upload(ORDER)
    instance = await waiting(driver, "goes")
    async with trio.open_nursery() as nursery:
        for key in ("goes", "refused"):
            nursery.start_soon(publish, key)
    assert len(refused) == 1
    assert await driver.open_steps(instance) == ["after"]
    assert driver.rows("SELECT id FROM message_id") == [("goes",)]
