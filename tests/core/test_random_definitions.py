from __future__ import annotations

import datetime as dt

from hypothesis import Phase, given, settings

from penstock.core.expression import Expression
from penstock.core.graph.definition import Catch, StepType, step_successors
from penstock.core.graph.graph import reachable
from penstock.core.parsing.parsing import parse_definition
from penstock.core.time.duration import parse_duration, parse_timestamp
from penstock.testing.definitions import Json
from penstock.testing.random_definitions import START_VARIABLES, definitions, outputs


@given(definitions(failing=False, wild=False))
def test_what_random_definitions_ask_can_be_answered_from_the_start(body: Json) -> None:
    now = dt.datetime(2031, 5, 4, tzinfo=dt.UTC)
    for one in parse_definition(body).steps:
        answers = [condition.evaluate(START_VARIABLES, now) for condition, _ in one.conditions]
        assert set(answers) <= {True, False}
        assert not answers or answers[-1] is True
        for _, value in one.transformations:
            if isinstance(value, Expression):
                value.evaluate(START_VARIABLES, now)
        if isinstance(one.duration, Expression):
            assert parse_duration(str(one.duration.evaluate(START_VARIABLES, now))) == 180
        if isinstance(one.until, Expression):
            assert parse_timestamp(str(one.until.evaluate(START_VARIABLES, now))) == now


def test_random_definitions_show_what_they_promise() -> None:
    """Among enough of them there is each kind of thing; else the token games that use them prove nothing."""
    wanted: set[str] = {*StepType, "loop", "dead end", "multi-step branch", "branch that leaves", "interrupting", "not"}
    wanted |= {"catch"}
    seen: set[str] = set()

    @settings(max_examples=300, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
    @given(definitions())
    def probe(body: Json) -> None:
        parsed = parse_definition(body)
        successors = [step_successors(one) for one in parsed.steps]
        for one in parsed.steps:
            seen.add(one.type)
            if one.index in reachable(successors, successors[one.index]):
                seen.add("loop")
            if one.job_type is not None and one.next is None and not one.conditions:
                seen.add("dead end")
            seen.update("interrupting" if boundary.interrupting else "not" for _, boundary in one.timers)
            seen.update("catch" for event in one.boundaries if isinstance(event, Catch))
            if one.type is StepType.PARALLEL_GATEWAY:
                inside = parsed.blocks.inside(one.index)
                if len(inside) > len(one.branches):
                    seen.add("multi-step branch")
                block = {*inside, one.join}
                if any(target not in block for index in inside for target in successors[index]):
                    seen.add("branch that leaves")

    probe()
    assert seen == wanted


@given(outputs())
def test_random_outputs_are_variables(values: Json) -> None:
    assert set(values) <= {*START_VARIABLES, "result"}
