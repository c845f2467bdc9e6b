"""A few seconds of `python -m chaos.runs`: executors and the engine die, and every run ends as an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.runs import Attack
from tests.postgres import PostgresServer


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_runs_end_while_executors_and_the_engine_are_killed(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.runs.KILL_EVERY_S", 0.5)
    with postgres_server.database() as dsn, postgres_server.database() as ledger:
        verdict = await Attack(dsn, ledger, tmp_path, runs=60, executors=2, seed="suite").run()
    assert verdict.complaints == []
    assert verdict.completed + verdict.cancelled == 60
    assert verdict.executor_kills > 0
    assert verdict.engine_kills == 1
