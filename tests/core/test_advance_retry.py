"""`retry` of a failed instance: what the failure closed is entered anew, everything else stays as it was."""

from __future__ import annotations

import pytest

from penstock.core.rules.state import HistoryKind, InstanceStatus, TokenState
from penstock.testing.definitions import definition, end, timer
from tests.core.machine import INSTANCE, Machine
from tests.shapes import assign, choose, gateway, joining, parallel, task, user, wait

ACTIVE, COMPLETED, FAILED, CANCELLED = InstanceStatus


def test_the_failed_step_is_entered_anew_with_all_its_retries() -> None:
    machine = Machine(definition(task("x", retryCount=1, timeout="PT1M"), end()), {"a": 1})
    machine.fail("x")
    old = machine.at("x").seq
    machine.fail("x", "second")
    assert machine.status is FAILED
    outcome = machine.retry()
    assert (machine.status, machine.failure) == (ACTIVE, None)
    assert outcome.reopened
    token = machine.at("x")
    assert token.seq > old
    assert (token.id, token.state, token.attempt, token.failures, token.expiries) == (
        INSTANCE,
        TokenState.READY,
        0,
        0,
        0,
    )
    assert (token.claimed_by, token.lease_until, token.timeout_s) == (None, None, 60)
    machine.fail("x")
    assert machine.status is ACTIVE
    machine.complete("x")
    assert machine.status is COMPLETED
    assert machine.path == [("x", "FAILED"), ("x", "COMPLETED"), ("end", "COMPLETED")]


def branches() -> Machine:
    """Of five branches one has arrived, one has left, three are open; the third fails."""
    machine = Machine(
        definition(
            gateway("fork", "a", "b", "c", "d", "e"),
            task("a", "join"),
            task("b", "out"),
            task("c", "join"),
            user("d", "join", boundaryEvents=[timer("join", "PT1H"), timer("e", "PT2H", interrupting=True)]),
            wait("e", "join", duration="PT3H"),
            joining("join", "out"),
            user("out", None, boundaryEvents=[timer("end", "P1D")]),
            end(),
        )
    )
    machine.complete("a")
    machine.complete("b")
    machine.fire("d", 0)
    machine.fail("c", "broken")
    return machine


def test_every_step_that_the_failure_closed_is_open_again() -> None:
    machine = branches()
    assert machine.status is FAILED
    assert machine.tokens == {}
    machine.retry()
    assert machine.open == ["c", "d", "e", "out"]
    root = machine.tokens[INSTANCE]
    assert (root.state, root.pending, root.arrived) == (TokenState.FORKED, 3, 1)
    assert [machine.at(name).parent_id for name in machine.open] == [INSTANCE, INSTANCE, INSTANCE, None]
    for name in ("c", "d", "e"):
        machine.complete(name) if name == "c" else machine.finish(name)
    assert sum(step == "join" for step, _ in machine.path) == 1
    assert machine.open == ["out", "out"]


def test_reopened_steps_have_all_their_timers_anew() -> None:
    machine = branches()
    machine.retry()
    assert machine.armed("d") == [0, 1]
    assert machine.armed("e") == [-2]
    (reminder,) = [t for t in machine.timers.values() if t.token_id == machine.at("d").id and t.index == 0]
    assert (reminder.fire_at - machine.now).total_seconds() == 3600


def test_a_reopened_step_is_a_new_item_of_history() -> None:
    machine = branches()
    machine.retry()
    machine.complete("c")
    kinds = [row.kind for row in machine.history if machine.definition.steps[row.step].id == "c"]
    assert kinds == [HistoryKind.FAILED, HistoryKind.COMPLETED]


def test_a_decision_that_failed_is_made_again() -> None:
    body = definition(user("x", "d"), choose("d", {"n > 3": "end"}), end())
    machine = Machine(body, {"n": 0})
    machine.finish("x")
    assert machine.status is FAILED
    machine.retry()
    assert machine.status is FAILED
    assert machine.path == [("x", "COMPLETED"), ("d", "FAILED"), ("d", "FAILED")]


def test_a_done_step_whose_conditions_failed_is_not_repeated() -> None:
    body = definition(task("x", None, conditionalNextSteps={"n > 3": "second"}), task("second"), end())
    machine = Machine(body, {"n": 0})
    machine.complete("x", {"a": 1})
    assert machine.status is FAILED
    machine.retry()
    assert (machine.status, machine.open) == (FAILED, [])
    assert machine.failure is not None
    assert "DecisionNoBranchMatched" in machine.failure
    machine.variables["n"] = 4
    machine.retry()
    assert (machine.status, machine.open) == (ACTIVE, ["second"])
    assert machine.path == [("x", "COMPLETED")]
    assert machine.variables == {"n": 4, "a": 1}


def test_retry_enters_other_steps_though_one_cannot_be_left() -> None:
    """The branch that can't be left is the older one: the other one has not been entered when it fails again."""
    body = definition(
        gateway("fork", "x", "u"),
        task("x", None, conditionalNextSteps={"n > 3": "join"}),
        user("u", "join", boundaryEvents=[timer("end", "PT1H")]),
        joining("join", "end"),
        end(),
    )
    machine = Machine(body, {"n": 0})
    machine.complete("x")
    machine.retry()
    assert machine.status is FAILED
    assert machine.path == [("fork", "COMPLETED"), ("x", "COMPLETED"), ("u", "SKIPPED")]
    machine.variables["n"] = 4
    machine.retry()
    assert (machine.status, machine.open, machine.armed("u")) == (ACTIVE, ["u"], [0])
    machine.finish("u")
    assert machine.status is COMPLETED


def test_a_done_step_stays_done_when_another_fails_first() -> None:
    """Reopened at once: an older branch fails as it is entered, before the one that is done was left."""
    body = definition(
        gateway("fork", "w", "x"),
        wait("w", "join", duration="${seconds}"),
        task("x", None, conditionalNextSteps={"n > 3": "join"}),
        joining("join", "end"),
        end(),
    )
    machine = Machine(body, {"n": 0, "seconds": 60})
    machine.complete("x")
    machine.variables.update(n=4, seconds="ages")
    machine.retry()
    assert machine.status is FAILED
    machine.variables["seconds"] = 60
    machine.retry()
    assert (machine.status, machine.open) == (ACTIVE, ["w"])
    machine.finish("w")
    assert machine.status is COMPLETED
    assert [name for name, _ in machine.path] == ["fork", "x", "w", "w", "w", "join", "end"]


def test_branches_that_had_not_begun_when_another_failed_begin() -> None:
    machine = Machine(
        parallel(choose("a", {"n == 1": "join"}), task("b", "join"), assign("c", {"c": 1}, "join")), {"n": 0}
    )
    assert machine.status is FAILED
    assert machine.path == [("fork", "COMPLETED"), ("a", "FAILED")]
    machine.variables["n"] = 1
    machine.retry()
    assert machine.open == ["b"]
    assert machine.tokens[INSTANCE].pending == 1
    machine.complete("b")
    assert machine.status is COMPLETED
    assert machine.variables == {"n": 1, "c": 1}


def test_a_token_moved_by_the_failed_advance_goes_on_there() -> None:
    """A branch comes to the join as the last one, and the decision behind it fails."""
    machine = Machine(
        definition(
            gateway("fork", "a", "b"),
            task("a", "join"),
            task("b", "join"),
            joining("join", "d"),
            choose("d", {"n == 1": "end"}),
            end(),
        ),
        {"n": 0},
    )
    machine.complete("a")
    machine.complete("b")
    assert machine.status is FAILED
    machine.variables["n"] = 1
    machine.retry()
    assert machine.status is COMPLETED
    assert [name for name, _ in machine.path] == ["fork", "a", "b", "join", "d", "d", "end"]


def test_side_tokens_stay_side_tokens() -> None:
    body = definition(
        gateway("fork", "a", "b"),
        user("a", "join", boundaryEvents=[timer("side")]),
        task("b", "join"),
        task("side", "join"),
        joining(),
        end(),
    )
    machine = Machine(body)
    machine.fire("a")
    machine.fail("side")
    machine.retry()
    assert machine.open == ["a", "b", "side"]
    machine.complete("side")
    assert machine.open == ["a", "b"]
    assert machine.tokens[INSTANCE].pending == 2


def test_a_root_in_a_dead_end_stays_there() -> None:
    machine = Machine(definition(task("x", None, boundaryEvents=[timer("side")]), task("side"), end()))
    machine.fire("x")
    machine.complete("x")
    machine.fail("side")
    machine.retry()
    assert machine.open == ["side"]
    assert machine.tokens[INSTANCE].state is TokenState.ENDED
    machine.complete("side")
    assert machine.status is COMPLETED


def test_a_retry_that_fails_again_can_be_retried_again() -> None:
    machine = branches()
    for _ in range(3):
        machine.retry()
        machine.fail("c", "again")
        assert machine.status is FAILED
    machine.retry()
    root = machine.tokens[INSTANCE]
    assert (root.pending, root.arrived) == (3, 1)


@pytest.mark.parametrize("why", ["dead letter", "too many steps"])
def test_every_kind_of_failure_can_be_retried(why: str) -> None:
    machine = Machine(
        definition(task("x", "d"), choose("d", {"n == 1": "end", "true": "d2"}), choose("d2", {"true": "d"}), end()),
        {"n": 0},
    )
    if why == "dead letter":
        machine.claim("x")
        machine.dead_letter("x")
        machine.retry()
        assert machine.open == ["x"]
    else:
        machine.complete("x")
        assert machine.status is FAILED
        machine.variables["n"] = 1
        machine.retry()
        assert machine.status is COMPLETED


def test_jobs_are_queued_again_in_their_old_order() -> None:
    machine = Machine(parallel(*(task(name, "join") for name in "abcdef")))
    machine.fail("d")
    machine.retry()
    assert machine.open == list("abcdef")


def test_an_entry_keeps_its_id_until_its_step_is_left() -> None:
    """Also when the advance of the `retry` itself fails again, before it came to the other open step."""
    machine = Machine(
        definition(
            gateway("fork", "a", "b"),
            task("a", "check"),
            choose("check", {"ok": "join"}),
            task("b", "join"),
            joining("join", "end"),
            end(),
        )
    )
    b = machine.at("b").entry_id
    machine.complete("a")  # the decision fails the instance
    for _ in range(2):
        assert machine.status is FAILED
        assert machine.snapshot is not None
        assert {token.entry for token in machine.snapshot if token.step == 3} == {b}
        machine.retry()
    machine = Machine(definition(task("x", "y"), task("y", "end"), end()))
    x = machine.at("x").entry_id
    machine.fail("x")
    machine.retry()
    assert machine.at("x").entry_id == x != machine.at("x").seq
    machine.complete("x")
    assert machine.at("y").entry_id == machine.at("y").seq
