"""The closures that need nothing of the compiler: what a node does when it runs.

Relies on the modules of values and operators. Must not look at nodes below its own: operands come compiled.

A fault is located by the innermost closure that knows a position; the `try` costs nothing until something fails.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from penstock.core.expression import access
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Advance, Frame, Run
from penstock.core.expression.nodes import Access, Field, MethodCall, Name
from penstock.core.expression.operators import Operator
from penstock.core.expression.values import Ordering, boolean, equal, is_map, is_number, kind, ordered


def at(fault: Fault, position: int) -> Fault:
    """``fault``, located at ``position`` unless a node further in has done so."""
    if fault.position < 0:
        fault.position = position
    return fault


def located(position: int, run: Run) -> Run:
    def run_located(frame: Frame) -> object:
        try:
            return run(frame)
        except Fault as fault:
            raise at(fault, position) from None

    return run_located


def constant(value: object) -> Run:
    return lambda _: value


def variable(node: Name) -> Run:
    name = node.name
    if node.optional:
        return lambda frame: frame.variables.get(name)
    return lambda frame: frame.variables[name]


def environment(position: int) -> Run:
    def all_variables(frame: Frame) -> object:
        try:
            frame.charge_items(len(frame.variables))
        except Fault as fault:
            raise at(fault, position) from None
        return dict(frame.variables)

    return all_variables


def local_slot(slot: int) -> Run:
    return lambda frame: frame.locals[slot]


def conjunction(right: Run, position: int, right_position: int) -> Advance:
    def both(frame: Frame, value: object) -> object:
        if value is False:
            return False
        if value is not True:
            raise Fault(f"the left side of and must be a bool, not {kind(value)}", position)
        verdict = right(frame)
        if verdict is True or verdict is False:
            return verdict
        raise Fault(f"the right side of and must be a bool, not {kind(verdict)}", right_position)

    return both


def disjunction(right: Run, position: int, right_position: int) -> Advance:
    def either(frame: Frame, value: object) -> object:
        if value is True:
            return True
        if value is not False:
            raise Fault(f"the left side of or must be a bool, not {kind(value)}", position)
        verdict = right(frame)
        if verdict is True or verdict is False:
            return verdict
        raise Fault(f"the right side of or must be a bool, not {kind(verdict)}", right_position)

    return either


def equality(right: Run, position: int) -> Advance:
    def same(frame: Frame, value: object) -> object:
        try:
            return equal(frame, value, right(frame))
        except Fault as fault:
            raise at(fault, position) from None

    return same


def ordering(position: int, name: str, compare: Ordering, right: Run) -> Advance:
    def in_order(frame: Frame, value: object) -> object:
        following = right(frame)
        if is_number(value) and is_number(following):
            return compare(value, following)
        try:
            return ordered(frame, value, following, name, compare)
        except Fault as fault:
            raise at(fault, position) from None

    return in_order


def binary(operator: Operator, right: Run, position: int) -> Advance:
    def operate(frame: Frame, value: object) -> object:
        try:
            return operator(frame, value, right(frame))
        except Fault as fault:
            raise at(fault, position) from None

    return operate


def negated(advance: Advance) -> Advance:
    return lambda frame, value: not boolean(advance(frame, value), "not")


_MAPS: Final = frozenset({dict})
_CONTAINERS: Final = frozenset({dict, list, str})
_MOMENTS: Final = frozenset({datetime, timedelta})


def entered_types(step: Access) -> frozenset[type] | None:
    """What an optional access can go into: for anything else the whole path is nil. None when it is not optional.

    expr stops only at nil; the contract lets optional access stop at a number too, and so at every dead end.
    """
    if not step.optional:
        return None
    match step:
        case Field():
            return _MAPS
        case MethodCall():
            return _MOMENTS
        case _:
            return _CONTAINERS


def field_of(name: str, position: int) -> Advance:
    def take(_: Frame, value: object) -> object:
        if is_map(value):
            return value.get(name)
        try:
            return access.field(value, name)
        except Fault as fault:
            raise at(fault, position) from None

    return take


def absent_field(variable: str, step: Field) -> Run:
    """`customer?.tier ?? …`, where the variable need not be defined."""
    take = field_of(step.name, step.position)

    def take_field(frame: Frame) -> object:
        value = frame.variables.get(variable)
        return take(frame, value) if is_map(value) else None

    return take_field


def variable_field(base: Name, step: Field) -> Run:
    """`customer.tier`, by far the most frequent path, without the loop."""
    take = field_of(step.name, step.position)
    optional = step.optional
    if base.optional:
        return absent_field(base.name, step)
    variable = base.name

    def take_field(frame: Frame) -> object:
        value = frame.variables[variable]
        if optional and not is_map(value):
            return None
        return take(frame, value)

    return take_field


def element_at(index: Run, position: int) -> Advance:
    def take(frame: Frame, value: object) -> object:
        try:
            return access.at(value, index(frame))
        except Fault as fault:
            raise at(fault, position) from None

    return take


def without_range(walk: Run, places: frozenset[int]) -> Run:
    """Return a path before `??`: nil where the index at one of these places is out of range."""

    def walk_within(frame: Frame) -> object:
        try:
            return walk(frame)
        except access.OutOfRange as fault:
            if fault.position in places:
                return None
            raise

    return walk_within
