"""What waits within an advance: signals that are kept for a step, waits for messages, and jobs whose workers wait.

A part of `advance`, its only user.
"""

from __future__ import annotations

from penstock.core.advance import evaluation, for_each, recorder
from penstock.core.advance.effect import AuditRow, MessageWait, Timer
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import JobParked, MessageReceived
from penstock.core.advance.recorder import SIGNALS_PER_ADVANCE_MAX, AdvanceState
from penstock.core.expression import Expression
from penstock.core.graph.definition import AwaitedMessage, Step
from penstock.core.rules.correlation import KEY_MAX_CHARS
from penstock.core.rules.state import WAIT_TIMER, HistoryKind, Token, Trigger, move


def kept_signal(run: AdvanceState, step: Step) -> tuple[int, bytes] | None:
    """The oldest one that is kept for the step."""
    signals = run.inputs.buffered.get(step.index, ())
    return next((signal for signal in signals if signal[0] not in run.used_signals), None)


def may_take_signals(run: AdvanceState) -> bool:
    """Return whether there is room in this advance for one more, and all that follows it."""
    return (
        len(run.used_signals) < SIGNALS_PER_ADVANCE_MAX
        and run.out.steps_run <= run.inputs.max_automatic_steps // 2
        and run.work.may_go_on
    )


def mark_taken(run: AdvanceState, token: Token, signal: int) -> None:
    run.used_signals.add(signal)
    run.out.consumed_signals.append(signal)
    run.out.audit.append(AuditRow("SIGNALLED", token.id, token.step, detail="kept"))


def subscribe(run: AdvanceState, token: Token, step: Step, message: AwaitedMessage) -> None:
    """Wait for a message, from now on. Raises EvaluationFailed for a key that is none."""
    key = (
        evaluation.evaluate(run, step, message.key, run.scope()) if isinstance(message.key, Expression) else message.key
    )
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)  # of a number as people write it
    if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX_CHARS:
        raise EvaluationFailed(
            f"step '{step.id}': correlationKey must be text of 1 to {KEY_MAX_CHARS} characters, or a whole number"
        )
    run.subscriptions[token.id, token.seq] = MessageWait(token.id, token.seq, message.name, key)


def mark_received(run: AdvanceState, event: MessageReceived) -> None:
    run.out.received.append(event.message)
    token = run.tokens[event.token_id]
    run.out.audit.append(AuditRow("MESSAGE_RECEIVED", token.id, token.step, actor=event.by, detail=event.name))


def park(run: AdvanceState, token: Token, event: JobParked) -> None:
    """Its worker waits: the job comes back, as the next attempt, when the time or the signal has come."""
    step = run.definition.steps[token.step]
    recorder.record(run, token, HistoryKind.ATTEMPT_PARKED, worker=event.worker)
    recorder.dequeue(run, token)
    token.claimed_by = token.claimed_at = token.lease_until = None
    token.waits_for = event.signal
    move(token, Trigger.PARK)
    recorder.mark_changed(run, token)
    if event.until is not None:
        run.out.armed.append(Timer(event.until, token.id, token.seq, WAIT_TIMER))
    kept = None if event.signal is None else kept_signal(run, step)
    if kept is not None:
        mark_taken(run, token, kept[0])
        signalled(run, token, kept[1])


def signalled(run: AdvanceState, token: Token, output: bytes | None) -> None:
    if token.item is None:
        output = recorder.merge(run, token, output)
    else:
        for_each.notify_item(run, token, output)
        output = None
    recorder.record(run, token, HistoryKind.JOB_SIGNALLED, output=output)
    wake(run, token)


def wake(run: AdvanceState, token: Token) -> None:
    """A parked job goes back to the queue; the timer of its wait goes."""
    timer = (token.id, token.seq, WAIT_TIMER)
    run.out.armed = [armed for armed in run.out.armed if (armed.token_id, armed.seq, armed.index) != timer]
    run.out.fired.append(Timer(run.inputs.now, *timer))
    token.waits_for = None
    move(token, Trigger.WAKE)
    recorder.mark_changed(run, token)
    recorder.queue_again(run, token, run.definition.steps[token.step])
