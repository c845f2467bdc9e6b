"""How much an expression may cost: every bound of the package, named with its unit.

Relies on nothing. Must not hold behaviour: the modules that spend a budget check it.

What protects the engine from one hostile definition: text, tokens and depth bound what the parser does and how
deep Python recurses; steps bound the time of an evaluation (they are counted, never a clock, so the same
expression on the same variables always ends the same way); the rest bounds memory.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_DEPTH_LEVELS = 80
"""Hard ceiling of ``depth_levels``: a level costs up to seven Python frames, and the interpreter stops at 1,000."""

MAX_VALUE_LEVELS = 128
"""Hard ceiling of ``value_levels``, for the same reason (two or three frames a level)."""

MAX_INTEGER_BITS = 14_000
"""Hard ceiling of ``integer_bits``: Python turns no integer of more than 4,300 digits into text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionLimits:
    """The bounds of one expression. Each default lets through what definitions do, and costs milliseconds at most.

    Raises ``ValueError`` when a bound is not positive or is over what the interpreter itself can carry.
    """

    source_chars: int = 10_000
    tokens: int = 4_096
    depth_levels: int = 64
    """Nesting of the source: brackets, unary operators, and operators that bind tighter than their left neighbour."""

    steps: int = 100_000
    """Work of one evaluation beyond the plain walk through the expression (which ``tokens`` bounds): nodes evaluated
    per element of a loop, and characters, items or bytes that functions and operators go through."""

    text_chars: int = 262_144
    """Longest string that an operator or a function may make."""

    array_items: int = 100_000
    """Longest array, or largest map, that an operator or a function may make."""

    integer_bits: int = 8_192
    """Largest whole number that arithmetic may make (about 2,400 digits)."""

    pattern_chars: int = 1_024
    """Longest regular expression."""

    value_levels: int = 100
    """Deepest array or map that is compared, converted or returned."""

    result_digits: int = 1_000
    """Of a whole number in the result: no client may give back a longer one."""

    result_bytes: int = 262_144
    """Size of the result as JSON text in UTF-8."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        ceilings = {
            "depth_levels": MAX_DEPTH_LEVELS,
            "value_levels": MAX_VALUE_LEVELS,
            "integer_bits": MAX_INTEGER_BITS,
        }
        for name, ceiling in ceilings.items():
            if getattr(self, name) > ceiling:
                raise ValueError(f"{name} must be at most {ceiling}")


DEFAULT = ExpressionLimits()
