"""Values on their way to and from messages: JSON, ``Struct``, numbers of 32 bits, names of enums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar, cast

import msgspec

from penstock.client.encoding import to_json_object
from penstock.client.errors import BadRequest, InternalError, NotOverGrpc
from penstock.wire.model import StartRequest

MAX_INT32 = 2**31 - 1
# Whole numbers up to here are the same as a double.
MAX_EXACT = 2**53

EnumT = TypeVar("EnumT", bound=IntEnum)


def int32(value: int | None, field: str) -> int:
    """Return a number for a field of 32 bits; 0 is "not given"."""
    number = value or 0
    if not -MAX_INT32 <= number <= MAX_INT32:
        raise BadRequest(f"{field}: {number} does not fit 32 bits")
    return number


def not_given(value: object) -> bool:
    """Return whether a JSON value of a message is none."""
    return value is None or (isinstance(value, msgspec.Raw) and not value)


def json_text(variables: Mapping[str, Any] | msgspec.Raw | None) -> bytes:
    """A JSON object as ``penstock.v1`` has it; empty when there is none."""
    return b"" if not_given(variables) else to_json_object(variables)


def start_message(request: StartRequest) -> StartRequest:
    """Return a start whose values fit the wire, with its variables as text."""
    int32(request.definition_version, "definition_version")
    return msgspec.structs.replace(request, variables=json_text(request.variables))


def struct_text(variables: Mapping[str, Any] | msgspec.Raw | None, field: str) -> bytes:
    """JSON for a ``Struct``; refused when a number in it would come out as another."""
    text = json_text(variables)
    _check_exact(msgspec.json.decode(text) if text else None, field)
    return text


def _check_exact(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            _check_exact(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            _check_exact(item, f"{path}[{index}]")
    elif isinstance(value, int) and abs(value) > MAX_EXACT:
        try:
            exact = int(float(value)) == value
        except OverflowError:
            exact = False
        if not exact:
            raise NotOverGrpc(f"{path}: {value} would be rounded in a gRPC Struct: make this call over REST")


def name_of(kind: type[EnumT], number: int) -> str:
    """Return the name of an enum's number; a newer engine's is shown as its number."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def there(message: Any) -> Any:
    """A message that has to be in the answer."""
    if message is None:
        raise InternalError("the engine's answer lacks the result")
    return message


def only(items: Sequence[Any]) -> Any:
    """Return the one result of a call with one item."""
    if len(items) != 1:
        raise InternalError(f"the answer has {len(items)} results for one item")
    return items[0]
