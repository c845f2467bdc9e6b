"""Bodies of requests: their form, and how leniently they are read.

Unknown fields are ignored, a null field counts as absent, numbers of `maxJobs` and the like may be fractions and as
large as they want to be (the engine clamps them). A wrong type is refused with the name of the field. Variables stay
bytes and are checked by ``engine.requests.payload``. Must not know what a request means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from penstock.engine.requests.payload import (
    ERROR_MESSAGE_MAX_BYTES,
    PayloadLimits,
    check_json_value,
    clean_text,
)
from penstock.errors import BadRequest
from penstock.rest.tolerant import Unsplittable, bytes_of, split_object, text_of, value_of

Number = int | float

T = TypeVar("T")


class RequestBody(msgspec.Struct, rename="camel", kw_only=True):
    """Base of request bodies. Whatever may be absent may be null."""


class WatchBody(RequestBody):
    worker_id: str | None = None
    wait_seconds: Number | None = None


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes a required body of this form. It raises BadRequest with the field or the place."""
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes) -> T:
        try:
            body.decode()  # msgspec does not look into the texts that it skips
            return decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(_explain(body, error)) from None

    return read


def optional_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """As ``decoder``, for a body that may be empty or null."""
    read = decoder(kind)
    empty = kind()

    def read_optional(body: bytes) -> T:
        return empty if body.strip() in (b"", b"null") else read(body)

    return read_optional


def _explain(body: bytes, error: Exception) -> str:
    if not body.strip():
        return "body: is required"
    if isinstance(error, UnicodeDecodeError):
        return "body: not UTF-8"
    if isinstance(error, RecursionError):
        return "body: nested too deeply"
    text = str(error).replace("`", "")
    if not isinstance(error, msgspec.ValidationError):
        # msgspec has several words for a lone surrogate, "truncated" among them.
        what = "not JSON, or with a lone surrogate" if b"\\ud" in body.lower() else "not JSON"
        return f"body: {what}: {text.removeprefix('JSON is malformed: ')}"
    reason, _, path = text.partition(" - at ")
    return f"{path.removeprefix('$').removeprefix('.') or 'body'}: {reason[0].lower()}{reason[1:]}"


def required(value: str | None, field: str) -> str:
    """A text that must be there. Raises BadRequest."""
    if not value:
        raise BadRequest(f"{field}: is required")
    return value


def whole(value: Number | None) -> int:
    """A number where 0 or less is the default. Fractions are rounded up: a half second is no default."""
    return 0 if value is None or value <= 0 else math.ceil(value)


def given_value(raw: msgspec.Raw | None, limits: PayloadLimits, field: str) -> bytes | None:
    """A JSON value, None when it is absent or null. Raises BadRequest, PayloadTooLarge."""
    data = b"" if raw is None else bytes(raw)
    return None if data in (b"", b"null") else check_json_value(data, limits, field)


def error_text(message: object) -> str:
    """The text of an `errorMessage`, whatever it is: not a string, too long, with characters that can't be kept."""
    if message is None:
        return ""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return clean_text(text, ERROR_MESSAGE_MAX_BYTES)


_TEXTS: Final = frozenset({"errorMessage", "stackTrace"})
"""They are never the reason that a failure is refused."""


def error_tolerant(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """``read`` for a body with an `errorMessage`: where it refuses, once more with that text repaired."""

    def read_sanitized(body: bytes) -> T:
        try:
            return read(body)
        except BadRequest:
            try:
                fields, _ = split_object(text_of(body))
            except Unsplittable:
                fields = {}
            if _TEXTS.isdisjoint(fields):
                raise
            return read(sanitized(fields))

    return read_sanitized


def sanitized(fields: Mapping[str, str]) -> bytes:
    """The JSON object of these parts, its `errorMessage` and `stackTrace` cleaned if it has them."""
    parts = dict(fields)
    for name in _TEXTS & parts.keys():
        found = value_of(parts[name])
        text = parts[name] if found is None and parts[name] != "null" else error_text(found)
        parts[name] = json.dumps(clean_text(text, ERROR_MESSAGE_MAX_BYTES))
    return bytes_of("{" + ",".join(f"{json.dumps(name)}:{part}" for name, part in parts.items()) + "}")
