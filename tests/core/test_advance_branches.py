"""`advance` at gateways: branches that arrive, leave and end; side tokens; loops; ends within branches."""

from __future__ import annotations

import pytest

from penstock.core.rules.state import InstanceStatus, TokenState
from penstock.testing.definitions import Json, definition, end, fork, timer
from tests.core.machine import INSTANCE, Machine
from tests.shapes import assign, choose, gateway, joining, parallel, task, user, wait

ACTIVE, COMPLETED, FAILED, CANCELLED = InstanceStatus


def finish(machine: Machine, *steps: str) -> None:
    """Complete these open steps, one after another."""
    for name in steps:
        parked = machine.at(name).state is TokenState.PARKED
        machine.finish(name) if parked else machine.complete(name)


def joined(machine: Machine) -> int:
    return sum(name == "join" for name, _ in machine.path)


# -- branches that arrive


@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (4, 1, 2), (2, 2, 2, 2)])
def test_a_join_waits_for_every_branch_however_long(lengths: tuple[int, ...]) -> None:
    machine = Machine(fork(*lengths))
    left = [[f"branch-{b}-task-{n}" for n in range(1, length + 1)] for b, length in enumerate(lengths, start=1)]
    while any(left):
        assert machine.status is ACTIVE
        assert joined(machine) == 0
        assert machine.tokens[INSTANCE].pending == sum(map(bool, left))
        for branch in left:
            if branch:
                machine.complete(branch.pop(0))
    assert machine.status is COMPLETED
    assert joined(machine) == 1
    assert machine.path[-2:] == [("join", "COMPLETED"), ("end", "COMPLETED")]


def test_branches_count_by_arrival_and_not_by_their_first_steps() -> None:
    """All first steps done, and one branch all the way: the join still waits for the others' second steps."""
    machine = Machine(fork(1, 2, 2))
    finish(machine, "branch-1-task-1", "branch-2-task-1", "branch-3-task-1")
    assert machine.open == ["branch-2-task-2", "branch-3-task-2"]
    assert joined(machine) == 0
    finish(machine, "branch-3-task-2")
    assert joined(machine) == 0
    finish(machine, "branch-2-task-2")
    assert joined(machine) == 1


def test_branches_of_automatic_steps_alone_join_once() -> None:
    machine = Machine(
        parallel(
            assign("a", {"a": 1}, "join"), assign("b", {"b": 2}, "b2"), assign("b2", {"c": 3}, "join"), heads=["a", "b"]
        )
    )
    assert machine.status is COMPLETED
    assert joined(machine) == 1
    assert machine.variables == {"a": 1, "b": 2, "c": 3}


def test_a_branch_may_lead_straight_to_the_join() -> None:
    body = definition(gateway("fork", "join", "a", "join"), task("a", "join"), joining(), end())
    machine = Machine(body)
    assert (machine.tokens[INSTANCE].pending, machine.tokens[INSTANCE].arrived) == (1, 2)
    machine.complete("a")
    assert machine.status is COMPLETED


def test_all_branches_straight_to_the_join_pass_at_once() -> None:
    machine = Machine(definition(gateway("fork", "join", "join"), joining("join", "a"), task("a"), end()))
    assert machine.open == ["a"]
    assert joined(machine) == 1


def test_one_step_heading_two_branches_is_open_twice() -> None:
    machine = Machine(definition(gateway("fork", "a", "a"), task("a", "join"), joining(), end()))
    assert machine.open == ["a", "a"]
    machine.complete("a")
    assert machine.open == ["a"]
    machine.complete("a")
    assert machine.status is COMPLETED


def test_branches_with_decisions_waits_user_tasks_and_timers_in_them() -> None:
    machine = Machine(
        parallel(
            choose("a", {"n > 3": "a-big", "true": "join"}),
            task("a-big", "join"),
            wait("b", "b-then"),
            user("b-then", "join"),
            user("c", "join", boundaryEvents=[timer("c-late", "PT1H", interrupting=True)]),
            task("c-late", "join"),
            heads=["a", "b", "c"],
        ),
        {"n": 5},
    )
    assert sorted(machine.open) == ["a-big", "b", "c"]
    machine.finish("b")
    machine.fire("c")
    finish(machine, "b-then", "a-big")
    assert machine.open == ["c-late"]
    machine.complete("c-late")
    assert machine.status is COMPLETED
    assert joined(machine) == 1


def test_a_branch_that_loops_within_its_block_arrives_once() -> None:
    machine = Machine(
        parallel(
            task("a", "again"), choose("again", {"n < 3": "a", "true": "join"}), task("b", "join"), heads=["a", "b"]
        ),
        {"n": 0},
    )
    for n in (1, 2, 3):
        assert machine.tokens[INSTANCE].pending == 2
        machine.complete("a", {"n": n})
    assert machine.open == ["b"]
    assert (machine.tokens[INSTANCE].pending, machine.tokens[INSTANCE].arrived) == (1, 1)
    machine.complete("b")
    assert machine.status is COMPLETED


def test_a_loop_over_the_whole_block_counts_each_round_anew() -> None:
    body = definition(
        gateway("fork", "a", "b"),
        task("a", "join"),
        task("b", "join"),
        joining("join", "again"),
        choose("again", {"n < 3": "fork", "true": "end"}),
        end(),
    )
    machine = Machine(body, {"n": 0})
    for n in (1, 2, 3):
        machine.complete("b", {"n": n})
        assert joined(machine) == n - 1
        machine.complete("a")
        assert joined(machine) == n
    assert machine.status is COMPLETED


def test_consecutive_blocks_do_not_count_each_others_branches() -> None:
    body = definition(
        gateway("fork", "a", "b"),
        task("a", "join"),
        task("b", "join"),
        joining("join", "fork2"),
        gateway("fork2", "c", "d", join="join2"),
        task("c", "join2"),
        task("d", "join2"),
        joining("join2", "end"),
        end(),
    )
    machine = Machine(body)
    finish(machine, "a", "b", "c")
    assert machine.open == ["d"]
    machine.complete("d")
    assert machine.status is COMPLETED


# -- branches that leave


def leaving(*, to: str = "outside") -> Json:
    """Branch ``a`` steps out of the block, past the join."""
    return definition(
        gateway("fork", "a", "b", "c"),
        task("a", to),
        task("b", "join"),
        task("c", "join"),
        joining("join", "outside"),
        task("outside"),
        end(),
    )


def test_a_branch_that_leaves_its_block_is_no_longer_counted() -> None:
    machine = Machine(leaving())
    machine.complete("a")
    assert machine.open == ["b", "c", "outside"]
    root = machine.tokens[INSTANCE]
    assert (root.pending, root.arrived) == (2, 0)
    assert machine.at("outside").parent_id is None
    finish(machine, "b", "c")
    assert joined(machine) == 1
    assert machine.open == ["outside", "outside"]


def test_the_last_branch_to_leave_fires_the_join_for_others() -> None:
    machine = Machine(leaving())
    finish(machine, "b", "c")
    assert joined(machine) == 0
    machine.complete("a")
    assert joined(machine) == 1
    assert machine.open == ["outside", "outside"]


def test_when_all_branches_leave_the_gateway_ends_without_a_join() -> None:
    body = definition(
        gateway("fork", "a", "b"),
        task("a", "outside", boundaryEvents=[timer("join")]),
        task("b", "outside", boundaryEvents=[timer("join")]),
        joining("join", "outside"),
        task("outside"),
        end(),
    )
    machine = Machine(body)
    finish(machine, "a", "b")
    assert joined(machine) == 0
    assert machine.tokens[INSTANCE].state is TokenState.ENDED
    assert machine.open == ["outside", "outside"]
    machine.complete("outside")
    assert machine.status is COMPLETED


def test_a_branch_that_dead_ends_is_no_longer_counted() -> None:
    machine = Machine(parallel(task("a", None), task("b", "join"), user("c", None)))
    finish(machine, "a", "c")
    assert machine.open == ["b"]
    machine.complete("b")
    assert machine.status is COMPLETED
    assert joined(machine) == 1


def test_dead_ends_of_all_branches_leave_the_instance_active() -> None:
    body = parallel(task("a", None, boundaryEvents=[timer("join")]), task("b", None))
    machine = Machine(body)
    machine.complete("a")
    outcome = machine.complete("b")
    assert outcome.dead_end
    assert (machine.status, machine.open, joined(machine)) == (ACTIVE, [], 0)
    assert list(machine.tokens) == [INSTANCE]


def test_a_head_outside_the_block_leaves_at_once() -> None:
    body = definition(
        gateway("fork", "outside", "a"), task("a", "join"), joining("join", "outside"), task("outside"), end()
    )
    machine = Machine(body)
    assert machine.tokens[INSTANCE].pending == 1
    machine.complete("a")
    assert machine.open == ["outside", "outside"]


def test_a_token_jumping_into_a_block_is_outside_its_gateway() -> None:
    body = definition(
        user("x", "fork", boundaryEvents=[timer("b", "PT1H", interrupting=True)]),
        gateway("fork", "a", "b"),
        task("a", "join"),
        task("b", "join"),
        joining(),
        end(),
    )
    machine = Machine(body)
    machine.fire("x")
    assert machine.at("b").parent_id is None
    machine.complete("b")
    assert machine.status is FAILED
    assert machine.failure is not None
    assert machine.failure.startswith("JoinWithoutGateway")
    assert machine.path == [("x", "INTERRUPTED"), ("b", "COMPLETED"), ("join", "FAILED")]


def test_a_branch_at_a_foreign_join_fails_the_instance() -> None:
    body = definition(
        choose("which", {"n == 0": "fork", "true": "fork2"}),
        gateway("fork", "a", "b"),
        task("a", "join2"),
        task("b", "join"),
        joining("join", "fork2"),
        gateway("fork2", "c", "d", join="join2"),
        task("c", "join2"),
        task("d", "join2"),
        joining("join2", "end"),
        end(),
    )
    machine = Machine(body, {"n": 0})
    machine.complete("a")
    assert machine.status is FAILED
    assert machine.failure is not None
    assert machine.failure.startswith("JoinWithoutGateway: step 'join2'")


# -- END within a branch


def test_end_in_one_branch_completes_the_instance() -> None:
    machine = Machine(parallel(task("a", "end"), task("b", "join"), user("c", "join")))
    machine.claim("b")
    machine.complete("a")
    assert machine.status is COMPLETED
    assert machine.path == [
        ("fork", "COMPLETED"),
        ("a", "COMPLETED"),
        ("end", "COMPLETED"),
        ("b", "SKIPPED"),
        ("c", "SKIPPED"),
    ]
    assert machine.tokens == {}


def test_a_failure_in_one_branch_closes_the_others() -> None:
    machine = Machine(parallel(task("a", "join"), task("b", "join"), user("c", "join")))
    machine.fail("b", "broken")
    assert (machine.status, machine.failure) == (FAILED, "broken")
    assert machine.path[1:] == [("b", "FAILED"), ("a", "SKIPPED"), ("c", "SKIPPED")]


# -- boundary timers


def test_an_interrupting_timer_closes_its_step_and_keeps_the_token() -> None:
    body = definition(
        task("x", "end", boundaryEvents=[timer("late", interrupting=True), timer("end")]), task("late"), end()
    )
    machine = Machine(body)
    machine.claim("x")
    seq = machine.at("x").seq
    outcome = machine.fire("x")
    assert machine.open == ["late"]
    assert machine.path == [("x", "INTERRUPTED")]
    assert machine.history[0].reason == "interrupted by boundary timer"
    assert outcome.disarmed == [(INSTANCE, seq)]
    assert machine.timers == {}
    assert [(row.kind, row.step, row.detail) for row in outcome.audit] == [("TIMER_FIRED", 0, "PT1H")]


def test_an_interrupted_job_leaves_the_queue() -> None:
    body = definition(task("x", "end", boundaryEvents=[timer("late", interrupting=True)]), task("late"), end())
    machine = Machine(body)
    outcome = machine.fire("x")
    assert [job.job_type for job in outcome.dequeued] == ["x"]
    assert [job.job_type for job in outcome.queued] == ["late"]


def test_a_non_interrupting_timer_opens_its_target_beside_the_step() -> None:
    body = definition(user("x", "end", boundaryEvents=[timer("remind")]), task("remind", None), end())
    machine = Machine(body)
    outcome = machine.fire("x")
    assert machine.open == ["x", "remind"]
    assert machine.armed("x") == []
    assert machine.at("remind").side
    assert [timer.index for timer in outcome.fired] == [0]
    machine.complete("remind")
    assert machine.open == ["x"]
    machine.finish("x")
    assert machine.status is COMPLETED


def test_a_step_that_is_entered_again_has_new_timers() -> None:
    body = definition(
        task("x", "again", boundaryEvents=[timer("remind")]),
        choose("again", {"n < 2": "x", "true": "end"}),
        task("remind", None),
        end(),
    )
    machine = Machine(body, {"n": 0})
    machine.fire("x")
    machine.complete("x", {"n": 1})
    assert machine.open == ["remind", "x"]
    assert machine.armed("x") == [0]
    machine.fire("x")
    assert machine.open == ["remind", "x", "remind"]


def test_timers_of_a_step_fire_once_each_until_one_interrupts() -> None:
    events = [timer("a", "PT1M"), timer("b", "PT2M", interrupting=True), timer("a", "PT3M")]
    machine = Machine(definition(wait("x", "end", boundaryEvents=events), task("a", None), task("b"), end()))
    machine.fire("x", 0)
    machine.fire("x", 2)
    assert machine.open == ["x", "a", "a"]
    machine.fire("x", 1)
    assert machine.open == ["a", "a", "b"]
    assert machine.timers == {}


def test_an_interrupted_branch_still_belongs_to_its_gateway() -> None:
    machine = Machine(
        parallel(
            user("a", "join", boundaryEvents=[timer("late", interrupting=True)]),
            task("late", "join"),
            task("b", "join"),
            heads=["a", "b"],
        )
    )
    machine.fire("a")
    assert machine.at("late").parent_id == INSTANCE
    machine.complete("late")
    assert joined(machine) == 0
    machine.complete("b")
    assert machine.status is COMPLETED


def with_last(*branches: Json, heads: list[str], last: str) -> Json:
    """A block whose join leads to the task ``last``."""
    return definition(gateway("fork", *heads), *branches, joining("join", last), task(last), end())


def test_a_timer_with_an_outside_target_takes_its_branch_out() -> None:
    late = user("a", "join", boundaryEvents=[timer("out", interrupting=True)])
    machine = Machine(with_last(late, task("b", "join"), heads=["a", "b"], last="out"))
    machine.fire("a")
    assert machine.at("out").parent_id is None
    assert machine.tokens[INSTANCE].pending == 1
    machine.complete("b")
    assert joined(machine) == 1
    assert machine.open == ["out", "out"]


# -- side tokens


def test_a_side_token_ends_at_a_join_and_counts_nowhere() -> None:
    machine = Machine(
        parallel(
            user("a", "join", boundaryEvents=[timer("remind", "PT1M"), timer("join", "PT2M")]),
            task("remind", "join"),
            task("b", "join"),
            heads=["a", "b"],
        )
    )
    machine.fire("a", 0)
    machine.fire("a", 1)  # its target is the join itself
    assert machine.open == ["a", "b", "remind"]
    assert machine.tokens[INSTANCE].pending == 2
    machine.complete("remind")
    assert machine.open == ["a", "b"]
    assert (machine.tokens[INSTANCE].pending, machine.tokens[INSTANCE].arrived) == (2, 0)
    finish(machine, "a", "b")
    assert joined(machine) == 1
    assert machine.status is COMPLETED


def test_a_side_token_outlives_the_block_it_began_in() -> None:
    reminded = user("a", "join", boundaryEvents=[timer("remind")])
    machine = Machine(with_last(reminded, task("remind", None), task("b", "join"), heads=["a", "b"], last="last"))
    machine.fire("a")
    finish(machine, "a", "b")
    assert machine.open == ["remind", "last"]
    machine.complete("remind")
    machine.complete("last")
    assert machine.status is COMPLETED


def test_end_reached_by_a_side_token_completes_the_instance() -> None:
    machine = Machine(definition(user("x", "end", boundaryEvents=[timer("stop")]), end("stop"), end()))
    machine.fire("x")
    assert machine.status is COMPLETED
    assert machine.path == [("stop", "COMPLETED"), ("x", "SKIPPED")]


def test_a_failure_of_a_side_token_fails_the_instance() -> None:
    machine = Machine(definition(user("x", "end", boundaryEvents=[timer("side")]), task("side", None), end()))
    machine.fire("x")
    machine.fail("side", "broken")
    assert (machine.status, machine.failure) == (FAILED, "broken")
    assert machine.path == [("side", "FAILED"), ("x", "SKIPPED")]


def side_fork(n: int) -> Machine:
    """A timer's side token forks; one of its branches leaves the block, and with n = 1 comes to a foreign join."""
    body = definition(
        user("x", "w", boundaryEvents=[timer("fork")]),
        gateway("fork", "a", "b"),
        task("a", "join"),
        task("b", "out"),
        joining("join", "out"),
        choose("out", {"n == 0": "done", "true": "join2"}),
        task("done", None),
        user("w", "fork2"),
        gateway("fork2", "c", "d", join="join2"),
        task("c", "join2"),
        task("d", "join2"),
        joining("join2", "end"),
        end(),
    )
    machine = Machine(body, {"n": n})
    machine.fire("x")
    return machine


def test_a_side_token_may_fork_and_join_within_its_gateway() -> None:
    machine = side_fork(0)
    assert machine.open == ["x", "a", "b"]
    machine.complete("a")
    assert joined(machine) == 0
    machine.complete("b")
    assert joined(machine) == 1
    assert machine.open == ["x", "done", "done"]
    finish(machine, "done", "done")
    assert machine.open == ["x"]


def test_what_a_side_token_forked_counts_for_no_other_gateway() -> None:
    machine = side_fork(1)
    machine.complete("b")  # leaves its block, comes to another gateway's join: it just ends
    assert machine.status is ACTIVE
    assert machine.open == ["x", "a"]
    machine.complete("a")
    assert machine.open == ["x"]


def test_a_side_tokens_branch_ends_at_a_foreign_join() -> None:
    machine = Machine(
        definition(
            user("x", "end", boundaryEvents=[timer("fork")]),
            gateway("fork", "a", "b", "foreign"),
            task("a", "join"),
            task("b", "foreign"),
            joining("join", "done"),
            task("done", None),
            joining("foreign"),
            end(),
        )
    )
    machine.fire("x")
    fork = machine.tokens[machine.at("a").parent_id or 0]
    assert machine.open == ["x", "a", "b"]
    assert (fork.pending, fork.arrived) == (2, 0)
    machine.complete("a")
    assert joined(machine) == 0
    machine.complete("b")
    assert joined(machine) == 1
    assert machine.open == ["x", "done"]


# -- several tokens on one step


def test_a_result_leaves_the_steps_other_job_alone() -> None:
    machine = Machine(definition(gateway("fork", "a", "a"), task("a", "b"), task("b", "join"), joining(), end()))
    first, second = machine.all_at("a")
    machine.claim("a")
    machine.complete("a")
    assert machine.all_at("a") == [second]
    assert machine.at("b").id == first.id


# -- deltas of tokens that are gone


def test_a_gateway_counts_its_branches_deltas_on() -> None:
    machine = Machine(parallel(assign("a", {"a": 1}, "a2"), task("a2", "join"), task("b", "join"), heads=["a", "b"]))
    machine.complete("a2", {"a": 2})
    assert machine.tokens[INSTANCE].unfolded == 2


def test_the_root_counts_a_side_tokens_deltas_on() -> None:
    machine = Machine(definition(user("x", "end", boundaryEvents=[timer("side")]), task("side", None), end()))
    machine.fire("x")
    machine.complete("side", {"a": 1})
    assert machine.tokens[INSTANCE].unfolded == 1


def test_a_branch_that_goes_to_end_fires_no_join() -> None:
    machine = Machine(parallel(task("a", "end"), task("b", "join")))
    machine.complete("b")
    machine.complete("a")
    assert machine.path == [("fork", "COMPLETED"), ("b", "COMPLETED"), ("a", "COMPLETED"), ("end", "COMPLETED")]
