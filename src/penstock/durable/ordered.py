"""Sets in the order of their items' JSON, so that what is recorded does not depend on the process.

The order of a set follows from Python's hash seed, another one in each process. Dictionaries keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, Final, cast

import msgspec

from penstock.durable.kept import SCALARS, class_of, is_model
from penstock.user_text import static_attribute

_PLAIN: Final = SCALARS | {type(None)}


def ordered(value: Any, encode: Callable[[Any], bytes]) -> Any:
    """Return the value with a sorted list in place of each set: itself, if it has none. ``encode`` makes the JSON."""
    class_ = class_of(value)
    if class_ in _PLAIN:
        return value
    if issubclass(class_, set | frozenset):
        return sorted((ordered(each, encode) for each in value), key=encode)
    if issubclass(class_, list | tuple | deque):
        if set(map(type, value)) <= _PLAIN:
            return value
        items = [ordered(each, encode) for each in value]
        return value if all(one is other for one, other in zip(items, value, strict=True)) else items
    if issubclass(class_, dict):
        pairs = cast("dict[Any, Any]", value).items()
        changed = {key: new for key, each in pairs if (new := ordered(each, encode)) is not each}
        return {**value, **changed} if changed else value
    return _ordered_object(value, class_, encode)


def _ordered_object(value: Any, class_: type[Any], encode: Callable[[Any], bytes]) -> Any:
    changed: dict[str, Any] = {}
    for name in _fields(value, class_):
        try:
            each = getattr(value, name)
        except AttributeError:
            continue
        if (new := ordered(each, encode)) is not each:
            changed[name] = new
    if not changed:
        return value
    other = copy(value)
    for name, new in changed.items():
        if issubclass(class_, msgspec.Struct):
            msgspec.structs.force_setattr(other, name, new)
        elif is_model(class_):
            other.__dict__[name] = new
        else:
            object.__setattr__(other, name, new)
    return other


def _fields(value: Any, class_: type[Any]) -> list[str]:
    """The names of what the JSON of an object is made of."""
    if issubclass(class_, msgspec.Struct):
        return list(class_.__struct_fields__)
    if is_model(class_):
        return [name for name in class_.model_fields if name in value.__dict__]
    fields = static_attribute(class_, "__dataclass_fields__")
    if fields is not None:
        return list(fields)
    return [each.name for each in static_attribute(class_, "__attrs_attrs__") or ()]
