"""One instance in memory: what the store keeps of it, changed by what `advance` decides, with a clock that others move.

So what is tried before it is uploaded plays by the rules of what runs: there is no interpreter here. Calls, messages,
kept signals, lists and what is undone are looked up in these rows as the engine looks them up in its database. Pure:
ids and positions are counted, and nothing is random, so the same events give the same rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

import msgspec

from penstock.core.advance.advance import Inputs, PositionsExhausted, advance
from penstock.core.advance.completion import CompletionAnswer, CompletionsNeeded, DoneExecution, Question
from penstock.core.advance.effect import ChildStart, Compensation, Effects, HistoryRow, MapState, Timer
from penstock.core.advance.event import ChildEnded, Event, MessageReceived, TimerFired
from penstock.core.advance.for_each import RawNeeded, ResultsNeeded
from penstock.core.advance.recorder import MAX_WORK_STEPS, ItemsNeeded
from penstock.core.expression.work import Work
from penstock.core.graph.definition import Definition
from penstock.core.graph.fast_path import needs_variables
from penstock.core.rules.correlation import Address, Closing, Wait, correlate, give
from penstock.core.rules.state import (
    CLOSING_KINDS,
    MESSAGE_TIMER,
    HistoryKind,
    Instance,
    InstanceStatus,
    Token,
    TokenState,
    Trigger,
    move,
)

INSTANCE: Final = 1
LEASE_S: Final = 30
MESSAGE_KEPT_S: Final = 86_400
"""As a publisher's that says nothing."""

TimerKey = tuple[int, int, int]
"""Token, seq and index."""


class Simulation:
    """The rows of one instance. It has not begun before the first event, `Started`. ``inputs``: bounds, as `Inputs` has
    them."""

    POSITIONS = 64
    """Given to an advance at first."""

    def __init__(
        self,
        definition: Definition,
        variables: Mapping[str, Any],
        now: datetime,
        *,
        instance: int = INSTANCE,
        max_work: int = MAX_WORK_STEPS,
        **inputs: Any,
    ) -> None:
        self.definition = definition
        self.instance = Instance(instance)
        self.variables: dict[str, Any] = dict(variables)
        self.now: datetime = now
        self.tokens: dict[int, Token] = {}
        self.ready: set[tuple[int, int]] = set()  # (token, place)
        self.timers: dict[TimerKey, Timer] = {}
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
        self.kept_until: dict[int, datetime] = {}  # by message
        self.given: dict[tuple[int, int], int] = {}  # what is for a wait
        self.for_all: set[int] = set()  # messages
        self.handlers: dict[int, int] = {}  # of what is undone, or was: the handler's token by the position
        self.undoing: Compensation | None = None
        self.item_outputs: dict[int, bytes] = {}  # by position
        self.chained: str | None = None
        self.dead_end = False
        self.written_bytes = 0
        """Of variables, by all events: of steps, of what is called, and of items."""
        self.positions = count(1)
        self.ids = count(instance + 1)
        self.kept_ids = count(1)  # of messages and kept signals: what comes earlier gives no token another id
        self.inputs = inputs
        self._max_work = max_work

    # -- events

    def apply(self, event: Event, **inputs: Any) -> Effects:
        """Let it happen. The caller has looked whether it may, as `advance` asks for."""
        tokens: list[Token] = [msgspec.structs.replace(token) for _, token in sorted(self.tokens.items())]
        if self.status is InstanceStatus.FAILED:
            assert self.snapshot is not None
            # as the store keeps them
            tokens = msgspec.json.decode(msgspec.json.encode(self.snapshot), type=list[Token])
        effects = self._advance(tokens, event, {**self.inputs, **inputs})
        self._take(effects)
        return effects

    def _advance(self, tokens: Sequence[Token], event: Event, inputs: dict[str, Any]) -> Effects:
        block = self.POSITIONS
        work: Work = inputs.pop("work", None) or Work(self._max_work)
        answers: dict[Question, CompletionAnswer] = {}
        mark = work.mark()
        items: dict[tuple[int, int], bytes] = {}
        raw: dict[int, bytes] = {}
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
                        raw=raw,
                        **inputs,
                    ),
                )
            except CompletionsNeeded as needed:
                answers[needed.question] = CompletionAnswer(self._completion(needed.question), self.undoing)
            except PositionsExhausted:
                block *= 8
            except ItemsNeeded as needed:
                # all that may follow, as the store reads ahead: else each item has everything before it done again
                items |= {at: own for at, own in self.items.items() if at[0] == needed.token and at[1] >= needed.first}
            except RawNeeded as needed:
                raw[needed.position] = self.item_outputs[needed.position]
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
                return self.done(row)
        return None

    def done(self, row: HistoryRow) -> DoneExecution:
        """A completed execution, as those that undo it are told."""
        return DoneExecution(row.position, row.step, self.item_outputs.get(row.position, row.output), row.item)

    # -- what the engine does between advances

    def claim_token(self, token: Token, worker: str = "w") -> Token:
        """A worker takes the job."""
        move(token, Trigger.CLAIM)
        token.attempt += 1
        token.claimed_by, token.claimed_at = worker, self.now
        token.lease_until = self.now + timedelta(seconds=LEASE_S)
        self.ready.remove((token.id, token.place))
        return token

    def keep_signal(self, step: int, output: bytes) -> None:
        """For a WAIT that is not open."""
        self.signals.setdefault(step, []).append((next(self.kept_ids), output))

    def child_ended(
        self,
        token: Token,
        status: InstanceStatus,
        output: Mapping[str, Any] | None = None,
        reason: str | None = None,
        code: str | None = None,
        child: str = "1f",
    ) -> Effects:
        """The end of the instance that a call waits for. It has the variables that it was called with, and these."""
        call = self.calls[token.id, token.seq]
        if status is InstanceStatus.FAILED:
            self.failed_calls.append(call)
        variables = None
        if status is InstanceStatus.COMPLETED:
            variables = msgspec.json.encode({**msgspec.json.decode(call.variables), **(output or {})})
        return self.apply(ChildEnded(token.id, child, call.definition_id, status, reason, code, variables))

    def publish(self, name: str, key: str, output: Mapping[str, Any], *, for_all: bool = False) -> None:
        """As its publisher does it: whoever waits longest has the message at once, or all who wait; else it is kept."""
        id = next(self.kept_ids)
        address = name, key
        self.messages[id] = address, msgspec.json.encode(output)
        self.kept_until[id] = self.now + timedelta(seconds=MESSAGE_KEPT_S)
        open_waits = [
            Wait(seq, token, self.instance.id)
            for (token, seq), wanted in self.waits.items()
            if wanted == address and (token, seq) not in self.given
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

    def next_due(self) -> Timer | None:
        """The timer that comes first; of two at the same time that of the step that was entered first."""
        return min(self.timers.values(), key=lambda one: (one.fire_at, one.seq, one.token_id, one.index), default=None)

    def fire_timer(self, timer: Timer) -> Effects:
        """At its time, unless that is past."""
        self.now = max(self.now, timer.fire_at)
        token = self.tokens[timer.token_id]
        return self.receive(token) if timer.index == MESSAGE_TIMER else self.apply(TimerFired(token.id, timer.index))

    # -- looking

    @property
    def status(self) -> InstanceStatus:
        return self.instance.status

    @property
    def open_tokens(self) -> list[Token]:
        """In order of entry."""
        return sorted((token for token in self.tokens.values() if token.is_open), key=lambda token: token.seq)

    def is_map(self, token: Token) -> bool:
        """Return whether a forEach is under way on it."""
        return token.state is TokenState.FORKED and self.definition.steps[token.step].for_each is not None

    @property
    def wholes(self) -> list[Token]:
        """Of the forEach steps that are under way, in order of entry."""
        return sorted((token for token in self.tokens.values() if self.is_map(token)), key=lambda token: token.seq)

    @property
    def path(self) -> list[tuple[str, str]]:
        """(step, how it ended) of closed executions in order of their end."""
        return [(self.definition.steps[h.step].id, h.kind.name) for h in self.history if h.kind in CLOSING_KINDS]

    # -- the rows

    def _take(self, out: Effects) -> None:
        self.instance = out.instance
        self.dead_end = out.dead_end
        for token in (*out.inserted, *out.updated):
            self.tokens[token.id] = token
        for id in out.deleted:
            del self.tokens[id]
        # in the store's order: out of the queue first, then into it
        self.ready -= {(job.token_id, job.place) for job in out.dequeued}
        self.ready |= {(job.token_id, job.place) for job in out.queued}
        self._take_timers(out)
        for made in out.calls:
            self.written_bytes += len(made.variables)
            # as the store does: of an entry that a `retry` comes back to, the child that failed goes on
            again = [c for c in self.failed_calls if c.token_id == made.token_id and c.seq >= (made.entry or made.seq)]
            variables = again[-1].variables if again else made.variables
            self.failed_calls = [call for call in self.failed_calls if call not in again]
            self.calls[made.token_id, made.seq] = msgspec.structs.replace(made, variables=variables)
        for row in out.history:  # closed, whatever it waited for
            self.calls.pop((row.token_id, row.seq), None)
            if row.output is not None:
                self.written_bytes += len(row.output)
                self.variables.update(msgspec.json.decode(row.output))
        self.handlers |= {undone.position: undone.token_id for undone in out.undone}
        for position in out.mapped:
            del self.item_outputs[position]
        self.item_outputs |= dict(out.item_outputs)
        self.undoing = out.undoing or self.undoing
        self.history += out.history
        used = set(out.consumed_signals)
        for index, kept in self.signals.items():
            self.signals[index] = [signal for signal in kept if signal[0] not in used]
        self._take_maps(out)
        self._correlate(out)
        if out.ended or out.reopened:
            self.snapshot = out.snapshot
        if out.chain is not None:
            self.chained = out.chain.definition_id

    def _take_timers(self, out: Effects) -> None:
        for key in list(self.timers):
            if key[:2] in out.disarmed:
                del self.timers[key]
        for timer in out.fired:
            self.timers.pop((timer.token_id, timer.seq, timer.index), None)
        for timer in out.armed:
            self.timers[timer.token_id, timer.seq, timer.index] = timer

    def _take_maps(self, out: Effects) -> None:
        if out.ended and out.instance.status is not InstanceStatus.FAILED:
            self.maps, self.items, self.results = {}, {}, {}
        elif out.maps is not None:
            for id in out.maps.ended:
                del self.maps[id]
                self.items = {key: value for key, value in self.items.items() if key[0] != id}
                self.results = {key: value for key, value in self.results.items() if key[0] != id}
            self.maps |= out.maps.states
            self.written_bytes += sum(len(row) for rows in out.maps.begun.values() for row in rows)
            self.items |= {(id, i): row for id, rows in out.maps.begun.items() for i, row in enumerate(rows)}
            self.items |= out.maps.variables
            self.results |= out.maps.results

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
                waits.setdefault(address, []).append(Wait(seq, token, self.instance.id))
        taken = {*self.given.values(), *(one.message for one in closing)}
        kept: dict[Address, list[int]] = {}
        for id, (address, _) in self.messages.items():
            if id not in taken and self.kept_until[id] > self.now:
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
    def kept_messages(self) -> list[Address]:
        """Those that nobody has, in the order in which they came."""
        given = set(self.given.values())
        return [address for id, (address, _) in sorted(self.messages.items()) if id not in given]
