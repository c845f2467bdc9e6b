"""Arguments that a workflow would not take are refused before its run begins, with name, value and what is allowed."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from penstock.client.errors import BadRequest as BadRequestOfClient
from penstock.core.graph.definition import InvalidDefinition
from penstock.durable import App, workflow
from penstock.durable.codec import decode
from penstock.durable.signature import Parameters
from penstock.durable.takes import NODES_MAX, schema_of, schema_of_arguments
from penstock.durable.workflow import Workflow
from penstock.engine.definitions.json_schema import WrongValue, find_problem
from penstock.errors import BadRequest, IdempotencyConflict
from penstock.rest.problems import problem_of
from penstock.wire.model import StartRequest
from penstock.wire.schedule import ScheduleSpec
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import ORDER, begin

__all__ = ["driver", "make_driver"]


class Color(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Strict(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    at: datetime


@dataclass
class Tree:
    name: str
    below: list[Tree] = field(default_factory=list)


class Options(TypedDict, total=False):
    gift: bool


class Point(NamedTuple):
    x: int
    y: int


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


class Customer(pydantic.BaseModel):
    name: str
    address: Address
    known_as: str = pydantic.Field(alias="knownAs")


class Own(pydantic.BaseModel):
    """Reads text, too."""

    value: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def read(cls, given: Any) -> Any:
        return {"value": given} if isinstance(given, int) else given


GOOD_AND_BAD: list[tuple[Any, str, str]] = [
    (int, "5", '"5" 5.5 5.0 true null [5]'),
    (float, "5 5.5", '"5" true null'),
    (str, '"x"', "5 null true"),
    (bool, "true", '1 "true" null'),
    (int | None, "5 null", '"5" true'),
    (int | str, '5 "x"', "5.5 null {}"),
    (Decimal, '"1.10" 1.10', 'true "x" null'),
    (datetime, '"2026-01-31T12:00:00Z"', '5 "soon" "2026-13-31T12:00:00Z"'),
    (timedelta, '"PT5M"', '5 "5m"'),
    (uuid.UUID, '"7a3f8c1e-1111-4222-8333-444455556666"', '"7a3f" 5'),
    (bytes, '"aGk="', '5 "§"'),
    (Literal["a", 1], '"a" 1', '"b" 2 true'),
    (Color, '"red"', '"blue" 1'),
    (list[int], "[] [1,2]", '["x"] 5 {} [1,null]'),
    (set[str], '["a"]', "[1] {}"),
    (tuple[int, str], '[1,"a"]', '[1] ["a",1] [1,"a",2]'),
    (dict[str, int], '{"a":1}', '{"a":"x"} []'),
    (Annotated[int, msgspec.Meta(gt=0, le=10)], "1 10", "0 11"),
    (Annotated[str, msgspec.Meta(min_length=2, max_length=3)], '"ab"', '"a" "abcd"'),
    (Annotated[list[int], msgspec.Meta(min_length=1)], "[1]", "[]"),
    (Item, '{"sku":"a"} {"sku":"a","x":1}', '{} {"sku":1} {"sku":"a","count":"2"} []'),
    (Strict, '{"type":"Strict","at":"2026-01-31T12:00:00Z"}', '{"type":"Strict"} {"type":"Strict","at":5} []'),
    (Tree, '{"name":"a","below":[{"name":"b"}]}', '{"below":[]} {"name":"a","below":5}'),
    (Options, '{} {"gift":true}', '{"gift":1} []'),
    (Point, "[1,2]", "5"),
    (Customer, '{"name":"a","address":{"street":"b","number":"7"},"knownAs":"c"}', '5 {"name":"a"} {"name":7}'),
    (Own, '5 {"value":5}', ""),
    (Any, '5 null {"a":[]}', ""),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "good", "bad"), GOOD_AND_BAD)
def test_a_schema_refuses_what_the_decoder_would(type_: Any, good: str, bad: str) -> None:
    schema = msgspec.json.decode(msgspec.json.encode(schema_of(type_)))
    for text in good.split():
        decode(text, type_)
        assert find_problem(schema, msgspec.json.decode(text), "value") is None, text
    for text in bad.split():
        with pytest.raises(ValueError):
            decode(text, type_)
        found = find_problem(schema, msgspec.json.decode(text), "value")
        assert found is not None, text
        assert found.path.startswith("value")


def test_a_schema_is_bounded() -> None:
    wide = msgspec.defstruct("Wide", [(f"f{n}", list[Item]) for n in range(NODES_MAX)])
    assert len(msgspec.json.encode(schema_of(wide))) < 200_000


def test_a_value_is_looked_at_for_so_long() -> None:
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": [{"type": "string"}] * 200}}
    assert find_problem(schema, [1] * 100_000) is not None
    assert find_problem({"anyOf": [{"type": "integer"}], "items": [[[]]]}, 5) is None


def takes(function: Callable[..., Any], name: str = "order") -> bytes:
    found = schema_of_arguments(Parameters(function), name)
    assert found is not None
    return found


async def of_order(amount: int, customer: Item, note: str = "") -> None: ...


async def of_later(amount: str) -> None: ...


async def of_schedule(schedule: dict[str, str], amount: int) -> None: ...


GOOD = {"amount": 5, "customer": {"sku": "a"}}
WRONG = [
    ({**GOOD, "amount": "5"}, 'amount: must be an integer, not "5"'),
    ({"amount": 5}, "customer: is missing"),
    ({**GOOD, "customer": {"sku": 7}}, "customer.sku: must be text, not 7"),
    ({**GOOD, "amonut": 5}, "amonut: is not one of its names: there are amount, customer, note"),
    ({**GOOD, "note": None}, "note: must be text, not null"),
]


async def publish(driver: Driver, function: Callable[..., Any] | None = of_order) -> None:
    await driver.engine.code.register(ORDER)
    await driver.engine.signatures.publish(ORDER.job_type, None if function is None else takes(function))


def asked(variables: dict[str, Any], **fields: Any) -> StartRequest:
    return StartRequest(definition_id="order", variables=msgspec.json.encode(variables), **fields)


@pytest.mark.parametrize(("arguments", "reported"), WRONG)
@pytest.mark.parametrize("key", [{}, {"instance_key": "17"}, {"idempotency_key": "17"}])
async def test_a_start_is_refused_by_name_value_and_what_is_allowed(
    driver: Driver, arguments: dict[str, Any], reported: str, key: dict[str, str]
) -> None:
    await publish(driver)
    with pytest.raises(WrongValue) as refused:
        await driver.engine.instances.start(asked(arguments, **key))
    assert refused.value.reason.startswith(
        f"arguments: {reported}. It takes order(amount: 'int', customer: 'Item', note"
    )
    answer = problem_of(refused.value)
    assert answer.status == 422
    assert msgspec.json.decode(answer.body or b"")["problems"][0]["path"] == reported.partition(":")[0]
    assert driver.rows("SELECT (SELECT count(*) FROM instance), (SELECT count(*) FROM idempotency)") == [(0, 0)]
    assert (await driver.engine.instances.start(asked({**GOOD, "$deadline_s": 5}, **key))).status == "ACTIVE"


async def test_neighbours_of_a_wrong_start_begin(driver: Driver) -> None:
    await publish(driver)
    found = await driver.engine.instances.start_batch([asked(GOOD), asked({}), asked(GOOD)])
    assert [result.error for result in found] == [None, "bad-request", None]


async def test_a_schedule_is_refused_when_it_is_made(driver: Driver) -> None:
    await publish(driver)
    wrong = ScheduleSpec(definition_id="order", every="PT1H", variables=msgspec.Raw(b'{"amount": "x"}'))
    with pytest.raises(WrongValue, match="customer: is missing"):
        await driver.engine.schedules.put("nightly", wrong)
    assert driver.rows("SELECT count(*) FROM schedule") == [(0,)]
    good = msgspec.Raw(msgspec.json.encode(GOOD))
    right = ScheduleSpec(definition_id="order", every="PT1H", overlap="ALLOW", variables=good)
    await driver.engine.schedules.put("nightly", right)
    assert (await driver.engine.schedules.trigger("nightly", None)).instance_id is not None
    await publish(driver, of_later)
    failed = await driver.engine.schedules.trigger("nightly", None)
    assert failed.instance_id is None
    assert (failed.reason or "").startswith("arguments: amount: must be text, not 5. It takes order(amount")


async def test_a_schedule_leaves_out_what_the_engine_adds(driver: Driver) -> None:
    await publish(driver, of_schedule)
    wrong = ScheduleSpec(definition_id="order", every="PT1H", variables=msgspec.Raw(b"{}"))
    with pytest.raises(WrongValue, match="arguments: amount: is missing"):
        await driver.engine.schedules.put("nightly", wrong)
    right = msgspec.structs.replace(wrong, variables=msgspec.Raw(b'{"amount":5}'))
    await driver.engine.schedules.put("nightly", right)
    begun = await driver.engine.schedules.trigger("nightly", None)
    assert begun.instance_id is not None
    started = msgspec.json.decode(bytes((await driver.engine.instances.get(begun.instance_id)).variables))
    assert (started["amount"], started["schedule"]["id"]) == (5, "nightly")
    with pytest.raises(WrongValue, match="schedule: is missing"):
        await driver.engine.instances.start(asked({"amount": 5}))


async def test_what_was_started_is_found_whatever_is_published_since(driver: Driver) -> None:
    await publish(driver)
    first = await driver.engine.code.start(ORDER, msgspec.json.encode(GOOD), id="17")
    await publish(driver, of_later)
    again = await driver.engine.code.start(ORDER, msgspec.json.encode(GOOD), id="17")
    assert again.id == first.id
    with pytest.raises(IdempotencyConflict):
        await driver.engine.code.start(ORDER, b'{"amount": 5}', id="17")
    with pytest.raises(WrongValue):
        await driver.engine.code.start(ORDER, msgspec.json.encode(GOOD), id="18")


async def test_a_run_that_calls_it_by_name_is_reported(driver: Driver) -> None:
    caller = await begin(driver)
    await publish(driver)
    with pytest.raises(WrongValue, match="amount: must be an integer"):
        await driver.engine.children.start(
            caller.run_lease, "/0", ORDER, b'{"amount": "x", "customer": {"sku": "a"}}', "c"
        )


async def test_what_is_published_elsewhere_counts(driver: Driver, make_driver: MakeDriver) -> None:
    """At once where it takes more, within seconds where it takes less."""
    await publish(driver, of_later)
    with pytest.raises(WrongValue):
        await driver.engine.instances.start(asked(GOOD))
    await publish(make_driver(), of_order)
    assert (await driver.engine.instances.start(asked(GOOD))).status == "ACTIVE"


@pytest.mark.parametrize("function", [None])
async def test_a_program_that_publishes_nothing_is_asked_itself(driver: Driver, function: None) -> None:
    await publish(driver)
    await publish(driver, function)
    assert (await driver.engine.instances.start(asked({"amount": "x"}))).status == "ACTIVE"


DEEP = b'{"type":"object","a":%b5%b}' % (b"[" * 70, b"]" * 70)


@pytest.mark.parametrize(
    "text",
    [b"5", b"{", b"{}", b'{"type":"object","title":"%b"}' % (b"x" * 70_000), DEEP],
)  # fmt: skip
async def test_what_is_no_schema_is_refused(driver: Driver, text: bytes) -> None:
    with pytest.raises(BadRequest, match="arguments_schema: "):
        await driver.engine.signatures.publish(ORDER.job_type, text)


@workflow(name="pay")
async def pay(amount: int) -> int:
    return amount


@workflow(name="pay")
async def pay_as_others_have_it(amount: str) -> str:
    return amount


async def test_an_app_publishes_what_its_workflows_take(at: str) -> None:
    async with App(pay, at=at, name="shop") as app, App(at=at, name="shop") as client:
        assert await (await app.start(pay, 5)).result(60) == 5
        other: Workflow[[str], str] = pay_as_others_have_it
        with pytest.raises(BadRequestOfClient, match='amount: must be an integer, not "five"'):
            await client.start(other, "five", id="17")
        assert await (await client.start(pay, 6, id="17")).result(60) == 6


@pytest.mark.parametrize(
    "keywords", ['"properties":5', '"required":5', '"properties":{"a":{"format":[]}}', '"properties":{"a":{"anyOf":5}}']
)
async def test_a_schema_of_no_known_form_says_nothing(driver: Driver, keywords: str) -> None:
    await driver.engine.code.register(ORDER)
    await driver.engine.signatures.publish(ORDER.job_type, f'{{"type":"object",{keywords}}}'.encode())
    assert (await driver.engine.instances.start(asked({"a": "x"}))).status == "ACTIVE"


def calls_order(given: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    call = {"id": "call", "name": "call", "type": "CALL_ACTIVITY", "definitionId": "order", "nextStep": "end", **more}
    if given is not None:
        call["input"] = given
    return {"id": "graph", "name": "graph", "steps": [call, {"id": "end", "name": "end", "type": "END"}]}


IN_GRAPH = {"amount": "${amount}", "customer": {"sku": "a"}}


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({**IN_GRAPH, "amount": True}, "steps[0].input.amount: must be an integer, not true"),
        ({"amount": "${amount}"}, "steps[0].input.customer: is missing"),
        ({**IN_GRAPH, "amonut": "${amount}"}, "steps[0].input.amonut: is not one of its names"),
        ({**IN_GRAPH, "note": None}, "steps[0].input.note: must be text, not null"),
        ({**IN_GRAPH, "customer": 7}, "steps[0].input.customer: must be an object, not 7"),
    ],
)
async def test_a_definition_whose_constants_do_not_fit_is_refused(
    driver: Driver, given: dict[str, Any], reported: str
) -> None:
    await publish(driver)
    with pytest.raises(InvalidDefinition) as refused:
        await driver.upload(calls_order(given))
    [problem] = refused.value.problems
    assert str(problem).startswith(reported)
    assert "'order' would not take it" in problem.reason
    await publish(driver, None)
    await driver.upload(calls_order(given))


@pytest.mark.parametrize(
    ("given", "variables", "reported"),
    [
        (IN_GRAPH, {"amount": "5"}, "amount: must be an integer; It takes order(amount: 'int'"),
        (None, {"amount": 5}, "customer: is missing; It takes order("),
        (None, {**GOOD, "more": 1}, "more: is not one of its names"),
    ],
)
async def test_a_step_that_calls_it_with_what_it_does_not_take_fails(
    driver: Driver, given: dict[str, Any] | None, variables: dict[str, Any], reported: str
) -> None:
    await publish(driver)
    instance = await driver.run(calls_order(given), variables)
    view = await driver.view(instance)
    assert view.status == "FAILED"
    assert (view.failure_reason or "").startswith(f"WrongArguments: step 'call' calls 'order': {reported}")
    assert driver.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_a_step_that_calls_it_with_what_it_takes_begins_and_after_a_repair(driver: Driver) -> None:
    await publish(driver)
    instance = await driver.run(calls_order(IN_GRAPH), {"amount": 5})
    assert await driver.status(instance) == "ACTIVE"
    assert driver.rows("SELECT count(*) FROM instance") == [(2,)]
    wrong = await driver.run(calls_order(IN_GRAPH), {"amount": "5"})
    assert await driver.status(wrong) == "FAILED"
    await publish(driver, None)
    await driver.retry(wrong)
    assert await driver.status(wrong) == "ACTIVE"


async def test_the_call_for_one_of_many_items_fails_alone(driver: Driver) -> None:
    await publish(driver)
    each = {"items": "${amounts}", "as": "amount", "onError": "COLLECT", "collect": "${result}", "into": "all"}
    instance = await driver.run(calls_order(IN_GRAPH, forEach=each), {"amounts": [1, "2", 3]})
    assert await driver.status(instance) == "ACTIVE"
    assert driver.rows("SELECT count(*) FROM instance") == [(3,)]


async def test_an_error_boundary_takes_a_call_with_wrong_arguments(driver: Driver) -> None:
    await publish(driver)
    caught = [{"type": "ERROR", "errorCodes": ["Penstock.ChildFailed"], "targetStepId": "end"}]
    instance = await driver.run(calls_order(IN_GRAPH, boundaryEvents=caught), {"amount": "5"})
    assert await driver.status(instance) == "COMPLETED"


@pytest.mark.parametrize(
    ("variables", "status", "reported"),
    [
        (GOOD, "COMPLETED", None),
        ({**GOOD, "amount": "5"}, "FAILED", "WrongArguments: 'order' follows: amount: must be an integer; It takes"),
        ({"amount": 5}, "FAILED", "WrongArguments: 'order' follows: customer: is missing"),
    ],
)
async def test_what_follows_a_definition_is_asked_too(
    driver: Driver, variables: dict[str, Any], status: str, reported: str | None
) -> None:
    await publish(driver)
    end = [{"id": "end", "name": "end", "type": "END"}]
    graph = {"id": "graph", "name": "graph", "steps": end, "nextWorkflowId": "order", "autoStartNextWorkflow": True}
    view = await driver.view(await driver.run(graph, variables))
    assert view.status == status
    assert view.failure_reason == reported or (view.failure_reason or "").startswith(reported or "-")
    assert driver.rows("SELECT count(*) FROM instance") == [(2 if reported is None else 1,)]
