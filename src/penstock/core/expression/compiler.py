"""The tree to closures: one call per node and evaluation, nothing looked up twice.

Relies on `nodes` and on the modules of operators, accesses, functions and predicates. Must not hold semantics of
its own beyond short-circuiting and where a fault is located.

Walking the tree lost: it takes 2.4 to 2.8 times as long (benchmarks/expressions.py). Generating Python source would
bring Python's `eval`, which the contract rules out.
"""

from __future__ import annotations

from typing import assert_never

from penstock.core.expression import access, predicates, regex
from penstock.core.expression.chronology import call_method
from penstock.core.expression.closures import (
    at,
    binary,
    conjunction,
    constant,
    disjunction,
    element_at,
    entered_types,
    environment,
    equality,
    field_of,
    local_slot,
    located,
    negated,
    ordering,
    variable,
    variable_field,
    without_range,
)
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import ABSENT, Advance, Frame, Run
from penstock.core.expression.functions import FUNCTIONS
from penstock.core.expression.limits import ExpressionLimits
from penstock.core.expression.nodes import (
    Access,
    Accumulator,
    ArrayLiteral,
    Binary,
    Comparison,
    Conditional,
    Element,
    ElementIndex,
    Environment,
    Field,
    Fold,
    FunctionCall,
    Index,
    Leaf,
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
from penstock.core.expression.operators import OPERATORS, ORDERINGS, negative, positive
from penstock.core.expression.predicates import PREDICATES
from penstock.core.expression.values import kind, ordered, text

CALL_STEPS = 3
"""What a function costs per element of a predicate beyond its own node (measured 0.3 µs; a plain node 0.08 µs)."""


class Compiler:
    """One compilation. It counts the nodes: those of a predicate are its cost in steps for each element."""

    def __init__(self, limits: ExpressionLimits) -> None:
        self._limits = limits
        self._nodes = 0
        self._steps_left = limits.steps

    @property
    def nodes(self) -> int:
        """Return how many were compiled."""
        return self._nodes

    @property
    def pattern_steps(self) -> int:
        """What the regular expressions among them cost."""
        return self._limits.steps - self._steps_left

    def compile(self, node: Node) -> Run:
        self._nodes += 1
        match node:
            case Literal() | Name() | Environment() | Local() | Element() | ElementIndex() | Accumulator():
                return _leaf(node)
            case Fold():
                return self._fold(node)
            case Path():
                return self._path(node)
            case Let():
                return self._let(node)
            case Sequence():
                return self._sequence(node)
            case ArrayLiteral():
                return self._array(node)
            case MapLiteral():
                return self._map(node)
            case Unary():
                return self._unary(node)
            case FunctionCall():
                return self._call(node)
            case PredicateCall():
                return self._predicate_call(node)
            case Conditional():
                return self._conditional(node)
            case _:
                assert_never(node)

    def _let(self, node: Let) -> Run:
        slot = node.slot
        value = self.compile(node.value)
        body = self.compile(node.body)

        def let(frame: Frame) -> object:
            frame.locals[slot] = value(frame)
            return body(frame)

        return let

    def _sequence(self, node: Sequence) -> Run:
        *before, last = [self.compile(one) for one in node.nodes]

        def sequence(frame: Frame) -> object:
            for one in before:
                one(frame)
            return last(frame)

        return sequence

    def _array(self, node: ArrayLiteral) -> Run:
        items = [self.compile(item) for item in node.items]
        return lambda frame: [item(frame) for item in items]

    def _map(self, node: MapLiteral) -> Run:
        entries = [(key.position, self.compile(key), self.compile(value)) for key, value in node.entries]

        def build(frame: Frame) -> object:
            made: dict[str, object] = {}
            for position, key, value in entries:
                name = key(frame)
                if type(name) is not str:
                    raise Fault(f"a map has strings as keys, not {kind(name)}", position)
                made.setdefault(name, value(frame))  # the first of two equal keys wins, as in expr
            return made

        return build

    def _unary(self, node: Unary) -> Run:
        operand = self.compile(node.operand)
        position = node.position
        if node.operator == "not":

            def invert(frame: Frame) -> object:
                value = operand(frame)
                if value is True:
                    return False
                if value is False:
                    return True
                raise Fault(f"not needs a bool, not {kind(value)}", position)

            return invert
        operation = negative if node.operator == "-" else positive
        return located(position, lambda frame: operation(frame, operand(frame)))

    def _call(self, node: FunctionCall) -> Run:
        self._nodes += CALL_STEPS
        call = FUNCTIONS[node.function].call
        arguments = [self.compile(argument) for argument in node.arguments]
        return located(node.position, lambda frame: call(frame, *[argument(frame) for argument in arguments]))

    def _predicate_call(self, node: PredicateCall) -> Run:
        assert node.collection is not None
        collection = self.compile(node.collection)
        advance = self._over(node)
        return lambda frame: advance(frame, collection(frame))

    def _over(self, node: PredicateCall) -> Advance:
        before = self._nodes
        predicate = self.compile(node.predicate) if node.predicate else self.compile(Element(node.position))
        cost_steps = self._nodes - before
        name = node.function
        position = node.position
        if PREDICATES[name].takes_more:
            return self._over_with_more(node, predicate, cost_steps)

        def over(frame: Frame, collection: object) -> object:
            try:
                return predicates.apply(name, frame, collection, predicate, cost_steps)
            except Fault as fault:
                raise at(fault, position) from None

        return over

    def _over_with_more(self, node: PredicateCall, predicate: Run, cost_steps: int) -> Advance:
        more = self.compile(node.more) if node.more else constant(ABSENT)
        name = node.function
        position = node.position

        def over(frame: Frame, collection: object) -> object:
            try:
                return predicates.apply_with_more(name, frame, collection, predicate, cost_steps, more(frame))
            except Fault as fault:
                raise at(fault, position) from None

        return over

    def _conditional(self, node: Conditional) -> Run:
        arms = [
            (condition.position, self.compile(condition), self.compile(value) if value else constant(True))
            for condition, value in node.arms
        ]
        otherwise = self.compile(node.otherwise)
        word = node.word

        def choose(frame: Frame) -> object:
            for position, condition, value in arms:
                verdict = condition(frame)
                if verdict is True:
                    return value(frame)
                if verdict is not False:
                    raise Fault(f"the condition of {word} must be a bool, not {kind(verdict)}", position)
            return otherwise(frame)

        return choose

    # --- folds ------------------------------------------------------------------------------------------------------

    def _fold(self, node: Fold) -> Run:
        first = self.compile(node.first)
        steps = [self._step(step) for step in node.steps]
        if len(steps) == 1:
            only = steps[0]
            return lambda frame: only(frame, first(frame))

        def fold(frame: Frame) -> object:
            value = first(frame)
            for step in steps:
                value = step(frame, value)
            return value

        return fold

    def _step(self, step: Step) -> Advance:
        self._nodes += 1
        match step:
            case Binary():
                return self._binary(step)
            case Comparison():
                return self._comparison(step)
            case FunctionCall():
                return self._piped(step)
            case PredicateCall():
                return self._over(step)
            case _:
                assert_never(step)

    def _binary(self, step: Binary) -> Advance:
        if step.operator == "matches" and isinstance(step.right, Literal):
            return self._matches_literal(step, step.right)
        right = self.compile(step.right)
        match step.operator:
            case "and":
                return conjunction(right, step.position, step.right.position)
            case "or":
                return disjunction(right, step.position, step.right.position)
            case "??":
                return lambda frame, value: right(frame) if value is None else value
            case "==":
                return equality(right, step.position)
            case operator:
                advance = binary(OPERATORS[operator], right, step.position)
                return negated(advance) if step.negated else advance

    def _matches_literal(self, step: Binary, right: Literal) -> Advance:
        """A pattern that stands in the expression is compiled with it, and a bad one refused with it."""
        try:
            pattern = regex.compile_pattern(text(right.value, "the right side of matches"), self._limits, self._charge)
        except Fault as fault:
            raise at(fault, right.position) from None
        position = step.position
        negated = step.negated

        def matches(frame: Frame, value: object) -> object:
            if value is None:  # as for expr, nothing is found in nil
                return negated
            try:
                return regex.search(frame, pattern, text(value, "the left side of matches")) is not negated
            except Fault as fault:
                raise at(fault, position) from None

        return matches

    def _charge(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise Fault("the regular expressions of the expression are too large together")

    def _comparison(self, step: Comparison) -> Advance:
        links = [(position, name, ORDERINGS[name], self.compile(right)) for position, name, right in step.comparisons]
        if len(links) == 1:
            return ordering(*links[0])

        def chain(frame: Frame, value: object) -> object:
            for position, name, compare, right in links:
                following = right(frame)
                try:
                    if not ordered(frame, value, following, name, compare):
                        return False
                except Fault as fault:
                    raise at(fault, position) from None
                value = following
            return True

        return chain

    def _piped(self, node: FunctionCall) -> Advance:
        self._nodes += CALL_STEPS
        call = FUNCTIONS[node.function].call
        arguments = [self.compile(argument) for argument in node.arguments]
        position = node.position

        def piped(frame: Frame, value: object) -> object:
            try:
                return call(frame, value, *[argument(frame) for argument in arguments])
            except Fault as fault:
                raise at(fault, position) from None

        return piped

    # --- paths ------------------------------------------------------------------------------------------------------

    def _path(self, node: Path) -> Run:
        if isinstance(node.base, Name) and len(node.accesses) == 1 and isinstance(node.accesses[0], Field):
            self._nodes += 1
            return variable_field(node.base, node.accesses[0])
        base = self.compile(node.base)
        accesses = [(entered_types(step), self._access(step)) for step in node.accesses]

        def walk(frame: Frame) -> object:
            value = base(frame)
            for accepted, step in accesses:
                if accepted is not None and value.__class__ not in accepted:
                    return None
                value = step(frame, value)
            return value

        places = frozenset(step.position for step in node.accesses if isinstance(step, Index))
        return without_range(walk, places) if node.absent and places else walk

    def _access(self, step: Access) -> Advance:
        self._nodes += 1
        match step:
            case Field():
                return field_of(step.name, step.position)
            case Index():
                return element_at(self.compile(step.index), step.position)
            case Slice():
                return self._slice(step)
            case MethodCall():
                return self._method(step)
            case _:
                assert_never(step)

    def _slice(self, step: Slice) -> Advance:
        start = self.compile(step.start) if step.start else None
        stop = self.compile(step.stop) if step.stop else None
        position = step.position

        def cut(frame: Frame, value: object) -> object:
            try:
                first = access.bound(start(frame)) if start else None
                last = access.bound(stop(frame)) if stop else None
                return access.part(frame, value, first, last)
            except Fault as fault:
                raise at(fault, position) from None

        return cut

    def _method(self, step: MethodCall) -> Advance:
        arguments = [self.compile(argument) for argument in step.arguments]
        name = step.name
        position = step.position

        def method(frame: Frame, value: object) -> object:
            try:
                return call_method(frame, value, name, [argument(frame) for argument in arguments])
            except Fault as fault:
                raise at(fault, position) from None

        return method


def _leaf(node: Leaf) -> Run:
    match node:
        case Literal():
            return constant(node.value)
        case Name():
            return variable(node)
        case Environment():
            return environment(node.position)
        case Local():
            return local_slot(node.slot)
        case Element():
            return lambda frame: frame.element
        case ElementIndex():
            return lambda frame: frame.index
        case Accumulator():
            return lambda frame: frame.accumulator
        case _:
            assert_never(node)
