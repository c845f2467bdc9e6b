"""A second opinion on what workflows do: the reference model, written from docs/guarantees.md, not from `advance`.

It works on the definition's JSON, keeps no rows, no ids and no positions: only what is open, what each gateway waits
for, the variables, and what was closed how. The engine and this model make the same moves, and are compared after
each. Expressions are the engine's own, they are not what is tested here. Several tokens that can go on at once take
turns, step by step, in the order in which they became able to.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from penstock.core.advance.for_each import ITEM_WORK
from penstock.core.advance.recorder import MAX_WORK_STEPS
from penstock.core.expression import ExpressionError, parse
from penstock.core.expression.work import BYTES_PER_STEP, STEP_WORK
from penstock.engine.advance.advancer import STARTS_MAX

TASKS = ("SERVICE_TASK", "USER_TASK", "WAIT", "CALL_ACTIVITY")
PARALLEL_DEFAULT = 100
"""Items of a forEach that are under way at once."""
UNDO = "/compensation"
"""What an instance that is undone before its end does."""
CONTINUE = -3
"""The timer of what is left for a move of its own: the next of many kept signals."""
RECEIVE = -8
"""The timer of a wait that there is a message for."""
ITEMS_MAX = 10_000
ITEMS_MAX_BYTES = 4 * 1024 * 1024
ITEMS_PER_MOVE = 100
"""Items of forEach steps that begin at once; further ones are left for a move of its own."""


@dataclass(eq=False)
class Block:
    """A gateway that was passed and whose join has not fired."""

    gateway: str
    owner: ModelToken
    under_way: int
    arrived: int = 0


@dataclass(eq=False)
class Map(Block):
    """A forEach whose items are under way: each is a branch. ``arrived``: 1 while further ones are left for later."""

    each: dict[str, Any] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)  # the variables of each
    next: int = 0
    done: int = 0
    failed: int = 0
    kept: dict[int, Any] = field(default_factory=dict)  # what was collected, by item


@dataclass(eq=False)
class ModelToken:
    """A token. ``step`` is where it stands, or where it is about to go."""

    block: Block | None = None
    side: bool = False
    step: str = ""
    open: bool = False
    entered: int = 0
    failures: int = 0
    backing_off: bool = False
    parked: bool = False
    signal: str = ""  # that it waits for
    done: bool = False  # its step is; where it leads could not be decided
    raw: dict[str, Any] | None = None  # what it was done with, where the engine's own mapping of that has failed
    undone_by: int = -1  # the place in `completed` of what was done so
    timers: set[int] = field(default_factory=set)
    called: dict[str, Any] | None = None  # what its call gave to the instance that it waits for
    failed_child: dict[str, Any] | None = None  # the same of one that failed, and goes on with a retry
    reentered: bool = False  # by a retry
    key: str = ""  # of the message that it waits for
    undoes: int = -1  # of a handler: the place in `completed` of what it undoes
    item: int | None = None  # of a forEach
    turn: tuple[str | None, int] = (None, 5)  # of a job: flow key and priority


class Stuck(Exception):
    """A step that can't go on: the instance fails with this."""

    def __init__(self, reason: str, code: str | None = None) -> None:
        super().__init__(reason)
        self.code = code


class ReferenceModel:
    """One instance. Moves name an open token by its place in `open_tokens`."""

    def __init__(
        self,
        definition: dict[str, Any],
        variables: dict[str, Any],
        now: datetime,
        max_automatic: int,
        max_work: int = MAX_WORK_STEPS,
        max_calls: int = STARTS_MAX,
    ) -> None:
        self.has_versions = False
        """Whether it may go on in another version of its definition."""
        self._read(definition)
        # executions that can be undone, with their output, and which item it was
        self.completed: list[tuple[str, dict[str, Any] | None, int | None]] = []
        self._taken: set[int] = set()  # their places, of those that are undone, or about to be
        self.ending: tuple[str, str | None, str | None] | None = None  # of an instance that is undone first
        self.variables = copy.deepcopy(variables)
        self.now = now
        self.max_automatic = max_automatic
        self.max_work = max_work
        self.max_calls = max_calls
        self._called: list[ModelToken] = []  # in this move
        self._items_begun = 0
        self._maps_begun: list[Map] = []
        self.status = "ACTIVE"
        self.failure: str | None = None
        self.failure_code: str | None = None
        self.result: dict[str, Any] | None = None
        self.closed: Counter[tuple[str, str]] = Counter()
        self.tokens: list[ModelToken] = []
        self.blocks: list[Block] = []
        self._moving: deque[tuple[ModelToken, str]] = deque()
        self._entries = 0
        self._automatic = self._bound = 0
        self._work = self._work_bound = 0
        self.timers_fired = 0
        self.refused = 0
        self._saved: tuple[list[ModelToken], list[Block]] | None = None
        self._signals: dict[str, list[dict[str, Any]]] = {}
        self._messages: list[tuple[int, str, dict[str, Any]]] = []  # kept: number, key, output
        self._given: dict[tuple[int, int], tuple[ModelToken, tuple[int, str, dict[str, Any]]]] = {}
        self._published = 0
        first = ModelToken()
        self._begin()
        self.turn: tuple[str | None, int] = (None, 5)
        self.turn = self._turn_of(definition, self.variables)
        self.tokens.append(first)
        self._go(first, definition["steps"][0]["id"])
        self._settle()
        self.correlate()

    def _read(self, definition: dict[str, Any]) -> None:
        self.steps: dict[str, dict[str, Any]] = {step["id"]: step for step in definition["steps"]}
        for id, step in [*self.steps.items()]:
            if step.get("compensation") and kind(step) in ("SERVICE_TASK", "CALL_ACTIVITY"):
                hidden = f"{id}/compensation"
                self.steps[hidden] = {**step["compensation"], "id": hidden, "type": "SERVICE_TASK", "undoes": id}
        if any("undoes" in step for step in self.steps.values()):
            self.steps[UNDO] = {"id": UNDO, "type": "COMPENSATE"}
        self.undoes_failures = bool(definition.get("onFailure"))
        self._inside = {
            step["id"]: self._find_inside(step) for step in definition["steps"] if kind(step) == "PARALLEL_GATEWAY"
        }

    # -- what can be seen

    @property
    def open_tokens(self) -> list[ModelToken]:
        return sorted((token for token in self.tokens if token.open), key=lambda token: token.entered)

    @property
    def maps(self) -> list[Map]:
        """Of the forEach steps that are under way, in order of entry."""
        return sorted((b for b in self.blocks if isinstance(b, Map)), key=lambda one: one.owner.entered)

    @property
    def running(self) -> list[ModelToken]:
        """What people see as open: tokens, and of a forEach the whole beside its items."""
        return sorted((*self.open_tokens, *(about.owner for about in self.maps)), key=lambda token: token.entered)

    @property
    def undoing(self) -> bool:
        return any(block.gateway == UNDO for block in self.blocks)

    @property
    def can_retry(self) -> bool:
        return self._saved is not None

    def compensating(self, token: ModelToken) -> dict[str, Any]:
        """What a handler's job is told."""
        step, output, item = self.completed[token.undoes]
        return {"stepId": step, "output": output, **({} if item is None else {"item": item})}

    @property
    def waiting(self) -> bool:
        return any(token.parked or kind(self.steps[token.step]) in ("USER_TASK", "WAIT") for token in self.open_tokens)

    # -- moves

    def complete(self, place: int, output: dict[str, Any]) -> None:
        """The job is done, the user task completed, the wait signalled."""
        token = self.open_tokens[place]
        self._begin()
        step = self.steps[token.step]
        if kind(step) == "CALL_ACTIVITY":
            output = called_with(token, output)
            try:
                output = self._come_back(token, step, output) if token.item is None else output
            except Stuck as stuck:
                self._keep_raw(token, output, "COMPLETED", stuck)
                self._settle()
                return
        self._leave_with(token, output)
        self._settle()

    def fail(
        self, place: int, reason: str, *, retryable: bool, code: str = "", data: dict[str, Any] | None = None
    ) -> None:
        token = self.open_tokens[place]
        step = self.steps[token.step]
        self._begin()
        if kind(step) == "CALL_ACTIVITY":  # its child did, or was cancelled
            token.failed_child = None if retryable else token.called
            name = "ChildCancelled" if retryable else "ChildFailed"
            self._fail(token, name, f"Penstock.{name}")
            self._settle()
            return
        named = any(code in (event.get("errorCodes") or ()) for event in boundaries(step, "ERROR"))
        wanted = code not in (step.get("noRetryOn") or ()) and code in (step.get("retryOn") or (code,))
        if retryable and wanted and not named and token.failures < int(step.get("retryCount") or 0):
            token.failures += 1
            token.backing_off = bool(step.get("retryBackoff"))
            if token.backing_off:
                token.timers.add(-1)
        else:
            over = retryable and token.failures >= int(step.get("retryCount") or 0)
            self._fail(token, reason, code or f"Penstock.{'RetriesExhausted' if over else 'NotRetryable'}", data)
            self._settle()

    def park(self, place: int, signal: str, *, timed: bool) -> None:
        """The worker waits with the job."""
        token = self.open_tokens[place]
        token.parked, token.signal = True, signal
        if timed:
            token.timers.add(-2)

    def signal_job(self, place: int, output: dict[str, Any]) -> None:
        token = self.open_tokens[place]
        own = self.variables if token.item is None else map_of(token).items[token.item]
        own.update(copy.deepcopy(output))
        self._wake(token)

    def _wake(self, token: ModelToken) -> None:
        token.parked, token.signal = False, ""
        token.timers.discard(-2)

    def publish(self, key: str, output: dict[str, Any]) -> None:
        """To the wait with this key that is oldest and has no message yet; else it is kept."""
        self._published += 1
        token = self.receiver(key)
        if token is None:
            self._messages.append((self._published, key, output))
            return
        self._begin()
        self._leave_with(token, output)
        self._settle()

    def publish_to_all(self, key: str, output: dict[str, Any]) -> None:
        """To all waits with this key that are open now and have no message yet; kept for nobody."""
        self._published += 1
        for token, entered in [(token, token.entered) for token in self.receivers(key)]:
            if self.status == "ACTIVE" and token.open and token.entered == entered:
                self._begin()
                self._leave_with(token, output)
                self._settle()

    def receivers(self, key: str) -> list[ModelToken]:
        waits = [token for token in self.open_tokens if token.key == key]
        return [token for token in waits if (id(token), token.entered) not in self._given]

    def receiver(self, key: str) -> ModelToken | None:
        """Who would get a message with this key."""
        return next(iter(self.receivers(key)), None)

    @property
    def kept_messages(self) -> list[str]:
        return [key for _, key, _ in self._messages]

    def correlate(self) -> None:
        """After each move: what was for a wait that is closed is kept again; the oldest is for who waits longest."""
        for place, (token, message) in list(self._given.items()):
            if not (token in self.tokens and token.open and token.key and token.entered == place[1]):
                del self._given[place]
                self._messages.append(message)
        self._messages.sort(key=lambda message: message[0])
        for token in self.open_tokens:
            if token.key and (id(token), token.entered) not in self._given:
                found = next((message for message in self._messages if message[1] == token.key), None)
                if found is not None:
                    self._messages.remove(found)
                    self._given[id(token), token.entered] = token, found
                    token.timers.add(RECEIVE)

    def fire(self, place: int, index: int) -> None:
        token = self.open_tokens[place]
        step = self.steps[token.step]
        self._begin()
        token.timers.remove(index)
        if index == RECEIVE:
            _, (_, _, output) = self._given.pop((id(token), token.entered))
            self._leave_with(token, output)
        elif kind(step) == "WAIT" and self._signals.get(step["id"]):
            self._take_signal(token)
        elif index == CONTINUE and kind(step) == "CALL_ACTIVITY":
            try:
                self._call(token, step)
            except Stuck as stuck:
                self._fail(token, str(stuck))
        elif index == CONTINUE:
            pass
        elif index == -1:
            token.backing_off = False
        elif index == -2 and token.parked:
            self._wake(token)
        elif index == -2:
            self.timers_fired += 1
            self._leave_with(token, {})
        else:
            self._boundary(token, step["boundaryEvents"][index])
        self._settle()

    def fire_map(self, place: int, index: int) -> None:
        """A timer of a forEach step as a whole."""
        about = self.maps[place]
        self._begin()
        about.owner.timers.remove(index)
        if index == CONTINUE:
            about.under_way, about.arrived = about.under_way - 1, 0
            self._begin_items(about)
            if not about.under_way:
                self._finish_map(about)
        else:
            self._boundary(about.owner, self.steps[about.gateway]["boundaryEvents"][index])
        self._settle()

    def _boundary(self, token: ModelToken, event: dict[str, Any]) -> None:
        self.timers_fired += 1
        if event.get("interrupting"):
            self._give_up_map(token)
            self._close(token, "INTERRUPTED")
            self._go(token, event["targetStepId"])
        else:
            beside = ModelToken(side=True)
            self.tokens.append(beside)
            self._go(beside, event["targetStepId"])

    def edit(self, given: dict[str, Any], removed: str) -> None:
        """Somebody changes the variables of an instance that waits or has failed."""
        assert self.status == "FAILED" or self.waiting
        self.variables.pop(removed, None)
        self.variables.update(copy.deepcopy(given))

    def cancel(self, *, undo: bool = False) -> None:
        self._begin()
        if not (undo and self._compensate_first("CANCELLED", "cancelled", None)):
            self._end("CANCELLED", "cancelled")
        self._settle()

    def keep_signal(self, step: str, output: dict[str, Any]) -> None:
        """For a wait that is not open yet."""
        self._signals.setdefault(step, []).append(output)

    @property
    def kept_signals(self) -> Counter[str]:
        return Counter({step: len(kept) for step, kept in self._signals.items() if kept})

    def retry(self) -> None:
        self._begin()
        self._reopen()
        self._settle()

    def _reopen(self, *but: ModelToken) -> None:
        assert self.status == "FAILED"
        assert self._saved is not None
        self.status, self.failure, self.failure_code = "ACTIVE", None, None
        self.tokens, self.blocks = self._saved
        for token in sorted(self.tokens, key=lambda token: (token.entered == 0, token.entered)):
            if token in but:
                continue
            if token.open:
                token.open = False
                token.reentered = True
                self._go(token, token.step)
            elif (about := self._map_on(token)) is not None:
                self._entries += 1
                token.entered = self._entries
                token.timers = timers_of(self.steps[token.step]) | ({CONTINUE} if about.arrived else set())

    @property
    def mendable(self) -> list[ModelToken]:
        """What may be skipped or moved: open tokens, or what a failure closed where nothing else stood on its step. Of
        a forEach also the whole, and after a failure nothing else."""
        if self.status == "FAILED":
            assert self._saved is not None
            wholes = [block.owner for block in self._saved[1] if isinstance(block, Map)]
            closed = [token for token in self._saved[0] if (token.open and token.item is None) or token in wholes]
            times = Counter(token.step for token in closed)
            return sorted((t for t in closed if times[t.step] == 1), key=lambda token: token.step)
        return self.running

    def skip(self, place: int, output: dict[str, Any]) -> None:
        """The step counts as done, with this result."""
        token = self.mendable[place]
        self._begin()
        if self.status == "FAILED":
            assert self._saved is not None
            items = [each for each in self._saved[0] if each.item is not None and each.block is not None]
            items = [each for each in items if map_of(each).owner is token]
            self._reopen(token, *items)
            for each in items:
                each.open = False
            self._entries += 1
            token.entered = self._entries
        token.failed_child = token.raw = None
        if token.item is not None:
            self._finish_item(token, output, "SKIPPED")
            self._settle()
            return
        self._give_up_map(token)
        self.variables.update(copy.deepcopy(output))
        self._close(token, "SKIPPED")
        token.done = True
        self._go(token, token.step)
        self._settle()

    def mover(self, place: int, target: str) -> ModelToken | None:
        """Which token goes when one is sent to a step; None where that would break a join."""
        token = self.mendable[place]
        if token.undoes >= 0 or target == UNDO or "undoes" in self.steps[target]:
            return None
        if token.item is not None:  # a part of its step
            return map_of(token).owner if kind(self.steps[target]) == "END" else None
        if kind(self.steps[target]) == "END":
            return token
        if token.block is not None:
            if target == self.steps[token.block.gateway]["joinStep"] or target in self._inside[token.block.gateway]:
                return token
            if token.block.under_way > 1 or token.block.arrived:
                return None
            token = token.block.owner
        if token.side:
            return token
        inside = any(target in steps for steps in self._inside.values())
        return None if inside or kind(self.steps[target]) == "JOIN_GATEWAY" else token

    def move(self, place: int, target: str) -> None:
        token = self.mover(place, target)
        assert token is not None
        self._begin()
        tokens, blocks = (self.tokens, self.blocks) if self._saved is None or self.status == "ACTIVE" else self._saved
        own, below = below_of(token, tokens, blocks)
        if self.status == "FAILED":
            self._reopen(token, *below)
        else:
            wholes = [about.owner for about in self.maps]
            for each in (token, *below):
                if each.open or each in wholes:
                    self._close(each, "SKIPPED")
        for block in own:
            self.blocks.remove(block)
        for each in below:
            self._vanish(each)
        token.open = token.done = False
        for each in (token, *below):
            each.raw = None
        self._go(token, target)
        self._settle()

    @property
    def may_migrate(self) -> bool:
        """Into a version that differs in nothing but names and order: whether branches stand within their blocks, and
        nothing else does."""
        for token in self.tokens if self._saved is None or self.status == "ACTIVE" else self._saved[0]:
            what, block = kind(self.steps[token.step]), token.block
            if block is None:
                free = token.side or what == "PARALLEL_GATEWAY"
                stays = free or not any(token.step in steps for steps in self._inside.values())
            else:
                bound = block.gateway in self._inside and what != "END"
                block_steps = {*self._inside[block.gateway], self.steps[block.gateway]["joinStep"]} if bound else {}
                stays = not bound or token.step in block_steps
            if not stays:
                return False
        return True

    def migrate(self, definition: dict[str, Any], renamed: dict[str, str]) -> None:
        """What was closed keeps the names that it had."""
        assert self.may_migrate
        self._read(definition)
        names = {**renamed, **{f"{old}/compensation": f"{new}/compensation" for old, new in renamed.items()}}
        tokens, blocks = (self.tokens, self.blocks) if self._saved is None or self.status == "ACTIVE" else self._saved
        for token in tokens:
            token.step = names.get(token.step, token.step)
        for block in blocks:
            block.gateway = names.get(block.gateway, block.gateway)
        self.completed = [(names.get(step, step), output, item) for step, output, item in self.completed]
        self._signals = {names.get(step, step): kept for step, kept in self._signals.items()}

    # -- the rules

    def _begin(self) -> None:
        self._automatic, self._bound = 0, self.max_automatic
        self._work, self._work_bound = 0, self.max_work
        for token in self._called:  # whatever failed before goes on by now
            token.failed_child = None
        self._called = []
        self._items_begun, self._maps_begun = 0, []

    def _go(self, token: ModelToken, step: str) -> None:
        self._moving.append((token, step))

    def _settle(self) -> None:
        while self._moving and self.status == "ACTIVE":
            token, step = self._moving.popleft()
            if token.done:
                self._leave(token)
                continue
            try:
                self._step_onto(token, step)
            except Stuck as stuck:
                self._fail(token, str(stuck), stuck.code)

    def _step_onto(self, token: ModelToken, name: str) -> None:
        step = self.steps[name]
        block = token.block
        if block is not None and "undoes" not in step and token.item is None:
            if name == self.steps[block.gateway]["joinStep"]:
                self._vanish(token)
                self._one_less(block, arrived=True)
                return
            if name not in self._inside[block.gateway] and kind(step) != "END":
                token.block = None
                self._one_less(block, arrived=False)
        if kind(step) == "JOIN_GATEWAY" and token.side:
            self._dead_end(token)
            return
        self._entries += 1
        token.step, token.entered = name, self._entries
        token.failures, token.backing_off, token.timers = 0, False, set()
        token.parked, token.signal = False, ""
        token.key = ""
        token.called = None
        if not token.reentered:
            token.failed_child = None
        token.reentered = False
        self._spend(STEP_WORK)
        if step.get("forEach") and token.item is None:
            self._begin_map(token, step)
        elif kind(step) in TASKS:
            self._park(token, step)
        else:
            self._pass(token, step)

    def _time(self, step: dict[str, Any]) -> None:
        """What is evaluated of its boundary timers."""
        for event in boundaries(step, "TIMER"):
            if event["duration"].startswith("${"):
                self._evaluate(event["duration"])

    def _park(self, token: ModelToken, step: dict[str, Any]) -> None:
        if kind(step) == "CALL_ACTIVITY" and token.item is None:
            self._time(step)
        if kind(step) == "WAIT":
            until = step.get("duration") or step.get("until")
            if until:
                token.timers.add(-2)
                if until.startswith("${"):
                    self._evaluate(until)
            if step.get("message"):
                key = step["message"]["correlationKey"]
                token.key = self._evaluate(key) if key.startswith("${") else key
        if kind(step) == "CALL_ACTIVITY":
            self._call(token, step)
        if kind(step) == "SERVICE_TASK":
            token.turn = self._turn_of(step, self._scope_of(token))
        if token.item is None:  # else they are the whole step's
            if kind(step) != "CALL_ACTIVITY":
                self._time(step)
            token.timers |= timers_of(step)
        token.open = True
        if kind(step) == "WAIT" and self._signals.get(step["id"]):
            if self._automatic <= self.max_automatic // 2 and self._work <= self.max_work // 2:
                self._take_signal(token)
            else:
                token.timers.add(CONTINUE)

    def _turn_of(self, says: dict[str, Any], scope: dict[str, Any]) -> tuple[str | None, int]:
        """Flow key and priority: what it says itself, else those of the instance."""
        found: list[Any] = []
        for field_name, otherwise in zip(("flowKey", "priority"), self.turn, strict=True):
            value = says.get(field_name, otherwise)
            found.append(self._evaluate(value, scope) if isinstance(value, str) and value.startswith("${") else value)
        return found[0], found[1]

    def _call(self, token: ModelToken, step: dict[str, Any]) -> None:
        """Start an instance, or leave that to a move of its own."""
        if len(self._called) >= self.max_calls or self._work > self.max_work // 2:
            token.timers.add(CONTINUE)
            return
        self._spend(STEP_WORK)
        scope = self._scope_of(token)
        if step.get("input") is None:
            given = scope
            self._spend(len(msgspec.json.encode(given)) // BYTES_PER_STEP)
        else:
            given = self._assign(step["input"], scope)
        self._called.append(token)
        token.called = given if token.failed_child is None else token.failed_child

    def _come_back(self, token: ModelToken, step: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
        """What comes back of the instance that a call waited for."""
        if not step.get("output"):
            return {}
        self._spend(len(msgspec.json.encode(output)) // BYTES_PER_STEP)
        return self._assign(step["output"], {**copy.deepcopy(self.variables), "result": copy.deepcopy(output)})

    def _keep_raw(self, token: ModelToken, output: dict[str, Any], how: str, stuck: Stuck) -> None:
        """What was done is done; that it could not be mapped fails the instance after it."""
        if how == "COMPLETED" and f"{token.step}/compensation" in self.steps:
            token.undone_by = len(self.completed)
            self.completed.append((token.step, copy.deepcopy(output), token.item))
        self._close(token, how)
        token.raw = copy.deepcopy(output)
        self._mapping_failed(token, stuck)

    def _mapping_failed(self, token: ModelToken, stuck: Stuck) -> None:
        if token.item is not None:
            self._close(map_of(token).owner, "FAILED")
        token.done = token.open = True  # for the retry
        self.failure_code = None
        self._end("FAILED", str(stuck), but=token)

    def _map_again(self, token: ModelToken, raw: dict[str, Any]) -> bool:
        """After a retry; whether the token still has to leave the step."""
        try:
            if token.item is not None:
                about = map_of(token)
                kept, enough = self._judge(about, token, raw)
                token.done, token.raw = False, None
                self._item_over(about, token, kept, "COMPLETED", enough=enough)
                return False
            output = self._come_back(token, self.steps[token.step], raw)
        except Stuck as stuck:
            self._mapping_failed(token, stuck)
            return False
        token.raw = None
        self.variables.update(copy.deepcopy(output))
        if token.undone_by >= 0 and output:
            step, _, item = self.completed[token.undone_by]
            self.completed[token.undone_by] = step, copy.deepcopy(output), item
        token.undone_by = -1
        return True

    def _take_signal(self, token: ModelToken) -> None:
        self._automatic += 1
        self._bound = self._automatic + self.max_automatic
        self._work_bound = self._work + self.max_work
        self._leave_with(token, self._signals[token.step].pop(0))

    def _pass(self, token: ModelToken, step: dict[str, Any]) -> None:
        if kind(step) == "JOIN_GATEWAY":
            raise Stuck("JoinWithoutGateway")
        self._count()
        if kind(step) == "DECISION":
            target = self._choose(step)
        elif kind(step) == "TRANSFORMATION":
            self._transform(step)
            target = step["nextStep"]
        elif kind(step) == "COMPENSATE":
            newest = self._newest(step)
            if newest is not None:
                self.closed[step["id"], "COMPLETED"] += 1
                self._undo(step, token, newest)
                return
            target = step["nextStep"]
        elif kind(step) == "PARALLEL_GATEWAY":
            heads = step["parallelNextSteps"]
            self._spend(STEP_WORK * len(heads))
            self.closed[step["id"], "COMPLETED"] += 1
            block = Block(step["id"], token, len(heads))
            self.blocks.append(block)
            for head in heads:
                branch = ModelToken(block=block, side=token.side)
                self.tokens.append(branch)
                self._go(branch, head)
            return
        elif step.get("errorCode"):
            raise Stuck(str(step["errorCode"]), step["errorCode"])
        else:
            result = self._result(step)
            self.closed[step["id"], "COMPLETED"] += 1
            self._end("COMPLETED", None, but=token)
            self.result = result
            return
        self.closed[step["id"], "COMPLETED"] += 1
        self._go(token, target)

    def _count(self) -> None:
        self._automatic += 1
        if self._automatic > self._bound:
            raise Stuck("automatic steps")

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > self._work_bound:
            raise Stuck("steps of work")

    def _leave_with(self, token: ModelToken, output: dict[str, Any]) -> None:
        if token.item is not None:
            self._finish_item(token, output, "COMPLETED")
            return
        self.variables.update(copy.deepcopy(output))
        if token.undoes >= 0:
            self._close(token, "COMPENSATED")
            self._leave(token)
            return
        if f"{token.step}/compensation" in self.steps:
            self.completed.append((token.step, copy.deepcopy(output) or None, None))
        self._close(token, "COMPLETED")
        self._leave(token)

    # -- for each

    def _begin_map(self, token: ModelToken, step: dict[str, Any]) -> None:
        each = step["forEach"]
        items = self._read_items(each)
        if items:
            self._time(step)
        else:
            self._count()
        about = Map(step["id"], token, 0, each=each, items=items)
        self.blocks.append(about)
        self._maps_begun.append(about)
        if not items:
            self._finish_map(about)
            return
        token.timers |= timers_of(step)
        self._begin_items(about)

    def _read_items(self, each: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            found = self._evaluate(each["items"])
        except Stuck as stuck:
            if str(stuck) != "expression":
                raise
            found = None
        if not isinstance(found, list) or len(found) > ITEMS_MAX:
            raise Stuck("BadItems", "Penstock.BadItems")
        self._spend(ITEM_WORK * len(found))
        name, index = each.get("as", "item"), each.get("index")
        items = [{name: item, **({index: place} if index else {})} for place, item in enumerate(found)]
        size = sum(len(msgspec.json.encode(item)) for item in items)
        self._spend(size // BYTES_PER_STEP)
        if size > ITEMS_MAX_BYTES:
            raise Stuck("BadItems", "Penstock.BadItems")
        return items

    def _begin_items(self, about: Map) -> None:
        """As many as may be under way, and begin in one move."""
        parallel = about.each.get("parallel", PARALLEL_DEFAULT)
        while about.next < len(about.items) and about.under_way - about.arrived < parallel:
            if not self._may_begin():
                self._begin_later(about)
                return
            token = ModelToken(block=about, side=about.owner.side)
            self.tokens.append(token)
            self._begin_item(about, token)

    def _may_begin(self) -> bool:
        return self._items_begun < ITEMS_PER_MOVE and self._work <= self.max_work // 2

    def _begin_later(self, about: Map) -> None:
        if not about.arrived:
            about.arrived = 1
            about.under_way += 1
            about.owner.timers.add(CONTINUE)

    def _begin_item(self, about: Map, token: ModelToken) -> None:
        token.item = about.next
        about.next += 1
        about.under_way += 1
        self._items_begun += 1
        self._go(token, about.gateway)

    def _finish_item(self, token: ModelToken, output: dict[str, Any], how: str) -> None:
        about, item = map_of(token), token.item
        try:
            kept, enough = self._judge(about, token, output)
        except Stuck as stuck:
            self._keep_raw(token, output, how, stuck)
            return
        if how == "COMPLETED" and f"{token.step}/compensation" in self.steps:
            self.completed.append((token.step, copy.deepcopy(output), item))
        self._close(token, how)
        self._item_over(about, token, kept, how, enough=enough)

    def _judge(self, about: Map, token: ModelToken, output: dict[str, Any]) -> tuple[dict[int, Any], bool]:
        """What is kept of it, by item; and whether the whole step is done with it."""
        each = about.each
        kept: dict[int, Any] = {}
        if not ("collect" in each or "until" in each):
            return kept, False
        self._spend(len(msgspec.json.encode(output)) // BYTES_PER_STEP)
        scope = {**self._scope_of(token), "result": copy.deepcopy(output)}
        if "collect" in each:
            assert token.item is not None
            kept[token.item] = self._evaluate(each["collect"], scope)
        if "until" not in each:
            return kept, False
        running = about.under_way - about.arrived - 1
        counts = {"total": len(about.items), "completed": about.done + 1, "failed": about.failed, "running": running}
        enough = self._evaluate(each["until"], {**scope, "items": counts})
        if not isinstance(enough, bool):
            raise Stuck("not true or false")
        return kept, enough

    def _item_over(
        self, about: Map, token: ModelToken, kept: dict[int, Any], how: str, *, enough: bool = False
    ) -> None:
        about.kept |= kept
        about.done += how == "COMPLETED"
        about.failed += how == "FAILED"
        about.under_way -= 1
        left = about.next < len(about.items)
        if enough:
            self._skip_items(about, token)
            self._finish_map(about)
        elif left and self._may_begin():
            self._begin_item(about, token)
        else:
            if left:
                self._begin_later(about)
            self._vanish(token)
            if not about.under_way:
                self._finish_map(about)

    def _finish_map(self, about: Map) -> None:
        self.blocks.remove(about)
        owner, into = about.owner, about.each.get("into")
        if into:
            if about not in self._maps_begun:
                self._work_bound = self._work + self.max_work
                size = sum(len(msgspec.json.encode(value)) for value in about.kept.values())
                self._spend(min(size // BYTES_PER_STEP, self.max_work // 2))
            self.variables[into] = [copy.deepcopy(about.kept.get(place)) for place in range(len(about.items))]
        self._close(owner, "COMPLETED")
        owner.done = True
        self._go(owner, owner.step)

    def _skip_items(self, about: Map, but: ModelToken | None) -> None:
        moving = [token for token, _ in self._moving]
        items = [token for token in self.tokens if token.item is not None and token.block is about]
        for token in items:
            if token.open and token is not but and token not in moving:
                self._close(token, "SKIPPED")
            self._vanish(token)
        self._moving = deque(one for one in self._moving if one[0] not in items)

    def _give_up_map(self, token: ModelToken, but: ModelToken | None = None) -> None:
        """If the token is that of a forEach: its items are skipped, and nothing is gathered."""
        about = self._map_on(token)
        if about is not None:
            self._skip_items(about, but)
            self.blocks.remove(about)

    def _map_on(self, token: ModelToken) -> Map | None:
        return next((about for about in self.blocks if isinstance(about, Map) and about.owner is token), None)

    def _scope_of(self, token: ModelToken) -> dict[str, Any]:
        own = {} if token.item is None else map_of(token).items[token.item]
        return copy.deepcopy({**self.variables, **own})

    # -- undoing

    def _newest(self, step: dict[str, Any], before: int | None = None) -> int | None:
        """The place of what is to be undone next."""
        for place in reversed(range(len(self.completed) if before is None else before)):
            if place not in self._taken and self.completed[place][0] in (step.get("steps") or self.steps):
                return place
        return None

    def _undo(self, step: dict[str, Any], owner: ModelToken, place: int) -> None:
        block = Block(step["id"], owner, 1)
        self.blocks.append(block)
        self._handle(block, place)

    def _handle(self, block: Block, place: int) -> None:
        token = ModelToken(block=block, side=block.owner.side, undoes=place)
        self._taken.add(place)
        self.tokens.append(token)
        self._go(token, f"{self.completed[place][0]}/compensation")

    def _undone(self, token: ModelToken) -> None:
        block = token.block
        assert block is not None
        self._vanish(token)
        newest = self._newest(self.steps[block.gateway], before=token.undoes)
        if newest is not None:
            self._handle(block, newest)
            return
        self.blocks.remove(block)
        if block.gateway != UNDO:
            self._go(block.owner, self.steps[block.gateway]["nextStep"])
            return
        assert self.ending is not None
        status, failure, self.failure_code = self.ending
        self._end(status, failure, undone=True)

    def _compensate_first(self, status: str, failure: str | None, but: ModelToken | None) -> bool:
        """Undo what the instance did before it ends so; False where there is nothing to undo."""
        if UNDO not in self.steps:
            return False
        before = set(self._taken)
        self._taken -= {token.undoes for token in self.tokens}
        newest = self._newest(self.steps[UNDO])
        if newest is None:
            self._taken = before
            return False
        self._close_all(but)
        self.ending = status, failure, self.failure_code
        self.failure_code = None
        self._bound = self._automatic + self.max_automatic
        self._work_bound = self._work + self.max_work
        self._entries += 1
        self.closed[UNDO, "COMPLETED"] += 1
        owner = ModelToken(step=UNDO)
        self.tokens.append(owner)
        self._undo(self.steps[UNDO], owner, newest)
        return True

    def _leave(self, token: ModelToken) -> None:
        """Of a step that is done."""
        if token.undoes >= 0:
            self._undone(token)
            return
        step = self.steps[token.step]
        token.done = True
        if token.raw is not None and not self._map_again(token, token.raw):
            return
        try:
            target = self._choose(step) if step.get("conditionalNextSteps") else step.get("nextStep")
        except Stuck as stuck:
            token.open = True  # for the retry
            self._end("FAILED", str(stuck), but=token)
            return
        token.done = False
        if target:
            self._go(token, target)
        else:
            self._dead_end(token)

    def _one_less(self, block: Block, *, arrived: bool) -> None:
        block.under_way -= 1
        block.arrived += arrived
        if block.under_way:
            return
        self.blocks.remove(block)
        if not block.arrived:
            self._dead_end(block.owner)
            return
        join = self.steps[block.gateway]["joinStep"]
        self._entries += 1
        self._automatic += 1
        block.owner.step, block.owner.entered = join, self._entries
        self.closed[join, "COMPLETED"] += 1
        self._go(block.owner, self.steps[join]["nextStep"])

    def _dead_end(self, token: ModelToken) -> None:
        block = token.block
        self._vanish(token)
        if block is not None:
            self._one_less(block, arrived=False)

    def _vanish(self, token: ModelToken) -> None:
        self.tokens.remove(token)
        token.open, token.block = False, None

    def _close(self, token: ModelToken, how: str) -> None:
        self.closed[token.step, how] += 1
        token.open, token.timers, token.backing_off = False, set(), False
        token.parked, token.signal = False, ""

    def _fail(
        self, token: ModelToken, reason: str, code: str | None = None, data: dict[str, Any] | None = None
    ) -> None:
        step = self.steps[token.step]
        if token.undoes >= 0:
            reason = f"compensation of step '{step['undoes']}' failed: {reason}"
        for event in boundaries(step, "ERROR") if code is not None and self._automatic < self._bound else ():
            name = "Penstock.RetriesExhausted" if code == "Penstock.NotRetryable" else code
            if name in (event.get("errorCodes") or (name,)):
                self._automatic += 1
                if event.get("errorVariable"):
                    error = {"code": code, "message": reason, "stepId": step["id"], "data": data}
                    self.variables[event["errorVariable"]] = error
                whole = token if token.item is None else map_of(token).owner
                if whole is not token:
                    self._close(token, "FAILED")
                self._give_up_map(whole, token)
                self._close(whole, "CAUGHT")
                self._go(whole, event["targetStepId"])
                return
        if token.item is not None:
            about = map_of(token)
            if code is not None and about.each.get("onError") == "COLLECT":
                self._close(token, "FAILED")
                kept = {token.item: {"error": {"code": code, "message": reason}}} if "into" in about.each else {}
                self._item_over(about, token, kept, "FAILED")
                return
            self._close(about.owner, "FAILED")
        self._close(token, "FAILED")
        token.open = True  # for the retry
        self.failure_code = code
        self._end("FAILED", reason, but=token)

    def _end(self, status: str, failure: str | None, but: ModelToken | None = None, *, undone: bool = False) -> None:
        self._saved = None
        failed = status == "FAILED" and but is not None and but.undoes < 0
        if failed and self.undoes_failures and not self.undoing and self._compensate_first(status, failure, but):
            return
        if status == "FAILED" and not undone:
            for token, step in self._moving:
                token.step, token.open = step, True
            memo: dict[int, Any] = {}
            self._saved = copy.deepcopy((self.tokens, self.blocks), memo)
        self._close_all(but)
        self.status, self.failure = status, failure

    def _close_all(self, but: ModelToken | None) -> None:
        moving = [token for token, _ in self._moving]
        wholes = [about.owner for about in self.maps]
        but_whole = None if but is None or but.item is None else map_of(but).owner
        for token in self.tokens:
            if (token.open or token in wholes) and token not in (but, but_whole, *moving):
                self.closed[token.step, "SKIPPED"] += 1
        self.tokens, self.blocks = [], []
        self._moving.clear()

    # -- expressions

    def _evaluate(self, text: str, scope: dict[str, Any] | None = None) -> Any:
        try:
            result, steps = parse(text).measure(self.variables if scope is None else scope, self.now)
        except ExpressionError as error:
            self._spend(error.steps)
            raise Stuck("expression") from error
        self._spend(steps)
        return result

    def _choose(self, step: dict[str, Any]) -> str:
        for condition, target in step["conditionalNextSteps"].items():
            holds = self._evaluate(condition)
            if holds is True:
                return str(target)
            if holds is not False:
                raise Stuck("not true or false")
        raise Stuck("DecisionNoBranchMatched")

    def _result(self, step: dict[str, Any]) -> dict[str, Any] | None:
        """What an END gives; the variables stay as they are."""
        if step.get("output") is None:
            return None
        return self._assign(step["output"], copy.deepcopy(self.variables))

    def _transform(self, step: dict[str, Any]) -> None:
        self.variables.update(self._assign(step["transformations"], copy.deepcopy(self.variables)))

    def _assign(self, assignments: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, value in assignments.items():
            written = isinstance(value, str) and value.startswith("${") and value.endswith("}")
            given[name] = scope[name] = self._evaluate(value, scope) if written else value
            self._spend(len(msgspec.json.encode(given[name])) // BYTES_PER_STEP)
        return given

    # -- blocks

    def _find_inside(self, gateway: dict[str, Any]) -> set[str]:
        join = gateway["joinStep"]
        from_heads = self._reach(gateway["parallelNextSteps"], lambda step: step != join)
        behind = self._reach([join], lambda step: step != gateway["id"])
        return from_heads - behind - {join}

    def _reach(self, starts: list[str], through: Callable[[str], bool]) -> set[str]:
        found: set[str] = set()
        waiting = list(starts)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            if through(name):
                waiting += leads_to(self.steps[name])
        return found


def kind(step: dict[str, Any]) -> str:
    return str(step["type"])


def boundaries(step: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in step.get("boundaryEvents") or () if event["type"] == kind]


def timers_of(step: dict[str, Any]) -> set[int]:
    events = step.get("boundaryEvents") or ()
    return {index for index, event in enumerate(events) if event["type"] == "TIMER"}


def map_of(token: ModelToken) -> Map:
    """Of an item: its forEach."""
    assert isinstance(token.block, Map)
    return token.block


def called_with(token: ModelToken, output: dict[str, Any]) -> dict[str, Any]:
    """The variables of an instance that was called, at its end."""
    assert token.called is not None
    return {**copy.deepcopy(token.called), **copy.deepcopy(output)}


def below_of(token: ModelToken, tokens: list[ModelToken], blocks: list[Block]) -> tuple[list[Block], list[ModelToken]]:
    """The blocks whose token it is, with those within; and all of their branches."""
    own = [block for block in blocks if block.owner is token]
    below = [each for each in tokens if each.block in own]
    for each in [*below]:
        more, deeper = below_of(each, tokens, blocks)
        own += more
        below += deeper
    return own, below


def leads_to(step: dict[str, Any]) -> list[str]:
    """Every step that this one may be followed by."""
    targets = [step.get("nextStep"), step.get("joinStep"), *step.get("parallelNextSteps", ())]
    targets += step.get("conditionalNextSteps", {}).values()
    targets += [event["targetStepId"] for event in step.get("boundaryEvents", ())]
    return [target for target in targets if target]
