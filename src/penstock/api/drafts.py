"""The operations on what is not uploaded yet. They store nothing. Only REST has them: the console calls them."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.api.operation import Body, DeclaredOperation, Rest
from penstock.api.permission import Permission
from penstock.wire.drafts import DraftCheck, ExpressionCheck, ExpressionLanguage, ExpressionVerdict
from penstock.wire.simulation import SimulationRequest


class ValidateDefinition(Struct, frozen=True):
    """The definition, and whether to tell what it reads."""

    document: bytes
    reads: bool = False


class GetExpressionLanguage(Struct, frozen=True):
    """All of it."""


VALIDATE_DEFINITION: Final = DeclaredOperation(
    name="validateDefinition",
    summary="Check a definition before it is uploaded (addition)",
    description=(
        "Nothing is stored. You get all problems, and hints about what may be meant otherwise (with problems: of "
        "the parts that can be read; while the database is away: without who polls). For a valid definition you "
        "get the variables that its expressions read (also of lists, keys and inputs of calls; names that a "
        "`forEach` or a call gives itself are none), and `same`: the version that has this content already. "
        "`reads=true` adds where they use a variable that has to be defined, and what they read of it, in "
        "characters. `dot` is where its first field is entered."
    ),
    tag="definitions",
    request=ValidateDefinition,
    answer=DraftCheck,
    needs=Permission.VIEW,
    rest=Rest(
        "POST",
        "/v1/definitions/validate",
        {"reads": "Where it reads variables that have to be defined, too."},
        body=Body(field="document", schema={"$ref": "#/components/schemas/Definition"}),
    ),
    errors=(413,),
)
GET_EXPRESSION_LANGUAGE: Final = DeclaredOperation(
    name="getExpressionLanguage",
    summary="List the names that expressions know (addition)",
    description="Functions, words, and methods of dates and durations. Variables are not among them.",
    tag="definitions",
    request=GetExpressionLanguage,
    answer=ExpressionLanguage,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/expressions/language"),
)
CHECK_EXPRESSION: Final = DeclaredOperation(
    name="checkExpression",
    summary="Evaluate an expression (addition)",
    description=(
        "With the variables given, or those that an instance has now, within the work that an expression of a "
        "definition may take. `kind` `condition` must give true or false, `value` anything. Problems have `from` "
        "and `to`, in characters."
    ),
    tag="definitions",
    request=ExpressionCheck,
    answer=ExpressionVerdict,
    needs=Permission.VIEW,
    rest=Rest("POST", "/v1/expressions/check", body=Body(kind=ExpressionCheck)),
    errors=(400, 404, 413, 503),
)
SIMULATE: Final = DeclaredOperation(
    name="simulate",
    summary="Simulate a definition (addition)",
    description=(
        "Nothing is stored: each request has the definition and all moves so far. The engine's own rules make "
        "them, on a clock that only they move. A move's `do` is `complete` (a job, a user task, what a call "
        "started), `fail`, `cancel`, `signal`, `message`, `fire` (the timer of `index`, and all that are due "
        "before), `advance` (by `seconds`, or to the next timer) or `retry`. `can` has the moves that are "
        "possible now. The first `made` moves were made, and `stopped` says why the next was not. `test` is the "
        "same as a file for pytest. A start that the definition refuses has `made` 0 and the reason in `stopped`."
        " Limits: 500 moves, 1 s of computing (the test as long again), 64 MiB of variables that its steps write,"
        " an answer of 1 MiB."
    ),
    tag="definitions",
    request=SimulationRequest,
    answer=msgspec.Raw,
    needs=Permission.VIEW,
    rest=Rest(
        "POST",
        "/v1/simulations",
        body=Body(kind=SimulationRequest),
        answer={"$ref": "#/components/schemas/SimulationView"},
    ),
    errors=(400, 413),
)
