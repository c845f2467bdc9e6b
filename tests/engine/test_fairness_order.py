"""Where claims among the flow keys go on: what was heard of keys, and when a look is worth its while."""

from __future__ import annotations

import math
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.queues import fairness_order
from penstock.engine.queues.fairness_order import FairnessOrder
from penstock.store.rows.flow import BEFORE_ALL, ClaimScan

KEYS_MAX = 4


def scanned(
    turns: FairnessOrder,
    job_type: str,
    *,
    found: int = 0,
    more: bool = True,
    took_s: float = 0.01,
    cursor: str | None = "k",
    retry_s: float | None = None,
    ended_at: int | None = None,
) -> None:
    scan = ClaimScan(cursor, KEYS_MAX if more else 0, 0, 0, retry_s, (), ended_at)
    turns.note(job_type, scan, found, keys_max=KEYS_MAX, took_s=took_s)


def test_keys_are_noted_where_a_look_did_not_come_round() -> None:
    turns = FairnessOrder(lambda: 0.0)
    turns.hint(["wide", "small"], "early")
    scanned(turns, "wide")
    scanned(turns, "small", more=False)
    for key in ("b", "a", "b", "c"):
        turns.hint(["wide", "small"], key)
    assert turns.take_hints("small", 10) == []
    assert turns.take_hints("wide", 2) == ["b", "a"]
    assert turns.take_hints("wide", 2) == ["c"]
    turns.hint(["wide"], "d")
    scanned(turns, "wide", more=False)
    assert turns.take_hints("wide", 2) == []


@pytest.mark.parametrize("took_s", [0.001, 0.012, 0.025, 0.4])
def test_a_round_takes_its_looks_and_bounded_pauses(took_s: float) -> None:
    """10,000 full keys, 256 a look: one that nobody told of is come to within 3 s, if looks take 20 ms."""
    now, probes = 0.0, -(-10_000 // 256)
    turns = FairnessOrder(lambda: now)
    for _ in range(probes):
        now = max(now, turns.next_open_at(["wide"])) + took_s
        assert turns.is_open("wide")
        scanned(turns, "wide", took_s=took_s)
    assert now <= probes * (fairness_order.WALK_PAUSE_MAX_S + took_s)
    assert took_s > 0.02 or now < 3.0


def test_a_look_that_hung_is_repeated_soon() -> None:
    turns = FairnessOrder(lambda: 0.0)
    scanned(turns, "small", more=False, took_s=30.0)
    assert turns.next_open_at(["small"]) == fairness_order.FRUITLESS_MAX_S


def test_keys_stay_noted_where_nothing_could_be_looked_at() -> None:
    turns = FairnessOrder(lambda: 0.0)
    scanned(turns, "wide")
    turns.hint(["wide"], "a")
    scanned(turns, "wide", cursor=None, more=False)
    turns.hint(["wide"], "b")
    assert turns.take_hints("wide", 9) == ["a", "b"]


def test_a_round_of_long_ago_says_nothing_of_now() -> None:
    now = 100.0
    turns = FairnessOrder(lambda: now)
    assert turns.may_be_crowded("one")
    scanned(turns, "one", more=False)
    now += fairness_order.ROUND_TRUSTED_S
    assert not turns.may_be_crowded("one")
    now += 1.0
    assert turns.may_be_crowded("one")
    scanned(turns, "one", more=False)
    scanned(turns, "one")
    assert turns.may_be_crowded("one")


def test_so_many_keys_are_noted_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness_order, "KEYS_MAX_ITEMS", 3)
    turns = FairnessOrder(lambda: 0.0)
    scanned(turns, "one")
    scanned(turns, "other")
    for key in ("a", "b"):
        turns.hint(["one"], key)
    turns.hint(["other"], "c")
    turns.hint(["other"], "d")  # walks come to the others
    assert [turns.take_hints(name, 9) for name in ("one", "other")] == [[], ["d"]]
    for key in ("e", "f", "g"):
        turns.hint(["one"], key)
    assert turns.take_hints("one", 9) == ["e", "f", "g"]


def test_types_that_were_not_looked_at_for_longest_are_forgotten_with_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness_order, "TYPES_MAX_ITEMS", 2)
    monkeypatch.setattr(fairness_order, "KEYS_MAX_ITEMS", 3)
    turns = FairnessOrder(lambda: 0.0)
    scanned(turns, "first")
    scanned(turns, "second")
    turns.hint(["first", "second"], "a")
    turns.hint(["second"], "b")
    scanned(turns, "first")
    scanned(turns, "third")
    assert [turns.cursor(name) for name in ("first", "second", "third")] == ["k", "", "k"]
    assert turns.is_open("second")
    for key in ("c", "d"):  # no more than the bound, without those of the one that is forgotten
        turns.hint(["third"], key)
    assert turns.take_hints("first", 9) == ["a"]
    assert turns.take_hints("second", 9) == []
    assert turns.take_hints("third", 9) == ["c", "d"]


def test_worse_priorities_have_their_turn_then_the_best_again() -> None:
    turns = FairnessOrder(lambda: 0.0)
    assert turns.after("one") == BEFORE_ALL
    scanned(turns, "one", ended_at=3)
    assert turns.after("one") == 3
    turns.hint(["one"], "a")
    scanned(turns, "one", more=False)
    assert turns.after("one") == BEFORE_ALL
    assert turns.take_hints("one", 9) == ["a"]  # it saw the end of the worse ones only
    scanned(turns, "one", more=False)
    turns.hint(["one"], "b")
    assert turns.take_hints("one", 9) == []


def test_a_look_is_repeated_when_a_rate_lets_something_begin() -> None:
    turns = FairnessOrder(lambda: 100.0)
    scanned(turns, "one", more=False, retry_s=0.05)
    scanned(turns, "late", more=False, retry_s=50.0)
    scanned(turns, "found", more=False, retry_s=50.0, found=1)
    assert turns.next_open_at(["one"]) == pytest.approx(100.05)
    assert turns.next_open_at(["late"]) == pytest.approx(100.0 + fairness_order.FRUITLESS_S)
    assert turns.is_open("found")


def test_types_are_looked_through_for_adoption_now_and_then() -> None:
    now = 100.0
    turns = FairnessOrder(lambda: now)
    assert turns.to_reassign(["one", "other"]) == ["one", "other"]
    assert turns.to_reassign(["one", "third"]) == ["third"]
    turns.reassign_again(["one", "unknown"])
    assert turns.to_reassign(["one", "other"]) == ["one"]
    now += fairness_order.REASSIGN_INTERVAL_S
    assert turns.to_reassign(["one", "other", "third"]) == ["one", "other", "third"]


def test_a_look_that_found_nothing_is_repeated_in_time() -> None:
    now = 100.0
    turns = FairnessOrder(lambda: now)
    assert turns.next_opening(["one"]) == math.inf
    scanned(turns, "one")
    scanned(turns, "other", more=False)
    assert turns.next_opening(["one", "other", "third"]) == pytest.approx(100.05)
    assert not turns.is_open("one")
    now = 100.1
    assert turns.is_open("one")
    assert turns.next_opening(["one", "other"]) == pytest.approx(100.2)
    turns.open(["other"])
    assert turns.next_opening(["one", "other"]) == math.inf


class Round:
    """Keys whose jobs wait, some of them full, and looks at so many keys each, as `claim_flow` takes them."""

    AT_ONCE = KEYS_MAX

    def __init__(self) -> None:
        self.now = 0.0
        self.fairness_order = FairnessOrder(lambda: self.now)
        self.waiting: set[str] = set()
        self.full: set[str] = set()

    @property
    def lost(self) -> set[str]:
        """Keys that wait though they have room."""
        return self.waiting - self.full

    def hear(self, key: str) -> None:
        """Something happened to the key in this engine, which says so."""
        self.fairness_order.hint(["t"], key)
        self.fairness_order.open(["t"])

    def scan(self) -> None:
        """At the time at which the next look is worth its while."""
        self.now = max(self.now, self.fairness_order.next_open_at(["t"]))
        assert self.fairness_order.is_open("t")
        keys = sorted(self.waiting)
        begin = bisect_right(keys, self.fairness_order.cursor("t"))
        seen = [*keys[begin:], *keys[:begin]][: self.AT_ONCE]
        found = set(seen) - self.full
        self.waiting -= found
        more, cursor = len(seen) >= self.AT_ONCE, seen[-1] if seen else None
        scanned(self.fairness_order, "t", found=len(found), more=more, cursor=cursor)
        if (
            more
            and len(found) < self.AT_ONCE
            and (hinted := {*self.fairness_order.take_hints("t", self.AT_ONCE)} - self.full)
        ):
            self.fairness_order.open(["t"])
            self.waiting -= hinted


KEYS = [f"{number:02}" for number in range(30)]


@given(st.lists(st.tuples(st.sampled_from(["queue", "fill", "free", "look"]), st.sampled_from(KEYS), st.booleans())))
def test_no_key_with_room_is_passed_over_for_long(moves: list[tuple[str, str, bool]]) -> None:
    """Whether somebody told of it or not; and a look comes within seconds."""
    game = Round()
    for what, key, received in moves:
        match what:
            case "queue":
                game.waiting.add(key)
            case "fill":
                game.full.add(key)
            case "free":
                game.full.discard(key)
            case _:
                game.scan()
        if received and what in ("queue", "free"):
            game.hear(key)
    began = game.now
    for _ in range(len(KEYS) // Round.AT_ONCE + 2):
        game.scan()
    assert not game.lost
    assert game.now - began < 2 * len(KEYS)
