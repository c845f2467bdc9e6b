"""Where claims among the flow keys go on: what was heard of keys, and when a look is worth its while."""

from __future__ import annotations

import math

import pytest

from penstock.engine import flow_turns
from penstock.engine.flow_turns import FlowTurns


def looked(turns: FlowTurns, job_type: str, *, found: int = 0, more: bool = True, took_s: float = 0.01) -> None:
    turns.note(job_type, cursor="k", found=found, more=more, retry_s=None, took_s=took_s)


def test_keys_are_noted_where_a_look_did_not_come_round() -> None:
    turns = FlowTurns(lambda: 0.0)
    turns.hint(["wide", "small"], "early")
    looked(turns, "wide")
    looked(turns, "small", more=False)
    for key in ("b", "a", "b", "c"):
        turns.hint(["wide", "small"], key)
    assert turns.take_hints("small", 10) == []
    assert turns.take_hints("wide", 2) == ["b", "a"]
    assert turns.take_hints("wide", 2) == ["c"]
    turns.hint(["wide"], "d")
    looked(turns, "wide", more=False)
    assert turns.take_hints("wide", 2) == []


def test_so_many_keys_are_noted_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_turns, "KEYS_MAX_ITEMS", 3)
    turns = FlowTurns(lambda: 0.0)
    looked(turns, "one")
    looked(turns, "other")
    for key in ("a", "b"):
        turns.hint(["one"], key)
    turns.hint(["other"], "c")
    turns.hint(["other"], "d")  # walks come to the others
    assert [turns.take_hints(name, 9) for name in ("one", "other")] == [[], ["d"]]
    for key in ("e", "f", "g"):
        turns.hint(["one"], key)
    assert turns.take_hints("one", 9) == ["e", "f", "g"]


def test_a_look_that_found_nothing_is_repeated_in_time() -> None:
    now = 100.0
    turns = FlowTurns(lambda: now)
    assert turns.next_opening(["one"]) == math.inf
    looked(turns, "one")
    looked(turns, "other", more=False)
    assert turns.next_opening(["one", "other", "third"]) == pytest.approx(100.08)
    assert not turns.is_open("one")
    now = 100.1
    assert turns.is_open("one")
    assert turns.next_opening(["one", "other"]) == pytest.approx(100.2)
    turns.open(["other"])
    assert turns.next_opening(["one", "other"]) == math.inf
