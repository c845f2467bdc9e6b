"""One simulated instance: the rows (`tests.core.machine`) and the independent token game, which have to agree.

What is applied here is applied atomically, as a transaction under the instance's locks is. `Call` items go through the
fence (`core.rules.fencing`) on what the rows say at that moment; what the fence refuses must change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

from penstock.core.advance.effect import Effects
from penstock.core.advance.event import JobCompleted, JobDeadLettered, JobFailed, TaskCompleted, TimerFired
from penstock.core.graph.definition import StepType
from penstock.core.rules.fencing import CallKind, ExecutionState, FenceDecision, FenceRequest, decide_fence
from penstock.core.rules.state import (
    CLOSING_KINDS,
    START_TIMER,
    HistoryKind,
    InstanceStatus,
    Token,
    TokenState,
    Trigger,
    move,
)
from penstock.testing.definitions import Json
from penstock.testing.random_definitions import START_VARIABLES
from tests.core.machine import START, Machine
from tests.model.moves import MAX_AUTOMATIC, MAX_WORK
from tests.model.reference_model import ReferenceModel
from tests.model.test_games_in_memory import compare, open_tokens
from tests.simulation.queue import Queue

EXPIRIES_MAX = 4
OK = (FenceDecision.DONE, FenceDecision.ALREADY)
Job = tuple[int, int]
"""(token, seq): one step execution."""


class History:
    """One instance and what is known of it. ``events`` counts what was applied."""

    def __init__(self, body: Json, queue: Queue, delay_s: float | None = None) -> None:
        """``delay_s``: it begins so much later."""
        begins = None if delay_s is None else START + timedelta(seconds=delay_s)
        self.machine = Machine(
            body, START_VARIABLES, max_work=MAX_WORK, max_automatic_steps=MAX_AUTOMATIC, begins=begins
        )
        self._body = body
        self.delayed = begins is not None
        self._queue = queue
        queue.holding.append(lambda: sum(token.held is not None for token in self.machine.tokens.values()))
        self._game: ReferenceModel | None = None
        self.events = 0
        self.retries = 0
        self.failed: dict[tuple[Job, str], int] = {}
        """The attempt of the latest `fail` that was applied, by execution and worker."""
        self.answers: dict[tuple[Job, int], set[bool]] = defaultdict(set)
        """For completions that named their attempt: were they told that it was taken?"""
        self.done: set[tuple[Job, str]] = set()
        """What workers did, whether they could tell it or not. Without the attempt: a late report that names none may
        complete a later attempt of the same worker."""
        if begins is None:
            self._begin()

    def _begin(self) -> None:
        self._game = ReferenceModel(self._body, START_VARIABLES, self.machine.now, MAX_AUTOMATIC, MAX_WORK)
        self._agree()

    @property
    def begun(self) -> bool:
        return self._game is not None

    @property
    def game(self) -> ReferenceModel:
        assert self._game is not None, "it has not begun"
        return self._game

    @property
    def status(self) -> InstanceStatus:
        return self.machine.status

    def at(self, seconds: float) -> None:
        """The time of what comes next; an event takes the machine a second further."""
        self.machine.now = max(self.machine.now, START + timedelta(seconds=seconds))

    def token(self, job: Job) -> Token | None:
        """The token, while it stands on this very execution."""
        found = self.machine.tokens.get(job[0])
        return found if found is not None and found.seq == job[1] and found.is_open else None

    def place(self, token: Token) -> int:
        return [each.id for each in open_tokens(self.machine)].index(token.id)

    def ready(self) -> list[Token]:
        """Jobs in the queue, oldest first."""
        waiting = [token for token in open_tokens(self.machine) if token.state is TokenState.READY]
        return sorted(waiting, key=lambda token: (token.priority, token.place))

    def claim(self, worker: str, lease_s: float) -> Token | None:
        """Lease the first job that its queue lets begin."""
        token = next((each for each in self.ready() if self._queue.room(each.flow_key)), None)
        if token is not None:
            self.machine.claim_token(token, worker)
            token.held = self._queue.take(token.flow_key)
            token.lease_until = self.machine.now + timedelta(seconds=lease_s)
        return token

    # -- calls of workers

    def call(self, call: FenceRequest, job: Job, output: Json, *, retryable: bool = True) -> FenceDecision:
        """Judge a call and carry it out if it passes."""
        decision = decide_fence(call, self._facts(job, call.worker))
        if decision is FenceDecision.APPLY:
            self._carry_out(call, job, output, retryable)
            decision = FenceDecision.DONE
        if call.kind is CallKind.COMPLETE and call.attempt is not None and decision in (*OK, FenceDecision.LEASE_LOST):
            self.answers[job, call.attempt].add(decision in OK)
        return decision

    def _facts(self, job: Job, worker: str) -> ExecutionState:
        closed = [row for row in self.machine.history if (row.token_id, row.seq) == job and row.kind in CLOSING_KINDS]
        token = self.token(job)
        return ExecutionState(
            instance=self.status,
            closed=closed[0].kind if closed else None,
            closed_attempt=closed[0].attempt if closed else 0,
            state=None if token is None else token.state,
            holder=None if token is None else token.claimed_by,
            attempt=0 if token is None else token.attempt,
            failed_attempt=self.failed.get((job, worker)),
        )

    def _carry_out(self, call: FenceRequest, job: Job, output: Json, retryable: bool) -> None:
        token = self.token(job)
        assert token is not None
        place = self.place(token)
        match call.kind:
            case CallKind.HEARTBEAT:
                if token.state is TokenState.READY:
                    move(token, Trigger.HEARTBEAT)
                    self.machine.unqueue(token)
                    token.held = self._queue.take(token.flow_key, unasked=True)
                token.lease_until = self.machine.now + timedelta(seconds=5)
            case CallKind.COMPLETE:
                self._apply(JobCompleted(token.id, call.worker, self.machine.encode(output)))
                self.game.complete(place, dict(output))
            case _:
                self.failed[job, call.worker] = token.attempt
                self._apply(JobFailed(token.id, call.worker, retryable, "boom"))
                self.game.fail(place, "boom", retryable=retryable)
        self._agree()

    # -- what comes from elsewhere; each False when there is nothing (left) to do

    def finish_task(self, job: Job, output: Json) -> bool:
        """A user task completed, a wait signalled: the oldest execution of its step."""
        token = self.token(job)
        if self.status is not InstanceStatus.ACTIVE or token is None or token.state is not TokenState.PARKED:
            return False
        token = min((each for each in open_tokens(self.machine) if each.step == token.step), key=lambda each: each.seq)
        place = self.place(token)
        self._apply(TaskCompleted(token.id, None, self.machine.encode(output)))
        self.game.complete(place, dict(output))
        self._agree()
        return True

    def fire(self, timer: tuple[int, int, int]) -> bool:
        """A due timer."""
        armed = self.machine.timers.get(timer)
        if armed is None or armed.fire_at > self.machine.now:
            return False
        if timer[2] == START_TIMER:
            self._apply(TimerFired(timer[0], timer[2]))
            self._begin()
            return True
        token = self.token(timer[:2])
        wholes = [(whole.id, whole.seq) for whole in self.machine.wholes]
        if token is None and timer[:2] not in wholes:
            return False
        place = wholes.index(timer[:2]) if token is None else self.place(token)
        self._apply(TimerFired(timer[0], timer[2]))
        (self.game.fire_map if token is None else self.game.fire)(place, timer[2])
        self._agree()
        return True

    def expire(self, job: Job, attempt: int) -> bool:
        """A lease that ended: back into the queue, or dead-lettered."""
        token = self.token(job)
        if token is None or token.state is not TokenState.LOCKED or token.attempt != attempt:
            return False
        assert token.lease_until is not None
        if token.lease_until > self.machine.now:
            return False
        self.machine.expire_token(token)
        if token.held is not None:
            self._queue.give_back(token.held, token.flow_key or "")
            token.held = None
        if token.expiries >= EXPIRIES_MAX:
            place = self.place(token)
            self._apply(JobDeadLettered(token.id, token.expiries))
            reason = f"lease expired {EXPIRIES_MAX} times"
            self.game.fail(place, reason, retryable=False, code="Penstock.LeaseExpired")
            self._agree()
        return True

    def cancel(self) -> bool:
        if self.status is not InstanceStatus.ACTIVE:
            return False
        self._note(self.machine.cancel("cancelled"))
        if self.begun:
            self.game.cancel()
            self._agree()
        return True

    def retry(self) -> bool:
        if self.status is not InstanceStatus.FAILED or not self.game.can_retry:
            return False  # what was undone can't go on
        self.retries += 1
        self._note(self.machine.retry())
        self.game.retry()
        self._agree()
        return True

    def keep_signal(self, step: str, output: Json) -> bool:
        """A signal before its wait is open."""
        about = self.machine.step(step)
        if not self.begun:
            return False
        if self.status is not InstanceStatus.ACTIVE or about.type is not StepType.WAIT or self.machine.all_at(step):
            return False
        self.machine.buffer(step, output)
        self.game.keep_signal(step, dict(output))
        self._agree()
        return True

    # -- agreement

    def _apply(self, event: Any) -> None:
        self._note(self.machine.apply(event))

    def _note(self, out: Effects) -> None:
        self.events += 1
        for slots in out.released:
            self._queue.give_back(slots.held, slots.flow_key)
        if self.begun:
            self.game.now = self.machine.now

    def _agree(self) -> None:
        compare(self.machine, self.game)
        holding = [token for token in self.machine.tokens.values() if token.held is not None]
        assert all(token.state is TokenState.LOCKED for token in holding), "a place is kept by what does not run"
        self._queue.check()

    def check_end(self) -> None:
        """What must be true of the whole once nothing more happens."""
        assert self.status is not InstanceStatus.ACTIVE or self.machine.open == [], "a wake-up was lost"
        # a completion may itself fail its instance (no condition is true): repeats are then told what became of that
        failed = {(row.token_id, row.seq) for row in self.machine.history if row.kind is HistoryKind.FAILED}
        contradicted = {
            key: reported for key, reported in self.answers.items() if len(reported) > 1 and key[0] not in failed
        }
        assert not contradicted, f"answered twice, differently: {contradicted}"
        taken = defaultdict(set)
        for (job, attempt), reported in self.answers.items():
            if reported == {True}:
                taken[job].add(attempt)
        assert all(len(attempts) == 1 for attempts in taken.values()), f"several attempts were taken: {taken}"
        for row in self.machine.history:
            step = self.machine.definition.steps[row.step]
            if row.kind is HistoryKind.COMPLETED and step.type is StepType.SERVICE_TASK and row.items is None:
                assert ((row.token_id, row.seq), row.worker) in self.done, f"nobody did {row}"
