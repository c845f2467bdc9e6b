"""The state of one evaluation: variables, the element of the innermost predicate, and the budget.

Relies on `limits` and `failure`. Must not know nodes or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from penstock.core.expression.failure import Fault
from penstock.core.expression.limits import ExpressionLimits

ABSENT: Final = object()
"""Stands for an argument that is left out, where nil is none."""

CHARS_PER_STEP = 64
"""Copying or scanning text costs about 1/64 of evaluating a node, per character."""

SEARCHED_CHARS_PER_STEP = 16
"""Searching costs up to 5 ns a character with a hostile part (`aaa…baaa…` in `aaa…`)."""

NAIVE_SEARCH_BELOW_CHARS = 2_500
"""CPython searches shorter texts without its two-way algorithm: quadratic, up to 200 µs."""

ITEMS_PER_STEP = 8
"""Copying an array costs about 1/8 of evaluating a node, per item."""


class Frame:
    """Made for one evaluation and dropped with it. ``steps_left`` only goes down."""

    __slots__ = ("accumulator", "element", "index", "limits", "locals", "now", "steps_left", "variables")

    def __init__(
        self, variables: Mapping[str, object], now: datetime, limits: ExpressionLimits, slots: int, steps: int
    ) -> None:
        self.variables = variables
        self.now = now
        self.limits = limits
        self.steps_left = steps
        self.element: object = None
        self.index = 0
        self.accumulator: object = None
        self.locals: list[object] = [None] * slots

    def charge(self, steps: int) -> None:
        """Spend ``steps``. Raises `Fault` when the budget is used up."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise self.exhausted()

    def exhausted(self) -> Fault:
        return Fault(f"the evaluation takes more than {self.limits.steps} steps")

    def charge_chars(self, count: int) -> None:
        self.charge(count // CHARS_PER_STEP)

    def charge_items(self, count: int) -> None:
        self.charge(count // ITEMS_PER_STEP)

    def charge_search(self, text_chars: int, part_chars: int) -> None:
        """Before a string is searched for another one."""
        steps = text_chars // SEARCHED_CHARS_PER_STEP
        if text_chars < NAIVE_SEARCH_BELOW_CHARS:
            steps += text_chars * part_chars // 2_048
        self.charge(steps)

    def new_text_chars(self, count: int) -> None:
        """Before a string of ``count`` characters is made."""
        if count > self.limits.text_chars:
            raise Fault(f"a string of {count} characters is over the limit of {self.limits.text_chars}")
        self.charge_chars(count)

    def new_array_items(self, count: int) -> None:
        """Before an array of ``count`` items is made."""
        if count > self.limits.array_items:
            raise Fault(f"an array of {count} items is over the limit of {self.limits.array_items}")
        self.charge_items(count)

    def new_integer(self, value: int) -> int:
        """``value``, paid for by its length when it is longer than a machine word."""
        bits = value.bit_length()
        if bits > 64:
            if bits > self.limits.integer_bits:
                raise Fault(f"a whole number of more than {self.limits.integer_bits} bits")
            self.charge(bits // 32)
        return value


Run: TypeAlias = Callable[[Frame], object]
"""A compiled node."""

Advance: TypeAlias = Callable[[Frame, object], object]
"""A compiled step of a fold: takes what is left of the operator."""
