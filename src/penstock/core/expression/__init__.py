"""The expression language of definitions: all of expr 1.17, as our own parser and evaluator.

`parse` makes an `Expression`, `Expression.evaluate` runs it; everything that can go wrong is an `ExpressionError`.
Read in this order: lexer, nodes, parser, compiler; then what the compiler calls: values, operators, access,
predicates, functions (with lists, bits, chronology, zones, notation, regex); result is the way out. The language
itself is described in docs/expressions.md.
"""

from __future__ import annotations

from penstock.core.expression.expression import Expression, parse, parse_template, reads
from penstock.core.expression.failure import ExpressionError, OutOfSteps
from penstock.core.expression.forecast import Foreseen, any_of, fields_of
from penstock.core.expression.limits import DEFAULT, ExpressionLimits
from penstock.core.expression.template import TEMPLATE, holds_expressions, is_joined, template_in

__all__ = [
    "DEFAULT",
    "TEMPLATE",
    "Expression",
    "ExpressionError",
    "ExpressionLimits",
    "Foreseen",
    "OutOfSteps",
    "any_of",
    "fields_of",
    "holds_expressions",
    "is_joined",
    "parse",
    "parse_template",
    "reads",
    "template_in",
]  # fmt: skip
