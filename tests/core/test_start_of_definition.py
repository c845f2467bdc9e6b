"""The field `start` of a definition: everything wrong with it at once, and what it gives a start."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock.core.expression.work import Work
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.core.parsing.start_of_definition import knowing
from penstock.core.rules.start_rules import Debounce, Dedupe, StartRules, Throttle, together
from penstock.errors import BadRequest
from penstock.testing.definitions import linear
from penstock.testing.random_definitions import START_VARIABLES, random_definition, with_start

WHOLE: dict[str, Any] = {
    "delay": "${wait}",
    "dedupe": {"key": "${order}", "window": "PT1H"},
}


def problems(start: object) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(linear(1) | {"start": start})
    return [str(problem) for problem in caught.value.problems]


def test_everything_wrong_is_reported_at_once() -> None:
    assert problems([]) == ["start: must be an object, not an array"]
    assert problems({
        "startAt": 7,
        "delay": "soon",
        "dedupe": {"key": "k", "window": 1, "more": 2},
        "throttle": {"key": "${a +}", "limit": "2"},
        "debounce": "k",
        "waitSeconds": 3,
    }) == [
        "start.startAt: must be a string, not a number",
        "start.dedupe.more: unknown field",
        "start.dedupe.window: expected str, got int",
        "start.throttle.key: unexpected } (line 1, column 6 of `${a +}`)",
        "start.throttle.limit: expected int | float, got str",
        "start.debounce: must be an object, not a string",
        "start.waitSeconds: unknown field",
        "start.delay: 'soon' is not an ISO 8601 duration such as PT30S, PT1H30M, P7D or P1W",
    ]  # fmt: skip
    assert problems({"delay": "PT1S", "debounce": {"key": "k", "wait": "PT1S"}}) == [
        "start.debounce: can't be combined with delay"
    ]
    assert problems({"dedupe": {"key": "", "window": "PT1H"}}) == ["start.dedupe.key: is required"]
    assert problems({"throttle": {"key": "k", "limit": 0}}) == [
        "start.throttle.limit: must be a whole number from 1 to 1000000"
    ]


def test_what_is_given_is_kept_and_read_again() -> None:
    parsed = parse_definition(linear(1) | {"start": WHOLE})
    assert msgspec.json.decode(parsed.content)["start"] == WHOLE
    assert parse_definition(parsed.content.encode()) == parsed
    bare = parse_definition(linear(1) | {"start": {}})
    assert (bare.start, "start" in msgspec.json.decode(bare.content)) == (None, False)


def test_expressions_give_keys_and_times() -> None:
    start = parse_definition(linear(1) | {"start": WHOLE}).start
    assert start is not None
    given: dict[str, object] = {"${wait}": "PT5S", "${order}": 4711}
    evaluate = lambda expression: given[expression.source]  # noqa: E731
    assert start.rules(evaluate) == StartRules(None, 5.0, Dedupe("4711", 3600.0))
    for place, bad in (("${wait}", 5), ("${wait}", ""), ("${order}", True), ("${order}", None), ("${order}", [1])):
        given = {"${wait}": "PT5S", "${order}": 4711}
        given[place] = bad
        with pytest.raises(BadRequest, match=r"^start\.(delay|dedupe\.key): must give text, not "):
            start.rules(evaluate)
    given = {"${wait}": "later", "${order}": "x"}
    with pytest.raises(BadRequest, match="delay: 'later' is not"):
        start.rules(evaluate)


def test_random_rules_are_kept_and_give_what_they_say() -> None:
    now = datetime(2026, 5, 4, tzinfo=UTC)
    seen: set[str] = set()
    for seed in range(200):
        source = random.Random(seed)
        body = with_start(random_definition(source, max_steps=5), source)
        parsed = parse_definition(body)
        assert parse_definition(parsed.content.encode()) == parsed
        assert msgspec.json.decode(parsed.content).get("start", {}) == body["start"]
        if parsed.start is None:
            continue
        rules = parsed.start.rules(knowing(START_VARIABLES, now, Work(1_000)))
        asked = {name for name in ("dedupe", "throttle", "debounce") if getattr(rules, name) is not None}
        assert asked == body["start"].keys() - {"startAt", "delay"}
        assert (rules.begins_at(now) is None) == body["start"].keys().isdisjoint({"startAt", "delay"})
        seen |= body["start"].keys()
    assert seen == {"startAt", "delay", "dedupe", "throttle", "debounce"}


def test_a_start_adds_what_its_definition_does_not_say() -> None:
    throttle = Throttle("k", 1.0, 1, delays=False)
    own = StartRules(throttle=throttle)
    assert together(own, None, has_instance_key=True) == own
    dedupe = Dedupe("d", 60.0)
    assert together(own, StartRules(dedupe=dedupe), has_instance_key=False) == StartRules(None, None, dedupe, throttle)
    with pytest.raises(BadRequest, match=r"^throttle: the definition says it$"):
        together(own, own, has_instance_key=False)
    with pytest.raises(BadRequest, match=r"^throttle: can't be combined with delay$"):
        together(own, StartRules(delay_s=1.0), has_instance_key=False)
    with pytest.raises(BadRequest, match=r"^dedupe: can't be combined with instanceKey$"):
        together(StartRules(dedupe=dedupe), None, has_instance_key=True)
    with pytest.raises(BadRequest, match=r"^debounce: can't be combined with dedupe$"):
        together(
            StartRules(debounce=Debounce("b", 1.0, 9.0, merges=True)), StartRules(dedupe=dedupe), has_instance_key=False
        )
