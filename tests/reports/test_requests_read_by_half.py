"""A request of which the engine could obey only a part is refused, and nothing is done.

Reported: `?status=FAILED&status=ACTIVE` listed by the first one alone; a body with `Content-Encoding: gzip` was called
malformed JSON.
"""

from __future__ import annotations

import gzip

import pytest

from penstock.rest.operations import OPERATIONS
from tests.rest.scripted import Rest, ScriptedEngine


async def test_a_parameter_with_two_values_is_refused_by_every_call() -> None:
    tried, engine = 0, ScriptedEngine()
    rest = Rest(engine)
    for operation in OPERATIONS:
        path = "/".join("1" if part.startswith("{") else part for part in operation.path.split("/"))
        for name in sorted(name for name in operation.query_names if not name.endswith("*")):
            answer = await rest.send(operation.method, f"{path}?{name}=1&{name}=2", b"{}")
            assert (answer.status, dict(engine.calls)) == (400, {}), (operation.id, name)
            assert f"{name}: is given twice" in answer.json["message"]
            tried += 1
    assert tried > 50


async def test_the_same_value_twice_is_one_value() -> None:
    engine = ScriptedEngine()
    engine.on_list(total=0)
    assert (await Rest(engine).get("/v1/instances?status=FAILED&status=FAILED")).status == 200


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "zstd", "x-gzip"])
@pytest.mark.parametrize("path", ["/v1/definitions", "/v1/instances", "/v1/jobs/poll", "/v1/jobs/1f-1-0/complete"])
async def test_a_compressed_body_is_refused_by_name(path: str, coding: str) -> None:
    engine = ScriptedEngine()
    answer = await Rest(engine).post(path, gzip.compress(b"{}"), Content_Encoding=coding)
    assert answer.error == (
        415,
        "unsupported-format",
        "Content-Encoding: the engine reads no compressed bodies; send the body uncompressed",
    )
    assert not engine.calls


@pytest.mark.parametrize("coding", ["identity, gzip", "gzip, identity", "utf-8,br", "gzip,", "aws-chunked", "lzma"])
async def test_a_compression_among_codings_is_found(coding: str) -> None:
    engine = ScriptedEngine()
    answer = await Rest(engine).post("/v1/instances", gzip.compress(b"{}"), Content_Encoding=coding)
    assert (answer.status, dict(engine.calls)) == (415, {})


async def test_a_coding_that_changes_nothing_is_no_reason_to_refuse() -> None:
    for coding in ("identity", "utf-8", ""):
        engine = ScriptedEngine()
        engine.on("jobs.poll", [])
        answer = await Rest(engine).post("/v1/jobs/poll", {"workerId": "w", "jobTypes": ["a"]}, Content_Encoding=coding)
        assert answer.status == 200
