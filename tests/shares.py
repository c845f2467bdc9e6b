"""Random games and the like are played in part by the quick tier, and as a whole by the slow one."""

from __future__ import annotations

import pytest

in_shares = pytest.mark.parametrize(
    "share",
    [
        pytest.param(10, id="a-tenth"),
        pytest.param(1, id="all", marks=pytest.mark.slow(reason="plays all random games")),
    ],
)
"""``share`` is 10 for a tenth of the games, 1 for all. Only of all it is asked whether there is enough of each kind."""
