"""One instance, advanced in memory: does with outcomes what store and engine do, and checks each one on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec

from penstock.core.advance import Inputs, PositionsExhausted, advance
from penstock.core.compensation import compensating
from penstock.core.completion import CompletionsNeeded, DoneExecution, Found, Question
from penstock.core.correlation import Address, Closing, Wait, correlate, give
from penstock.core.definition import Definition, Step, StepType
from penstock.core.effect import ChildStart, Effects, HistoryRow, MapState, Timer, Undoing
from penstock.core.event import (
    CancelRequested,
    ChildEnded,
    Event,
    JobCompleted,
    JobDeadLettered,
    JobFailed,
    JobParked,
    JobSignalled,
    MessageReceived,
    RetryRequested,
    Started,
    TaskCompleted,
    TimerFired,
)
from penstock.core.fast_path import needs_variables
from penstock.core.for_each import ItemsNeeded, ResultsNeeded
from penstock.core.parsing import parse_definition
from penstock.core.recorder import MAX_WORK_STEPS
from penstock.core.state import (
    CLOSING_KINDS,
    MESSAGE_TIMER,
    WAIT_TIMER,
    HistoryKind,
    Instance,
    InstanceStatus,
    Token,
    TokenState,
    Trigger,
    move,
)
from penstock.core.work import Work
from penstock.testing.definitions import Json

START = datetime(2031, 5, 4, 12, tzinfo=UTC)
INSTANCE = 1000


class Machine:
    """Starts at once. Step ids name tokens: of several on a step, the one that entered first."""

    def __init__(
        self,
        definition: Json | Definition,
        variables: Json | None = None,
        *,
        max_work: int = MAX_WORK_STEPS,
        **inputs: Any,
    ) -> None:
        self.definition = definition if isinstance(definition, Definition) else parse_definition(definition)
        self.start_variables = variables or {}
        self.folded = 0
        self.instance = Instance(INSTANCE)
        self.tokens: dict[int, Token] = {}
        self.ready: set[tuple[int, int]] = set()  # (token, place)
        self.timers: dict[tuple[int, int, int], Timer] = {}
        self.history: list[HistoryRow] = []
        self.snapshot: list[Token] | None = None
        self.signals: dict[int, list[tuple[int, bytes]]] = {}
        self.calls: dict[tuple[int, int], ChildStart] = {}  # what is waited for, by (token, seq)
        self.failed_calls: list[ChildStart] = []
        self.maps: dict[int, MapState] = {}  # of forEach steps, by token
        self.items: dict[tuple[int, int], bytes] = {}  # variables of their items
        self.results: dict[tuple[int, int], bytes] = {}
        self.waits: dict[tuple[int, int], Address] = {}  # for messages, by (token, seq)
        self.messages: dict[int, tuple[Address, bytes]] = {}
        self.given: dict[tuple[int, int], int] = {}  # what is for a wait
        self.for_all: set[int] = set()  # messages
        self.handlers: dict[int, int] = {}  # of what is undone, or was: the handler's token by the position
        self.undoing: Undoing | None = None
        self.item_outputs: dict[int, bytes] = {}  # by position
        self.now = START
        self.inputs = inputs
        self.max_work = max_work
        self.chained: str | None = None
        self.seen_tokens: list[Token] = []
        self.open_twice = False
        self.positions = count(1)
        self.ids = count(INSTANCE + 1)
        self.last = self.apply(Started())

    # -- events

    def apply(self, event: Event, **inputs: Any) -> Effects:
        self.now += timedelta(seconds=1)
        tokens = [msgspec.structs.replace(token) for _, token in sorted(self.tokens.items())]
        if self.status is InstanceStatus.FAILED:
            assert self.snapshot is not None
            # as the store keeps them
            tokens = msgspec.json.decode(msgspec.json.encode(self.snapshot), type=list[Token])
        outcome = self._advance(tokens, event, {**self.inputs, **inputs})
        self._take(outcome)
        self.check()
        self.open_twice |= len(self.open) != len(set(self.open))
        self.last = outcome
        return outcome

    def _advance(self, tokens: Sequence[Token], event: Event, inputs: dict[str, Any]) -> Effects:
        block = 3  # too small, to be asked for more
        work: Work = inputs.pop("work", None) or Work(self.max_work)
        answers: dict[Question, Found] = {}
        mark = work.mark()
        items: dict[tuple[int, int], bytes] = {}
        results: dict[int, dict[int, bytes]] = {}
        while True:
            try:
                return advance(
                    self.definition,
                    msgspec.structs.replace(self.instance),
                    [msgspec.structs.replace(token) for token in tokens],
                    self.variables if needs_variables(self.definition) else None,
                    event,
                    Inputs(
                        now=self.now,
                        new_id=self.ids.__next__,
                        positions=deque(next(self.positions) for _ in range(block)),
                        completions=answers,
                        buffered=self.signals,
                        work=work,
                        maps=self.maps,
                        items=items,
                        results=results,
                        **inputs,
                    ),
                )
            except CompletionsNeeded as needed:
                answers[needed.question] = Found(self._completion(needed.question), self.undoing)
                work.rewind(mark)
            except PositionsExhausted:
                block *= 8
            except ItemsNeeded as needed:
                items[needed.token, needed.first] = self.items[needed.token, needed.first]
            except ResultsNeeded as needed:
                results[needed.token] = {i: value for (id, i), value in self.results.items() if id == needed.token}
            work.rewind(mark)

    def _completion(self, question: Question) -> DoneExecution | None:
        by_token = {token: position for position, token in self.handlers.items()}
        for row in reversed(self.history):
            holder = self.handlers.get(row.position)
            fits = row.kind is HistoryKind.COMPLETED and row.step in question.steps
            fits &= (row.item is not None) is (row.step in question.by_item)
            fits &= row.position not in question.taken and (holder is None or holder in question.freed)
            if fits and (question.after is None or row.position < by_token[question.after]):
                return self._done(row)
        return None

    def _done(self, row: HistoryRow) -> DoneExecution:
        return DoneExecution(row.position, row.step, self.item_outputs.get(row.position, row.output), row.item)

    @property
    def told(self) -> list[Json]:
        """What the jobs of open handlers are told, in order of entry."""
        by_token = {token: position for position, token in self.handlers.items()}
        found: list[Json] = []
        for token in sorted(self.tokens.values(), key=lambda token: token.seq):
            if self.definition.steps[token.step].compensates is not None:
                [row] = [row for row in self.history if row.position == by_token[token.id]]
                found.append(msgspec.json.decode(compensating(self.definition, self._done(row)))["compensating"])
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
        timer = self.timers[token.id, token.seq, index]
        self.now = max(self.now, timer.fire_at)
        return self.apply(TimerFired(token.id, index))

    def child_ended(
        self,
        token: Token,
        status: InstanceStatus,
        output: Json | None = None,
        reason: str | None = None,
        code: str | None = None,
    ) -> Effects:
        """The child's end; it has the variables that it was called with, and these."""
        call = self.calls[token.id, token.seq]
        if status is InstanceStatus.FAILED:
            self.failed_calls.append(call)
        variables = None
        if status is InstanceStatus.COMPLETED:
            variables = self.encode({**msgspec.json.decode(call.variables), **(output or {})})
        return self.apply(ChildEnded(token.id, "1f", call.definition_id, status, reason, code, variables))

    def cancel(self, reason: str | None = None, *, compensate: bool = False) -> Effects:
        return self.apply(CancelRequested(reason, compensate))

    def publish(self, name: str, key: str, output: Json, *, for_all: bool = False) -> None:
        """As its publisher does it: whoever waits longest has it at once, or all who wait."""
        id = next(self.ids)
        self.messages[id] = (name, key), msgspec.json.encode(output)
        open_waits = [
            Wait(seq, token, INSTANCE)
            for (token, seq), address in self.waits.items()
            if address == (name, key) and (token, seq) not in self.given
        ]
        given = give(open_waits, id, for_all=for_all)
        if for_all:
            self.for_all.add(id)
            if not given:
                del self.messages[id]
        self.given |= {(wait.token_id, wait.seq): id for wait in given}
        for wait in sorted(given):
            if (wait.token_id, wait.seq) in self.given:  # else what came before has closed it
                self.receive(self.tokens[wait.token_id])

    def receive(self, token: Token) -> Effects:
        """What is for the wait gets there."""
        id = self.given[token.id, token.seq]
        (name, _), output = self.messages[id]
        self.timers.pop((token.id, token.seq, MESSAGE_TIMER), None)
        return self.apply(MessageReceived(token.id, id, name, None, output))

    def closed_by_failure(self) -> list[Token]:
        """Of a FAILED instance: what stood open, of a forEach the whole."""
        assert self.snapshot is not None
        return [t for t in self.snapshot if (t.is_open and t.item is None) or self._is_map(t)]

    def _is_map(self, token: Token) -> bool:
        return token.state is TokenState.FORKED and self.definition.steps[token.step].for_each is not None

    @property
    def wholes(self) -> list[Token]:
        """Of the forEach steps that are under way, in order of entry."""
        return sorted((t for t in self.tokens.values() if self._is_map(t)), key=lambda token: token.seq)

    def retry(self) -> Effects:
        return self.apply(RetryRequested())

    # -- what the store does between advances

    def claim(self, step: str, worker: str = "w") -> Token:
        return self.claim_token(next(t for t in self.all_at(step) if t.state is TokenState.READY), worker)

    def claim_token(self, token: Token, worker: str = "w") -> Token:
        move(token, Trigger.CLAIM)
        token.attempt += 1
        token.claimed_by, token.claimed_at = worker, self.now
        token.lease_until = self.now + timedelta(seconds=30)
        self.unqueue(token)
        return token

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
        index = self.step(step).index
        self.signals.setdefault(index, []).append((next(self.ids), msgspec.json.encode(output)))

    # -- looking

    def step(self, step: str) -> Step:
        found = self.definition.step(step)
        assert found is not None, step
        return found

    def all_at(self, step: str) -> list[Token]:
        index = self.step(step).index
        return sorted((t for t in self.tokens.values() if t.step == index and t.is_open), key=lambda t: t.seq)

    def at(self, step: str) -> Token:
        found = self.all_at(step)
        assert found, f"nothing open at {step}; open: {self.open}"
        return found[0]

    @property
    def open(self) -> list[str]:
        """Ids of open steps in order of entry; one twice when it is open twice."""
        tokens = sorted((t for t in self.tokens.values() if t.is_open), key=lambda t: t.seq)
        return [self.definition.steps[t.step].id for t in tokens]

    @property
    def status(self) -> InstanceStatus:
        return self.instance.status

    @property
    def failure(self) -> str | None:
        return self.instance.failure

    @property
    def path(self) -> list[tuple[str, str]]:
        """(step, how it ended) of closed executions in order of their end."""
        return [(self.definition.steps[h.step].id, h.kind.name) for h in self.history if h.kind in CLOSING_KINDS]

    def edit(self, given: Json, removed: str) -> None:
        """As somebody changes the variables: all that was written is folded into what the instance begins with."""
        self.start_variables = {**{k: v for k, v in self.variables.items() if k != removed}, **given}
        self.folded = max((row.position for row in self.history), default=0)

    @property
    def variables(self) -> dict[str, Any]:
        values: dict[str, Any] = dict(self.start_variables)
        for row in sorted(self.history, key=lambda row: row.position):
            if row.output is not None and row.position > self.folded:
                values.update(msgspec.json.decode(row.output))
        return values

    def armed(self, step: str) -> list[int]:
        token = self.at(step)
        return sorted(index for id, seq, index in self.timers if (id, seq) == (token.id, token.seq))

    # -- the rows

    def _correlate(self, out: Effects) -> None:
        """As the store does at the end of each transaction."""
        closing: list[Closing] = []
        for key in out.unsubscribed:
            message = self.given.pop(key, None)
            closing.append(Closing(*key, self.waits.pop(key), message, for_all=message in self.for_all))
        self.waits |= {(one.token_id, one.seq): (one.name, one.key) for one in out.subscribed}
        waits: dict[Address, list[Wait]] = {}
        for (token, seq), address in self.waits.items():
            if (token, seq) not in self.given:
                waits.setdefault(address, []).append(Wait(seq, token, INSTANCE))
        taken = {*self.given.values(), *(one.message for one in closing)}
        kept: dict[Address, list[int]] = {}
        for id, (address, _) in self.messages.items():
            if id not in taken:
                kept.setdefault(address, []).append(id)
        decided = correlate(waits, kept, closing, out.received)
        for id in decided.done:
            del self.messages[id]
        for id in set(decided.perhaps_done) - {*self.given.values()}:
            self.messages.pop(id, None)
        for wait, id in decided.given.items():
            self.given[wait.token_id, wait.seq] = id
            timer = Timer(self.now, wait.token_id, wait.seq, MESSAGE_TIMER)
            self.timers[timer.token_id, timer.seq, timer.index] = timer

    @property
    def kept_messages(self) -> list[str]:
        """Their keys, in the order in which they came."""
        given = set(self.given.values())
        return [key for id, ((_, key), _) in sorted(self.messages.items()) if id not in given]

    def _take(self, out: Effects) -> None:
        self.instance = out.instance
        self.seen_tokens += out.inserted
        for token in out.inserted:
            assert token.id not in self.tokens
            self.tokens[token.id] = token
        for token in out.updated:
            assert token.id in self.tokens
            self.tokens[token.id] = token
        for id in out.deleted:
            del self.tokens[id]
        # in the store's order: out of the queue first, then into it
        self.ready -= {(job.token_id, job.place) for job in out.dequeued}
        for job in out.queued:
            assert job.job_type == self.definition.steps[self.tokens[job.token_id].step].job_type
            assert (job.token_id, job.place) not in self.ready
            self.ready.add((job.token_id, job.place))
        for key in list(self.timers):
            if key[:2] in out.disarmed:
                del self.timers[key]
        for timer in out.fired:
            gone = self.timers.pop((timer.token_id, timer.seq, timer.index), None)
            assert gone is not None or (timer.token_id, timer.seq) in out.disarmed or timer.index == WAIT_TIMER
        for timer in out.armed:
            assert (timer.token_id, timer.seq, timer.index) not in self.timers
            self.timers[timer.token_id, timer.seq, timer.index] = timer
        for made in out.calls:
            # as the store does: of an entry that a `retry` comes back to, the child that failed goes on
            again = [c for c in self.failed_calls if c.token_id == made.token_id and c.seq >= (made.entry or made.seq)]
            variables = again[-1].variables if again else made.variables
            self.failed_calls = [call for call in self.failed_calls if call not in again]
            self.calls[made.token_id, made.seq] = msgspec.structs.replace(made, variables=variables)
        for row in out.history:  # closed, whatever it waited for
            self.calls.pop((row.token_id, row.seq), None)
        for undone in out.undone:
            gone = self.handlers.get(undone.position)
            assert gone is None or gone in out.deleted, "an execution is undone twice"
            self.handlers[undone.position] = undone.token_id
        self.item_outputs |= dict(out.item_outputs)
        assert out.undoing is None or self.undoing is None
        assert out.ended_as in (None, self.undoing)
        self.undoing = out.undoing or self.undoing
        self.history += out.history
        used = set(out.consumed_signals)
        assert len(used) == len(out.consumed_signals)
        for index, kept in self.signals.items():
            self.signals[index] = [signal for signal in kept if signal[0] not in used]
        self._take_maps(out)
        self._correlate(out)
        if out.snapshot is not None:
            self.snapshot = out.snapshot
        if out.chain is not None:
            self.chained = out.chain.definition_id

    def _take_maps(self, out: Effects) -> None:
        if out.ended and out.instance.status is not InstanceStatus.FAILED:
            self.maps, self.items, self.results = {}, {}, {}
        elif out.maps is not None:
            for id in out.maps.ended:
                del self.maps[id]
                self.items = {key: value for key, value in self.items.items() if key[0] != id}
                self.results = {key: value for key, value in self.results.items() if key[0] != id}
            self.maps |= out.maps.states
            self.items |= {(id, i): row for id, rows in out.maps.begun.items() for i, row in enumerate(rows)}
            self.items |= out.maps.variables
            assert self.results.keys().isdisjoint(out.maps.results), "an item was collected twice"
            self.results |= out.maps.results

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
        assert {key[:2] for key in self.timers} <= open_now.keys()
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
