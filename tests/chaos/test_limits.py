"""A few seconds of `python -m chaos.limits`: engines die, the limits of a queue hold, and nothing stays held."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fleet import Fleet
from chaos.limits import SETTINGS, Attack
from tests.postgres import PostgresServer


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_limits_hold_while_engines_are_killed(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with postgres_server.database() as dsn:
        fleet = Fleet(dsn, tmp_path, SETTINGS, engines=2, seconds=3, seed="suite")
        verdict = await Attack(fleet).run()
    assert verdict.complaints == []
    assert fleet.kills > 0
    assert verdict.started > 0
    assert verdict.most[1] > 0
