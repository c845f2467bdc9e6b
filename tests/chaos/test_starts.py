"""A few seconds of `python -m chaos.starts`: engines die, and each firing, start and item of a batch is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fleet import Fleet
from chaos.starts import SETTINGS, Attack
from tests.postgres import PostgresServer


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_each_start_is_once_while_engines_are_killed(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with postgres_server.database() as dsn:
        fleet = Fleet(dsn, tmp_path, SETTINGS, engines=2, seconds=2, seed="suite")
        verdict = await Attack(fleet).run()
    assert verdict.complaints == []
    assert fleet.kills > 0
    assert min(verdict.fired, verdict.delayed, verdict.deduplicated, verdict.batches) > 0
