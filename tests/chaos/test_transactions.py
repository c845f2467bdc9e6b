"""Some seconds of `python -m chaos.transactions`: engines die while programs start in their own transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.fleet import Fleet
from chaos.transactions import Attack
from tests.postgres import PostgresServer


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_orders_and_instances_agree_while_engines_are_killed(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with postgres_server.database() as dsn:
        fleet = Fleet(dsn, tmp_path, {}, engines=2, seconds=5, seed="suite")
        verdict = await Attack(fleet, "suite", transactions=200).run()
    assert verdict.complaints == []
    assert fleet.kills > 0
    assert verdict.committed > 50
    assert verdict.rolled_back > 50
    assert verdict.orders >= verdict.committed
