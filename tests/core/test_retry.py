"""How long a worker may wish to wait before its job is tried again."""

from __future__ import annotations

from math import inf, nan

import pytest

from penstock.core.graph.retry import DELAY_MAX_S, wished_s


@pytest.mark.parametrize(
    ("given", "pause_s"), [(None, None), (1.5, 1.5), (-1, 0.0), (10**400, DELAY_MAX_S), (inf, DELAY_MAX_S), (nan, None)]
)
def test_a_wish_is_bounded(given: float | None, pause_s: float | None) -> None:
    assert wished_s(given) == pause_s
