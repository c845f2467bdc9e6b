"""What a value loses on its way through a journal: the decoded value is compared with the one that was given.

By type and content, part by part, without an ``__eq__`` of the user: fields, private and excluded ones too, items, and
keys by type. Data of Python's own types is compared at once, as bytes; only what differs is walked through.
"""

from __future__ import annotations

import marshal
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from functools import cached_property
from math import copysign
from types import FunctionType, MemberDescriptorType
from typing import Any, Final, cast, get_args, get_origin

import msgspec
import msgspec.inspect

from penstock.user_text import static_attribute

SCALARS: Final = frozenset({str, int, bool, float})
"""A value of exactly such a type comes back as it is where it is annotated so."""
_MARSHAL_VERSION: Final = 2
"""Without references to what came before in it, which depend on more than the value."""
_LEAVES: Final = SCALARS | {bytes, bytearray}
_LEAF_MODULES: Final = frozenset(
    {"datetime", "decimal", "_decimal", "fractions", "ipaddress", "pathlib", "re", "uuid", "zoneinfo"}
)
"""Of the standard library: their classes say themselves whether two values are the same."""
_NO_STATE: Final = frozenset({"__weakref__", "__dict__", "__pydantic_fields_set__"})
_UNSET: Final = object()
KEYS: Final = ". Give a list of pairs, or keys of text"
ANNOTATE: Final = "without an annotation a value is plain JSON: annotate"


def loss(given: Any, back: Any) -> str | None:
    """Say where and how ``back`` differs from ``given``: ``$.owner is SecretStr, …``. None when it does not."""
    try:
        if marshal.dumps(given, _MARSHAL_VERSION) == marshal.dumps(back, _MARSHAL_VERSION):
            return None
    except ValueError:  # a class that is none of Python's own
        pass
    try:
        return _loss(given, back, "$", set())
    except RecursionError:
        return "it is nested too deeply to be compared"


def refused_type(type_: Any) -> str | None:
    """Say why no value of an annotated type can be kept, as far as the type alone shows it."""
    try:
        if type_ is Any:
            return None
        msgspec.json.Decoder(type_)
        found = msgspec.inspect.type_info(type_)
    except TypeError as error:
        hint = ". Give the classes tags (msgspec.Struct, tag=True), or one class" if "union" in str(error) else ""
        return f"{error}{hint}"
    except Exception:  # a type that asks for more than itself: it shows when a value comes
        return None
    todo: list[Any] = [found]
    seen: set[int] = set()
    while todo:
        info = todo.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.CustomType) and (why := _refused_class(info.cls)) is not None:
            return why
        if isinstance(info, msgspec.inspect.DictType) and (key := _key_without_text(info.key_type)) is not None:
            return f"{key} can't be the key of a JSON object{KEYS}"
        if isinstance(info, msgspec.inspect.Field) and _may_stay_empty(info):
            continue
        if isinstance(info, msgspec.Struct):
            todo.extend(getattr(info, name) for name in info.__struct_fields__)
        elif isinstance(info, tuple):
            todo.extend(cast("tuple[Any, ...]", info))  # type: ignore[redundant-cast]  # pyright asks for it
    return None


def _may_stay_empty(field: msgspec.inspect.Field) -> bool:
    """Return whether a dictionary is kept as long as it has no items, as it has none by default."""
    if field.required or not isinstance(field.type, msgspec.inspect.DictType):
        return False
    return _key_without_text(field.type.key_type) is not None


def _key_without_text(info: msgspec.inspect.Type) -> str | None:
    """The name of a type of keys of which none has a text in JSON."""
    if isinstance(info, msgspec.inspect.UnionType):
        names = [_key_without_text(each) for each in info.types]
        return None if None in names else names[0]
    if isinstance(info, (msgspec.inspect.TupleType, msgspec.inspect.VarTupleType)):
        return "tuple"
    if isinstance(info, msgspec.inspect.FrozenSetType):
        return "frozenset"
    if isinstance(info, (msgspec.inspect.BoolType, msgspec.inspect.NoneType)):
        return "bool" if isinstance(info, msgspec.inspect.BoolType) else "None"
    class_ = getattr(info, "cls", None)
    is_enum = isinstance(info, msgspec.inspect.EnumType)
    return class_.__name__ if isinstance(class_, type) and not is_enum else None


def class_of(value: Any) -> type[Any]:
    """Return ``type(value)``, as a class of anything."""
    return type(value)  # pyright: ignore[reportUnknownVariableType] - of anything


def is_model(type_: type[Any]) -> bool:
    """Return whether a class is a model of pydantic, which is imported then."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(type_, pydantic.BaseModel)


def _refused_class(class_: type[Any]) -> str | None:
    if not is_model(class_):
        if static_attribute(class_, "model_validate") is None:
            return f"{class_.__name__} has no JSON form"
        return None
    own = class_.__pydantic_decorators__
    for name, field in class_.model_fields.items():
        if field.exclude is True and field.is_required():
            return f"{class_.__name__}.{name} is excluded from JSON and has no default"
        if own.field_serializers or own.model_serializers:
            continue
        if (secret := _secret(field.annotation)) is not None:
            return f"{class_.__name__}.{name} is {secret}, whose JSON is asterisks: keep a key that finds the secret"
        if field.is_required() and (key := _key_of_model(field.annotation)) is not None:
            return f"{key} can't be the key of a JSON object ({class_.__name__}.{name}){KEYS}"
    return None


def _key_of_model(type_: Any) -> str | None:
    """The name of a type of keys in an annotation of pydantic, which writes a text that it does not read."""
    todo = [type_]
    while todo:
        each = todo.pop()
        arguments = get_args(each)
        if arguments and get_origin(each) in (dict, defaultdict, Mapping):
            key: Any = get_origin(arguments[0]) or arguments[0]
            if isinstance(key, type) and (issubclass(key, (tuple, frozenset)) or is_model(cast("type[Any]", key))):
                return cast("type[Any]", key).__name__
        todo.extend(arguments)
    return None


def _secret(type_: Any) -> str | None:
    """Return the name of pydantic's secret class in an annotation."""
    todo = [type_]
    while todo:
        each = todo.pop()
        if isinstance(each, type) and each.__name__ in ("SecretStr", "SecretBytes"):
            return each.__name__
        todo.extend(get_args(each))
    return None


def _loss(given: Any, back: Any, at: str, seen: set[tuple[int, int]]) -> str | None:
    class_ = class_of(given)
    other = class_of(back)
    if given is back or (id(given), id(back)) in seen:
        return None
    if class_ is not other:
        if class_ is int and other is float and given == back:  # where float is annotated, as type checkers have it
            return None
        one, another = _name(class_), _name(other)
        if one == another:
            one, another = f"{class_.__module__}.{one}", f"{other.__module__}.{another}"
        return f"{at} is {one} and comes back as {another}"
    if issubclass(class_, Enum):
        return _loss(given._value_, back._value_, at, seen)
    parts = _parts(class_)
    if parts is None and (class_ in _LEAVES or class_.__module__ in _LEAF_MODULES):
        return None if _is_same_leaf(given, back) else f"{at} comes back as another {_name(class_)}"
    seen.add((id(given), id(back)))
    if parts is not None and (found := parts(given, back, at, seen)) is not None:
        return found
    return _state_loss(given, back, at, seen, has_parts=parts is not None)


def _state_loss(given: Any, back: Any, at: str, seen: set[tuple[int, int]], *, has_parts: bool) -> str | None:
    mine, theirs = _state(given), _state(back)
    if mine is None or theirs is None:
        if has_parts or _is_equal_in_c(given, back):
            return None
        return f"{at} is {_name(class_of(given))}, which does not show whether it comes back as it is"
    for name in {**mine, **theirs}:
        one, another = mine.get(name, _of_class(given, name)), theirs.get(name, _of_class(back, name))
        if one is _UNSET or another is _UNSET:
            return f"{at}.{name} {'is lost' if another is _UNSET else 'comes from nowhere'}"
        if (found := _loss(one, another, f"{at}.{name}", seen)) is not None:
            return found
    return None


def _of_class(value: Any, name: str) -> Any:
    """Return what an attribute gives that a value does not set: a default that stands in its class, else `_UNSET`."""
    for base in class_of(value).__mro__:
        if name in vars(base):
            default = vars(base)[name]
            return _UNSET if hasattr(class_of(default), "__get__") else default
    return _UNSET


_Parts = Callable[[Any, Any, str, set[tuple[int, int]]], str | None]


def _parts(class_: type[Any]) -> _Parts | None:
    """How the items of a container are compared; None of what has none."""
    if issubclass(class_, dict):
        return _mapping_loss
    if issubclass(class_, list | tuple | deque):
        return _sequence_loss
    if issubclass(class_, set | frozenset):
        return _set_loss
    return None


def _mapping_loss(given: Any, back: Any, at: str, seen: set[tuple[int, int]]) -> str | None:
    items = cast("Callable[[Any], Iterable[tuple[Any, Any]]]", vars(dict)["items"])  # not a subclass' own
    one, another = list(items(given)), list(items(back))
    for (key, value), (other_key, other_value) in zip(one, another, strict=False):
        if (found := _loss(key, other_key, f"the key {_shown(key)} of {at}", seen)) is not None:
            return found
        if (found := _loss(value, other_value, f"{at}[{_shown(key)}]", seen)) is not None:
            return found
    return None if len(one) == len(another) else f"{at} has {len(one)} items and comes back with {len(another)}"


def _sequence_loss(given: Any, back: Any, at: str, seen: set[tuple[int, int]]) -> str | None:
    one, another = list(given), list(back)
    if len(one) != len(another):
        return f"{at} has {len(one)} items and comes back with {len(another)}"
    return _first(_loss(one[i], another[i], f"{at}[{i}]", seen) for i in range(len(one)))


def _set_loss(given: Any, back: Any, at: str, seen: set[tuple[int, int]]) -> str | None:
    """Items that are the same have the same JSON: by that they are put side by side."""
    if len(given) != len(back):
        return f"{at} has {len(given)} items and comes back with {len(back)}"
    one, another = sorted(given, key=_order), sorted(back, key=_order)
    return _first(_loss(item, other, f"an item of {at}", seen) for item, other in zip(one, another, strict=True))


def _order(item: object) -> bytes:
    return msgspec.json.encode(item, enc_hook=str, order="deterministic")


def _first(found: Iterable[str | None]) -> str | None:
    return next((each for each in found if each is not None), None)


def _is_same_leaf(given: Any, back: Any) -> bool:
    if isinstance(given, float):
        return given == back and copysign(1, given) == copysign(1, back)
    if isinstance(given, Decimal):
        return bool(given.as_tuple() == back.as_tuple())
    if isinstance(given, (datetime, time)):
        offset = given.utcoffset()
        same_fold = offset is not None or given.fold == back.fold
        return bool(given == back) and offset == back.utcoffset() and same_fold
    return bool(given == back)


def _is_equal_in_c(given: Any, back: Any) -> bool:
    """Of a class that shows nothing of itself, and is no user's: it says itself whether two values are the same."""
    class_ = class_of(given)
    equal = static_attribute(class_, "__eq__")
    if isinstance(equal, FunctionType) or equal is vars(object)["__eq__"]:
        return False
    return bool(given == back)


def _state(value: Any) -> dict[str, Any] | None:
    """Return all attributes of an object, by name; None where none can be seen."""
    found: dict[str, Any] = {}
    visible = False
    for base in reversed(type(value).__mro__):
        for name, member in vars(base).items():
            if type(member) is MemberDescriptorType and name not in _NO_STATE:
                visible = True
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue
            elif name == "__slots__":
                visible = True
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return found if visible else None
    class_ = class_of(value)
    cached = {name for name in own if isinstance(static_attribute(class_, name), cached_property)}
    return found | {name: attribute for name, attribute in own.items() if name not in cached}


def _name(class_: type[Any]) -> str:
    return class_.__qualname__


def _shown(key: object) -> str:
    return repr(key) if type(key) in SCALARS else _name(type(key))
