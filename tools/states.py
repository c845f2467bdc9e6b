"""The tables of transitions in the code as diagrams in ARCHITECTURE.md; `make docs` draws them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from penstock.http import inline_connection

PAGE: Final = Path(__file__).resolve().parents[1] / "ARCHITECTURE.md"
TABLES: Final[Mapping[str, Mapping[Enum, frozenset[Enum]]]] = {
    "http/inline_connection": {**inline_connection.TRANSITIONS}
}
"""By the module that has it."""


def drawn(table: Mapping[Enum, frozenset[Enum]]) -> str:
    """A diagram, in Mermaid: its first state is where it begins."""
    begins = next(iter(table))
    arrows = [f"    {state.name} --> {then.name}" for state in table for then in table if then in table[state]]
    ends = [f"    {state.name} --> [*]" for state in table if not table[state]]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {begins.name}", *arrows, *ends, "```"])


def with_diagrams(page: str) -> str:
    """The page with each diagram as it is now, between its marks. Raises LookupError where a page has no marks."""
    for name, table in TABLES.items():
        begin, end = f"<!-- states of {name} -->\n", "\n<!-- end -->"
        page, found = re.subn(
            f"(?<={re.escape(begin)}).*?(?={re.escape(end)})",
            lambda _, table=table: drawn(table),
            page,
            flags=re.DOTALL,
        )
        if found != 1:
            raise LookupError(f"{PAGE.name} has {found} places for the states of {name}, not one")
    return page
