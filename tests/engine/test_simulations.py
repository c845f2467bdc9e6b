"""Definitions that are tried: what may come next, what comes of it, and the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from penstock.core.advance import simulation as core_simulation
from penstock.core.advance.advance import advance
from penstock.core.parsing.parsing import parse_definition
from penstock.engine.simulation import simulated_moves, simulations
from penstock.engine.simulation.simulated_moves import Move
from penstock.engine.simulation.simulations import simulate
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.testing.definitions import Json, definition, end, linear, service, step, timer
from penstock.wire.simulation import SimulationRequest
from tests.engine.conftest import MakeDriver

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def tried(body: Json, *moves: Mapping[str, object], **variables: Any) -> Any:
    given = msgspec.json.decode(msgspec.json.encode(moves), type=list[Move])
    parsed = parse_definition(body)
    answer = simulate(parsed, msgspec.json.encode(variables), given, NOON, {}, msgspec.json.encode(body))
    return msgspec.json.decode(answer)


def raw(**variables: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(variables))


def shown(view: Any) -> list[str]:
    """What can come next, in short."""
    return [" ".join(str(move[key]) for key in ("do", "stepId", "name") if key in move) for move in view["can"]]


def at(view: Any, step: str) -> str:
    return next(str(token["id"]) for token in view["tokens"] if token["stepId"] == step)


LATE = step("late", "WAIT", duration="P36500D", nextStep="end")
TIMERS = [timer("remind", "P1D"), timer("escalate", "P3D", interrupting=True)]
APPROVAL = definition(
    step("approve", "USER_TASK", jobType="lead", nextStep="pay", boundaryEvents=TIMERS),
    service("pay", "done", retryCount=1),
    service("remind"),
    service("escalate", "done"),
    end("done"),
    definition_id="approval",
)


def test_time_passes_in_order_and_what_is_due_fires() -> None:
    begun = tried(APPROVAL, amount=1)
    assert (begun["status"], begun["at"], begun["made"]) == ("WAITING", "2030-01-01T12:00:00Z", 0)
    assert shown(begun) == ["complete approve", "fire approve", "fire approve", "advance", "cancel"]
    assert [(one["target"], one.get("interrupting", False)) for one in begun["timers"]] == [
        ("remind", False), ("escalate", True),
    ]  # fmt: skip
    late = next(move for move in begun["can"] if move.get("index") == 1)
    view = tried(APPROVAL, late, amount=1)
    assert view["at"] == "2030-01-04T12:00:00Z"
    assert [token["stepId"] for token in view["tokens"]] == ["remind", "escalate"]
    assert [one["entered"] for one in view["trace"]] == [["approve"], ["remind", "escalate"]]
    assert view["path"] == [
        {"from": "approve", "to": "remind", "times": 1}, {"from": "approve", "to": "escalate", "times": 1},
    ]  # fmt: skip
    assert tried(APPROVAL, {"do": "advance"})["at"] == "2030-01-02T12:00:00Z"
    assert tried(APPROVAL, {"do": "advance", "seconds": 60})["at"] == "2030-01-01T12:01:00Z"


def test_jobs_fail_and_complete_and_variables_tell_who_wrote_them() -> None:
    approve = {"do": "complete", "tokenId": at(tried(APPROVAL), "approve"), "variables": {"ok": True}, "by": "ann"}
    opened = tried(APPROVAL, approve)
    fail = {"do": "fail", "tokenId": at(opened, "pay"), "error": "no money"}
    assert shown(opened)[:3] == ["complete pay", "fail pay", "fail pay"]
    again = tried(APPROVAL, approve, fail)
    assert (again["tokens"][0]["failures"], shown(again)[:2]) == (1, ["complete pay", "fail pay"])
    failed = tried(APPROVAL, approve, fail, fail)
    assert (failed["status"], failed["failureReason"], shown(failed)) == ("FAILED", "no money", ["retry"])
    assert failed["steps"][-1] == {"stepId": "pay", "times": 1, "status": "FAILED"}
    retried = tried(APPROVAL, approve, fail, fail, {"do": "retry"})
    done = tried(APPROVAL, approve, fail, fail, {"do": "retry"}, {"do": "complete", "tokenId": at(retried, "pay")})
    assert (done["status"], done["can"], done["variables"]) == ("COMPLETED", [], {"ok": True})
    assert done["trace"][1]["changed"] == [{"name": "ok", "stepId": "approve"}]
    assert "run.fail_job('pay', 'no money')" in done["test"]
    assert "run.complete_task('approve', {'ok': True}, by='ann')" in done["test"]


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        ({"do": "fly"}, "moves[0].do: must be one of complete, fail, "),
        ({"do": "complete"}, "moves[0].tokenId: is required"),
        ({"do": "complete", "tokenId": "77"}, "moves[0].tokenId: nothing is open there"),
        ({"do": "complete", "tokenId": "?"}, "moves[0].tokenId: nothing is open there"),
        ({"do": "complete", "tokenId": "1", "stepId": "pay"}, "moves[0].stepId: the token stands at 'approve'"),
        ({"do": "fail", "tokenId": "1"}, "moves[0]: there is nothing that could fail"),
        ({"do": "fail", "tokenId": "1", "errorCode": "Penstock.X"}, "moves[0].errorCode: codes that begin with"),
        ({"do": "cancel", "tokenId": "1"}, "moves[0]: there is no instance that could be cancelled"),
        ({"do": "fire", "tokenId": "1", "index": 7}, "moves[0].index: there is no such timer"),
        ({"do": "advance", "seconds": -1}, "moves[0].seconds: must be 0 to 100 years"),
        ({"do": "signal", "stepId": "pay"}, "moves[0].stepId: must be that of a WAIT"),
        ({"do": "message", "name": "paid"}, "moves[0].name, correlationKey: are required"),
        ({"do": "retry"}, "moves[0]: only what has failed can be retried"),
    ],
)
def test_a_move_that_is_not_possible_changes_nothing(move: Json, reason: str) -> None:
    before, after = tried(APPROVAL), tried(APPROVAL, move)
    assert after.pop("stopped").startswith(reason)
    assert after == before


def test_messages_calls_and_items_come_from_whoever_tries() -> None:
    body = definition(
        step("each", "USER_TASK", jobType="w", forEach={"items": "${names}", "as": "name"}, nextStep="call"),
        step("call", "CALL_ACTIVITY", definitionId="other", output={"got": "${result.x}"}, nextStep="wait"),
        step("wait", "WAIT", message={"name": "paid", "correlationKey": "${names[0]}"}, nextStep="done"),
        end("done"),
    )
    begun = tried(body, names=["a", "b"])
    whole, *items = begun["tokens"]
    assert (whole["items"]["running"], [one["item"] for one in items]) == (2, [0, 1])
    moves: list[Json] = [{"do": "complete", "tokenId": token["id"]} for token in reversed(items)]
    called = tried(body, *moves, names=["a", "b"])
    assert called["tokens"][0]["called"] == {"definitionId": "other", "variables": {"names": ["a", "b"]}}
    assert "run.complete_task('each', nth=1)" in called["test"]
    moves.append({"do": "complete", "tokenId": at(called, "call"), "variables": {"x": 4}})
    waits = tried(body, *moves, names=["a", "b"])
    assert waits["tokens"][0]["message"] == {"name": "paid", "correlationKey": "a"}
    early = tried(body, {"do": "message", "name": "paid", "correlationKey": "a"}, *moves, names=["a", "b"])
    late = tried(body, *moves, {"do": "message", "name": "paid", "correlationKey": "a"}, names=["a", "b"])
    assert early["status"] == late["status"] == "COMPLETED"
    assert late["variables"] == {"names": ["a", "b"], "got": 4}


def test_a_loop_over_time_ends_with_its_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "CPU_MAX_S", 0.05)
    far = timer("done", "P900D", interrupting=True)
    body = definition(
        step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["tick", "task"], joinStep="join"),
        step("tick", "WAIT", duration="PT1S", nextStep="tick"),
        step("task", "USER_TASK", jobType="w", nextStep="join", boundaryEvents=[far]),
        step("join", "JOIN_GATEWAY", nextStep="done"),
        end("done"),
    )
    begun = tried(body)
    view = tried(body, {"do": "fire", "tokenId": at(begun, "task"), "index": 0})
    assert (view["made"], view["can"], view.get("test")) == (0, [], None)
    assert view["stopped"] == "moves[0]: it takes more than 0.05 s of computing"
    assert len(view["trace"][1]["entered"]) <= simulations.SHOWN_MAX


def test_what_its_steps_write_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_moves, "WRITTEN_MAX_BYTES", 10_000)
    body = definition(
        step("copy", "TRANSFORMATION", transformations={"copy": "${text}"}, nextStep="wait"),
        step("wait", "WAIT", duration="PT1S", nextStep="again"),
        step("again", "DECISION", conditionalNextSteps={"copy == ''": "end", "true": "copy"}),
        end(),
    )
    view = tried(body, {"do": "advance", "seconds": 60}, text="x" * 1_000)
    assert (view["made"], view["can"]) == (0, [])
    assert view["stopped"] == "moves[0]: its steps have written more than 10000 bytes of variables"
    assert view["at"] < "2030-01-01T12:00:15Z"


def test_the_path_is_of_the_newest_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    body = definition(
        step("tick", "WAIT", duration="PT1S", nextStep="again"),
        step("again", "DECISION", conditionalNextSteps={"1 == 2": "end", "true": "tick"}),
        end(),
    )
    minute = {"do": "advance", "seconds": 60}
    assert [edge["times"] for edge in tried(body, minute)["path"]] == [60, 60]
    monkeypatch.setattr(simulations, "PATH_MAX", 20)
    assert [edge["times"] for edge in tried(body, minute)["path"]] == [10, 10]


def test_the_test_that_is_made_is_bounded_in_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "CPU_MAX_S", 0.05)
    value: list[Any] = [1] * 20_000
    for _ in range(40):
        value = [value]
    with pytest.raises(PayloadTooLarge, match=r"test: it takes more than 0.05 s of computing"):
        tried(linear(1), value=value)


def test_items_that_are_entered_again_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    advances: list[object] = []

    def counted(*given: Any) -> Any:
        advances.append(given)
        return advance(*given)

    monkeypatch.setattr(core_simulation, "advance", counted)
    each = {"items": "${names}", "as": "name"}
    body = definition(service("each", "end", forEach=each, flowKey="${name}"), end())
    names = [f"name{item}" for item in range(60)]
    fail = {"do": "fail", "tokenId": tried(body, names=names)["tokens"][1]["id"], "retryable": False}
    advances.clear()
    view = tried(body, fail, {"do": "retry"}, names=names)
    assert (view["status"], view["tokens"][0]["items"]["running"]) == ("ACTIVE", 60)
    assert len(advances) <= 12


def test_a_start_is_what_the_definition_asks_for() -> None:
    later = linear(1) | {"start": {"delay": "PT1H"}}
    begun = tried(later)
    assert (begun["tokens"], shown(begun)) == ([], ["fire task-1", "advance", "cancel"])
    fired = tried(later, begun["can"][0])
    assert (fired["at"], fired["tokens"][0]["stepId"]) == ("2030-01-01T13:00:00Z", "task-1")
    assert tried(later, {"do": "cancel"})["status"] == "CANCELLED"
    last = linear(1) | {"start": {"debounce": {"key": "${order}", "wait": "PT1M"}}}
    assert tried(last, {"do": "advance"}, order=7)["at"] == "2030-01-01T12:01:00Z"
    for refused in (last, linear(1) | {"flowKey": "${order}"}):
        view = tried(refused, {"do": "advance"})
        assert (view["made"], view["tokens"], view["can"], view["trace"]) == (0, [], [], [])
        assert "order" in view["stopped"]
        assert not view["stopped"].startswith("moves")


def test_what_was_undone_to_its_end_is_not_retried() -> None:
    body = definition(
        service("a", "b", compensation={"jobType": "undo"}), service("b", "end"), end(), onFailure="COMPENSATE"
    )
    moves: list[Json] = []
    for do, where in (
        ("complete", "a"),
        ("fail", "b"),
        ("fail", "a/compensation"),
        ("retry", ""),
        ("complete", "a/compensation"),
    ):
        of = {"tokenId": at(tried(body, *moves), where), "retryable": False} if where else {}
        moves.append({"do": do, **of})
    assert (shown(tried(body, *moves[:3])), shown(tried(body, *moves))) == (["retry"], [])
    assert tried(body, *moves)["status"] == "FAILED"


def test_the_clock_ends_before_time_does() -> None:
    later: list[Json] = [{"do": "advance", "seconds": 99 * 366 * 86_400}] * 80
    view = tried(linear(1), *later)
    assert view["stopped"].startswith("moves[70].seconds: that is after the year 9000")
    body = definition(step("wait", "WAIT", until="9999-12-31T23:59:59Z", nextStep="late"), LATE, end())
    view = tried(body, {"do": "advance"})
    assert (view["status"], view["stopped"]) == ("WAITING", "moves[0].seconds: that is after the year 9000")
    fire = {"do": "fire", "tokenId": at(view, "wait"), "index": -2}
    assert tried(body, fire)["stopped"] == "moves[0]: that is after the year 9000"


async def test_requests_and_answers_are_bounded(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_driver().engine
    body = msgspec.Raw(msgspec.json.encode(APPROVAL))
    with pytest.raises(BadRequest, match="moves: has 501 items, more than 500"):
        await engine.simulations.simulate(SimulationRequest(body, moves=[Move(do="advance")] * 501))
    with pytest.raises(BadRequest, match=r"moves\[0\].variables.a: has a NUL"):
        await engine.simulations.simulate(SimulationRequest(body, moves=[Move(do="x", variables={"a": "\0"})]))
    with pytest.raises(BadRequest, match="startedAt: needs a time zone"):
        await engine.simulations.simulate(SimulationRequest(body, started_at=datetime(2030, 1, 1)))  # noqa: DTZ001 - so
    with pytest.raises(BadRequest, match="startedAt: must be of the years 1970 to 3000"):
        await engine.simulations.simulate(SimulationRequest(body, started_at=datetime(9999, 12, 31, tzinfo=UTC)))
    with pytest.raises(BadRequest, match="steps"):
        await engine.simulations.simulate(SimulationRequest(msgspec.Raw(b'{"id": "a", "name": "a"}')))
    monkeypatch.setattr(simulations, "ANSWER_MAX_BYTES", 2_000)
    large = SimulationRequest(body, variables=raw(text="x" * 2_000))
    with pytest.raises(PayloadTooLarge, match="more than 2000"):
        await engine.simulations.simulate(large)
    view = msgspec.json.decode(await engine.simulations.simulate(SimulationRequest(body)))
    assert (view["status"], "test" in view) == ("WAITING", False)
    elsewhere = NOON.astimezone(timezone(timedelta(hours=2)))
    view = msgspec.json.decode(await engine.simulations.simulate(SimulationRequest(body, started_at=elsewhere)))
    assert (view["startedAt"], view["at"]) == ("2030-01-01T12:00:00Z", "2030-01-01T12:00:00Z")
