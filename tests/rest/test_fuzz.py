"""Requests made from the engine's own OpenAPI document, right and wrong ones, by Schemathesis, over real sockets.

None may be a server error, and every answer has to be one that the document describes: status, content type, schema.
What is lenient on purpose (unknown fields, an empty `waitSeconds`) is not held against the engine: whether a request
is taken or refused is for the other tests. The ids are those of a real instance and a real job, so that the requests
get past the 404.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.definitions import definition, end, service, step
from penstock.testing.invariants import assert_invariants
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess

__all__ = ["start_engine"]

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
STEPS = ("ask", "wait", "task")
BODY = definition(
    step("fork", "PARALLEL_GATEWAY", parallelNextSteps=list(STEPS), joinStep="join"),
    step("ask", "USER_TASK", nextStep="join"),
    step("wait", "WAIT", nextStep="join"),
    service("task", "join"),
    step("join", "JOIN_GATEWAY", nextStep="end"),
    end(), definition_id="fuzzed",
)  # fmt: skip


def configuration(engine: EngineProcess) -> str:
    """Real ids for the paths. Each kind of operation gets an instance of its own, which it may end."""
    assert engine.call("POST", "/v1/definitions", BODY)[0] == 201
    ids = {}
    for name in ("instances", "user-tasks", "signals", "jobs"):
        status, view = engine.call("POST", "/v1/instances", {"definitionId": "fuzzed"})
        assert status == 201
        ids[name] = view["id"]
    _, answer = engine.call("POST", "/v1/jobs/poll", {"workerId": "w", "jobTypes": ["work"]})
    job = next(job["id"] for job in answer["jobs"] if job["instanceId"] == ids["jobs"])
    rules = [
        ("/v1/definitions/.*", {"id": "fuzzed", "number": 1, "version": 1}),
        ("/v1/instances/[{]id[}].*", {"id": ids["instances"]}),
        ("/v1/instances/[{]id[}]/user-tasks/.*", {"id": ids["user-tasks"], "stepId": "ask"}),
        ("/v1/instances/[{]id[}]/signals.*", {"id": ids["signals"], "stepId": "wait"}),
        ("/v1/jobs/[{]id[}].*", {"id": job}),
    ]
    lines: list[str] = []
    for path, parameters in rules:
        given = ", ".join(f"{json.dumps('path.' + name)} = {json.dumps(value)}" for name, value in parameters.items())
        lines += ["[[operations]]", f"include-path-regex = '^{path}$'", f"parameters = {{ {given} }}"]
    return "\n".join(lines)


def fuzz(engine: EngineProcess, directory: Path, *, examples: int, seed: int, timeout_s: float) -> None:
    (directory / "schemathesis.toml").write_text(configuration(engine))
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{engine.port}/openapi.json"]
    command += ["--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)]
    command += ["--seed", str(seed), "--suppress-health-check", "all", "--no-color", "--continue-on-failure"]
    command += ["--generation-database", ":memory:", "--request-timeout", "20"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert "generated" in done.stdout
    assert [line for line in engine.lines if line["level"] in ("error", "critical")] == []


@pytest.mark.slow(reason="thousands of random requests")
def test_no_request_from_the_openapi_document_is_a_500(
    start_engine: StartEngine, tmp_path: Path, database_dsn: str
) -> None:
    engine = start_engine(poll_max_wait_seconds=0.1).wait_ready()  # else most of the time goes by in waits
    fuzz(engine, tmp_path, examples=4, seed=1, timeout_s=170)
    assert engine.stop() == 0
    assert_invariants(database_dsn)


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_requests_from_the_openapi_document(
    start_engine: StartEngine, tmp_path: Path, database_dsn: str, seed: int
) -> None:
    engine = start_engine(poll_max_wait_seconds=0.1).wait_ready()  # else most of the time goes by in waits
    fuzz(engine, tmp_path, examples=200, seed=seed, timeout_s=1_700)
    assert engine.stop() == 0
    assert_invariants(database_dsn)
