"""Regular expressions for `matches`: RE2's syntax, which is Go's, in linear time.

Relies on the google-re2 wheel, which the engine has and the client alone need not: without it the client's validator
leaves patterns for the engine to judge, and none can be searched for. Python's `re` lost because it backtracks:
`(x+x+)+y` against 30 characters takes it seconds. Must not hand out anything that can run without a budget.

RE2 is linear in text times program, and the worst of both still adds up (measured: 5.2 ns per byte and instruction
when its cache of states thrashes), so that product is paid for in steps, and the program is bounded by memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

try:
    import re2 as _re2  # type: ignore[import-untyped]  # the wheel ships neither stubs nor py.typed
except ModuleNotFoundError:
    _re2 = None

from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.limits import ExpressionLimits

re2: Final[Any] = _re2
PATTERN_MEMORY_BYTES: Final = 128 * 1024
"""RE2 refuses a pattern whose program needs more: about 8,000 instructions, compiled within 2 ms."""

UNITS_PER_STEP: Final = 32
"""Instructions times bytes that one step pays for: 32 x 5.2 ns is about what a step costs elsewhere."""

STEPS_PER_INSTRUCTION: Final = 4
PATTERN_STEPS: Final = 100
"""Compiling costs 10 µs and 0.4 µs per instruction."""

SEARCH_STEPS: Final = 20
"""Searching costs 2 µs before the first byte."""


class Pattern(Protocol):
    """What is used of RE2's compiled pattern."""

    @property
    def programsize(self) -> int: ...

    def search(self, text: bytes) -> object: ...


class _Unread:
    """Stands for a pattern where there is no RE2: a definition with it can be read, not run."""

    programsize = 0

    def search(self, text: bytes) -> object:
        raise ModuleNotFoundError("`matches` needs google-re2: pip install 'penstock-workflow[engine]'", name="re2")


def _options() -> object:
    if re2 is None:
        return None
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    return cast(object, options)


_OPTIONS: Final = _options()


def compile_pattern(pattern: str, limits: ExpressionLimits, charge: Callable[[int], None]) -> Pattern:
    """Return the compiled ``pattern``; what it cost in steps is told to ``charge``. Raises `Fault`.

    The module's own cache of the last 128 patterns makes a repeated one cheap; it costs the same steps all the
    same, because what an expression may do must not depend on what others did before.
    """
    if len(pattern) > limits.pattern_chars:
        raise Fault(f"the regular expression is longer than {limits.pattern_chars} characters")
    charge(PATTERN_STEPS)
    if re2 is None:
        return _Unread()
    try:
        compiled = cast(Pattern, re2.compile(pattern, _OPTIONS))
    except re2.error as error:
        raise Fault(f"bad regular expression: {_reason(error)}") from None
    except UnicodeEncodeError:
        raise Fault("bad regular expression: it holds half a character") from None
    charge(compiled.programsize * STEPS_PER_INSTRUCTION)
    return compiled


def search(frame: Frame, pattern: Pattern, text: str) -> bool:
    """Return whether ``pattern`` is found anywhere in ``text``."""
    frame.charge(SEARCH_STEPS + len(text) * pattern.programsize // UNITS_PER_STEP)
    try:
        # Bytes, because for a str the wheel also works out the places of the match in characters.
        return pattern.search(text.encode()) is not None
    except UnicodeEncodeError:
        raise Fault("matches needs whole characters on its left") from None


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else b""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
