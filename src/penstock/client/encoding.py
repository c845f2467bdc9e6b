"""Python values to JSON, exactly or not at all.

msgspec writes NaN and infinities as ``null``; a value that silently turns into another one is worse than an
error, so they are refused here. Whole numbers keep all their digits (up to Python's own limit of 4,300).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from penstock.client.errors import BadRequest


def to_json(value: object) -> bytes:
    """Encode a value: JSON types, dataclasses, msgspec structs, pydantic models, dates, UUIDs, decimals.

    Raises:
        BadRequest: the value has no JSON form; nothing was sent.
    """
    try:
        encoded = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadRequest(f"not representable as JSON: {error}") from error
    # Only a text with `null` in it can hide a NaN: most values are spared the walk.
    if b"null" in encoded and (path := _non_finite_at(value)) is not None:
        raise BadRequest(f"not representable as JSON: {path} is not a finite number")
    return encoded


def to_json_object(value: object) -> bytes:
    """Encode a value that has to be a JSON object (variables).

    Raises:
        BadRequest: it has no JSON form, or another one than an object.
    """
    encoded = to_json(value)
    if not encoded.startswith(b"{"):
        raise BadRequest(f"variables must be a JSON object, got {type(value).__name__}")
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


def _non_finite_at(value: Any, path: str = "value") -> str | None:
    """The path of the first NaN or infinity inside ``value``; None when there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, Mapping):
        children: list[tuple[Any, Any]] = list(cast("Mapping[object, object]", value).items())
    elif isinstance(value, msgspec.Struct):
        children = list(msgspec.structs.asdict(value).items())
    elif dataclasses.is_dataclass(value):
        children = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    elif isinstance(value, list | tuple | set | frozenset):
        children = list(enumerate(cast("Iterable[object]", value)))
    elif hasattr(value, "model_dump"):
        children = list(value.model_dump().items())
    else:
        return None
    for name, child in children:
        found = _non_finite_at(child, f"{path}.{name}")
        if found is not None:
            return found
    return None
