"""Structs of two classes whose fields have the same names: what one holds, as the other. Pure."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

T = TypeVar("T", bound=Struct)


def alike(value: Struct, kind: type[T], **other: Any) -> T:
    """Return a struct of ``kind`` with the fields of ``value`` that it has, too, and with those of ``other``.

    A message can't tell "empty" from "not given". So an empty value gives the field's default where that is None or
    made anew, and None gives the default whatever it is. Structs in fields and lists are converted likewise.
    """
    given = dict(other)
    for name, inner, optional in _fields(kind):
        found = getattr(value, name, None)
        if name not in other and found is not None and (found or isinstance(found, bool) or not optional):
            given[name] = _converted(found, inner)
    return kind(**given)


def plain_type(hint: Any) -> Any:
    """Return a field's type without annotations and None."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if isinstance(hint, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return plain_type(kinds[0]) if len(kinds) == 1 else hint
    return hint


class _Field(NamedTuple):
    name: str
    inner: Any
    """Its type, of a list that of its items."""
    optional: bool


@cache
def _fields(kind: type[Struct]) -> list[_Field]:
    found: list[_Field] = []
    for field in msgspec.structs.fields(kind):
        inner = plain_type(field.type)
        if get_origin(inner) is list:
            inner = plain_type(get_args(inner)[0])
        optional = field.default is None or field.default_factory is not msgspec.NODEFAULT
        found.append(_Field(field.name, inner, optional))
    return found


def _converted(value: Any, inner: Any) -> Any:
    if isinstance(value, list):
        return [_converted(item, inner) for item in cast("list[object]", value)]
    if isinstance(value, Struct) and isinstance(inner, type) and issubclass(inner, Struct):
        return value if type(value) is inner else alike(value, inner)
    if isinstance(value, bytes | Raw) and inner in (bytes, Raw):
        return inner(value)
    return value
