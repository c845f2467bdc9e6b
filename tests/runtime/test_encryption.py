"""Encryption as an operator has it: a setting, real processes, REST and gRPC."""

from __future__ import annotations

import base64

import psycopg
import pytest

from penstock.client import SyncClient
from penstock.testing.definitions import linear
from tests.runtime.conftest import StartEngine

K1, K2 = (f"{name}={base64.b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2"))
SECRET = {"name": "s3kr1t", "n": 5}


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_clients_read_what_the_database_does_not_show(
    start_engine: StartEngine, database_dsn: str, processes: int
) -> None:
    engine = start_engine(encryption_keys=K1, processes=processes).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    started = engine.call("POST", "/v1/instances", {"definitionId": "linear", "variables": SECRET})[1]
    (job,) = engine.call("POST", "/v1/jobs/poll", {"workerId": "w", "jobTypes": ["work"]})[1]["jobs"]
    assert job["variables"] == SECRET
    engine.call("POST", f"/v1/jobs/{job['id']}/complete", {"workerId": "w", "variables": {"more": "s3kr1t"}})
    expected = {**SECRET, "more": "s3kr1t"}
    assert engine.call("GET", f"/v1/instances/{started['id']}")[1]["variables"] == expected
    assert [item["variables"] for item in engine.call("GET", "/v1/instances")[1]["items"]] == [expected]
    with SyncClient(f"grpc://127.0.0.1:{engine.grpc_port}") as client:
        assert client.get_instance(started["id"]).variables == expected
        assert [found.variables for found in client.list_instances().items] == [expected]
    with psycopg.connect(database_dsn) as connection:
        rows = connection.execute("SELECT t::text FROM instance t UNION ALL SELECT t::text FROM history t").fetchall()
    assert "$enc" in str(rows)
    assert "s3kr1t" not in str(rows)
    assert all("s3kr1t" not in str(line) and K1 not in str(line) for line in engine.lines)


@pytest.mark.slow(reason="starts engine processes")
def test_an_engine_without_the_key_says_so_and_lives(start_engine: StartEngine) -> None:
    engine = start_engine(encryption_keys=K1).wait_ready()
    engine.call("POST", "/v1/definitions", linear(1))
    started = engine.call("POST", "/v1/instances", {"definitionId": "linear", "variables": SECRET})[1]
    other = start_engine(encryption_keys=K2).wait_ready()
    status, error = other.call("GET", f"/v1/instances/{started['id']}")
    assert (status, error["error"]) == (503, "unavailable")
    assert "'k1'" in error["reason"]
    poll = {"workerId": "w", "jobTypes": ["work"], "waitSeconds": 1}
    assert other.call("POST", "/v1/jobs/poll", poll) == (200, {"jobs": []})
    other.wait_said("a payload can't be read", "reason")
    assert other.call("GET", "/readyz")[0] == 200


@pytest.mark.slow(reason="starts engine processes")
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("k1=hunter2hunter2", "'k1' of encryption_keys is not the base64 of 32 bytes"),
        ("hunter2hunter2", "number 1 of encryption_keys is not id=key, the id of letters, digits, _ and -"),
        ("hunter2hunter2==", "number 1 of encryption_keys is not id=key, the id of letters, digits, _ and -"),
    ],
)
def test_bad_keys_end_the_start_without_being_shown(start_engine: StartEngine, keys: str, said: str) -> None:
    engine = start_engine(encryption_keys=keys)
    assert engine.process.wait(120) == 2
    assert f"penstock: the settings are wrong:\n  {said}\n" in engine.reported
    assert "hunter2" not in engine.reported
