"""What the tests of uploads share: definitions with one thing to vary, and the problems that an upload gets."""

from __future__ import annotations

from penstock.core.graph.definition import DefinitionLimits, InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.testing.definitions import Json, definition, end, linear, step

LIMITS = DefinitionLimits()


def problems_of(body: object, limits: DefinitionLimits = LIMITS) -> list[tuple[str, str]]:
    """(path, reason) of each problem; an empty list when the definition is valid."""
    try:
        parse_definition(body, limits=limits)
    except InvalidDefinition as refused:
        return [(problem.path, problem.reason) for problem in refused.problems]
    return []


def with_first(**fields: object) -> Json:
    """A valid definition whose first step, a SERVICE_TASK, has these fields too; ... takes one away."""
    first = {"id": "a", "name": "A", "type": "SERVICE_TASK", "jobType": "work", "nextStep": "end", **fields}
    return definition({name: value for name, value in first.items() if value is not ...}, end())


def with_wait(**fields: object) -> Json:
    return definition(step("a", "WAIT", nextStep="end", **fields), end())


def with_decision(conditions: object) -> Json:
    return definition(step("a", "DECISION", conditionalNextSteps=conditions), end())


def with_transformations(transformations: object) -> Json:
    return definition(step("a", "TRANSFORMATION", transformations=transformations, nextStep="end"), end())


def with_top(**fields: object) -> Json:
    return {name: value for name, value in {**linear(1), **fields}.items() if value is not ...}


def with_timer(**fields: object) -> Json:
    event = {"type": "TIMER", "duration": "PT1H", "targetStepId": "end", **fields}
    return with_first(boundaryEvents=[{name: value for name, value in event.items() if value is not ...}])


THE_TYPES = (
    "the types are SERVICE_TASK, USER_TASK, CALL_ACTIVITY, COMPENSATE, DECISION, TRANSFORMATION, WAIT, "
    "PARALLEL_GATEWAY, JOIN_GATEWAY, END"
)
NOT_REACHED = "cannot be reached from the first step"
