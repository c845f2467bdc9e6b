"""What a comparison of queues reads from moments."""

from __future__ import annotations

from benchmarks.load.queue_moments import figures


def test_moments_tell_rate_and_crowd() -> None:
    began = [0.0, 0.0, 1.0, 1.5, 2.2, 2.3, 2.4, 3.0, 4.0, 5.0]
    ended = [1.0, 1.5, 2.0, 2.4, 2.5, 2.5, 2.6, 3.5, 4.5, 5.5]
    found = figures(began, ended)
    assert found == {"per_s": 8 / (5.5 - 1.5), "most_at_once": 3, "most_in_period": 4}
