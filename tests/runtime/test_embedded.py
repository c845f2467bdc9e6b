"""`penstock serve` without a DSN: the embedded PostgreSQL comes and goes with the engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock.testing.definitions import linear
from tests.runtime.conftest import StartEngine
from tests.runtime.embedded_engine import is_alive, postmaster
from tests.runtime.waiting import wait_until


@pytest.mark.slow(reason="a PostgreSQL of its own for each test")
def test_it_stops_with_the_engine_and_keeps_its_data(start_engine: StartEngine, data_dir: Path) -> None:
    engine = start_engine("--data-dir", str(data_dir), dsn=None).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    server = postmaster(engine)
    assert engine.stop() == 0
    assert not is_alive(server)
    again = start_engine("--data-dir", str(data_dir), dsn=None).wait_ready()
    assert again.call("GET", "/v1/definitions/linear")[0] == 200
    assert again.stop() == 0


@pytest.mark.slow(reason="a PostgreSQL of its own for each test")
def test_the_server_outlives_a_killed_engine_until_the_next(start_engine: StartEngine, data_dir: Path) -> None:
    engine = start_engine(dsn=None, data_dir=data_dir).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    _, instance = engine.call("POST", "/v1/instances", {"definitionId": "linear"})
    server = postmaster(engine)
    engine.kill()
    assert is_alive(server)
    again = start_engine(dsn=None, data_dir=data_dir).wait_ready()
    wait_until(lambda: not is_alive(server))
    assert again.call("GET", f"/v1/instances/{instance['id']}")[0] == 200
    assert again.stop() == 0


@pytest.mark.slow(reason="a PostgreSQL of its own for each test")
def test_two_engines_on_one_data_directory_give_a_clear_error(start_engine: StartEngine, data_dir: Path) -> None:
    first = start_engine(dsn=None, data_dir=data_dir).wait_ready()
    second = start_engine(dsn=None, data_dir=data_dir)
    assert second.process.wait(120) == 1
    (line,) = [line for line in second.lines if line.get("level") == "error"]
    assert f"the data directory {data_dir} is in use by another engine (pid {first.process.pid})" in line["error"]
    assert first.call("GET", "/readyz")[0] == 200
    assert first.stop() == 0


@pytest.mark.slow(reason="a PostgreSQL of its own for each test")
def test_the_engine_ends_when_its_server_dies(start_engine: StartEngine, data_dir: Path) -> None:
    engine = start_engine(dsn=None, data_dir=data_dir).wait_ready()
    os.kill(postmaster(engine), signal.SIGKILL)
    assert engine.process.wait(120) == 1
    assert any("the embedded PostgreSQL ended by itself" in str(line.get("error")) for line in engine.lines)
