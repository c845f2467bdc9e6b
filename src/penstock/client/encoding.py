"""Python values to JSON, exactly or not at all.

msgspec writes NaN and infinities as ``null``; a value that silently turns into another one is worse than an
error, so they are refused here. Whole numbers keep all their digits (up to Python's own limit of 4,300).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast

import msgspec

from penstock.client.errors import BadRequest


def to_json(value: object) -> bytes:
    """Encode a value: JSON types, dataclasses, msgspec structs, attrs classes, pydantic models, dates, UUIDs, decimals
    as text.

    Raises:
        BadRequest: the value has no JSON form; nothing was sent.
    """
    return _encoded(_ENCODER, value, _non_finite_float)


def to_json_object(value: object) -> bytes:
    """Encode a value that has to be a JSON object (variables), as expressions read it: decimals are numbers.

    Raises:
        BadRequest: it has no JSON form, another one than an object, or a time without its zone, which no expression
            can read.
    """
    encoded = _encoded(_VARIABLES_ENCODER, value, _non_finite)
    if not encoded.startswith(b"{"):
        raise BadRequest(f"variables must be a JSON object, got {type(value).__name__}")
    # Only a text with such a time can hide a datetime without a zone: most are spared the walk.
    if _WITHOUT_ZONE.search(encoded) is not None and (path := _path_to(value, _without_zone)):
        raise BadRequest(
            f"{path} is a datetime without a zone, which no expression can read as a time: give it one, as in"
            " datetime.now(UTC), or write it as text"
        )
    if _DECIMAL_KEY.search(encoded) is not None and (path := _path_to(value, _is_decimal, only_keys=True)):
        raise BadRequest(f"{path} is a key that is a decimal, which JSON has no form for: write it as text")
    if _LARGE_DECIMAL.search(encoded) is not None and (path := _path_to(value, _is_too_large)):
        raise BadRequest(f"{path} is a decimal beyond all numbers that expressions have: write it as text")
    return encoded


def _encoded(encoder: msgspec.json.Encoder, value: object, refused: Callable[[object], bool]) -> bytes:
    try:
        encoded = encoder.encode(value)
    except _REFUSALS as error:
        raise BadRequest(f"not representable as JSON: {_place_of_refused(encoder, value)}{error}") from error
    # Only a text with one of these in it can hide a NaN: most values are spared the walk.
    if any(word in encoded for word in _NO_NUMBERS) and (path := _path_to(value, refused)):
        raise BadRequest(f"not representable as JSON: {path} is not a finite number")
    return encoded


def optional_object(value: object) -> msgspec.Raw | None:
    """Variables as JSON text, encoded and checked once; None when there are none."""
    return None if value is None else msgspec.Raw(to_json_object(value))


def _plain(value: object) -> object:
    """The encodable form of what msgspec does not know by itself."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):  # a pydantic model; pydantic is not a dependency
        return dump(by_alias=True)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_VARIABLES_ENCODER = msgspec.json.Encoder(enc_hook=_plain, decimal_format="number")
_REFUSALS = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)
PATH_MAX_PARTS: Final = 30
"""So deep a value is looked for that has no JSON form."""
_NO_NUMBERS = (b"null", b"NaN", b"Infinity")
_DECIMAL_KEY = re.compile(rb'[{,]-?[0-9][^",:{}\[\]]*:')
_LARGE_DECIMAL = re.compile(rb"[0-9]E\+[0-9]{3}|[0-9]{309}")
_WITHOUT_ZONE = re.compile(rb'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?"')


def _non_finite_float(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _non_finite(value: object) -> bool:
    return _non_finite_float(value) or (isinstance(value, Decimal) and not value.is_finite())


def _without_zone(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is None


def _is_decimal(value: object) -> bool:
    return isinstance(value, Decimal)


def _is_too_large(value: object) -> bool:
    return isinstance(value, Decimal) and value.is_finite() and not math.isfinite(float(value))


def _path_to(
    value: Any, wanted: Callable[[object], bool], path: str = "value", *, only_keys: bool = False
) -> str | None:
    """Return the path of the first value, or key, of that kind inside ``value``; None when there is none."""
    if isinstance(value, Enum):
        value = value.value
    if wanted(value) and not only_keys:
        return path
    if isinstance(value, Mapping):
        names = cast("Mapping[object, object]", value)
        if (key := next((name for name in names if wanted(_plain_key(name))), None)) is not None:
            return f"{path}.{key}"
    for name, child in _children(value):
        found = _path_to(child, wanted, f"{path}.{name}", only_keys=only_keys)
        if found is not None:
            return found
    return None


def _plain_key(name: object) -> object:
    return name.value if isinstance(name, Enum) else name


def _children(value: Any) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).items()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value).items()
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    if hasattr(value, "__attrs_attrs__"):  # of attrs, which is not a dependency
        names = [field.name for field in value.__attrs_attrs__ if not field.name.startswith("_")]  # as msgspec does
        return [(name, getattr(value, name, None)) for name in names]
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(cast("Iterable[object]", value))
    if hasattr(value, "model_dump"):
        return cast("Mapping[object, object]", value.model_dump()).items()
    return ()


def _place_of_refused(encoder: msgspec.json.Encoder, value: Any) -> str:
    """The path of what the encoder refuses, for its message; nothing where that is the whole."""
    path = ""
    for _ in range(PATH_MAX_PARTS):
        part = next((pair for pair in _children(value) if _is_refused(encoder, pair[1])), None)
        if part is None:
            break
        path, value = f"{path}.{part[0]}", part[1]
    return f"value{path}: " if path else ""


def _is_refused(encoder: msgspec.json.Encoder, value: object) -> bool:
    try:
        encoder.encode(value)
    except _REFUSALS:
        return True
    return False
