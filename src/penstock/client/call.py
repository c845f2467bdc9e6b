"""The calls of operations that have a row (`penstock.api`), and their form over REST: made of the row, none by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from penstock.api.operation import DeclaredOperation as Row
from penstock.api.operation import FieldPlace, Repeat, Where, camel
from penstock.client.http_exchange import Exchange, given, list_reader, nothing, quoted, reader, rfc3339
from penstock.client.operation import Operation

Q = TypeVar("Q", bound=msgspec.Struct)
R_co = TypeVar("R_co", covariant=True)


class RowCall(Operation[R_co], Generic[Q, R_co], frozen=True):
    """One call: an operation, and what it is asked."""

    row: Row[Q, R_co]
    request: Q
    part: Any = None
    """The class of what is read of an answer over REST, where that is less than all of it."""

    @property
    def label(self) -> str:
        return self.row.label

    @property
    def repeat(self) -> Repeat:
        if self.row.keyed and not any(getattr(self.request, name) for name in self.row.keyed):
            return Repeat.IF_NOT_APPLIED
        return self.row.repeat

    @property
    def hold_s(self) -> float:
        return (getattr(self.request, self.row.holds) or 0.0) if self.row.holds else 0.0


def exchange_of(call: RowCall[Any, Any]) -> Exchange:
    """The HTTP exchange of a call."""
    assert call.row.is_over_rest, "programs that serve workflows call it over gRPC"
    row, path, rest_body = call.row, call.row.rest.path, call.row.rest.body
    key: str | None = None
    query: dict[str, str | int | None] = {}
    fields: dict[str, object] = {}
    whole: object = None
    for place in _places(row):
        value = getattr(call.request, place.field)
        match place.where:
            case Where.PATH:
                path = path.replace(f"{{{place.name}}}", quoted(str(value)))
            case Where.QUERY if isinstance(value, Mapping):  # a family, such as `attr.*`
                family = cast("Mapping[str, str]", value)
                query |= {place.name.removesuffix("*") + name: each for name, each in family.items()}
            case Where.QUERY:
                query[place.name] = _in_query(value)
            case Where.HEADER:
                key = value
            case Where.BODY:
                fields[place.name] = _in_body(value, is_needed=place.name in _needed(row))
            case Where.WHOLE:
                whole = None if value == b"" else value
    flag = {row.rest.when: True} if row.rest.when else {}
    if rest_body is None or rest_body.field:
        body = whole
    elif rest_body.kind is row.request:
        body = msgspec.structs.replace(call.request, **flag)
    else:
        body = given(**fields) | {camel(name): True for name in flag}
    answer = _reader(row) if call.part is None else reader(call.part)
    return Exchange(row.rest.method, path, answer, body, query or None, key)


def _in_body(value: object, *, is_needed: bool) -> object:
    """As it stands in a body; None where it is not given: what is empty is not sent, unless the body has to have it."""
    if not is_needed and (value is False or value in (b"", [], {})):
        return None
    return msgspec.Raw(value) if isinstance(value, bytes) else value


@cache
def _needed(row: Row[Any, Any]) -> frozenset[str]:
    """The fields that its body has to have."""
    body = row.rest.body
    fields = () if body is None or body.kind is None else msgspec.structs.fields(body.kind)
    return frozenset(field.encode_name for field in fields if field.required)


def _in_query(value: object) -> str | int | None:
    """As it stands in a query; None where it is not given."""
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, bool):
        return "true" if value else None
    return value if isinstance(value, int) else str(value or "") or None


@cache
def _places(row: Row[Any, Any]) -> list[FieldPlace]:
    return row.places()


@cache
def _reader(row: Row[Any, Any]) -> Callable[[bytes], Any]:
    if row.items is not None:
        return list_reader("items", row.items)
    return nothing if row.answers_nothing else reader(row.answer)


def pages_of(
    page: int | None, page_size: int | None, cursor: str | None, limit: int | None
) -> tuple[int | None, int | None]:
    """Return the number and the size of a page, none where a slice is asked for."""
    return (page, page_size) if limit is None and cursor is None else (None, None)
