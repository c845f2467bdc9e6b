"""Games of queues, starts, batches and schedules, by the engines' own operations."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.engine.conftest import MakeDriver
from tests.model.flow_games import WEIGHTS, FlowGame
from tests.model.flow_hands import Hands, enable_sql

WANTED = {*WEIGHTS, "taken", "kept back", "throttled", "put off", "the same", "batch over", "fired"}


async def play_games(make_driver: MakeDriver, seeds: range) -> Counter[str]:
    engines = [make_driver(lease_expiry_limit=1_000) for _ in range(2)]
    enable_sql(engines[0])
    clock = engines[0].clock
    clock.stop()
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += await FlowGame(Hands(engines, random.Random(seed)), clock, seed).play()
    return seen


async def test_limits_starts_batches_and_schedules_go_by_the_rules(make_driver: MakeDriver) -> None:
    assert +(await play_games(make_driver, range(6))) >= Counter(WANTED)


@pytest.mark.chaos
async def test_they_go_by_the_rules_in_many_games(make_driver: MakeDriver) -> None:
    first = int(os.environ.get("PENSTOCK_FLOW_GAMES_FROM", "1000"))
    await play_games(make_driver, range(first, first + int(os.environ.get("PENSTOCK_FLOW_GAMES", "100"))))
