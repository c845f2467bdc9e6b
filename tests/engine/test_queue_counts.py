"""What an engine knows of the queue without asking, and for how long it believes it."""

from __future__ import annotations

from penstock.engine.queues.queue_counts import QueueCounts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def probed(counts: QueueCounts, **found: int) -> None:
    counts.remember_probed({name: counts.version(name) for name in found}, {k: v for k, v in found.items() if v})


def test_queued_and_claimed_jobs_update_what_a_probe_saw() -> None:
    counts = QueueCounts(Clock(), 0.2)
    probed(counts, a=5, b=0)
    assert counts.waiting(["a", "b", "c"]) == {"a": 5}
    counts.remember_queued("a")
    counts.remember_queued("b")
    counts.on_claimed("a", 4)
    assert counts.waiting(["a", "b", "c"]) == {"a": 2, "b": 1}
    counts.on_claimed("b", 1)
    assert counts.waiting(["b"]) == {}


def test_only_queues_that_a_probe_saw_empty_count_as_empty() -> None:
    counts = QueueCounts(Clock(), 0.2)
    assert not counts.known_empty(["a"])
    probed(counts, a=0, b=1)
    assert counts.known_empty(["a"])
    counts.on_claimed("b", 1)
    assert not counts.known_empty(["b"])  # the probe counts to a limit: there may be more
    assert not counts.known_empty(["a", "b"])
    counts.remember_queued("a")
    assert not counts.known_empty(["a"])


def test_jobs_queued_during_a_probe_may_be_missing_from_it() -> None:
    counts = QueueCounts(Clock(), 0.2)
    versions = {"a": counts.version("a")}
    counts.remember_queued("a")
    counts.remember_probed(versions, {})
    assert not counts.known_empty(["a"])
    assert counts.waiting(["a"]) == {"a": 1}


def test_a_count_is_believed_until_its_time_or_a_hint() -> None:
    clock = Clock()
    counts = QueueCounts(clock, 0.2)
    probed(counts, a=0, b=3)
    clock.now += 0.19
    assert counts.known_empty(["a"])
    assert counts.waiting(["b"]) == {"b": 3}
    counts.forget("b")
    assert counts.waiting(["b"]) == {}
    clock.now += 0.02
    assert not counts.known_empty(["a"])
    probed(counts, b=3)
    clock.now += 0.21
    assert counts.waiting(["b"]) == {}
