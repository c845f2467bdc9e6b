"""Compiles the expressions of one upload, each different one once, and keeps count of what they cost together."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.core.expression import TEMPLATE, Expression, ExpressionError, parse, parse_template
from penstock.core.graph.definition import DefinitionLimits
from penstock.core.parsing.field_reader import Problems
from penstock.core.parsing.strict_json import join_path
from penstock.core.time.duration import DurationError, parse_duration


class DraftCompiler:
    """Against one set of limits, into one list of problems. ``nodes`` and ``pattern_steps`` are of all together."""

    def __init__(self, limits: DefinitionLimits, problems: Problems) -> None:
        self._limits = limits
        self._problems = problems
        # Steps tend to ask the same questions, "true" first of all.
        self._compiled: dict[str, Expression | ExpressionError] = {}
        self._compiled_chars = 0
        self.nodes = 0
        self.pattern_steps = 0

    def compile(self, source: str, path: str) -> Expression | None:
        """Return the expression, None with a problem at ``path``."""
        if len(source) > self._limits.expression_max_chars:
            self._problems.add(path, f"the expression is longer than {self._limits.expression_max_chars} characters")
            return None
        return self._compile(source, source, path, lambda: parse(source))

    def lasting(self, text: str, path: str) -> float | Expression | None:
        """A duration in seconds, or the expression that gives one; None with a problem at ``path``."""
        if is_expression(text):
            return self.compile(text, path)
        try:
            return parse_duration(text)
        except DurationError as error:
            self._problems.add(path, str(error))
            return None

    def compile_template(self, template: object, path: str) -> Expression | None:
        """The expression of an object at ``path`` that is a template, None with a problem at the text that is wrong."""
        try:
            source = json.dumps(template, ensure_ascii=False)
        except RecursionError:  # the body is nested over its limit, which is a problem already
            return None
        # a key of its own: the same text may stand elsewhere as an expression
        return self._compile(
            f"{TEMPLATE}\0{source}", source, join_path(path, TEMPLATE), lambda: parse_template(template)
        )

    def _compile(self, key: str, source: str, path: str, read: Callable[[], Expression]) -> Expression | None:
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled_chars += len(source)
            if self._compiled_chars > self._limits.expressions_max_chars:
                limit = self._limits.expressions_max_chars
                self._problems.add("steps", f"the expressions are longer than {limit} characters together")
                return None
            if self._is_costly():
                return None
            compiled = self._compiled[key] = _read(read)
            if isinstance(compiled, Expression):
                self.nodes += compiled.nodes
                self.pattern_steps += compiled.pattern_steps
            else:
                self.nodes += len(source) // 2  # it was parsed to where it is wrong
            if self._is_costly():
                return None
        if isinstance(compiled, ExpressionError):
            place = path
            for part in compiled.path:
                place = f"{place}[{part}]" if isinstance(part, int) else join_path(place, part)
            self._problems.add(place, str(compiled), compiled.position)
            return None
        return compiled

    def _is_costly(self) -> bool:
        """Return whether the expressions cost too much together, which is a problem then."""
        limits = self._limits
        if self.nodes > limits.expression_nodes_max_count:
            limit = limits.expression_nodes_max_count
            self._problems.add(
                "steps", f"the expressions have more than {limit} names, literals and operators together"
            )
            return True
        if self.pattern_steps > limits.patterns_max_steps:
            self._problems.add("steps", "the regular expressions are too large together")
            return True
        return False


def _read(read: Callable[[], Expression]) -> Expression | ExpressionError:
    """The compiled expression, or why there is none."""
    try:
        return read()
    except ExpressionError as error:
        return error.with_traceback(None)


def is_expression(text: str) -> bool:
    """Return whether a text is to be evaluated: ``${…}``."""
    return text.startswith("${") and text.endswith("}")
