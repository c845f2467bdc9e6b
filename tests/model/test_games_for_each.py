"""forEach steps of every shape, random moves: `advance` and a second opinion on their rules must agree after each.

The second opinion knows of one such step only: a list of what each item is, who is under way, what was kept.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec

from penstock.core.event import JobCompleted, JobFailed, StepSkipped, TimerFired
from penstock.core.state import CONTINUE_TIMER, InstanceStatus, Token, TokenState
from penstock.testing.definitions import Json, definition, end, timer
from tests.core.machine import Machine
from tests.shapes import task

GAMES = 300
MOVES_MAX = 40
ENOUGH = 7
"""What a result has for `until`."""


class SecondOpinion:
    """``state`` of each item: None (to come), "open", "done", "failed" or "skipped"."""

    def __init__(self, each: Json, items: int, begins_max: int = 100) -> None:
        self.each: dict[str, Any] = each
        self.begins_max = begins_max
        self.state: list[str | None] = [None] * items
        self.kept: list[Any] = [None] * items
        self.late = False
        self.over: str | None = None  # how the step ended
        self.begin(begins_max)
        self.settle()

    def begin(self, most: int) -> None:
        while None in self.state and self.state.count("open") < self.each["parallel"]:
            if not most:
                self.late = True
                return
            self.state[self.state.index(None)] = "open"
            most -= 1

    def settle(self) -> None:
        if not self.late and not {None, "open"} & set(self.state):
            self.over = "COMPLETED"

    def go_on(self) -> None:
        self.late = False
        self.begin(self.begins_max)
        self.settle()

    def complete(self, item: int, value: int, how: str = "done") -> None:
        self.state[item] = how
        if "collect" in self.each:
            self.kept[item] = value
        if "until" in self.each and value == ENOUGH:
            self.state = ["skipped" if state in (None, "open") else state for state in self.state]
            self.late = False
        self.follow()

    def fail(self, item: int, code: str) -> None:
        if code == "CAUGHT":
            self.over = "CAUGHT"
            return
        if self.each["onError"] == "FAIL":
            self.over = "FAILED"
            return
        self.state[item] = "failed"
        if "into" in self.each:
            self.kept[item] = {"error": {"code": code, "message": "boom"}}
        self.follow()

    def follow(self) -> None:
        """The token goes on with the next item."""
        if None in self.state:
            self.state[self.state.index(None)] = "open"
        self.settle()


def shape(source: random.Random) -> tuple[Json, Json, int]:
    """A forEach, the definition around it, and how many items."""
    each: Json = {"items": "${list}", "index": "i", "parallel": source.choice((1, 2, 3, 130)), "onError": "FAIL"}
    if source.random() < 0.6:
        each |= {"collect": "${result.n}", "into": "kept"}
    if source.random() < 0.4:
        each["until"] = f"${{result.n == {ENOUGH}}}"
    if source.random() < 0.5:
        each["onError"] = "COLLECT"
    caught: Json = {"type": "ERROR", "errorCodes": ["CAUGHT"], "targetStepId": "late"}
    events = [timer("late", "PT1H", interrupting=True), caught]
    body = definition(task("a", "b", forEach=each, retryCount=1, boundaryEvents=events), task("b"), task("late"), end())
    return each, body, source.choice((0, 1, 2, 5, 8, 150))


def compare(machine: Machine, opinion: SecondOpinion) -> None:
    under_way = {token.item for token in machine.tokens.values() if token.item is not None}
    if opinion.over is None:
        assert under_way == {item for item, state in enumerate(opinion.state) if state == "open"}
        [about] = machine.maps.values()
        assert (about.done, about.failed) == (opinion.state.count("done"), opinion.state.count("failed"))
        [whole] = [token for token in machine.tokens.values() if token.state is TokenState.FORKED]
        assert whole.arrived == opinion.late
        return
    assert under_way == set()
    kind = [row.kind.name for row in machine.history if row.item is None and row.step == 0][-1]
    assert kind == opinion.over
    assert (machine.status is InstanceStatus.FAILED) is (opinion.over == "FAILED")
    if opinion.over == "COMPLETED":
        assert machine.open == ["b"]
        assert machine.variables.get("kept") == (opinion.kept if "into" in opinion.each else None)
        [counts] = [msgspec.json.decode(row.items) for row in machine.history if row.items is not None][-1:]
        assert (counts["completed"], counts["failed"]) == (opinion.state.count("done"), opinion.state.count("failed"))
    if opinion.over != "FAILED":
        assert (machine.maps, machine.items, machine.results) == ({}, {}, {})


def move(machine: Machine, opinion: SecondOpinion, source: random.Random) -> str:
    tokens = {token.item: token for token in machine.tokens.values() if token.item is not None}
    if opinion.over == "FAILED":
        machine.retry()
        opinion.over = None
        return "retry"
    if opinion.late and source.random() < 0.5:
        [whole] = [token for token in machine.tokens.values() if token.state is TokenState.FORKED]
        machine.apply(TimerFired(whole.id, CONTINUE_TIMER))
        opinion.go_on()
        return "go on"
    what = source.choice(
        ("complete", "complete", "complete", "complete", "fail", "retryable", "caught", "skip", "late")
    )
    if what == "late" and source.random() < 0.8:
        what = "complete"
    if what == "late":
        [whole] = [token for token in machine.tokens.values() if token.state is TokenState.FORKED]
        machine.apply(TimerFired(whole.id, 0))
        opinion.over = "INTERRUPTED"
        return what
    item = source.choice(sorted(tokens))
    token: Token = tokens[item]
    if token.state is TokenState.READY and what != "skip":
        machine.claim_token(token)
    value = source.choice((1, 2, ENOUGH))
    output = msgspec.json.encode({"n": value})
    match what:
        case "complete":
            machine.apply(JobCompleted(token.id, "w", output))
            opinion.complete(item, value)
        case "skip":
            machine.apply(StepSkipped(token.id, "by hand", output))
            opinion.complete(item, value, "skipped")
        case "retryable":
            again = token.failures == 0
            machine.apply(JobFailed(token.id, "w", True, "boom"))
            if not again:
                opinion.fail(item, "Penstock.RetriesExhausted")
        case _:
            code = "CAUGHT" if what == "caught" and source.random() < 0.3 else "OTHER"
            machine.apply(JobFailed(token.id, "w", False, "boom", code=code))
            opinion.fail(item, code)
    return what


def test_items_play_by_the_rules() -> None:
    seen: Counter[str] = Counter()
    for seed in range(GAMES):
        source = random.Random(seed)
        each, body, items = shape(source)
        moves: list[str] = []
        try:
            machine = Machine(body, {"list": list(range(items))})
            opinion = SecondOpinion(each, items)
            compare(machine, opinion)
            while len(moves) < MOVES_MAX and opinion.over in (None, "FAILED") and moves[-2:] != ["retry", "retry"]:
                moves.append(move(machine, opinion, source))
                compare(machine, opinion)
        except BaseException as error:
            error.add_note(f"seed {seed}: {each}, {items} items: {moves}")
            raise
        seen.update(moves)
        seen[str(opinion.over)] += 1
    wanted = {"complete", "skip", "retryable", "fail", "caught", "late", "retry", "go on"}
    wanted |= {"COMPLETED", "CAUGHT", "INTERRUPTED"}
    assert {what for what, times in seen.items() if times >= 5} >= wanted, seen
