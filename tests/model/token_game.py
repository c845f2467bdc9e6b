"""A second opinion on what workflows do: a token game, written from the rules (docs/guarantees.md), not from `advance`.

It works on the definition's JSON, keeps no rows, no ids and no positions: only what is open, what each gateway waits
for, the variables, and what was closed how. The engine and this game play the same moves, and are compared after
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

from penstock.core.expression import ExpressionError, parse
from penstock.core.recorder import MAX_WORK_STEPS
from penstock.core.work import BYTES_PER_STEP, STEP_WORK

TASKS = ("SERVICE_TASK", "USER_TASK", "WAIT")
CONTINUE = -3
"""The timer of what is left for a move of its own: the next of many kept signals."""


@dataclass(eq=False)
class Block:
    """A gateway that was passed and whose join has not fired."""

    gateway: str
    owner: Mark
    under_way: int
    arrived: int = 0


@dataclass(eq=False)
class Mark:
    """A token. ``step`` is where it stands, or where it is about to go."""

    block: Block | None = None
    side: bool = False
    step: str = ""
    open: bool = False
    entered: int = 0
    failures: int = 0
    backing_off: bool = False
    done: bool = False  # its step is; where it leads could not be decided
    timers: set[int] = field(default_factory=set)


class Stuck(Exception):
    """A step that can't go on: the instance fails with this."""


class TokenGame:
    """One instance. Moves name an open mark by its place in `open_marks`."""

    def __init__(
        self,
        definition: dict[str, Any],
        variables: dict[str, Any],
        now: datetime,
        max_automatic: int,
        max_work: int = MAX_WORK_STEPS,
    ) -> None:
        self.steps: dict[str, dict[str, Any]] = {step["id"]: step for step in definition["steps"]}
        self.variables = copy.deepcopy(variables)
        self.now = now
        self.max_automatic = max_automatic
        self.max_work = max_work
        self.status = "ACTIVE"
        self.failure: str | None = None
        self.closed: Counter[tuple[str, str]] = Counter()
        self.marks: list[Mark] = []
        self.blocks: list[Block] = []
        self._moving: deque[tuple[Mark, str]] = deque()
        self._entries = 0
        self._automatic = self._bound = 0
        self._work = self._work_bound = 0
        self.timers_fired = 0
        self._saved: tuple[list[Mark], list[Block]] | None = None
        self._signals: dict[str, list[dict[str, Any]]] = {}
        self._inside = {
            step["id"]: self._find_inside(step) for step in definition["steps"] if kind(step) == "PARALLEL_GATEWAY"
        }
        first = Mark()
        self._begin()
        self.marks.append(first)
        self._go(first, definition["steps"][0]["id"])
        self._settle()

    # -- what can be seen

    @property
    def open_marks(self) -> list[Mark]:
        return sorted((mark for mark in self.marks if mark.open), key=lambda mark: mark.entered)

    @property
    def waiting(self) -> bool:
        return any(kind(self.steps[mark.step]) != "SERVICE_TASK" for mark in self.open_marks)

    # -- moves

    def complete(self, place: int, output: dict[str, Any]) -> None:
        """The job is done, the user task completed, the wait signalled."""
        mark = self.open_marks[place]
        self._begin()
        self._leave_with(mark, output)
        self._settle()

    def fail(self, place: int, reason: str, *, retryable: bool) -> None:
        mark = self.open_marks[place]
        step = self.steps[mark.step]
        self._begin()
        if retryable and mark.failures < int(step.get("retryCount") or 0):
            mark.failures += 1
            mark.backing_off = bool(step.get("retryBackoff"))
            if mark.backing_off:
                mark.timers.add(-1)
        else:
            self._fail(mark, reason)

    def fire(self, place: int, index: int) -> None:
        mark = self.open_marks[place]
        step = self.steps[mark.step]
        self._begin()
        mark.timers.remove(index)
        if kind(step) == "WAIT" and self._signals.get(step["id"]):
            self._take_signal(mark)
        elif index == CONTINUE:
            pass
        elif index == -1:
            mark.backing_off = False
        elif index == -2:
            self.timers_fired += 1
            self._leave_with(mark, {})
        else:
            self.timers_fired += 1
            event = step["boundaryEvents"][index]
            if event.get("interrupting"):
                self._close(mark, "INTERRUPTED")
                self._go(mark, event["targetStepId"])
            else:
                beside = Mark(side=True)
                self.marks.append(beside)
                self._go(beside, event["targetStepId"])
        self._settle()

    def edit(self, given: dict[str, Any], removed: str) -> None:
        """Somebody changes the variables of an instance that waits or has failed."""
        assert self.status == "FAILED" or self.waiting
        self.variables.pop(removed, None)
        self.variables.update(copy.deepcopy(given))

    def cancel(self) -> None:
        self._begin()
        self._end("CANCELLED", "cancelled")

    def keep_signal(self, step: str, output: dict[str, Any]) -> None:
        """For a wait that is not open yet."""
        self._signals.setdefault(step, []).append(output)

    @property
    def kept_signals(self) -> Counter[str]:
        return Counter({step: len(kept) for step, kept in self._signals.items() if kept})

    def retry(self) -> None:
        assert self.status == "FAILED"
        assert self._saved is not None
        self._begin()
        self.status, self.failure = "ACTIVE", None
        self.marks, self.blocks = self._saved
        for mark in sorted(self.marks, key=lambda mark: (mark.entered == 0, mark.entered)):
            if mark.open:
                mark.open = False
                self._go(mark, mark.step)
        self._settle()

    # -- the rules

    def _begin(self) -> None:
        self._automatic, self._bound = 0, self.max_automatic
        self._work, self._work_bound = 0, self.max_work

    def _go(self, mark: Mark, step: str) -> None:
        self._moving.append((mark, step))

    def _settle(self) -> None:
        while self._moving and self.status == "ACTIVE":
            mark, step = self._moving.popleft()
            if mark.done:
                self._leave(mark)
                continue
            try:
                self._step_onto(mark, step)
            except Stuck as stuck:
                self._fail(mark, str(stuck))

    def _step_onto(self, mark: Mark, name: str) -> None:
        step = self.steps[name]
        block = mark.block
        if block is not None:
            if name == self.steps[block.gateway]["joinStep"]:
                self._vanish(mark)
                self._one_less(block, arrived=True)
                return
            if name not in self._inside[block.gateway] and kind(step) != "END":
                mark.block = None
                self._one_less(block, arrived=False)
        if kind(step) == "JOIN_GATEWAY" and mark.side:
            self._dead_end(mark)
            return
        self._entries += 1
        mark.step, mark.entered = name, self._entries
        mark.failures, mark.backing_off, mark.timers = 0, False, set()
        self._spend(STEP_WORK)
        if kind(step) in TASKS:
            self._park(mark, step)
        else:
            self._pass(mark, step)

    def _park(self, mark: Mark, step: dict[str, Any]) -> None:
        if kind(step) == "WAIT":
            until = step.get("duration") or step.get("until")
            if until:
                mark.timers.add(-2)
                if until.startswith("${"):
                    self._evaluate(until)
        mark.timers |= set(range(len(step.get("boundaryEvents") or ())))
        mark.open = True
        if kind(step) == "WAIT" and self._signals.get(step["id"]):
            if self._automatic <= self.max_automatic // 2 and self._work <= self.max_work // 2:
                self._take_signal(mark)
            else:
                mark.timers.add(CONTINUE)

    def _take_signal(self, mark: Mark) -> None:
        self._automatic += 1
        self._bound = self._automatic + self.max_automatic
        self._work_bound = self._work + self.max_work
        self._leave_with(mark, self._signals[mark.step].pop(0))

    def _pass(self, mark: Mark, step: dict[str, Any]) -> None:
        if kind(step) == "JOIN_GATEWAY":
            raise Stuck("JoinWithoutGateway")
        self._count()
        if kind(step) == "DECISION":
            target = self._choose(step)
        elif kind(step) == "TRANSFORMATION":
            self._transform(step)
            target = step["nextStep"]
        elif kind(step) == "PARALLEL_GATEWAY":
            heads = step["parallelNextSteps"]
            self._spend(STEP_WORK * len(heads))
            self.closed[step["id"], "COMPLETED"] += 1
            block = Block(step["id"], mark, len(heads))
            self.blocks.append(block)
            for head in heads:
                branch = Mark(block=block, side=mark.side)
                self.marks.append(branch)
                self._go(branch, head)
            return
        else:
            self.closed[step["id"], "COMPLETED"] += 1
            self._end("COMPLETED", None, but=mark)
            return
        self.closed[step["id"], "COMPLETED"] += 1
        self._go(mark, target)

    def _count(self) -> None:
        self._automatic += 1
        if self._automatic > self._bound:
            raise Stuck("automatic steps")

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > self._work_bound:
            raise Stuck("steps of work")

    def _leave_with(self, mark: Mark, output: dict[str, Any]) -> None:
        self.variables.update(copy.deepcopy(output))
        self._close(mark, "COMPLETED")
        self._leave(mark)

    def _leave(self, mark: Mark) -> None:
        """Of a step that is done."""
        step = self.steps[mark.step]
        mark.done = True
        try:
            target = self._choose(step) if step.get("conditionalNextSteps") else step.get("nextStep")
        except Stuck as stuck:
            mark.open = True  # for the retry
            self._end("FAILED", str(stuck), but=mark)
            return
        mark.done = False
        if target:
            self._go(mark, target)
        else:
            self._dead_end(mark)

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

    def _dead_end(self, mark: Mark) -> None:
        block = mark.block
        self._vanish(mark)
        if block is not None:
            self._one_less(block, arrived=False)

    def _vanish(self, mark: Mark) -> None:
        self.marks.remove(mark)
        mark.open, mark.block = False, None

    def _close(self, mark: Mark, how: str) -> None:
        self.closed[mark.step, how] += 1
        mark.open, mark.timers, mark.backing_off = False, set(), False

    def _fail(self, mark: Mark, reason: str) -> None:
        self._close(mark, "FAILED")
        mark.open = True  # for the retry
        self._end("FAILED", reason, but=mark)

    def _end(self, status: str, failure: str | None, but: Mark | None = None) -> None:
        if status == "FAILED":
            for mark, step in self._moving:
                mark.step, mark.open = step, True
            memo: dict[int, Any] = {}
            self._saved = copy.deepcopy((self.marks, self.blocks), memo)
        moving = [mark for mark, _ in self._moving]
        for mark in self.marks:
            if mark.open and mark is not but and mark not in moving:
                self.closed[mark.step, "SKIPPED"] += 1
        self.marks, self.blocks = [], []
        self._moving.clear()
        self.status, self.failure = status, failure

    # -- expressions

    def _evaluate(self, text: str) -> Any:
        try:
            result, steps = parse(text).measure(self.variables, self.now)
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

    def _transform(self, step: dict[str, Any]) -> None:
        before = self.variables
        self.variables = copy.deepcopy(before)
        try:
            for name, value in step["transformations"].items():
                written = isinstance(value, str) and value.startswith("${") and value.endswith("}")
                self.variables[name] = self._evaluate(value) if written else value
                self._spend(len(msgspec.json.encode(self.variables[name])) // BYTES_PER_STEP)
        except Stuck:
            self.variables = before
            raise

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


def leads_to(step: dict[str, Any]) -> list[str]:
    """Every step that this one may be followed by."""
    targets = [step.get("nextStep"), step.get("joinStep"), *step.get("parallelNextSteps", ())]
    targets += step.get("conditionalNextSteps", {}).values()
    targets += [event["targetStepId"] for event in step.get("boundaryEvents", ())]
    return [target for target in targets if target]
