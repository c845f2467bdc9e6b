"""What the console is not shown of variables (`engine/requests/hiding`): masked in every answer, where answers leave.

The one place. A handler answers whole; `Hider` masks what is hidden in the JSON, wherever the classes of the answer in
a route's row hold free JSON. Must not be taken for access control: programs get all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import is_not
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl

import msgspec
import trio
from msgspec import inspect

from penstock.engine.requests.hiding import Hiding
from penstock.errors import BadRequest
from penstock.log.masking import MASK as HIDDEN
from penstock.loop.offload import run_sized
from penstock.loop.taskless import need_task
from penstock.rest.exchange import Reply, Scope
from penstock.rest.operation import CONSOLE_HEADER, Kind, RestOperation, Schema
from penstock.rest.sessions import has_session

Headers = Sequence[tuple[bytes, bytes]]
MASK: Final = "penstock.mask"
"""Key in the scope of a call in whose answer something may have to be masked: the `Mask`."""
NAME_SHOWN_MAX: Final = 256
_CONSOLE: Final = CONSOLE_HEADER.lower().encode()
NO_VARIABLES: Final[Mapping[str, frozenset[str]]] = {
    "BulkView": frozenset({"filter"}),
    "ExpressionVerdict": frozenset({"value"}),
    "SimulationView": frozenset({"tokens", "variables", "trace", "can", "result"}),
}
"""Free JSON without variables of instances, by class: which instances were asked for, what an expression made of those
that are not hidden, what the request itself brought."""
NESTED: Final = {("JournalRecord", "payload"): 4, ("RejectedMessage", "payload"): 1, ("RunTree", "views"): 1}
"""Free JSON that may be an object of variables, and may hold such objects, so many levels below: arguments, results,
messages, answers, views of a run. A record by which a run continues holds what it shows by key, as text."""
NAMED: Final = frozenset({("RecordedAttempt", "stackTrace")})
"""Texts that a pattern hides by their own name."""
_NOTHING: Final = (b"null", b'""')
NAMING: Final = {"getRunView": "key"}
"""The parameter of a route that names the value which is asked for."""

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Free(NamedTuple):
    """The shape of free JSON; ``levels``: see `NESTED`."""

    levels: int = 0


class Named(NamedTuple):
    """The shape of a text that is hidden by the name of its field."""

    name: str


class Items(NamedTuple):
    """The shape of a list."""

    shape: Shape


class Either(NamedTuple):
    """The shape of what may be one of several."""

    shapes: Sequence[Shape]


Mask = Callable[[bytes, "Shape"], bytes]
"""JSON of a shape with a mask in place of each hidden value."""
Shape = Free | Named | Items | Either | Mapping[str, "Shape"] | Kind | None
"""Where a value holds free JSON, by field; a class stands for its fields; None: nowhere."""


def asked_by_console(headers: Headers) -> bool:
    """Return whether the console asks, or somebody who is signed in at it."""
    cookies = [value for name, value in headers if name == b"cookie"]
    return any(name == _CONSOLE for name, _ in headers) or has_session(cookies)


def hides(hiding: Hiding, name: str, headers: Headers) -> bool:
    """Return whether the caller is not shown what has that name."""
    return hiding.hides(name) and asked_by_console(headers)


def mask_of(scope: Scope) -> Mask | None:
    """What a handler masks the pieces of an answer with that leaves piece by piece; None where nothing is hidden."""
    mask: Mask | None = scope.pop(MASK, None)
    return mask


class Hider:
    """Of one engine. ``kinds``: the classes that schemas refer to, by name."""

    def __init__(self, hiding: Hiding, kinds: Mapping[str, Kind]) -> None:
        self._hiding = hiding
        self._kinds = kinds
        self._shapes: dict[str, Shape] = {}

    def shape_of(self, operation: RestOperation) -> Shape:
        """Where the answers of a route hold free JSON."""
        if operation.id not in self._shapes:
            schemas = [
                schema for schema in (operation.answer, *(one for _, one in operation.also)) if schema is not None
            ]
            self._shapes[operation.id] = shape_of_schema({"anyOf": schemas}, self._kinds)
        return self._shapes[operation.id]

    def begin(self, operation: RestOperation, scope: Scope) -> None:
        """Note in the scope of a call that something may have to be masked in its answer. Raises BadRequest for a
        name of what is hidden."""
        if not self.applies(operation, scope["headers"]):
            return
        scope[MASK] = self.mask
        if (parameter := NAMING.get(operation.id)) is not None:
            for name, value in parse_qsl(scope["query_string"].decode("latin-1")):
                if name == parameter and self._hiding.hides(value):
                    raise BadRequest(f"{parameter}: '{value[:NAME_SHOWN_MAX]}' is hidden from the console")

    def applies(self, operation: RestOperation, headers: Headers) -> bool:
        """Return whether something may have to be masked in the answer to a call."""
        if not self._hiding.is_on or self.shape_of(operation) is None:
            return False
        return operation.for_people or asked_by_console(headers)

    async def hide(self, operation: RestOperation, body: bytes) -> bytes:
        """Return an answer of a route, with a mask in place of each hidden value."""
        return await run_sized(len(body), lambda: self.mask(body, self.shape_of(operation)))

    async def hide_reply(self, operation: RestOperation, reply: Reply) -> Reply:
        """As `hide`. Not to be cancelled: it may hold jobs, which are leased."""
        if reply.body is None:
            return reply
        await need_task()
        body = b"".join((reply.body, *reply.rest))
        with trio.CancelScope(shield=True):
            body = await self.hide(operation, body)
        return reply._replace(body=body, rest=())

    def mask(self, data: bytes, shape: Shape) -> bytes:
        """JSON with a mask in place of each hidden value. The same bytes where nothing is hidden."""
        if isinstance(shape, Free):
            data = self._hiding.mask(data)
            return self._mask_within(data, Free(shape.levels - 1)) if shape.levels else data
        if isinstance(shape, Named):
            return _encode(HIDDEN) if self._hiding.hides(shape.name) and data not in _NOTHING else data
        if isinstance(shape, Either):
            for one in shape.shapes:
                data = self.mask(data, one)
            return data
        if isinstance(shape, Items):
            return self._mask_items(data, shape.shape)
        if shape is None:
            return data
        return self._mask_fields(data, shape if isinstance(shape, Mapping) else fields_of(shape))

    def _mask_within(self, data: bytes, inner: Free) -> bytes:
        """As `mask`, of what stands in free JSON: the fields of an object, the items of a list, text that is JSON."""
        if data[:1] == b"{":
            return self._mask_fields(data, inner)
        if not data.startswith(b'"{'):
            return self._mask_items(data, inner)
        text = msgspec.json.decode(data, type=str).encode()
        try:
            masked = self.mask(text, inner)
        except msgspec.DecodeError:  # it only begins so
            return data
        return data if masked == text else _encode(masked.decode())

    def _mask_items(self, data: bytes, shape: Shape) -> bytes:
        if data[:1] != b"[":
            return data
        before = [bytes(one) for one in _read_list(data)]
        after = [self.mask(one, shape) for one in before]
        return b"[%b]" % b",".join(after) if any(map(is_not, before, after)) else data

    def _mask_fields(self, data: bytes, shapes: Mapping[str, Shape] | Free) -> bytes:
        """``shapes``: by field, or that of all fields of free JSON."""
        if data[:1] != b"{":
            return data
        found = _read_object(data)
        after = {
            name: self.mask(bytes(value), shapes if isinstance(shapes, Free) else shapes.get(name))
            for name, value in found.items()
        }
        if all(after[name] == bytes(value) for name, value in found.items()):
            return data
        return _encode({name: msgspec.Raw(value) for name, value in after.items()})


def shape_of_schema(schema: Schema, kinds: Mapping[str, Kind]) -> Shape:
    """Return the shape of what a schema of the table of routes describes."""
    if (name := schema.get("$ref")) is not None:
        kind = kinds.get(cast(str, name).rpartition("/")[2])
        return None if kind is None else _shape_of_kind(kind)
    if "anyOf" in schema:
        return _either([shape_of_schema(one, kinds) for one in schema["anyOf"]])
    if "items" in schema:
        return _items(shape_of_schema(schema["items"], kinds))
    properties = cast("dict[str, Schema]", schema.get("properties", {}))
    return _fields({name: shape_of_schema(one, kinds) for name, one in properties.items()})


@cache
def fields_of(kind: Kind) -> Mapping[str, Shape]:
    """Return those fields of a class that hold free JSON somewhere, by their name in JSON, and how."""
    free = {
        field.encode_name: _shape_of_type(field.type, (kind.__name__, field.encode_name))
        for field in cast(inspect.StructType, inspect.type_info(kind)).fields
        if field.encode_name not in NO_VARIABLES.get(kind.__name__, ())
    }
    named = {name: Named(name) for of, name in NAMED if of == kind.__name__}
    return {name: shape for name, shape in free.items() if shape is not None} | named


def _shape_of_type(found: inspect.Type, place: tuple[str, str]) -> Shape:
    if isinstance(found, inspect.UnionType):
        return _either([_shape_of_type(one, place) for one in found.types])
    if isinstance(found, inspect.ListType | inspect.VarTupleType):
        return _items(_shape_of_type(found.item_type, place))
    if isinstance(found, inspect.StructType):
        return _shape_of_kind(found.cls)
    if isinstance(found, inspect.DictType):
        found = found.value_type
    return Free(NESTED.get(place, 0)) if isinstance(found, inspect.AnyType | inspect.RawType) else None


def _shape_of_kind(kind: Kind) -> Shape:
    """Return the class itself, not its fields: it may hold others of its own."""
    return kind if _holds_free_json(inspect.type_info(kind), frozenset()) else None


def _holds_free_json(found: inspect.Type, seen: frozenset[Any]) -> bool:
    if isinstance(found, inspect.UnionType):
        return any(_holds_free_json(one, seen) for one in found.types)
    if isinstance(found, inspect.ListType | inspect.VarTupleType):
        return _holds_free_json(found.item_type, seen)
    if isinstance(found, inspect.DictType):
        return _holds_free_json(found.value_type, seen)
    if isinstance(found, inspect.StructType):
        left_out = NO_VARIABLES.get(found.cls.__name__, ())
        return found.cls not in seen and any(
            _holds_free_json(field.type, seen | {found.cls})
            for field in found.fields
            if field.encode_name not in left_out
        )
    return isinstance(found, inspect.AnyType | inspect.RawType)


def _either(shapes: Sequence[Shape]) -> Shape:
    found = [shape for shape in shapes if shape is not None]
    return found[0] if len(found) == 1 else Either(found) if found else None


def _items(shape: Shape) -> Shape:
    return None if shape is None else Items(shape)


def _fields(shapes: Mapping[str, Shape]) -> Shape:
    found = {name: shape for name, shape in shapes.items() if shape is not None}
    return found or None
