"""The expressions of steps within one advance, on the instance's variables: conditions and assignments, what they cost.

Pure; `advance.py` says when. What fails is told as `EvaluationFailed`, with the step and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from penstock.core.advance import recorder
from penstock.core.advance.recorder import AdvanceState
from penstock.core.expression import Expression, ExpressionError
from penstock.core.expression.work import BYTES_PER_STEP, TooMuchWork
from penstock.core.graph.definition import Assignments, Backoff, LateBackoff, Step, Turn
from penstock.core.graph.retry import longest_s
from penstock.core.graph.wait import WaitError, lasting_s
from penstock.core.parsing.turns import TurnError, key_of, priority_of
from penstock.core.rules.state import Token
from penstock.errors import BadRequest


class EvaluationFailed(Exception):
    """The step can't go on, and why. Error boundaries take it by its ``code``, if it has one."""

    def __init__(self, reason: str, code: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def decide(run: AdvanceState, step: Step) -> int:
    scope = run.scope()
    for condition, target in step.conditions:
        result = evaluate(run, step, condition, scope)
        if not isinstance(result, bool):
            raise EvaluationFailed(
                f"step '{step.id}': condition `{condition.source}` gave {shown(result)}, not true or false"
            )
        if result:
            return target
    raise EvaluationFailed(f"DecisionNoBranchMatched: no condition of step '{step.id}' is true")


def assign(run: AdvanceState, step: Step, assignments: Assignments, scope: dict[str, object]) -> bytes:
    """What the assignments give, as a JSON object. ``scope`` has it, too."""
    delta: dict[str, object] = {}
    for name, value in assignments:
        delta[name] = evaluate(run, step, value, scope) if isinstance(value, Expression) else value
        scope[name] = delta[name]  # later entries see earlier ones
        # one by one: a thousand of the largest results would take the engine's memory before they are added up
        size = len(msgspec.json.encode(delta[name]))
        run.work.spend(size // BYTES_PER_STEP)
        run.written_bytes += size
        if run.written_bytes > run.inputs.max_written_bytes:
            raise EvaluationFailed(
                f"step '{step.id}': more than {run.inputs.max_written_bytes} bytes of variables in one advance"
            )
    return msgspec.json.encode(delta)


def evaluate(run: AdvanceState, step: Step, expression: Expression, scope: Mapping[str, object]) -> object:
    try:
        return run.work.evaluate(expression, scope, run.inputs.now)
    except (ExpressionError, TooMuchWork) as error:
        raise EvaluationFailed(f"step '{step.id}': {error}") from None


def boundary_delays_s(run: AdvanceState, token: Token, step: Step) -> dict[int, float]:
    """Of its boundary timers, by their indexes; those of a forEach are the whole step's. Raises EvaluationFailed."""
    if token.item is not None:
        return {}
    return {
        index: _lasting_s(run, step, boundary.seconds, f"boundaryEvents[{index}].duration")
        for index, boundary in step.timers
    }


def time_job(run: AdvanceState, token: Token, step: Step) -> None:
    """What is evaluated of the time limit and the back-off of its job. Raises EvaluationFailed."""
    if isinstance(step.timeout_s, Expression):
        token.timeout_s = _lasting_s(run, step, step.timeout_s, "timeout", token)
        if not token.timeout_s:
            raise EvaluationFailed(f"step '{step.id}': `timeout` must be more than zero")
    if isinstance(step.backoff, LateBackoff):
        time_retries(run, token, step, step.backoff)


def time_retries(run: AdvanceState, token: Token, step: Step, backoff: LateBackoff) -> None:
    """Raises EvaluationFailed."""
    initial_s = _lasting_s(run, step, backoff.initial, "retryBackoff.initial", token)
    given_s = backoff.longest
    if given_s is not None:
        given_s = _lasting_s(run, step, given_s, "retryBackoff.max", token)
        if given_s < initial_s:
            raise EvaluationFailed(f"step '{step.id}': `retryBackoff.max` is shorter than `initial`")
    token.backoff_s, token.backoff_max_s = initial_s, longest_s(initial_s, given_s)


def backoff_of(run: AdvanceState, token: Token, step: Step) -> Backoff | None:
    """How its retries are paced. What was not evaluated when the step was entered, as the instance came to its
    version later, is now. Raises EvaluationFailed."""
    late = step.backoff
    if not isinstance(late, LateBackoff):
        return late
    if token.backoff_s is None or token.backoff_max_s is None:
        time_retries(run, token, step, late)
    assert token.backoff_s is not None
    assert token.backoff_max_s is not None
    return Backoff(token.backoff_s, late.multiplier, token.backoff_max_s, late.jitter)


def _lasting_s(
    run: AdvanceState, step: Step, source: float | Expression, field: str, token: Token | None = None
) -> float:
    """``token``: whose item's variables count, too."""
    if not isinstance(source, Expression):
        return source
    scope = run.scope() if token is None else scope_of(run, token)
    try:
        return lasting_s(run.work.evaluate(source, scope, run.inputs.now), f"`{field}`")
    except (ExpressionError, TooMuchWork) as error:
        raise EvaluationFailed(f"step '{step.id}': `{field}`: {error}") from None
    except WaitError as error:
        raise EvaluationFailed(f"step '{step.id}': {error}") from None


def turn_of_start(run: AdvanceState, token: Token, step: Step) -> None:
    """What the definition says of the turn of an instance's jobs, where its start said nothing. Raises
    EvaluationFailed."""
    turn, instance = run.definition.turn, run.instance
    if turn is None:
        return
    evaluate = partial(_evaluate_for, run, step)
    try:
        if instance.flow_key is None and turn.key is not None:
            instance.flow_key = token.flow_key = key_of(turn.key, evaluate)
            run.out.turned = True
        if instance.priority is None and turn.priority is not None:
            instance.priority = token.priority = priority_of(turn.priority, evaluate)
            run.out.turned = True
    except (TurnError, EvaluationFailed) as error:
        if run.checked:
            raise BadRequest(str(error)) from None
        raise EvaluationFailed(str(error)) from None


def turn_of_job(run: AdvanceState, token: Token, step: Step, turn: Turn) -> None:
    """Raises EvaluationFailed."""
    scope = scope_of(run, token) if turn.is_evaluated else {}
    try:
        if turn.key is not None:
            token.flow_key = key_of(turn.key, lambda source: evaluate(run, step, source, scope))
        if turn.priority is not None:
            token.priority = priority_of(turn.priority, lambda source: evaluate(run, step, source, scope))
    except TurnError as error:
        raise EvaluationFailed(f"step '{step.id}': {error}") from None


def scope_of(run: AdvanceState, token: Token) -> dict[str, object]:
    """What the expressions of the token's step know: of an item its own variables, too. Raises ItemsNeeded."""
    if token.item is None:
        return run.scope()
    own = recorder.own_variables(run, token)
    return {**run.scope(), **run.work.keep(partial(msgspec.json.decode, own, type=dict[str, object]))}


def _evaluate_for(run: AdvanceState, step: Step, source: Expression) -> object:
    return evaluate(run, step, source, run.scope())


def count_automatic(run: AdvanceState, step: Step) -> None:
    """It needs nobody. Raises EvaluationFailed."""
    run.out.steps_run += 1
    if run.out.steps_run > run.steps_max:
        raise EvaluationFailed(
            f"step '{step.id}': more than {run.inputs.max_automatic_steps} automatic steps in one advance"
        )


def shown(value: object) -> str:
    """Return a value within a reason."""
    return msgspec.json.encode(value)[:100].decode(errors="replace")
