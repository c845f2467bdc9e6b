"""The methods of operations that are served as their rows say (`penstock.api`): made here, none by hand."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, cast

import msgspec
from grpclib.const import Handler
from msgspec import NODEFAULT

from penstock.api import ROWS
from penstock.api.operation import Grpc, Row, Where
from penstock.engine.engine import Engine
from penstock.engine.operations.table import Serve, bound_operations
from penstock.engine.requests.payload import ERROR_MESSAGE_MAX_BYTES, PayloadLimits, clean_text
from penstock.errors import BadRequest
from penstock.loop.offload import run_long
from penstock.rpc.call import ServerCall
from penstock.rpc.methods import unary
from penstock.rpc.reading import given, read_variables, required, slice_of
from penstock.wire.codec import INT32, JSON, TEXT, fields_of, package_at
from penstock.wire.noun import Request

_EMPTY: Final = frozenset({TEXT, JSON})
"""Kinds of fields that are not given when they are empty."""
ITEMS_INLINE_MAX: Final = 100
"""Of a list in a request that is read on the event loop: an item takes about 10 µs."""


class Rows:
    """All of them, of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._bound = bound_operations(engine)
        self._limits = engine.limits

    def __mapping__(self) -> dict[str, Handler]:
        return {
            grpc.method: _handler(row, grpc, self._bound[row.name], self._limits)
            for row in ROWS
            for grpc in row.methods
        }


def _handler(row: Row, grpc: Grpc, serve: Serve, limits: PayloadLimits) -> Handler:
    needed = row.needed() if grpc.needed is None else grpc.needed
    package = package_at(grpc.method)
    asked = [place.field for place in row.places() if place.where is Where.QUERY and place.type is str]

    paged = {"page", "cursor"} <= set(row.request.__struct_fields__)

    async def run(message: Any, call: ServerCall[Any, Any]) -> Any:
        def read() -> Any:
            return without_empty(_asked(row, grpc, message), package, numbers=True)

        request = await run_long(read) if is_long(message) else read()
        for field in needed:
            required(getattr(request, field), grpc.names.get(field, field))
        for field in asked:
            given(getattr(request, field), field)
        if paged:
            slice_of(request)
        more: dict[str, Any] = {field: call.header(name) or None for field, name in grpc.headers.items()}
        for field in row.maps:
            more[field] = await read_variables(getattr(request, field), limits, grpc.names.get(field, field))
        if more:
            request = msgspec.structs.replace(request, **more)
        return grpc.answer_in(await serve(request))

    async def run_as_is(message: Any, _call: object) -> Any:
        for field in needed:
            required(getattr(message, field), field)
        return await serve(message)

    return unary(run_as_is if grpc.as_is else run, grpc.message or row.request, grpc.answer or row.answer)


def is_long(message: msgspec.Struct) -> bool:
    """Return whether reading it takes long: it has a list of many."""
    values = (getattr(message, name) for name in message.__struct_fields__)
    return any(isinstance(value, list) and len(cast("list[object]", value)) > ITEMS_INLINE_MAX for value in values)


def _asked(row: Row, grpc: Grpc, message: Any) -> msgspec.Struct:
    try:
        asked: msgspec.Struct = grpc.request_of(message, row.request)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    texts = {name: clean_text(text, ERROR_MESSAGE_MAX_BYTES) for name in grpc.cleaned if (text := getattr(asked, name))}
    return msgspec.structs.replace(asked, **texts) if texts else asked


def without_empty(message: msgspec.Struct, package: str, *, numbers: bool = False) -> Any:
    """A message whose empty fields are None, as not given; with ``numbers`` those that are 0, too."""
    fields = _fields(type(message), package)
    changes: dict[str, Any] = {}
    for name, kind in fields:
        value = getattr(message, name)
        if isinstance(value, Request):
            changes[name] = without_empty(value, package)
        elif isinstance(value, list):
            items = [item for item in cast("list[object]", value) if isinstance(item, Request)]
            if items:
                changes[name] = [without_empty(item, package) for item in items]
        elif not value and value is not None and (kind in _EMPTY or (numbers and kind == INT32)):
            changes[name] = None
    return msgspec.structs.replace(message, **changes) if changes else message


@cache
def _fields(kind: type[msgspec.Struct], package: str) -> list[tuple[str, str]]:
    """Return the fields that may be not given, and lists, and their kinds on the wire."""
    fields = msgspec.structs.fields(kind)
    optional = {field.name for field in fields if field.default is None or field.default_factory is not NODEFAULT}
    return [(name, proto.kind) for name, _, proto in fields_of(kind, package) if name in optional]
