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

from penstock.core.advance.branches import Branches
from penstock.core.advance.calls import Calls, why_failed
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
from penstock.core.advance.recorder import Inputs, PositionsExhausted
from penstock.core.advance.repair import Mending
from penstock.core.advance.waiting import Waiting
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
    return _Run(definition, instance, tokens, variables, inputs).apply(event)


class _Run(Branches, Calls, Mending, Waiting):
    # -- events

    def apply(self, event: Event) -> Effects:
        match event:
            case InstanceStarted():
                self.start(event)
            case JobCompleted() | TaskCompleted() | MessageReceived():
                self.done(event)
            case JobFailed():
                self.job_failed(event)
            case JobParked():
                self.park(self.tokens[event.token_id], event)
            case JobSignalled():
                self.signalled(self.tokens[event.token_id], event.output)
            case JobDeadLettered():
                self.fail(self.tokens[event.token_id], f"lease expired {event.expiries} times", LEASE_EXPIRED)
            case TimerFired():
                self.timer_fired(self.tokens[event.token_id], event.index)
            case ChildEnded():
                self.child_ended(event)
            case StepGivenUp():
                self.fail(self.tokens[event.token_id], event.reason)
            case CancellationRequested():
                self.cancel(event.reason, undo=event.compensate)
            case RetryRequested() | StepSkipped() | TokenMoved():
                self.repair_by_hand(event)
            case _:
                assert_never(event)
        self.run()
        return self.finish()

    def start(self, event: InstanceStarted) -> None:
        at = event.at
        assert not self.tokens
        root = Token(
            id=self.instance.id,
            instance_id=self.instance.id,
            seq=0 if at is None else self.position(),
            step=0,
            state=TokenState.READY if at is None else TokenState.DELAYED,
            entered_at=self.inputs.now,
        )
        self.add(root)
        if at is None:
            self.begins, self.checked = True, event.checked
            self.entering.append((root, 0))
        else:
            self.out.armed.append(Timer(at, root.id, root.seq, START_TIMER))

    def done(self, event: JobCompleted | TaskCompleted | MessageReceived) -> None:
        if isinstance(event, MessageReceived):
            self.note_received(event)
        by = event.worker if isinstance(event, JobCompleted) else event.by
        self.finish_step(self.tokens[event.token_id], worker=by, output=event.output)

    def job_failed(self, event: JobFailed) -> None:
        token = self.tokens[event.token_id]
        step = self.definition.steps[token.step]
        is_over = token.failures >= step.retry_count
        again = event.retryable and not is_over and step.may_retry(event.code)
        if not again or step.catch_named(event.code) is not None:
            code = event.code or (RETRIES_EXHAUSTED if event.retryable and is_over else NOT_RETRYABLE)
            self.fail(token, event.error, code, worker=event.worker, data=event.data)
            return
        delay_s = event.retry_after_s
        if delay_s is None:
            try:
                delay_s = backoff_s(self.backoff_of(token, step), token.failures + 1, self.inputs.jitter)
            except EvaluationFailed as failed:
                self.fail(token, failed.reason, worker=event.worker)
                return
        self.record(token, HistoryKind.ATTEMPT_FAILED, worker=event.worker, reason=event.error, code=event.code)
        self.dequeue(token)
        token.failures += 1
        token.claimed_by = token.claimed_at = token.lease_until = None
        self.mark_changed(token)
        if delay_s > 0:
            move(token, Trigger.BACK_OFF)
            self.arm(token, RETRY_TIMER, delay_s)
        else:
            move(token, Trigger.RETRY)
            self.queue_again(token, step)

    def timer_fired(self, token: Token, index: int) -> None:
        step = self.definition.steps[token.step]
        fired = Timer(self.inputs.now, token.id, token.seq, index)
        kept = self.kept_signal(step) if step.type is StepType.WAIT and index != START_TIMER else None
        if index == START_TIMER:
            self.out.fired.append(fired)
            move(token, Trigger.BEGIN)
            self.begins = True
            self.entering.append((token, 0))
        elif kept is not None:  # whatever is due: the signal came before the wait was entered
            self.take_signal(token, kept)
        elif index == CONTINUE_TIMER:  # of a wait: another token took the rest
            self.out.fired.append(fired)
            if self.is_map(token):
                self.go_on(token)
            elif step.callee is not None:
                self.go_on_calling(token, step, step.callee)
        elif index == RETRY_TIMER:
            self.out.fired.append(fired)
            move(token, Trigger.BACKOFF_OVER)
            self.mark_changed(token)
            self.queue_again(token, step)
        elif index == WAIT_TIMER and step.type is StepType.SERVICE_TASK:
            self.wake(token)
        elif index == WAIT_TIMER:
            self.out.audit.append(AuditRow("TIMER_FIRED", token.id, token.step))
            self.finish_step(token)
        else:
            boundary = step.boundaries[index]
            assert isinstance(boundary, Boundary)
            self.out.audit.append(AuditRow("TIMER_FIRED", token.id, token.step, detail=boundary.duration))
            if boundary.interrupting:
                if self.is_map(token):
                    self.close_map(token, INTERRUPTED_REASON)
                self.close(token, HistoryKind.INTERRUPTED, reason=INTERRUPTED_REASON)
                self.entering.append((token, boundary.target))
            else:
                self.out.fired.append(fired)
                side = self.new_token(boundary.target, side=True)
                self.entering.append((side, boundary.target))

    def go_on_calling(self, token: Token, step: Step, callee: Callee) -> None:
        try:
            self.make_call(token, self.plan_call(token, step, callee))
        except EvaluationFailed as failed:
            self.fail(token, failed.reason, failed.code)

    def child_ended(self, event: ChildEnded) -> None:
        token = self.tokens[event.token_id]
        step = self.definition.steps[token.step]
        assert step.callee is not None
        self.returned = token.id
        if event.status is not InstanceStatus.COMPLETED:
            self.fail(token, *why_failed(event))
            return
        if token.item is not None:
            self.finish_step(token, output=event.result)
            return
        try:
            output = self.result_of(step, step.callee, event.result)
        except EvaluationFailed as failed:
            self.keep_raw(token, HistoryKind.COMPLETED, failed, event.result)
            return
        self.finish_step(token, output=output)

    # -- moving through the graph

    def run(self) -> None:
        """Enter steps until every token waits for somebody."""
        while self.entering and not self.out.ended:
            token, index = self.entering.popleft()
            if token.leaving:
                self.leave(token)
                continue
            try:
                self.enter(token, index)
            except EvaluationFailed as failed:
                self.fail(token, failed.reason, failed.code)
            except TooMuchWork as error:
                self.fail(token, f"step '{self.definition.steps[token.step].id}': {error}")

    def enter(self, token: Token, index: int) -> None:
        step = self.definition.steps[index]
        if token.item is None and step.compensates is None and not self.goes_onto(token, step):
            return
        self.begin_execution(token, step)
        self.work.spend(STEP_WORK)
        if self.begins or (self.out.reopened and token.is_root and index == 0):  # its turn may be what failed it
            self.begins = False
            self.turn_of_start(token, step)
        if step.for_each is not None and token.item is None:
            move(token, Trigger.FORK)
            self.begin_map(token, step, step.for_each)
            return
        kind = step.type
        match kind:
            case StepType.SERVICE_TASK:
                if step.turn is not None:
                    self.turn_of_job(token, step, step.turn)
                self.time_job(token, step)
                delays_s = self.boundary_delays_s(token, step)
                move(token, Trigger.ENTER_JOB)
                self.queue(token, step)
                self.arm_all(token, delays_s)
            case StepType.USER_TASK:
                delays_s = self.boundary_delays_s(token, step)
                move(token, Trigger.ENTER_PARKED)
                self.arm_all(token, delays_s)
            case StepType.CALL_ACTIVITY:
                assert step.callee is not None
                self.enter_call(token, step, step.callee)
            case StepType.WAIT:
                self.wait(token, step)
            case StepType.JOIN_GATEWAY:
                raise EvaluationFailed(
                    f"JoinWithoutGateway: step '{step.id}' was reached by a branch of no gateway of its own"
                )
            case (
                StepType.DECISION
                | StepType.TRANSFORMATION
                | StepType.PARALLEL_GATEWAY
                | StepType.COMPENSATE
                | StepType.END
            ):
                self.automatic(token, step, kind)
            case _:
                assert_never(kind)

    def automatic(self, token: Token, step: Step, kind: Automatic) -> None:
        self.count_automatic(step)
        match kind:
            case StepType.DECISION:
                target = self.decide(step)
                self.record(token, HistoryKind.COMPLETED)
                self.entering.append((token, target))
            case StepType.TRANSFORMATION:
                output = self.assign(step, step.transformations, self.scope())
                self.record(token, HistoryKind.COMPLETED, output=output)
                self.count_delta(token, output)
                assert step.next is not None
                self.entering.append((token, step.next))
            case StepType.PARALLEL_GATEWAY:
                self.work.spend(STEP_WORK * len(step.branches))
                self.record(token, HistoryKind.COMPLETED)
                move(token, Trigger.FORK)
                token.pending, token.arrived = len(step.branches), 0
                for head in step.branches:
                    self.entering.append((self.new_token(head, parent_id=token.id, side=token.side), head))
            case StepType.COMPENSATE:
                self.compensate(token, step)
            case StepType.END if step.error_code is not None:
                self.fail(token, f"step '{step.id}' ended it with the error {step.error_code}", step.error_code)
            case StepType.END:
                result = None if step.result is None else self.assign(step, step.result, dict(self.scope()))
                self.record(token, HistoryKind.COMPLETED)
                self.complete(token, result)
            case _:
                assert_never(kind)

    def wait(self, token: Token, step: Step) -> None:
        try:
            ends_at = wait_ends_at(step, lambda source: self.evaluate(step, source, self.scope()), self.inputs.now)
        except WaitError as error:
            raise EvaluationFailed(f"step '{step.id}': {error}") from None
        delays_s = self.boundary_delays_s(token, step)
        if step.message is not None:
            self.subscribe(token, step, step.message)
        move(token, Trigger.ENTER_PARKED)
        kept = self.kept_signal(step)
        if kept is not None and self.may_take_signals():
            self.take_signal(token, kept)
            return
        if kept is not None:
            self.arm(token, CONTINUE_TIMER, 0)
        if ends_at is not None:
            self.out.armed.append(Timer(ends_at, token.id, token.seq, WAIT_TIMER))
        self.arm_all(token, delays_s)

    def take_signal(self, token: Token, signal: tuple[int, bytes]) -> None:
        """What follows a kept signal is bounded as if it came now: its steps and its work are counted from here."""
        id, output = signal
        self.mark_taken(token, id)
        self.out.steps_run += 1
        self.steps_max = self.out.steps_run + self.inputs.max_automatic_steps
        self.work.begin_anew()
        self.finish_step(token, output=output)

    def finish_step(self, token: Token, *, worker: str | None = None, output: bytes | None = None) -> None:
        """A task is done. Its delta is merged before its conditions are read; of an item that is no delta."""
        if token.item is not None:
            self.finish_item(token, HistoryKind.COMPLETED, worker=worker, output=output)
            return
        output = self.merge(token, output)
        handler = self.definition.steps[token.step].compensates is not None
        kind = HistoryKind.COMPENSATED if handler else HistoryKind.COMPLETED
        self.close(token, kind, worker=worker, output=output)
        self.leave(token)

    def leave(self, token: Token) -> None:
        """Go where a step that is done leads: conditions first, then `nextStep`, else a dead end.

        When no condition holds, the instance fails and the work stays done: `retry` comes back to here. Likewise where
        the result of a call, or of an item, could not be mapped.
        """
        step = self.definition.steps[token.step]
        if step.compensates is not None:
            undoing = self.handler_done(token)
            if undoing is not None:
                self.out.ended_as = undoing
                self.end_instance(undoing.status, undoing.failure, code=undoing.code)
            return
        token.leaving = True
        if token.raw is not None and not self.map_again(token, token.raw):
            return
        token.leaving = True
        try:
            target = self.decide(step) if step.conditions else step.next
        except EvaluationFailed as failed:
            self.end_instance(InstanceStatus.FAILED, failed.reason, culprit=token)
            return
        token.leaving = False
        if target is None:
            self.end_token(token)
        else:
            self.entering.append((token, target))

    def map_again(self, token: Token, position: int) -> bool:
        """A `retry` came back to what is done and was not mapped; whether the token still has to leave the step. Raises
        RawNeeded."""
        step = self.definition.steps[token.step]
        raw = self.inputs.raw.get(position)
        if raw is None:
            raise RawNeeded(position)
        try:
            if token.item is not None:
                kept, enough = self.judge_item(token, raw)
                self.forget_raw(token)
                token.leaving = False
                self.item_over(token, kept, HistoryKind.COMPLETED, enough=enough)
                return False
            assert step.callee is not None
            output = self.result_of(step, step.callee, raw)
        except EvaluationFailed as failed:
            self.mapping_failed(token, failed)
            return False
        self.forget_raw(token)
        output = self.merge(token, output)
        self.record(token, HistoryKind.OUTPUT_MAPPED, output=output)
        if step.compensation is not None and output is not None:
            self.out.item_outputs.append((position, output))
        return True
