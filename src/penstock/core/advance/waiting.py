"""What waits within an advance: signals that are kept for a step, waits for messages, and jobs whose workers wait.

A part of `advance`, its only user.
"""

from __future__ import annotations

from penstock.core.advance.effect import AuditRow, MessageWait, Timer
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import JobParked, MessageReceived
from penstock.core.advance.for_each import Items
from penstock.core.advance.recorder import SIGNALS_PER_ADVANCE_MAX
from penstock.core.expression import Expression
from penstock.core.graph.definition import AwaitedMessage, Step
from penstock.core.rules.correlation import KEY_MAX_CHARS
from penstock.core.rules.state import WAIT_TIMER, HistoryKind, Token, Trigger, move


class Waiting(Items):
    """One that knows what to do with tokens that wait."""

    def kept_signal(self, step: Step) -> tuple[int, bytes] | None:
        """The oldest one that is kept for the step."""
        signals = self.inputs.buffered.get(step.index, ())
        return next((signal for signal in signals if signal[0] not in self.used_signals), None)

    def may_take_signals(self) -> bool:
        """Whether there is room in this advance for one more, and all that follows it."""
        return (
            len(self.used_signals) < SIGNALS_PER_ADVANCE_MAX
            and self.out.steps_run <= self.inputs.max_automatic_steps // 2
            and self.work.may_go_on
        )

    def mark_taken(self, token: Token, signal: int) -> None:
        self.used_signals.add(signal)
        self.out.consumed_signals.append(signal)
        self.out.audit.append(AuditRow("SIGNALLED", token.id, token.step, detail="kept"))

    def subscribe(self, token: Token, step: Step, message: AwaitedMessage) -> None:
        """Wait for a message, from now on. Raises StepFailed for a key that is none."""
        key = self.evaluate(step, message.key, self.scope()) if isinstance(message.key, Expression) else message.key
        if isinstance(key, int) and not isinstance(key, bool):
            key = str(key)  # of a number as people write it
        if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX_CHARS:
            raise EvaluationFailed(
                f"step '{step.id}': correlationKey must be text of 1 to {KEY_MAX_CHARS} characters, or a whole number"
            )
        self.subscriptions[token.id, token.seq] = MessageWait(token.id, token.seq, message.name, key)

    def note_received(self, event: MessageReceived) -> None:
        self.out.received.append(event.message)
        token = self.tokens[event.token_id]
        self.out.audit.append(AuditRow("MESSAGE_RECEIVED", token.id, token.step, actor=event.by, detail=event.name))

    def park(self, token: Token, event: JobParked) -> None:
        """Its worker waits: the job comes back, as the next attempt, when the time or the signal has come."""
        step = self.definition.steps[token.step]
        self.record(token, HistoryKind.ATTEMPT_PARKED, worker=event.worker)
        self.dequeue(token)
        token.claimed_by = token.claimed_at = token.lease_until = None
        token.waits_for = event.signal
        move(token, Trigger.PARK)
        self.mark_changed(token)
        if event.until is not None:
            self.out.armed.append(Timer(event.until, token.id, token.seq, WAIT_TIMER))
        kept = None if event.signal is None else self.kept_signal(step)
        if kept is not None:
            self.mark_taken(token, kept[0])
            self.signalled(token, kept[1])

    def signalled(self, token: Token, output: bytes | None) -> None:
        if token.item is None:
            output = self.merge(token, output)
        else:
            self.tell_item(token, output)
            output = None
        self.record(token, HistoryKind.JOB_SIGNALLED, output=output)
        self.wake(token)

    def wake(self, token: Token) -> None:
        """A parked job goes back to the queue; the timer of its wait goes."""
        timer = (token.id, token.seq, WAIT_TIMER)
        self.out.armed = [armed for armed in self.out.armed if (armed.token_id, armed.seq, armed.index) != timer]
        self.out.fired.append(Timer(self.inputs.now, *timer))
        token.waits_for = None
        move(token, Trigger.WAKE)
        self.mark_changed(token)
        self.queue_again(token, self.definition.steps[token.step])
