from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.expression import parse
from penstock.core.graph.definition import (
    Backoff,
    Boundary,
    Definition,
    DefinitionLimits,
    InvalidDefinition,
    Step,
    StepType,
)
from penstock.core.parsing.parsing import parse_definition
from penstock.errors import PayloadTooLarge
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step, timer
from penstock.testing.random_definitions import definitions

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = {"id": "a", "name": "A", "steps": [{"id": "end", "name": "End", "type": "END"}]}


def problems_of(body: object, limits: DefinitionLimits | None = None) -> list[tuple[str, str]]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(body, limits=limits or DefinitionLimits())
    return [(problem.path, problem.reason) for problem in caught.value.problems]


def text_with(member: str) -> bytes:
    """A valid definition's text with one more member of the top level, as it is."""
    return b'{"id": "a", "name": "A", "steps": [{"id": "end", "name": "End", "type": "END"}], %b}' % member.encode(
        "utf-8", "surrogatepass"
    )


# -------------------------------------------------------------------------------------------- the model


def a_step(**fields: Any) -> Step:
    defaults: dict[str, Any] = {
        "description": None, "next": None, "conditions": (), "transformations": (), "branches": (), "join": None,
        "job_type": None, "delegate_class": None, "retry_count": 0, "boundaries": (), "backoff": None,
        "timeout_s": None, "duration": None, "until": None, "buffer": False,
    }  # fmt: skip
    return Step(**{**defaults, **fields})


def test_every_field_of_every_type_is_read() -> None:
    parsed = parse_definition({
        "id": "LOS::loan", "name": "Loan", "description": "d", "autoStartNextWorkflow": True,
        "nextWorkflowId": "LOS::next", "metadata": {"b": [None, ""], "a": 10**40},
        "steps": [
            step("t", "TRANSFORMATION", transformations={"z": 1, "a": "${z + 1}", "n": None, "s": "${"}, nextStep="s"),
            service("s", "f", description="d", delegateClass="com.x.Y", retryCount=3, timeout="PT1H",
                    retryBackoff={"initial": "PT5S", "multiplier": 3, "max": "PT10M", "jitter": 0.2},
                    boundaryEvents=[timer("end", "PT1H30M"), timer("w", "P1W", interrupting=True)],
                    conditionalNextSteps={"z > 1": "f", "a == 2": "u"}),
            step("u", "USER_TASK", nextStep="w"),
            step("v", "USER_TASK", jobType="officer"),
            step("d", "DECISION", conditionalNextSteps={"b": "v", "a": "w", "true": "end"}),
            step("w", "WAIT", nextStep="x", duration="PT0.5S", buffer=True),
            step("x", "WAIT", nextStep="y", duration="${z}"),
            step("y", "WAIT", nextStep="d", until="2031-05-04T12:00:00Z"),
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["g", "j", "g"], joinStep="j"),
            step("g", "WAIT", nextStep="j", until="${now()}"),
            step("j", "JOIN_GATEWAY", nextStep="u"),
            end(),
        ],
    })  # fmt: skip
    assert (parsed.id, parsed.name, parsed.description) == ("LOS::loan", "Loan", "d")
    assert (parsed.auto_start_next, parsed.next_workflow_id) == (True, "LOS::next")
    assert parsed.metadata == {"b": [None, ""], "a": 10**40}
    assert parsed.single_token is False
    assert parsed.steps == (
        a_step(
            index=0, id="t", name="t", type=StepType.TRANSFORMATION, next=1,
            transformations=(("z", 1), ("a", parse("${z + 1}")), ("n", None), ("s", "${")),
        ),
        a_step(
            index=1, id="s", name="s", type=StepType.SERVICE_TASK, next=8, description="d", job_type="work",
            delegate_class="com.x.Y", retry_count=3, timeout_s=3_600.0, backoff=Backoff(5.0, 3.0, 600.0, 0.2),
            boundaries=(Boundary("PT1H30M", 5_400.0, False, 11), Boundary("P1W", 604_800.0, True, 5)),
            conditions=((parse("z > 1"), 8), (parse("a == 2"), 2)),
        ),
        a_step(index=2, id="u", name="u", type=StepType.USER_TASK, next=5, job_type="u"),
        a_step(index=3, id="v", name="v", type=StepType.USER_TASK, job_type="officer"),
        a_step(
            index=4, id="d", name="d", type=StepType.DECISION,
            conditions=((parse("b"), 3), (parse("a"), 5), (parse("true"), 11)),
        ),
        a_step(index=5, id="w", name="w", type=StepType.WAIT, next=6, duration=0.5, buffer=True),
        a_step(index=6, id="x", name="x", type=StepType.WAIT, next=7, duration=parse("${z}")),
        a_step(index=7, id="y", name="y", type=StepType.WAIT, next=4, until="2031-05-04T12:00:00Z"),
        a_step(index=8, id="f", name="f", type=StepType.PARALLEL_GATEWAY, branches=(9, 10, 9), join=10),
        a_step(index=9, id="g", name="g", type=StepType.WAIT, next=10, until=parse("${now()}")),
        a_step(index=10, id="j", name="j", type=StepType.JOIN_GATEWAY, next=2),
        a_step(index=11, id="end", name="end", type=StepType.END),
    )  # fmt: skip


def test_what_is_absent_has_its_default() -> None:
    parsed = parse_definition(SMALL)
    assert (parsed.description, parsed.auto_start_next, parsed.next_workflow_id, parsed.metadata) == (
        None, False, None, None,
    )  # fmt: skip
    assert parsed.steps == (a_step(index=0, id="end", name="End", type=StepType.END),)
    body = definition(service("a", "end", boundaryEvents=[timer("end")], retryBackoff={"initial": "PT2H"}), end())
    del body["steps"][0]["boundaryEvents"][0]["interrupting"]  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
    first = parse_definition(body).steps[0]
    assert (first.retry_count, first.delegate_class, first.timeout_s) == (0, None, None)
    assert [timer.interrupting for _, timer in first.timers] == [False]
    assert first.backoff == Backoff(initial_s=7_200.0, multiplier=2.0, max_s=7_200.0, jitter=0.0)
    body["steps"][0]["retryBackoff"] = {"initial": "PT1S"}  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
    assert parse_definition(body).steps[0].backoff == Backoff(1.0, 2.0, 3_600.0, 0.0)


def test_unused_fields_are_kept_in_the_content_only() -> None:
    body = definition(
        service("a", "end", transformations={"x": 1}, parallelNextSteps=["ghost"], joinStep="ghost", duration="never",
                buffer=True),
        step("end", "END", jobType="x", nextStep="a", delegateClass="c", retryCount=4, timeout="PT1S",
             conditionalNextSteps={"x >": "ghost"}, boundaryEvents=[timer("ghost")]),
    )  # fmt: skip
    parsed = parse_definition(body)
    assert parsed.steps == (
        a_step(index=0, id="a", name="a", type=StepType.SERVICE_TASK, job_type="work", next=1),
        a_step(index=1, id="end", name="end", type=StepType.END),
    )
    assert json.loads(parsed.content) == body
    assert parsed.single_token is True


def test_steps_are_found_by_id() -> None:
    parsed = parse_definition(linear(2))
    assert parsed.step("task-2") is parsed.steps[1]
    assert parsed.step("Task-2") is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("s matches '[^a]{{900}}{n}'", "the regular expressions are too large together"),
        ("n" + " + 1" * 1_500 + " == {n}", "names, literals and operators"),
        ("(1" + " + 1" * 1_500 + ", {n}", "names, literals and operators"),  # those that are wrong cost as much
    ],
)
def test_expressions_are_bounded_together(source: str, reason: str) -> None:
    """20,000 regular expressions in 1.3 MB took 37 s, and kept up to 128 kB each."""
    body = definition(
        *(
            step(f"d{n}", "DECISION", conditionalNextSteps={source.format(n=n): "end", "true": f"d{n + 1}"})
            for n in range(200)
        ),
        step("d200", "DECISION", conditionalNextSteps={"true": "end"}),
        end(),
    )
    with pytest.raises(InvalidDefinition, match=reason):
        parse_definition(body)


def test_inside_holds_the_steps_of_a_block() -> None:
    parsed = parse_definition(fork(2, 1, 0))
    inside = {step.id for step in parsed.steps if parsed.is_inside(0, step.index)}
    assert inside == {"branch-1-task-1", "branch-1-task-2", "branch-2-task-1"}


@pytest.mark.parametrize(
    ("body", "single"),
    [
        (linear(), True),
        (fork(), False),
        (definition(service("a", "end", boundaryEvents=[timer("end", interrupting=True)]), end()), True),
        (definition(service("a", "end", boundaryEvents=[timer("end")]), end()), False),
        (definition(step("end", "END", boundaryEvents=[timer("x")])), True),
    ],
)  # fmt: skip
def test_a_definition_knows_whether_two_steps_may_be_open(body: Json, single: bool) -> None:
    assert parse_definition(body).single_token is single


def test_a_definition_cannot_be_changed() -> None:
    parsed = parse_definition(linear())
    with pytest.raises(AttributeError):
        parsed.name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue] - on purpose, or JSON of its own making
    with pytest.raises(AttributeError):
        parsed.steps[0].retry_count = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue] - on purpose, or JSON of its own making


# ---------------------------------------------------------------------------------- the canonical content


def test_content_has_the_fields_in_order_without_empty_ones() -> None:
    body = b"""{
      "version": 7, "steps": [
        {"nextStep": "z", "retryCount": 0, "jobType": "w", "type": "SERVICE_TASK", "name": "A", "id": "a",
         "timeout": "",
         "boundaryEvents": [{"targetStepId": "z", "interrupting": false, "duration": "PT1H", "type": "TIMER"}],
         "retryBackoff": {"jitter": 0.50, "initial": "PT1S"}, "delegateClass": null, "transformations": {}},
        {"type": "END", "id": "z", "name": "Z\\u00e4\\ud83d\\udea0"}],
      "nextWorkflowId": "", "name": "N", "description": null, "autoStartNextWorkflow": false, "id": "x",
      "metadata": {"b": null, "a": "", "n": 1.0, "m": -0, "z": [ ]}}"""
    assert parse_definition(body).content == (
        '{"id":"x","name":"N","autoStartNextWorkflow":false,"steps":[{"id":"a","name":"A","type":"SERVICE_TASK",'
        '"jobType":"w","retryCount":0,"retryBackoff":{"initial":"PT1S","jitter":0.5},"nextStep":"z",'
        '"transformations":{},"boundaryEvents":[{"type":"TIMER","duration":"PT1H","interrupting":false,'
        '"targetStepId":"z"}]},{"id":"z","name":"Zä🚠","type":"END"}],'
        '"metadata":{"b":null,"a":"","n":1.0,"m":0,"z":[]}}'
    )


def test_order_white_space_and_escapes_are_not_content() -> None:
    one = b'{"id":"a","name":"\\u0041","steps":[{"id":"e","name":"E","type":"END"}]}'
    other = (
        b'\xef\xbb\xbf\n{ "version": 3, "steps" : [{"type":"END","name":"E","id":"e","description":""}],\n'
        b'\t"name":"A","id":"a"}\n'
    )
    assert parse_definition(one) == parse_definition(other)


@pytest.mark.parametrize(
    "swapped",
    [
        definition(step("d", "DECISION", conditionalNextSteps={"b": "y", "a": "x"}), end("x"), end("y")),
        definition(step("d", "DECISION", conditionalNextSteps={"a": "x", "b": "y"}), end("y"), end("x")),
    ],
)
def test_the_order_of_conditions_and_steps_is_content(swapped: Json) -> None:
    plain = definition(step("d", "DECISION", conditionalNextSteps={"a": "x", "b": "y"}), end("x"), end("y"))
    assert parse_definition(swapped).content != parse_definition(plain).content


def test_the_order_of_transformations_and_metadata_is_content() -> None:
    def made(order: list[str], metadata: list[str]) -> str:
        first = step("t", "TRANSFORMATION", transformations=dict.fromkeys(order, 1), nextStep="end")
        parsed = parse_definition(definition(first, end(), metadata=dict.fromkeys(metadata)))
        assert [name for name, _ in parsed.steps[0].transformations] == order
        return parsed.content

    assert len({made(["b", "a"], ["x", "y"]), made(["a", "b"], ["x", "y"]), made(["a", "b"], ["y", "x"])}) == 3


def test_a_step_named_like_a_json_number_or_escape_survives() -> None:
    awkward = 'Ä "1\\\t\u2028\U0001f6a0'
    parsed = parse_definition(json.dumps(definition(service(awkward, "end"), end())).encode())
    assert parsed.steps[0].id == awkward
    assert parse_definition(parsed.content.encode()) == parsed


_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abä .", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(body=definitions(), metadata=st.dictionaries(st.text("xyö", max_size=3), _json_values, max_size=4))
def test_any_valid_definitions_content_parses_to_an_equal_one(body: Json, metadata: Json) -> None:
    body = {**body, "metadata": metadata}
    parsed = parse_definition(body)
    assert parse_definition(parsed.content.encode()) == parsed
    assert parse_definition(json.dumps(body).encode()) == parsed
    assert parsed.metadata == metadata
    # Nothing of what was given is missing.
    assert json.loads(parsed.content) == body
    visible = parsed.steps[: len(body["steps"])]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - JSON of its own making
    assert [one.id for one in visible] == [one["id"] for one in body["steps"]]  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues] - on purpose, or JSON of its own making


# ------------------------------------------------------------------------------------------- reading text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON: Expecting value, at line 1 column 1 (character 0)"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes, at line 1 column 2 (character 1)"),
        (b'{"id": "a",\n "name": }', "not JSON: Expecting value, at line 2 column 10 (character 21)"),
        (b"{} {}", "not JSON: Extra data, at line 1 column 4 (character 3)"),
        (b"<definitions/>", "not JSON: Expecting value, at line 1 column 1 (character 0)"),
        (b'{"id": "a\x00"}', "not JSON: Invalid control character at, at line 1 column 10 (character 9)"),
        (b'{"id": \x00}', "not JSON: Expecting value, at line 1 column 8 (character 7)"),
        (b'{"id": "\xff"}', "not UTF-8: byte 8 is 0xff"),
        (b'{"id": "\xed\xa0\x80"}', "not UTF-8: byte 8 is 0xed"),
        ('{"id": "a"}'.encode("utf-16"), "not UTF-8: byte 0 is 0xff"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 500_000, "nested too deeply"),
        (b"[]", "a definition must be an object, not an array"),
        (b'"text"', "a definition must be an object, not a string"),
        (b"null", "a definition must be an object, not null"),
        (b"true", "a definition must be an object, not true"),
        (b"17", "a definition must be an object, not a number"),
    ],
)
def test_text_without_a_json_object_is_one_located_problem(body: bytes, reason: str) -> None:
    assert problems_of(body) == [("", reason)]


@pytest.mark.parametrize(
    ("member", "path", "reason"),
    [
        ('"metadata": {"a": NaN}', "metadata.a", "not a number that JSON and an IEEE double can hold"),
        ('"metadata": {"a": [0, -Infinity]}', "metadata.a[1]", "not a number that JSON and an IEEE double can hold"),
        ('"metadata": {"a": 1e999}', "metadata.a", "not a number that JSON and an IEEE double can hold"),
        ('"metadata": {"a": 1%s}' % ("0" * 1_000), "metadata.a", "a whole number of more than 1000 digits"),
        ('"metadata": {"a": -1%s}' % ("0" * 1_000), "metadata.a", "a whole number of more than 1000 digits"),
        ('"metadata": {"a": 1%s}' % ("0" * 10_000), "metadata.a", "a whole number of more than 1000 digits"),
        ('"metadata": {"a": "x\\u0000"}', "metadata.a", "has a NUL character"),
        ('"metadata": {"a": "\\ud83d"}', "metadata.a", "has a lone surrogate"),
        ('"metadata": {"a": "\\udea0\\ud83d"}', "metadata.a", "has a lone surrogate"),
        ('"metadata": {"b": {"a\\u0000": 1}}', "metadata.b", 'the key "a\\u0000" has a NUL character'),
        ('"metadata": {"a\\udc00": 1}', "metadata", 'the key "a\\udc00" has a lone surrogate'),
        ('"metadata": {"a": 1, "b": 2, "a": 1}', "metadata", 'the key "a" stands here more than once'),
        ('"description": "x", "description": "x"', "", 'the key "description" stands here more than once'),
        ('"metadata": ' + '{"a":' * 99 + "1" + "}" * 99, None, None),
        (
            '"metadata": ' + '{"a":' * 100 + "1" + "}" * 100,
            "metadata" + ".a" * 99,
            "nested more than 100 levels deep",
        ),
        ('"version": "\\u0000"', "version", "has a NUL character"),
    ],
)
def test_values_that_json_or_the_database_cannot_hold_are_refused(
    member: str, path: str | None, reason: str | None
) -> None:
    if path is None:
        parse_definition(text_with(member))
    else:
        assert problems_of(text_with(member)) == [(path, reason)]


def test_the_same_condition_twice_is_refused() -> None:
    body = json.dumps(definition(step("d", "DECISION", conditionalNextSteps={"x": "a", "y": "b"}), end("a"), end("b")))
    assert problems_of(body.replace('"y"', '"x"').encode())[0] == (
        "steps[0].conditionalNextSteps",
        'the key "x" stands here more than once',
    )


def test_flaws_of_values_and_broken_rules_come_in_one_answer() -> None:
    body = b'{"id": "a b", "metadata": {"n": 1e999, "t": "\\ud800"}, "steps": [{"id": "e\\u0000", "type": "END"}]}'
    assert [path for path, _ in problems_of(body)] == [
        "metadata.n", "metadata.t", "steps[0].id", "id", "name", "steps[0].name",
    ]  # fmt: skip


def test_whole_numbers_of_1000_digits_are_exact() -> None:
    largest = 10**1_000 - 1
    body = definition(
        step("t", "TRANSFORMATION", transformations={"n": largest, "m": -largest}, nextStep="end"), end(),
        metadata={"n": largest, "small": 2**53 + 1},
    )  # fmt: skip
    parsed = parse_definition(json.dumps(body).encode())
    assert parsed.steps[0].transformations == (("n", largest), ("m", -largest))
    assert parsed.metadata == {"n": largest, "small": 2**53 + 1}
    assert parse_definition(parsed.content.encode()) == parsed


def test_a_body_over_the_limit_is_too_large() -> None:
    body = json.dumps(SMALL).encode()
    parse_definition(body, limits=DefinitionLimits(body_max_bytes=len(body)))
    with pytest.raises(PayloadTooLarge, match=f"has {len(body)} bytes, more than {len(body) - 1}"):
        parse_definition(body, limits=DefinitionLimits(body_max_bytes=len(body) - 1))


def test_numbers_that_grow_in_canonical_text_count_for_the_limit() -> None:
    # 1e15 is written as 1000000000000000.0: what is taken must be readable again.
    body = text_with('"metadata": {"a": [' + ",".join(["1e15"] * 100) + "]}")
    limits = DefinitionLimits(body_max_bytes=len(body))
    [(path, reason)] = problems_of(body, limits)
    assert path == ""
    assert reason.startswith("the canonical text has ")


def test_a_tree_that_is_not_json_is_a_programmer_error() -> None:
    with pytest.raises(TypeError):
        parse_definition({**SMALL, "metadata": {"a": (1, 2)}})


def parsed_or_refused(body: object) -> Definition | None:
    """The definition; None when it was refused in the way that refusals are."""
    try:
        return parse_definition(body)
    except InvalidDefinition as invalid:
        refused = invalid
    assert refused.problems
    assert len(set(refused.problems)) == len(refused.problems)
    msgspec.json.encode(refused.problems)
    refused.reason.encode()
    return None


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text('{}[]",:\\u0dA1e-.idnamest', max_size=60).map(str.encode))
def test_any_bytes_are_a_definition_or_an_invalid_one(body: bytes) -> None:
    parsed_or_refused(body)


@st.composite
def _broken(draw: st.DrawFn) -> object:
    """A random definition with some values anywhere replaced by others."""
    body: Any = json.loads(json.dumps(draw(definitions(max_steps=8))))
    for _ in range(draw(st.integers(1, 4))):
        holder = body
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(holder[key], (dict, list)) or draw(st.booleans()):
                holder[key] = draw(_json_values | st.sampled_from(["END", "end", "P1M", float("nan"), "\0", "\ud800"]))
                break
            holder = holder[key]
    return body


@given(_broken())
def test_any_json_is_a_definition_or_an_invalid_one(body: object) -> None:
    parsed = parsed_or_refused(body)
    if parsed is not None:
        assert parse_definition(parsed.content.encode()) == parsed


def test_ten_thousand_steps_are_taken_and_one_more_is_not() -> None:
    parsed = parse_definition(json.dumps(linear(9_999)).encode())
    assert len(parsed.steps) == 10_000
    assert parsed.steps[9_998].next == 9_999
    assert problems_of(linear(10_000)) == [("steps", "has 10001 steps, more than 10000")]


def test_ten_thousand_wrong_steps_get_a_bounded_answer() -> None:
    body = definition(*({"id": f"s{number}", "extra": [{}]} for number in range(10_000)))  # pyright: ignore[reportArgumentType] - on purpose, or JSON of its own making
    found = problems_of(body)
    assert len(found) == 1_001
    assert found[-1][1].endswith(" more problems")


# ------------------------------------------------------------------------------------------ the examples


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    parsed = parse_definition(path.read_bytes())
    assert json.loads(parsed.content) == json.loads(path.read_text())


def test_the_definition_in_the_docs_is_valid() -> None:
    docs = EXAMPLES.with_name("docs") / "definitions.md"
    parse_definition(docs.read_text().split("```json\n")[1].split("```")[0].encode())


def test_the_limits_in_the_docs_are_those_of_the_code() -> None:
    limits = DefinitionLimits()
    text = (EXAMPLES.with_name("docs") / "definitions.md").read_text().split("## Limits")[1]
    reported = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)}
    mebibytes, kibibytes = limits.body_max_bytes // 2**20, limits.metadata_max_bytes // 2**10
    assert reported >= {*msgspec.structs.astuple(limits), mebibytes, kibibytes} - {
        limits.body_max_bytes,
        limits.metadata_max_bytes,
    }


def _example(name: str) -> Definition:
    return parse_definition((EXAMPLES / f"{name}.json").read_bytes())


def test_the_order_example_is_a_line_of_service_tasks() -> None:
    parsed = _example("order-fulfilment")
    assert [one.job_type for one in parsed.steps] == [
        "order.validate", "stock.reserve", "payment.charge", "parcel.ship", "customer.notify", None,
    ]  # fmt: skip
    assert [one.next for one in parsed.steps] == [1, 2, 3, 4, 5, None]
    assert parsed.single_token


def test_the_loan_examples_are_chained_and_use_every_type() -> None:
    loan, disbursement = _example("loan-process"), _example("loan-disbursement")
    assert loan.auto_start_next
    assert loan.next_workflow_id == disbursement.id
    others = (_example("loan-case"), _example("travel"))
    assert {one.type for parsed in (loan, disbursement, *others) for one in parsed.steps} == set(StepType)
    review = loan.step("manual-review")
    assert review is not None
    assert [(loan.steps[timer.target].id, timer.interrupting) for _, timer in review.timers] == [
        ("remind-officer", False), ("senior-review", True),
    ]  # fmt: skip
