"""Which completions take the fast path: they touch their own token only and need neither variables nor other tokens.

Such a completion is one row update with the fence in its WHERE, and hundreds of them one statement. Everything else
goes through `advance` under the locks of the whole instance. Pure, computed once per definition.
"""

from __future__ import annotations

import msgspec

from penstock.core.expression import Expression
from penstock.core.graph.definition import Definition, LateBackoff, Step, StepType


class FastPlan(msgspec.Struct, frozen=True):
    """What follows a step's job: the next job, or with ``ends`` the END that completes a single-token instance."""

    job_type: str
    next_step: int
    next_job_type: str
    ends: bool


def fast_plans(definition: Definition) -> tuple[FastPlan | None, ...]:
    """One entry per step, None for steps whose completion takes the full path."""
    return tuple(_plan(definition, step) for step in definition.steps)


def fast_start(definition: Definition) -> bool:
    """Return whether the first step is a job that needs nothing but its token, and nothing else is written."""
    first = definition.steps[0]
    writes_more = definition.search_attributes is not None or definition.turn is not None
    return not writes_more and first.type is StepType.SERVICE_TASK and _is_plain(first)


def _is_plain(step: Step) -> bool:
    """Entering and leaving the step arms and disarms nothing, and is one token's affair."""
    return (
        not step.boundaries
        and step.timeout_s is None
        and not isinstance(step.backoff, LateBackoff)
        and step.duration is None
        and step.until is None
        and step.for_each is None
        and step.turn is None
    )


def _plan(definition: Definition, step: Step) -> FastPlan | None:
    if step.type is not StepType.SERVICE_TASK or step.next is None or step.conditions or not _is_plain(step):
        return None
    target, job_type = definition.steps[step.next], step.job_type or ""
    if target.type is StepType.END:
        if target.error_code is not None or target.result is not None:
            return None
        # signals are kept for waits only, and whoever ends the instance has to forget them
        waits = any(other.type is StepType.WAIT for other in definition.steps)
        if definition.single_token and not definition.auto_start_next and not waits:
            return FastPlan(job_type, target.index, "", ends=True)
        return None
    if target.type is not StepType.SERVICE_TASK or not _is_plain(target):
        return None  # also a user task, which people look for in a list
    insides = definition.blocks.insides
    if insides[step.index] & ~insides[target.index]:
        return None  # the branch leaves its gateway's block
    return FastPlan(job_type, target.index, target.job_type or "", ends=False)


def needs_variables(definition: Definition) -> bool:
    """Return whether any advance of the definition may have to read variables."""
    of_start = definition.turn is not None and definition.turn.is_evaluated
    return (
        definition.auto_start_next
        or of_start
        or any(
            step.conditions
            or step.type in (StepType.TRANSFORMATION, StepType.CALL_ACTIVITY)
            or step.duration is not None
            or step.until is not None
            or step.result is not None
            or (step.message is not None and isinstance(step.message.key, Expression))
            or step.for_each is not None
            or (step.turn is not None and step.turn.is_evaluated)
            or step.times_itself
            for step in definition.steps
        )
    )
