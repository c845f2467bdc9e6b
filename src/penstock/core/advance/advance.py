"""*Advance*, the pure function at the heart: one event on one instance gives the rows to write.

It is given the definition, the instance's tokens and variables as they are under the instance's lock, the event, and
everything that is not data: the time, new ids, new positions, a random number. It does no I/O and keeps nothing, so
the same inputs give the same outcome; the caller may throw an outcome away and ask again (`PositionsExhausted`,
`CompletionsNeeded`).

Rules, with their source in `docs/guarantees.md`:

* **Branches.** A gateway's token waits as FORKED while its branches run as tokens of their own. A branch *arrives* at
  the join, *leaves* when it steps out of the gateway's block, or ends in a dead end. The join fires when no branch is
  left inside and at least one arrived; else the gateway's token ends too.
* **Side tokens** come from non-interrupting timers, belong to no gateway, and end at a join.
* **END** completes the instance and closes everything else (SKIPPED).
* **Errors.** A step that fails for good, or with a code that one of its error boundaries names, goes on at that
  boundary's target; without one the instance fails. Expressions that fail are not caught.
* **Calls.** A CALL_ACTIVITY starts an instance and waits for its end, which comes as an event of its own. Closed
  otherwise, it abandons what it started.
* **Compensation.** What a COMPENSATE undoes, or an instance before its end, is undone by handlers, one after the other.
* **Bounded.** More than ``max_automatic_steps`` steps that need nobody fail the instance, and so does more ``work``.
  Kept signals are taken in slices, each by an advance of its own: of a loop through a WAIT with thousands of them none
  is too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, assert_never

from penstock.core.advance import (
    branches,
    calls,
    compensation,
    ending,
    evaluation,
    for_each,
    recorder,
    repair,
    waiting,
)
from penstock.core.advance.calls import why_failed
from penstock.core.advance.effect import AuditRow, Effects, Timer
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import (
    CancellationRequested,
    ChildEnded,
    Event,
    InstanceStarted,
    JobCompleted,
    JobDeadLettered,
    JobFailed,
    JobParked,
    JobSignalled,
    MessageReceived,
    RetryRequested,
    StepGivenUp,
    StepSkipped,
    TaskCompleted,
    TimerFired,
    TokenMoved,
)
from penstock.core.advance.for_each import RawNeeded
from penstock.core.advance.recorder import AdvanceState, Inputs, PositionsExhausted
from penstock.core.expression.work import STEP_WORK, TooMuchWork
from penstock.core.graph.definition import Boundary, Callee, Definition, Step, StepType
from penstock.core.graph.retry import backoff_s
from penstock.core.graph.wait import WaitError, wait_ends_at
from penstock.core.rules.state import (
    CONTINUE_TIMER,
    INTERRUPTED_REASON,
    RETRY_TIMER,
    START_TIMER,
    WAIT_TIMER,
    HistoryKind,
    Instance,
    InstanceStatus,
    Token,
    TokenState,
    Trigger,
    move,
)
from penstock.wire.error_code import LEASE_EXPIRED, NOT_RETRYABLE, RETRIES_EXHAUSTED

__all__ = ["Inputs", "PositionsExhausted", "advance"]


Automatic = Literal[
    StepType.DECISION, StepType.TRANSFORMATION, StepType.PARALLEL_GATEWAY, StepType.COMPENSATE, StepType.END
]
"""Steps that need nobody."""


def advance(
    definition: Definition,
    instance: Instance,
    tokens: Sequence[Token],
    variables: Mapping[str, object] | None,
    event: Event,
    inputs: Inputs,
) -> Effects:
    """Decide what ``event`` does.

    ``tokens`` are all tokens of the instance (they are changed in place; pass copies to keep the old ones), ordered
    by id. ``variables`` may be None where the definition needs none. The caller has checked the fence and that the
    token of the event is open; a FAILED instance takes only `RetryRequested`, `StepSkipped` and
    `TokenMoved`, an ACTIVE one all but the first.
    """
    return apply(AdvanceState(definition, instance, tokens, variables, inputs), event)


def apply(run: AdvanceState, event: Event) -> Effects:
    match event:
        case InstanceStarted():
            start(run, event)
        case JobCompleted() | TaskCompleted() | MessageReceived():
            done(run, event)
        case JobFailed():
            job_failed(run, event)
        case JobParked():
            waiting.park(run, run.tokens[event.token_id], event)
        case JobSignalled():
            waiting.signalled(run, run.tokens[event.token_id], event.output)
        case JobDeadLettered():
            ending.fail(run, run.tokens[event.token_id], f"lease expired {event.expiries} times", LEASE_EXPIRED)
        case TimerFired():
            timer_fired(run, run.tokens[event.token_id], event.index)
        case ChildEnded():
            child_ended(run, event)
        case StepGivenUp():
            ending.fail(run, run.tokens[event.token_id], event.reason)
        case CancellationRequested():
            ending.cancel(run, event.reason, undo=event.compensate)
        case RetryRequested() | StepSkipped() | TokenMoved():
            repair.apply_repair(run, event)
        case _:
            assert_never(event)
    enter_all(run)
    return recorder.finish(run)


def start(run: AdvanceState, event: InstanceStarted) -> None:
    at = event.at
    assert not run.tokens
    root = Token(
        id=run.instance.id,
        instance_id=run.instance.id,
        seq=0 if at is None else run.position(),
        step=0,
        state=TokenState.READY if at is None else TokenState.DELAYED,
        entered_at=run.inputs.now,
    )
    recorder.add(run, root)
    if at is None:
        run.begins, run.checked = True, event.checked
        run.entering.append((root, 0))
    else:
        run.out.armed.append(Timer(at, root.id, root.seq, START_TIMER))


def done(run: AdvanceState, event: JobCompleted | TaskCompleted | MessageReceived) -> None:
    if isinstance(event, MessageReceived):
        waiting.mark_received(run, event)
    by = event.worker if isinstance(event, JobCompleted) else event.by
    finish_step(run, run.tokens[event.token_id], worker=by, output=event.output)


def job_failed(run: AdvanceState, event: JobFailed) -> None:
    token = run.tokens[event.token_id]
    step = run.definition.steps[token.step]
    is_over = token.failures >= step.retry_count
    again = event.retryable and not is_over and step.may_retry(event.code)
    if not again or step.catch_named(event.code) is not None:
        code = event.code or (RETRIES_EXHAUSTED if event.retryable and is_over else NOT_RETRYABLE)
        ending.fail(run, token, event.error, code, worker=event.worker, data=event.data)
        return
    delay_s = event.retry_after_s
    if delay_s is None:
        try:
            delay_s = backoff_s(evaluation.backoff_of(run, token, step), token.failures + 1, run.inputs.jitter)
        except EvaluationFailed as failed:
            ending.fail(run, token, failed.reason, worker=event.worker)
            return
    recorder.record(run, token, HistoryKind.ATTEMPT_FAILED, worker=event.worker, reason=event.error, code=event.code)
    recorder.dequeue(run, token)
    token.failures += 1
    token.claimed_by = token.claimed_at = token.lease_until = None
    recorder.mark_changed(run, token)
    if delay_s > 0:
        move(token, Trigger.BACK_OFF)
        recorder.arm(run, token, RETRY_TIMER, delay_s)
    else:
        move(token, Trigger.RETRY)
        recorder.queue_again(run, token, step)


def timer_fired(run: AdvanceState, token: Token, index: int) -> None:
    step = run.definition.steps[token.step]
    fired = Timer(run.inputs.now, token.id, token.seq, index)
    kept = waiting.kept_signal(run, step) if step.type is StepType.WAIT and index != START_TIMER else None
    if index == START_TIMER:
        run.out.fired.append(fired)
        move(token, Trigger.BEGIN)
        run.begins = True
        run.entering.append((token, 0))
    elif kept is not None:  # whatever is due: the signal came before the wait was entered
        take_signal(run, token, kept)
    elif index == CONTINUE_TIMER:  # of a wait: another token took the rest
        run.out.fired.append(fired)
        if run.is_map(token):
            for_each.go_on(run, token)
        elif step.callee is not None:
            go_on_calling(run, token, step, step.callee)
    elif index == RETRY_TIMER:
        run.out.fired.append(fired)
        move(token, Trigger.BACKOFF_OVER)
        recorder.mark_changed(run, token)
        recorder.queue_again(run, token, step)
    elif index == WAIT_TIMER and step.type is StepType.SERVICE_TASK:
        waiting.wake(run, token)
    elif index == WAIT_TIMER:
        run.out.audit.append(AuditRow("TIMER_FIRED", token.id, token.step))
        finish_step(run, token)
    else:
        boundary = step.boundaries[index]
        assert isinstance(boundary, Boundary)
        run.out.audit.append(AuditRow("TIMER_FIRED", token.id, token.step, detail=boundary.duration))
        if boundary.interrupting:
            if run.is_map(token):
                for_each.close_map(run, token, INTERRUPTED_REASON)
            recorder.close(run, token, HistoryKind.INTERRUPTED, reason=INTERRUPTED_REASON)
            run.entering.append((token, boundary.target))
        else:
            run.out.fired.append(fired)
            side = recorder.new_token(run, boundary.target, side=True)
            run.entering.append((side, boundary.target))


def go_on_calling(run: AdvanceState, token: Token, step: Step, callee: Callee) -> None:
    try:
        calls.make_call(run, token, calls.plan_call(run, token, step, callee))
    except EvaluationFailed as failed:
        ending.fail(run, token, failed.reason, failed.code)


def child_ended(run: AdvanceState, event: ChildEnded) -> None:
    token = run.tokens[event.token_id]
    step = run.definition.steps[token.step]
    assert step.callee is not None
    run.returned = token.id
    if event.status is not InstanceStatus.COMPLETED:
        ending.fail(run, token, *why_failed(event))
        return
    if token.item is not None:
        finish_step(run, token, output=event.result)
        return
    try:
        output = calls.result_of(run, step, step.callee, event.result)
    except EvaluationFailed as failed:
        ending.keep_raw(run, token, HistoryKind.COMPLETED, failed, event.result)
        return
    finish_step(run, token, output=output)


# -- moving through the graph


def enter_all(run: AdvanceState) -> None:
    """Enter steps until every token waits for somebody."""
    while run.entering and not run.out.ended:
        token, index = run.entering.popleft()
        if token.leaving:
            leave(run, token)
            continue
        try:
            enter(run, token, index)
        except EvaluationFailed as failed:
            ending.fail(run, token, failed.reason, failed.code)
        except TooMuchWork as error:
            ending.fail(run, token, f"step '{run.definition.steps[token.step].id}': {error}")


def enter(run: AdvanceState, token: Token, index: int) -> None:
    step = run.definition.steps[index]
    if token.item is None and step.compensates is None and not branches.goes_onto(run, token, step):
        return
    recorder.begin_execution(run, token, step)
    run.work.spend(STEP_WORK)
    if run.begins or (run.out.reopened and token.is_root and index == 0):  # its turn may be what failed it
        run.begins = False
        evaluation.turn_of_start(run, token, step)
    if step.for_each is not None and token.item is None:
        move(token, Trigger.FORK)
        for_each.begin_map(run, token, step, step.for_each)
        return
    kind = step.type
    match kind:
        case StepType.SERVICE_TASK:
            if step.turn is not None:
                evaluation.turn_of_job(run, token, step, step.turn)
            evaluation.time_job(run, token, step)
            delays_s = evaluation.boundary_delays_s(run, token, step)
            move(token, Trigger.ENTER_JOB)
            recorder.queue(run, token, step)
            recorder.arm_all(run, token, delays_s)
        case StepType.USER_TASK:
            delays_s = evaluation.boundary_delays_s(run, token, step)
            move(token, Trigger.ENTER_PARKED)
            recorder.arm_all(run, token, delays_s)
        case StepType.CALL_ACTIVITY:
            assert step.callee is not None
            calls.enter_call(run, token, step, step.callee)
        case StepType.WAIT:
            wait(run, token, step)
        case StepType.JOIN_GATEWAY:
            raise EvaluationFailed(
                f"JoinWithoutGateway: step '{step.id}' is a join, and the branch that reached it comes from no gateway:"
                " check the way to it"
            )
        case (
            StepType.DECISION | StepType.TRANSFORMATION | StepType.PARALLEL_GATEWAY | StepType.COMPENSATE | StepType.END
        ):
            automatic(run, token, step, kind)
        case _:
            assert_never(kind)


def automatic(run: AdvanceState, token: Token, step: Step, kind: Automatic) -> None:
    evaluation.count_automatic(run, step)
    match kind:
        case StepType.DECISION:
            target = evaluation.decide(run, step)
            recorder.record(run, token, HistoryKind.COMPLETED)
            run.entering.append((token, target))
        case StepType.TRANSFORMATION:
            output = evaluation.assign(run, step, step.transformations, run.scope())
            recorder.record(run, token, HistoryKind.COMPLETED, output=output)
            recorder.count_delta(run, token, output)
            assert step.next is not None
            run.entering.append((token, step.next))
        case StepType.PARALLEL_GATEWAY:
            run.work.spend(STEP_WORK * len(step.branches))
            recorder.record(run, token, HistoryKind.COMPLETED)
            move(token, Trigger.FORK)
            token.pending, token.arrived = len(step.branches), 0
            for head in step.branches:
                run.entering.append((recorder.new_token(run, head, parent_id=token.id, side=token.side), head))
        case StepType.COMPENSATE:
            compensation.compensate(run, token, step)
        case StepType.END if step.error_code is not None:
            ending.fail(run, token, f"step '{step.id}' ended it with the error {step.error_code}", step.error_code)
        case StepType.END:
            result = None if step.result is None else evaluation.assign(run, step, step.result, dict(run.scope()))
            recorder.record(run, token, HistoryKind.COMPLETED)
            ending.complete(run, token, result)
        case _:
            assert_never(kind)


def wait(run: AdvanceState, token: Token, step: Step) -> None:
    try:
        ends_at = wait_ends_at(step, lambda source: evaluation.evaluate(run, step, source, run.scope()), run.inputs.now)
    except WaitError as error:
        raise EvaluationFailed(f"step '{step.id}': {error}") from None
    delays_s = evaluation.boundary_delays_s(run, token, step)
    if step.message is not None:
        waiting.subscribe(run, token, step, step.message)
    move(token, Trigger.ENTER_PARKED)
    kept = waiting.kept_signal(run, step)
    if kept is not None and waiting.may_take_signals(run):
        take_signal(run, token, kept)
        return
    if kept is not None:
        recorder.arm(run, token, CONTINUE_TIMER, 0)
    if ends_at is not None:
        run.out.armed.append(Timer(ends_at, token.id, token.seq, WAIT_TIMER))
    recorder.arm_all(run, token, delays_s)


def take_signal(run: AdvanceState, token: Token, signal: tuple[int, bytes]) -> None:
    """What follows a kept signal is bounded as if it came now: its steps and its work are counted from here."""
    id, output = signal
    waiting.mark_taken(run, token, id)
    run.out.steps_run += 1
    run.steps_max = run.out.steps_run + run.inputs.max_automatic_steps
    run.work.begin_anew()
    finish_step(run, token, output=output)


def finish_step(run: AdvanceState, token: Token, *, worker: str | None = None, output: bytes | None = None) -> None:
    """A task is done. Its delta is merged before its conditions are read; of an item that is no delta."""
    if token.item is not None:
        ending.finish_item(run, token, HistoryKind.COMPLETED, worker=worker, output=output)
        return
    output = recorder.merge(run, token, output)
    handler = run.definition.steps[token.step].compensates is not None
    kind = HistoryKind.COMPENSATED if handler else HistoryKind.COMPLETED
    recorder.close(run, token, kind, worker=worker, output=output)
    leave(run, token)


def leave(run: AdvanceState, token: Token) -> None:
    """Go where a step that is done leads: conditions first, then `nextStep`, else a dead end.

    When no condition holds, the instance fails and the work stays done: `retry` comes back to here. Likewise where
    the result of a call, or of an item, could not be mapped.
    """
    step = run.definition.steps[token.step]
    if step.compensates is not None:
        undoing = compensation.handler_done(run, token)
        if undoing is not None:
            run.out.ended_as = undoing
            ending.end_instance(run, undoing.status, undoing.failure, code=undoing.code)
        return
    token.leaving = True
    if token.raw is not None and not map_again(run, token, token.raw):
        return
    token.leaving = True
    try:
        target = evaluation.decide(run, step) if step.conditions else step.next
    except EvaluationFailed as failed:
        ending.end_instance(run, InstanceStatus.FAILED, failed.reason, culprit=token)
        return
    token.leaving = False
    if target is None:
        branches.end_token(run, token)
    else:
        run.entering.append((token, target))


def map_again(run: AdvanceState, token: Token, position: int) -> bool:
    """A `retry` came back to what is done and was not mapped; whether the token still has to leave the step. Raises
    RawNeeded."""
    step = run.definition.steps[token.step]
    raw = run.inputs.raw.get(position)
    if raw is None:
        raise RawNeeded(position)
    try:
        if token.item is not None:
            kept, enough = for_each.decide_item(run, token, raw)
            for_each.forget_raw(run, token)
            token.leaving = False
            for_each.item_over(run, token, kept, HistoryKind.COMPLETED, enough=enough)
            return False
        assert step.callee is not None
        output = calls.result_of(run, step, step.callee, raw)
    except EvaluationFailed as failed:
        ending.mapping_failed(run, token, failed)
        return False
    for_each.forget_raw(run, token)
    output = recorder.merge(run, token, output)
    recorder.record(run, token, HistoryKind.OUTPUT_MAPPED, output=output)
    if step.compensation is not None and output is not None:
        run.out.item_outputs.append((position, output))
    return True
