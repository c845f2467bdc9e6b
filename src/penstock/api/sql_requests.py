"""The operations on requests that programs made by SQL functions in transactions of their own."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.api.operation import SLICE, DeclaredOperation, Repeat, Rest
from penstock.api.permission import Permission
from penstock.wire.page import Page
from penstock.wire.sql_request import SqlRequest

_PATH: Final = "/v1/sql-requests/{id}"
_NAMED: Final = {"number": "id"}
FAILED: Final = "FAILED"
WAITING: Final = "WAITING"


class ListSqlRequests(Struct, frozen=True):
    """Which requests to list."""

    state: str | None = None
    cursor: str | None = None
    limit: int | None = None


class OneSqlRequest(Struct, frozen=True):
    """Which request it is about."""

    number: str


LIST_SQL_REQUESTS: Final = DeclaredOperation(
    name="listSqlRequests",
    summary="List requests of SQL functions, oldest first (addition)",
    description="Those that are carried out are gone.",
    tag="service",
    request=ListSqlRequests,
    answer=Page[SqlRequest],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/sql-requests", {"state": "FAILED, which is the default, or WAITING.", **SLICE}),
    errors=(400, 503),
)
RETRY_SQL_REQUEST: Final = DeclaredOperation(
    name="retrySqlRequest",
    summary="Carry out a request of a SQL function that failed (addition)",
    description="An engine takes it with the next ones. 409: it has not failed, or its instance key is in use.",
    tag="service",
    request=OneSqlRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("POST", _PATH + "/retry", status=204, names=_NAMED),
    errors=(404, 409, 503),
    repeat=Repeat.IF_NOT_APPLIED,
)
DROP_SQL_REQUEST: Final = DeclaredOperation(
    name="dropSqlRequest",
    summary="Forget a request of a SQL function that failed (addition)",
    tag="service",
    request=OneSqlRequest,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("DELETE", _PATH, status=204, names=_NAMED),
    errors=(404, 409, 503),
    repeat=Repeat.UNTIL_GONE,
)
