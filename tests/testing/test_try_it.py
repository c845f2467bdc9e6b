"""What is tried in the modeller is what an engine does: random definitions, random moves, and the test that is made of
them, run on an engine with a virtual clock.

``PENSTOCK_TRIED=500`` tries that many definitions, ``PENSTOCK_TRIED_FROM=5000`` those of other seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from penstock.core.parsing.parsing import parse_definition
from penstock.engine.simulation.simulated_moves import Move
from penstock.engine.simulation.simulations import simulate
from penstock.testing.blocking import SyncTestEngine
from penstock.testing.definitions import Json, definition, end, service, step
from penstock.testing.random_definitions import (
    ERROR_CODES,
    MESSAGE,
    MESSAGE_KEYS,
    START_VARIABLES,
    random_definition,
    random_output,
)
from tests.testing.test_plugin import run_pytest

TRIED_DEFAULT = 50
TRIED = int(os.environ.get("PENSTOCK_TRIED", TRIED_DEFAULT))
FIRST = int(os.environ.get("PENSTOCK_TRIED_FROM", "0"))
MOVES_MAX = 14
BOUNDS = {"max_automatic_steps": 60, "advance_max_work_steps": 50_000}
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def tried(seed: int, now: Any) -> tuple[dict[str, Any], list[Move]]:
    """A random definition with random moves: the answer after the last of them, with its test."""
    source = random.Random(seed)
    body = msgspec.json.encode(random_definition(source, failing=seed % 3 == 0))
    # messages go to whoever waits, in other runs too; and here nothing is random
    body = body.replace(b'"random::1"', f'"random-{seed}"'.encode())
    body = body.replace(f'"{MESSAGE}"'.encode(), f'"{MESSAGE}-{seed}"'.encode()).replace(b'"jitter":0.5', b'"jitter":0')
    definition = parse_definition(body)
    start = msgspec.json.encode(START_VARIABLES)
    bounds = {"max_automatic_steps": 60, "max_work": 50_000}
    moves: list[Move] = []
    while True:
        view = msgspec.json.decode(simulate(definition, start, moves, now, bounds, None))
        assert view["made"] == len(moves), view.get("stopped")
        possible = [
            move for move in view["can"] if move["do"] != "cancel" or "tokenId" in move or not source.randrange(9)
        ]
        if len(moves) == MOVES_MAX or not possible or (view["status"] == "FAILED" and source.random() < 0.4):
            break
        moves.append(filled(msgspec.convert(source.choice(possible), Move), source))
    return msgspec.json.decode(simulate(definition, start, moves, now, bounds, body)), moves


def filled(move: Move, source: random.Random) -> Move:
    """With what somebody types who makes it."""
    changes: dict[str, Any] = {}
    if move.do in ("complete", "signal", "message", "fail") and source.random() < 0.7:
        changes["variables"] = random_output(source)
    if move.do == "message" and move.correlation_key is None:
        changes["correlation_key"] = source.choice(MESSAGE_KEYS)
    if move.do == "fail" and source.random() < 0.5:
        changes["error_code"] = source.choice(ERROR_CODES)
    if move.do == "advance" and source.random() < 0.5:
        changes["seconds"] = source.choice((1, 1800, 5400.5, 86_400))
    return msgspec.structs.replace(move, **changes)


@pytest.mark.penstock(settings=BOUNDS)
def test_what_is_tried_is_what_an_engine_does(penstock_sync: SyncTestEngine) -> None:
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + TRIED):
        view, moves = tried(seed, penstock_sync.now)
        names: dict[str, Any] = {}
        try:
            exec(compile(view["test"], "<saved test>", "exec"), names)
            names[f"test_random_{seed}"](penstock_sync)
        except BaseException as error:
            error.add_note(f"seed {seed}:\n{view['test']}")
            raise
        seen.update(move.do for move in moves)
        seen[view["status"]] += 1
        if view["status"] not in ENDED:
            [left] = penstock_sync.client.list_instances(definition_id=f"random-{seed}", status=view["status"]).items
            penstock_sync.client.cancel_instance(left.id)
            penstock_sync.settle()
    wanted = {"complete", "fail", "fire", "COMPLETED", "FAILED"}
    assert seen.keys() >= (wanted if TRIED < 500 else {*wanted, "signal", "advance", "message", "retry", "cancel"}), (
        seen
    )


def test_a_start_that_begins_later_is_tried_so(penstock_sync: SyncTestEngine) -> None:
    body = definition(
        service("pay", "end"), end(), definition_id="later", start={"startAt": "${at}"}, priority="${urgent ? 9 : 1}"
    )
    given = msgspec.json.encode({"at": (penstock_sync.now + timedelta(hours=5)).isoformat(), "urgent": True})
    moves: list[Move] = []
    for do in ("fire", "complete"):
        view = msgspec.json.decode(simulate(parse_definition(body), given, moves, penstock_sync.now, {}, None))
        moves.append(msgspec.convert(next(move for move in view["can"] if move["do"] == do), Move))
    document = msgspec.json.encode(body)
    view = msgspec.json.decode(simulate(parse_definition(body), given, moves, penstock_sync.now, {}, document))
    assert (view["status"], "penstock.advance(hours=5)" in view["test"]) == ("COMPLETED", True)
    names: dict[str, Any] = {}
    exec(compile(view["test"], "<saved test>", "exec"), names)
    names["test_later"](penstock_sync)


@pytest.mark.slow(reason="runs pytest in a process")
def test_what_was_tried_is_a_file_that_pytest_runs(tmp_path: Path) -> None:
    late: Json = {"type": "TIMER", "duration": "P2D", "interrupting": True, "targetStepId": "call"}
    body = definition(
        step("each", "USER_TASK", jobType="w", forEach={"items": "${names}", "as": "name"}, nextStep="call"),
        step("call", "CALL_ACTIVITY", definitionId="other", output={"got": "${result.x}"}, nextStep="wait"),
        step("wait", "WAIT", message={"name": "paid", "correlationKey": "${names[0]}"}, nextStep="charge"),
        service("charge", "end", retryCount=1),
        end(),
        definition_id="Every-kind:of_move",
    )
    cast("list[Json]", body["steps"])[0]["boundaryEvents"] = [late]
    parsed, given = parse_definition(body), b'{"names": ["it\'s", "\\"b\\""]}'
    now, moves = datetime(2030, 1, 1, tzinfo=UTC), list[Move]()
    for do, more in (
        ("complete", {"variables": {"seen": True}, "by": "ann"}),
        ("fire", {}),
        ("complete", {"variables": {"x": [1, None, "\n"]}}),
        ("message", {}),
        ("fail", {"error": "away", "retryable": True}),
        ("complete", {}),
    ):
        view = msgspec.json.decode(simulate(parsed, given, moves, now, {}, None))
        possible = next(move for move in view["can"] if move["do"] == do)
        moves.append(msgspec.structs.replace(msgspec.convert(possible, Move), **more))
    view = msgspec.json.decode(simulate(parsed, given, moves, now, {}, msgspec.json.encode(body)))
    assert (view["status"], view["made"]) == ("COMPLETED", 6)
    (tmp_path / "test_saved.py").write_text(view["test"])
    result = run_pytest(tmp_path)
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout + view["test"]
