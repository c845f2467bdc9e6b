"""Several outcomes written as one leave the rows that they leave one after the other."""

from __future__ import annotations

import builtins
import copy
import random
from collections import Counter
from datetime import UTC, datetime
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from penstock.core.advance.effect import Effects
from penstock.core.advance.event import JobCompleted, JobFailed, TaskCompleted, TimerFired
from penstock.core.advance.merging import merged, token_states
from penstock.core.graph.definition import StepType
from penstock.core.rules.state import Instance, InstanceStatus, Token, TokenState
from penstock.testing.random_definitions import START_VARIABLES, random_definition, random_output
from tests.core.machine import Machine
from tests.shares import in_shares

ROUNDS = 8
GAMES = 250


@in_shares
def test_a_merged_outcome_leaves_the_same_rows(share: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(GAMES // share):
        source = random.Random(seed)
        machine = Machine(random_definition(source, failing=seed % 3 == 0), START_VARIABLES, max_automatic_steps=40)
        for _ in range(ROUNDS):
            if machine.status is not InstanceStatus.ACTIVE:
                break
            for token in [token for token in machine.tokens.values() if token.state is TokenState.READY]:
                machine.claim_token(token)
            before = replica(machine)
            outcomes = play(machine, source, seen)
            if not outcomes:
                break
            tokens = [*before.tokens.values()]
            for one in outcomes:
                tokens = token_states(tokens, one)
            assert {token.id: token for token in tokens} == machine.tokens
            before._take(merged(outcomes))
            before.check()
            assert rows_of(before) == rows_of(machine), seed
            seen[f"{min(len(outcomes), 3)} together"] += 1
    assert (
        share > 1
        or min(seen[name] for name in ("1 together", "2 together", "3 together", "ended", "fired", "a call ended")) > 5
    )


def replica(machine: Machine) -> Machine:
    """The same rows, which no longer change with the machine's."""
    other = copy.copy(machine)
    other.__dict__ |= {
        name: copy.deepcopy(value)
        for name, value in machine.__dict__.items()
        if name not in ("definition", "inputs", "ids", "positions", "kept_ids")
    }
    return other


def rows_of(machine: Machine) -> list[object]:
    return [
        machine.tokens, machine.ready, machine.timers, machine.history, machine.calls, machine.status, machine.failure,
        machine.variables,
    ]  # fmt: skip


def play(machine: Machine, source: random.Random, seen: Counter[str]) -> list[Effects]:
    """Events on executions that none before has touched, in any order."""
    outcomes: list[Effects] = []
    touched: set[int] = set()
    waiting = [token for token in machine.tokens.values() if token.is_open]
    source.shuffle(waiting)
    for token in waiting:
        if token.id in touched or machine.status is not InstanceStatus.ACTIVE or source.random() < 0.2:
            continue
        if machine.tokens.get(token.id) is not token:
            continue
        out = happen(machine, token, source, seen)
        if out is None:
            continue
        outcomes.append(copy.deepcopy(out))
        touched |= {one.id for one in (*out.inserted, *out.updated)} | {*out.deleted}
        if out.ended:
            seen["ended"] += 1
            break
    return outcomes


def happen(machine: Machine, token: Token, source: random.Random, seen: Counter[str]) -> Effects | None:
    timers = [index for id, seq, index in machine.timers if (id, seq) == (token.id, token.seq)]
    step = machine.definition.steps[token.step]
    output = msgspec.json.encode(random_output(source))
    if timers and source.random() < 0.3:
        index = source.choice(timers)
        machine.now = max(machine.now, machine.timers[token.id, token.seq, index].fire_at)
        seen["fired"] += 1
        return machine.apply(TimerFired(token.id, index))
    match step.type:
        case StepType.SERVICE_TASK if token.state is TokenState.BACKOFF:
            return None
        case StepType.SERVICE_TASK if source.random() < 0.2:
            return machine.apply(JobFailed(token.id, "w", True, "boom"))
        case StepType.SERVICE_TASK:
            return machine.apply(JobCompleted(token.id, "w", output))
        case StepType.CALL_ACTIVITY:
            if (token.id, token.seq) not in machine.calls:
                return None
            seen["a call ended"] += 1
            return machine.child_ended(token, InstanceStatus.COMPLETED, random_output(source))
        case _:
            return machine.apply(TaskCompleted(token.id, None, output))


BY_THE_END = ("ended", "dead_end", "chain", "snapshot", "undoing", "ended_as", "instance")


@pytest.mark.parametrize("name", Effects.__struct_fields__)
def test_each_field_of_an_outcome_is_merged(name: str) -> None:
    """Also one that comes to be later: what one outcome says in it is not lost beside others that say nothing."""
    value = something(get_type_hints(Effects)[name])
    assert value != getattr(Effects(Instance(1)), name)
    for place in (0,) if name == "reopened" else (2,) if name in BY_THE_END else (0, 1, 2):
        outcomes = [Effects(Instance(1)) for _ in range(3)]
        setattr(outcomes[place], name, value)
        assert getattr(merged(outcomes), name) == value


def test_lists_of_outcomes_are_merged_in_their_order() -> None:
    names = [name for name, hint in Effects.__annotations__.items() if hint.startswith("Joined[")]
    assert "history" in names
    for name in names:
        outcomes = [Effects(Instance(1)) for _ in range(3)]
        for number, one in enumerate(outcomes):
            setattr(one, name, [number, number])
        assert getattr(merged(outcomes), name) == [0, 0, 1, 1, 2, 2]


def something(hint: Any) -> Any:
    """A value of this type that is not what a field has at first."""
    if hint is datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint(**{name: something(each) for name, each in get_type_hints(hint).items()})
    if hint in (int, float, bool, str, bytes):
        return {int: 7, float: 7.5, bool: True, str: "x", bytes: b"x"}[hint]
    parts = get_args(hint)
    match get_origin(hint):
        case builtins.list:
            return [something(parts[0])]
        case builtins.tuple:
            return tuple(something(each) for each in parts)
        case builtins.dict:
            return {something(parts[0]): something(parts[1])}
        case _:
            assert parts[-1] is NoneType, hint
            return something(parts[0])
