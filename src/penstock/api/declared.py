"""The operations on schedules and queues that the code of durable workflows has.

Over REST only: they are for people, in the console and in scripts.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.api.operation import SLICE, DeclaredOperation, Rest
from penstock.api.permission import Permission
from penstock.wire.declared import Declaration
from penstock.wire.page import Page


class ListDeclarations(Struct, frozen=True):
    """Which slice of them."""

    cursor: str | None = None
    limit: int | None = None


class OneDeclaration(Struct, frozen=True):
    """Which one it is about."""

    kind: str
    id: str


LIST_DECLARATIONS: Final = DeclaredOperation(
    name="listDeclarations",
    summary="List schedules and queues that code has (addition)",
    description="Those of `@workflow(schedule=…, queue=Queue(…))`, with what became of them.",
    tag="service",
    request=ListDeclarations,
    answer=Page[Declaration],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/declarations", SLICE),
    errors=(400, 503),
)
APPLY_DECLARATION: Final = DeclaredOperation(
    name="applyDeclaration",
    summary="Put a schedule or a queue as the code has it (addition)",
    description="What somebody has changed is lost. 409: no code has it any more.",
    tag="service",
    request=OneDeclaration,
    answer=Declaration,
    needs=Permission.OPERATE,
    rest=Rest("POST", "/v1/declarations/{kind}/{id}/apply"),
    errors=(400, 404, 409, 503),
)
