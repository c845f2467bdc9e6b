"""Templates: texts with expressions in `${ }`, alone or anywhere in JSON objects and lists.

`{"$template": "Hello ${name}!"}` is the one form, so that text elsewhere keeps its meaning. A text that is nothing but
one `${ }` gives its value, whatever type that has; otherwise the values become text. `$${` is `${`. Relies on the
parser and the compiler. Must not evaluate.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, cast

from penstock.core.expression import notation
from penstock.core.expression.chronology import duration_text
from penstock.core.expression.closures import constant
from penstock.core.expression.compiler import Compiler
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame, Run
from penstock.core.expression.lexer import tokenize
from penstock.core.expression.limits import DEFAULT, ExpressionLimits
from penstock.core.expression.parser import Parser
from penstock.core.expression.values import kind

TEMPLATE: Final = "$template"
"""The only key of the object that is a template; its value is the template."""
_Piece = str | tuple[int, Run]
"""Text as it is, or where an expression begins, and what it gives."""
_OPENING: Final = "${"
_INSTEAD: Final[dict[str, str]] = {
    "nil": 'write ${… ?? ""} where there may be none',
    "an array": "write it with join() or toJSON()",
    "a map": "write it with toJSON()",
}


def template_in(value: object) -> tuple[object] | None:
    """The template of an object that is one, as the one item of a tuple; None for any other value."""
    if isinstance(value, dict) and len(cast("dict[str, object]", value)) == 1 and TEMPLATE in value:
        return (cast("dict[str, object]", value)[TEMPLATE],)
    return None


def holds_expressions(text: str) -> bool:
    """Return whether `${ }` may be meant in it."""
    at = text.find(_OPENING)
    return at >= 0 and "}" in text[at:]


def is_joined(text: str, limits: ExpressionLimits = DEFAULT) -> bool:
    """Return whether a text from `${` to `}` has more than one `${ }` side by side: `${a}-${b}`, which is a
    subtraction."""
    try:
        return tokenize(text, limits, len(_OPENING))[-1].position < len(text.rstrip()) - 1
    except Fault:
        return False


class Template:
    """One template that is compiled. Afterwards ``names`` and ``slots`` are those of all expressions in it; ``path`` is
    where the text is that was read last."""

    def __init__(self, compiler: Compiler, limits: ExpressionLimits) -> None:
        self._compiler = compiler
        self._limits = limits
        self.names: set[str] = set()
        self.slots = 0
        self.path: tuple[str | int, ...] = ()

    def compile(self, value: object, path: tuple[str | int, ...] = ()) -> Run:
        if isinstance(value, str):
            self.path = path
            return self._text(value)
        if isinstance(value, dict):
            entries = cast("dict[str, object]", value)
            return _map({key: self.compile(item, (*path, key)) for key, item in entries.items()})
        if isinstance(value, list):
            items = cast("list[object]", value)
            return _array([self.compile(item, (*path, at)) for at, item in enumerate(items)])
        return constant(value)

    def _text(self, source: str) -> Run:
        try:
            pieces = self._pieces(source)
        except Fault as fault:
            fault.source = source
            raise
        if len(pieces) == 1 and not isinstance(pieces[0], str):
            return _within(source, pieces[0][1])
        if all(isinstance(piece, str) for piece in pieces):
            return constant("".join(cast("list[str]", pieces)))
        return _within(source, _joined(pieces))

    def _pieces(self, source: str) -> list[_Piece]:
        pieces: list[_Piece] = []
        done = 0
        while (at := source.find(_OPENING, done)) >= 0:
            if at > done and source[at - 1] == "$":
                pieces += [source[done : at - 1], _OPENING]
                done = at + len(_OPENING)
                continue
            if at > done:
                pieces.append(source[done:at])
            parser = Parser(source, self._limits, at + len(_OPENING))
            node = parser.parse()
            self.names.update(parser.names)
            self.slots = max(self.slots, parser.slots)
            pieces.append((at, _needing(parser.needed, self._compiler.compile(node))))
            done = parser.end + 1
        if done < len(source) or not pieces:
            pieces.append(source[done:])
        return pieces


def _map(entries: dict[str, Run]) -> Run:
    def build(frame: Frame) -> object:
        frame.charge_items(len(entries))
        return {key: item(frame) for key, item in entries.items()}

    return build


def _array(items: list[Run]) -> Run:
    def build(frame: Frame) -> object:
        frame.charge_items(len(items))
        return [item(frame) for item in items]

    return build


def _within(source: str, run: Run) -> Run:
    def run_within(frame: Frame) -> object:
        try:
            return run(frame)
        except Fault as fault:
            fault.source = source
            raise

    return run_within


def _needing(needed: list[tuple[str, int]], run: Run) -> Run:
    def run_with(frame: Frame) -> object:
        for name, position in needed:
            if name not in frame.variables:
                raise Fault(f"{name} is not defined", position)
        return run(frame)

    return run_with


def _joined(pieces: list[_Piece]) -> Run:
    makers = [_literal(piece) if isinstance(piece, str) else _shown(*piece) for piece in pieces]

    def join(frame: Frame) -> object:
        texts = [make(frame) for make in makers]
        frame.new_text_chars(sum(map(len, texts)))
        return "".join(texts)

    return join


def _literal(text: str) -> Callable[[Frame], str]:
    return lambda _: text


def _shown(position: int, run: Run) -> Callable[[Frame], str]:
    def show(frame: Frame) -> str:
        value = run(frame)
        if isinstance(value, timedelta):
            return duration_text(value)
        if (instead := _INSTEAD.get(kind(value))) is not None:
            raise Fault(f"{kind(value)} has no text in a template: {instead}", position)
        return notation.to_text(frame, value)

    return show
