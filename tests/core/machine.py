"""One instance, advanced in memory: does with outcomes what store and engine do, and checks each one on the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.core.advance.compensation import compensating
from penstock.core.advance.effect import Effects
from penstock.core.advance.event import (
    CancellationRequested,
    Event,
    InstanceStarted,
    JobCompleted,
    JobDeadLettered,
    JobFailed,
    JobParked,
    JobSignalled,
    RetryRequested,
    TaskCompleted,
)
from penstock.core.advance.recorder import MAX_WORK_STEPS
from penstock.core.advance.simulation import Simulation
from penstock.core.graph.definition import Definition, Step, StepType
from penstock.core.parsing.parsing import parse_definition
from penstock.core.rules.state import (
    CLOSING_KINDS,
    START_TIMER,
    WAIT_TIMER,
    HistoryKind,
    InstanceStatus,
    Token,
    TokenState,
    Trigger,
    move,
)
from penstock.testing.definitions import Json

START = datetime(2031, 5, 4, 12, tzinfo=UTC)
INSTANCE = 1000


class Machine(Simulation):
    """Starts at once. Step ids name tokens: of several on a step, the one that entered first."""

    POSITIONS = 3
    """Too few, to be asked for more."""

    def __init__(
        self,
        definition: Json | Definition,
        variables: Json | None = None,
        *,
        max_work: int = MAX_WORK_STEPS,
        begins: datetime | None = None,
        **inputs: Any,
    ) -> None:
        parsed = definition if isinstance(definition, Definition) else parse_definition(definition)
        super().__init__(parsed, variables or {}, START, instance=INSTANCE, max_work=max_work, **inputs)
        self.seen_tokens: list[Token] = []
        self.open_twice = False
        self.last = self.apply(InstanceStarted(begins))

    # -- events

    def apply(self, event: Event, **inputs: Any) -> Effects:
        self.now += timedelta(seconds=1)
        outcome = super().apply(event, **inputs)
        self.check()
        self.open_twice |= len(self.open) != len(set(self.open))
        self.last = outcome
        return outcome

    @property
    def reported(self) -> list[Json]:
        """What the jobs of open handlers are told, in order of entry."""
        by_token = {token: position for position, token in self.handlers.items()}
        found: list[Json] = []
        for token in sorted(self.tokens.values(), key=lambda token: token.seq):
            if self.definition.steps[token.step].compensates is not None:
                [row] = [row for row in self.history if row.position == by_token[token.id]]
                found.append(msgspec.json.decode(compensating(self.definition, self.done(row)))["compensating"])
        return found

    def complete(self, step: str, output: Json | None = None, worker: str = "w") -> Effects:
        token = self.held(step, worker)
        return self.apply(JobCompleted(token.id, worker, None if output is None else msgspec.json.encode(output)))

    def fail(
        self,
        step: str,
        error: str = "boom",
        *,
        retryable: bool = True,
        after: float | None = None,
        code: str | None = None,
        data: Json | None = None,
    ) -> Effects:
        given = None if data is None else msgspec.json.encode(data)
        return self.apply(JobFailed(self.held(step).id, "w", retryable, error, after, code, given))

    def park(self, step: str, *, seconds: float | None = None, signal: str | None = None) -> Effects:
        until = None if seconds is None else self.now + timedelta(seconds=seconds)
        return self.apply(JobParked(self.held(step).id, "w", until, signal))

    def signal_job(self, step: str, output: Json | None = None) -> Effects:
        return self.apply(JobSignalled(self.at(step).id, None if output is None else msgspec.json.encode(output)))

    def dead_letter(self, step: str, expiries: int = 10) -> Effects:
        return self.apply(JobDeadLettered(self.held(step).id, expiries))

    def finish(self, step: str, output: Json | None = None, by: str | None = None) -> Effects:
        """Complete a user task, or signal a wait."""
        token = self.at(step)
        assert token.state is TokenState.PARKED
        return self.apply(TaskCompleted(token.id, by, None if output is None else msgspec.json.encode(output)))

    def fire(self, step: str, index: int = 0) -> Effects:
        token = self.at(step)
        return self.fire_timer(self.timers[token.id, token.seq, index])

    def cancel(self, reason: str | None = None, *, compensate: bool = False) -> Effects:
        return self.apply(CancellationRequested(reason, compensate))

    def closed_by_failure(self) -> list[Token]:
        """Of a FAILED instance: what stood open, of a forEach the whole."""
        assert self.snapshot is not None
        return [t for t in self.snapshot if (t.is_open and t.item is None) or self.is_map(t)]

    def retry(self) -> Effects:
        return self.apply(RetryRequested())

    # -- what the store does between advances

    def claim(self, step: str, worker: str = "w") -> Token:
        return self.claim_token(next(t for t in self.all_at(step) if t.state is TokenState.READY), worker)

    def expire(self, step: str) -> Token:
        return self.expire_token(self.at(step))

    def expire_token(self, token: Token) -> Token:
        move(token, Trigger.LEASE_EXPIRED)
        token.expiries += 1
        token.queued = next(self.positions)
        self.ready.add((token.id, token.place))
        return token

    def unqueue(self, token: Token) -> None:
        self.ready.remove((token.id, token.place))

    def held(self, step: str, worker: str = "w") -> Token:
        """The job under lease, claimed now if nobody has; one whose lease expired stays in the queue."""
        token = self.at(step)
        if token.state is TokenState.READY and token.claimed_by is None:
            return self.claim(step, worker)
        return token

    @staticmethod
    def encode(output: Json) -> bytes:
        return msgspec.json.encode(output)

    def buffer(self, step: str, output: Json) -> None:
        self.keep_signal(self.step(step).index, msgspec.json.encode(output))

    # -- looking

    def step(self, step: str) -> Step:
        found = self.definition.step(step)
        assert found is not None, step
        return found

    def all_at(self, step: str) -> list[Token]:
        index = self.step(step).index
        return [token for token in self.open_tokens if token.step == index]

    def at(self, step: str) -> Token:
        found = self.all_at(step)
        assert found, f"nothing open at {step}; open: {self.open}"
        return found[0]

    @property
    def open(self) -> list[str]:
        """Ids of open steps in order of entry; one twice when it is open twice."""
        return [self.definition.steps[token.step].id for token in self.open_tokens]

    @property
    def failure(self) -> str | None:
        return self.instance.failure

    def edit(self, given: Json, removed: str) -> None:
        """As somebody changes the variables."""
        self.variables = {**{k: v for k, v in self.variables.items() if k != removed}, **given}

    def armed(self, step: str) -> list[int]:
        token = self.at(step)
        return sorted(index for id, seq, index in self.timers if (id, seq) == (token.id, token.seq))

    # -- the rows

    def _take(self, out: Effects) -> None:
        self.seen_tokens += out.inserted
        assert self.tokens.keys().isdisjoint(token.id for token in out.inserted)
        assert self.tokens.keys() >= {token.id for token in out.updated}
        types = {token.id: self.definition.steps[token.step].job_type for token in (*out.inserted, *out.updated)}
        left = self.ready - {(job.token_id, job.place) for job in out.dequeued}
        queued = [(job.token_id, job.place) for job in out.queued]
        assert len({*queued}) == len(queued)
        assert left.isdisjoint(queued)
        assert all(job.job_type == types[job.token_id] for job in out.queued)
        armed = {key for key in self.timers if key[:2] not in out.disarmed}
        for timer in out.fired:
            key = timer.token_id, timer.seq, timer.index
            assert key in armed or key[:2] in out.disarmed or timer.index == WAIT_TIMER
            armed.discard(key)
        assert armed.isdisjoint((timer.token_id, timer.seq, timer.index) for timer in out.armed)
        for undone in out.undone:
            gone = self.handlers.get(undone.position)
            assert gone is None or gone in out.deleted, "an execution is undone twice"
        assert out.undoing is None or self.undoing is None
        assert out.ended_as in (None, self.undoing)
        assert len(set(out.consumed_signals)) == len(out.consumed_signals)
        if out.maps is not None:
            results = {key for key in self.results if key[0] not in out.maps.ended}
            assert results.isdisjoint(out.maps.results), "an item was collected twice"
        super()._take(out)

    def _check_maps(self) -> None:
        """Items under way are different ones, none is lost, and what is collected is of items that were done."""
        steps = self.definition.steps
        open_maps = {token.id: token for token in self.wholes}
        assert all(row.item is None or steps[row.step].for_each is not None for row in self.history)
        if self.status is InstanceStatus.ACTIVE:
            assert open_maps.keys() == self.maps.keys()
        for id, token in open_maps.items():
            state, each = self.maps[id], steps[token.step].for_each
            assert each is not None
            items = [t.item for t in self.tokens.values() if t.parent_id == id]
            assert len(items) == len(set(items)) == token.pending - token.arrived <= each.parallel
            assert all(item is not None and item < state.next for item in items)
            assert state.next <= state.total
            collected = {item for map_id, item in self.results if map_id == id}
            assert collected.isdisjoint(items)
            done = set(range(state.next)) - set(items)
            assert collected == (done if each.collect or (each.into and each.collects_errors) else set())
            assert state.failed <= len(done)
            assert ((id, token.seq, -3) in self.timers) is (token.arrived == 1)

    def check(self) -> None:
        """What must be true of the rows after each event; the names are those of testing/invariants.py."""
        tokens = self.tokens.values()
        active = self.status is InstanceStatus.ACTIVE
        assert self.ready == {(t.id, t.place) for t in tokens if t.state is TokenState.READY}
        assert (INSTANCE in self.tokens) is active
        assert active or not (self.tokens or self.timers or self.ready)
        self._check_maps()
        open_now = {(t.id, t.seq): t for t in tokens if t.is_open or t.id in self.maps}
        delayed = {(t.id, t.seq, START_TIMER) for t in tokens if t.state is TokenState.DELAYED}
        assert delayed <= self.timers.keys()
        assert {key[:2] for key in self.timers.keys() - delayed} <= open_now.keys()
        for (id, seq), token in open_now.items():
            step = self.definition.steps[token.step]
            armed = {index for timer_id, timer_seq, index in self.timers if (timer_id, timer_seq) == (id, seq)}
            timers = [] if token.item is not None else step.timers
            assert {n for n, boundary in timers if boundary.interrupting} <= armed
            assert (-1 in armed) is (token.state is TokenState.BACKOFF)
            if step.type is StepType.WAIT:
                assert (-2 in armed) is ((step.duration or step.until) is not None)
            else:
                assert -2 not in armed or token.state is TokenState.PARKED
            assert token.waits_for is None or token.state is TokenState.PARKED
            assert (-3 in armed) or not (step.type is StepType.WAIT and self.signals.get(step.index))
        closed = [(h.token_id, h.seq) for h in self.history if h.kind in CLOSING_KINDS]
        assert len(closed) == len(set(closed)), "an execution was closed twice"
        assert not open_now.keys() & set(closed), "an open execution was closed"
        assert {h.position for h in self.history}.isdisjoint(t.seq for t in tokens)
        assert len({h.position for h in self.history}) == len(self.history)
        waiting = {(t.id, t.seq) for t in tokens if t.state is TokenState.CALLED}
        late = {key for key in waiting if (*key, -3) in self.timers}
        assert self.calls.keys() == waiting - late
        for token in tokens:
            arrived = token.arrived if token.id in self.maps else 0
            assert token.pending == arrived + sum(other.parent_id == token.id for other in tokens)
            assert (token.state is TokenState.FORKED) is (token.pending > 0)
            assert token.state is not TokenState.ENDED or token.is_root
            assert token.waits_for is None or token.state is TokenState.PARKED
        assert all(h.kind is not HistoryKind.COMPLETED or h.reason is None for h in self.history)
        handlers = {t.id for t in tokens if self.definition.steps[t.step].compensates is not None}
        assert handlers <= set(self.handlers.values())
