"""Thousands of cancelled calls and dropped connections on the real services leave nothing behind (tests/rpc/stress.py).

The seed is in the output; ``python -m tests.rpc.stress --calls 50000 --seed N`` does the same, and more of it.
"""

from __future__ import annotations

import os

import pytest
import trio

from penstock.testing.invariants import assert_invariants
from tests.rpc.stress import CHOICES, SETTINGS, weather
from tests.runtime.conftest import StartLocal, start_local

__all__ = ["start_local"]  # pytest finds the fixture here


@pytest.mark.slow(reason="thousands of calls that are cancelled")
async def test_cancels_and_drops_leak_nothing_and_do_nothing_twice(start_local: StartLocal, database_dsn: str) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    engine = await start_local(**SETTINGS)
    with trio.fail_after(120):
        stress = await weather(engine, seed, 2_000)
    assert set(stress.methods) == set(CHOICES)
    assert sum(count for fate, count in stress.fates.items() if fate.startswith("call: ")) >= 2_000
    assert stress.fates["call: answered"] < 1_000
    assert set(stress.statuses) <= {0, 3, 4, 5, 9, 10}, stress.statuses
    assert stress.statuses[0] > 30, stress.statuses  # on a slow machine clients give up before most answers
    assert_invariants(database_dsn)
