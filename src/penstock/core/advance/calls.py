"""What a CALL_ACTIVITY does within one advance: what it starts, and what comes back when that has ended.

Pure; `advance.py` says when. The instance is made by whoever carries the advance out, in the same transaction, so that
there is none that the end of its caller can't see.
"""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.core.advance import evaluation, for_each, recorder
from penstock.core.advance.effect import ChildStart
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import ChildEnded
from penstock.core.advance.recorder import AdvanceState
from penstock.core.expression import Expression
from penstock.core.expression.work import BYTES_PER_STEP, STEP_WORK
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS, Callee, Step
from penstock.core.rules.state import CONTINUE_TIMER, InstanceStatus, Token, Trigger, move
from penstock.wire.error_code import CHILD_CANCELLED, CHILD_FAILED, DEFINITION_NOT_FOUND, OWN_PREFIX

DEPTH_MAX = 16
"""Instances that call each other in a row, the first one not counted."""
CHILD_REASON_MAX_CHARS = 1000
"""Of the reason why a child failed, in that of its caller: it may have one of its own child in it."""


def enter_call(run: AdvanceState, token: Token, step: Step, callee: Callee) -> None:
    """Begin to wait for an instance. Raises EvaluationFailed, and nothing is begun then."""
    delays_s = evaluation.boundary_delays_s(run, token, step)
    call = plan_call(run, token, step, callee)
    move(token, Trigger.CALL)
    recorder.arm_all(run, token, delays_s)
    make_call(run, token, call)


def make_call(run: AdvanceState, token: Token, call: ChildStart | None) -> None:
    if call is None:
        recorder.arm(run, token, CONTINUE_TIMER, 0)
    else:
        run.out.calls.append(call)


def plan_call(run: AdvanceState, token: Token, step: Step, callee: Callee) -> ChildStart | None:
    """Return the instance to start; None when this advance starts enough of them. Raises EvaluationFailed."""
    if len(run.out.calls) >= run.inputs.calls_max or not run.work.may_go_on:
        return None
    if (callee.definition_id, callee.version) in run.inputs.uncallable:
        version = f" version {callee.version}" if callee.version else ""
        name = f"'{callee.definition_id}'{version}"
        reason = f"DefinitionNotFound: step '{step.id}' calls {name}, which is not there"
        raise EvaluationFailed(reason, DEFINITION_NOT_FOUND)
    if run.instance.depth >= DEPTH_MAX:
        raise EvaluationFailed(
            f"CallTooDeep: step '{step.id}' would make a call at depth {DEPTH_MAX + 1}, and {DEPTH_MAX} is the most"
        )
    for_each.spend_on(run, step, STEP_WORK)
    scope = evaluation.scope_of(run, token)
    if callee.input is None:
        variables: bytes = run.work.keep(partial(msgspec.json.encode, scope))
        for_each.spend_on(run, step, len(variables) // BYTES_PER_STEP)
        run.written_bytes += len(variables)
    else:
        variables = evaluation.assign(run, step, callee.input, dict(scope))
    if run.written_bytes > run.inputs.max_written_bytes and run.out.calls:
        return None
    wrong = run.inputs.unfit.get((callee.definition_id, callee.version, variables))
    if wrong is not None:
        raise EvaluationFailed(
            f"WrongArguments: step '{step.id}' calls '{callee.definition_id}': {wrong}", CHILD_FAILED
        )
    key = business_key(run, step, callee.business_key, scope)
    return ChildStart(token.id, token.seq, callee.definition_id, callee.version, variables, key, token.entry)


def business_key(run: AdvanceState, step: Step, key: Expression | str | None, scope: dict[str, object]) -> str | None:
    value = evaluation.evaluate(run, step, key, scope) if isinstance(key, Expression) else key
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > BUSINESS_KEY_MAX_CHARS:
        raise EvaluationFailed(
            f"step '{step.id}': businessKey must be text of at most {BUSINESS_KEY_MAX_CHARS} characters"
        )
    return value


def result_of(run: AdvanceState, step: Step, callee: Callee, given: bytes | None) -> bytes | None:
    """What comes back of an instance that has completed. Raises EvaluationFailed."""
    if not callee.output:
        return None
    assert given is not None, "what is asked for was not read"
    for_each.spend_on(run, step, len(given) // BYTES_PER_STEP)
    result = run.work.keep(partial(msgspec.json.decode, given))
    return evaluation.assign(run, step, callee.output, {**run.scope(), "result": result})


def why_failed(event: ChildEnded) -> tuple[str, str]:
    """The reason and the code with which a call fails, whose instance did not complete. Codes that the engine gave are
    its own: of the caller's step another one is true."""
    child = f"instance '{event.child}' of '{event.definition_id}'"
    reason = f": {event.reason[:CHILD_REASON_MAX_CHARS]}" if event.reason else ""
    if event.status is InstanceStatus.CANCELLED:
        return f"ChildCancelled: {child} was cancelled{reason}", CHILD_CANCELLED
    own = event.code is None or event.code.startswith(OWN_PREFIX)
    return f"ChildFailed: {child} failed{reason}", CHILD_FAILED if own or event.code is None else event.code
