"""What a program takes, for the engine to check before a run begins, or is sent a message: JSON schemas of a workflow's
parameters, and of what its receives wait for.

It says no more than `codec.decode` refuses for certain: a value that comes through there fits. Of types that read in
ways of their own (pydantic's validators, hooks) it says nothing, or only that they are objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
import msgspec.inspect as m

from penstock.durable.codec import depth_of
from penstock.durable.kept import is_model
from penstock.durable.signature import Parameters
from penstock.kernel.operation import BranchOperation, Receive

NODES_MAX: Final = 2_000
"""Of one schema: what is beyond says nothing."""
TEXT_MAX_CHARS: Final = 500
SCHEMA_MAX_BYTES: Final = 16_384
"""Of what one `receive` takes: a larger one is not published."""
SCHEMA_MAX_DEPTH: Final = 60
"""Further an engine does not look."""
MESSAGE_TYPES_MAX: Final = 1_000
"""Whose schemas are remembered."""
_SIMPLE: Final[Mapping[type, dict[str, Any]]] = {
    m.NoneType: {"type": "null"},
    m.BoolType: {"type": "boolean"},
    m.BytesType: {"type": "string", "format": "base64"},
    m.DateType: {"type": "string", "format": "date"},
    m.DateTimeType: {"type": "string", "format": "date-time"},
    m.TimeType: {"type": "string", "format": "time"},
    m.TimeDeltaType: {"type": "string", "format": "duration"},
    m.UUIDType: {"type": "string", "format": "uuid"},
    m.DecimalType: {"type": ["string", "number"], "format": "decimal"},
}
_BOUNDS: Final = {
    "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum",
}  # fmt: skip
_LAX: Final[Mapping[Any, list[str]]] = {
    int: ["integer", "number", "string", "boolean"],
    float: ["integer", "number", "string", "boolean"],
    bool: ["boolean", "integer", "number", "string"],
    str: ["string"],
}
"""What pydantic takes for a plain field."""


class _Nodes:
    """How many a schema has, and which classes stand around the one that is asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.within: list[Any] = []


def schema_of_arguments(parameters: Parameters, name: str) -> bytes | None:
    """The JSON schema of the arguments of a workflow called ``name``; None where its annotations can't be read."""
    try:
        hints = parameters.hints()
    except TypeError:
        return None
    nodes = _Nodes()
    found = parameters.signature.parameters.values()
    required = [each.name for each in found if each.default is inspect.Parameter.empty]
    text = f"{name}{parameters.signature.replace(return_annotation=inspect.Signature.empty)}"
    return msgspec.json.encode(
        {
            "title": text if len(text) <= TEXT_MAX_CHARS else name,
            "type": "object",
            "properties": {each.name: schema_of(hints.get(each.name, Any), nodes) for each in found},
            "required": required,
            "additionalProperties": False,
        }
    )


def schemas_of(receives: Iterable[BranchOperation]) -> list[bytes] | None:
    """What receives of one name take, as JSON schemas of which one must fit. None where any message may come, as one
    says nothing of its type, or raises an error for what does not fit."""
    found: dict[bytes, None] = {}
    for receive in receives:
        if not isinstance(receive, Receive) or receive.raises:
            return None
        try:
            schema = _message_schema(receive.type_)
        except TypeError:  # not hashable
            schema = _message_schema.__wrapped__(receive.type_)
        if schema is None:
            return None
        found[schema] = None
    return list(found) or None


@lru_cache(MESSAGE_TYPES_MAX)
def _message_schema(type_: Any) -> bytes | None:
    schema = schema_of(type_)
    text = msgspec.json.encode(schema)
    return text if schema and len(text) <= SCHEMA_MAX_BYTES and depth_of(text) <= SCHEMA_MAX_DEPTH else None


def schema_of(type_: Any, nodes: _Nodes | None = None) -> dict[str, Any]:
    """The JSON schema of what `codec.decode` reads as an annotated type."""
    try:
        return _of(m.type_info(type_), nodes or _Nodes())
    except Exception:  # a type that msgspec reads in a way of its own: nothing is said of it
        return {}


def _of(info: m.Type, nodes: _Nodes) -> dict[str, Any]:
    nodes.count += 1
    if nodes.count > NODES_MAX:
        return {}
    if type(info) in _SIMPLE:
        return _SIMPLE[type(info)]
    if isinstance(info, (m.IntType, m.FloatType)):
        bounds = {word: getattr(info, name) for name, word in _BOUNDS.items() if getattr(info, name) is not None}
        return {"type": "integer" if isinstance(info, m.IntType) else "number", **bounds}
    if isinstance(info, m.StrType):
        return {"type": "string", **_sizes(info, "Length")}
    if isinstance(info, m.LiteralType):
        return {"enum": list(info.values)}
    if isinstance(info, m.EnumType):
        return _of_enum(info)
    if isinstance(info, m.UnionType):
        return {"anyOf": [_of(one, nodes) for one in info.types]}
    return _of_parts(info, nodes)


def _of_parts(info: m.Type, nodes: _Nodes) -> dict[str, Any]:
    """Of what has items or fields; nothing of all others."""
    match info:
        case m.ListType() | m.SetType() | m.FrozenSetType() | m.VarTupleType():
            return {"type": "array", "items": _of(info.item_type, nodes), **_sizes(info, "Items")}
        case m.TupleType():
            each = [_of(one, nodes) for one in info.item_types]
            return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
        case m.DictType():
            return {"type": "object", "additionalProperties": _of(info.value_type, nodes)}
        case m.TypedDictType() | m.DataclassType():
            return _within(info.cls, nodes, lambda: _of_fields(info.fields, nodes))
        case m.StructType() if not info.array_like:
            return _within(info.cls, nodes, lambda: _of_struct(info, nodes))
        case m.StructType() | m.NamedTupleType():
            return {"type": "array"}
        case m.CustomType() if is_model(info.cls):
            return _within(info.cls, nodes, lambda: _of_model(info.cls, nodes))
        case _:
            return {}


def _within(class_: Any, nodes: _Nodes, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Of a class within itself nothing is said."""
    if class_ in nodes.within:
        return {}
    nodes.within.append(class_)
    try:
        return make()
    finally:
        nodes.within.pop()


def _sizes(info: Any, what: str) -> dict[str, int]:
    given = {f"min{what}": info.min_length, f"max{what}": info.max_length}
    return {name: size for name, size in given.items() if size is not None}


def _of_enum(info: m.EnumType) -> dict[str, Any]:
    if getattr(info.cls, "_missing_", None) is not None and "_missing_" in vars(info.cls):
        return {}
    values = [one.value for one in info.cls]
    return {"enum": values} if all(type(value) in (str, int) for value in values) else {}


def _of_fields(fields: tuple[m.Field, ...], nodes: _Nodes) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {each.encode_name: _of(each.type, nodes) for each in fields},
        "required": [each.encode_name for each in fields if each.required],
    }


def _of_struct(info: m.StructType, nodes: _Nodes) -> dict[str, Any]:
    found = _of_fields(info.fields, nodes)
    if info.tag_field is not None:
        found["properties"][info.tag_field] = {"enum": [info.tag]}
    if info.forbid_unknown_fields:
        found["additionalProperties"] = False
    return found


def _of_model(class_: type[Any], nodes: _Nodes) -> dict[str, Any]:
    """Return a model of pydantic: that it is an object, and what it needs, unless it reads in a way of its own."""
    model = cast("Any", class_)
    own = model.__pydantic_decorators__
    changed = any(one.info.mode != "after" for one in own.model_validators.values())
    if changed or getattr(model, "__pydantic_root_model__", False) or own.root_validators or own.validators:
        return {}
    if "__get_pydantic_core_schema__" in vars(class_) or model.model_config.get("from_attributes"):
        return {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    touched = {name for one in own.field_validators.values() for name in one.info.fields}
    for name, field in model.model_fields.items():
        if field.alias is not None or field.validation_alias is not None or model.model_config.get("alias_generator"):
            continue
        if field.is_required():
            required.append(name)
        if name not in touched and "*" not in touched and not field.metadata:
            properties[name] = _of_model_field(
                field.annotation, nodes, numbers_as_text=bool(model.model_config.get("coerce_numbers_to_str"))
            )
    return {"type": "object", "properties": properties, "required": required}


def _of_model_field(type_: Any, nodes: _Nodes, *, numbers_as_text: bool) -> dict[str, Any]:
    if isinstance(type_, type) and is_model(type_):
        return _within(type_, nodes, lambda: _of_model(type_, nodes))
    names = None if type_ is str and numbers_as_text else _LAX.get(type_)
    return {} if names is None else {"type": names}
