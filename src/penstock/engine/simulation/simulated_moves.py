"""What somebody who tries a definition lets happen, as the engine would bring it to `core.advance.simulation`.

A move is looked at as a call to the engine is, and refused in words where the call would be. What is due at once
happens by itself, and time passes in order: nothing that is due before is left out. Pure but for what bounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import msgspec

from penstock.core.advance.compensation import is_compensating
from penstock.core.advance.effect import Timer
from penstock.core.advance.event import (
    CancellationRequested,
    InstanceStarted,
    JobCompleted,
    JobFailed,
    RetryRequested,
    TaskCompleted,
)
from penstock.core.advance.recorder import MAX_WORK_STEPS
from penstock.core.advance.simulation import Simulation
from penstock.core.expression.work import Work
from penstock.core.graph.definition import Boundary, StepType
from penstock.core.parsing.start_of_definition import knowing
from penstock.core.rules.state import InstanceStatus, Token, TokenState
from penstock.errors import BadRequest
from penstock.wire.error_code import code_problem
from penstock.wire.simulation import Move

WORKER: Final = "try-it"
REASON: Final = "failed in Try it"
CHILD: Final = "child"
EVENTS_MAX: Final = 10_000
"""Timers that all moves together let fire."""
WRITTEN_MAX_BYTES: Final = 67_108_864
"""Of variables that all steps together write, all of which are kept."""
YEAR_MAX: Final = 9_000
"""Up to which the clock goes: timers of a century may be armed then."""
YEARS_MAX: Final = 100
"""That the clock goes on in one move."""


class MoveRefused(Exception):
    """The move is not possible; nothing has happened."""


class OutOfBudget(Exception):
    """The moves take more than they may; the last one is half done."""


class Deed(NamedTuple):
    """A move that was made, as a test would make it: at which step, at which of several open executions there, and how
    far the clock went."""

    move: Move
    step_id: str | None
    kind: StepType | None
    nth: int
    seconds: float


class Play:
    """Makes moves. ``spend`` is called before each event; it raises OutOfBudget."""

    def __init__(self, simulation: Simulation, spend: Callable[[], None]) -> None:
        self.simulation = simulation
        self._spend_time = spend
        self._fired = 0
        self._acts: dict[str, Callable[[Move, Token | None], None]] = {
            "complete": self._complete,
            "fail": self._fail,
            "signal": self._signal,
            "message": self._message,
            "fire": self._fire,
            "advance": self._advance,
            "cancel": self._cancel,
            "retry": self._retry,
        }

    def begin(self) -> None:
        """Start it, as the first start with its keys. Raises Refused where that would be refused, and OutOfBudget."""
        self._spend()
        try:
            self.simulation.apply(InstanceStarted(self._begins_at(), checked=True))
        except BadRequest as error:
            raise MoveRefused(error.reason) from None
        self._settle()

    def _begins_at(self) -> datetime | None:
        """As the definition asks for; None: at once. Raises BadRequest."""
        start, now = self.simulation.definition.start, self.simulation.now
        if start is None:
            return None
        rules = start.rules(knowing(self.simulation.variables, now, Work(MAX_WORK_STEPS)))
        return rules.begins_at(now) if rules.debounce is None else now + timedelta(seconds=rules.debounce.wait_s)

    def make(self, move: Move) -> Deed:
        """Let it happen. Raises Refused and OutOfBudget."""
        simulation, before = self.simulation, self.simulation.now
        if simulation.status is InstanceStatus.FAILED and move.do != "retry":
            raise MoveRefused("the instance has failed: only a retry is possible")
        if simulation.status not in (InstanceStatus.ACTIVE, InstanceStatus.FAILED):
            raise MoveRefused(f"the instance is {simulation.status.name} already")
        act = self._acts.get(move.do)
        if act is None:
            raise MoveRefused(f"do: must be one of {', '.join(self._acts)}")
        token = None if move.token_id is None else self._token(move)
        step = None if token is None else simulation.definition.steps[token.step]
        nth = 0 if token is None else [each.id for each in self._beside(token)].index(token.id)
        self._spend()
        act(move, token)
        self._settle()
        seconds = (simulation.now - before).total_seconds()
        return Deed(move, move.step_id if step is None else step.id, None if step is None else step.type, nth, seconds)

    def _token(self, move: Move) -> Token:
        try:
            token = self.simulation.tokens.get(int(move.token_id or "", 16))
        except ValueError:
            token = None
        if token is None or not (token.is_open or token.state is TokenState.DELAYED or self.simulation.is_map(token)):
            raise MoveRefused("tokenId: nothing is open there")
        step = self.simulation.definition.steps[token.step]
        if move.step_id not in (None, step.id):
            raise MoveRefused(f"stepId: the token stands at '{step.id}'")
        return token

    def _beside(self, token: Token) -> list[Token]:
        """What is open at its step."""
        if token.state is TokenState.DELAYED or self.simulation.is_map(token):
            return [token]
        return [each for each in self.simulation.open_tokens if each.step == token.step]

    # -- the acts

    def _complete(self, move: Move, token: Token | None) -> None:
        token = self._named(token)
        step, output = self.simulation.definition.steps[token.step], _output(move)
        if token.state is TokenState.CALLED and self._is_called(token):
            self.simulation.child_ended(token, InstanceStatus.COMPLETED, move.variables)
        elif token.state is TokenState.READY:
            self.simulation.claim_token(token, move.by or WORKER)
            self.simulation.apply(JobCompleted(token.id, move.by or WORKER, output))
        elif token.state is TokenState.PARKED and step.type is StepType.USER_TASK:
            self.simulation.apply(TaskCompleted(token.id, move.by, output))
        else:
            raise MoveRefused("there is nothing that could be completed")

    def _fail(self, move: Move, token: Token | None) -> None:
        token, code = self._named(token), move.error_code
        if code is not None and (wrong := code_problem(code)) is not None:
            raise MoveRefused(f"errorCode: {wrong}")
        reason = move.error or REASON
        if token.state is TokenState.CALLED and self._is_called(token):
            self.simulation.child_ended(token, InstanceStatus.FAILED, None, reason, code, CHILD)
        elif token.state is TokenState.READY:
            self.simulation.claim_token(token, WORKER)
            failed = JobFailed(token.id, WORKER, move.retryable, reason, None, code, _output(move))
            self.simulation.apply(failed)
        else:
            raise MoveRefused("there is nothing that could fail")

    def _cancel(self, move: Move, token: Token | None) -> None:
        if token is not None:
            if token.state is not TokenState.CALLED or not self._is_called(token):
                raise MoveRefused("there is no instance that could be cancelled")
            self.simulation.child_ended(token, InstanceStatus.CANCELLED, None, move.error, None, CHILD)
            return
        if move.compensate and is_compensating(self.simulation.definition, self.simulation.tokens.values()):
            raise MoveRefused("the instance is being compensated already")
        self.simulation.apply(CancellationRequested(move.error, move.compensate))

    def _signal(self, move: Move, token: Token | None) -> None:
        """The oldest wait takes it, as an engine decides."""
        steps = self.simulation.definition.steps
        step = self.simulation.definition.step(move.step_id or "") if token is None else steps[token.step]
        if step is None or step.type is not StepType.WAIT:
            raise MoveRefused("stepId: must be that of a WAIT")
        oldest = next((each for each in self.simulation.open_tokens if each.step == step.index), None)
        output = _output(move) or b"{}"
        if oldest is None or self.simulation.signals.get(step.index):  # those come first, and bring this one along
            self.simulation.keep_signal(step.index, output)
        else:
            self.simulation.apply(TaskCompleted(oldest.id, move.by, output))

    def _message(self, move: Move, token: Token | None) -> None:
        if not move.name or not move.correlation_key:
            raise MoveRefused("name, correlationKey: are required")
        self.simulation.publish(move.name, move.correlation_key, move.variables or {})

    def _fire(self, move: Move, token: Token | None) -> None:
        token = self._named(token)
        key = token.id, token.seq, move.index if move.index is not None else 0
        if key not in self.simulation.timers:
            raise MoveRefused("index: there is no such timer")
        while key in self.simulation.timers:
            self._fire_next()

    def _advance(self, move: Move, token: Token | None) -> None:
        due = self.simulation.next_due()
        if move.seconds is not None:
            if not 0 <= move.seconds <= YEARS_MAX * 366 * 86_400:
                raise MoveRefused(f"seconds: must be 0 to {YEARS_MAX} years")
            until = self.simulation.now + timedelta(seconds=move.seconds)
        elif due is None:
            raise MoveRefused("there is no timer to go on to")
        else:
            until = due.fire_at
        if until.year > YEAR_MAX:
            raise MoveRefused(f"seconds: that is after the year {YEAR_MAX}")
        while (due := self.simulation.next_due()) is not None and due.fire_at <= until:
            self._fire_next()
        self.simulation.now = max(self.simulation.now, until)

    def _retry(self, move: Move, token: Token | None) -> None:
        if self.simulation.status is not InstanceStatus.FAILED:
            raise MoveRefused("only what has failed can be retried")
        if self.simulation.snapshot is None:
            raise MoveRefused("nothing is left to retry: migrate or move the instance")
        self.simulation.apply(RetryRequested())

    # -- what happens by itself

    def _settle(self) -> None:
        while (due := self.simulation.next_due()) is not None and due.fire_at <= self.simulation.now:
            self._fire_next()

    def _fire_next(self) -> None:
        due = self.simulation.next_due()
        assert due is not None
        self._fired += 1
        if self._fired > EVENTS_MAX:
            raise OutOfBudget(f"more than {EVENTS_MAX} timers have fired")
        if due.fire_at.year > YEAR_MAX:
            raise OutOfBudget(f"that is after the year {YEAR_MAX}")
        self._spend()
        self.simulation.fire_timer(due)

    def _spend(self) -> None:
        """Before each event."""
        self._spend_time()
        if self.simulation.written_bytes > WRITTEN_MAX_BYTES:
            raise OutOfBudget(f"its steps have written more than {WRITTEN_MAX_BYTES} bytes of variables")

    def _named(self, token: Token | None) -> Token:
        if token is None:
            raise MoveRefused("tokenId: is required")
        return token

    def _is_called(self, token: Token) -> bool:
        return (token.id, token.seq) in self.simulation.calls

    # -- what is possible

    def possible(self, shown_max: int) -> list[Move]:
        """What can come next, in the order in which steps were entered; of open steps and of timers so many."""
        simulation = self.simulation
        if simulation.status is InstanceStatus.FAILED:
            return [Move(do="retry")] if simulation.snapshot is not None else []
        if simulation.status is not InstanceStatus.ACTIVE:
            return []
        found = [move for token in simulation.open_tokens[:shown_max] for move in self._possible_at(token)]
        timers = sorted(simulation.timers.values(), key=lambda one: (one.fire_at, one.seq, one.index))
        found += [self._fires(timer) for timer in timers[:shown_max]]
        found += [Move(do="advance")] if timers else []
        steps = simulation.definition.steps
        waiting = {token.step for token in simulation.open_tokens}
        waits = [step for step in steps if step.type is StepType.WAIT and step.index not in waiting]
        found += [Move(do="signal", step_id=step.id) for step in waits[:shown_max]]
        names = dict.fromkeys(step.message.name for step in steps if step.message is not None)
        found += [Move(do="message", name=name) for name in [*names][:shown_max]]
        found.append(Move(do="cancel"))
        undoing = is_compensating(simulation.definition, simulation.tokens.values())
        if not undoing and any(step.compensates is not None for step in steps):
            found.append(Move(do="cancel", compensate=True))
        return found

    def _possible_at(self, token: Token) -> list[Move]:
        step = self.simulation.definition.steps[token.step]
        there = partial(Move, token_id=f"{token.id:x}", step_id=step.id)
        if token.state is TokenState.CALLED:
            called = self._is_called(token)
            return [there(do="complete"), there(do="fail", retryable=False), there(do="cancel")] if called else []
        if token.state is TokenState.READY:
            again = [there(do="fail")] if token.failures < step.retry_count else []
            return [there(do="complete"), *again, there(do="fail", retryable=False)]
        if token.state is not TokenState.PARKED:
            return []
        if step.type is not StepType.WAIT:
            return [there(do="complete")]
        address = self.simulation.waits.get((token.id, token.seq))
        if address is None:
            return [there(do="signal")]
        return [there(do="message", name=address[0], correlation_key=address[1]), there(do="signal")]

    def _fires(self, timer: Timer) -> Move:
        step = self.simulation.definition.steps[self.simulation.tokens[timer.token_id].step]
        return Move(do="fire", token_id=f"{timer.token_id:x}", step_id=step.id, index=timer.index)


def target_of(play: Simulation, timer: Timer) -> tuple[str, bool] | None:
    """Where a boundary timer leads, and whether it ends its step; None for another kind of timer."""
    if timer.index < 0:
        return None
    boundary = play.definition.steps[play.tokens[timer.token_id].step].boundaries[timer.index]
    assert isinstance(boundary, Boundary)
    return play.definition.steps[boundary.target].id, boundary.interrupting


def _output(move: Move) -> bytes | None:
    return None if move.variables is None else msgspec.json.encode(move.variables)
