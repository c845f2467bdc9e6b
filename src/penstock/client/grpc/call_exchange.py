"""The gRPC form of calls that have a row (`penstock.api`): made of the row, none by hand. Pure, as `exchange.py`."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import msgspec

from penstock.api.operation import ItemRefused
from penstock.client.call import RowCall
from penstock.client.errors import BadRequest, NotOverGrpc, error_for
from penstock.client.grpc.unary import UnaryExchange
from penstock.client.grpc.values import int32, struct_text, there
from penstock.wire.alike import plain_type
from penstock.wire.codec import INT32, OPTIONAL_INT32, fields_of, package_at


def exchange_of(call: RowCall[Any, Any]) -> UnaryExchange:
    """Return the exchange of a call. Raises NotOverGrpc and BadRequest."""
    row, request, grpc = call.row, call.request, call.row.grpc
    if grpc is None:
        raise NotOverGrpc(f"{call.label} has no form in gRPC: use a client over REST for it")
    for name in grpc.lacks:
        if getattr(request, name):
            raise NotOverGrpc(f"{call.label} has no `{name}` in gRPC: use a client over REST for it")
    try:
        message = row.message_of(request)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    package = package_at(grpc.method)
    check_numbers(message, package)
    if row.maps and package == "workflow.v1":
        texts = {name: struct_text(getattr(message, name), name) for name in row.maps}
        message = msgspec.structs.replace(message, **texts)

    def answer_of(answer: Any) -> Any:
        try:
            found = row.answer_of(answer, request)
        except ItemRefused as refused:
            raise error_for(refused.code, refused.reason) from None
        return found if row.answers_nothing else there(found)

    key = request.idempotency_key if grpc.headers else None
    return UnaryExchange(grpc.method, message, grpc.answer or row.answer, answer_of, key)


def check_numbers(message: msgspec.Struct, package: str) -> None:
    """Raises BadRequest for a number that its field can't hold: it would arrive as another one."""
    for name, is_int32 in _fields(type(message), package):
        value = getattr(message, name)
        if is_int32:
            int32(value, name)
            continue
        for part in cast("list[object]", value) if isinstance(value, list) else [value]:
            if isinstance(part, msgspec.Struct):
                check_numbers(part, package)


@cache
def _fields(kind: type[msgspec.Struct], package: str) -> list[tuple[str, bool]]:
    """The fields that hold numbers of 32 bits, which a plain one is, or other messages; and whether it is a number."""
    found: list[tuple[str, bool]] = []
    for name, hint, proto in fields_of(kind, package):
        if proto.kind in (INT32, OPTIONAL_INT32) or (plain_type(hint) is int and not proto.kind):
            found.append((name, True))
        elif not proto.kind and hint is not str:
            found.append((name, False))
    return found
