"""The operations on schedules and queues that the code of durable workflows has."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.api.operation import SLICE, DeclaredOperation, Grpc, Rest
from penstock.api.permission import Permission
from penstock.wire import schedules_v1 as w
from penstock.wire.declared import Declaration
from penstock.wire.page import Page

_SERVICE: Final = "/penstock.v1.Schedules/"


def _message(found: Declaration) -> w.CodeDeclaration:
    return w.CodeDeclaration(
        found.kind,
        found.id,
        found.state,
        found.workflow,
        found.version,
        found.seen_at,
        b"" if found.body is None else msgspec.json.encode(found.body),
    )


def _declaration(message: w.CodeDeclaration, _request: object = None) -> Declaration:
    if message.seen_at is None:
        raise ValueError("seen_at: is missing")
    return Declaration(
        kind=message.kind,
        id=message.id,
        state=message.state,
        workflow=message.workflow,
        version=message.version,
        seen_at=message.seen_at,
        body=msgspec.json.decode(message.body) if message.body else None,
    )


def _page(message: w.ListDeclarationsResponse, _request: object) -> Page[Declaration]:
    return Page(items=[_declaration(each) for each in message.declarations], next=message.next or None)


def _slice(page: Page[Any]) -> w.ListDeclarationsResponse:
    return w.ListDeclarationsResponse([_message(each) for each in page.items], page.next or "")


LIST_DECLARATIONS: Final = DeclaredOperation(
    name="listDeclarations",
    summary="List schedules and queues that code has (addition)",
    description="Those of `@workflow(schedule=…, queue=Queue(…))`, with what became of them.",
    tag="service",
    request=w.ListDeclarationsRequest,
    answer=Page[Declaration],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/declarations", SLICE),
    grpc=Grpc(_SERVICE + "ListDeclarations", answer=w.ListDeclarationsResponse, give=_slice, read=_page),
    errors=(400, 503),
)
APPLY_DECLARATION: Final = DeclaredOperation(
    name="applyDeclaration",
    summary="Put a schedule or a queue as the code has it (addition)",
    description="What somebody has changed is lost. 409: no code has it any more.",
    tag="service",
    request=w.ApplyDeclarationRequest,
    answer=Declaration,
    needs=Permission.OPERATE,
    rest=Rest("POST", "/v1/declarations/{kind}/{id}/apply"),
    grpc=Grpc(_SERVICE + "ApplyDeclaration", answer=w.CodeDeclaration, give=_message, read=_declaration),
    errors=(400, 404, 409, 503),
)
