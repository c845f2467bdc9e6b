"""Random definitions, random moves: `advance` and the independent token game must agree after each."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.advance.event import (
    JobCompleted,
    JobFailed,
    JobParked,
    JobSignalled,
    StepSkipped,
    TaskCompleted,
    TimerFired,
    TokenMoved,
)
from penstock.core.advance.repair import find_mover
from penstock.core.graph.definition import StepType
from penstock.core.rules.state import CLOSING_KINDS, InstanceStatus, Token, TokenState
from penstock.errors import Conflict
from penstock.testing.definitions import Json, definition, end, timer
from penstock.testing.random_definitions import (
    MESSAGE,
    START_VARIABLES,
    definitions,
    random_definition,
    random_output,
    with_turns,
)
from tests.core.machine import Machine
from tests.model.moves import (
    MAX_AUTOMATIC,
    MAX_WORK,
    PARK_SIGNAL,
    PARK_UNTIL,
    SIGNAL,
    Drawing,
    Drawn,
    Move,
    Seeded,
    next_move,
    output_of,
    play,
    without_ids,
)
from tests.model.reference_model import CONTINUE, RECEIVE, ReferenceModel
from tests.shapes import choose, gateway, joining, task, user, wait
from tests.shares import in_shares

MOVES_MAX = 30
MAX_CALLS = 1
"""Of one advance: a second one goes on in an advance of its own."""


def compare(machine: Machine, game: ReferenceModel) -> None:
    assert machine.status.name == game.status
    if game.failure is not None:
        assert machine.failure is not None
        if game.failure != "expression":
            assert game.failure in machine.failure
    assert machine.open == [mark.step for mark in game.open_tokens]
    steps = machine.definition.steps
    for token, mark in zip(open_tokens(machine), game.open_tokens, strict=True):
        assert token.side is mark.side
        assert (token.parent_id is None) is (mark.block is None)
        if token.parent_id is not None and mark.block is not None:
            assert steps[machine.tokens[token.parent_id].step].id == mark.block.gateway
        assert set(armed(machine, token.id, token.seq)) == mark.timers
        assert (token.state is TokenState.BACKOFF) is mark.backing_off
        assert (token.waits_for or "") == mark.signal
        assert token.failures == mark.failures
        if steps[token.step].type is StepType.SERVICE_TASK:
            assert (token.flow_key, token.priority) == mark.turn
    for whole, about in zip(machine.wholes, game.maps, strict=True):
        assert set(armed(machine, whole.id, whole.seq)) == about.owner.timers
        state = machine.maps[whole.id]
        assert (state.total, state.next, state.done, state.failed) == (
            len(about.items), about.next, about.done, about.failed,
        )  # fmt: skip
        kept = {item: msgspec.json.decode(value) for (id, item), value in machine.results.items() if id == whole.id}
        assert {item: without_ids(value) for item, value in kept.items()} == about.kept
    assert machine.reported == [game.compensating(mark) for mark in game.open_tokens if mark.undoes >= 0]
    blocks = Counter((block.gateway, block.under_way, block.arrived) for block in game.blocks)
    forked = [token for token in machine.tokens.values() if token.state is TokenState.FORKED]
    assert Counter((steps[t.step].id, t.pending, t.arrived) for t in forked) == blocks
    assert {name: without_ids(value) for name, value in machine.variables.items()} == game.variables
    assert machine.instance.failure_code == game.failure_code
    result = machine.instance.result
    assert (None if result is None else msgspec.json.decode(result)) == game.result
    closed = Counter((steps[h.step].id, h.kind.name) for h in machine.history if h.kind in CLOSING_KINDS)
    assert closed == game.closed
    kept = Counter({steps[index].id: len(signals) for index, signals in machine.signals.items() if signals})
    assert kept == game.kept_signals
    assert [key for _, key in machine.kept_messages] == game.kept_messages


def open_tokens(machine: Machine) -> list[Any]:
    return sorted((token for token in machine.tokens.values() if token.is_open), key=lambda token: token.seq)


def armed(machine: Machine, token: int, seq: int) -> list[int]:
    return [index for id, timer_seq, index in machine.timers if (id, timer_seq) == (token, seq)]


def make(machine: Machine, move: Move, game: ReferenceModel) -> None:
    """The move, as the engine would feed it to `advance`."""
    if move.what == "cancel":
        machine.cancel("cancelled")
        return
    if move.what == "undo":
        machine.cancel("cancelled", compensate=True)
        return
    if move.what == "retry":
        machine.retry()
        return
    if move.what == "edit":
        machine.edit(output_of(move), move.removed)
        return
    if move.what == "keep signal":
        for _ in range(move.times):
            machine.buffer(move.step, output_of(move))
        return
    if move.what in ("skip", "move"):
        repair_by_hand(machine, move, game)
        return
    if move.what in ("publish", "publish to all"):
        machine.publish(MESSAGE, move.code, output_of(move), for_all=move.what == "publish to all")
        return
    token = (machine.wholes if move.what == "fire for all" else open_tokens(machine))[move.place]
    step = machine.definition.steps[token.step]
    if move.what == "fire" and move.index == RECEIVE:
        machine.receive(token)
        return
    if move.what in ("fire", "fire for all"):
        machine.now = max(machine.now, machine.timers[token.id, token.seq, move.index].fire_at)
        machine.apply(TimerFired(token.id, move.index))
        return
    if step.type is StepType.SERVICE_TASK and token.state is TokenState.READY:
        token = machine.claim_token(token)
    if move.what == "park":
        until = None if move.index == PARK_SIGNAL else machine.now + timedelta(hours=1)
        machine.apply(JobParked(token.id, "w", until, None if move.index == PARK_UNTIL else SIGNAL))
        return
    if move.what == "signal job":
        machine.apply(JobSignalled(token.id, machine.encode(output_of(move))))
        return
    if step.type is StepType.CALL_ACTIVITY:
        end_child(machine, token, move)
        return
    output = machine.encode(output_of(move)) if move.what == "complete" else None
    if move.what == "complete" and step.type is StepType.SERVICE_TASK:
        machine.apply(JobCompleted(token.id, "w", output))
    elif move.what == "complete":
        machine.apply(TaskCompleted(token.id, None, output))
    else:
        data = machine.encode(output_of(move)) if move.what == "err" else None
        machine.apply(JobFailed(token.id, "w", move.what != "fail for good", "boom", None, move.code or None, data))


def repair_by_hand(machine: Machine, move: Move, game: ReferenceModel) -> None:
    """A step is skipped, or a token moved, where no join is broken by it."""
    if machine.status is InstanceStatus.FAILED:
        index = machine.step(game.mendable[move.place].step).index
        [token] = [token for token in machine.closed_by_failure() if token.step == index]
        tokens = machine.snapshot or []
    else:
        mendable = sorted((*open_tokens(machine), *machine.wholes), key=lambda token: token.seq)
        token, tokens = mendable[move.place], list(machine.tokens.values())
    if move.what == "skip":
        machine.apply(StepSkipped(token.id, "skipped", machine.encode(output_of(move))))
        return
    target = machine.step(move.step)
    if game.mover(move.place, move.step) is None:
        with pytest.raises(Conflict):
            find_mover(machine.definition, tokens, token, target)
        return
    mover = find_mover(machine.definition, tokens, token, target)
    machine.apply(TokenMoved(mover.id, target.index, "moved"))


def end_child(machine: Machine, token: Token, move: Move) -> None:
    """Of the instance that a call waits for: it completes, is cancelled, or fails for good."""
    match move.what:
        case "complete":
            machine.child_ended(token, InstanceStatus.COMPLETED, output_of(move))
        case "fail":
            machine.child_ended(token, InstanceStatus.CANCELLED)
        case _:
            machine.child_ended(token, InstanceStatus.FAILED, reason="boom")


def play_a_game(body: Json, drawing: Drawing, *opening: Move) -> tuple[Machine, ReferenceModel, list[Move]]:
    machine = Machine(body, START_VARIABLES, max_work=MAX_WORK, max_automatic_steps=MAX_AUTOMATIC, calls_max=MAX_CALLS)
    game = ReferenceModel(body, START_VARIABLES, machine.now, MAX_AUTOMATIC, MAX_WORK, MAX_CALLS)
    compare(machine, game)
    moves: list[Move] = []
    while len(moves) < MOVES_MAX:
        move = opening[len(moves)] if len(moves) < len(opening) else next_move(game, drawing, moves)
        if move is None:
            break
        moves.append(move)
        make(machine, move, game)
        game.now = machine.now
        play(game, move)
        compare(machine, game)
    return machine, game, moves


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=60)
@given(definitions(), st.data())
def test_advance_plays_by_the_rules(body: Json, data: st.DataObject) -> None:
    play_a_game(body, Drawn(data))


@in_shares
def test_advance_plays_by_the_rules_in_many_games(share: int) -> None:
    """As above, by seeds: larger definitions, longer games. And enough of everything, else it would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(GAMES // share):
        source = random.Random(seed)
        body = with_turns(random_definition(source, failing=seed % 3 == 0), random.Random(f"turns of {seed}"))
        try:
            machine, game, moves = play_a_game(body, Seeded(source))
        except BaseException:
            print(f"seed {seed}")
            raise
        seen.update({move.what for move in moves})
        seen["a broken join refused"] += game.refused
        seen[f"ended {game.status}"] += 1
        seen.update({what for what, there in probe(machine, game) if there})
    assert share > 1 or {what for what, times in seen.items() if times >= GAMES / 200} >= WANTED, seen


def test_advance_plays_by_the_rules_where_many_signals_are_kept() -> None:
    """Random definitions seldom lead a loop through a wait."""
    body = definition(
        task("x", "fork"),
        gateway("fork", "w", "w2"),
        wait("w", "again", duration="PT1H", boundaryEvents=[timer("w2", "PT2H"), timer("join", interrupting=True)]),
        choose("again", {"n > 7": "join", "n < 0": "w2", "true": "w"}),
        wait("w2", "w", conditionalNextSteps={"n % 2 == 0": "w", "true": "join"}),
        joining("join", "w"),
        end(),
    )
    body["steps"][0]["boundaryEvents"] = [timer("end", "P9D")]  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
    slices = 0
    for seed in range(400):
        try:
            source = random.Random(seed)
            early = [Move("keep signal", step=w, output=random_output(source), times=30) for w in ("w", "w2")]
            _, _, moves = play_a_game(body, Seeded(source), *early)
        except BaseException:
            print(f"seed {seed}")
            raise
        slices += sum(move.what == "fire" and move.index == CONTINUE for move in moves)
    assert slices > 50


def test_advance_plays_by_the_rules_where_many_messages_are_kept() -> None:
    """Random definitions seldom have two waits for one message."""
    reported = [{"name": MESSAGE, "correlationKey": key} for key in ("${'of-' + word}", "fixed")]
    body = definition(
        task("x", "fork"),
        gateway("fork", "w", "w2"),
        wait("w", "again", message=reported[0], boundaryEvents=[timer("w2", "PT2H"), timer("join", interrupting=True)]),
        choose("again", {"n > 7": "join", "n < 0": "w2", "true": "w"}),
        wait("w2", "w", message=reported[1], duration="PT1H", conditionalNextSteps={"n % 2 == 0": "w", "true": "join"}),
        joining("join", "w"),
        end(),
    )
    body["steps"][0]["boundaryEvents"] = [timer("end", "P9D")]  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
    early = late = 0
    for seed in range(400):
        try:
            source = random.Random(seed)
            opening = [Move("publish", output=random_output(source), code=key) for key in ("of-b", "fixed")]
            _, _, moves = play_a_game(body, Seeded(source), *opening)
        except BaseException:
            print(f"seed {seed}")
            raise
        early += sum(move.what == "fire" and move.index == RECEIVE for move in moves)
        late += sum(move.what == "publish" for move in moves) - len(opening)
    assert early > 30
    assert late > 30


def test_advance_plays_by_the_rules_where_a_list_is_wide() -> None:
    """Lists of random definitions are short: never are more items under way than one advance begins."""
    seen: Counter[str] = Counter()
    for seed in range(240):
        source = random.Random(seed)
        each: Json = {"items": source.choice(("${[]}", "${[word, n]}", "${map(1..8, # + n)}", "${map(1..150, #)}"))}
        each |= {"as": "one", "index": "i", "parallel": source.choice((1, 3, 130))}
        if source.random() < 0.6:
            each |= {"collect": "${[i, result.n ?? one]}", "into": "kept"}
        if source.random() < 0.4:
            each["until"] = "${(result.n ?? 0) == 7}"
        if source.random() < 0.5:
            each["onError"] = "COLLECT"
        caught: Json = {"type": "ERROR", "errorCodes": ["DECLINED"], "targetStepId": "late"}
        events = [timer("late", "PT1H", interrupting=True), caught, timer("late", "PT2H")]
        make = source.choice((task, user))
        body = definition(make("a", "b", forEach=each, boundaryEvents=events), task("b"), task("late"), end())
        if make is task:
            body["steps"][0] |= {"retryCount": 1, "compensation": {"jobType": "undo"}}  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
        wide = "150" in str(each["items"]) and each["parallel"] == 130
        opening = [Move("fire for all", 0, CONTINUE)] if wide and seed % 2 else []
        try:
            machine, _, moves = play_a_game(body, Seeded(source), *opening)
        except BaseException as error:
            error.add_note(f"seed {seed}: {each}")
            raise
        seen.update(f"{move.what} {move.index}" for move in moves if move.what.startswith("fire"))
        seen.update(how for name, how in machine.path if name == "a")
        [whole, *_] = [row.items for row in machine.history if row.items is not None] or [None]
        seen["whole"] += whole is not None and b'"completed":0' not in whole
    wanted = {f"fire for all {CONTINUE}", "fire for all 0", "fire for all 2", "whole"}
    wanted |= {"COMPLETED", "FAILED", "CAUGHT", "INTERRUPTED", "SKIPPED"}
    assert {what for what, times in seen.items() if times >= 5} >= wanted, seen


def test_a_side_tokens_fork_to_a_foreign_join_is_lawful() -> None:
    """Random definitions seldom have it."""
    body = definition(
        task("x", boundaryEvents=[timer("fork")]),
        gateway("fork", "a", "b", "foreign"),
        task("a", "join"),
        task("b", "foreign"),
        joining("join", "done"),
        task("done", None),
        joining("foreign"),
        end(),
    )
    joined = 0
    for seed in range(50):
        machine, _, _ = play_a_game(body, Seeded(random.Random(seed)), Move("fire", 0, 0))
        joined += ("join", "COMPLETED") in machine.path
    assert joined > 5


GAMES = 800
WANTED = {
    "complete", "fire", "fail", "fail for good", "err", "park", "signal job", "cancel", "undo", "retry", "keep signal",
    "edit", "publish", "publish to all", "skip", "move", "a broken join refused", "ended ACTIVE", "ended COMPLETED",
    "ended FAILED", "ended CANCELLED", "a call", "a failed call", "something undone", "undone before its end",
    "a join fired", "a side token", "an interruption", "an error caught", "an END failed it", "a result",
    "a step open twice", "an END closed others", "long", "fire for all", "items gathered", "an item failed",
}  # fmt: skip


def probe(machine: Machine, game: ReferenceModel) -> list[tuple[str, bool]]:
    types = {step.id: step.type for step in machine.definition.steps}
    joined = [name for name, how in machine.path if types[name] is StepType.JOIN_GATEWAY and how == "COMPLETED"]
    return [
        ("a join fired", bool(joined)),
        ("a side token", any(token.side for token in machine.seen_tokens)),
        ("an interruption", any(how == "INTERRUPTED" for _, how in machine.path)),
        ("something undone", any(how == "COMPENSATED" for _, how in machine.path)),
        ("undone before its end", game.ending is not None and game.status in ("FAILED", "CANCELLED")),
        ("an error caught", any(how == "CAUGHT" for _, how in machine.path)),
        ("a result", game.result is not None),
        ("an END failed it", any(types[name] is StepType.END and how == "FAILED" for name, how in machine.path)),
        ("a step open twice", machine.open_twice),
        ("an END closed others", game.status == "COMPLETED" and any(how == "SKIPPED" for _, how in machine.path)),
        ("long", len(machine.history) > 30),
        ("items gathered", "gathered" in machine.variables),
        ("an item failed", any(row.item is not None and row.kind.name == "FAILED" for row in machine.history)),
        ("a call", ("CALL_ACTIVITY", "COMPLETED") in {(types[name], how) for name, how in machine.path}),
        ("a failed call", ("CALL_ACTIVITY", "FAILED") in {(types[name], how) for name, how in machine.path}),
    ]
