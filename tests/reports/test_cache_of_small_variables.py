"""Small variables fill memory, too: found by a soak whose engine grew by a kilobyte per instance.

What another engine completes, this one never hears of; only the bound of the cache ends it.
"""

from __future__ import annotations

import tracemalloc

from penstock.engine.queues.variables import VariablesCache

BOUND_BYTES = 1_000_000


def test_a_cache_of_the_smallest_variables_stays_within_its_bound() -> None:
    tracemalloc.start()
    try:
        cache = VariablesCache(BOUND_BYTES)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(50_000):
            cache.put(2**60 + number, 2**40 + number, b'{"n":%d}' % number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    entries, accounted = cache.statistics()
    assert accounted <= BOUND_BYTES
    assert 0 < entries < 50_000
    assert after - before < 1.5 * BOUND_BYTES


def test_what_is_taken_out_is_accounted_for() -> None:
    cache = VariablesCache(BOUND_BYTES)
    for number in range(10):
        cache.put(number, number, b"{}")
        cache.put(number, number, b'{"x":1}')
    for number in range(10):
        assert cache.take(number, number) == b'{"x":1}'
    assert cache.statistics() == (0, 0)
