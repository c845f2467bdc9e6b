"""The examples of docs/rest.md are what an engine answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from penstock.rest.openapi import openapi_document
from penstock.rest.operations import OPERATIONS
from tests.rest.examples import FILE, NOT_RECORDED, record
from tests.runtime.engine_process import EngineProcess

EXAMPLES: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


def test_every_call_has_an_example_or_a_reason() -> None:
    assert EXAMPLES.keys() | NOT_RECORDED.keys() == {row.id for row in OPERATIONS}
    assert EXAMPLES.keys() & NOT_RECORDED.keys() == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_the_document(name: str) -> None:
    document = openapi_document()
    [operation] = [
        one for methods in document["paths"].values() for one in methods.values() if one["operationId"] == name
    ]
    example = EXAMPLES[name]
    answer = operation["responses"][str(example["status"])]
    body = None if name == "validateDefinition" else example["body"]  # which is to have a problem
    for value, content in ((body, operation.get("requestBody")), (example["answer"], answer)):
        if value is not None:
            schema = content["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


@pytest.mark.slow(reason="makes each REST call on an engine process")
def test_an_engine_answers_as_the_examples_say(engine_process: EngineProcess) -> None:
    found = record(engine_process.port, engine_process.grpc_port)
    assert {name: example["status"] for name, example in found.items()} == {
        name: example["status"] for name, example in EXAMPLES.items()
    }
    for name, example in found.items():
        if isinstance(example["answer"], dict):
            assert example["answer"].keys() & EXAMPLES[name]["answer"].keys(), name
