"""An expression: parsed and compiled once, evaluated any number of times.

The whole of the package as the rest of the engine sees it. Pure: no I/O, no clock (`now` comes in), no randomness,
no logging; the same expression on the same variables at the same `now` gives the same result or the same error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from penstock.core.expression.compiler import Compiler
from penstock.core.expression.failure import ExpressionError, Fault, OutOfSteps
from penstock.core.expression.frame import Frame, Run
from penstock.core.expression.limits import DEFAULT, ExpressionLimits
from penstock.core.expression.parser import Parser, Read
from penstock.core.expression.result import leave
from penstock.core.expression.template import Template

BASE_STEPS: Final = 12
"""What an evaluation costs beside its nodes: about 1 µs."""

NO_STACK: Final = "nested too deeply for what is left of the interpreter's stack"
"""Only a caller that is itself hundreds of calls deep can meet it: `depth_levels` stops an expression long before."""


@dataclass(frozen=True, slots=True)
class Expression:
    """Made by `parse`. Immutable; two are equal when their source is."""

    source: str
    """The text it was parsed from, untouched."""

    names: frozenset[str] = field(compare=False, repr=False)
    """The variables it reads; each must be defined when it is evaluated, but for those before `??`."""

    is_template: bool = field(repr=False)
    """Whether the source is the text of a template, or the JSON text of one that is no text."""

    _positions: tuple[tuple[str, int], ...] = field(compare=False, repr=False)
    _slots: int = field(compare=False, repr=False)
    nodes: int = field(compare=False, repr=False)
    """How many parts it has: each takes some 300 bytes."""

    pattern_steps: int = field(compare=False, repr=False)
    """What compiling its regular expressions cost: about four for each instruction, which takes some 16 bytes."""

    _base_steps: int = field(compare=False, repr=False)
    _run: Run = field(compare=False, repr=False)
    _limits: ExpressionLimits = field(compare=False, repr=False)

    def evaluate(
        self, variables: Mapping[str, object], now: datetime, limits: ExpressionLimits | None = None
    ) -> object:
        """Return the result as a JSON value that shares nothing with ``variables``.

        ``variables`` are JSON values; ``now`` has an offset. ``limits`` are those of `parse` when not given.
        Raises `ExpressionError`. Runs to the end without suspending, within milliseconds.
        """
        return self.measure(variables, now, limits)[0]

    def measure(
        self,
        variables: Mapping[str, object],
        now: datetime,
        limits: ExpressionLimits | None = None,
        steps_max: int | None = None,
    ) -> tuple[object, int]:
        """Return the result, and the steps it took: everything counts, also the walk through the nodes.

        Raises `ExpressionError` as `evaluate`, and `OutOfSteps` where more than ``steps_max`` would be needed.
        """
        assert now.tzinfo is not None, "now needs an offset"
        for name, position in self._positions:
            if name not in variables:
                raise ExpressionError(f"{name} is not defined", position, self.source, self._base_steps)
        bounds = self._limits if limits is None else limits
        granted = bounds.steps if steps_max is None else min(bounds.steps, steps_max - self._base_steps)
        frame = Frame(variables, now, bounds, self._slots, granted)
        try:
            result, leaving = leave(self._run(frame), bounds)
        except Fault as fault:
            if frame.steps_left < 0 and granted < bounds.steps:
                raise OutOfSteps from None
            taken = self._base_steps + granted - frame.steps_left
            where = self.source if fault.source is None else fault.source
            raise ExpressionError(fault.reason, max(fault.position, 0), where, taken) from None
        except RecursionError:
            raise ExpressionError(NO_STACK, 0, self.source) from None
        taken = self._base_steps + granted - frame.steps_left + leaving
        if steps_max is not None and taken > steps_max:
            raise OutOfSteps
        return result, taken


def parse(source: str, limits: ExpressionLimits = DEFAULT) -> Expression:
    """Parse and compile ``source``.

    Raises `ExpressionError` for wrong syntax, unknown functions, wrong numbers of arguments, bad regular expressions
    that stand in it, and what is over ``limits``.
    """
    try:
        parser = Parser(source, limits)
        node = parser.parse()
        compiler = Compiler(limits)
        run = compiler.compile(node)
    except Fault as fault:
        raise ExpressionError(fault.reason, max(fault.position, 0), source) from None
    except RecursionError:
        raise ExpressionError(NO_STACK, 0, source) from None
    return Expression(
        source,
        frozenset(parser.names),
        False,
        tuple(parser.needed),
        parser.slots,
        compiler.nodes,
        compiler.pattern_steps,
        BASE_STEPS + compiler.nodes,
        run,
        limits,
    )


def reads(source: str, limits: ExpressionLimits = DEFAULT) -> list[Read]:
    """Where the text of an `Expression` uses variables that have to be defined."""
    parser = Parser(source, limits)
    parser.parse()
    return parser.reads


def parse_template(value: object, limits: ExpressionLimits = DEFAULT) -> Expression:
    """What gives the JSON ``value`` with the expressions in `${ }` of its texts evaluated.

    Raises `ExpressionError`, whose ``source`` is the text that is wrong, and whose ``path`` says where in ``value``.
    """
    compiler = Compiler(limits)
    template = Template(compiler, limits)
    try:
        run = template.compile(value)
    except Fault as fault:
        error = ExpressionError(fault.reason, max(fault.position, 0), fault.source or "")
        error.path = template.path
        raise error from None
    except RecursionError:
        raise ExpressionError(NO_STACK, 0, "") from None
    return Expression(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        frozenset(template.names),
        True,
        (),
        template.slots,
        compiler.nodes,
        compiler.pattern_steps,
        BASE_STEPS + compiler.nodes,
        run,
        limits,
    )
