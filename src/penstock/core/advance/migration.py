"""Whether an instance can go on in another version of its definition, and what changes when it does. Pure.

Each token stays where it is: on the step of the same id, or of the one that is named for it. What can't be kept is a
reason not to: all of them are told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from penstock.core.advance.effect import Timer
from penstock.core.expression import Expression, ExpressionError
from penstock.core.expression.work import TooMuchWork
from penstock.core.graph.definition import Boundary, Definition, Step, StepType
from penstock.core.graph.wait import WaitError, lasting_s
from penstock.core.rules.state import JOB_STATES, Token, TokenState
from penstock.errors import Conflict

REASONS_MAX: Final = 20
TimerRule = Literal["FROM_ENTRY", "KEEP_DEADLINE", "FROM_NOW"]
"""When a boundary timer that has another duration in the version fires: so long after its step was entered, when it
would have fired, or so long after the migration."""
TIMER_RULES: Final[tuple[TimerRule, ...]] = ("FROM_ENTRY", "KEEP_DEADLINE", "FROM_NOW")
_WHENEVER: Final = datetime.min.replace(tzinfo=UTC)
_HELD: Final = (TokenState.LOCKED, TokenState.DISPATCHED)


def numbers(old: Definition, new: Definition, renamed: Mapping[str, str]) -> list[int]:
    """By the numbers of steps in ``old`` those in ``new``; -1: it has none."""
    found = [counterpart(old, new, renamed, step.index) for step in old.steps]
    return [-1 if step is None else step.index for step in found]


def counterpart(old: Definition, new: Definition, renamed: Mapping[str, str], index: int) -> Step | None:
    """What a step of ``old`` is in ``new``. A handler is that of the step that it undoes."""
    before = old.steps[index]
    if before.compensates is not None:
        undone = counterpart(old, new, renamed, before.compensates)
        return None if undone is None or undone.compensation is None else new.steps[undone.compensation]
    return new.step(renamed.get(before.id, before.id))


def not_compensated_any_more(old: Definition, new: Definition, renamed: Mapping[str, str]) -> list[int]:
    """Steps that ``old`` undoes, and ``new`` does not: instances that have completed one stay."""
    known = [(step.index, counterpart(old, new, renamed, step.index)) for step in old.steps if step.compensation]
    return [index for index, step in known if step is None or step.compensation is None]


class CantMigrate(Conflict):
    """Why an instance can't go on in the version."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = list(reasons[:REASONS_MAX])
        super().__init__("; ".join(self.reasons))


class Migration(NamedTuple):
    """What changes. ``timers``: all boundary timers as they are then. ``retyped``: tokens whose waiting job has another
    type; it goes behind those of that type."""

    steps: Mapping[int, int]
    """By token."""
    signals: Mapping[int, int]
    """By the step that kept signals are for: the step that they are for then."""
    timers: Sequence[Timer]
    retyped: Collection[int]
    timeouts_s: Mapping[int, float | None]
    """By token the time limit of its job."""
    due: int
    """Boundary timers that are due at once, and were not before."""


Evaluate = Callable[[Expression], object]
"""On the variables of the instance. Raises `ExpressionError` and `TooMuchWork`."""


def needs_variables(new: Definition) -> bool:
    """Return whether `plan_migration` may have to evaluate something."""
    return any(step.times_itself for step in new.steps)


def plan_migration(
    old: Definition,
    new: Definition,
    renamed: Mapping[str, str],
    tokens: Sequence[Token],
    armed: Sequence[Timer],
    signals: Collection[int],
    now: datetime,
    completed: Collection[int] = (),
    evaluate: Evaluate | None = None,
    rule: TimerRule = "FROM_ENTRY",
) -> Migration:
    """``renamed``: ids of steps in ``old`` and what they are in ``new``, where that is another one. ``tokens``: of
    an open instance, or what a failure closed. ``armed``: their timers; ``signals``: for which steps some are kept.
    ``completed``: those of `not_compensated_any_more` that it has completed. ``evaluate``: where `needs_variables` asks
    for it. ``rule``: of boundary timers with another duration. Raises CantMigrate."""
    plan = _Plan(old, new, renamed, {token.id: token for token in tokens}, evaluate, rule)
    for index in completed:
        plan.reasons.append(f"step '{old.steps[index].id}' was completed, and the version can't undo it any more")
    steps = {token.id: plan.place(token) for token in tokens}
    kept = {step: plan.step(step, "signals are kept for") for step in sorted(signals)}
    found = {id: step.index for id, step in steps.items() if step is not None}
    if not plan.reasons:
        for token in tokens:
            plan.check_block(token, found)
    if plan.reasons:
        raise CantMigrate(list(dict.fromkeys(plan.reasons)))
    timers = [
        timer
        for token in tokens
        if token.item is None  # those of a forEach are the whole step's
        for timer in plan.timers(token, new.steps[found[token.id]], armed, now)
    ]
    timeouts_s = {token.id: plan.timeout_s(token, new.steps[found[token.id]]) for token in tokens}
    if plan.reasons:
        raise CantMigrate(list(dict.fromkeys(plan.reasons)))
    retyped = {token.id for token in tokens if plan.is_retyped(token, new.steps[found[token.id]])}
    moved = {step: after.index for step, after in kept.items() if after is not None}
    return Migration(found, moved, timers, retyped, timeouts_s, plan.due)


def step_reasons(old: Definition, new: Definition, index: int) -> list[str]:
    """Why what stands on a step of ``old`` could not go on in ``new``, whatever else there is of its instance."""
    step = old.steps[index]
    state = TokenState.PARKED if step.callee is None else TokenState.CALLED
    plan = _Plan(old, new, {}, {})
    plan.place(Token(id=0, instance_id=0, seq=0, step=index, state=state, entered_at=_WHENEVER))
    return plan.reasons


class _Plan:
    def __init__(
        self,
        old: Definition,
        new: Definition,
        renamed: Mapping[str, str],
        tokens: Mapping[int, Token],
        evaluate: Evaluate | None = None,
        rule: TimerRule = "FROM_ENTRY",
    ) -> None:
        self._evaluate = evaluate
        self._rule: TimerRule = rule
        self.due = 0
        self._old = old
        self._new = new
        self._renamed = renamed
        self._tokens = tokens
        self.reasons: list[str] = []

    def step(self, index: int, what: str) -> Step | None:
        """What a step of the old version is in the new one."""
        before = self._old.steps[index]
        name = self._renamed.get(before.id, before.id)
        after = counterpart(self._old, self._new, self._renamed, index)
        if after is None:
            self.reasons.append(f"{what} step '{before.id}': the version has no '{name}'; say which step it becomes")
        elif after.type is not before.type:
            change = f"is a {before.type.value}, and '{after.id}' is a {after.type.value} in the version"
            self.reasons.append(f"{what} step '{before.id}', which {change}")
            return None
        return after

    def place(self, token: Token) -> Step | None:
        """Where a token stands then."""
        if token.state is TokenState.ENDED:  # nobody reads where it ended
            return self._new.steps[0]
        before, after = self._old.steps[token.step], self.step(token.step, "it stands on")
        if after is None:
            return None
        if token.state in _HELD and after.job_type != before.job_type:
            self.reasons.append(
                f"step '{before.id}' is under way as a job of type '{before.job_type}', which would be "
                f"'{after.job_type}': wait for its end, or end its lease"
            )
        if (before.for_each is None) is not (after.for_each is None):
            self.reasons.append(f"step '{before.id}' is a forEach in one of the versions, and is none in the other")
        awaited, awaits = (step.message.name if step.message else None for step in (before, after))
        if awaited != awaits:
            words = [f"the message '{name}'" if name else "no message" for name in (awaited, awaits)]
            self.reasons.append(f"step '{before.id}' waits for {words[0]}, and would wait for {words[1]}")
        if token.state is TokenState.CALLED and before.callee and after.callee:
            called, calls = before.callee.definition_id, after.callee.definition_id
            if called != calls:
                self.reasons.append(f"step '{before.id}' has called '{called}', and would call '{calls}'")
        return after

    def is_retyped(self, token: Token, after: Step) -> bool:
        before = self._old.steps[token.step]
        return token.state in JOB_STATES and before.job_type != after.job_type

    def check_block(self, token: Token, steps: Mapping[int, int]) -> None:
        """A branch has to be in its gateway's block still, and what is none in no block."""
        if token.state is TokenState.ENDED:
            return
        step = self._new.steps[steps[token.id]]
        if token.parent_id is None:
            around = [] if token.side or step.type is StepType.PARALLEL_GATEWAY else self._new.blocks.around(step.index)
            if around:
                name = self._new.steps[around[0]].id
                self.reasons.append(
                    f"step '{step.id}' is inside the block of gateway '{name}' in the version, and it came there "
                    "otherwise: its join would never end"
                )
            return
        gateway = self._new.steps[steps[token.parent_id]]
        if gateway.type is not StepType.PARALLEL_GATEWAY:
            return
        inside = self._new.is_inside(gateway.index, step.index) or step.index == gateway.join
        if not inside and step.type is not StepType.END:
            self.reasons.append(f"step '{step.id}' is outside of the block of gateway '{gateway.id}' in the version")

    def timers(self, token: Token, after: Step, armed: Sequence[Timer], now: datetime) -> Iterator[Timer]:
        """Its boundary timers. One that was there goes on; with another duration as the rule says. One that has fired
        does not come back, a new one begins now."""
        if token.state is TokenState.ENDED or not (token.is_open or after.for_each is not None):
            return
        own = {timer.index: timer.fire_at for timer in armed if (timer.token_id, timer.seq) == (token.id, token.seq)}
        left = self._old.steps[token.step].timers
        for index, event in after.timers:
            known = next((each for each in left if self._is_same(each[1], event)), None)
            field = f"boundaryEvents[{index}].duration"
            if known is None:
                seconds = self._lasting_s(after, event.seconds, field)
                yield Timer(now + timedelta(seconds=seconds), token.id, token.seq, index)
                continue
            left.remove(known)
            if known[0] in own:
                fire_at = own[known[0]]
                if known[1].seconds != event.seconds and self._rule != "KEEP_DEADLINE":
                    seconds = self._lasting_s(after, event.seconds, field)
                    begins = now if self._rule == "FROM_NOW" else token.entered_at
                    fire_at = begins + timedelta(seconds=seconds)
                    self.due += fire_at <= now < own[known[0]]
                yield Timer(fire_at, token.id, token.seq, index)

    def timeout_s(self, token: Token, after: Step) -> float | None:
        """Return the time limit of its job. What was evaluated stays; also of an item, whose variables are not at
        hand."""
        limit, before = after.timeout_s, self._old.steps[token.step].timeout_s
        if not token.is_open or (isinstance(limit, Expression) and (limit == before or token.item is not None)):
            return token.timeout_s
        return None if limit is None else self._lasting_s(after, limit, "timeout")

    def _lasting_s(self, step: Step, source: float | Expression, field: str) -> float:
        """Notes a reason where there is none."""
        if not isinstance(source, Expression):
            return source
        assert self._evaluate is not None, "variables were not read"
        try:
            return lasting_s(self._evaluate(source), f"`{field}`")
        except (ExpressionError, TooMuchWork) as error:
            self.reasons.append(f"step '{step.id}': `{field}`: {error}")
        except WaitError as error:
            self.reasons.append(f"step '{step.id}': {error}")
        return 0.0

    def _is_same(self, before: Boundary, after: Boundary) -> bool:
        target = self._old.steps[before.target].id
        same = self._renamed.get(target, target) == self._new.steps[after.target].id
        return same and before.interrupting == after.interrupting
