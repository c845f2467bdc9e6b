"""Some seconds of `python -m chaos.spacing`: engines die, then all are away, and late starts keep their distance."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fleet import Fleet
from chaos.spacing import KEYS, OUTAGE_S, OUTAGE_STARTS, Attack
from tests.postgres import PostgresServer


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_late_starts_keep_their_distance_while_engines_are_killed(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with postgres_server.database() as dsn:
        fleet = Fleet(dsn, tmp_path, {}, engines=2, seconds=2, seed="suite")
        verdict = await Attack(fleet).run()
    assert verdict.complaints == []
    assert fleet.kills > 0
    assert verdict.paced > KEYS * OUTAGE_STARTS
    assert verdict.debounced > 0
    assert verdict.longest_s > OUTAGE_S / 2
