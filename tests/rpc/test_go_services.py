"""grpc-go's generated stubs against both services on a real engine process (go/services.go, go/worker.go)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.testing.definitions import linear
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.waiting import wait_until

__all__ = ["start_engine"]  # pytest finds the fixture here
pytestmark = [pytest.mark.go, pytest.mark.slow(reason="compiles programs in Go")]

ACTIVE, COMPLETED, FAILED = "INSTANCE_STATUS_ACTIVE", "INSTANCE_STATUS_COMPLETED", "INSTANCE_STATUS_FAILED"
DONE = "STEP_EXECUTION_STATUS_COMPLETED"
EXPECTED: dict[str, Any] = {
    "definitions": {
        "kinds": 11, "uploaded": ["LOS::go", 1, True], "same again": True, "comes back": [True, True],
        "listed": [1, 1, True], "changed": 2,
    },
    "instances": {
        "started": ["go-instances", 1, ACTIVE, ["a"], "key", True, True, ""],
        "variables": {"n": 3, "x": 2.5, "list": [None, True, "é☃"], "deep": {"k": -7}}, "read": True,
        "cancelled": ["INSTANCE_STATUS_CANCELLED", "no more", True, 0], "again": "FailedPrecondition",
    },
    "jobs": {
        "one by default": 1, "job": ["go-jobs", True, "a", True, 2, 1, True, {"n": 3}], "nobody else's": [0, 1],
        "thief": "Aborted", "done": "OK", "repeat": "OK", "next": ["b", {"n": 3, "paid": 12, "x": None}], "end": "OK",
        "ended": [COMPLETED, True, 0, {"n": 3, "paid": 12, "x": None}],
        "history": [
            ["a", "STEP_TYPE_SERVICE_TASK", 1, DONE, True, True, True, ""],
            ["b", "STEP_TYPE_SERVICE_TASK", 1, DONE, True, True, True, ""],
            ["end", "STEP_TYPE_END", 1, DONE, True, True, True, ""],
        ],
        "history ids": [True, True],
    },
    "failures": {
        "by a stranger": ["OK", ACTIVE], "retryable": "OK", "again": [True, 2, 0], "for good": "OK",
        "failed": [FAILED, True, True],
    },
    "tasks": {
        "parked": ["INSTANCE_STATUS_WAITING", ["u"]], "not there yet": "FailedPrecondition",
        "wrong kinds": ["InvalidArgument", "InvalidArgument"], "finished": ["OK", "NotFound", "NotFound"],
        "signalled": ["OK", "FailedPrecondition"], "ended": [COMPLETED, {"a": 1, "b": 2, "c": 3}],
        "too late": "FailedPrecondition",
    },
    "lists": {
        "newest first": [[4, 3, 2, 1, 0], 5], "pages": [[[4, 3], 5], [[0], 5], [[], 5]], "cancelled": [[1], 1],
        "no such key": [[], 0], "definitions": [1, 3],
    },
    "statuses": {
        "unknown": ["NotFound"] * 9, "missing": ["InvalidArgument"] * 12,
        "unknown enums": ["InvalidArgument", True, "InvalidArgument"],
        "all problems": ["InvalidArgument", True, True, True], "negative page": "InvalidArgument",
        "no such method": "Unimplemented", "cancelled": "Canceled",
    },
    "sizes": {
        "large": [True, True], "too large": "InvalidArgument", "deep": True, "too deep": "InvalidArgument",
        "goes on": ACTIVE,
    },
    "batches": {
        "started": ["go-batches", 1, ACTIVE, ["a"], '{"n":9007199254740993}', True, "key"],
        "errors": ["not-found", "bad-request", "bad-request"],
        "heartbeats": ["OUTCOME_OK", True, "OUTCOME_LEASE_LOST"],
        "completed": [
            "OUTCOME_OK", "OUTCOME_ALREADY_COMPLETED", "OUTCOME_NOT_FOUND", "OUTCOME_LEASE_LOST", "OUTCOME_INVALID",
        ],
        "failed": ["OUTCOME_OK", "OUTCOME_INVALID"], "released": ["OUTCOME_OK", "OUTCOME_LEASE_LOST"],
        "retries left": {"failed": 4, "released": 5}, "once": True,
    },
    "credit": {
        "job": ["go-credit", "a", 1, '{"n":9007199254740993}', True, True], "never more": [7, "go-credit", 0],
        "pushed": 13, "half-closed": "OK", "given back": {"2": 13},
    },
    "results": {
        "outcomes": [
            "OUTCOME_OK", "OUTCOME_ALREADY_COMPLETED", "OUTCOME_LEASE_LOST", "OUTCOME_NOT_FOUND", "OUTCOME_INVALID",
            "OUTCOME_OK", "OUTCOME_OK",
        ],
        "heartbeat": ["OUTCOME_OK", True], "again": [True, True], "end": "OK", "in order": 1_000,
    },
    "losses": {
        "cancelled": [True, 1, True], "its result": ["OUTCOME_CANCELLED"], "long end": "OK", "lost": [True, 1],
        "short end": "OK",
    },
    "broken": {"back at once": {"2": 5}, "no worker": "InvalidArgument", "no job type": "InvalidArgument"},
}  # fmt: skip


def output_of(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_go_client_finds_both_services_as_the_contract_says(start_engine: StartEngine, go_client: Path) -> None:
    engine = start_engine(lease_min_seconds=1).wait_ready()
    seen = output_of(str(go_client), "services", f"127.0.0.1:{engine.grpc_port}")
    assert seen.keys() == EXPECTED.keys()
    job = seen["credit"]["job"]
    job[3] = job[3].replace(" ", "")  # the starter's own text where the engine remembers it, else the database's
    for subject, expected in EXPECTED.items():
        assert seen[subject] == expected, subject
    assert engine.stop() == 0


def test_a_go_deadline_ends_the_statement_and_releases_jobs(
    start_engine: StartEngine, go_client: Path, database_dsn: str
) -> None:
    engine = start_engine().wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    items = [{"definitionId": "linear"}] * 3
    assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
    with psycopg.connect(database_dsn) as blocker:
        blocker.execute("LOCK TABLE token IN EXCLUSIVE MODE")
        seen = output_of(str(go_client), "deadline", f"127.0.0.1:{engine.grpc_port}", "work")
    assert seen == {"code": "DeadlineExceeded", "in time": True}
    with psycopg.connect(database_dsn, autocommit=True) as eyes:
        free = "SELECT count(*) FROM token WHERE state = 0"
        wait_until(lambda: eyes.execute(free).fetchall() == [(3,)])
    assert engine.stop() == 0
