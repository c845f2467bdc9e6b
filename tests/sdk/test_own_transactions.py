"""Workers that complete their jobs in transactions of their own, and are killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from penstock.runtime.migrate import Roles
from penstock.runtime.migrate import run as migrate
from penstock.settings import Secret, Settings
from penstock.testing.definitions import definition, end, service
from penstock.testing.invariants import find_broken
from tests.runtime.engine_process import REPOSITORY, EngineProcess
from tests.runtime.waiting import wait_until

KILLS = int(os.environ.get("KILLS", "4"))
"""`KILLS=1000 pytest tests/sdk/test_own_transactions.py --timeout=0` for more."""
WORKERS, PER_KILL = 2, 10
PAYING = definition(
    service("first", "second", job_type="pay", retryCount=100),
    service("second", "end", job_type="pay", retryCount=100),
    end(),
    definition_id="paying",
)


@contextmanager
def paying(port: int, dsn: str, name: str) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.sdk.paying_worker", f"http://127.0.0.1:{port}", dsn, name]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
    process = subprocess.Popen(command, env=environment, cwd=REPOSITORY)
    try:
        yield process
    finally:
        process.kill()
        process.wait(120)


@pytest.mark.slow(reason="kills workers again and again")
@pytest.mark.timeout(120 + 10 * KILLS)
def test_money_moves_once_though_workers_are_killed(database_dsn: str) -> None:
    rng = random.Random(11)
    leases: dict[str, Any] = {"lease_min_seconds": 1, "lease_scan_interval_seconds": 0.5, "lease_expiry_limit": 30_000}
    with (
        psycopg.connect(database_dsn, autocommit=True) as eyes,
        EngineProcess(database_dsn, **leases) as engine,
        ExitStack() as workers,
    ):
        eyes.execute("CREATE TABLE payment (key text)")
        user = eyes.execute("SELECT current_user").fetchall()[0][0]
        assert migrate(Settings(postgres_dsn=Secret(database_dsn)), Roles([user])) is not None
        engine.wait_ready()
        assert engine.call("POST", "/v1/definitions", PAYING)[0] == 201
        running: list[Any] = [paying(engine.port, database_dsn, f"w-{number}") for number in range(WORKERS)]
        held = [workers.enter_context(one) for one in running]

        def count(query: str) -> int:
            return int(eyes.execute(query.encode()).fetchall()[0][0])

        for killed in range(1, KILLS + 1):
            starts = [{"definitionId": "paying"}] * PER_KILL
            assert engine.call("POST", "/v1/instances/batch", {"items": starts})[0] == 200
            paid = count("SELECT count(*) FROM payment")
            wait_until(lambda: count("SELECT count(*) FROM payment") > paid, timeout_s=120)  # noqa: B023 - called here
            for _ in range(rng.randrange(20)):
                count("SELECT 1")  # a little later, in the middle of something
            victim = killed % WORKERS
            held[victim].kill()
            held[victim] = workers.enter_context(paying(engine.port, database_dsn, f"w-{killed}-{victim}"))
        wait_until(lambda: not count("SELECT count(*) FROM instance WHERE status = 0"), timeout_s=120)
        started = KILLS * PER_KILL
        assert count("SELECT count(*) FROM instance WHERE status = 1") == started
        assert count("SELECT count(*) FROM payment") == count("SELECT count(DISTINCT key) FROM payment") == 2 * started
        assert count("SELECT count(*) FROM recorded_output") == 0
    assert not find_broken(database_dsn)
