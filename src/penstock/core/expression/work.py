"""What one advance may cost, counted: never timed, since a verdict may not depend on the machine.

The unit is a step of the expression language: one plain node, about 0.08 µs and at worst 0.26. Three ways to spend it:
*here*, where a smaller allowance ends the attempt with `LongWork` (the caller throws it away and asks again elsewhere);
*recording*, where what every evaluation gave is kept; and *replaying* such a record, which evaluates nothing and comes
to the same verdict, because each evaluation is charged as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from penstock.core.expression import Expression, ExpressionError, ExpressionLimits, OutOfSteps

T = TypeVar("T")

STEP_WORK: Final = 50
"""Entering a step, or making a token: 4 µs."""
BYTES_PER_STEP: Final = 16
"""Of variables written as JSON text, twice each."""

Record = list[tuple[Any, ExpressionError | None, int]]
"""What evaluations gave, in order: (result, error, steps)."""


class TooMuchWork(Exception):
    """The advance is over its budget: its instance fails."""


class LongWork(Exception):
    """The advance takes longer than it may here: throw it away, and do it where nobody waits for it."""


class Work:
    """The budget of one advance, chained starts included. ``record`` is what its evaluations gave so far."""

    __slots__ = ("_bound", "_free", "_here", "_replay", "_replay_only", "limit", "record", "spent")

    def __init__(self, limit: int, *, here: int | None = None, replay: Record | None = None) -> None:
        """``here``: raise LongWork beyond so many steps. ``replay``: the record of an attempt with the same inputs."""
        self.limit = limit
        self.spent = 0
        self.record: Record = []
        self._here = here
        self._set_bound(limit)
        self._replay: deque[tuple[Any, ExpressionError | None, int]] | None = deque(replay) if replay else None
        self._replay_only = replay is not None

    def _set_bound(self, bound: int) -> None:
        self._bound = bound
        self._free = bound if self._here is None else min(bound, self._here)  # up to here spending is just a sum

    def spend(self, steps: int) -> None:
        """Raises TooMuchWork or LongWork."""
        self.spent = spent = self.spent + steps
        if spent > self._free:
            if spent > self._bound:
                raise TooMuchWork(f"more than {self.limit} steps of work in one advance")
            raise LongWork

    @property
    def may_go_on(self) -> bool:
        """Return whether something may follow that could be left for an advance of its own."""
        return self.spent <= self.limit // 2

    def begin_anew(self) -> None:
        """What follows has a whole budget."""
        self._set_bound(self.spent + self.limit)

    def evaluate(
        self,
        expression: Expression,
        variables: Mapping[str, object],
        now: datetime,
        limits: ExpressionLimits | None = None,
    ) -> object:
        """Return the expression's result. Raises ExpressionError, TooMuchWork or LongWork."""
        if self._replay or self._replay_only:
            result, error, steps = self._recall()
        else:
            error = None
            steps_max = self._free - self.spent
            try:
                result, steps = expression.measure(variables, now, limits, steps_max)
            except OutOfSteps:
                result, steps = None, steps_max + 1
            except ExpressionError as found:
                result, error, steps = None, found, found.steps
        self.record.append((result, error, steps))
        self.spend(steps)
        if error is not None:
            raise error
        return result

    def keep(self, make: Callable[[], T]) -> T:
        """What ``make`` gives, or gave when the record was made."""
        made = self._recall() if self._replay or self._replay_only else (make(), None, 0)
        self.record.append(made)
        return cast(T, made[0])

    def mark(self) -> tuple[int, int, int]:
        """Return a place to `rewind` to."""
        return len(self.record), self.spent, self._bound

    def rewind(self, mark: tuple[int, int, int]) -> None:
        """The same is done once more from ``mark`` on; what was evaluated since need not be again."""
        place, self.spent, bound = mark
        self._set_bound(bound)
        if self._replay is None:
            self._replay = deque()
        self._replay.extendleft(reversed(self.record[place:]))
        del self.record[place:]

    def _recall(self) -> tuple[Any, ExpressionError | None, int]:
        assert self._replay, "the record is of other inputs"
        return self._replay.popleft()
