"""What can happen next in a token game, and games drawn by Hypothesis or by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from hypothesis import strategies as st

from penstock.testing.definitions import Json
from penstock.testing.random_definitions import ERROR_CODES, MESSAGE_KEYS, outputs, random_output
from tests.model.reference_model import TASKS, ReferenceModel, kind

T = TypeVar("T")

MAX_AUTOMATIC = 40
MAX_WORK = 120_000
"""A handful of the random definitions' long expressions; one alone leaves the group-commit queue."""


class Move(NamedTuple):
    """``place`` is the open step's place in order of entry (of a skip and a move also among forEach steps, of "fire for
    all" only among them); ``index`` a timer's; ``times`` how many signals to keep. An
    edit sets ``output`` and removes ``removed``; of a park ``index`` says what it waits for; a failure may bring
    ``code`` and ``output``; ``code`` is a message's key."""

    what: str
    place: int = 0
    index: int = 0  # pyright: ignore[reportIncompatibleMethodOverride] - a field, where tuples have a method
    output: Json | None = None
    step: str = ""
    times: int = 1
    removed: str = ""
    code: str = ""


def possible(game: ReferenceModel) -> list[Move]:
    """Every kind of move that the rules allow now, the likely ones first."""
    if game.status == "FAILED":
        return [Move("retry"), Move("edit"), *repairing(game), *migrating(game)] if game.can_retry else []
    if game.status != "ACTIVE":
        return []
    moves: list[Move] = []
    oldest: set[str] = set()
    for place, mark in enumerate(game.open_tokens):
        what = kind(game.steps[mark.step])
        job = what == "SERVICE_TASK"
        # of several executions of a user task or a wait, the oldest is completed or signalled
        # and one that comes while others are kept for an open wait is kept as well
        if mark.parked:
            moves += [Move("fire", place, index) for index in sorted(mark.timers)]
            if mark.signal and not any(other.signal for other in game.open_tokens[:place]):
                moves.append(Move("signal job", place))
            continue
        # and of a call's child the job
        if what == "CALL_ACTIVITY":
            may_end = mark.called is not None
        elif job:
            may_end = not mark.backing_off
        else:
            may_end = mark.step not in oldest and not game.kept_signals[mark.step]
        if may_end:
            moves.append(Move("complete", place))
        oldest.add(mark.step)
        moves += [Move("fire", place, index) for index in sorted(mark.timers)]
        if may_end and what in ("SERVICE_TASK", "CALL_ACTIVITY"):  # of a call: the child is cancelled, or fails
            moves += [Move("fail", place), Move("fail for good", place)]
        if may_end and job:
            moves.append(Move("err", place))
            moves += [Move("park", place, how) for how in (PARK_UNTIL, PARK_SIGNAL, PARK_EITHER)]
    for place, about in enumerate(game.maps):
        moves += [Move("fire for all", place, index) for index in sorted(about.owner.timers)]
    if any(step.get("message") for step in game.steps.values()) and len(game.kept_messages) < 3:
        moves.append(Move("publish"))
    if any(step.get("message") for step in game.steps.values()):
        moves.append(Move("publish to all"))
    open_steps = {mark.step for mark in game.open_tokens}
    moves += [
        Move("keep signal", step=name)
        for name, step in game.steps.items()
        if kind(step) == "WAIT"
        and (name not in open_steps or game.kept_signals[name])
        and sum(game.kept_signals.values()) < 3
    ]
    if game.waiting:
        moves.append(Move("edit"))
    moves += repairing(game)
    moves += migrating(game) if moves else []
    if moves:
        moves.append(Move("cancel"))
        if not game.undoing:
            moves.append(Move("undo"))
    return moves


SKIPPABLE = (*TASKS, "TRANSFORMATION")


def repairing(game: ReferenceModel) -> list[Move]:
    """What people may do to tokens wherever they stand."""
    moves = [Move("move", place) for place, _ in enumerate(game.mendable)]
    for place, mark in enumerate(game.mendable):
        if kind(game.steps[mark.step]) in SKIPPABLE:
            moves.append(Move("skip", place))
    return moves


def migrating(game: ReferenceModel) -> list[Move]:
    return [Move("migrate")] if game.has_versions else []


class Drawing(Protocol):
    """Where a game's choices come from: Hypothesis, which shrinks, or a seed, which is fast."""

    def pick(self, choices: Sequence[T], /) -> T: ...
    def output(self) -> Json: ...


class Drawn:
    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def pick(self, choices: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(choices))

    def output(self) -> Json:
        return self._data.draw(outputs())


class Seeded:
    def __init__(self, source: random.Random) -> None:
        self.source = source

    def pick(self, choices: Sequence[T]) -> T:
        return self.source.choice(choices)

    def output(self) -> Json:
        return random_output(self.source)


PARK_UNTIL, PARK_SIGNAL, PARK_EITHER = range(3)
SIGNAL = "paid"
"""No step has this id."""
RETRIES_MAX = 2
"""In a row: most failures come again at once."""
WEIGHTS = {"complete": 6, "fire": 4, "fire for all": 4, "fail": 2, "fail for good": 3}
ENDING_ONE_IN = 5
SIGNALS_AT_ONCE = (1, 1, 1, 1, 30)
"""So many are more than one advance takes, with what follows them."""


def next_move(game: ReferenceModel, drawing: Drawing, before: Sequence[Move]) -> Move | None:
    """One of the possible moves with what it brings along; None when the game is over."""
    moves = possible(game)
    if not moves or (len(before) >= RETRIES_MAX and all(move.what == "retry" for move in before[-RETRIES_MAX:])):
        return None
    end_it = {"cancel", "undo", "fail for good"}
    gentle = [move for move in moves if move.what not in end_it]
    if gentle and drawing.pick(range(ENDING_ONE_IN)):
        moves = gentle
    move = drawing.pick([move for move in moves for _ in range(WEIGHTS.get(move.what, 1))])
    if move.what == "move":
        return move._replace(step=drawing.pick(sorted(game.steps)))
    if move.what in ("complete", "signal job", "skip"):
        return move._replace(output=drawing.output())
    if move.what == "err":
        return move._replace(output=drawing.output(), code=drawing.pick(ERROR_CODES))
    if move.what in ("publish", "publish to all"):
        return move._replace(output=drawing.output(), code=drawing.pick(MESSAGE_KEYS))
    if move.what == "edit":
        given = drawing.output()
        removed = drawing.pick(sorted({*game.variables, "absent"} - given.keys() - {"moment"}))
        return move._replace(output=given, removed=removed)
    if move.what == "keep signal":
        return move._replace(output=drawing.output(), times=drawing.pick(SIGNALS_AT_ONCE))
    return move


def play(game: ReferenceModel, move: Move) -> None:
    """Make the move in the model."""
    match move.what:
        case "complete":
            game.complete(move.place, output_of(move))
        case "fail":
            game.fail(move.place, "boom", retryable=True)
        case "park":
            game.park(move.place, "" if move.index == PARK_UNTIL else SIGNAL, timed=move.index != PARK_SIGNAL)
        case "signal job":
            game.signal_job(move.place, output_of(move))
        case "err":
            game.fail(move.place, "boom", retryable=True, code=move.code, data=output_of(move))
        case "fail for good":
            game.fail(move.place, "boom", retryable=False)
        case "fire":
            game.fire(move.place, move.index)
        case "fire for all":
            game.fire_map(move.place, move.index)
        case "keep signal":
            for _ in range(move.times):
                game.keep_signal(move.step, output_of(move))
        case "publish":
            game.publish(move.code, output_of(move))
        case "publish to all":
            game.publish_to_all(move.code, output_of(move))
        case "edit":
            game.edit(output_of(move), move.removed)
        case "cancel":
            game.cancel()
        case "undo":
            game.cancel(undo=True)
        case "retry":
            game.retry()
        case "skip":
            game.skip(move.place, output_of(move))
        case "move":
            if game.mover(move.place, move.step) is None:
                game.refused += 1
            else:
                game.move(move.place, move.step)
        case _:
            raise AssertionError(move.what)
    game.correlate()


def output_of(move: Move) -> dict[str, Any]:
    assert move.output is not None
    return dict(move.output)


def without_ids(value: Any) -> Any:
    """What a variable holds; of an error of the engine's own only the name, as the rest tells of ids and expressions. A
    list of what items of a forEach gave likewise."""
    if isinstance(value, list):
        return [without_ids(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        return {**value, "error": without_ids(value["error"])}
    if isinstance(value, dict) and str(value.get("message")).startswith(("Child", "BadItems")):
        error: dict[str, Any] = {**value}
        error["message"] = str(error["message"]).partition(":")[0]
        return error
    return value
