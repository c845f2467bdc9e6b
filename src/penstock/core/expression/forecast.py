"""What an expression can give, whatever its variables are: the types of its value, or that it always fails.

It knows less than is true and never more: what is said here holds for all variables. What reads no variable is
evaluated, with few steps; the rest is known by the types that operators and functions take and give. Relies on the
parser and the compiler. Must not refuse anything.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, cast

from penstock.core.expression.compiler import Compiler
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.limits import DEFAULT, ExpressionLimits
from penstock.core.expression.nodes import (
    Access,
    ArrayLiteral,
    Binary,
    Comparison,
    Conditional,
    ElementIndex,
    Environment,
    Field,
    Fold,
    FunctionCall,
    Index,
    Let,
    Literal,
    Local,
    MapLiteral,
    MethodCall,
    Name,
    Node,
    Path,
    PredicateCall,
    Sequence,
    Slice,
    Step,
    Unary,
)
from penstock.core.expression.parser import Parser
from penstock.core.expression.values import kind

_STEPS_MAX: Final = 1_000
"""Of what reads no variable: 0.1 ms."""
_NOW: Final = datetime(2001, 1, 1, tzinfo=UTC)

Kinds = frozenset[str]
NIL: Final[Kinds] = frozenset({"nil"})
BOOL: Final[Kinds] = frozenset({"a bool"})
NUMBER: Final[Kinds] = frozenset({"a number"})
STRING: Final[Kinds] = frozenset({"a string"})
ARRAY: Final[Kinds] = frozenset({"an array"})
MAP: Final[Kinds] = frozenset({"a map"})
DATE: Final[Kinds] = frozenset({"a date"})
DURATION: Final[Kinds] = frozenset({"a duration"})
DECIMAL: Final[Kinds] = frozenset({"a decimal"})
JSON: Final[Kinds] = NIL | BOOL | NUMBER | STRING | ARRAY | MAP
ANY: Final[Kinds] = JSON | DATE | DURATION | DECIMAL | frozenset({"a time zone"})
_NUMERIC: Final = NUMBER | DECIMAL
_ORDERED: Final = (_NUMERIC, STRING, DATE, DURATION)

_GIVES: Final[dict[str, Kinds]] = {
    **dict.fromkeys(("len", "indexOf", "lastIndexOf", "int", "daysBetween", "float"), NUMBER),
    **dict.fromkeys(("bitand", "bitor", "bitxor", "bitnand", "bitnot", "bitshl", "bitshr", "bitushr"), NUMBER),
    **dict.fromkeys(("type", "upper", "lower", "trim", "trimPrefix", "trimSuffix", "replace", "join"), STRING),
    **dict.fromkeys(("repeat", "pad", "formatNumber", "toJSON", "toBase64", "fromBase64", "string"), STRING),
    **dict.fromkeys(("hasPrefix", "hasSuffix", "any", "all", "none", "one"), BOOL),
    **dict.fromkeys(("split", "splitAfter", "keys", "values", "toPairs", "concat", "flatten", "uniq"), ARRAY),
    **dict.fromkeys(("take", "reverse", "filter", "map", "sortBy"), ARRAY),
    **dict.fromkeys(("merge", "fromPairs", "groupBy", "countBy"), MAP),
    **dict.fromkeys(("now", "date", "addMonths", "endOfMonth"), DATE),
    **dict.fromkeys(("abs", "ceil", "floor", "round", "mean", "median"), _NUMERIC),
    "sort": ARRAY | NIL,
    "count": NUMBER,
    "findIndex": NUMBER | NIL,
    "findLastIndex": NUMBER | NIL,
    "decimal": DECIMAL,
    "duration": DURATION,
}
"""Functions whose value has one of these types, whatever they are given; all others may give anything."""
_GIVEN_BY_METHOD: Final[dict[str, Kinds]] = {
    **dict.fromkeys(("Year", "Month", "Day", "Hour", "Minute", "Second", "YearDay", "Weekday", "Unix"), NUMBER),
    **dict.fromkeys(("Hours", "Minutes", "Seconds"), NUMBER),
    **dict.fromkeys(("Before", "After", "Equal", "IsDST", "IsZero"), BOOL),
    **dict.fromkeys(("Format", "String"), STRING),
}
_TAKES_TEXT: Final = frozenset(
    {"upper", "lower", "trim", "trimPrefix", "trimSuffix", "split", "splitAfter", "replace", "hasPrefix", "hasSuffix",
     "indexOf", "lastIndexOf", "repeat", "fromJSON", "toBase64", "fromBase64", "duration"}
)  # fmt: skip
"""Functions whose first argument has to be a string."""
_TEXT_TESTS: Final = frozenset({"contains", "startsWith", "endsWith", "matches"})
_OPPOSITE: Final = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of an expression or a part of it. ``kinds``: the types that its value can have; none of one that always fails,
    and ``fails`` says why. ``known``: the value that it has unless it fails, as the one item of a tuple."""

    kinds: Kinds
    known: tuple[object] | None = None
    fails: str | None = None

    @property
    def may_be_bool(self) -> bool:
        return bool(self.kinds & BOOL)

    def is_always(self, value: bool) -> bool:
        """Return whether it is this value unless it fails."""
        return self.known is not None and self.known[0] is value


_BOOL: Final = Forecast(BOOL)
_TRUE: Final = Forecast(BOOL, (True,))
_FALSE: Final = Forecast(BOOL, (False,))


class Foreseen:
    """What is foreseen of one expression that parses, and its form, by which it is compared with others."""

    def __init__(self, source: str, limits: ExpressionLimits = DEFAULT) -> None:
        parser = Parser(source, limits)
        node = parser.parse()
        self.forecast = _Forecaster(parser.slots, limits).of(node)
        self.form = _form(node)
        self.opposite = _opposite(node)


class _Forecaster:
    def __init__(self, slots: int, limits: ExpressionLimits) -> None:
        self._slots = slots
        self._limits = limits
        self._locals: dict[int, Forecast] = {}
        self._constant: dict[int, bool] = {}

    def of(self, node: Node) -> Forecast:
        if self._is_constant(node):
            return self._evaluated(node)
        match node:
            case Let():
                self._locals[node.slot] = value = self.of(node.value)
                return self.of(node.body) if value.kinds else value
            case Unary():
                return self._unary(node)
            case PredicateCall():
                assert node.collection is not None
                return self._predicate_call(node, self.of(node.collection))
            case Fold():
                value = self.of(node.first)
                for step in node.steps:
                    value = self._step(step, value)
                return value
            case Conditional():
                return self._conditional(node)
            case Path():
                return self._path(node)
            case _:
                return self._of_plain(node)

    def _of_plain(self, node: Node) -> Forecast:
        match node:
            case Name():
                return Forecast(JSON)
            case Environment():
                return Forecast(MAP)
            case Local():
                return self._locals.get(node.slot, Forecast(ANY))
            case ElementIndex():
                return Forecast(NUMBER)
            case Sequence():
                *before, last = [self.of(one) for one in node.nodes]
                return next((one for one in before if not one.kinds), last)
            case ArrayLiteral():
                return self._made(node.items, ARRAY)
            case MapLiteral():
                return self._made([part for entry in node.entries for part in entry], MAP)
            case FunctionCall():
                return self._call(node, [self.of(argument) for argument in node.arguments])
            case _:
                return Forecast(ANY)

    # --- what reads no variable -------------------------------------------------------------------------------------

    def _is_constant(self, node: Node | Step | Access) -> bool:
        known = self._constant.get(id(node))
        if known is None:
            known = self._constant[id(node)] = self._reads_nothing(node)
        return known

    def _reads_nothing(self, node: Node | Step | Access) -> bool:
        if isinstance(node, Literal):
            return True
        if isinstance(node, FunctionCall) and node.function == "now":
            return False
        if isinstance(node, Let | PredicateCall) or not fields(node)[1:]:  # `#`, `$env`, and what binds names
            return False
        if isinstance(node, Name | Local):
            return False
        return all(self._is_constant(part) for part in _parts(node))

    def _evaluated(self, node: Node) -> Forecast:
        try:
            run = Compiler(self._limits).compile(node)
            value = run(Frame({}, _NOW, self._limits, self._slots, _STEPS_MAX))
        except Fault as fault:
            return Forecast(ANY) if "steps" in fault.reason else Forecast(frozenset(), fails=fault.reason)
        except RecursionError:
            return Forecast(ANY)
        return Forecast(frozenset({kind(value)}), (value,))

    # --- by types ---------------------------------------------------------------------------------------------------

    def _made(self, parts: Many[Node], kinds: Kinds) -> Forecast:
        found = [self.of(part) for part in parts]
        return next((one for one in found if not one.kinds), Forecast(kinds))

    def _unary(self, node: Unary) -> Forecast:
        value = self.of(node.operand)
        if not value.kinds:
            return value
        if node.operator == "not":
            if not value.may_be_bool:
                return _failing(f"not needs a bool, not {any_of(value.kinds)}")
            return _FALSE if value.is_always(True) else _TRUE if value.is_always(False) else _BOOL
        kinds = value.kinds & (_NUMERIC | DURATION)
        return Forecast(kinds) if kinds else _failing(f"{node.operator} needs a number, not {any_of(value.kinds)}")

    def _call(self, node: FunctionCall, arguments: Many[Forecast]) -> Forecast:
        for argument in arguments:
            if not argument.kinds:
                return argument
        if node.function in _TAKES_TEXT and arguments and not arguments[0].kinds & STRING:
            return _failing(f"{node.function} needs a string, not {any_of(arguments[0].kinds)}")
        return Forecast(_GIVES.get(node.function, ANY))

    def _predicate_call(self, node: PredicateCall, collection: Forecast) -> Forecast:
        if not collection.kinds:
            return collection
        if not collection.kinds & ARRAY:
            return _failing(f"{node.function} needs an array, not {any_of(collection.kinds)}")
        never = False
        if node.predicate is not None:
            predicate = self.of(node.predicate)
            never = predicate.is_always(False) or not predicate.may_be_bool
        if node.function in {"any", "one"} and never:
            return _FALSE
        return Forecast(_GIVES.get(node.function, ANY))

    def _step(self, step: Step, value: Forecast) -> Forecast:
        if not value.kinds and not (isinstance(step, Binary) and step.operator == "??"):
            return value
        match step:
            case FunctionCall():
                return self._call(step, [value, *(self.of(argument) for argument in step.arguments)])
            case PredicateCall():
                return self._predicate_call(step, value)
            case Comparison():
                return self._comparison(step, value)
            case Binary():
                right = self.of(step.right)
                made = self._binary(step.operator, value, right)
                return _not(made) if step.negated else made

    def _binary(self, operator: str, left: Forecast, right: Forecast) -> Forecast:
        if operator in {"and", "or"}:
            return _joined(operator, left, right)
        if operator == "??":
            if left.kinds and not left.kinds & NIL:
                return left
            return Forecast((left.kinds - NIL) | right.kinds)
        if not right.kinds:
            return right
        if operator in {"==", "!="}:
            differ = not (left.kinds & right.kinds or (left.kinds & _NUMERIC and right.kinds & _NUMERIC))
            return _BOOL if not differ else _FALSE if operator == "==" else _TRUE
        if operator in {"in", "within"}:
            return _membership(operator, left.kinds, right)
        if operator in _TEXT_TESTS:
            if left.kinds & STRING and right.kinds & STRING:
                return _BOOL
            if (left.kinds | right.kinds) & NIL:  # nothing is found in nil, nor nil in anything
                return _FALSE
            wrong = right.kinds if left.kinds & STRING else left.kinds
            return _failing(f"{operator} needs strings, not {any_of(wrong)}")
        if operator == "..":
            return _needing(operator, left.kinds & NUMBER and right.kinds & NUMBER and ARRAY, left, right)
        if operator in {"/", "%"} and right.known is not None and right.known[0] == 0 and right.kinds & NUMBER:
            return _failing("division by zero")
        return _needing(operator, _arithmetic(operator, left.kinds, right.kinds), left, right)

    def _comparison(self, step: Comparison, value: Forecast) -> Forecast:
        kinds = value.kinds
        for place, (_, name, node) in enumerate(step.comparisons):
            following = self.of(node)
            if not following.kinds:
                return _FALSE if place else following
            may = [each for each in _ORDERED if kinds & each and following.kinds & each]
            if not may:
                reason = f"{name} can't order {any_of(kinds)} and {any_of(following.kinds)}"
                return _FALSE if place else _failing(reason)
            kinds = following.kinds & frozenset().union(*may)
        return _BOOL

    def _conditional(self, node: Conditional) -> Forecast:
        found: list[Forecast] = []
        for condition, value in node.arms:
            verdict = self.of(condition)
            if not verdict.may_be_bool:  # it fails, unless one before was true
                reason = f"the condition of {node.word} must be a bool, not {any_of(verdict.kinds)}"
                return _either(found) if found else _failing(verdict.fails or reason)
            if verdict.is_always(False):
                continue
            found.append(_TRUE if value is None else self.of(value))
            if verdict.is_always(True):
                return _either(found)
        return _either([*found, self.of(node.otherwise)])

    def _path(self, node: Path) -> Forecast:
        base = self.of(node.base)
        if not base.kinds:
            return base
        kinds = base.kinds
        optional = False
        rooted = isinstance(node.base, Name | Environment)
        for step in node.accesses:
            optional = optional or step.optional
            accepted = _entered(step)
            if not kinds & accepted:
                if optional:
                    return Forecast(NIL)
                return _failing(f"{_shown_access(step)} can't be taken of {any_of(kinds)}")
            kinds = JSON if rooted else ANY
            if isinstance(step, MethodCall):
                kinds, rooted = _GIVEN_BY_METHOD.get(step.name, ANY), False
            elif isinstance(step, Slice):
                kinds = ARRAY | STRING
        return Forecast(kinds | NIL if optional or node.absent else kinds)


def fields_of(source: str, name: str, limits: ExpressionLimits = DEFAULT) -> set[str]:
    """The fields of the variable that the text of an expression reads by their names."""
    found: set[str] = set()
    pending: list[object] = [Parser(source, limits).parse()]
    while pending:
        node = pending.pop()
        pending += _parts(node)
        if isinstance(node, Path) and isinstance(node.base, Name) and node.base.name == name:
            first = node.accesses[0]
            if isinstance(first, Field):
                found.add(first.name)
            elif isinstance(first, Index) and isinstance(first.index, Literal) and isinstance(first.index.value, str):
                found.add(first.index.value)
    return found


def _parts(node: object) -> list[Node]:
    """What a node is made of, one level down."""
    found: list[Node] = []
    pending = [getattr(node, field.name) for field in fields(cast("Name", node))]
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            pending += cast("tuple[object, ...]", part)
        elif is_dataclass(part):
            found.append(cast("Node", part))
    return found


def _form(node: object) -> object:
    """Return the node without its places."""
    if isinstance(node, tuple):
        return tuple(_form(part) for part in cast("tuple[object, ...]", node) if type(part) is not int)
    if isinstance(node, Literal):
        return ("Literal", repr(node.value))
    if is_dataclass(node):
        parts = (getattr(node, field.name) for field in fields(node) if field.name != "position")
        return (type(node).__name__, *map(_form_of_part, parts))
    return node


def _form_of_part(part: object) -> object:
    return part if isinstance(part, int) else _form(part)


def _opposite(node: Node) -> object:
    """The form of what is true where this is false; as far as that is plain to see."""
    match node:
        case Unary(operator="not"):
            return _form(node.operand)
        case Fold(steps=(Comparison(comparisons=((position, name, right),)) as step,)):
            turned = replace(step, comparisons=((position, _OPPOSITE[name], right),))
            return _form(replace(node, steps=(turned,)))
        case Fold(steps=(Binary(operator="==" | "!=") as step,)):
            return _form(replace(node, steps=(replace(step, operator="!=" if step.operator == "==" else "=="),)))
        case Fold(steps=(Binary() as step,)) if step.operator == "in" or step.operator in _TEXT_TESTS:
            return _form(replace(node, steps=(replace(step, negated=not step.negated),)))
        case _:
            return ("Unary", "not", _form(node))


def _failing(reason: str) -> Forecast:
    return Forecast(frozenset(), fails=reason)


def _needing(operator: str, kinds: Kinds, left: Forecast, right: Forecast) -> Forecast:
    if kinds:
        return Forecast(kinds)
    return _failing(f"{operator} can't join {any_of(left.kinds)} and {any_of(right.kinds)}")


def any_of(kinds: Kinds) -> str:
    """Return the types for a person."""
    return " or ".join(sorted(kinds)) if len(kinds) <= 3 else "another value"


def _not(value: Forecast) -> Forecast:
    if not value.kinds:
        return value
    return _FALSE if value.is_always(True) else _TRUE if value.is_always(False) else _BOOL


def _joined(operator: str, left: Forecast, right: Forecast) -> Forecast:
    """`and` and `or`: the left side alone decides where it is this value."""
    decides = operator == "or"
    if not left.may_be_bool:
        return _failing(f"the left side of {operator} must be a bool, not {any_of(left.kinds)}")
    if left.is_always(decides):
        return left
    if left.is_always(not decides):
        if right.kinds and not right.may_be_bool:
            return _failing(f"the right side of {operator} must be a bool, not {any_of(right.kinds)}")
        return Forecast(right.kinds & BOOL, right.known, right.fails)
    if not right.may_be_bool or right.is_always(decides):
        return _TRUE if decides else _FALSE
    return _BOOL


def _membership(operator: str, left: Kinds, right: Forecast) -> Forecast:
    containers = ARRAY | MAP | NIL | (STRING if operator == "within" else frozenset[str]())
    if not right.kinds & containers:
        return _failing(f"in needs an array or a map on its right, not {any_of(right.kinds)}")
    if right.known is not None and isinstance(items := right.known[0], list):
        kinds = frozenset(kind(item) for item in cast("list[object]", items))
        return _BOOL if left & kinds or (left & _NUMERIC and kinds & _NUMERIC) else _FALSE
    if right.kinds <= MAP | NIL and not left & STRING:
        return _FALSE
    return _FALSE if right.kinds <= NIL else _BOOL


def _arithmetic(operator: str, left: Kinds, right: Kinds) -> Kinds:
    """The types that the operator gives; none where it takes no two of theirs."""
    found: set[str] = set()
    if left & NUMBER and right & NUMBER:
        found |= NUMBER
    if (left & DECIMAL and right & _NUMERIC) or (right & DECIMAL and left & _NUMERIC):
        found |= DECIMAL
    dates, durations = partial(_both, left, right, DATE), partial(_both, left, right, DURATION)
    if operator == "+":
        found |= STRING if left & right & STRING else frozenset()
        found |= DATE if dates(DURATION) or durations(DATE) else frozenset()
        found |= DURATION if durations(DURATION) else frozenset()
    elif operator == "-":
        found |= DURATION if dates(DATE) or durations(DURATION) else frozenset()
        found |= DATE if dates(DURATION) else frozenset()
    elif operator == "*":
        found |= DURATION if durations(NUMBER) or _both(left, right, NUMBER, DURATION) else frozenset()
    return frozenset(found)


def _both(left: Kinds, right: Kinds, one: Kinds, other: Kinds) -> bool:
    return bool(left & one and right & other)


def _either(found: Many[Forecast]) -> Forecast:
    kinds = frozenset[str]().union(*(one.kinds for one in found))
    if not kinds:
        return found[0]
    known = [one.known for one in found if one.kinds]
    same = known[0] is not None and all(one is not None and one[0] is known[0][0] for one in known)
    return Forecast(kinds, known[0] if same else None)


def _entered(step: Access) -> Kinds:
    match step:
        case Field():
            return MAP
        case Index():
            return ARRAY | STRING | MAP
        case Slice():
            return ARRAY | STRING
        case MethodCall():
            return DATE | DURATION | frozenset({"a time zone"})


def _shown_access(step: Access) -> str:
    return step.name if isinstance(step, Field | MethodCall) else "an element"
