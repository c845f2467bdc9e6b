"""Tokens to the tree in `nodes`, with expr's grammar and its table of precedences.

Relies on the lexer, and on the tables of functions for names and arity only. Must not evaluate.

Precedence climbing as in expr's own parser; the numbers below are expr's. What surprises: `??` binds tighter than
every other operator, and may not stand beside another one without brackets; `!a == b` is `(!a) == b`; `-2 ** 2` is
`-(2 ** 2)`; `a < b < c` is `a < b && b < c`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from penstock.core.expression.failure import Fault
from penstock.core.expression.functions import FUNCTIONS
from penstock.core.expression.lexer import (
    BYTES,
    END,
    NAME,
    NUMBER,
    OPERATOR,
    OPERATOR_WORDS,
    TEXT,
    LexerToken,
    tokenize,
)
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
from penstock.core.expression.predicates import PREDICATES

UNARY: Final = {"not": 50, "!": 50, "-": 90, "+": 90}
BINARY: Final = {
    "|": 0,
    "or": 10, "||": 10,
    "and": 15, "&&": 15,
    "==": 20, "!=": 20, "<": 20, ">": 20, "<=": 20, ">=": 20,
    "in": 20, "matches": 20, "contains": 20, "startsWith": 20, "endsWith": 20,
    "..": 25,
    "+": 30, "-": 30,
    "*": 60, "/": 60, "%": 60,
    "**": 100, "^": 100,
    "??": 500,
}  # fmt: skip
RIGHT_ASSOCIATIVE: Final = frozenset({"**", "^"})
ORDERING: Final = frozenset({"<", ">", "<=", ">="})
NEGATABLE: Final = frozenset({"in", "matches", "contains", "startsWith", "endsWith"})
SPELLINGS: Final = {"||": "or", "&&": "and", "^": "**", "!": "not"}
_BEGIN_CONDITION: Final = frozenset({"not", "!", "-", "+", "(", "[", "{", "#", "${", "::", "let"})
CONSTANTS: Final[dict[str, object]] = {"true": True, "false": False, "nil": None, "null": None}


class Read(NamedTuple):
    """A use of a variable that has to be defined, with what is read of it: ``start`` to ``end`` in the source. ``dot``:
    where its first field is entered, which is an error where it is nil."""

    name: str
    start: int
    end: int
    dot: int | None


class Parser:
    """One parse. Afterwards ``names`` holds each free identifier with its first position, ``needed`` those that have to
    be defined."""

    def __init__(self, source: str, limits: ExpressionLimits, start: int | None = None) -> None:
        """``start``: only what is from there to the `}` that closes it."""
        self._source = source
        self._limits = limits
        self._tokens = tokenize(source, limits, start)
        self._at = 0
        self._token = self._tokens[0]
        self._depth = 0
        self._predicates: list[str] = []  # the functions whose predicates we are in, the innermost last
        self._locals: dict[str, int] = {}
        self.slots = 0
        self.names: dict[str, int] = {}
        self._uses: list[tuple[str, int]] = []
        self._optional: set[int] = set()  # positions of uses before `??`
        self._entered: dict[int, tuple[int, int]] = {}  # of variables with a path: its end, and the first dot

    def parse(self) -> Node:
        node = self._sequence()
        if self._token.kind is not END:
            raise self._unexpected()
        return node

    @property
    def end(self) -> int:
        """Where the text ends that is read: its length, or the place of the `}`."""
        return self._tokens[-1].position

    # --- tokens -----------------------------------------------------------------------------------------------------

    def _next(self) -> LexerToken:
        token = self._token
        if token.kind is not END:
            self._at += 1
            self._token = self._tokens[self._at]
        return token

    def _is(self, operator: str) -> bool:
        token = self._token
        return token.text == operator and token.kind is OPERATOR

    def _skip(self, operator: str) -> bool:
        if self._is(operator):
            self._next()
            return True
        return False

    def _expect(self, operator: str) -> LexerToken:
        if not self._is(operator):
            raise self._unexpected(operator)
        return self._next()

    def _peek_is(self, operator: str) -> bool:
        following = self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        return following.kind is OPERATOR and following.text == operator

    def _unexpected(self, wanted: str | None = None) -> Fault:
        token = self._token
        if token.kind is END:
            found = "the end of the expression"
        elif token.kind is TEXT:
            found = "a string"
        else:
            found = token.text[:40]
        return Fault(f"unexpected {found}" + (f", {wanted} was expected" if wanted else ""), token.position)

    # --- operators --------------------------------------------------------------------------------------------------

    def _sequence(self) -> Node:
        """`a; b; c`, or one expression. A semicolon may end the text."""
        first = self._expression(0)
        if not self._is(";"):
            return first
        nodes = [first]
        while self._skip(";") and self._token.kind is not END:
            nodes.append(self._expression(0))
        return Sequence(first.position, tuple(nodes)) if len(nodes) > 1 else first

    def _expression(self, minimum: int) -> Node:
        """What binds at least as tight as ``minimum``; with 0 also `let`, pipes and `? :`."""
        self._depth += 1
        if self._depth > self._limits.depth_levels:
            levels = self._limits.depth_levels
            raise Fault(f"the expression is nested more than {levels} levels deep", self._token.position)
        node = self._operators(minimum) if minimum else self._whole()
        self._depth -= 1
        return node

    def _whole(self) -> Node:
        """An expression that may also be a `let`, an `if` or a `? :`."""
        if self._is_word("if") and self._begins_condition():
            return self._if()
        node = self._let() if self._is("let") else self._operators(0)
        return self._conditional(node) if self._is("?") else node

    def _operators(self, minimum: int) -> Node:
        first = self._operand()
        steps: list[Step] = []
        coalescing = False
        while True:
            negated = self._is("not")
            token = self._tokens[self._at + 1] if negated else self._token
            if negated and token.text not in NEGATABLE:
                self._next()
                raise self._unexpected("in, contains, startsWith, endsWith or matches")
            if token.kind is not OPERATOR or BINARY.get(token.text, -1) < minimum:
                break
            if negated:
                self._next()
            self._next()
            if coalescing and token.text not in ("??", "|"):
                raise Fault(f"?? and {token.text} can't be mixed: put one of them in brackets", token.position)
            if token.text == "??" and not steps:
                first = self._may_be_absent(first)
            elif token.text == "??" and isinstance(steps[-1], Binary):
                steps[-1] = replace(steps[-1], right=self._may_be_absent(steps[-1].right))
            coalescing = token.text == "??"
            steps.append(self._step(token, negated=negated))
        return Fold(first.position, first, tuple(steps)) if steps else first

    def _may_be_absent(self, left: Node) -> Node:
        """What stands before `??`: a variable there, or one that is entered optionally, need not be defined, nor an
        element at an index."""
        match left:
            case Name():
                self._optional.add(left.position)
                return replace(left, optional=True)
            case Path(base=Name() as base, accesses=(Field(optional=True) | Index(optional=True), *_)):
                self._optional.add(base.position)
                return replace(left, base=replace(base, optional=True), absent=True)
            case Path():
                return replace(left, absent=True)
            case _:
                return left

    @property
    def needed(self) -> list[tuple[str, int]]:
        """The variables that have to be defined, each with the position of its first such use."""
        found: dict[str, int] = {}
        for name, position in self._uses:
            if position not in self._optional:
                found.setdefault(name, position)
        return list(found.items())

    @property
    def reads(self) -> list[Read]:
        """Return the same, but every use: those that are written as a name, which `$env.name` and `#name` are not."""
        source = self._source
        written = (
            (name, at)
            for name, at in self._uses
            if at not in self._optional and source.startswith(name, at) and source[at - 1 : at] != "#"
        )
        return [Read(name, at, *self._entered.get(at, (at + len(name), None))) for name, at in written]

    def _step(self, token: LexerToken, *, negated: bool) -> Step:
        """The right side of the operator that was just read."""
        if token.text == "|":
            return self._pipe()
        precedence = BINARY[token.text]
        if token.text in ORDERING:
            return self._comparison(token, precedence)
        right = self._expression(precedence if token.text in RIGHT_ASSOCIATIVE else precedence + 1)
        return Binary(token.position, SPELLINGS.get(token.text, token.text), right, negated)

    def _comparison(self, token: LexerToken, precedence: int) -> Comparison:
        comparisons: list[tuple[int, str, Node]] = []
        operator = token
        while True:
            comparisons.append((operator.position, operator.text, self._expression(precedence + 1)))
            if self._token.kind is not OPERATOR or self._token.text not in ORDERING:
                return Comparison(token.position, tuple(comparisons))
            operator = self._next()

    def _pipe(self) -> FunctionCall | PredicateCall:
        if self._token.kind is not NAME or not self._peek_is("("):
            raise self._unexpected("a function call")
        return self._call(self._next(), piped=True)

    def _conditional(self, condition: Node) -> Conditional:
        """`c1 ? v1 : c2 ? v2 : … : d`, in a loop: a chain of a thousand arms must not nest."""
        position = condition.position
        arms: list[tuple[Node, Node | None]] = []
        while self._skip("?"):
            value = None if self._is(":") else self._expression(0)
            self._expect(":")
            arms.append((condition, value))
            if self._is_word("if") and self._begins_condition():
                condition = self._if()
            else:
                condition = self._let() if self._is("let") else self._operators(0)
        return Conditional(position, tuple(arms), condition)

    def _begins_condition(self) -> bool:
        """Return whether the `if` here is that of `if … { }`: a variable of this name has an operator or an end after
        it."""
        following = self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        if following.kind is OPERATOR:
            return following.text in _BEGIN_CONDITION or (following.text == "." and bool(self._predicates))
        return following.kind is not END

    def _if(self) -> Conditional:
        """`if c1 { v1 } else if c2 { v2 } else { d }`, in a loop like `_conditional`."""
        position = self._token.position
        arms: list[tuple[Node, Node | None]] = []
        while self._is_word("if"):
            self._next()
            condition = self._expression(0)
            arms.append((condition, self._block()))
            if not self._is_word("else"):
                raise self._unexpected("else")
            self._next()
        return Conditional(position, tuple(arms), self._block(), "if")

    def _block(self) -> Node:
        self._expect("{")
        node = self._sequence()
        self._expect("}")
        return node

    def _is_word(self, word: str) -> bool:
        return self._token.text == word and self._token.kind is NAME

    def _let(self) -> Let:
        self._expect("let")
        token = self._token
        if token.kind is not NAME or token.text in CONSTANTS:
            raise self._unexpected("a name")
        if token.text in self._locals or token.text in FUNCTIONS or token.text in PREDICATES:
            raise Fault(f"{token.text} can't be declared again", token.position)
        self._next()
        self._expect("=")
        value = self._expression(0)
        self._expect(";")
        slot = self.slots
        self.slots += 1
        self._locals[token.text] = slot
        body = self._sequence()
        del self._locals[token.text]
        return Let(token.position, slot, value, body)

    # --- operands ---------------------------------------------------------------------------------------------------

    def _operand(self) -> Node:
        token = self._token
        if token.kind is NAME:
            if token.text in CONSTANTS:
                self._next()
                return Literal(token.position, CONSTANTS[token.text])
            return self._accesses(self._named(self._next()))
        if token.kind is NUMBER:
            self._next()
            return Literal(token.position, token.value)
        if token.kind is TEXT or token.kind is BYTES:
            self._next()
            return self._accesses(Literal(token.position, token.value))
        if token.text in UNARY and token.kind is OPERATOR:
            self._next()
            operand = self._expression(UNARY[token.text])
            return Unary(token.position, SPELLINGS.get(token.text, token.text), operand)
        return self._accesses(self._bracketed(token))

    def _bracketed(self, token: LexerToken) -> Node:
        """What starts with a symbol: brackets, literals of arrays and maps, `#`, `.field`, `contains(a, b)`."""
        match token.text if token.kind is OPERATOR else "":
            case "(" | "${":
                self._next()
                node = self._sequence()
                self._expect(")" if token.text == "(" else "}")
                return node
            case "[":
                self._next()
                return ArrayLiteral(token.position, tuple(self._list("]")))
            case "{":
                self._next()
                return self._map(token)
            case "#":
                self._next()
                return self._pointer(token)
            case "::":
                self._next()
                if self._token.kind is not NAME:
                    raise self._unexpected("a function")
                return self._call(self._next(), piped=False)
            case "." if self._predicates:
                return Element(token.position)  # `.name` is `#.name`: the access is read next
            case "contains" if self._peek_is("("):
                self._next()
                return self._contains(token)
            case _:
                raise self._unexpected()

    def _named(self, token: LexerToken) -> Node:
        if self._is("("):
            return self._call(token, piped=False)
        name = token.text
        if name in self._locals:
            return Local(token.position, self._locals[name])
        if name == "$env":
            return Environment(token.position)
        return self._variable(name, token.position)

    def _variable(self, name: str, position: int) -> Name:
        self.names.setdefault(name, position)
        self._uses.append((name, position))
        return Name(position, name)

    def _pointer(self, token: LexerToken) -> Node:
        """`#`, `#index`; outside a predicate `#name` is `name` (the contract's rewriting)."""
        named = self._token.kind is NAME
        if not self._predicates:
            if not named:
                raise Fault("# is the element of a predicate, and this is outside of one", token.position)
            return self._named(self._next())
        if not named:
            return Element(token.position)
        name = self._next().text
        if name == "acc" and self._predicates[-1] == "reduce":
            return Accumulator(token.position)
        if name != "index":
            raise Fault(f"#{name} is not known in a predicate: the element is #, a variable has no #", token.position)
        return ElementIndex(token.position)

    def _contains(self, token: LexerToken) -> Node:
        """`contains(a, b)`: the contract's rewriting of `b in a`."""
        self._expect("(")
        container = self._expression(0)
        self._expect(",")
        item = self._expression(0)
        self._skip(",")
        self._expect(")")
        return Fold(token.position, item, (Binary(token.position, "within", container),))

    def _list(self, close: str) -> list[Node]:
        items: list[Node] = []
        while not self._skip(close):
            items.append(self._expression(0))
            if not self._is(close):
                self._expect(",")
        return items

    def _map(self, token: LexerToken) -> MapLiteral:
        entries: list[tuple[Node, Node]] = []
        while not self._skip("}"):
            key = self._key()
            self._expect(":")
            entries.append((key, self._expression(0)))
            if not self._is("}"):
                self._expect(",")
        return MapLiteral(token.position, tuple(entries))

    def _key(self) -> Node:
        token = self._token
        if token.kind is TEXT:
            return Literal(self._next().position, token.value)
        if token.kind in (NAME, NUMBER):
            return Literal(self._next().position, token.text)
        if self._is("("):
            self._next()
            key = self._expression(0)
            self._expect(")")
            return key
        raise self._unexpected("a key (a name, a string, a number or an expression in brackets)")

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, token: LexerToken, *, piped: bool) -> FunctionCall | PredicateCall:
        self._expect("(")
        if token.text in PREDICATES:
            return self._predicate_call(token, piped=piped)
        function = FUNCTIONS.get(token.text)
        if function is None:
            raise Fault(f"unknown function {token.text[:40]}", token.position)
        arguments = self._list(")")
        count = len(arguments) + piped
        if count < function.minimum or (function.maximum is not None and count > function.maximum):
            raise Fault(f"{token.text} takes {function.arity}, not {count}", token.position)
        return FunctionCall(token.position, token.text, tuple(arguments))

    def _predicate_call(self, token: LexerToken, *, piped: bool) -> PredicateCall:
        collection: Node | None = None
        predicate: Node | None = None
        if not piped:
            if self._is(")"):
                raise Fault(f"{token.text} needs an array", token.position)
            collection = self._expression(0)
            if not self._is(")"):
                self._expect(",")
        more: Node | None = None
        if not self._is(")"):
            predicate = self._predicate(token.text)
            if self._skip(",") and PREDICATES[token.text].takes_more and not self._is(")"):
                more = self._expression(0)
                self._skip(",")
        self._expect(")")
        if predicate is None and PREDICATES[token.text].required:
            raise Fault(f"{token.text} needs a predicate", token.position)
        return PredicateCall(token.position, token.text, collection, predicate, more)

    def _predicate(self, function: str) -> Node:
        """Return an expression, or one in `{ }`: a map as the result of a predicate needs two pairs of braces, as in
        expr."""
        self._predicates.append(function)
        node = self._block() if self._is("{") else self._expression(0)
        self._predicates.pop()
        return node

    # --- accesses ---------------------------------------------------------------------------------------------------

    def _accesses(self, base: Node) -> Node:
        accesses: list[Access] = []
        before = self._tokens[self._at - 1]
        if isinstance(base, Path):  # `(a?.b).c` is `a?.b.c`, as in expr
            accesses.extend(base.accesses)
            base = base.base
        while self._token.kind is OPERATOR:
            token = self._token
            if token.text == "[":
                self._next()
                accesses.append(self._index(token, optional=False))
            elif token.text in (".", "?."):
                self._next()
                if token.text == "?." and self._skip("["):
                    accesses.append(self._index(token, optional=True))
                else:
                    accesses.append(self._field(token, optional=token.text == "?."))
            else:
                break
            if isinstance(base, Environment) and len(accesses) == 1:
                base, accesses = self._in_environment(base, accesses)
        # `(a).b` is left out: what is said of it has to be a piece of the text.
        if isinstance(base, Name) and accesses and base.position == before.position:
            first, last = accesses[0], self._tokens[self._at - 1]
            if isinstance(first, Field) and not first.optional:
                self._entered[base.position] = last.position + len(last.text), first.position
        return Path(base.position, base, tuple(accesses)) if accesses else base

    def _in_environment(self, base: Node, accesses: list[Access]) -> tuple[Node, list[Access]]:
        """`$env.x` and `$env['x']` name the variable x, which must be defined like any other."""
        access = accesses[0]
        if isinstance(access, Field) and not access.optional:
            return self._variable(access.name, access.position), []
        if isinstance(access, Index) and not access.optional and isinstance(access.index, Literal):
            name = access.index.value
            if isinstance(name, str):
                return self._variable(name, access.position), []
        return base, accesses

    def _field(self, token: LexerToken, *, optional: bool) -> Field | MethodCall:
        name = self._token
        if name.kind is not NAME and name.text not in OPERATOR_WORDS:
            raise self._unexpected("a name")
        self._next()
        if self._skip("("):
            return MethodCall(token.position, name.text, tuple(self._list(")")), optional)
        return Field(token.position, name.text, optional)

    def _index(self, token: LexerToken, *, optional: bool) -> Index | Slice:
        if self._skip(":"):
            return self._slice(token, None, optional=optional)
        index = self._expression(0)
        if self._skip(":"):
            return self._slice(token, index, optional=optional)
        self._expect("]")
        return Index(token.position, index, optional)

    def _slice(self, token: LexerToken, start: Node | None, *, optional: bool) -> Slice:
        stop = None if self._is("]") else self._expression(0)
        self._expect("]")
        return Slice(token.position, start, stop, optional)
