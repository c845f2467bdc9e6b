"""A small round of `benchmarks.unlimited`: that it measures the statements of now against others."""

from __future__ import annotations

import pytest

from benchmarks import unlimited
from benchmarks.batch_cost import Clocks
from benchmarks.unlimited import ORDER, WARM_UP_BLOCKS, Texts, measure, round_of, without_queues
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from tests.postgres import PostgresServer


async def test_statements_are_compared_with_those_without_queues(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[tuple[str, float]] = []

    async def noted(connection: TrioConnection, clocks: Clocks, texts: Texts, size: int) -> float:
        cost = await round_of(connection, clocks, texts, size)
        rounds.append(("A" if texts is SQL else "B", cost))
        return cost

    monkeypatch.setattr(unlimited, "round_of", noted)
    with postgres_server.database() as dsn:
        ratios = await measure(dsn, 2, 4)
    assert "".join(variant for variant, _ in rounds) == (WARM_UP_BLOCKS + 2) * ORDER
    assert all(cost > 0 for _, cost in rounds)
    blocks = [rounds[at : at + len(ORDER)] for at in range(WARM_UP_BLOCKS * len(ORDER), len(rounds), len(ORDER))]
    cpu = [[sum(cost for each, cost in block if each == variant) for variant in "AB"] for block in blocks]
    assert ratios == pytest.approx([with_queues / without for with_queues, without in cpu])


def test_a_statement_that_says_nothing_of_queues_is_reported() -> None:
    texts = without_queues(SQL)
    assert not any(word in texts["claim"] + texts["complete_fast"] for word in (b"j.keyed", b"held IS", b"flow_key"))
    with pytest.raises(ValueError, match="claim: asks nothing"):
        without_queues(texts)
