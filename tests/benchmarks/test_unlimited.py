"""A small round of `benchmarks.unlimited`: that it measures the statements of now against others."""

from __future__ import annotations

import pytest

from benchmarks.unlimited import measure, without_queues
from penstock.store.statements import SQL
from tests.postgres import Server


async def test_statements_are_compared_with_those_without_queues(postgres_server: Server) -> None:
    with postgres_server.database() as dsn:
        ratios = await measure(dsn, 2, 4)
    assert len(ratios) == 2
    assert all(0.1 < ratio < 10 for ratio in ratios)


def test_a_statement_that_says_nothing_of_queues_is_told() -> None:
    texts = without_queues(SQL)
    assert not any(word in texts["claim"] + texts["complete_fast"] for word in (b"j.keyed", b"held IS", b"flow_key"))
    with pytest.raises(ValueError, match="claim: asks nothing"):
        without_queues(texts)
