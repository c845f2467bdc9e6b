"""What is told of definitions and expressions that are not uploaded yet."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.wire.noun import Answer

HintKind = Literal[
    "NEVER_TRUE",
    "NO_OTHERWISE",
    "NEVER_REACHED",
    "FAILS",
    "FLOW",
    "CHILD",
    "TEMPLATE",
    "FORM",
    "UNUSED",
    "NOBODY_POLLS",
]
"""For programs: a condition, the last one, one after what is always true, an expression that can't give what is needed,
a way that nothing can go on from, what a child does not give, a text that may be meant as a template, a form for
people, a field that does nothing, a job type."""


class DraftProblem(Answer, frozen=True):
    """One thing wrong with a definition, and the id of the step that it is in. ``character``: of an expression that
    can't be read the place in its text, counted from 0."""

    path: str
    reason: str
    step_id: str | None = None
    character: int | None = None


class DraftHint(Answer, frozen=True):
    """What may be meant otherwise, though it can be uploaded."""

    path: str
    text: str
    kind: HintKind


class VariableRead(Answer, frozen=True):
    """Where the expression at ``path`` uses a variable that has to be defined, with what it reads of it, in characters
    of its text. ``dot``: where it enters the variable's first field, which is an error where the variable is nil."""

    path: str
    name: str
    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")
    dot: int | None = None


class DraftCheck(Answer, frozen=True):
    """Whether a definition could be uploaded, with all that is wrong. ``hints``: of one with problems, of what can be
    read of it. ``identifiers``: the variables that its expressions read, ``reads`` where, as far as asked for.
    ``same``: the version that has this content already. ``latest``: the newest one of its id."""

    valid: bool
    problems: list[DraftProblem]
    hints: list[DraftHint]
    identifiers: list[str]
    reads: list[VariableRead] | None = None
    same: int | None = None
    latest: int | None = None


class ExpressionCheck(msgspec.Struct, rename="camel"):
    """An expression as it stands in a ``condition`` or gives a ``value``, and the variables to evaluate it with: these,
    or those that an instance has now. Without either it is only read."""

    expression: str
    kind: str = "value"
    variables: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    instance_id: str | None = None


class ExpressionProblem(Answer, frozen=True):
    """What is wrong, and with which characters, counted from 0."""

    reason: str
    start: int = msgspec.field(name="from")
    end: int = msgspec.field(name="to")


class ExpressionVerdict(Answer, frozen=True):
    """``ok``: it can be read. ``value``: what it gives with the variables; ``value_error``: why it gives nothing."""

    ok: bool
    identifiers: list[str]
    problem: ExpressionProblem | None = None
    value: msgspec.Raw | None = None
    value_error: ExpressionProblem | None = None


class LanguageFunction(Answer, frozen=True):
    """A function or a word operator of expressions: how it is written, what it gives, and an example."""

    name: str
    signature: str
    text: str
    example: str


class ExpressionLanguage(Answer, frozen=True):
    """The names that expressions know beside variables. ``words``: ``operators`` and values that are words.
    ``methods``: of dates and durations."""

    functions: list[LanguageFunction]
    operators: list[LanguageFunction]
    words: list[str]
    methods: list[str]
