"""The names of the language, for those who complete what is typed: from the tables that parser and evaluator use."""

from __future__ import annotations

from typing import Final

from penstock.core.expression.chronology import DATE_METHODS, DURATION_METHODS
from penstock.core.expression.lexer import NAMED_WORDS, OPERATOR_WORDS

_LITERALS: Final = ("true", "false", "nil")


def words() -> list[str]:
    """Operators and values that are words."""
    return sorted((*OPERATOR_WORDS, *NAMED_WORDS, *_LITERALS))


def methods() -> list[str]:
    """Of dates and durations."""
    return sorted({*DATE_METHODS, *DURATION_METHODS})
