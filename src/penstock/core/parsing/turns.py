"""In whose turn a job comes, and how early: flow key and priority, as definitions and steps say them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.core.expression import Expression
from penstock.core.graph.definition import DefinitionLimits, Turn
from penstock.core.parsing.draft_expressions import DraftCompiler, is_expression
from penstock.core.parsing.field_reader import FieldReader
from penstock.core.rules.state import PRIORITY_DEFAULT

FLOW_KEY_MAX_CHARS: Final = 256
PRIORITY_MAX: Final = 9


def shown_priority(priority: int | None) -> int | None:
    """As people are shown it: None where it is as good as none."""
    return None if priority == PRIORITY_DEFAULT else priority


class TurnError(Exception):
    """An expression fails, or gives no key or priority."""


def read_turn(reader: FieldReader, limits: DefinitionLimits, compiler: DraftCompiler, *, used: bool) -> Turn | None:
    """Return the fields `flowKey` and `priority`."""
    key = reader.text("flowKey", max_chars=limits.expression_max_chars)
    priority = reader.whole_number_or_text("priority", max_chars=limits.expression_max_chars)
    if not used or (key is None and priority is None):
        return None
    compiled_key: Expression | str | None = key
    if key is not None and is_expression(key):
        compiled_key = compiler.compile(key, reader.at("flowKey"))
    elif key is not None and len(key) > FLOW_KEY_MAX_CHARS:
        reader.refuse("flowKey", f"longer than {FLOW_KEY_MAX_CHARS} characters")
    compiled_priority: Expression | int | None = None
    if isinstance(priority, str) and is_expression(priority):
        compiled_priority = compiler.compile(priority, reader.at("priority"))
    elif isinstance(priority, int) and 0 <= priority <= PRIORITY_MAX:
        compiled_priority = priority
    elif priority is not None:
        reader.refuse("priority", f"must be 0 to {PRIORITY_MAX}, or an expression that gives it")
    return Turn(compiled_key, compiled_priority)


def key_of(source: Expression | str, evaluate: Callable[[Expression], object]) -> str:
    """Raises TurnError."""
    value = evaluate(source) if isinstance(source, Expression) else source
    if not isinstance(value, str) or not 0 < len(value) <= FLOW_KEY_MAX_CHARS or "\0" in value:
        raise TurnError(f"flowKey must be text of 1 to {FLOW_KEY_MAX_CHARS} characters, not {_shown(value)}")
    return value


def priority_of(source: Expression | int, evaluate: Callable[[Expression], object]) -> int:
    """Raises TurnError."""
    value = evaluate(source) if isinstance(source, Expression) else source
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= PRIORITY_MAX:
        raise TurnError(f"priority must be 0 to {PRIORITY_MAX}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return msgspec.json.encode(value)[:100].decode(errors="replace")
