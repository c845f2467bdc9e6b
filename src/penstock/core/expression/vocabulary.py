"""The names of the language, for those who complete what is typed: from the tables that parser and evaluator use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.expression.chronology import DATE_METHODS, DURATION_METHODS
from penstock.core.expression.functions import FUNCTIONS
from penstock.core.expression.lexer import OPERATOR_WORDS
from penstock.core.expression.predicates import PREDICATES

_LITERALS: Final = ("true", "false", "nil")
_PARAMETERS: Final = "abcdefgh"


def signatures() -> Iterator[tuple[str, str]]:
    """Each function with how it is called: ``trim(a[, b])``, ``min(a, …)``, ``all(list, condition)``."""
    for name, function in sorted(FUNCTIONS.items()):
        needed = list(_PARAMETERS[: function.minimum])
        if function.maximum is None:
            needed.append("…")
        more = _PARAMETERS[function.minimum : function.maximum or function.minimum]
        optional = "".join(f"[{', ' if needed else ''}{each}" for each in more) + "]" * len(more)
        yield name, f"{name}({', '.join(needed)}{optional})"
    for name, predicate in sorted(PREDICATES.items()):
        yield name, f"{name}(list, condition)" if predicate.required else f"{name}(list[, condition])"


def words() -> list[str]:
    """Operators and values that are words."""
    return sorted((*OPERATOR_WORDS, *_LITERALS))


def methods() -> list[str]:
    """Of dates and durations."""
    return sorted({*DATE_METHODS, *DURATION_METHODS})
