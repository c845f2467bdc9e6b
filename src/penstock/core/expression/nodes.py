"""The tree that the parser builds and the compiler reads: plain data, immutable.

Relies on nothing. Must not evaluate.

Chains are kept flat (`Fold`, `Path`, `Conditional`): `a || b || c …` with a thousand terms is one node with a
thousand steps, so the depth of the tree is the nesting of the source and recursion over it is bounded by
`Limits.depth_levels`. Trees of pairs, as expr builds them, lost because their depth is the length of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    position: int
    value: object


@dataclass(frozen=True, slots=True)
class Name:
    """A variable of the instance. ``optional``: nil where it is not defined."""

    position: int
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """`$env`: the map of all variables."""

    position: int


@dataclass(frozen=True, slots=True)
class Local:
    """A name bound by `let`; ``slot`` is its place among the locals of the expression."""

    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class Let:
    position: int
    slot: int
    value: Node
    body: Node


@dataclass(frozen=True, slots=True)
class Element:
    """`#` in a predicate."""

    position: int


@dataclass(frozen=True, slots=True)
class ElementIndex:
    """`#index` in a predicate."""

    position: int


@dataclass(frozen=True, slots=True)
class Accumulator:
    """`#acc` in the predicate of `reduce`."""

    position: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """`a; b; c`: each is evaluated, the last one is the value."""

    position: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ArrayLiteral:
    position: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapLiteral:
    position: int
    entries: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """``operator`` is ``not``, ``-`` or ``+``."""

    position: int
    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """One step of a `Fold`: what is left of it, ``operator``, ``right``."""

    position: int
    operator: str
    right: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """One step of a `Fold`: `< b < c …`, true when every neighbouring pair is in order."""

    position: int
    comparisons: tuple[tuple[int, str, Node], ...]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function. As a step of a `Fold` (a pipe) what is left of it is the first argument."""

    position: int
    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PredicateCall:
    """A function over an array with a predicate. ``collection`` is None as a step of a `Fold` (a pipe). ``more``: the
    order of `sortBy`, the start value of `reduce`."""

    position: int
    function: str
    collection: Node | None
    predicate: Node | None
    more: Node | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """``first``, then each step applied to what came out so far."""

    position: int
    first: Node
    steps: tuple[Binary | Comparison | FunctionCall | PredicateCall, ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    """`c1 ? v1 : c2 ? v2 : … : otherwise`, or the same as `if`; a value of None is the condition itself (`c ?: d`)."""

    position: int
    arms: tuple[tuple[Node, Node | None], ...]
    otherwise: Node
    word: str = "? :"


@dataclass(frozen=True, slots=True)
class Field:
    position: int
    name: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Index:
    position: int
    index: Node
    optional: bool


@dataclass(frozen=True, slots=True)
class Slice:
    position: int
    start: Node | None
    stop: Node | None
    optional: bool


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A method of a date or a duration, e.g. `now().Year()`."""

    position: int
    name: str
    arguments: tuple[Node, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Path:
    """``base``, then each access in turn; an optional access on nil makes the whole path nil. ``absent``: so does an
    index out of range."""

    position: int
    base: Node
    accesses: tuple[Field | Index | Slice | MethodCall, ...]
    absent: bool = False


Access: TypeAlias = Field | Index | Slice | MethodCall
Step: TypeAlias = Binary | Comparison | FunctionCall | PredicateCall
Leaf: TypeAlias = Literal | Name | Environment | Local | Element | ElementIndex | Accumulator
Compound: TypeAlias = (
    Let | Sequence | ArrayLiteral | MapLiteral | Unary | FunctionCall | PredicateCall | Fold | Conditional
)
Node: TypeAlias = Leaf | Compound | Path
