"""The document of the interface says what there is, no more and no less."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import openapi_spec_validator
import pytest

from penstock.core.expression import ExpressionError, parse
from penstock.core.parsing.draft import FIELDS_BY_TYPE, REQUIRED_BY_TYPE
from penstock.rest.definition_schema import DEFINITION, STEP
from penstock.rest.openapi import openapi_document
from penstock.rest.operation import RestOperation, Schema
from penstock.rest.operations import OPERATIONS
from tests.access.people import make_gate
from tests.rest.scripted import Rest, ScriptedEngine


async def test_the_document_is_valid_openapi_3_1(rest: Rest) -> None:
    answer = await rest.get("/openapi.json")
    assert (answer.status, answer.json["openapi"]) == (200, "3.1.0")
    openapi_spec_validator.validate(answer.json, cls=openapi_spec_validator.OpenAPIV31SpecValidator)


@pytest.fixture(scope="module")
def applications() -> dict[bool, Rest]:
    """By whether it has a gate; to make one takes longer than to ask it."""
    return {gated: Rest(ScriptedEngine(), gate=make_gate() if gated else None) for gated in (False, True)}


def requests_by_path(rest: Rest, method: str) -> Counter[str]:
    """As the metric counts them."""
    return Counter(
        {
            sample.labels["path"]: int(sample.value)
            for family in rest.engine.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "http_requests_duration_seconds_count" and sample.labels["method"] == method
        }
    )


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.id)
async def test_every_row_is_a_route_with_its_document(row: RestOperation, applications: dict[bool, Rest]) -> None:
    rest = applications[row.handler_class == "SessionRoutes"]
    before = requests_by_path(rest, row.method)
    path = re.sub(r"\{\w+\}", "1", row.path)
    assert (await rest.send(row.method, path, b"{}")).status not in (404, 405)
    assert row.method in (await rest.send("OPTIONS", path)).headers["allow"].split(", ")
    assert requests_by_path(rest, row.method) - before == {row.path: 1}
    assert openapi_document()["paths"][row.path][row.method.lower()]["operationId"] == row.id


def test_operation_ids_are_unique() -> None:
    ids = [operation.id for operation in OPERATIONS]
    assert len(ids) == len(set(ids))


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        found = {node["$ref"]} if "$ref" in node else set()
        return found.union(*map(references, node.values()))
    if isinstance(node, list):
        return set().union(*map(references, node))
    return set()


def test_every_schema_is_used_and_every_reference_leads_to_one() -> None:
    document = openapi_document()
    used = {name.removeprefix("#/components/schemas/") for name in references(document)}
    assert used == set(document["components"]["schemas"])


def test_required_fields_are_fields() -> None:
    for name, schema in openapi_document()["components"]["schemas"].items():
        assert set(schema.get("required", ())) <= set(schema["properties"]), name


async def test_the_page_loads_nothing_from_other_hosts(rest: Rest) -> None:
    answer = await rest.get("/docs")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(rb"(?:https?:)?//[a-z]", answer.body) == []
    assert b'fetch("openapi.json",' in answer.body


@pytest.mark.parametrize("name", ["Instance", "StepExecution", "Job", "DefinitionSummary", "Attempt"])
def test_an_answer_says_which_of_its_fields_are_always_there(name: str) -> None:
    schema = openapi_document()["components"]["schemas"][name]
    assert schema["required"]
    assert set(schema["required"]) <= set(schema["properties"])


def test_the_language_is_reported_whole() -> None:
    step = openapi_document()["components"]["schemas"]["Step"]
    for kind, fields in FIELDS_BY_TYPE.items():
        reported = step["x-step-types"][kind.value]
        assert set(reported["uses"]) == fields <= set(step["properties"])
        assert set(reported["needs"]) == REQUIRED_BY_TYPE[kind]


def test_every_field_of_the_language_says_what_it_is_for() -> None:
    def silent(schema: Schema, path: str) -> list[str]:
        own: dict[str, Schema] = schema.get("properties", {})
        inner = [(f"{path}.{name}", each) for name, each in own.items()]
        items = [(path, schema["items"])] if isinstance(schema.get("items"), dict) else []
        reported = [name for name, each in inner if "description" not in each and name != "definition.steps"]
        return [*reported, *(found for name, each in [*inner, *items] for found in silent(each, name))]

    assert silent(STEP, "step") == silent(DEFINITION, "definition") == []


async def test_the_names_of_expressions_are_those_that_can_be_called(rest: Rest) -> None:
    reported = (await rest.get("/v1/expressions/language")).json
    by_name = {each["name"]: each["signature"] for each in reported["functions"]}
    assert (by_name["trim"], by_name["all"]) == ("trim(s[, chars])", "all(list, condition)")
    for function in reported["functions"]:
        with pytest.raises(ExpressionError, match=r"takes|unexpected [34]"):
            parse(f"{function['name']}(1, 2, 3, 4, 5)" if "…" not in function["signature"] else f"{function['name']}()")
    assert {"in", "nil", "contains"} <= set(reported["words"])
    assert {each["name"] for each in reported["operators"]} == set(reported["words"]) - {
        "true",
        "false",
        "nil",
        "else",
    }  # that is of `if`
    assert "Format" in reported["methods"]
