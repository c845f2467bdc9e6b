"""What an engine knows of the queue without asking, and for how long it believes it."""

from __future__ import annotations

from penstock.engine.queue_counts import QueueCounts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def probed(counts: QueueCounts, **found: int) -> None:
    counts.note_probed({name: counts.version(name) for name in found}, {k: v for k, v in found.items() if v})


def test_what_a_probe_saw_is_counted_on_by_what_is_queued_and_claimed() -> None:
    counts = QueueCounts(Clock(), 0.2)
    probed(counts, a=5, b=0)
    assert counts.waiting(["a", "b", "c"]) == {"a": 5}
    counts.note_queued("a")
    counts.note_queued("b")
    counts.note_claimed("a", 4)
    assert counts.waiting(["a", "b", "c"]) == {"a": 2, "b": 1}
    counts.note_claimed("b", 1)
    assert counts.waiting(["b"]) == {}


def test_only_what_a_probe_saw_empty_is_known_to_be_empty() -> None:
    counts = QueueCounts(Clock(), 0.2)
    assert not counts.known_empty(["a"])
    probed(counts, a=0, b=1)
    assert counts.known_empty(["a"])
    counts.note_claimed("b", 1)
    assert not counts.known_empty(["b"])  # the probe counts to a limit: there may be more
    assert not counts.known_empty(["a", "b"])
    counts.note_queued("a")
    assert not counts.known_empty(["a"])


def test_what_was_queued_while_a_probe_ran_may_not_be_in_it() -> None:
    counts = QueueCounts(Clock(), 0.2)
    versions = {"a": counts.version("a")}
    counts.note_queued("a")
    counts.note_probed(versions, {})
    assert not counts.known_empty(["a"])
    assert counts.waiting(["a"]) == {"a": 1}


def test_it_is_believed_for_a_time_and_not_after_a_hint() -> None:
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
