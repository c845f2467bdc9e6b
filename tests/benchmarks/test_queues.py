"""A small round of `benchmarks.queues`: that it measures what it says, and that limits hold in it."""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks.queues import KEYS, measure, parsed
from tests.postgres import PostgresServer

SMALL: Final = parsed(["--seconds", "0.5", "--jobs", "3000", "--connections", "2"])


@pytest.mark.parametrize("name", ["keys", "total"])
async def test_jobs_go_through_and_nothing_is_held(postgres_server: PostgresServer, name: str) -> None:
    found = await measure(postgres_server.dsn, name, SMALL)
    assert found["jobs_per_s"] > 0
    assert found["held_at_the_end"] == 0
    assert not found.get("exceeded")


async def test_a_flood_of_one_key_delays_one_claim(postgres_server: PostgresServer) -> None:
    found = await measure(postgres_server.dsn, "flood", SMALL)
    assert found["claims_until_the_other"] <= 2


async def test_a_free_key_is_found_behind_full_ones(postgres_server: PostgresServer) -> None:
    assert SMALL.jobs < KEYS
    found = await measure(postgres_server.dsn, "blocked", SMALL)
    assert found["found_after_s"] > 0


async def test_a_rate_is_never_exceeded(postgres_server: PostgresServer) -> None:
    found = await measure(postgres_server.dsn, "rate", SMALL)
    assert found["share_of_the_rate"] > 0
    assert not found["exceeded"]
