"""How steps fail and instances end within one advance, and what is kept for `retry`.

A part of `advance`, its only user.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from penstock.core.advance import compensation, for_each, recorder
from penstock.core.advance.effect import Chain, Compensation
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.recorder import AdvanceState
from penstock.core.graph.definition import Catch, Step, StepType
from penstock.core.rules.state import HistoryKind, InstanceStatus, Token, TokenState, change_status


def complete(run: AdvanceState, token: Token, result: bytes | None) -> None:
    definition = run.definition
    if definition.auto_start_next and definition.next_workflow_id is not None:
        if not run.inputs.next_known or not run.inputs.may_chain or run.inputs.next_problem is not None:
            reason = f"NextWorkflowNotFound: {definition.next_workflow_id}"
            if run.inputs.next_problem is not None:
                reason = f"WrongArguments: '{definition.next_workflow_id}' follows: {run.inputs.next_problem}"
            elif run.inputs.next_known:
                reason = f"too many workflows in one chain: '{definition.next_workflow_id}' was not started"
            end_instance(run, InstanceStatus.FAILED, reason, culprit=token)
            return
        run.out.chain = Chain(definition.next_workflow_id)
    end_instance(run, InstanceStatus.COMPLETED, None, culprit=token)
    run.instance.result = result


def fail(
    run: AdvanceState,
    token: Token,
    reason: str,
    code: str | None = None,
    *,
    worker: str | None = None,
    data: bytes | None = None,
) -> None:
    """The step of ``token`` failed for good, and the instance with it unless an error boundary takes the code. Of
    an item the boundary is the whole step's; without one its forEach may keep the error."""
    whole = run.whole(token)
    step = run.definition.steps[token.step]
    if step.compensates is not None:
        reason = f"compensation of step '{run.definition.steps[step.compensates].id}' failed: {reason}"
    caught = None if code is None else step.catch(code)
    if caught is not None and code is not None and run.out.steps_run < run.steps_max:
        run.out.steps_run += 1  # a call that can't be made may fail and be caught again and again in one advance
        output = recorder.merge(run, whole, _error(step, caught, code, reason, data))
        if whole is not token:
            recorder.close(run, token, HistoryKind.FAILED, worker=worker, reason=reason, code=code)
        if run.is_map(whole):
            for_each.close_map(run, whole, reason, token)
        by = worker if whole is token else None
        recorder.close(run, whole, HistoryKind.CAUGHT, worker=by, reason=reason, output=output, code=code)
        run.entering.append((whole, caught.target))
        return
    if whole is not token and code is not None and step.for_each is not None and step.for_each.collects_errors:
        try:
            kept = for_each.error_of_item(run, token, code, reason)
        except EvaluationFailed as failed:
            reason, code = failed.reason, failed.code
        else:
            recorder.close(run, token, HistoryKind.FAILED, worker=worker, reason=reason, code=code)
            for_each.item_over(run, token, kept, HistoryKind.FAILED)
            return
    if whole is not token:
        recorder.close(run, whole, HistoryKind.FAILED, reason=reason, code=code)
    recorder.close(run, token, HistoryKind.FAILED, worker=worker, reason=reason, code=code)
    end_instance(run, InstanceStatus.FAILED, reason, culprit=token, code=code)


def finish_item(
    run: AdvanceState,
    token: Token,
    kind: HistoryKind,
    *,
    worker: str | None = None,
    reason: str | None = None,
    output: bytes | None = None,
) -> None:
    """An item is done, or skipped with a result."""
    try:
        kept, enough = for_each.decide_item(run, token, output)
    except EvaluationFailed as failed:
        keep_raw(run, token, kind, failed, output, worker=worker, reason=reason)
        return
    recorder.close(run, token, kind, worker=worker, reason=reason)
    if output is not None and run.definition.steps[token.step].compensation is not None:
        run.out.item_outputs.append((run.out.history[-1].position, output))
    for_each.item_over(run, token, kept, kind, enough=enough)


def keep_raw(
    run: AdvanceState,
    token: Token,
    kind: HistoryKind,
    failed: EvaluationFailed,
    raw: bytes | None,
    *,
    worker: str | None = None,
    reason: str | None = None,
) -> None:
    """The work of the step, or of an item, is done, and the engine's own mapping of its result has failed: the step
    is closed as done, its raw result kept for a `retry`, and the instance fails after it."""
    if not run.inputs.keeps_raw:
        fail(run, token, failed.reason, failed.code, worker=worker)
        return
    recorder.close(run, token, kind, worker=worker, reason=reason)
    token.raw = run.out.history[-1].position
    run.out.item_outputs.append((token.raw, raw or b"{}"))
    run.out.raw_kept = True
    mapping_failed(run, token, failed)


def mapping_failed(run: AdvanceState, token: Token, failed: EvaluationFailed) -> None:
    """The instance fails behind a step that is done."""
    whole = run.whole(token)
    if whole is not token:
        recorder.close(run, whole, HistoryKind.FAILED, reason=failed.reason, code=failed.code)
    token.leaving = True
    end_instance(run, InstanceStatus.FAILED, failed.reason, culprit=token, code=failed.code)


def end_instance(
    run: AdvanceState, status: InstanceStatus, reason: str | None, culprit: Token | None = None, code: str | None = None
) -> None:
    """Close everything that is open. ``culprit``: the token whose step brought the end, and was closed already;
    `retry` enters it again, or leaves it when it was done. What has failed may be undone first."""
    if status is InstanceStatus.FAILED and culprit is not None and compensate_failure(run, reason, culprit, code):
        return
    if status is InstanceStatus.FAILED and run.out.ended_as is None:
        entering = {token.id: index for token, index in run.entering}
        run.out.snapshot = [
            keep_for_retry(run, token, token is culprit, entering.get(token.id)) for token in run.tokens.values()
        ]
    compensation.close_open(run, reason, culprit)
    for token in [*run.tokens.values()]:
        recorder.remove(run, token)
    change_status(run.instance, status, reason, code)
    run.out.ended = True


def cancel(run: AdvanceState, reason: str | None, *, undo: bool) -> None:
    undoing = Compensation(InstanceStatus.CANCELLED, reason, None, None, job=False)
    if not (undo and compensation.compensate_first(run, undoing, None)):
        end_instance(run, InstanceStatus.CANCELLED, reason)


def compensate_failure(run: AdvanceState, reason: str | None, culprit: Token, code: str | None) -> bool:
    """Undo what the instance did before it is FAILED; False where that is not to be, and changes nothing. A handler
    that failed is tried again by a `retry`."""
    step = run.definition.steps[culprit.step]
    if not run.definition.undoes_failures or step.compensates is not None:
        return False
    job = step.type is StepType.SERVICE_TASK and culprit.attempt > 0 and not culprit.leaving
    return compensation.compensate_first(
        run, Compensation(InstanceStatus.FAILED, reason, code, step.index, job), culprit
    )


def keep_for_retry(run: AdvanceState, token: Token, culprit: bool, entering: int | None) -> Token:
    """The token as `retry` finds it: open steps READY (entered anew, as the entry they were), gateways and
    forEach steps with their counts."""
    kept = structs.replace(
        token,
        attempt=0,
        failures=0,
        expiries=0,
        claimed_by=None,
        claimed_at=None,
        lease_until=None,
        waits_for=None,
        held=None,
        run_queue=None,
        priority=token.priority % 10,  # without what an open run goes before others
    )
    if entering is not None:
        kept.step = entering
        kept.entry = run.reentering.get(token.id)
    elif token.leaving:
        kept.entry = None
    elif culprit or token.is_open or run.is_map(token):
        kept.entry = token.entry_id
    if entering is not None or token.is_open or (culprit and not (token.pending and run.is_map(token))):
        kept.state = TokenState.READY
    return kept


def _error(step: Step, caught: Catch, code: str, message: str, data: bytes | None) -> bytes | None:
    """What the error boundary's variable becomes."""
    if caught.variable is None:
        return None
    error = {"code": code, "message": message, "stepId": step.id, "data": None if data is None else msgspec.Raw(data)}
    return msgspec.json.encode({caught.variable: error})
