"""Two PostgreSQLs behind one router: ids lead to their shard, lists are whole, messages arrive."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack

import pytest
import trio

from benchmarks.shards import open_shards, play, shard_of


def test_ids_name_their_shard() -> None:
    ids = [(time << 22) | (number << 12) | 7 for time in (1, 1 << 40) for number in (0, 127, 128, 1023)]
    assert [shard_of(f"{id:x}") for id in ids] == [0, 0, 1, 7] * 2
    assert shard_of(f"{ids[2]:x}-1f-3") == 1


@pytest.mark.slow(reason="two engines and databases")
def test_two_shards_are_one_installation() -> None:
    with ExitStack() as stack:
        figures = trio.run(play, open_shards(stack, 2), Namespace(seconds=0.5, clients=2))
    assert figures.shards == 2
    assert figures.jobs_per_s > 0
    assert figures.listed > 0
