"""What began when, under a limit: shared by all who are measured. Imports nothing, as others run it, too."""

from __future__ import annotations


def figures(began: list[float], ended: list[float], period_s: float = 1.0) -> dict[str, float]:
    """Of moments in seconds: how many a second between a tenth and nine tenths of them, how many were under way at the
    same time at most, how many began within one period at most."""
    began, ended = sorted(began), sorted(ended)
    first, last = len(ended) // 10, len(ended) * 9 // 10
    most = in_period = first_in_period = done = 0
    for number, at in enumerate(began):
        while done < len(ended) and ended[done] <= at:
            done += 1
        most = max(most, number + 1 - done)
        while began[first_in_period] <= at - period_s:
            first_in_period += 1
        in_period = max(in_period, number + 1 - first_in_period)
    return {
        "per_s": (last - first) / (ended[last] - ended[first]),
        "most_at_once": most,
        "most_in_period": in_period,
    }
