"""What is checked before it is uploaded: all that is wrong, and what an expression gives; nothing is stored."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec
import pytest
from psycopg import OperationalError

from penstock.core.graph.definition import DefinitionLimits
from penstock.core.parsing import form_hints
from penstock.errors import BadRequest, NotFound, PayloadTooLarge
from penstock.testing.definitions import definition, end, linear, service, step
from penstock.wire.drafts import DraftCheck, ExpressionCheck, ExpressionVerdict
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import assign, choose, wait


@pytest.fixture
def driver(make_driver: MakeDriver) -> Driver:
    return make_driver()


async def validate(driver: Driver, given: dict[str, Any] | bytes) -> DraftCheck:
    body = given if isinstance(given, bytes) else msgspec.json.encode(given)
    found = await driver.engine.drafts.validate(body)
    assert driver.rows("SELECT count(*) FROM definition") == [(len(driver.engine.definitions._by_key),)]
    return found


async def check(driver: Driver, expression: str, **given: Any) -> ExpressionVerdict:
    if "variables" in given:
        given["variables"] = msgspec.Raw(msgspec.json.encode(given["variables"]))
    return await driver.engine.drafts.check_expression(ExpressionCheck(expression, **given))


CHOICE = definition(
    choose("choose", {"amount > limit": "pay", "vip": "wait"}),
    service("pay", "set", job_type="pay"),
    wait("wait", "set", duration="${pause}"),
    assign("set", {"total": "${amount + fee}", "text": "amount"}),
    end(),
    definition_id="choice",
)


async def test_a_valid_definition_tells_what_it_reads(driver: Driver) -> None:
    found = await validate(driver, CHOICE)
    assert (found.valid, found.problems, found.same, found.latest) == (True, [], None, None)
    assert found.identifiers == ["amount", "fee", "limit", "pause", "vip"]
    assert [(hint.path, hint.kind) for hint in found.hints] == [
        ("steps[0].conditionalNextSteps", "NO_OTHERWISE"),
        ("steps[1].jobType", "NOBODY_POLLS"),
    ]
    await driver.upload(CHOICE)
    await driver.upload(CHOICE | {"name": "another"})
    for name, versions in ((CHOICE["name"], (1, 2)), ("another", (2, 2)), ("a third", (None, 2))):
        found = await validate(driver, CHOICE | {"name": name})
        assert (found.same, found.latest) == versions


async def test_where_a_definition_reads_is_reported_on_request(driver: Driver) -> None:
    body = definition(
        choose("choose", {"customer.tier == 'new'": "set", "true": "wait"}),
        wait("wait", "set", duration="${pause ?? 'PT1H'}"),
        assign("set", {"total": "${amount + fee}"}),
        end(),
    )
    found = await driver.engine.drafts.validate(msgspec.json.encode(body), with_reads=True)
    assert [(one.path, one.name, one.start, one.end, one.dot) for one in found.reads or []] == [
        ("steps[0].conditionalNextSteps[\"customer.tier == 'new'\"]", "customer", 0, 13, 8),
        ("steps[2].transformations.total", "amount", 2, 8, None),
        ("steps[2].transformations.total", "fee", 11, 14, None),
    ]
    assert (await validate(driver, body)).reads is None


async def test_lists_and_keys_are_read_items_are_not(driver: Driver) -> None:
    """All that an engine evaluates, but for names that a forEach or a call gives its expressions."""
    each = {
        "items": "${order.lines}", "as": "line", "index": "at", "collect": "${result.fee + at + rate}", "into": "fees",
        "until": "${len(items) > enough}",
    }  # fmt: skip
    calls = {"definitionId": "other", "businessKey": "${line.id + prefix}", "input": {"a": "${line}", "b": "${vat}"}}
    named = {"name": "paid", "correlationKey": "${orderId}"}
    body = definition(
        step("call", "CALL_ACTIVITY", nextStep="pay", forEach=each, **calls),
        step("ask", "CALL_ACTIVITY", nextStep="wait", definitionId="other", output={"got": "${result.total}"}),
        service("pay", "ask", flowKey="${shop}", priority="${haste}"),
        step("wait", "WAIT", nextStep="end", message=named),
        step("end", "END", output={"sum": "${total}"}),
        flowKey="${customer.id}",
        start={"dedupe": {"key": "${reference}", "window": "PT1H"}},
    )
    found = await driver.engine.drafts.validate(msgspec.json.encode(body), with_reads=True)
    assert [(one.path, one.reason) for one in found.problems] == []
    assert [(one.path, one.name) for one in found.reads or []] == [
        ("start.dedupe.key", "reference"),
        ("flowKey", "customer"),
        ("steps[0].forEach.items", "order"),
        ("steps[0].businessKey", "prefix"),
        ("steps[0].input.b", "vat"),
        ("steps[0].forEach.collect", "rate"),
        ("steps[0].forEach.until", "enough"),
        ("steps[2].flowKey", "shop"),
        ("steps[2].priority", "haste"),
        ("steps[3].message.correlationKey", "orderId"),
        ("steps[4].output.sum", "total"),
    ]
    assert set(found.identifiers) == {one.name for one in found.reads or []}


async def test_a_field_that_does_nothing_is_hinted_at_and_kept(driver: Driver) -> None:
    ask = step("ask", "USER_TASK", nextStep="end", jobType="w", compensation={"jobType": "undo"}, duration="PT1H")
    body = definition(ask, step("end", "END", description="d", retryCount=1), definition_id="odd")
    found = await validate(driver, body)
    assert found.valid
    assert {(hint.path, hint.text) for hint in found.hints} == {
        ("steps[0].compensation", "USER_TASK does not use it: it is kept, and does nothing"),
        ("steps[0].duration", "USER_TASK does not use it: it is kept, and does nothing"),
        ("steps[1].retryCount", "END does not use it: it is kept, and does nothing"),
    }
    await driver.upload(body)
    assert (await validate(driver, body)).same == 1


async def test_a_way_that_is_never_taken_is_hinted_at(driver: Driver) -> None:
    body = definition(choose("choose", {"false": "end", "false || false": "end", "true": "end"}), end())
    found = await validate(driver, body)
    paths = [f"steps[0].conditionalNextSteps{key}" for key in (".false", '["false || false"]')]
    assert [(hint.path, hint.text[:10]) for hint in found.hints] == [(path, "never true") for path in paths]


async def test_forms_for_people_are_read_before_anybody_sees_them(driver: Driver) -> None:
    amount = {"title": "Amount", "type": "integer"}
    whole = {"summary": "'Pay ' + string(amount)", "schema": {"properties": {"amount": amount}, "required": ["amount"]}}
    deep = {"type": "object", "properties": {"a": {"type": "text"}}, "required": ["b", 1]}
    broken: dict[str, object] = {
        "ask": {"summary": "amuont + 1 +", "schema": {"properties": {"in": deep}, "items": 7, "required": "in"}},
        "again": {"summary": "string(amuont) + other", "schema": {"properties": {"amount": amount}}},
        "pay": {"summary": 5},
        "a b": "none",
        "long": {"summary": "'" + "x" * 500 + "'", "schema": []},
    }
    asks = [step(name, "USER_TASK", nextStep=to) for name, to in (("ask", "again"), ("again", "long"), ("long", "end"))]
    body = definition(*asks, end(), definition_id="asked", metadata={"forms": {"ask": whole}})
    assert (await validate(driver, body)).hints == []
    body["metadata"] = {"forms": broken, "exampleVariables": {"amount": 3}}
    found = await validate(driver, body)
    assert found.valid
    assert [(hint.path.removeprefix("metadata.forms"), hint.text) for hint in found.hints] == [
        (
            ".ask.summary",
            "tasks go without it: unexpected the end of the expression (line 1, column 13 of `amuont + 1 +`)",
        ),
        (".ask.schema.required", "must be a list of names of fields, not a string"),
        (".ask.schema.properties.in.required[0]", 'no field of the form is called "b"'),
        (".ask.schema.properties.in.required[1]", "no field of the form is called a number"),
        (".ask.schema.properties.in.properties.a.type", IS_NO_TYPE),
        (".ask.schema.items", "must be an object, not a number"),
        (".again.summary", 'nothing else here is called "amuont": is "amount" meant?'),
        (".pay", "no user task has this id: nobody sees the form"),
        (".pay.summary", "must be an expression, as text, not a number"),
        ('["a b"]', "no user task has this id: nobody sees the form"),
        ('["a b"]', "must be an object with `schema` and `summary`, not a string"),
        (".long.summary", "is longer than 500 characters: tasks go without it"),
        (".long.schema", "must be an object, not an array"),
    ]
    body["metadata"] = {"forms": []}
    (hint,) = (await validate(driver, body)).hints
    assert hint.path == "metadata.forms"


async def test_what_forms_may_mean_is_looked_for_in_bounds(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names they show: a draft of 31 KB took seconds, in which nothing else of the engine was computed."""
    compared = 0

    def counted(word: str, possibilities: list[str], n: int, cutoff: float) -> list[str]:
        nonlocal compared
        compared += len([*possibilities])
        return get_close_matches(word, possibilities, n, cutoff)

    monkeypatch.setattr(form_hints, "get_close_matches", counted)
    forms = {"ask": {"summary": f"[{', '.join(f'name_{n:02}' for n in range(50))}]"}, "again": {"summary": "name_00"}}
    body = definition(*(step(name, "USER_TASK", nextStep="end") for name in forms), end(), definition_id="many")
    body["metadata"] = {"forms": forms, "exampleVariables": {f"name_{n}" + "x" * (n == 0): 1 for n in range(100)}}
    reported = [hint.path for hint in (await validate(driver, body)).hints]
    assert (compared, len(reported)) == (1_000, 11), "of ten names, one of them twice"
    long = {"forms": {"ask": {"summary": "a" * 40}}, "exampleVariables": {"a" * 41: 1}}
    assert (await validate(driver, body | {"metadata": long})).hints == []


IS_NO_TYPE = 'must be one of string, number, integer, boolean, array, object, not "text": it is asked for as JSON'


async def test_each_problem_names_its_step(driver: Driver) -> None:
    bad = definition(service("a", "nowhere", job_type="x"), choose("b", {"1 +": "end"}), end(), definition_id="bad")
    found = await validate(driver, bad)
    assert not found.valid
    assert {(problem.path, problem.step_id) for problem in found.problems} >= {
        ("steps[0].nextStep", "a"),
        ("steps[1]", "b"),
    }
    for body in (b"{", b"[]", b'{"steps": [7, {"id": 1}]}', b'{"steps": 7}'):
        found = await validate(driver, body)
        assert found.problems
        assert {problem.step_id for problem in found.problems} == {None}
    code = await validate(driver, linear(1, job_type="code:x"))
    assert [(problem.path, problem.step_id) for problem in code.problems] == [("steps[0].jobType", "task-1")]
    with pytest.raises(PayloadTooLarge):
        await validate(driver, linear(1) | {"description": "x" * DefinitionLimits().body_max_bytes})


async def test_a_definition_with_problems_is_hinted_at_too(driver: Driver) -> None:
    """As far as it can be read: nothing is told that a problem could be the reason of."""
    ask = step("ask", "USER_TASK", nextStep="pay", duration="PT1H")
    pay = service("pay", "gone", job_type="pay", retryCount=-1)
    form: dict[str, Any] = {"schema": {"properties": {}, "required": ["note"]}}
    asked = {"metadata": {"forms": {"ask": form}}}
    fork = choose("fork", {"false": "end", "true": "end"})
    body = definition(ask, pay, fork, end(), definition_id="bad") | asked
    unused = ("steps[0].duration", "USER_TASK does not use it: it is kept, and does nothing")
    never = ("steps[2].conditionalNextSteps.false", "never true: nothing goes this way until it has a condition")
    polled = ("steps[1].jobType", "nobody polls for pay now")
    formed = ("metadata.forms.ask.schema.required[0]", 'no field of the form is called "note"')
    found = await validate(driver, body)
    assert {one.path for one in found.problems} >= {"steps[1].nextStep", "steps[1].retryCount"}
    assert [(hint.path, hint.text) for hint in found.hints] == [never, formed, unused, polled]
    # What is no step, or has no type, leads to no wrong word about forms; neither does what an expression would read.
    for index, changes in ((0, {"type": "USER"}), (1, {"jobType": ""}), (2, {"conditionalNextSteps": {"1 +": "end"}})):
        steps = [ask, pay, fork, end()]
        steps[index] = steps[index] | changes
        reported = [(hint.path, hint.text) for hint in (await validate(driver, body | {"steps": steps})).hints]
        assert reported == ([never, polled], [never, formed, unused], [unused, polled])[index]
    for nothing in (b"{", b"[]", b'{"steps": [7, {"id": 1}]}', b"[" * 200 + b"]" * 200):
        assert (await validate(driver, nothing)).hints == []


async def test_problems_that_are_not_told_lead_to_no_hint(driver: Driver) -> None:
    """Among those beyond the first 1,000 may be an expression that can't be read, and reads what a form shows."""
    bad = [service(f"s{n}", "none", job_type="x", retryCount=-1) for n in range(1_000)]
    body = definition(
        step("ask", "USER_TASK", nextStep="one"),
        choose("one", {"amount > 1": "two", "true": "end"}),
        *bad,
        choose("two", {"amuont > (": "end"}),
        end(),
        definition_id="bad",
    ) | {"metadata": {"forms": {"ask": {"summary": "amuont"}}}}
    found = await validate(driver, body)
    assert found.problems[-1].reason.endswith("more problems")
    assert not [hint for hint in found.hints if hint.path.startswith("metadata")]


async def test_problems_are_reported_while_the_database_is_away(make_driver: MakeDriver) -> None:
    """Only the hint that nobody polls is left out."""
    away = make_driver(dsn="postgresql://nobody@127.0.0.1:1/nothing").engine.drafts
    ask = step("ask", "USER_TASK", nextStep="pay", duration="PT1H")
    body = definition(ask, service("pay", "gone", job_type="pay"), end(), definition_id="bad")
    found = await away.validate(msgspec.json.encode(body))
    assert {one.path for one in found.problems} >= {"steps[1].nextStep", "steps[2]"}
    assert [hint.path for hint in found.hints] == ["steps[0].duration"]
    with pytest.raises(OperationalError):
        await away.validate(msgspec.json.encode(linear(1)))


async def test_a_look_at_a_draft_takes_one_connection(driver: Driver) -> None:
    pool = driver.engine.drafts._database.pool
    bad = service("pay", "gone", job_type="pay"), service("two", "gone", job_type="two")
    probes: list[tuple[dict[str, Any], int]] = [
        (linear(2), 1),
        (definition(*bad, definition_id="bad"), 1),
        (definition(wait("w", "gone"), definition_id="bad"), 0),
    ]
    for body, taken in probes:
        before = pool.statistics().acquired
        await validate(driver, body)
        assert pool.statistics().acquired - before == taken


async def test_what_a_definition_can_not_read_has_its_character(driver: Driver) -> None:
    bad = definition(
        choose("a", {"'😀' + (": "end", "1 > 0": "gone"}),
        step("b", "TRANSFORMATION", transformations={"x": "${ y $ }"}, nextStep="end"),
        end(),
        definition_id="bad",
    )
    found = await validate(driver, bad)
    assert [(one.path, one.character) for one in found.problems if one.character is not None] == [
        ("steps[0].conditionalNextSteps[\"'😀' + (\"]", 7),
        ("steps[1].transformations.x", 5),
    ]
    assert len(found.problems) > 2


async def test_an_expression_is_tried_with_variables(driver: Driver) -> None:
    found = await check(driver, "amount * 2", variables={"amount": 21})
    assert (found.ok, bytes(found.value or b""), found.identifiers) == (True, b"42", ["amount"])
    found = await check(driver, "${ nothing }", variables={"nothing": None})
    assert bytes(found.value or b"") == b"null"
    read = await check(driver, "amount * 2")
    assert (read.ok, read.value, read.value_error) == (True, None, None)
    instance = await driver.run(linear(1), {"amount": 5})
    assert bytes((await check(driver, "amount > 4", kind="condition", instance_id=instance)).value or b"") == b"true"


async def test_a_problem_names_its_characters(driver: Driver) -> None:
    source = "amount + missing"
    unread = (await check(driver, "amount +* 2")).problem
    assert unread is not None
    assert (unread.start, unread.end) == (8, 9)
    ends = (await check(driver, "amount +")).problem
    assert ends is not None
    assert (ends.start, ends.end) == (8, 8)
    found = await check(driver, source, variables={"amount": 1})
    assert found.ok
    assert found.value_error is not None
    assert source[found.value_error.start : found.value_error.end] == "missing"
    reported = (await check(driver, source, kind="condition", variables={"amount": 1, "missing": 2})).value_error
    assert reported is not None
    assert (reported.reason, reported.start, reported.end) == ("a condition must give true or false", 0, len(source))


async def test_work_and_answer_are_bounded(driver: Driver) -> None:
    over = "sum(map(1..9999, # * sum(map(1..9999, #))))"
    for source in (over, '"x" * 1', "map(1..99999, string(# * 1000000))"):
        found = await check(driver, source, variables={})
        assert found.ok
        assert found.value_error is not None
    assert not (await check(driver, "1 + " * 5_000 + "1")).ok
    large = driver.engine.limits.variables_max_bytes
    with pytest.raises(PayloadTooLarge):
        await check(driver, "1", variables={"x": "x" * large})
    instance = await driver.run(linear(2, job_type="j"), {"x": "x" * (large - 100)})
    await driver.complete(await driver.one("j"), {"y": "y" * 1_000})
    with pytest.raises(PayloadTooLarge, match="the instance has more than"):
        await check(driver, "1", instance_id=instance)


async def test_what_can_not_be_asked_is_refused(driver: Driver) -> None:
    with pytest.raises(BadRequest, match="kind: must be one of condition, value"):
        await check(driver, "1", kind="number")
    with pytest.raises(BadRequest, match="instanceId: can't be combined with variables"):
        await check(driver, "1", variables={}, instance_id="1f")
    with pytest.raises(BadRequest, match="variables"):
        await check(driver, "1", variables=[])
    with pytest.raises(NotFound):
        await check(driver, "1", instance_id="1f")


async def test_what_a_call_takes_that_no_end_of_its_child_gives_is_reported(driver: Driver) -> None:
    called = step("c", "CALL_ACTIVITY", definitionId="child", output={"a": "${result.prise}"}, nextStep="end")
    caller = definition(called, end())
    assert (await validate(driver, caller)).hints == []
    await driver.upload(definition(step("end", "END", output={"price": 1}), definition_id="child"))
    [hint] = (await validate(driver, caller)).hints
    assert (hint.path, hint.kind) == ("steps[0].output.a", "CHILD")
    assert hint.text == 'no end of "child" gives "prise": the result has price'
