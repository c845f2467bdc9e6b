"""Random games and the like are played in part by the quick tier, and as a whole by the slow one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

in_shares = pytest.mark.parametrize(
    "share",
    [
        pytest.param(10, id="a-tenth"),
        pytest.param(1, id="all", marks=pytest.mark.slow(reason="plays all random games")),
    ],
)
"""``share`` is 10 for a tenth of the games, 1 for all. Only of all it is asked whether there is enough of each kind."""


def mostly_slow(cases: Iterable[Any], *, quick: Iterable[Any], reason: str) -> list[Any]:
    """Return the cases for `parametrize`: those of ``quick`` for the quick tier, all others for the slow one. A tuple
    has the values of several arguments."""
    cases, quick = list(cases), list(quick)
    unknown = [case for case in quick if case not in cases]
    if unknown:
        raise ValueError(f"quick names cases that there are not: {unknown}")
    if len(reason.split()) < 2:
        raise ValueError(f"a reason says in words what takes long, not {reason!r}")
    slow = pytest.mark.slow(reason=reason)
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        case if case in quick else pytest.param(*each, marks=slow) for case, each in zip(cases, values, strict=True)
    ]
