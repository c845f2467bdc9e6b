"""What can happen next in a token game, and games drawn by Hypothesis."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.testing.definitions import Json
from penstock.testing.random_definitions import outputs
from tests.model.token_game import TokenGame, kind

MAX_AUTOMATIC = 40


class Move(NamedTuple):
    """``place`` is the open step's place in order of entry; ``index`` a timer's."""

    what: str
    place: int = 0
    index: int = 0
    output: Json | None = None
    step: str = ""


def possible(game: TokenGame) -> list[Move]:
    """Every kind of move that the rules allow now, the likely ones first."""
    if game.status == "FAILED":
        return [Move("retry")]
    if game.status != "ACTIVE":
        return []
    moves: list[Move] = []
    for place, mark in enumerate(game.open_marks):
        job = kind(game.steps[mark.step]) == "SERVICE_TASK"
        if not (job and mark.backing_off):
            moves.append(Move("complete", place))
        moves += [Move("fire", place, index) for index in sorted(mark.timers)]
        if job and not mark.backing_off:
            moves += [Move("fail", place), Move("fail for good", place)]
    open_steps = {mark.step for mark in game.open_marks}
    moves += [
        Move("keep signal", step=name)
        for name, step in game.steps.items()
        if kind(step) == "WAIT" and name not in open_steps and sum(game.kept_signals.values()) < 3
    ]
    if moves:
        moves.append(Move("cancel"))
    return moves


@st.composite
def next_moves(draw: st.DrawFn, game: TokenGame) -> Move | None:
    """One of the possible moves with what it brings along; None when the game is over."""
    moves = possible(game)
    if not moves:
        return None
    # completions twice as likely as each other kind: else most games end in a failure or a cancel
    weighted = [move for move in moves for _ in range(3 if move.what == "complete" else 1)]
    move = draw(st.sampled_from(weighted))
    if move.what in ("complete", "keep signal"):
        return move._replace(output=draw(outputs()))
    return move


def play(game: TokenGame, move: Move) -> None:
    """Make the move in the model."""
    match move.what:
        case "complete":
            game.complete(move.place, output_of(move))
        case "fail":
            game.fail(move.place, "boom", retryable=True)
        case "fail for good":
            game.fail(move.place, "boom", retryable=False)
        case "fire":
            game.fire(move.place, move.index)
        case "keep signal":
            game.keep_signal(move.step, output_of(move))
        case "cancel":
            game.cancel()
        case "retry":
            game.retry()


def output_of(move: Move) -> dict[str, Any]:
    assert move.output is not None
    return dict(move.output)
