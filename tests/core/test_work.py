"""Work is counted: the same inputs cost the same, wherever and however often they are evaluated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.expression import ExpressionError, OutOfSteps, parse
from penstock.core.expression.work import LongWork, TooMuchWork, Work
from penstock.core.rules.state import InstanceStatus
from penstock.testing.definitions import definition, end, service, step
from tests.core.expression.evaluation import NOW
from tests.core.machine import Machine

BODY = definition(
    step(
        "t", "TRANSFORMATION", transformations={"a": "${count(1..20, # > n)}", "b": "${'x' + string(a)}"}, nextStep="d"
    ),
    step("d", "DECISION", conditionalNextSteps={"len(b) > 100": "x", "n > 1": "fork", "true": "x"}),
    step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["p", "q"], joinStep="join"),
    step("p", "TRANSFORMATION", transformations={"c": "${b + b}"}, nextStep="join"),
    step("q", "TRANSFORMATION", transformations={"n": "${n - 1}"}, nextStep="join"),
    step("join", "JOIN_GATEWAY", nextStep="t"),
    service("x", "end"),
    end(),
)


def verdict(work: Work, n: int = 4) -> tuple[object, ...]:
    machine = Machine(BODY, {"n": n}, work=work)
    return machine.status, machine.failure, machine.variables, [row.output for row in machine.history]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 6_000), st.integers(0, 6_000))
def test_recorded_replayed_or_begun_elsewhere_the_verdict_is_one(limit: int, here: int) -> None:
    first = Work(limit)
    expected = verdict(first)
    again = Work(limit, replay=first.record)
    assert verdict(again) == expected
    assert (again.spent, again.record) == (first.spent, first.record)
    try:
        assert verdict(Work(limit, here=here)) == expected
    except LongWork:
        assert here < first.spent


def test_every_budget_ends_in_the_instance_not_in_an_error() -> None:
    statuses = {Machine(BODY, {"n": 4}, max_work=limit).status for limit in range(0, 6_000, 7)}
    assert statuses == {InstanceStatus.ACTIVE, InstanceStatus.FAILED}


def test_a_record_that_ends_too_early_is_a_bug() -> None:
    work = Work(100_000)
    verdict(work)
    with pytest.raises(AssertionError, match="other inputs"):
        verdict(Work(100_000, replay=work.record[:-1]))


@pytest.mark.parametrize(
    "source", ["1", "a + 1", "count(1..50, # > 3)", "map(1..9, string(#))", "1..40", "[a, a, 'é']"]
)
def test_steps_are_reproducible_and_the_bound_is_exact(source: str) -> None:
    expression = parse(source)
    result, steps = expression.measure({"a": 1}, NOW)
    assert expression.measure({"a": 1}, NOW, steps_max=steps) == (result, steps)
    with pytest.raises(OutOfSteps):
        expression.measure({"a": 1}, NOW, steps_max=steps - 1)


def test_an_expressions_bound_is_told_before_the_advances() -> None:
    expression = parse("count(1..90000, # > 1 and # > 2)")
    with pytest.raises(ExpressionError, match="100000 steps"):
        Work(1_000_000).evaluate(expression, {}, NOW)
    with pytest.raises(TooMuchWork, match="more than 5000 steps"):
        Work(5_000).evaluate(expression, {}, NOW)


def test_conditions_that_are_never_true_are_bounded_too() -> None:
    """A million trivial evaluations are let through by every other limit."""
    conditions: dict[str, object] = {f"n == {i}": "x" for i in range(2, 1_000)}
    body = definition(
        step("d", "DECISION", conditionalNextSteps={**conditions, "true": "e"}),
        step("e", "DECISION", conditionalNextSteps={"n < 0": "x", "true": "d"}),
        service("x", "end"),
        end(),
    )
    machine = Machine(body, {"n": 1}, max_automatic_steps=100_000)
    assert "steps of work" in (machine.failure or "")


def test_gateways_pay_for_their_branches() -> None:
    body = definition(
        step("d", "DECISION", conditionalNextSteps={"n < 0": "x", "true": "fork"}),
        step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["join"] * 1_000, joinStep="join"),
        step("join", "JOIN_GATEWAY", nextStep="d"),
        service("x", "end"),
        end(),
    )
    machine = Machine(body, {"n": 1}, max_automatic_steps=100_000)
    assert "steps of work" in (machine.failure or "")
    assert len(machine.history) < 100
