"""What goes wrong in an expression: the error that callers see, and the fault that travels inside the package.

Relies on nothing. Must not know the grammar or the values.
"""

from __future__ import annotations

SHOWN_SOURCE_CHARS = 160
"""How much of the expression an error shows: it ends up in an instance's failure reason, on one line."""


class Fault(Exception):
    """Something went wrong inside the package; ``position`` is -1 until a node that knows its own fills it in.

    Never leaves the package: `Expression` and `parse` turn it into an `ExpressionError`.
    """

    def __init__(self, reason: str, position: int = -1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.source: str | None = None
        """The text that the position is in, where it is one of several."""


class OutOfSteps(Exception):
    """The caller's budget for several evaluations ends within this one."""


class ExpressionError(Exception):
    """An expression can't be parsed, or can't be evaluated with these variables.

    ``reason`` is the cause alone, ``position`` the 0-based character in ``source`` where it was found; ``line`` and
    ``column`` count from 1. ``str()`` is one line with the expression, the position and the cause.
    """

    def __init__(self, reason: str, position: int, source: str, steps: int = 0) -> None:
        super().__init__(reason, position, source)
        self.reason = _printable(reason)
        self.position = position
        self.source = source
        self.steps = steps
        """What the evaluation took until then; 0 for one that can't be parsed."""
        self.path: tuple[str | int, ...] = ()
        """Of a template, the keys and indexes to the text in it that can't be parsed."""

    @property
    def line(self) -> int:
        return self.source.count("\n", 0, self.position) + 1

    @property
    def column(self) -> int:
        return self.position - (self.source.rfind("\n", 0, self.position) + 1) + 1

    def __str__(self) -> str:
        return f"{self.reason} (line {self.line}, column {self.column} of `{_excerpt(self.source, self.position)}`)"


def _excerpt(source: str, position: int) -> str:
    """Return the source on one line; of a long one, the part around the position."""
    if len(source) <= SHOWN_SOURCE_CHARS:
        shown = source
    else:
        start = max(0, min(position - SHOWN_SOURCE_CHARS // 2, len(source) - SHOWN_SOURCE_CHARS))
        end = start + SHOWN_SOURCE_CHARS
        shown = ("…" if start else "") + source[start:end] + ("…" if end < len(source) else "")
    return _printable(shown)


def _printable(text: str) -> str:
    """A failure reason is stored in PostgreSQL and sent as JSON: no NUL and no lone surrogate may reach it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
